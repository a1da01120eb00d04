//! Events about cached pages, for components that route requests or order documents.
//!
//! Events gather in a bounded log until they are taken. When it is full, the oldest are dropped and a
//! [`CacheEvent::Gap`] reports it: a reader that finds a gap requests a full snapshot.

use super::documents::Document;
use super::hash::PageHash;
use crate::TokenId;
use std::collections::VecDeque;
use std::sync::Arc;

/// A tier of memory in which a page can be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// The backend's own memory, which it computes on.
    Device,
    /// The pool of pages in host memory, to which pages evicted from the device move.
    Host,
    /// A file. The cache reports no events for this tier, because a page that is written there may be dropped silently.
    Disk,
}

/// A change to the full pages in the cache, or to the documents in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// A page has been stored in `tier`.
    Stored {
        /// Hash of the page and everything before it.
        hash: PageHash,
        /// Hash of the page before it; `None` for the first page of a sequence.
        parent: Option<PageHash>,
        /// Tokens of the page.
        tokens: Arc<[TokenId]>,
        /// Cache salt of the tenant; empty if tenants are not isolated.
        salt: Arc<str>,
        /// The tier that holds the page now.
        tier: Tier,
    },
    /// A page has left `tier`.
    Removed {
        /// Hash of the page and everything before it.
        hash: PageHash,
        /// The tier that held the page.
        tier: Tier,
    },
    /// No page is left in device or host memory.
    Cleared,
    /// The last document of `path` is now cached in device or host memory, as are those before it.
    DocumentsStored {
        /// Cache salt of the tenant.
        salt: Arc<str>,
        /// The [`DocumentPath::scope`](super::DocumentPath::scope) of the path.
        scope: u64,
        /// The documents from the first one on, each with its number of tokens.
        path: Arc<[Document]>,
    },
    /// The last document of `path` is no longer cached in device or host memory.
    DocumentsRemoved {
        /// Cache salt of the tenant.
        salt: Arc<str>,
        /// The [`DocumentPath::scope`](super::DocumentPath::scope) of the path.
        scope: u64,
        /// The documents from the first one on, each with its number of tokens.
        path: Arc<[Document]>,
    },
    /// Events were dropped at this point because they were not taken in time.
    Gap {
        /// Number of dropped events.
        events: u64,
    },
}

/// Events that have not been taken yet.
#[derive(Debug, Default)]
pub(super) struct EventLog {
    events: VecDeque<CacheEvent>,
    dropped: u64,
}

/// Maximum number of events kept; one step of an engine causes a few hundred at most.
const CAPACITY: usize = 1 << 14;

impl EventLog {
    pub(super) fn push(&mut self, event: CacheEvent) {
        if self.events.len() == CAPACITY {
            self.events.pop_front();
            self.dropped += 1;
        }
        self.events.push_back(event);
    }

    /// Appends all events of another log.
    pub(super) fn append(&mut self, mut other: Self) {
        other.take().into_iter().for_each(|event| self.push(event));
    }

    /// Returns and removes all events since the last call, oldest first. A [`CacheEvent::Gap`] comes first if events
    /// were dropped.
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
