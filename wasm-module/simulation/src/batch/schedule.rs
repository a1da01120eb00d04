//! The order in which several workers send a batch's requests.
//!
//! ```text
//!   index ─▶ windows of lines that share ─▶ plan of a window ─▶ runs, cut where neighbours share nothing
//!                                                                  │ one worker follows a run to its end
//!                                                                  ▼
//!                                            a worker without a run takes half of the longest one
//! ```
//!
//! An engine's cache has what was computed, not what is being computed: neighbours of the plan that are sent at the
//! same time compute their shared prefix twice. So a worker sends neighbours one after another, and workers follow
//! different runs.
//!
//! Planning takes about 1.5 KB and 50 µs per request with 15 documents. A batch of more than [`WINDOW`] requests is
//! planned window by window; each window takes lines with the same frequent documents. The effort for a window is
//! bounded: beyond it, lines not joined yet stay apart.

use super::index::BatchIndex;
use super::order::BatchOrder;
use super::{Effort, within};
use foreword_ordering::document::Fingerprint;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::ops::Range;

/// A request for a worker to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchTask {
    /// The request's line, as an index in the [`BatchIndex`].
    pub line: u32,
    /// The request's first documents, in planned order; `None` without a plan or documents.
    pub documents: Option<Vec<Fingerprint>>,
}

/// The lines of a batch that have not been sent.
#[derive(Debug)]
pub struct BatchSchedule {
    order: BatchOrder,
    /// Lines not planned yet, window after window.
    lines: VecDeque<u32>,
    window: usize,
    planned: Vec<Step>,
    /// Runs of `planned` without a worker.
    runs: VecDeque<Range<usize>>,
    /// The rest of each worker's run.
    workers: Vec<Range<usize>>,
}

/// A request of a planned window.
#[derive(Debug)]
struct Step {
    line: u32,
    /// Indices of documents, in planned order.
    documents: Box<[u32]>,
    /// Estimated tokens shared with the previous step.
    shared: u64,
}

impl BatchSchedule {
    /// Schedules the lines of `index` for which `is_pending` is true, for `workers` workers.
    pub fn new(
        index: &BatchIndex,
        order: BatchOrder,
        workers: usize,
        is_pending: impl Fn(u32) -> bool,
    ) -> Self {
        Self::with_window(index, order, workers, is_pending, WINDOW)
    }

    fn with_window(
        index: &BatchIndex,
        order: BatchOrder,
        workers: usize,
        is_pending: impl Fn(u32) -> bool,
        window: usize,
    ) -> Self {
        let lines = (0..index.len() as u32).filter(|&line| is_pending(line));
        let mut lines: Vec<u32> = lines.collect();
        if order == BatchOrder::Plan && lines.len() > window {
            lines.sort_by_cached_key(|&line| (index.group(line), frequent(index, line)));
        }
        lines.shrink_to_fit();
        Self {
            order,
            lines: lines.into(),
            window,
            planned: Vec::new(),
            runs: VecDeque::new(),
            workers: vec![0..0; workers],
        }
    }

    /// Returns whether [`BatchSchedule::next`] would plan a window for this worker, which takes seconds at most.
    #[must_use]
    pub fn needs_plan(&self, worker: usize) -> bool {
        let has_run = self.workers.get(worker).is_none_or(|run| !run.is_empty());
        self.order == BatchOrder::Plan
            && !has_run
            && self.runs.is_empty()
            && self.workers.iter().all(Range::is_empty)
            && !self.lines.is_empty()
    }

    /// Plans the next window, unless a worker still has requests. Ends early once `is_over`, which is called now and
    /// then, returns true.
    pub fn plan(&mut self, index: &BatchIndex, is_over: &dyn Fn() -> bool) {
        if (0..self.workers.len()).all(|worker| self.needs_plan(worker)) {
            self.plan_window(index, is_over);
        }
    }

    /// Returns a worker's next request; `None` if none is left for it. Plans a window if necessary.
    pub fn next(&mut self, index: &BatchIndex, worker: usize) -> Option<BatchTask> {
        if self.order == BatchOrder::Input {
            return Some(BatchTask {
                line: self.lines.pop_front()?,
                documents: None,
            });
        }
        loop {
            if let Some(at) = self.workers.get_mut(worker)?.next() {
                let step = self.planned.get(at)?;
                let documents = step.documents.iter();
                let documents: Vec<_> =
                    documents.map(|&number| index.fingerprint(number)).collect();
                return Some(BatchTask {
                    line: step.line,
                    documents: (!documents.is_empty()).then_some(documents),
                });
            }
            let run = match self.runs.pop_front() {
                Some(run) => run,
                None => match self.split() {
                    Some(run) => run,
                    None if self.lines.is_empty() => return None,
                    None => {
                        self.plan_window(index, &|| false);
                        continue;
                    }
                },
            };
            *self.workers.get_mut(worker)? = run;
        }
    }

