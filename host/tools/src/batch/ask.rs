//! Sends those requests of a batch that have no answer yet, several at a time, and writes the answers.
//!
//! ```text
//!   schedule ─▶ line ─▶ the core orders its documents ─▶ endpoint ─▶ output
//!      ▲   one by one, under one lock                       │
//!      └──────────────── worker ◀───────────────────────────┘
//! ```

use super::output::Output;
use super::pace::Pace;
use crate::client::{Client, Fault, Reply, Verdict, on_one_line, verdict};
use anyhow::{Context, Result, anyhow, ensure};
use foreword_simulation::{
    BatchAnswer, BatchAnswers, BatchIndex, BatchOrderer, BatchSchedule, BatchUsage, RequestLine,
    URLS, answer_line,
};
use indicatif::ProgressBar;
use parking_lot::{Mutex, MutexGuard};
use serde::de::IgnoredAny;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The inputs of a run of `foreword batch`, which stay the same for all its requests: the input file and its index, the
/// endpoint, and the client.
pub(super) struct Batch<'a> {
    pub(super) input: &'a File,
    pub(super) index: &'a BatchIndex,
    pub(super) client: &'a Client,
    pub(super) pace: &'a Pace,
    /// Root of the endpoint's URL, to which a line's `url` is appended.
    pub(super) root: &'a str,
    pub(super) workers: usize,
    /// True if a request that still gets a 5xx after all retries, or gets too long an answer, is written to the output
    /// as failed. If false, such a request counts towards the [`MAX_FAILED`] consecutive failures that end the run.
    pub(super) keep_going: bool,
    /// Random name of this run, which is part of the `id` of each answer in the output.
    pub(super) run: &'a str,
    pub(super) bar: &'a ProgressBar,
}

/// The state that the workers of a run share and change.
pub(super) struct Progress {
    pub(super) schedule: BatchSchedule,
    pub(super) orderer: BatchOrderer,
    pub(super) output: Output,
    pub(super) answers: BatchAnswers,
    /// Number of retries in this run, over all requests.
    pub(super) repeated: u64,
    /// Number of requests in this run whose bodies Foreword's ordering core changed, such as by reordering documents.
    /// The other bodies are sent unchanged.
    pub(super) ordered: u64,
    /// Requests that failed since another request was last answered, and are not yet written to the output, since the
    /// fault may be the endpoint's:
    /// (1) When another request is answered, they are written as failed.
    /// (2) When there are [`MAX_FAILED`] of them, the run ends with an error; the next run sends them again.
    /// (3) At the end of the run, those to which the endpoint responded are written as failed. If others are left, the
    /// run ends with an error; the next run sends them again.
    pub(super) unanswered: Vec<Unanswered>,
    /// The error that ends the run; `None` while the run continues.
    pub(super) stop: Option<anyhow::Error>,
}

/// A request that failed in all attempts, or whose answer was too long.
pub(super) struct Unanswered {
    line: u32,
    /// The line about the failure, to be written to the output.
    text: Vec<u8>,
    reason: String,
    /// True if the endpoint responded to the request, though with an error or too long an answer.
    is_response: bool,
}

/// A request of the batch, with its documents ordered, ready to be sent.
struct Request {
    line: u32,
    custom_id: String,
    url: String,
    body: Vec<u8>,
}

