//! The folder of files and batches, with their owners (API keys), limits and lifetimes.
//!
//! ```text
//!   DIR/lock                 locked by the server that uses the folder
//!   DIR/file-….json          the record of a file     DIR/file-….jsonl      its lines
//!   DIR/batch_….json         the record of a batch    DIR/batch_….output, .errors   answers until it ends
//!   DIR/….part               a file being written; removed at the start
//! ```
//!
//! Records are replaced as a whole. Only the process's user may read the folder, which holds documents and answers.
//! Limits apply to all owners together; with several API keys, one owner may use half. Times are seconds since 1970.

use crate::failure::{Failure, clip};
use crate::ids::random_id;
use anyhow::{Context, Result};
use foreword_report::files::{self, open_appended};
use foreword_simulation::BatchUsage;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Limits on stored files and batches, and their lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of stored files, of all API keys together.
    pub files: usize,
    /// Maximum number of bytes of all stored files, including answers of running batches, of all API keys together.
    pub bytes: u64,
    /// Maximum number of requests of one batch.
    pub requests: u32,
    /// Maximum number of unfinished batches, of all API keys together.
    pub batches: usize,
    /// Time for which files are stored, counted from their creation. Finished batches are stored as long, but at least
    /// for [`WINDOW`].
    pub time: Duration,
}

/// The record of a stored file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Id of the file.
    pub id: String,
    /// Name of the owner's API key, see [`crate::keys::ApiKeys::name`]; empty if no keys are configured.
    pub owner: String,
    /// The name that the client gave to the file.
    pub filename: String,
    /// `batch` for an upload, `batch_output` for answers.
    pub purpose: String,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Time of creation, in seconds since 1970.
    pub created_at: u64,
    /// Time when the file expires, in seconds since 1970.
    pub expires_at: u64,
}

foreword_ordering::named! {
    /// The status of a batch, with OpenAI's names. The first status is that of a new batch.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Status {
        /// The batch's file is being read.
        Validating = "validating",
        /// The batch's requests are being sent.
        InProgress = "in_progress",
        /// The batch's answers are being turned into files.
        Finalizing = "finalizing",
        /// Every request was answered, possibly with an error.
        Completed = "completed",
        /// The batch's file or its owner's key is invalid, or its answers could not be written.
        Failed = "failed",
        /// The batch did not end within its completion window.
        Expired = "expired",
        /// The batch is being cancelled; its requests in flight are still answered.
        Cancelling = "cancelling",
        /// The batch was cancelled by a client with the API key that created it.
        Cancelled = "cancelled",
    }
}

impl Status {
    /// Returns true if the batch has ended, so that the status never changes again.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(
            self,
            Self::Failed | Self::Completed | Self::Expired | Self::Cancelled
        )
    }
}

/// An error of a batch, as in the field `errors` of OpenAI's batch object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The error's code, such as `invalid_line`.
    pub code: String,
    /// The error's message.
    pub message: String,
    /// Number of the invalid line of the batch's file, from 1; `None` if the error is not about a line.
    pub line: Option<u64>,
}

/// The numbers of a batch's requests: all, answered successfully, and answered with an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// Number of all requests of the batch.
    pub total: u64,
    /// Number of requests answered successfully.
    pub completed: u64,
    /// Number of the batch's requests that were answered with an error.
    pub failed: u64,
}

/// The record of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchRecord {
    /// Id of the batch.
    pub id: String,
    /// Name of the owner's API key; empty if no keys are configured.
    pub owner: String,
    /// The route of all requests of the batch, such as `/v1/chat/completions`.
    pub endpoint: String,
    /// Id of the file with the batch's requests.
    pub input_file_id: String,
    /// Status of the batch.
    pub status: Status,
    /// Errors in the batch's file, or of the whole batch; empty if there are none.
    pub errors: Vec<Fault>,
    /// Id of the file with the successful answers; `None` until the batch's answers are turned into files, or if there
    /// are none.
    pub output_file_id: Option<String>,
    /// Id of the file with the error answers; `None` until the batch's answers are turned into files, or if there are
    /// none.
    pub error_file_id: Option<String>,
    /// Time of creation, in seconds since 1970.
    pub created_at: u64,
    /// Time when the batch expires, unless it has ended, in seconds since 1970.
    pub expires_at: u64,
    /// The times at which the batch reached its statuses, in seconds since 1970, by the names of the statuses.
    pub times: BTreeMap<String, u64>,
    /// Counts of the batch's requests.
    pub counts: RequestCounts,
    /// Sums of tokens over all answers: prompt tokens, the part of these that was cached, and generated tokens.
    pub tokens: [u64; 3],
    /// Metadata that the client sent with the batch; `None` if there is none.
    pub metadata: Option<Map<String, Value>>,
    /// The status that the batch will end with; `None` until its answers are being turned into files.
    #[serde(default)]
    pub ends_as: Option<Status>,
}

