//! Runs one batch: reads its file, sends its requests, and writes the answers.
//!
//! A batch's request takes a permit of the batches and waits until no request waits in the engine's queue; then it
//! passes the same admission as a request from the network. So live requests overtake the rest of a batch.
//!
//! Reading a file and planning may take seconds. They run on blocking threads, for one batch at a time, hold no place
//! in the gate, and stop early if the batch ends. No async worker waits for the disk or for a lock held meanwhile.

use super::store::{ERRORS, Fault, OUTPUT, RequestCounts, Status, Store};
use super::{Ask, Asking, BatchRecord, Shared, now};
use crate::failure::Failure;
use anyhow::{Context, Result, anyhow};
use foreword_report::files::{append_line, open_appended};
use foreword_simulation::{
    BatchAnswer, BatchAnswers, BatchIndex, BatchLimits, BatchOrderer, BatchSchedule, BatchUsage,
    RequestLine, answer_line,
};
use parking_lot::Mutex;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{OwnedMutexGuard, Semaphore};
use tokio::task::{JoinSet, spawn_blocking};

/// The reason that a batch sends no further requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Completed,
    Cancelled,
    Expired,
    /// The batch's file has these errors, or its answers cannot be written.
    Failed(Vec<Fault>),
    /// The server is stopping; the batch continues after its next start.
    Stopped,
}

/// A batch whose requests are being sent.
struct Running {
    record: BatchRecord,
    /// Number of the API key that owns the batch; `None` if no keys are configured.
    key: Option<usize>,
    input: File,
    index: BatchIndex,
    store: Arc<Store>,
    /// Permits for requests in flight, of all batches together.
    places: Arc<Semaphore>,
    planning: Arc<Semaphore>,
    plan: Arc<tokio::sync::Mutex<Plan>>,
    progress: Mutex<Progress>,
    /// The first error in reading the batch's file or writing its answers, which ends the batch.
    failed: OnceLock<Fault>,
}

/// Decides which requests of a batch are sent next, and orders the documents in them. Planning may take seconds under
/// the lock: async code must await it, and only blocking threads may block on it.
struct Plan {
    schedule: BatchSchedule,
    orderer: BatchOrderer,
}

struct Progress {
    output: File,
    errors: File,
    answers: BatchAnswers,
}

/// A request that is ready to be sent.
struct Request {
    line: u32,
    custom_id: String,
    body: Vec<u8>,
}

