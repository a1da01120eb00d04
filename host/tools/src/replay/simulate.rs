//! Replays the documents of a log under one policy or in planned batches, and records the reuse and the time of
//! decisions.

use anyhow::Result;
use foreword_ordering::policy::{Placement, Policy, PolicyKind};
use foreword_report::plot::quantile;
use foreword_report::progress;
use foreword_simulation::{
    Capacity, CompactTrace, EngineCache, PromptReuse, Replay, Reuse, document_tokens,
};
use std::time::{Duration, Instant};

/// The results of simulating a log's requests under one policy, or in planned batches.
#[derive(Clone, Debug)]
pub(crate) struct PolicyOutcome {
    pub(super) name: &'static str,
    pub(super) reuse: Reuse,
    /// The cumulative reuse after the first `n` requests, as pairs of `n` and the reuse: at most [`POINTS`] evenly
    /// spaced points, the last one at the end of the log. Empty for whole prompts.
    pub(super) curve: Vec<(usize, Reuse)>,
    /// Mean time in microseconds to decide on one request: to intern its documents, order them and record the order;
    /// for whole prompts, to rewrite the body.
    pub(super) mean_us: f64,
    pub(super) p99_us: f64,
    /// Number of simulated requests, for each of which the time to decide on an order was measured.
    pub(super) requests: u64,
    /// Reuse of all tokens of the prompts, not only those of documents; `None` if whole prompts were not simulated.
    pub(crate) prompts: Option<PromptReuse>,
}

impl PolicyOutcome {
    /// Returns the number of document tokens that the engine had to compute.
    pub(super) fn computed(&self) -> u64 {
        self.reuse.document_tokens - self.reuse.reused_tokens
    }
}

/// Maximum number of points of [`PolicyOutcome::curve`]; a plot cannot show more.
const POINTS: usize = 240;

/// Simulates the requests of `trace`, counting only their documents, under `policy` with a cache of size `capacity`.
/// `kind` is the policy's kind, whose name the results get.
pub(super) fn replay(
    trace: &CompactTrace,
    kind: PolicyKind,
    policy: Box<dyn Policy>,
    capacity: Capacity,
) -> Result<PolicyOutcome> {
    let requests = trace.requests();
    let bar = progress::bar(kind.name(), requests)?;
    let mut replay = Replay::of(policy, capacity);
    let mut nanoseconds = Vec::with_capacity(requests);
    let mut curve = Curve::new(requests);
    for at in 0..requests {
        let mut taken = Duration::ZERO;
        for part in trace.request(at) {
            let began = Instant::now();
            let order = replay.decide(&part);
            taken += began.elapsed();
            replay.serve(&part, &order);
        }
        nanoseconds.push(nanos(taken));
        let done = at + 1;
        curve.add(done, replay.reuse());
        if done % progress::STRIDE == 0 {
            bar.set_position(done as u64);
            bar.set_message(format!("{:.1} % reused", 100.0 * replay.reuse().share()));
        }
    }
    bar.finish_and_clear();
    Ok(outcome(kind.name(), replay.reuse(), curve, nanoseconds))
}

/// Simulates the requests of `trace`, counting only their documents, in windows of `window` requests. Each window is
/// planned as a whole before its first request is served: the order of its requests, and the order of the documents in
/// each ([`foreword_simulation::batch_placed`]). The time of planning is divided equally among the window's requests.
pub(super) fn replay_batches(
    trace: &CompactTrace,
    window: usize,
    capacity: Capacity,
    placement: Placement,
) -> Result<PolicyOutcome> {
    let requests = trace.requests();
    let bar = progress::bar(BATCH, requests)?;
    let mut cache = EngineCache::new(capacity);
    let mut reuse = Reuse::default();
    let mut nanoseconds = Vec::with_capacity(requests);
    let mut curve = Curve::new(requests);
    for first in (0..requests).step_by(window.max(1)) {
        let done = requests.min(first + window.max(1));
        let parts: Vec<_> = (first..done).flat_map(|at| trace.request(at)).collect();
        let began = Instant::now();
        let plan = foreword_simulation::batch_placed(&parts, placement);
        let taken = began.elapsed().as_nanos() / (done - first) as u128;
        nanoseconds.resize(done, u32::try_from(taken).unwrap_or(u32::MAX));
        reuse.document_tokens += document_tokens(&parts);
        for planned in plan {
            let part = &parts[planned.request];
            let path = planned.order.iter();
            let path = path.map(|&rank| &part.documents[usize::from(rank)]);
            reuse.reused_tokens += cache.serve(part.scope, path);
        }
        curve.add(done, reuse);
        bar.set_position(done as u64);
        bar.set_message(format!("{:.1} % reused", 100.0 * reuse.share()));
    }
    bar.finish_and_clear();
    Ok(outcome(BATCH, reuse, curve, nanoseconds))
}

