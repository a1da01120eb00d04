//! Runs one batch: reads its file, asks its requests, and keeps the answers.
//!
//! A request of a batch passes the same admission as one that came over the network, and waits longer: for one of the
//! batches' own places, and then until no request waits in the engine's queue. Where that happens in the middle of a
//! batch, live requests overtake what is left of it.

use super::store::{ERRORS, Fault, OUTPUT, RequestCounts, Status, Store, now};
use super::{BatchRecord, Batches};
use crate::api::{App, Asking};
use crate::failure::Failure;
use crate::gate::Phase;
use anyhow::{Context, Result, anyhow};
use foreword_simulation::{
    BatchAnswer, BatchAnswers, BatchIndex, BatchLimits, BatchOrderer, BatchSchedule, BatchUsage,
    RequestLine, answer_line,
};
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// Why no further request is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ending {
    Completed,
    Cancelled,
    Expired,
    /// The answers cannot be kept.
    Failed(Fault),
    /// The server stops; the batch goes on after its next start.
    Stopped,
}

/// A batch that is being asked.
struct Running {
    record: BatchRecord,
    /// Number of the owner's API key.
    key: Option<usize>,
    input: File,
    index: BatchIndex,
    store: Arc<Store>,
    progress: Mutex<Progress>,
}

struct Progress {
    schedule: BatchSchedule,
    orderer: BatchOrderer,
    output: File,
    errors: File,
    answers: BatchAnswers,
    failed: Option<Fault>,
}

/// A request that is ready to be asked.
struct Request {
    line: u32,
    custom_id: String,
    body: Vec<u8>,
}