impl FileRecord {
    /// Returns OpenAI's file object for this record.
    #[must_use]
    pub fn object(&self) -> Value {
        json!({
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": null,
        })
    }
}

impl BatchRecord {
    /// Returns OpenAI's batch object for this record.
    #[must_use]
    pub fn object(&self) -> Value {
        let errors = match self.errors.as_slice() {
            [] => Value::Null,
            errors => {
                let data = errors.iter().map(|error| {
                    json!({"code": error.code, "message": error.message, "param": null, "line": error.line})
                });
                json!({"object": "list", "data": data.collect::<Vec<_>>()})
            }
        };
        let mut object = json!({
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": WINDOW,
            "status": self.status,
            "output_file_id": self.output_file_id.as_ref().filter(|_| self.status.is_final()),
            "error_file_id": self.error_file_id.as_ref().filter(|_| self.status.is_final()),
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "request_counts": self.counts,
            "metadata": self.metadata,
        });
        for status in &Status::ALL[1..] {
            let status = status.name();
            object[format!("{status}_at")] = json!(self.times.get(status));
        }
        let [prompt, cached, completion] = self.tokens;
        object["usage"] = json!({
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + completion,
        });
        object
    }

    /// Sets the counts of answered requests and of tokens in the batch's record.
    pub fn count(&mut self, counts: RequestCounts, usage: BatchUsage) {
        self.counts = counts;
        self.tokens = [
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
        ];
    }
}

/// The only accepted value of a batch's `completion_window`, OpenAI's.
pub const WINDOW: &str = "24h";
/// [`WINDOW`] in seconds.
pub const WINDOW_SECONDS: u64 = 86_400;

/// The files and batches that are stored in a folder.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    bounds: Bounds,
    /// True if there are several owners (API keys), of whom each may use at most half of the limits.
    is_shared: bool,
    /// The records of files and batches. Every change is made under this lock.
    state: Mutex<State>,
    /// Keeps the folder locked against other servers while the store exists.
    _lock: File,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<String, FileRecord>,
    batches: HashMap<String, BatchRecord>,
    /// Bytes of the files of each owner (API key), including files being written and the answers of running batches.
    bytes: HashMap<String, u64>,
    /// Number of files being written, by owner (API key).
    writing: HashMap<String, usize>,
    /// Number of batches' requests answered since the process started: successfully and (`failed`) with an error.
    served: u64,
    failed: u64,
    /// Number of batches that ended since the process started, by final status.
    ended: HashMap<Status, u64>,
}

/// Gauges and counters of the store of files and batches, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreNumbers {
    /// Number of stored batches, by status.
    pub batches: HashMap<Status, u64>,
    /// Number of requests of unfinished batches that are not answered yet.
    pub waiting: u64,
    /// Bytes of all stored files, including the answers of running batches.
    pub bytes: u64,
    /// Number of requests answered successfully since the process started.
    pub served: u64,
    /// Number of requests answered with an error since the process started.
    pub failed: u64,
    /// Number of batches that ended since the process started, by final status.
    pub ended: HashMap<Status, u64>,
}

impl State {
    fn all_bytes(&self) -> u64 {
        self.bytes.values().sum()
    }

    fn release(&mut self, owner: &str, bytes: u64) {
        if let Some(held) = self.bytes.get_mut(owner) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                self.bytes.remove(owner);
            }
        }
    }

    /// Counts one file of `owner` (an API key's name) as no longer being written.
    fn written(&mut self, owner: &str) {
        if let Some(count) = self.writing.get_mut(owner) {
            *count -= 1;
            if *count == 0 {
                self.writing.remove(owner);
            }
        }
    }

    fn files_of(&self, owner: Option<&str>) -> usize {
        let is_theirs = |of: &str| owner.is_none_or(|owner| owner == of);
        let kept = self.files.values().filter(|file| is_theirs(&file.owner));
        let writing = self.writing.iter().filter(|(of, _)| is_theirs(of));
        kept.count() + writing.map(|(_, count)| count).sum::<usize>()
    }
}

