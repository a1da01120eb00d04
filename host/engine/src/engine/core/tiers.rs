//! The cache's lower tiers as the core uses them.
//!
//! ```text
//!   a request comes ─▶ some of it is on disk ─▶ fetching ─▶ its pages are in host memory ─▶ it queues
//!                  └─▶ nothing is ───────────────────────────────────────────────────────▶ it queues
//!   admitted: loads go into the step, transfers go before it
//!   the engine ends: what memory holds is saved
//! ```
//!
//! Nobody waits for the disk but the request that has something there, and that not for long.

use super::{Core, Sequence};
use crate::backend::Backend;
use crate::cache::{Fetch, Pages, Transfer};
use crate::engine::work::{Answers, Work};
use std::time::{Duration, Instant};

/// A request that does not queue yet.
pub(super) struct Fetching {
    sequence: Sequence,
    fetch: Fetch,
    /// When it was first seen to wait.
    since: Option<Instant>,
}

/// A disk that takes longer is not worth waiting for: what has not come is computed.
const PATIENCE: Duration = Duration::from_secs(2);

impl Core {
    /// Asks for what is on disk of a request, which queues later then; `None`: it is kept here.
    pub(super) fn fetch(&mut self, sequence: Sequence) -> Option<Sequence> {
        let Some(fetch) = self.cache.fetch(&sequence.salt, &sequence.tokens) else {
            return Some(sequence);
        };
        self.fetching.push(Fetching {
            sequence,
            fetch,
            since: None,
        });
        None
    }

    /// Takes in what has come from disk, and lets the requests queue that waited for it.
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
        for Fetching { sequence, .. } in ready {
            self.waiting.push(sequence.entry(), sequence);
        }
    }

    /// Lets all requests queue that wait for the disk, for somebody who looks for one in the queue.
    pub(super) fn stop_fetching(&mut self) {
        for Fetching { sequence, .. } in self.fetching.drain(..) {
            self.waiting.push(sequence.entry(), sequence);
        }
    }

    /// Adds to `work` what the cache wants to have moved before it.
    pub(super) fn add_transfers(&mut self, work: &mut Work) {
        work.transfers = self.cache.take_transfers();
        if !work.transfers.is_empty() {
            work.disk.clone_from(&self.cache_config.disk);
        }
    }

    /// Has what memory holds written to disk and waits for that: nothing is computed any more.
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
                // What was to be saved next may not be what it should be.
                return;
            }
            if is_save {
                disk.flush();
            }
        }
    }
}

/// A device's pools.
pub(super) fn pools(backend: &dyn Backend) -> Pages {
    Pages {
        device: backend.pages(),
        host: backend.host_pages(),
        tokens: backend.page_tokens().max(1),
    }
}
