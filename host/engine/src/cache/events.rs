//! What happens to cached pages, told to whoever routes requests or orders their documents.
//!
//! Events gather in a bounded log until they are taken. When nobody takes them the oldest are dropped, and the gap is
//! told: a reader that finds one asks for everything anew.

use super::documents::Document;
use super::hash::PageHash;
use crate::TokenId;
use std::collections::VecDeque;
use std::sync::Arc;

/// Where a page can live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// The backend's own memory, where it computes.
    Device,
    /// Memory beside it.
    Host,
    /// A file. The cache tells nothing of it: what is written there may be dropped unseen.
    Disk,
}

/// Something that happened to full pages or to the documents in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// A page can be found in `tier` now.
    Stored {
        /// What it is found by.
        hash: PageHash,
        /// The page before it; `None`: it is a sequence's first.
        parent: Option<PageHash>,
        /// What it holds.
        tokens: Arc<[TokenId]>,
        /// Whose it is; empty: nobody's in particular.
        salt: Arc<str>,
        /// Where.
        tier: Tier,
    },
    /// A page cannot be found in `tier` any more.
    Removed {
        /// What it was found by.
        hash: PageHash,
        /// Where.
        tier: Tier,
    },
    /// No page can be found in device or host memory any more.
    Cleared,
    /// The last document of `path` is held in device or host memory, as those before it are.
    DocumentsStored {
        /// Whose it is.
        salt: Arc<str>,
        /// [`DocumentPath::scope`](super::DocumentPath::scope).
        scope: u64,
        /// From the first document on, each with its tokens.
        path: Arc<[Document]>,
    },
    /// The last document of `path` is held in neither any more.
    DocumentsRemoved {
        /// Whose it was.
        salt: Arc<str>,
        /// [`DocumentPath::scope`](super::DocumentPath::scope).
        scope: u64,
        /// From the first document on, each with its tokens.
        path: Arc<[Document]>,
    },
    /// Events were dropped here because nobody took them.
    Gap {
        /// How many.
        events: u64,
    },
}

/// Events that nobody has taken yet.
#[derive(Debug, Default)]
pub(super) struct EventLog {
    events: VecDeque<CacheEvent>,
    dropped: u64,
}

/// Events that are kept; a step of an engine causes a few hundred at most.
const CAPACITY: usize = 1 << 14;

impl EventLog {
    pub(super) fn push(&mut self, event: CacheEvent) {
        if self.events.len() == CAPACITY {
            self.events.pop_front();
            self.dropped += 1;
        }
        self.events.push_back(event);
    }

    /// Everything that another log holds.
    pub(super) fn append(&mut self, mut other: Self) {
        other.take().into_iter().for_each(|event| self.push(event));
    }

    /// All events since the last call, the oldest first.
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