impl Store {
    /// Opens the folder, creates it if needed, and reads its records. `owners` is the number of API keys.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be read or written or is in use, or if a record is malformed.
    pub fn open(folder: PathBuf, bounds: Bounds, owners: usize) -> Result<Self> {
        let name = format!("the batches' folder {}", folder.display());
        let failed = || format!("cannot use {name}");
        let mut builder = DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .with_context(failed)?;
        let lock = open_appended(&folder.join("lock")).with_context(failed)?;
        files::lock(&lock, "server uses", &name)?;
        let mut state = State::default();
        let mut contents = Vec::new();
        for entry in std::fs::read_dir(&folder).with_context(failed)? {
            let path = entry.with_context(failed)?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            match name.rsplit_once('.') {
                Some((_, "part")) => std::fs::remove_file(&path).with_context(failed)?,
                Some((id, "json")) if id.starts_with("file-") => {
                    let record: FileRecord = read(&path)?;
                    state.files.insert(id.to_owned(), record);
                }
                Some((id, "json")) if id.starts_with("batch_") => {
                    let record: BatchRecord = read(&path)?;
                    state.batches.insert(id.to_owned(), record);
                }
                Some((id, "jsonl")) => contents.push((id.to_owned(), path)),
                _ => {}
            }
        }
        for (id, path) in contents {
            if !state.files.contains_key(&id) {
                // The server was killed between writing the lines and their record.
                std::fs::remove_file(&path).with_context(failed)?;
            }
        }
        state
            .files
            .retain(|id, _| folder.join(format!("{id}.jsonl")).is_file());
        for file in state.files.values() {
            *state.bytes.entry(file.owner.clone()).or_default() += file.bytes;
        }
        for batch in state.batches.values() {
            for kind in [OUTPUT, ERRORS] {
                let path = folder.join(format!("{}.{kind}", batch.id));
                let bytes = path.metadata().map_or(0, |metadata| metadata.len());
                *state.bytes.entry(batch.owner.clone()).or_default() += bytes;
            }
        }
        Ok(Self {
            folder,
            bounds,
            is_shared: owners > 1,
            state: Mutex::new(state),
            _lock: lock,
        })
    }

    /// Returns the limits on stored files and batches.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Begins a new file of `owner` (an API key's name), whose content is then written with [`Upload::write`].
    ///
    /// # Errors
    /// Returns [`Failure::StorageFull`] if there are too many files, and 500 if the file cannot be created.
    pub fn upload(
        self: &Arc<Self>,
        owner: &str,
        purpose: &str,
        now: u64,
    ) -> Result<Upload, Failure> {
        self.expire(now);
        {
            let state = &mut *self.state.lock();
            let files = |of: Option<&str>| state.files_of(of) as u64 + 1;
            self.check_room("files", self.bounds.files as u64, owner, files)?;
            *state.writing.entry(owner.to_owned()).or_default() += 1;
        }
        let record = FileRecord {
            id: format!("file-{}", random_id()),
            owner: owner.to_owned(),
            filename: String::new(),
            purpose: purpose.to_owned(),
            bytes: 0,
            created_at: now,
            expires_at: now + self.bounds.time.as_secs(),
        };
        let file = open_appended(&self.path(&record.id, PART)).map_err(|error| {
            self.state.lock().written(owner);
            Failure::internal(error)
        })?;
        Ok(Upload {
            store: Arc::clone(self),
            file,
            record,
            is_over: false,
        })
    }

    /// Deletes the unfinished file that `record` describes, and no longer counts its bytes as used by the file's owner
    /// (API key).
    fn discard(&self, record: &FileRecord) {
        let state = &mut *self.state.lock();
        state.written(&record.owner);
        state.release(&record.owner, record.bytes);
        let _ = std::fs::remove_file(self.path(&record.id, PART));
    }

    /// Returns the record of a file; `None` if `owner` (an API key's name) has none with that id. Expired files are
    /// removed first.
    pub fn file(&self, owner: &str, id: &str, now: u64) -> Option<FileRecord> {
        self.expire(now);
        let state = self.state.lock();
        state
            .files
            .get(id)
            .filter(|file| file.owner == owner)
            .cloned()
    }

    /// Returns the records of the files of `owner` (an API key's name), latest first. Expired files are removed first.
    pub fn files(&self, owner: &str, now: u64) -> Vec<FileRecord> {
        self.expire(now);
        let state = self.state.lock();
        let files = state.files.values().filter(|file| file.owner == owner);
        let mut files: Vec<_> = files.cloned().collect();
        files.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
        files
    }

    /// Opens the content of a file of any owner for reading.
    ///
    /// # Errors
    /// Returns 500 if it cannot be opened.
    pub fn content(&self, id: &str) -> Result<File, Failure> {
        File::open(self.path(id, LINES)).map_err(Failure::internal)
    }

    /// Removes a file. Returns false if `owner` (an API key's name) has none with that id.
    ///
    /// # Errors
    /// Returns 400 while an unfinished batch reads the file, and 500 if it cannot be removed.
    pub fn remove(&self, owner: &str, id: &str, now: u64) -> Result<bool, Failure> {
        self.expire(now);
        let state = &mut *self.state.lock();
        let file = state.files.get(id);
        if file.is_none_or(|file| file.owner != owner) {
            return Ok(false);
        }
        let mut batches = state.batches.values();
        let reader = batches.find(|batch| batch.input_file_id == id && !batch.status.is_final());
        if let Some(batch) = reader {
            let message = format!(
                "the file {id} is being read by {}: cancel it first",
                batch.id
            );
            return Err(Failure::invalid("file_id", message));
        }
        self.drop_file(state, id).map_err(Failure::internal)?;
        Ok(true)
    }

