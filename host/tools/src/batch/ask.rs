//! Sends the unanswered requests, several at a time, and writes the answers.
//!
//! ```text
//!   schedule ─▶ line ─▶ the core orders its documents ─▶ endpoint ─▶ output
//!      ▲   one by one, under one lock                       │
//!      └──────────────── worker ◀───────────────────────────┘
//! ```

use super::client::{Answered, Client, Outcome};
use super::output::Output;
use super::pace::Pace;
use anyhow::{Context, Result, anyhow, ensure};
use foreword_simulation::{
    BatchAnswer, BatchAnswers, BatchIndex, BatchOrderer, BatchSchedule, BatchUsage, RequestLine,
    URLS, answer_line,
};
use indicatif::ProgressBar;
use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A batch and its endpoint.
pub(super) struct Batch<'a> {
    pub(super) input: &'a File,
    pub(super) index: &'a BatchIndex,
    pub(super) client: &'a Client,
    pub(super) pace: &'a Pace,
    /// Root of the endpoint's URL; a line's `url` is appended.
    pub(super) root: &'a str,
    pub(super) workers: usize,
    /// Prefix of the answers' ids, unique to this run.
    pub(super) run: &'a str,
    pub(super) bar: &'a ProgressBar,
}

/// The state that the workers share.
pub(super) struct Progress {
    pub(super) schedule: BatchSchedule,
    pub(super) orderer: BatchOrderer,
    pub(super) output: Output,
    pub(super) answers: BatchAnswers,
    /// Number of retries.
    pub(super) repeated: u64,
    /// Number of requests whose documents were ordered.
    pub(super) ordered: u64,
    /// Failed requests. They are written once another request is answered, or at the end if the endpoint's response is
    /// known. Until then the endpoint may have failed, and not these requests.
    unanswered: Vec<Unanswered>,
    /// The error that ends the run.
    stop: Option<anyhow::Error>,
}

struct Unanswered {
    line: u32,
    text: Vec<u8>,
    reason: String,
    /// Whether the endpoint sent a response, rather than none.
    is_response: bool,
}

/// A request that is ready to be forwarded.
struct Request {
    line: u32,
    custom_id: String,
    url: String,
    body: Vec<u8>,
}

impl Progress {
    pub(super) fn new(
        schedule: BatchSchedule,
        orderer: BatchOrderer,
        output: Output,
        answers: BatchAnswers,
    ) -> Self {
        Self {
            schedule,
            orderer,
            output,
            answers,
            repeated: 0,
            ordered: 0,
            unanswered: Vec::new(),
            stop: None,
        }
    }
}