/// Runs a batch to its end, or until the server stops.
pub(super) async fn run<A: Ask>(server: &Arc<A>, batches: &Shared, id: &str) {
    let store = &batches.store;
    let found = {
        let (store, id) = (Arc::clone(store), id.to_owned());
        spawn_blocking(move || store.any_batch(&id)).await
    };
    // The batch was removed, or the read panicked, which the runtime has logged.
    let Ok(Some(record)) = found else { return };
    let ending = if record.ends_as.is_some() {
        // The server stopped while it turned answers into files: continue with that.
        Ending::Completed
    } else {
        match prepared(server, batches, record).await {
            Ok(Ok(running)) => ask(server, batches, running).await,
            Ok(Err(ending)) => ending,
            Err(error) => {
                tracing::warn!(id, error = format!("{error:#}"), "a batch failed");
                Ending::Failed(vec![fault(
                    "storage",
                    "the batch's files cannot be used; the server's log says why",
                )])
            }
        }
    };
    if ending != Ending::Stopped {
        let mut is_known = false;
        loop {
            let (store, file, ending) = (Arc::clone(store), id.to_owned(), ending.clone());
            let ended = spawn_blocking(move || finish(&store, &file, ending));
            // If this panics, the runtime logs it.
            let Ok(Err(error)) = ended.await else { return };
            if !std::mem::replace(&mut is_known, true) {
                tracing::warn!(id, %error, "a batch's answers cannot be kept; trying again every second");
            }
            if server.is_stopping() {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

fn log(id: &str, written: std::io::Result<()>) {
    if let Err(error) = written {
        tracing::warn!(id, %error, "a batch's record cannot be written");
    }
}

fn fault(code: &str, message: &str) -> Fault {
    Fault {
        code: code.to_owned(),
        message: message.to_owned(),
        line: None,
    }
}

/// Reads the batch's file and its answers of an earlier run. An inner error is the ending of a batch that sends no
/// request; an outer one means that files cannot be read or written.
async fn prepared<A: Ask>(
    server: &Arc<A>,
    batches: &Shared,
    record: BatchRecord,
) -> Result<Result<Running, Ending>> {
    let key = match &batches.access.keys {
        None => None,
        Some(keys) => match keys.number_of(&record.owner) {
            Some(number) => Some(number),
            None => {
                let words = "the API key that the batch was made with is no longer accepted";
                return Ok(Err(Ending::Failed(vec![fault("invalid_api_key", words)])));
            }
        },
    };
    let store = Arc::clone(&batches.store);
    let (order, ordering) = (batches.order, batches.ordering.clone());
    let workers = usize::from(batches.concurrency);
    let line_bytes = batches.access.max_body_bytes;
    let (places, planning) = (Arc::clone(&batches.places), Arc::clone(&batches.planning));
    let permit = Arc::clone(&planning).acquire_owned().await?;
    let server = Arc::clone(server);
    let read = move || -> Result<Result<Running, Ending>> {
        let _permit = permit;
        let mut orderer = BatchOrderer::new(&ordering, order)?;
        let input = store.content(&record.input_file_id)?;
        let mut faults = Vec::new();
        let limits = BatchLimits {
            urls: &[record.endpoint.as_str()],
            requests: store.bounds().requests,
            line_bytes,
        };
        let wrong = |error: foreword_simulation::BatchError| {
            faults.push(Fault {
                line: Some(error.number),
                ..fault("invalid_line", &error.to_string())
            });
            faults.len() < MAX_FAULTS
        };
        let has_answers = [OUTPUT, ERRORS]
            .iter()
            .any(|kind| store.has_answers(&record.id, kind));
        let mut ending = None;
        let progress = |_| {
            // Answers of an earlier run are read and counted first, even if the batch is cancelled or expires.
            let early = early_ending(&*server, &store, &record);
            ending = early.filter(|ending| *ending == Ending::Stopped || !has_answers);
            ending.is_none()
        };
        let lines = BufReader::new(&input);
        let index = BatchIndex::read(lines, limits, Some(&mut orderer), wrong, progress)?;
        if let Some(ending) = ending {
            return Ok(Err(ending));
        }
        if index.is_empty() && faults.is_empty() {
            faults.push(fault("empty_file", "the file holds no request"));
        }
        if !faults.is_empty() {
            let early = early_ending(&*server, &store, &record);
            return Ok(Err(early.unwrap_or(Ending::Failed(faults))));
        }
        let mut answers = BatchAnswers::none(index.len());
        let [output, errors] = [OUTPUT, ERRORS].map(|kind| -> Result<File> {
            let path = store.answers(&record.id, kind);
            let file = open_appended(&path)?;
            let read = answers.read(BufReader::new(&file), &index)?;
            read.map_err(|error| anyhow!("{}: {error}", path.display()))?;
            // A last line without its end is cut off, and its request is sent again.
            let torn = file.metadata()?.len().saturating_sub(answers.whole_bytes);
            file.set_len(answers.whole_bytes)?;
            store.release(&record.owner, torn);
            Ok(file)
        });
        let schedule =
            BatchSchedule::new(&index, order, workers, |line| !answers.is_answered(line));
        let running = Running {
            record,
            key,
            input,
            index,
            store,
            places,
            planning,
            plan: Arc::new(tokio::sync::Mutex::new(Plan { schedule, orderer })),
            progress: Mutex::new(Progress {
                output: output?,
                errors: errors?,
                answers,
            }),
            failed: OnceLock::new(),
        };
        running.count(&running.progress.lock());
        let (id, store) = (&running.record.id, &running.store);
        log(id, store.advance(id, Status::InProgress, now(), |_| {}));
        Ok(Ok(running))
    };
    spawn_blocking(read).await?
}

/// Returns the reason that the batch must stop early: stop of the server, cancellation or expiry. `None` if it
/// continues. Blocks, since the store may be writing to disk.
fn early_ending(server: &impl Ask, store: &Store, record: &BatchRecord) -> Option<Ending> {
    if server.is_stopping() {
        return Some(Ending::Stopped);
    }
    let status = store.any_batch(&record.id).map(|batch| batch.status);
    if status.is_none_or(|status| status == Status::Cancelling) {
        return Some(Ending::Cancelled);
    }
    (now() >= record.expires_at).then_some(Ending::Expired)
}

/// Sends the batch's requests that are not answered yet, and returns the reason why the batch ended.
async fn ask<A: Ask>(server: &Arc<A>, batches: &Shared, running: Running) -> Ending {
    let running = Arc::new(running);
    let mut workers = JoinSet::new();
    for worker in 0..usize::from(batches.concurrency) {
        let (server, running) = (Arc::clone(server), Arc::clone(&running));
        workers.spawn(
            async move { while let Some(()) = ask_next(&server, &running, worker).await {} },
        );
    }
    while workers.join_next().await.is_some() {}
    let ended = spawn_blocking({
        let (server, running) = (Arc::clone(server), Arc::clone(&running));
        move || running.ended(&*server)
    });
    ended.await.unwrap_or_else(|_| running.unasked())
}

/// Sends the next request of one of the batch's workers, and writes its answer. `None` if the worker has no more
/// requests, or the batch ends.
async fn ask_next<A: Ask>(server: &Arc<A>, running: &Arc<Running>, worker: usize) -> Option<()> {
    let (_place, next) = loop {
        plan(server, running, worker).await?;
        let place = running.places.acquire().await.ok()?;
        turn(server, running).await?;
        let plan = Arc::clone(&running.plan).lock_owned().await;
        // Needed if other workers took the planned requests meanwhile.
        if !plan.schedule.needs_plan(worker) {
            let running = Arc::clone(running);
            break (place, spawn_blocking(move || running.next(plan, worker)));
        }
    };
    let request = next.await.ok()??;
    let answer = answered(server, running, &request).await?;
    let running = Arc::clone(running);
    let kept = spawn_blocking(move || running.keep(&request, &answer));
    kept.await.ok()
}

/// Plans the next requests of one of the batch's workers, if none are planned. `None` if the batch ends first.
async fn plan<A: Ask>(server: &Arc<A>, running: &Arc<Running>, worker: usize) -> Option<()> {
    let mut plan = Arc::clone(&running.plan).lock_owned().await;
    if !plan.schedule.needs_plan(worker) {
        return Some(());
    }
    let permit = Arc::clone(&running.planning).acquire_owned().await.ok()?;
    let (server, running) = (Arc::clone(server), Arc::clone(running));
    let planned = spawn_blocking(move || {
        let _permit = permit;
        let is_over = || running.ending(&*server).is_some();
        if !is_over() {
            plan.schedule.plan(&running.index, &is_over);
        }
        (!is_over()).then_some(())
    });
    planned.await.ok()?
}

/// Waits until no request waits in the engine's queue. `None` if the batch ends first.
async fn turn<A: Ask>(server: &Arc<A>, running: &Arc<Running>) -> Option<()> {
    loop {
        let ending = {
            let (server, running) = (Arc::clone(server), Arc::clone(running));
            spawn_blocking(move || running.ending(&*server))
        };
        if ending.await.ok()?.is_some() {
            return None;
        }
        if server.is_idle() {
            return Some(());
        }
        tokio::time::sleep(GLANCE).await;
    }
}

/// Status and body of the response to a batch's request.
type Answer = (u16, Vec<u8>);

/// Sends a request and returns its answer. Repeats it after 429, and after 5xx up to [`ATTEMPTS`] in all. `None` if the
/// server stops or the batch ends.
async fn answered<A: Ask>(
    server: &Arc<A>,
    running: &Arc<Running>,
    request: &Request,
) -> Option<Answer> {
    let mut attempts = 0;
    loop {
        let asking = Asking {
            url: &running.record.endpoint,
            id: format!("{}-{}", running.record.id, request.line),
            key: running.key,
        };
        let (status, body) = match Arc::clone(server).ask(asking, request.body.clone()).await {
            Ok(answer) => answer,
            Err(Failure::Stopping | Failure::Loading) => return None,
            // The server is full of other requests.
            Err(Failure::QueueFull { .. }) => {
                tokio::time::sleep(GLANCE).await;
                turn(server, running).await?;
                continue;
            }
            Err(failure) => {
                failure.log();
                let body = failure.body().to_string().into_bytes();
                (failure.status().as_u16(), body)
            }
        };
        attempts += 1;
        if status < 500 || attempts >= ATTEMPTS {
            return Some((status, body));
        }
        turn(server, running).await?;
    }
}

impl Running {
    /// Returns the reason why the batch must stop early: a recorded error, the stop of the server, cancellation or
    /// expiry. `None` if the batch continues.
    fn ending(&self, server: &impl Ask) -> Option<Ending> {
        match self.failed.get() {
            Some(fault) => Some(Ending::Failed(vec![fault.clone()])),
            None => early_ending(server, &self.store, &self.record),
        }
    }

    /// Returns the reason why the batch ended: (1) [`Ending::Completed`] if all its requests have an answer, successful
    /// or not, and no error is recorded; (2) otherwise the recorded error, or the stop, cancellation or expiry that
    /// ended it early; (3) without any of these, [`Ending::Failed`]. Call it when all workers of the batch have
    /// stopped.
    fn ended(&self, server: &impl Ask) -> Ending {
        let is_whole = {
            let answers = &self.progress.lock().answers;
            answers.served + answers.failed == self.index.len() as u64
        };
        match self.failed.get() {
            None if is_whole => Ending::Completed,
            _ => self.ending(server).unwrap_or_else(|| self.unasked()),
        }
    }

    fn unasked(&self) -> Ending {
        let words = "some requests were not asked";
        Ending::Failed(vec![fault("internal_error", words)])
    }

    /// Records an error that ends the batch, unless one is already recorded.
    fn fail(&self, fault: Fault) {
        let _ = self.failed.set(fault);
    }

    /// Returns the next request of one of the batch's workers, with its documents ordered. `None` if there is none, or
    /// the batch's file cannot be read, which ends the batch.
    fn next(&self, mut plan: OwnedMutexGuard<Plan>, worker: usize) -> Option<Request> {
        let Plan { schedule, orderer } = &mut *plan;
        let task = schedule.next(&self.index, worker)?;
        let mut read = || -> Result<Request> {
            let (offset, bytes) = self.index.place(task.line).context("no such line")?;
            let mut line = vec![0; bytes as usize];
            self.input.read_exact_at(&mut line, offset)?;
            let urls = [self.record.endpoint.as_str()];
            let parsed = RequestLine::parse(&line, &urls)?;
            let body = parsed.body.as_bytes();
            let ordered = match &task.documents {
                Some(planned) => orderer.order_as(body, planned),
                None => orderer.order(body),
            };
            Ok(Request {
                line: task.line,
                body: ordered.unwrap_or_else(|| body.to_vec()),
                custom_id: parsed.custom_id,
            })
        };
        match read() {
            Ok(request) => Some(request),
            Err(error) => {
                let id = &self.record.id;
                tracing::warn!(
                    id,
                    error = format!("{error:#}"),
                    "a batch's file cannot be read"
                );
                self.fail(fault("storage", "the batch's file cannot be read again"));
                None
            }
        }
    }

    /// Appends the answer to a request to the batch's files and counts it. If the answer cannot be written, the batch
    /// ends.
    fn keep(&self, request: &Request, (status, body): &Answer) {
        let progress = &mut *self.progress.lock();
        let id = format!("batch_req_{}_{}", self.record.id, request.line);
        let request_id = format!("{}-{}", self.record.id, request.line);
        let response = BatchAnswer::Response {
            status: *status,
            request_id: &request_id,
            body,
        };
        let usage = std::str::from_utf8(body).map(BatchUsage::of);
        let text = answer_line(&id, &request.custom_id, response);
        let is_served = status / 100 == 2;
        let bytes = text.len() as u64;
        if let Err(full) = self.store.reserve(&self.record.owner, bytes) {
            self.fail(fault(full.code(), &full.to_string()));
            return;
        }
        let file = match is_served {
            true => &progress.output,
            false => &progress.errors,
        };
        if let Err(error) = append_line(file, &text) {
            self.store.release(&self.record.owner, bytes);
            let id = &self.record.id;
            tracing::warn!(id, %error, "a batch's answers cannot be written");
            self.fail(fault("storage", "the answers cannot be written"));
            return;
        }
        let usage = usage.unwrap_or_default();
        progress.answers.add(request.line, is_served, usage);
        self.store.answered(is_served);
        self.count(progress);
    }

    fn count(&self, progress: &Progress) {
        let answers = &progress.answers;
        let counts = RequestCounts {
            total: self.index.len() as u64,
            completed: answers.served,
            failed: answers.failed,
        };
        let usage = answers.usage;
        self.store
            .note(&self.record.id, |batch| batch.count(counts, usage));
    }
}

/// Turns the batch's answers into files and ends the batch. The record of the batch says so first, so that the next
/// start completes this if the server is killed meanwhile.
///
/// # Errors
/// Returns an error if the answers cannot be turned into files, for instance because the disk is full. Nothing is lost
/// then, and this can be repeated.
pub(super) fn finish(store: &Store, id: &str, ending: Ending) -> std::io::Result<()> {
    let mut faults = Vec::new();
    let ends_as = match ending {
        Ending::Completed | Ending::Stopped => Status::Completed,
        Ending::Cancelled => Status::Cancelled,
        Ending::Expired => Status::Expired,
        Ending::Failed(found) => {
            faults = found;
            Status::Failed
        }
    };
    let [output, errors] = [OUTPUT, ERRORS].map(|kind| store.answers_id(id, kind));
    let is_unread = (store.any_batch(id)).is_some_and(|batch| batch.status == Status::Validating);
    if is_unread && ends_as == Status::Failed && output.is_none() && errors.is_none() {
        // No request was sent, so there are no answers to turn into files.
        return store.advance(id, Status::Failed, now(), |batch| batch.errors = faults);
    }
    let advanced = store.advance(id, Status::Finalizing, now(), |batch| {
        if batch.ends_as.is_none() {
            batch.ends_as = Some(ends_as);
            batch.errors = faults;
            batch.output_file_id = output;
            batch.error_file_id = errors;
        }
    });
    advanced?;
    let Some(batch) = store.any_batch(id) else {
        return Ok(());
    };
    let ids = [
        (OUTPUT, batch.output_file_id.as_deref()),
        (ERRORS, batch.error_file_id.as_deref()),
    ];
    for (kind, file) in ids {
        store.keep_answers(&batch, kind, file, now())?;
    }
    let status = batch.ends_as.unwrap_or(ends_as);
    log(id, store.advance(id, status, now(), |_| {}));
    Ok(())
}

/// Interval at which a waiting batch checks the engine's queue.
const GLANCE: Duration = Duration::from_millis(20);
/// Interval between attempts to turn a batch's answers into files.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum number of attempts at one request that is answered with 5xx.
const ATTEMPTS: u32 = 3;
/// Maximum number of invalid lines of a batch's file that are reported.
const MAX_FAULTS: usize = 100;