    /// Stores the record of a new batch, and returns it with its new id.
    ///
    /// # Errors
    /// Returns [`Failure::StorageFull`] if too many batches are unfinished, and 500 if the record cannot be written.
    pub fn create(&self, mut record: BatchRecord, now: u64) -> Result<BatchRecord, Failure> {
        self.expire(now);
        record.id = format!("batch_{}", random_id());
        let state = &mut *self.state.lock();
        let running = |of: Option<&str>| {
            let running = state.batches.values().filter(|batch| {
                !batch.status.is_final() && of.is_none_or(|owner| owner == batch.owner)
            });
            running.count() as u64 + 1
        };
        let limit = self.bounds.batches as u64;
        self.check_room("batches under way", limit, &record.owner, running)?;
        self.write(&record.id, &record).map_err(Failure::internal)?;
        state.batches.insert(record.id.clone(), record.clone());
        Ok(record)
    }

    /// Returns the record of the batch with this `id`; `None` if there is none, or if it does not belong to `owner`, an
    /// API key's name. First removes finished batches that are too old at the time `now`, in seconds since 1970.
    pub fn batch(&self, owner: &str, id: &str, now: u64) -> Option<BatchRecord> {
        self.expire(now);
        self.any_batch(id).filter(|batch| batch.owner == owner)
    }

    /// Returns the record of a batch of any owner; `None` if there is none with that id.
    pub(super) fn any_batch(&self, id: &str) -> Option<BatchRecord> {
        self.state.lock().batches.get(id).cloned()
    }

    /// Returns the records of the batches of `owner` (an API key's name), latest first. First removes finished batches
    /// that are too old at the time `now`, in seconds since 1970.
    pub fn batches(&self, owner: &str, now: u64) -> Vec<BatchRecord> {
        self.expire(now);
        let state = self.state.lock();
        let batches = state.batches.values().filter(|batch| batch.owner == owner);
        let mut batches: Vec<_> = batches.cloned().collect();
        batches.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
        batches
    }

    /// Returns the ids of the unfinished batches of all owners, earliest first.
    pub(crate) fn unfinished(&self) -> Vec<String> {
        let state = self.state.lock();
        let batches = state.batches.values();
        let mut batches: Vec<_> = batches.filter(|batch| !batch.status.is_final()).collect();
        batches.sort_by_key(|batch| (batch.created_at, batch.id.clone()));
        batches.into_iter().map(|batch| batch.id.clone()).collect()
    }

    /// Counts an answered request of a batch, by whether the answer was successful.
    pub(super) fn answered(&self, is_served: bool) {
        let state = &mut *self.state.lock();
        match is_served {
            true => state.served += 1,
            false => state.failed += 1,
        }
    }

    /// Returns the store's gauges and counters for metrics.
    pub fn numbers(&self) -> StoreNumbers {
        let state = self.state.lock();
        let mut batches = HashMap::new();
        let mut waiting = 0;
        for batch in state.batches.values() {
            *batches.entry(batch.status).or_default() += 1;
            let RequestCounts {
                total,
                completed,
                failed,
            } = batch.counts;
            if !batch.status.is_final() {
                waiting += total.saturating_sub(completed + failed);
            }
        }
        StoreNumbers {
            batches,
            waiting,
            bytes: state.all_bytes(),
            served: state.served,
            failed: state.failed,
            ended: state.ended.clone(),
        }
    }

    /// Changes the record of a batch in memory only, for counts: after a restart these are read from the answers.
    pub(super) fn note(&self, id: &str, change: impl FnOnce(&mut BatchRecord)) {
        if let Some(batch) = self.state.lock().batches.get_mut(id) {
            change(batch);
        }
    }

    /// Calls `change` on the record of a batch, gives it `status`, and writes it. A batch in `cancelling` keeps that
    /// status until a final one. A batch with a final status does not change.
    ///
    /// # Errors
    /// Returns an error if the record cannot be written; it has changed in memory anyway.
    pub(super) fn advance(
        &self,
        id: &str,
        status: Status,
        now: u64,
        change: impl FnOnce(&mut BatchRecord),
    ) -> std::io::Result<()> {
        let state = &mut *self.state.lock();
        let batch = state.batches.get_mut(id);
        let Some(batch) = batch.filter(|batch| !batch.status.is_final()) else {
            return Ok(());
        };
        change(batch);
        let stays = batch.status == Status::Cancelling && !status.is_final();
        if !stays {
            if status.is_final() {
                *state.ended.entry(status).or_default() += 1;
            }
            batch.status = status;
            let times = batch.times.entry(status.name().to_owned());
            times.or_insert(now);
        }
        let record = batch.clone();
        self.write(id, &record)
    }