impl Batch<'_> {
    /// Sends all requests of the schedule from several threads, and returns the state after the last answer.
    ///
    /// # Errors
    /// Returns an error if the endpoint refuses this client (such as by 401) or fails repeatedly, or if the output
    /// cannot be written. Answers received before that are in the output.
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
        let unanswered = unanswered.into_iter();
        let (refused, lost): (Vec<_>, Vec<_>) = unanswered.partition(|failed| failed.is_response);
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
            let attempt = || self.attempt(&url, &request.body);
            let answer = self.client.retry(attempt, |wait, _| {
                lock().repeated += 1;
                self.pace.wait_until(Instant::now() + wait);
            });
            let mut progress = lock();
            if let Err(error) = self.record_answer(&mut progress, &request, answer) {
                return self.stop(progress, error);
            }
        }
    }

    /// Sends a request once, as soon as the run's [`Pace`] (rate limit and pauses) allows it. Pauses the whole run if
    /// the response has `Retry-After` and a status that permits a retry. Returns the response, which may be a refusal
    /// of this request; `None` if the run has ended, so that nothing was sent.
    fn attempt(&self, url: &str, body: &[u8]) -> Result<Option<Reply>, Fault> {
        if !self.pace.wait() {
            return Ok(None);
        }
        let accept = [("accept", "application/json")];
        let response = self.client.send(url, Some(body), &accept)?;
        let Some(reply) = Reply::read(url, response, MAX_ANSWER)? else {
            let reason = format!("{url} answered more than {MAX_ANSWER} bytes");
            return Err(Fault::Refused(reason));
        };
        let refusal = on_one_line(&reply.body);
        let reason = format!("{url} answered {}: {refusal}", reply.status);
        match verdict(reply.status) {
            Verdict::Served if serde_json::from_slice::<IgnoredAny>(&reply.body).is_err() => {
                let answered = format!("{url} answered {}", reply.status);
                Err(Fault::again(answered + " with a body that is no JSON"))
            }
            Verdict::Served | Verdict::Refused => Ok(Some(reply)),
            Verdict::Denied => Err(Fault::Denied(reason)),
            Verdict::Again => {
                let asked = reply.pause();
                if let Some(pause) = asked {
                    self.pace.pause(pause.min(MAX_PAUSE));
                }
                Err(Fault::Failed {
                    reason,
                    last: Some(Box::new(reply)),
                    asked,
                })
            }
        }
    }

    fn stop(&self, mut progress: MutexGuard<'_, Progress>, error: anyhow::Error) {
        progress.stop.get_or_insert(error);
        drop(progress);
        self.pace.end();
    }

    /// Takes the next request for the worker with this number from the schedule, reads it from the input file, and has
    /// the ordering core order its documents. Returns `None` if the schedule has no request left for this worker, or if
    /// the run has ended.
    ///
    /// # Errors
    /// Returns an error if the input file cannot be read, or was changed since the run began.
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
        let read = self.input.read_exact_at(&mut line, offset);
        read.context("cannot read the input again")?;
        let parsed = RequestLine::parse(&line, &URLS).context(changed)?;
        let found = self.index.find(&parsed.custom_id);
        ensure!(found == Some(task.line), changed);
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

    /// Writes a request's answer to the output, or keeps its failure in [`Progress::unanswered`] for later. Returns an
    /// error, which ends the run, if the endpoint refuses this client, if too many consecutive requests failed, or if
    /// the output cannot be written.
    fn record_answer(
        &self,
        progress: &mut Progress,
        request: &Request,
        answer: Result<Option<Reply>, Fault>,
    ) -> Result<()> {
        let text = |answer: BatchAnswer<'_>| {
            let id = format!("batch_req_{}{:08x}", self.run, request.line);
            answer_line(&id, &request.custom_id, answer)
        };
        let (reason, last, is_response) = match answer {
            Ok(Some(reply)) => {
                for failed in std::mem::take(&mut progress.unanswered) {
                    self.fail(progress, &failed)?;
                }
                let is_served = verdict(reply.status) == Verdict::Served;
                let usage = std::str::from_utf8(&reply.body).map(BatchUsage::of);
                let usage = usage.unwrap_or_default();
                let text = text(response(&reply));
                return self.write(progress, request.line, &text, is_served, usage);
            }
            Ok(None) => return Ok(()),
            Err(Fault::Denied(words)) => return Err(anyhow!(words)),
            Err(Fault::Refused(words)) => (words, None, true),
            Err(Fault::Failed { reason, last, .. }) => {
                let is_response = last.is_some();
                (reason, last, is_response)
            }
        };
        let answer = last.as_deref().map(response);
        let text = text(answer.unwrap_or(BatchAnswer::Error {
            code: "no_answer",
            message: &reason,
        }));
        let may_fail =
            self.keep_going && (last.as_ref()).map_or(is_response, |reply| reply.status >= 500);
        let failed = Unanswered {
            line: request.line,
            text,
            reason,
            is_response,
        };
        if may_fail {
            return self.fail(progress, &failed);
        }
        progress.unanswered.push(failed);
        let count = progress.unanswered.len();
        if count < MAX_FAILED {
            return Ok(());
        }
        let last = progress.unanswered.pop().map(|last| last.reason);
        Err(anyhow!(last.unwrap_or_default()).context(format!(
            "{count} requests in a row were not answered; the same command goes on from there, and with --keep-going it \
             writes those that the endpoint fails to serve as failed"
        )))
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
        let usage = progress.answers.usage;
        if usage.prompt_tokens > 0 {
            let cached = 100.0 * usage.cached_tokens as f64 / usage.prompt_tokens as f64;
            let failed = progress.answers.failed;
            (self.bar).set_message(format!("{cached:.0} % cached, {failed} failed"));
        }
        Ok(())
    }
}

fn response(reply: &Reply) -> BatchAnswer<'_> {
    BatchAnswer::Response {
        status: reply.status,
        request_id: reply.header("x-request-id").unwrap_or_default(),
        body: &reply.body,
    }
}

/// Longest time for which a `Retry-After` in the endpoint's response pauses the run; a longer wait is shortened to
/// this.
const MAX_PAUSE: Duration = Duration::from_secs(600);
/// Maximum size, in bytes, of the answer to one request. A request with a longer answer counts as failed, because a run
/// that resumes the batch reads each answer in the output file into memory again.
const MAX_ANSWER: u64 = 32 << 20;
/// Number of consecutive failed requests at which the run ends, since the endpoint itself then seems to be at fault.
const MAX_FAILED: usize = 3;