    /// Returns the bytes of memory used: 4 per unplanned line, and the planned window.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        let documents = self.planned.iter().map(|step| step.documents.len());
        self.lines.capacity() * size_of::<u32>()
            + self.planned.capacity() * size_of::<Step>()
            + documents.sum::<usize>() * size_of::<u32>()
            + (self.runs.capacity() + self.workers.capacity()) * size_of::<Range<usize>>()
    }

    /// Takes the end of the longest run in progress. The cut is near its middle, before the step that shares least with
    /// the previous one.
    fn split(&mut self) -> Option<Range<usize>> {
        let longest = self
            .workers
            .iter_mut()
            .max_by_key(|run| run.end - run.start)?;
        let (start, length) = (longest.start, longest.len());
        if length == 0 {
            return None;
        }
        let middle = start + length / 2;
        let candidates = start + length / 4..=start + (3 * length / 4).min(length - 1);
        let cut = candidates.min_by_key(|&at| {
            let shared = self.planned.get(at).map_or(0, |step| step.shared);
            (shared, at.abs_diff(middle))
        })?;
        let rest = cut..longest.end;
        longest.end = cut;
        Some(rest)
    }

    /// Plans the next window. Lines with the same text before their documents stay together.
    fn plan_window(&mut self, index: &BatchIndex, is_over: &dyn Fn() -> bool) {
        let mut effort = Effort::new(STEPS, is_over);
        let count = self.window.min(self.lines.len());
        let mut window: Vec<u32> = self.lines.drain(..count).collect();
        window.sort_by_key(|&line| index.group(line));
        self.planned.clear();
        for lines in window.chunk_by(|a, b| index.group(*a) == index.group(*b)) {
            let requests: Vec<_> = lines.iter().map(|&line| index.request(line)).collect();
            let mut before: &[u32] = &[];
            for planned in within(&requests, &mut effort) {
                let Some(&line) = lines.get(planned.request) else {
                    continue;
                };
                let numbers = index.numbers(line);
                let documents = planned.order.iter();
                let documents: Box<[u32]> = documents
                    .filter_map(|&rank| numbers.get(usize::from(rank)).copied())
                    .collect();
                let alike = before.iter().zip(&documents);
                let alike = alike.take_while(|(before, document)| before == document);
                // Sharing a document without tokens is still useful.
                let shared = alike.map(|(_, &number)| u64::from(index.tokens(number).max(1)));
                let shared = shared.sum();
                self.planned.push(Step {
                    line,
                    documents,
                    shared,
                });
                before = self.planned.last().map_or(&[], |step| &step.documents);
            }
        }
        let mut start = 0;
        for at in 1..=self.planned.len() {
            let shares = self.planned.get(at).is_some_and(|step| step.shared > 0);
            if !shares {
                self.runs.push_back(start..at);
                start = at;
            }
        }
    }
}

/// Returns the line's most frequent documents. Sorting by them puts lines with the same documents together.
fn frequent(index: &BatchIndex, line: u32) -> [u32; 4] {
    let mut numbers: Vec<u32> = index.numbers(line).to_vec();
    numbers.sort_unstable_by_key(|&number| (Reverse(index.holders(number)), number));
    let mut first = [u32::MAX; 4];
    for (place, number) in first.iter_mut().zip(numbers) {
        *place = number;
    }
    first
}