    /// Begins to cancel a batch and returns its record; `None` if `owner` (an API key's name) has none with that id.
    ///
    /// # Errors
    /// Returns 400 if the batch has ended, and 500 if the record cannot be written.
    pub fn cancel(&self, owner: &str, id: &str, now: u64) -> Result<Option<BatchRecord>, Failure> {
        let Some(batch) = self.batch(owner, id, now) else {
            return Ok(None);
        };
        if batch.status.is_final() {
            let status = json!(batch.status);
            let message = format!("the batch {id} cannot be cancelled: its status is {status}");
            return Err(Failure::invalid("batch_id", message));
        }
        if batch.status != Status::Cancelling {
            self.advance(id, Status::Cancelling, now, |_| {})
                .map_err(Failure::internal)?;
        }
        Ok(self.any_batch(id))
    }

    /// Counts `bytes` more bytes of files as used by `owner` (an API key's name).
    ///
    /// # Errors
    /// Returns [`Failure::StorageFull`] if a limit would be exceeded.
    pub(super) fn reserve(&self, owner: &str, bytes: u64) -> Result<(), Failure> {
        let state = &mut *self.state.lock();
        let held = |of: Option<&str>| match of {
            None => state.all_bytes() + bytes,
            Some(owner) => state.bytes.get(owner).copied().unwrap_or_default() + bytes,
        };
        self.check_room("bytes", self.bounds.bytes, owner, held)?;
        *state.bytes.entry(owner.to_owned()).or_default() += bytes;
        Ok(())
    }

    /// Counts `bytes` fewer bytes of files as used by `owner` (an API key's name), which [`Self::reserve`] has counted.
    pub(super) fn release(&self, owner: &str, bytes: u64) {
        self.state.lock().release(owner, bytes);
    }

    /// Returns the path to which a batch's answers are written while it runs; `kind` is [`OUTPUT`] or [`ERRORS`].
    pub(super) fn answers(&self, id: &str, kind: &str) -> PathBuf {
        self.path(id, kind)
    }

    /// Returns a new id for the file of a batch's answers of the given `kind` ([`OUTPUT`] or [`ERRORS`]); `None` if the
    /// batch has no answers of that kind.
    pub(super) fn answers_id(&self, id: &str, kind: &str) -> Option<String> {
        self.has_answers(id, kind)
            .then(|| format!("file-{}", random_id()))
    }

    /// Returns whether a batch has answers of the given `kind` ([`OUTPUT`] or [`ERRORS`]).
    pub(super) fn has_answers(&self, id: &str, kind: &str) -> bool {
        let metadata = self.path(id, kind).metadata();
        metadata.is_ok_and(|metadata| metadata.len() > 0)
    }

