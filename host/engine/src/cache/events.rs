//! Events about cached pages, for components that route requests or order documents.
//!
//! Events gather in a bounded log until they are taken. When it is full, the oldest are dropped and a
//! [`CacheEvent::Gap`] reports it: a reader that finds a gap requests a full snapshot.

use super::documents::Document;
use super::hash::PageHash;
use crate::TokenId;
use std::collections::VecDeque;
use std::sync::Arc;

/// A tier of memory in which the cache can store a page of KV state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// The memory of the device, on which the backend computes.
    Device,
    /// The pool of pages in host memory, to which pages evicted from the device move.
    Host,
    /// The file of the disk tier. The cache reports no events for this tier, because a page that is written there may
    /// be dropped silently.
    Disk,
}

/// A change to the cached full pages of KV state, or to the documents that they hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// A page has been stored in `tier`; it may also be in another tier.
    Stored {
        /// Hash of the page's tokens and of everything before them.
        hash: PageHash,
        /// Hash of the page before this one; `None` for the first page of a sequence.
        parent: Option<PageHash>,
        /// The tokens whose KV state the page holds.
        tokens: Arc<[TokenId]>,
        /// Cache salt of the tenant that the page belongs to; empty if tenants are not isolated.
        salt: Arc<str>,
        /// The tier that holds the page now, perhaps in addition to others.
        tier: Tier,
    },
    /// A page has left `tier`; another tier may still hold it.
    Removed {
        /// Hash of the page's tokens and of everything before them.
        hash: PageHash,
        /// The tier that the page has left.
        tier: Tier,
    },
    /// The cache is empty: no page is left in device or host memory.
    Cleared,
    /// The last document of `path` is now cached in device or host memory, as are those before it.
    DocumentsStored {
        /// Cache salt of the tenant that the documents belong to.
        salt: Arc<str>,
        /// Hash of the prompt before the documents, see [`DocumentPath::scope`](super::DocumentPath::scope).
        scope: u64,
        /// The prompt's documents from its first to the one that the event concerns, each with its number of tokens.
        path: Arc<[Document]>,
    },
    /// The last document of `path` is no longer cached in device or host memory; the documents before it may still be.
    DocumentsRemoved {
        /// Cache salt of the tenant that the documents belong to.
        salt: Arc<str>,
        /// Hash of the prompt before the documents, see [`DocumentPath::scope`](super::DocumentPath::scope).
        scope: u64,
        /// The prompt's documents from its first to the one that the event concerns, each with its number of tokens.
        path: Arc<[Document]>,
    },
    /// Events were dropped here, because they were not taken from the cache in time.
    Gap {
        /// Number of events that were dropped.
        events: u64,
    },
}

/// The cache's events that have not been taken yet, at most [`CAPACITY`].
#[derive(Debug, Default)]
pub(super) struct EventLog {
    events: VecDeque<CacheEvent>,
    dropped: u64,
}

/// Maximum number of events that wait to be taken from one cache; one step of an engine causes a few hundred at most.
const CAPACITY: usize = 1 << 14;

impl EventLog {
    pub(super) fn push(&mut self, event: CacheEvent) {
        if self.events.len() == CAPACITY {
            self.events.pop_front();
            self.dropped += 1;
        }
        self.events.push_back(event);
    }

    /// Appends all events of another log. If there are too many, the oldest are dropped.
    pub(super) fn append(&mut self, mut other: Self) {
        other.take().into_iter().for_each(|event| self.push(event));
    }

    /// Removes and returns all events in the log, oldest first. A [`CacheEvent::Gap`] comes first if events were
    /// dropped since the last call.
    pub(super) fn take(&mut self) -> Vec<CacheEvent> {
        let gap = std::mem::take(&mut self.dropped);
        let gap = (gap > 0).then_some(CacheEvent::Gap { events: gap });
        gap.into_iter().chain(self.events.drain(..)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_drops_the_oldest_and_says_so() {
        let mut log = EventLog::default();
        let removed = |number| CacheEvent::Removed {
            hash: PageHash(number),
            tier: Tier::Host,
        };
        (0..CAPACITY as u128 + 3).for_each(|number| log.push(removed(number)));
        let events = log.take();
        assert_eq!(events.len(), CAPACITY + 1);
        assert_eq!(events[..2], [CacheEvent::Gap { events: 3 }, removed(3)]);
        assert_eq!(events.last(), Some(&removed(CAPACITY as u128 + 2)));
        assert_eq!(log.take(), []);
    }
}