impl Batch<'_> {
    /// Sends everything that is scheduled.
    ///
    /// # Errors
    /// Returns an error if the endpoint serves nothing or fails again and again, or if the output cannot be written.
    /// Answers received until then are in the output.
    pub(super) fn ask(&self, progress: Progress) -> Result<Progress> {
        let progress = Mutex::new(progress);
        std::thread::scope(|scope| {
            for worker in 0..self.workers {
                let progress = &progress;
                scope.spawn(move || self.work(worker, progress));
            }
        });
        let mut progress = progress.into_inner();
        if let Some(error) = progress.stop.take() {
            return Err(error);
        }
        let unanswered = std::mem::take(&mut progress.unanswered);
        let (refused, lost): (Vec<_>, Vec<_>) = unanswered
            .into_iter()
            .partition(|failed| failed.is_response);
        for failed in refused {
            self.fail(&mut progress, &failed)?;
        }
        if let Some(last) = lost.last() {
            let count = lost.len();
            return Err(anyhow!("{}", last.reason).context(format!(
                "requests without an answer: {count}; the same command goes on from there"
            )));
        }
        progress.output.sync()?;
        Ok(progress)
    }

    fn work(&self, worker: usize, progress: &Mutex<Progress>) {
        let lock = || progress.lock();
        loop {
            let request = match self.next(worker, &mut lock()) {
                Ok(Some(request)) => request,
                Ok(None) => return,
                Err(error) => return self.stop(lock(), error),
            };
            let url = format!("{}{}", self.root, request.url);
            let repeated = || lock().repeated += 1;
            let outcome = (self.client).ask(&url, &request.body, self.pace, repeated);
            let mut progress = lock();
            if let Err(error) = self.keep(&mut progress, &request, outcome) {
                return self.stop(progress, error);
            }
        }
    }

    fn stop(&self, mut progress: MutexGuard<'_, Progress>, error: anyhow::Error) {
        progress.stop.get_or_insert(error);
        drop(progress);
        self.pace.end();
    }

    /// Returns the worker's next request, ordered.
    fn next(&self, worker: usize, progress: &mut Progress) -> Result<Option<Request>> {
        if progress.stop.is_some() {
            return Ok(None);
        }
        let Some(task) = progress.schedule.next(self.index, worker) else {
            return Ok(None);
        };
        let changed = "the input was changed while it was asked";
        let (offset, bytes) = self.index.place(task.line).context(changed)?;
        let mut line = vec![0; bytes as usize];
        self.input
            .read_exact_at(&mut line, offset)
            .context("cannot read the input again")?;
        let parsed = RequestLine::parse(&line, &URLS).context(changed)?;
        ensure!(
            self.index.find(&parsed.custom_id) == Some(task.line),
            changed
        );
        let body = parsed.body.as_bytes();
        let ordered = match &task.documents {
            Some(planned) => progress.orderer.order_as(body, planned),
            None => progress.orderer.order(body),
        };
        progress.ordered += u64::from(ordered.is_some());
        Ok(Some(Request {
            line: task.line,
            body: ordered.unwrap_or_else(|| body.to_vec()),
            custom_id: parsed.custom_id,
            url: parsed.url,
        }))
    }

    /// Records a request's outcome: writes the answer, or holds a failure back (see [`Progress::unanswered`]).
    fn keep(&self, progress: &mut Progress, request: &Request, outcome: Outcome) -> Result<()> {
        let text = |answer: BatchAnswer<'_>| {
            let id = format!("batch_req_{}{:08x}", self.run, request.line);
            answer_line(&id, &request.custom_id, answer)
        };
        match outcome {
            Outcome::Answered(answered) => {
                for failed in std::mem::take(&mut progress.unanswered) {
                    self.fail(progress, &failed)?;
                }
                let text = text(response(&answered));
                let is_served = answered.status / 100 == 2;
                let usage = std::str::from_utf8(&answered.body).map(BatchUsage::of);
                let usage = usage.unwrap_or_default();
                self.write(progress, request.line, &text, is_served, usage)
            }
            Outcome::Failed { reason, last } => {
                let text = match &last {
                    Some(answered) => text(response(answered)),
                    None => text(BatchAnswer::Error {
                        code: "no_answer",
                        message: &reason,
                    }),
                };
                progress.unanswered.push(Unanswered {
                    line: request.line,
                    text,
                    reason,
                    is_response: last.is_some(),
                });
                let count = progress.unanswered.len();
                if count < MAX_FAILED {
                    return Ok(());
                }
                let last = progress.unanswered.pop().map(|last| last.reason);
                Err(anyhow!(last.unwrap_or_default()).context(format!(
                    "{count} requests in a row were not answered; the same command goes on from there"
                )))
            }
            Outcome::Denied(words) => Err(anyhow!(words)),
            Outcome::Stopped => Ok(()),
        }
    }

    fn fail(&self, progress: &mut Progress, failed: &Unanswered) -> Result<()> {
        let usage = BatchUsage::default();
        self.write(progress, failed.line, &failed.text, false, usage)
    }

    fn write(
        &self,
        progress: &mut Progress,
        line: u32,
        text: &[u8],
        is_served: bool,
        usage: BatchUsage,
    ) -> Result<()> {
        progress.output.append(text)?;
        progress.answers.add(line, is_served, usage);
        self.bar.inc(1);
        let BatchUsage {
            prompt_tokens,
            cached_tokens,
            ..
        } = progress.answers.usage;
        if prompt_tokens > 0 {
            let cached = 100.0 * cached_tokens as f64 / prompt_tokens as f64;
            let failed = progress.answers.failed;
            self.bar
                .set_message(format!("{cached:.0} % cached, {failed} failed"));
        }
        Ok(())
    }
}

fn response(answered: &Answered) -> BatchAnswer<'_> {
    BatchAnswer::Response {
        status: answered.status,
        request_id: &answered.request_id,
        body: &answered.body,
    }
}

/// Failures in a row, each after several attempts, after which the endpoint counts as unreachable and the run ends.
const MAX_FAILED: usize = 3;