    /// Turns a batch's answers of the given `kind` ([`OUTPUT`] or [`ERRORS`]) into the file `id`, or deletes them if
    /// `id` is `None`. May be repeated after a crash.
    pub(super) fn keep_answers(
        &self,
        batch: &BatchRecord,
        kind: &str,
        id: Option<&str>,
        now: u64,
    ) -> std::io::Result<()> {
        let from = self.path(&batch.id, kind);
        let bytes = match from.metadata() {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some(id) = id else {
            return std::fs::remove_file(&from);
        };
        let record = FileRecord {
            id: id.to_owned(),
            owner: batch.owner.clone(),
            filename: format!("{}_{kind}.jsonl", batch.id),
            purpose: "batch_output".to_owned(),
            bytes,
            created_at: now,
            expires_at: now + self.bounds.time.as_secs(),
        };
        File::open(&from)?.sync_all()?;
        // Lines without a record would be removed at the next start; a record without lines is only ignored.
        self.write(id, &record)?;
        std::fs::rename(&from, self.path(id, LINES))?;
        self.state.lock().files.insert(id.to_owned(), record);
        Ok(())
    }

    /// Removes expired files and batches, except files that an unfinished batch reads.
    pub(crate) fn expire(&self, now: u64) {
        let state = &mut *self.state.lock();
        let batches = state.batches.values();
        let reading: Vec<String> = batches
            .filter(|batch| !batch.status.is_final())
            .map(|batch| batch.input_file_id.clone())
            .collect();
        let files = state.files.values().filter(|file| file.expires_at <= now);
        let ids = files.map(|file| file.id.clone());
        for id in ids.filter(|id| !reading.contains(id)).collect::<Vec<_>>() {
            if let Err(error) = self.drop_file(state, &id) {
                tracing::warn!(%error, id, "cannot remove a file");
            }
        }
        let time = self.bounds.time.as_secs();
        let old = |batch: &BatchRecord| {
            let ended = batch.times.get(batch.status.name());
            let ended = ended.copied().unwrap_or(batch.created_at);
            batch.status.is_final() && ended.saturating_add(time.max(WINDOW_SECONDS)) <= now
        };
        // A finished batch is only a record. Each owner may have as many as its share of files; older ones are removed.
        let mut finished: Vec<_> = state
            .batches
            .values()
            .filter(|b| b.status.is_final())
            .collect();
        finished.sort_by_key(|batch| (&batch.owner, Reverse((batch.created_at, &batch.id))));
        let limit = self.share(self.bounds.files as u64, true) as usize;
        let owners = finished.chunk_by(|a, b| a.owner == b.owner);
        let gone = owners.flat_map(|theirs| {
            let theirs = theirs.iter().enumerate();
            theirs.filter(|(at, batch)| *at >= limit || old(batch))
        });
        for id in gone.map(|(_, batch)| batch.id.clone()).collect::<Vec<_>>() {
            state.batches.remove(&id);
            let _ = std::fs::remove_file(self.path(&id, RECORD));
        }
    }

    fn drop_file(&self, state: &mut State, id: &str) -> std::io::Result<()> {
        match std::fs::remove_file(self.path(id, RECORD)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if let Some(file) = state.files.remove(id) {
            state.release(&file.owner, file.bytes);
        }
        std::fs::remove_file(self.path(id, LINES))
    }

    /// Returns [`Failure::StorageFull`] if all owners (API keys) together would exceed `bound`, or `owner` its share of
    /// it. `needed` returns the amount that one owner would use, or all of them (`None`).
    fn check_room(
        &self,
        what: &'static str,
        bound: u64,
        owner: &str,
        needed: impl Fn(Option<&str>) -> u64,
    ) -> Result<(), Failure> {
        for of in [None, Some(owner)] {
            let limit = self.share(bound, of.is_some());
            if needed(of) > limit {
                return Err(Failure::StorageFull { what, limit });
            }
        }
        Ok(())
    }

    fn share(&self, bound: u64, of_one: bool) -> u64 {
        if of_one && self.is_shared {
            bound.div_ceil(2)
        } else {
            bound
        }
    }

    /// Writes the record of the file or batch `id` to disk, replacing an earlier one.
    fn write(&self, id: &str, record: &impl Serialize) -> std::io::Result<()> {
        let part = self.path(id, "json.part");
        let mut file = open_appended(&part)?;
        file.set_len(0)?;
        file.write_all(serde_json::to_string(record)?.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&part, self.path(id, RECORD))
    }

    fn path(&self, id: &str, kind: &str) -> PathBuf {
        self.folder.join(format!("{id}.{kind}"))
    }
}

/// A file that is being written. It is deleted on drop unless [`Upload::finish`] has succeeded.
#[derive(Debug)]
pub struct Upload {
    store: Arc<Store>,
    file: File,
    record: FileRecord,
    /// True once the file is stored or deleted, so that a drop does nothing.
    is_over: bool,
}

impl Upload {
    /// Appends bytes to the file that is being written.
    ///
    /// # Errors
    /// Returns [`Failure::StorageFull`] if a limit on bytes would be exceeded, and 500 if they cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.store.reserve(&self.record.owner, bytes.len() as u64)?;
        self.record.bytes += bytes.len() as u64;
        let written = self.file.write_all(bytes);
        written.map_err(|error| {
            self.discard();
            Failure::internal(error)
        })
    }

    /// Deletes what was written of the file, and no longer counts its bytes as used by the file's owner (API key).
    fn discard(&mut self) {
        self.is_over = true;
        self.store.discard(&self.record);
    }

    /// Stores the complete file under the client's name `filename`. It expires after `seconds`, but at latest after
    /// [`Bounds::time`].
    ///
    /// # Errors
    /// Returns 500 if the file or its record cannot be written.
    pub fn finish(mut self, filename: &str, seconds: Option<u64>) -> Result<FileRecord, Failure> {
        self.record.filename = clip(filename);
        if let Some(seconds) = seconds {
            let latest = self.record.expires_at;
            self.record.expires_at = (self.record.created_at + seconds).min(latest);
        }
        let store = Arc::clone(&self.store);
        let record = self.record.clone();
        let keep = || -> std::io::Result<()> {
            self.file.sync_all()?;
            std::fs::rename(store.path(&record.id, PART), store.path(&record.id, LINES))?;
            store.write(&record.id, &record)
        };
        if let Err(error) = keep() {
            let _ = std::fs::remove_file(store.path(&record.id, LINES));
            self.discard();
            return Err(Failure::internal(error));
        }
        self.is_over = true;
        let state = &mut *store.state.lock();
        state.written(&record.owner);
        state.files.insert(record.id.clone(), record.clone());
        Ok(record)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // A client that disconnects drops this on a thread that must not wait for the disk.
        let (store, record) = (Arc::clone(&self.store), self.record.clone());
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || store.discard(&record))),
            Err(_) => store.discard(&record),
        }
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let failed = || format!("cannot read {}", path.display());
    let json = std::fs::read(path).with_context(failed)?;
    serde_json::from_slice(&json).with_context(failed)
}