/// Runs a batch to its end, or until the server stops.
pub(super) async fn run(app: &Arc<App>, id: &str) {
    let Some(batches) = &app.batches else { return };
    let store = batches.store();
    let ends_as = store.any_batch(id).and_then(|batch| batch.ends_as);
    let ending = if ends_as.is_some() {
        // An earlier life ended while it made files of the answers.
        Ending::Completed
    } else {
        match prepared(app, batches, id).await {
            Ok(Ok(running)) => ask(app, batches, running).await,
            Ok(Err(faults)) => {
                let advanced =
                    store.advance(id, Status::Failed, now(), |batch| batch.errors = faults);
                log(id, advanced);
                return;
            }
            Err(error) => {
                tracing::warn!(id, error = format!("{error:#}"), "a batch failed");
                Ending::Failed(fault(
                    "storage",
                    "the batch's files cannot be used; the server's log says why",
                ))
            }
        }
    };
    if ending != Ending::Stopped {
        let (store, id) = (Arc::clone(store), id.to_owned());
        let ended = tokio::task::spawn_blocking(move || finish(&store, &id, ending));
        // A panic there was reported by the runtime.
        let _ = ended.await;
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

/// Reads the batch's file, and what was answered in an earlier life. Within: what is wrong with the file.
async fn prepared(
    app: &Arc<App>,
    batches: &Batches,
    id: &str,
) -> Result<Result<Running, Vec<Fault>>> {
    let store = Arc::clone(batches.store());
    let record = store.any_batch(id).context("the batch is gone")?;
    let key = match &app.keys {
        None => None,
        Some(keys) => match keys.number_of(&record.owner) {
            Some(number) => Some(number),
            None => {
                let words = "the API key that the batch was made with is no longer accepted";
                return Ok(Err(vec![fault("invalid_api_key", words)]));
            }
        },
    };
    let (order, ordering) = (batches.order, batches.ordering.clone());
    let workers = usize::from(batches.concurrency);
    let read = move || -> Result<Result<Running, Vec<Fault>>> {
        let mut orderer = BatchOrderer::new(&ordering, order)?;
        let input = store.content(&record.input_file_id)?;
        let mut faults = Vec::new();
        let limits = BatchLimits {
            urls: &[record.endpoint.as_str()],
            requests: store.bounds().requests,
        };
        let wrong = |error: foreword_simulation::BatchError| {
            let number = error.number();
            faults.push(Fault {
                line: Some(number),
                ..fault("invalid_line", &error.to_string())
            });
            faults.len() < MAX_FAULTS
        };
        let lines = BufReader::new(&input);
        let index = BatchIndex::read(lines, limits, Some(&mut orderer), wrong, |_| {})?;
        if index.is_empty() && faults.is_empty() {
            faults.push(fault("empty_file", "the file holds no request"));
        }
        if !faults.is_empty() {
            return Ok(Err(faults));
        }
        let mut answers = BatchAnswers::none(index.len());
        let [output, errors] = [OUTPUT, ERRORS].map(|kind| -> Result<File> {
            let path = store.answers(&record.id, kind);
            let file = open(&path)?;
            let read = answers.read(BufReader::new(&file), &index)?;
            read.map_err(|error| anyhow!("{}: {error}", path.display()))?;
            // A line that was cut short is asked again.
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
            progress: Mutex::new(Progress {
                schedule,
                orderer,
                output: output?,
                errors: errors?,
                answers,
                failed: None,
            }),
        };
        running.count(&running.lock());
        Ok(Ok(running))
    };
    let running = tokio::task::spawn_blocking(read).await??;
    if running.is_ok() {
        log(
            id,
            batches
                .store()
                .advance(id, Status::InProgress, now(), |_| {}),
        );
    }
    Ok(running)
}

/// Asks everything that is scheduled.
async fn ask(app: &Arc<App>, batches: &Batches, running: Running) -> Ending {
    let running = Arc::new(running);
    let mut workers = JoinSet::new();
    for worker in 0..usize::from(batches.concurrency) {
        let (app, running) = (Arc::clone(app), Arc::clone(&running));
        let places = Arc::clone(&batches.places);
        workers.spawn(async move {
            loop {
                let Ok(_place) = Arc::clone(&places).acquire_owned().await else {
                    return;
                };
                if !turn(&app, &running).await {
                    return;
                }
                let next = {
                    let running = Arc::clone(&running);
                    tokio::task::spawn_blocking(move || running.next(worker))
                };
                let Ok(Some(request)) = next.await else {
                    return;
                };
                let Some(answer) = answered(&app, &running, &request).await else {
                    return;
                };
                let running = Arc::clone(&running);
                let kept = tokio::task::spawn_blocking(move || running.keep(&request, &answer));
                if kept.await.is_err() {
                    return;
                }
            }
        });
    }
    while workers.join_next().await.is_some() {}
    let (failed, is_whole) = {
        let progress = running.lock();
        let answers = &progress.answers;
        let answered = answers.served + answers.failed;
        (
            progress.failed.clone(),
            answered == running.index.len() as u64,
        )
    };
    match failed {
        Some(fault) => Ending::Failed(fault),
        None if is_whole => Ending::Completed,
        None => running.ending(app).unwrap_or(Ending::Failed(fault(
            "internal_error",
            "some requests were not asked",
        ))),
    }
}

/// Waits until a request of a batch may be asked; `false`: none may be any more.
async fn turn(app: &App, running: &Running) -> bool {
    loop {
        if running.ending(app).is_some() {
            return false;
        }
        let engine = app.model.get().map(|model| model.engine().stats());
        if engine.is_some_and(|stats| stats.waiting == 0) {
            return true;
        }
        tokio::time::sleep(GLANCE).await;
    }
}

/// A response, or why there is none.
type Answer = Result<(u16, Vec<u8>), String>;

/// Asks a request until it is answered; `None`: the batch ends first.
async fn answered(app: &Arc<App>, running: &Running, request: &Request) -> Option<Answer> {
    let mut attempts = 0;
    loop {
        let asking = Asking {
            url: &running.record.endpoint,
            id: format!("{}-{}", running.record.id, request.line),
            key: running.key,
        };
        let (status, body) = match crate::api::ask(app, asking, request.body.clone()).await {
            Ok(answer) => answer,
            Err(Failure::Stopping | Failure::Loading) => return None,
            // Others came first.
            Err(Failure::QueueFull { .. }) => {
                tokio::time::sleep(GLANCE).await;
                if !turn(app, running).await {
                    return None;
                }
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
            return Some(Ok((status, body)));
        }
        if !turn(app, running).await {
            return None;
        }
    }
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why no further request is asked; `None`: they are.
    fn ending(&self, app: &App) -> Option<Ending> {
        if app.gate.phase() >= Phase::Stopping {
            return Some(Ending::Stopped);
        }
        if let Some(fault) = self.lock().failed.clone() {
            return Some(Ending::Failed(fault));
        }
        let status = self
            .store
            .any_batch(&self.record.id)
            .map(|batch| batch.status);
        if status.is_none_or(|status| status == Status::Cancelling) {
            return Some(Ending::Cancelled);
        }
        (now() >= self.record.expires_at).then_some(Ending::Expired)
    }

    /// Returns the worker's next request, ordered.
    fn next(&self, worker: usize) -> Option<Request> {
        let progress = &mut *self.lock();
        let task = progress.schedule.next(&self.index, worker)?;
        let mut read = || -> Result<Request> {
            let (offset, bytes) = self.index.place(task.line).context("no such line")?;
            let mut line = vec![0; bytes as usize];
            self.input.read_exact_at(&mut line, offset)?;
            let urls = [self.record.endpoint.as_str()];
            let parsed = RequestLine::parse(&line, &urls)?;
            let body = parsed.body.as_bytes();
            let ordered = match &task.documents {
                Some(planned) => progress.orderer.order_as(body, planned),
                None => progress.orderer.order(body),
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
                progress.failed = Some(fault("storage", "the batch's file cannot be read again"));
                None
            }
        }
    }

    /// Writes an answer.
    fn keep(&self, request: &Request, answer: &Answer) {
        let progress = &mut *self.lock();
        let id = format!("batch_req_{}_{}", self.record.id, request.line);
        let request_id = format!("{}-{}", self.record.id, request.line);
        let (text, is_served, usage) = match answer {
            Ok((status, body)) => {
                let response = BatchAnswer::Response {
                    status: *status,
                    request_id: &request_id,
                    body,
                };
                let usage = std::str::from_utf8(body).map(BatchUsage::of);
                let text = answer_line(&id, &request.custom_id, response);
                (text, status / 100 == 2, usage.unwrap_or_default())
            }
            Err(message) => {
                let error = BatchAnswer::Error {
                    code: "no_answer",
                    message,
                };
                let text = answer_line(&id, &request.custom_id, error);
                (text, false, BatchUsage::default())
            }
        };
        let bytes = text.len() as u64;
        if let Err(full) = self.store.reserve(&self.record.owner, bytes) {
            progress.failed = Some(fault(full.code(), &full.to_string()));
            return;
        }
        let file = match is_served {
            true => &mut progress.output,
            false => &mut progress.errors,
        };
        let before = file.metadata().map(|metadata| metadata.len());
        if let Err(error) = file.write_all(&text) {
            self.store.release(&self.record.owner, bytes);
            if let Ok(before) = before {
                // Half a line would be removed when it is read again anyway.
                let _ = file.set_len(before);
            }
            let id = &self.record.id;
            tracing::warn!(id, %error, "a batch's answers cannot be written");
            progress.failed = Some(fault("storage", "the answers cannot be written"));
            return;
        }
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

/// Makes files of the answers, and ends the batch. What it does is written down first, so that a server that is killed
/// meanwhile does the rest after its next start.
fn finish(store: &Store, id: &str, ending: Ending) {
    let mut faults = Vec::new();
    let ends_as = match ending {
        Ending::Completed | Ending::Stopped => Status::Completed,
        Ending::Cancelled => Status::Cancelled,
        Ending::Expired => Status::Expired,
        Ending::Failed(fault) => {
            faults.push(fault);
            Status::Failed
        }
    };
    let [output, errors] = [OUTPUT, ERRORS].map(|kind| store.answers_id(id, kind));
    let advanced = store.advance(id, Status::Finalizing, now(), |batch| {
        if batch.ends_as.is_none() {
            batch.ends_as = Some(ends_as);
            batch.errors = faults;
            batch.output_file_id = output;
            batch.error_file_id = errors;
        }
    });
    log(id, advanced);
    let Some(batch) = store.any_batch(id) else {
        return;
    };
    let ids = [
        (OUTPUT, batch.output_file_id.as_deref()),
        (ERRORS, batch.error_file_id.as_deref()),
    ];
    let kept = ids.map(|(kind, file)| store.keep_answers(&batch, kind, file, now()));
    let mut status = batch.ends_as.unwrap_or(ends_as);
    let mut unkept = None;
    if let Some(error) = kept.into_iter().find_map(Result::err) {
        tracing::warn!(id, %error, "a batch's answers cannot be kept");
        status = Status::Failed;
        unkept = Some(fault("storage", "the answers cannot be kept"));
    }
    log(
        id,
        store.advance(id, status, now(), |batch| batch.errors.extend(unkept)),
    );
}

fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    options.open(path)
}

/// Time between two looks at the queue.
const GLANCE: Duration = Duration::from_millis(20);
/// Attempts at a request that fails by a fault of the server.
const ATTEMPTS: u32 = 3;
/// Wrong lines that are named.
const MAX_FAULTS: usize = 100;
