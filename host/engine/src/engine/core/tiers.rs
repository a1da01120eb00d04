//! The core's use of the cache's lower tiers.
//!
//! ```text
//!   a request arrives ─▶ part of it is on disk ─▶ fetching ─▶ its pages are in host memory ─▶ it is queued
//!                    └─▶ nothing is on disk ────────────────────────────────────────────────▶ it is queued
//!   every step: pages that are used often are copied to disk, as many as the rate allows
//!   admission: loads go into the step, transfers before it
//!   shutdown:  the pages in memory are saved
//! ```
//!
//! Only a request that has pages on disk waits for the disk, and no longer than [`PATIENCE`].

use super::{Core, Sequence};
use crate::backend::Backend;
use crate::cache::{DiskReplicaBounds, Fetch, Pages, Transfer};
use crate::engine::work::{Answers, Work};
use std::time::{Duration, Instant};

/// A request that waits for pages from disk before it enters the queue.
pub(super) struct Fetching {
    sequence: Sequence,
    fetch: Fetch,
    /// Time of the first step at which the request waited for the disk; `None` before that.
    since: Option<Instant>,
}

/// Maximum time that a request waits for pages from disk. Those that have not arrived by then are computed.
const PATIENCE: Duration = Duration::from_secs(2);

/// Limits the rate at which pages are copied to disk while they are still in memory: a credit of pages that grows with
/// time, up to one second's worth.
pub(super) struct Replication {
    bounds: DiskReplicaBounds,
    /// Number of pages that may be copied to disk now; may be fractional.
    credit: f64,
    since: Option<Instant>,
}

/// Minimum pause between copies of pages to disk by an idle engine while other writes wait for the disk.
const BUSY_DISK: Duration = Duration::from_millis(10);

impl Replication {
    pub(super) fn new(bounds: &DiskReplicaBounds) -> Self {
        Self {
            bounds: *bounds,
            credit: 1.0,
            since: None,
        }
    }

    /// Adds the credit for the time since the last call, and returns the number of pages that may be copied to disk
    /// now, in one step.
    fn allowed(&mut self, now: Instant) -> u32 {
        let rate = self.bounds.pages_per_second.max(0.0);
        let since = self.since.replace(now).unwrap_or(now);
        let elapsed = now.saturating_duration_since(since).as_secs_f64();
        self.credit = (self.credit + elapsed * rate).min(rate.max(1.0));
        (self.credit as u32).min(self.bounds.pages_per_step)
    }

    /// Returns the time until one page may be copied to disk, at least 1 ms; `None` if the configured rate is zero.
    fn wait(&self) -> Option<Duration> {
        let missing = (1.0 - self.credit).max(0.0);
        let seconds = missing / self.bounds.pages_per_second.max(0.0);
        let wait = Duration::try_from_secs_f64(seconds).ok()?;
        Some(wait.max(Duration::from_millis(1)))
    }
}

impl Core {
    /// Schedules copies to disk of pages in memory that are used often, within the configured rate.
    pub(super) fn replicate(&mut self, now: Instant) {
        if !self.cache.has_replicas_to_write() {
            return;
        }
        let allowed = self.replication.allowed(now);
        if allowed > 0 {
            let written = self.cache.replicate_to_disk(allowed);
            self.replication.credit -= f64::from(written);
        }
    }

    /// Returns the time after which an idle engine copies further pages to disk; `None` if there is nothing to copy, or
    /// copying is not configured.
    pub(in crate::engine) fn replication_wait(&self) -> Option<Duration> {
        if !self.cache.has_replicas_to_write() {
            return None;
        }
        let wait = self.replication.wait()?;
        let disk = self.cache_config.disk.as_ref()?;
        Some(if disk.backlog() > 0 {
            wait.max(BUSY_DISK)
        } else {
            wait
        })
    }

    /// Starts to read those pages from disk that follow a request's cached prefix, and returns `None`:
    /// [`Core::queue_fetched`] queues the request later. If there are no such pages, or the request does not read the
    /// cache, returns the request, for the caller to queue.
    pub(super) fn fetch(&mut self, sequence: Sequence) -> Option<Sequence> {
        if sequence.cache_use.reads == 0 {
            return Some(sequence);
        }
        let Some(fetch) = self.cache.fetch(&sequence.salt, sequence.readable()) else {
            return Some(sequence);
        };
        self.fetching.push(Fetching {
            sequence,
            fetch,
            since: None,
        });
        None
    }

    /// Adds the pages that have arrived from disk to the cache. Queues the requests that waited for them and whose
    /// pages have all arrived or could not be read, as well as those that have waited for [`PATIENCE`], are past their
    /// deadline or were cancelled.
    pub(super) fn queue_fetched(&mut self, now: Instant) {
        self.cache.receive();
        let cache = &self.cache;
        let ready = self.fetching.extract_if(.., |waiting| {
            let since = *waiting.since.get_or_insert(now);
            let deadline = waiting.sequence.deadline;
            cache.is_fetched(&waiting.fetch)
                || now.saturating_duration_since(since) >= PATIENCE
                || deadline.is_some_and(|deadline| deadline <= now)
                || waiting.sequence.events.is_closed()
        });
        for waiting in ready.collect::<Vec<_>>() {
            self.queue(waiting.sequence);
        }
    }

    /// Removes and returns the requests that wait for pages from disk and whose callers have cancelled them.
    pub(super) fn take_unwanted_fetches(&mut self) -> Vec<Sequence> {
        let gone = (self.fetching).extract_if(.., |waiting| waiting.sequence.events.is_closed());
        gone.map(|waiting| waiting.sequence).collect()
    }

    /// Queues those requests that wait for pages from disk and for which `stops` is true, without waiting further, so
    /// that a search of the queue finds them.
    pub(super) fn stop_fetching(&mut self, stops: impl Fn(&Sequence) -> bool) {
        let stopped = (self.fetching).extract_if(.., |waiting| stops(&waiting.sequence));
        for waiting in stopped.collect::<Vec<_>>() {
            self.queue(waiting.sequence);
        }
    }

    /// Moves the cache's scheduled transfers (copies between device, host memory and disk) to `work`.
    pub(super) fn add_transfers(&mut self, work: &mut Work) {
        work.transfers = self.cache.take_transfers();
        if !work.transfers.is_empty() {
            work.disk.clone_from(&self.cache_config.disk);
        }
    }

    /// Writes all full pages in memory to disk and waits until they are written, as far as the backend does not fail.
    /// Called when no further step follows.
    pub(in crate::engine) fn save_all(&mut self, backend: &mut dyn Backend) {
        let Some(disk) = self.cache_config.disk.clone() else {
            return;
        };
        self.cache.save_all();
        for transfer in self.cache.take_transfers() {
            let is_save = matches!(transfer, Transfer::Save { .. });
            let work = Work {
                transfers: vec![transfer],
                disk: Some(disk.clone()),
                ..Work::default()
            };
            if work.run(backend, &mut Answers::default()).is_err() {
                // The pages that would be saved next may be undefined.
                return;
            }
            if is_save {
                disk.flush();
            }
        }
    }
}

/// Returns the sizes of the backend's pools of pages.
pub(super) fn pools(backend: &dyn Backend) -> Pages {
    let shape = backend.shape();
    Pages {
        device: shape.pages,
        host: shape.host_pages,
        tokens: shape.page_tokens.max(1),
    }
}