/// Extensions of the names of files in the folder: of records, of complete files, of files being written, and of the
/// two files of a running batch's answers.
const RECORD: &str = "json";
const LINES: &str = "jsonl";
const PART: &str = "part";
pub(super) const OUTPUT: &str = "output";
pub(super) const ERRORS: &str = "errors";

#[cfg(test)]
mod tests {
    use super::super::run::{Ending, finish};
    use super::*;
    use tempfile::TempDir;

    const BOUNDS: Bounds = Bounds {
        files: 4,
        bytes: 100,
        requests: 10,
        batches: 2,
        time: Duration::from_secs(1_000),
    };

    fn store(folder: &TempDir, owners: usize) -> Arc<Store> {
        Arc::new(Store::open(folder.path().join("b"), BOUNDS, owners).unwrap())
    }

    fn keep(store: &Arc<Store>, owner: &str, text: &str, now: u64) -> Result<FileRecord, Failure> {
        let mut upload = store.upload(owner, "batch", now)?;
        upload.write(text.as_bytes())?;
        upload.finish("a.jsonl", None)
    }

    fn batch(owner: &str, file: &str, now: u64) -> BatchRecord {
        BatchRecord {
            id: String::new(),
            owner: owner.to_owned(),
            endpoint: "/v1/completions".to_owned(),
            input_file_id: file.to_owned(),
            status: Status::Validating,
            errors: Vec::new(),
            output_file_id: None,
            error_file_id: None,
            created_at: now,
            expires_at: now + WINDOW_SECONDS,
            times: BTreeMap::new(),
            counts: RequestCounts::default(),
            tokens: [0; 3],
            metadata: None,
            ends_as: None,
        }
    }

    #[test]
    fn what_is_kept_is_its_owners_alone_and_survives_the_server() {
        let folder = TempDir::new().unwrap();
        let ours = store(&folder, 2);
        let file = keep(&ours, "a", "hello", 10).unwrap();
        let made = ours.create(batch("a", &file.id, 10), 10).unwrap();
        assert!(Store::open(folder.path().join("b"), BOUNDS, 2).is_err());
        drop(ours);
        std::fs::write(folder.path().join("b/file-x.part"), "half").unwrap();
        std::fs::write(folder.path().join("b/file-y.jsonl"), "no record").unwrap();

        let ours = store(&folder, 2);
        assert_eq!(ours.file("a", &file.id, 11), Some(file.clone()));
        assert_eq!(ours.file("b", &file.id, 11), None);
        assert_eq!(
            (ours.files("a", 11).len(), ours.files("b", 11).len()),
            (1, 0)
        );
        assert_eq!(ours.batch("b", &made.id, 11), None);
        assert_eq!(ours.batch("a", &made.id, 11), Some(made.clone()));
        assert_eq!(ours.unfinished(), [made.id.as_str()]);
        assert!(!ours.remove("b", &file.id, 11).unwrap());
        assert!(ours.cancel("b", &made.id, 11).unwrap().is_none());
        for gone in ["b/file-x.part", "b/file-y.jsonl"] {
            assert!(!folder.path().join(gone).exists());
        }
    }

    #[test]
    fn bounds_hold_over_all_and_one_of_several_owners_takes_half() {
        let folder = TempDir::new().unwrap();
        let ours = store(&folder, 2);
        keep(&ours, "a", &"x".repeat(50), 0).unwrap();
        let full = |kept: Result<FileRecord, Failure>| kept.unwrap_err().to_string();
        assert!(full(keep(&ours, "a", "x", 0)).contains("50 bytes"));
        let other = keep(&ours, "b", &"x".repeat(49), 0).unwrap();
        assert!(full(keep(&ours, "c", "xx", 0)).contains("100 bytes"));
        assert!(ours.remove("b", &other.id, 0).unwrap());
        keep(&ours, "b", "x", 0).unwrap();
        keep(&ours, "b", "x", 0).unwrap();
        assert!(full(keep(&ours, "b", "x", 0)).contains("2 files"));
        keep(&ours, "c", "x", 0).unwrap();
        assert!(full(keep(&ours, "d", "x", 0)).contains("4 files"));
        // An interrupted upload leaves nothing.
        assert_eq!(ours.state.lock().all_bytes(), 53);
        assert!(ours.state.lock().writing.is_empty());

        ours.create(batch("a", "f", 0), 0).unwrap();
        assert!(ours.create(batch("a", "f", 0), 0).is_err());
        ours.create(batch("b", "f", 0), 0).unwrap();
        assert!(ours.create(batch("c", "f", 0), 0).is_err());
    }