/// The name of planned batches in tables and plots, in place of a policy's name.
pub(super) const BATCH: &str = "batch";

fn outcome(
    name: &'static str,
    reuse: Reuse,
    curve: Curve,
    mut nanoseconds: Vec<u32>,
) -> PolicyOutcome {
    nanoseconds.sort_unstable();
    let sum: u64 = nanoseconds.iter().copied().map(u64::from).sum();
    PolicyOutcome {
        name,
        reuse,
        curve: curve.points,
        mean_us: sum as f64 / 1000.0 / nanoseconds.len().max(1) as f64,
        p99_us: f64::from(quantile(&nanoseconds, 0.99)) / 1000.0,
        requests: nanoseconds.len() as u64,
        prompts: None,
    }
}

/// Returns a time in nanoseconds; times above 4 s count as that.
pub(super) fn nanos(taken: Duration) -> u32 {
    u32::try_from(taken.as_nanos()).unwrap_or(u32::MAX)
}

/// Returns the results of simulating whole prompts under the policy called `name`. `nanoseconds` has the times that
/// rewriting the bodies took.
pub(super) fn whole(
    name: &'static str,
    prompts: PromptReuse,
    nanoseconds: Vec<u32>,
) -> PolicyOutcome {
    let curve = Curve::new(0);
    PolicyOutcome {
        prompts: Some(prompts),
        ..outcome(name, prompts.documents, curve, nanoseconds)
    }
}

/// Collects the points of [`PolicyOutcome::curve`] while a log is replayed.
struct Curve {
    requests: usize,
    next_point: usize,
    points: Vec<(usize, Reuse)>,
}

impl Curve {
    fn new(requests: usize) -> Self {
        Self {
            requests,
            next_point: 1,
            points: Vec::with_capacity(POINTS.min(requests)),
        }
    }

    /// Adds a point with the reuse after `done` requests if the next evenly spaced point is due.
    fn add(&mut self, done: usize, reuse: Reuse) {
        if done * POINTS >= self.next_point * self.requests {
            self.points.push((done, reuse));
            self.next_point = done * POINTS / self.requests + 1;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use foreword_ordering::policy::PolicyOptions;
    use foreword_simulation::{
        self, Trace,
        workload::{Bursty, bursty},
    };

    pub(in crate::replay) fn generated(requests: usize) -> (CompactTrace, Trace) {
        let list = bursty(7, requests, Bursty::default());
        let mut trace = CompactTrace::default();
        for request in &list {
            trace.push(vec![request.clone()]);
        }
        (trace, list)
    }

    #[test]
    fn it_reuses_what_the_cores_replay_does_and_the_curve_ends_there() {
        let options = PolicyOptions::default();
        for requests in [1, 7, 239, 240, 241, 1_000] {
            let (trace, list) = generated(requests);
            let capacity = Capacity::of_prompts(20, &list);
            for kind in [PolicyKind::Retrieval, PolicyKind::Longest] {
                let outcome = replay(&trace, kind, kind.build(&options), capacity).unwrap();
                let mut core = Replay::new(kind, &options, capacity);
                for request in &list {
                    let order = core.decide(request);
                    core.serve(request, &order);
                }
                let core = core.reuse();
                assert_eq!(outcome.reuse, core);
                assert_eq!(outcome.curve.last(), Some(&(requests, core)));
                assert_eq!(outcome.curve.len(), POINTS.min(requests));
                assert!(outcome.mean_us > 0.0);
            }
        }
    }

    #[test]
    fn a_batch_serves_every_request_once_whatever_the_window() {
        let (trace, list) = generated(1_000);
        let tokens = foreword_simulation::document_tokens(&list);
        for window in [1, 7, 1_000, 5_000] {
            let outcome =
                replay_batches(&trace, window, Capacity::UNBOUNDED, Placement::FREE).unwrap();
            assert_eq!(outcome.reuse.document_tokens, tokens);
            assert_eq!(outcome.curve.last(), Some(&(1_000, outcome.reuse)));
        }
        let options = PolicyOptions::default();
        let whole = replay_batches(&trace, 1_000, Capacity::UNBOUNDED, Placement::FREE).unwrap();
        let longest = PolicyKind::Longest;
        let online = replay(
            &trace,
            longest,
            longest.build(&options),
            Capacity::UNBOUNDED,
        )
        .unwrap();
        assert!(whole.reuse.reused_tokens > online.reuse.reused_tokens);
    }
}