/// Most holders examined per window: some seconds, and several times what 15 documents per line need.
const STEPS: u64 = 1 << 30;
/// Most requests planned together.
pub const WINDOW: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::super::index::tests::{LIMITS, line, read};
    use super::*;
    use crate::{Capacity, EngineCache, Request, Trace, workload, workloads};
    use std::collections::HashSet;

    fn text(trace: &Trace) -> String {
        (0..trace.len())
            .map(|at| {
                let documents = trace[at].documents.iter().map(|d| d.fingerprint.0);
                line(&at.to_string(), &documents.collect::<Vec<_>>())
            })
            .collect()
    }

    /// Sends all requests with `workers` workers in turn.
    fn asked(schedule: &mut BatchSchedule, index: &BatchIndex, workers: usize) -> Vec<BatchTask> {
        let mut tasks = Vec::new();
        let mut idle = 0;
        for worker in (0..workers).cycle() {
            match schedule.next(index, worker) {
                Some(task) => {
                    tasks.push(task);
                    idle = 0;
                }
                None => idle += 1,
            }
            if idle == workers {
                return tasks;
            }
        }
        tasks
    }

    fn reused(index: &BatchIndex, tasks: &[BatchTask]) -> u64 {
        let mut cache = EngineCache::new(Capacity::UNBOUNDED);
        let mut reused = 0;
        for task in tasks {
            let Request {
                scope, documents, ..
            } = index.request(task.line);
            let planned = task.documents.as_ref();
            let order: Vec<_> = match planned {
                None => documents,
                Some(planned) => planned
                    .iter()
                    .filter_map(|f| documents.iter().find(|d| d.fingerprint == *f).cloned())
                    .collect(),
            };
            reused += cache.serve(scope, order.iter());
        }
        reused
    }

    #[test]
    fn planning_ahead_is_the_same_as_planning_when_asked() {
        let trace = workloads::zipf_topics(3, 100, 50, 6);
        let (index, _) = read(&text(&trace), LIMITS);
        let scheduled = |order| BatchSchedule::with_window(&index, order, 2, |_| true, 40);
        let expected = asked(&mut scheduled(BatchOrder::Plan), &index, 2);
        let mut ahead = scheduled(BatchOrder::Plan);
        let (mut tasks, mut windows) = (Vec::new(), 0);
        for worker in (0..2).cycle() {
            if ahead.needs_plan(worker) {
                ahead.plan(&index, &|| false);
                // A second plan would drop nothing.
                ahead.plan(&index, &|| false);
                assert!(!ahead.needs_plan(worker));
                windows += 1;
            }
            match ahead.next(&index, worker) {
                Some(task) => tasks.push(task),
                None => break,
            }
        }
        assert_eq!((tasks.len(), windows), (100, 3));
        assert_eq!(tasks, expected);
        assert!(!scheduled(BatchOrder::Input).needs_plan(0));
    }

    #[test]
    fn every_pending_line_is_asked_once_with_its_own_documents_whatever_the_window_and_the_workers()
    {
        let trace = workloads::zipf_topics(3, 300, 200, 6);
        let (index, _) = read(&text(&trace), LIMITS);
        for (window, workers) in [(1, 1), (7, 3), (100, 16), (300, 1), (1_000, 500)] {
            for order in [BatchOrder::Input, BatchOrder::Plan] {
                let pending = |line: u32| !line.is_multiple_of(3);
                let mut schedule =
                    BatchSchedule::with_window(&index, order, workers, pending, window);
                let tasks = asked(&mut schedule, &index, workers);
                let mut lines: Vec<u32> = tasks.iter().map(|task| task.line).collect();
                if order == BatchOrder::Input {
                    assert!(lines.is_sorted());
                }
                lines.sort_unstable();
                assert!(lines.into_iter().eq((0..300).filter(|line| pending(*line))));
                for task in tasks {
                    let Some(documents) = task.documents else {
                        assert!(order == BatchOrder::Input);
                        continue;
                    };
                    let planned: HashSet<_> = documents.into_iter().collect();
                    let own = index.request(task.line).documents;
                    assert_eq!(planned, own.into_iter().map(|d| d.fingerprint).collect());
                }
            }
        }
    }

    #[test]
    fn a_schedule_takes_4_bytes_a_line_and_one_window_however_many_lines_there_are() {
        let most = |lines: usize| {
            let trace = workloads::zipf_topics(1, lines, 500, 6);
            let (index, _) = read(&text(&trace), LIMITS);
            let mut schedule =
                BatchSchedule::with_window(&index, BatchOrder::Plan, 4, |_| true, 100);
            let mut most = schedule.bytes();
            let mut asked = 0;
            while let Some(_task) = schedule.next(&index, asked % 4) {
                most = most.max(schedule.bytes());
                asked += 1;
            }
            assert_eq!(asked, lines);
            most
        };
        let (few, many) = (most(1_000), most(5_000));
        // Windows differ a little in their number of runs and documents.
        assert!((many - few).abs_diff(4 * 4_000) < 4_096, "{few}, {many}");
        assert!(few < 4 * 1_000 + 100 * 200, "{few}");
    }

    #[test]
    fn a_plan_reuses_more_than_the_files_order_and_windows_cost_little() {
        let trace = workload::bursty(1, 1_000, workload::Bursty::default());
        let (index, _) = read(&text(&trace), LIMITS);
        let of = |order, window| {
            let mut schedule = BatchSchedule::with_window(&index, order, 1, |_| true, window);
            reused(&index, &asked(&mut schedule, &index, 1))
        };
        let input = of(BatchOrder::Input, WINDOW);
        let (whole, windows) = (of(BatchOrder::Plan, WINDOW), of(BatchOrder::Plan, 100));
        assert!(whole > 2 * input, "{whole} against {input}");
        assert!(windows * 10 > whole * 9, "{windows} against {whole}");
    }

    /// Tokens found in the cache when requests are sent in rounds: within a round, no request finds what another
    /// computes.
    fn found_in_rounds(index: &BatchIndex, rounds: &[Vec<BatchTask>]) -> u64 {
        let mut held: HashSet<Vec<Fingerprint>> = HashSet::new();
        let mut found = 0;
        for round in rounds {
            let paths: Vec<&[Fingerprint]> = round
                .iter()
                .filter_map(|task| task.documents.as_deref())
                .collect();
            for (path, task) in paths.iter().zip(round) {
                let documents = index.request(task.line).documents;
                let tokens = |f: &Fingerprint| {
                    documents
                        .iter()
                        .find(|d| d.fingerprint == *f)
                        .map_or(0, |d| u64::from(d.tokens))
                };
                let matched = (1..=path.len()).take_while(|&end| held.contains(&path[..end]));
                found += path[..matched.count()].iter().map(tokens).sum::<u64>();
            }
            for path in paths {
                held.extend((1..=path.len()).map(|end| path[..end].to_vec()));
            }
        }
        found
    }

    #[test]
    fn workers_on_runs_of_their_own_find_more_than_workers_that_ask_neighbours_at_once() {
        let trace = workload::bursty(1, 2_000, workload::Bursty::default());
        let (index, _) = read(&text(&trace), LIMITS);
        let mut schedule = BatchSchedule::new(&index, BatchOrder::Plan, 1, |_| true);
        let sequence = asked(&mut schedule, &index, 1);
        let alone: Vec<_> = sequence.chunks(1).map(<[_]>::to_vec).collect();
        let alone = found_in_rounds(&index, &alone);
        for workers in [8, 32] {
            let neighbours: Vec<_> = sequence.chunks(workers).map(<[_]>::to_vec).collect();
            let neighbours = found_in_rounds(&index, &neighbours);
            let mut schedule = BatchSchedule::new(&index, BatchOrder::Plan, workers, |_| true);
            let runs = asked(&mut schedule, &index, workers);
            let runs: Vec<_> = runs.chunks(workers).map(<[_]>::to_vec).collect();
            let runs = found_in_rounds(&index, &runs);
            assert!(runs * 100 > alone * 93, "{runs} of {alone}");
            assert!(runs > 2 * neighbours, "{runs} against {neighbours}");
        }
    }

    #[test]
    fn workers_follow_runs_of_their_own_until_none_is_left_and_then_take_half_of_one() {
        // Two runs, with document 1 and with document 2, and a single line.
        let lines: Vec<String> = (0..9)
            .map(|at| match at {
                0..4 => line(&at.to_string(), &[1, 100 + at]),
                4..8 => line(&at.to_string(), &[2, 100 + at]),
                _ => line(&at.to_string(), &[3]),
            })
            .collect();
        let (index, _) = read(&lines.concat(), LIMITS);
        let mut schedule = BatchSchedule::new(&index, BatchOrder::Plan, 2, |_| true);
        let mut next = |worker| schedule.next(&index, worker).map(|task| task.line);
        assert_eq!(
            [next(0), next(1), next(0), next(1)],
            [Some(0), Some(4), Some(1), Some(5)]
        );
        // The second worker is faster: it ends its run, takes the single line, then the end of the first run.
        assert_eq!([next(1), next(1), next(1)], [Some(6), Some(7), Some(8)]);
        assert_eq!([next(1), next(0)], [Some(3), Some(2)]);
        assert_eq!([next(0), next(1)], [None, None]);
    }

    #[test]
    fn requests_without_documents_are_asked_by_what_they_begin_with() {
        let chat = |id: u32, system: &str| {
            format!(
                "{{\"custom_id\":\"{id}\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{{\"messages\":[{{\"role\":\"system\",\"content\":\"{system}\"}},{{\"role\":\"user\",\"content\":\"{id}\"}}]}}}}\n"
            )
        };
        let text: String = (0..6)
            .map(|id| chat(id, ["A", "B"][id as usize % 2]))
            .collect();
        let (index, errors) = read(&text, LIMITS);
        assert!(errors.is_empty());
        let mut schedule = BatchSchedule::new(&index, BatchOrder::Plan, 1, |_| true);
        let tasks = asked(&mut schedule, &index, 1);
        let lines: Vec<u32> = tasks.iter().map(|task| task.line).collect();
        assert_eq!(lines, [0, 2, 4, 1, 3, 5]);
        assert!(tasks.iter().all(|task| task.documents.is_none()));
    }
}