    #[test]
    fn files_go_when_their_time_is_over_unless_a_batch_reads_them() {
        let folder = TempDir::new().unwrap();
        let ours = store(&folder, 1);
        let file = keep(&ours, "", "hello", 0).unwrap();
        let made = ours.create(batch("", &file.id, 0), 0).unwrap();
        assert!(ours.remove("", &file.id, 1).is_err());
        assert!(ours.file("", &file.id, 1_000).is_some());
        ours.advance(&made.id, Status::Completed, 1_000, |_| {})
            .unwrap();
        assert!(ours.cancel("", &made.id, 1_000).is_err());
        assert_eq!(ours.file("", &file.id, 1_001), None);
        assert_eq!(ours.state.lock().all_bytes(), 0);
        assert!(ours.batch("", &made.id, 1_001).is_some());
        let ends = 1_000 + WINDOW_SECONDS;
        assert!(ours.batch("", &made.id, ends - 1).is_some());
        assert!(ours.batch("", &made.id, ends).is_none());
        // Only the lock is left.
        assert_eq!(
            std::fs::read_dir(folder.path().join("b")).unwrap().count(),
            1
        );
    }

    #[test]
    fn finished_batches_of_one_owner_are_bounded_and_evict_nobody_elses() {
        let folder = TempDir::new().unwrap();
        let ours = store(&folder, 2);
        let end = |owner: &str, at| {
            let made = ours.create(batch(owner, "f", at), at).unwrap();
            ours.advance(&made.id, Status::Completed, at, |_| {})
                .unwrap();
            made.id
        };
        let quiet = end("a", 0);
        let loud: Vec<String> = (1..20).map(|at| end("b", at)).collect();
        assert!(ours.batch("a", &quiet, 20).is_some());
        let kept = ours.batches("b", 20).into_iter().map(|batch| batch.id);
        // One owner may have two of the four files; its latest batches stay.
        assert!(kept.eq(loud.iter().rev().take(2).cloned()));
        let records = std::fs::read_dir(folder.path().join("b")).unwrap();
        assert_eq!(records.count(), 1 + 1 + 2);
    }

    #[test]
    fn a_batch_that_is_being_cancelled_stays_so_until_it_ends() {
        let folder = TempDir::new().unwrap();
        let ours = store(&folder, 1);
        let made = ours.create(batch("", "f", 0), 0).unwrap();
        let status = |at| ours.batch("", &made.id, at).unwrap().status;
        ours.cancel("", &made.id, 1).unwrap();
        ours.advance(&made.id, Status::InProgress, 2, |_| {})
            .unwrap();
        assert_eq!(status(2), Status::Cancelling);
        ours.advance(&made.id, Status::Cancelled, 3, |_| {})
            .unwrap();
        assert_eq!(status(3), Status::Cancelled);
        ours.advance(&made.id, Status::Cancelling, 4, |_| {})
            .unwrap();
        assert_eq!(status(4), Status::Cancelled, "that is final");
        let object = ours.batch("", &made.id, 3).unwrap().object();
        assert_eq!(object["cancelling_at"], 1);
        assert_eq!(object["cancelled_at"], 3);
        assert_eq!(object["in_progress_at"], Value::Null);
    }

    #[test]
    fn answers_that_cannot_be_kept_are_kept_later() {
        let folder = TempDir::new().unwrap();
        let ours = store(&folder, 1);
        let made = ours.create(batch("", "f", 0), 0).unwrap();
        ours.advance(&made.id, Status::Finalizing, 1, |batch| {
            batch.ends_as = Some(Status::Completed);
            batch.output_file_id = Some("file-x".to_owned());
        })
        .unwrap();
        std::fs::write(ours.path(&made.id, OUTPUT), "an answer\n").unwrap();
        // The record of the answers cannot be written.
        let in_the_way = ours.path("file-x", "json.part");
        std::fs::create_dir(&in_the_way).unwrap();
        let finish = || finish(&ours, &made.id, Ending::Completed);
        let status = || ours.any_batch(&made.id).unwrap().status;
        assert!(finish().is_err());
        assert_eq!(status(), Status::Finalizing);
        std::fs::remove_dir(&in_the_way).unwrap();
        finish().unwrap();
        assert_eq!(status(), Status::Completed);
        assert_eq!(ours.files("", 2)[0].bytes, 10);
    }
}
