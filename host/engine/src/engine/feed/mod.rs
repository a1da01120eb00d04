//! The feed of cache events, for readers that each follow at their own pace.
//!
//! ```text
//!   engine's thread                                          readers, any number
//!   publish(events), once a step ──▶ documents, a ring ────▶ documents_since(position)
//!                                ├─▶ pages, a ring ────────▶ pages_since(position)
//!                                └─▶ the documents cached now, for readers that fell behind
//! ```
//!
//! The engine appends under a short lock and waits for no reader. A reader that falls behind by more than a ring must
//! start again from a snapshot ([`EventsSince::reset`]). Positions count events within one *epoch* of the cache. A
//! restart, or events that were lost before they reached the feed, begin a new epoch.

mod held;

use crate::cache::{CacheEvent, Tier};
use held::HeldDocuments;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use tokio::sync::watch;

/// The most recent events of one prefix cache, stored for any number of readers.
#[derive(Debug)]
pub struct Feed {
    /// The stored events. Consistent after each line that changes it, so a panic under the lock does no harm.
    state: Mutex<FeedState>,
    progress: watch::Sender<Progress>,
}

/// The numbers of events that the feed has published in the present epoch, which began when the cache started or when
/// events were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Identifies the present epoch by a random number. A new epoch begins when the cache starts anew, and when events
    /// are lost before they reach the feed.
    pub epoch: u64,
    /// Number of events about documents published in this epoch, since the cache started or events were lost.
    pub documents: u64,
    /// Number of events about pages published in this epoch, since the cache started or events were lost.
    pub pages: u64,
}

/// A reader's position in the feed's events about documents, or in those about pages: between two events of one epoch
/// (the time since the cache started or events were lost).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The [`Progress::epoch`] that the position belongs to.
    pub epoch: u64,
    /// Number of events of this kind (about documents or pages) in the epoch before the position, which is the index of
    /// the next event.
    pub next: u64,
}

/// Events after a reader's position, with the position from which to read next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsSince {
    /// The [`Progress::epoch`] that the events belong to.
    pub epoch: u64,
    /// Number of events of this kind (about documents or pages) in the epoch before the first of these.
    pub from: u64,
    /// The [`Position::next`] from which to read the following events.
    pub next: u64,
    /// True if the reader missed events and must discard what it knows. For documents, `events` then describe all
    /// cached documents; for pages, they begin with the oldest event that is still stored.
    pub reset: bool,
    /// Numbers of pages that are cached now, by tier.
    pub held: HeldPages,
    /// The events, oldest first.
    pub events: Vec<CacheEvent>,
}

/// Numbers of pages in the cache now, by tier; a page may be in several tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldPages {
    /// Number of cached pages on the device.
    pub device: u64,
    /// Number of cached pages in host memory.
    pub host: u64,
    /// Number of pages on disk: 0 for this engine's own cache, which reports no events of its disk tier.
    pub disk: u64,
}

#[derive(Debug)]
struct FeedState {
    epoch: u64,
    documents: Ring,
    pages: Ring,
    held: HeldDocuments,
    held_pages: HeldPages,
}

/// The most recent events of one kind (documents or pages), at most [`CAPACITY`], since the cache started or events
/// were lost (the present epoch).
#[derive(Debug, Default)]
struct Ring {
    /// Number of events of this kind (about documents or pages) in the epoch before the oldest one still stored.
    first: u64,
    events: VecDeque<CacheEvent>,
}

/// Maximum number of events of one kind that a feed stores. At 16 tokens a page, 16,384 page events take about 2 MiB
/// and are the prefill of 260,000 tokens.
const CAPACITY: usize = 1 << 14;

impl Default for Feed {
    fn default() -> Self {
        Self::new()
    }
}

impl Feed {
    /// Returns a feed without events, for an empty cache.
    pub fn new() -> Self {
        let state = FeedState::new();
        Self {
            progress: watch::Sender::new(state.progress()),
            state: Mutex::new(state),
        }
    }

    /// Adds the cache's events since the last call to the feed. At a [`CacheEvent::Gap`], which reports lost events, a
    /// new epoch begins, in which only pages stored from then on count as cached: readers may know less than the cache
    /// holds, never more. Costs `O(events)`.
    pub fn publish(&self, events: Vec<CacheEvent>) {
        if events.is_empty() {
            return;
        }
        let progress = {
            let mut state = self.state.lock();
            for event in events {
                state.take(event);
            }
            state.progress()
        };
        self.progress.send_replace(progress);
    }

    /// Begins a new epoch: earlier events are forgotten, and the cache counts as empty. For a cache that has started
    /// anew.
    pub fn restart(&self) {
        self.publish(vec![CacheEvent::Gap { events: 0 }]);
    }

    /// Returns at most `limit` events about documents after the position `since`. If it is `None`, or events after it
    /// are no longer stored, returns events that describe all cached documents instead, however many.
    pub fn documents_since(&self, since: Option<Position>, limit: usize) -> EventsSince {
        let state = self.state.lock();
        match state.documents.since(state.epoch, since, limit) {
            Some((from, events)) => state.news(from, events, false),
            None => EventsSince {
                next: state.documents.next(),
                ..state.news(state.documents.next(), state.held.events(), true)
            },
        }
    }

    /// Returns at most `limit` events about pages after the position `since`. If it is `None`, or events after it are
    /// no longer stored, begins with the oldest event that is still stored.
    pub fn pages_since(&self, since: Option<Position>, limit: usize) -> EventsSince {
        let state = self.state.lock();
        let known = state.pages.since(state.epoch, since, limit);
        let reset = known.is_none();
        let (from, events) = known.unwrap_or_else(|| state.pages.oldest(limit));
        state.news(from, events, reset)
    }

    /// Returns a channel that reports the feed's progress whenever events are published. A slow receiver sees only the
    /// latest value.
    pub fn watch(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }
}

impl FeedState {
    /// Returns the state for an empty cache, without events, in a new epoch (the time until events are lost or the
    /// cache starts anew).
    fn new() -> Self {
        Self {
            epoch: random(),
            documents: Ring::default(),
            pages: Ring::default(),
            held: HeldDocuments::default(),
            held_pages: HeldPages::default(),
        }
    }

    fn take(&mut self, event: CacheEvent) {
        match event {
            CacheEvent::Stored { tier, .. } => {
                *self.held_pages.of(tier) += 1;
                self.pages.push(event);
            }
            CacheEvent::Removed { tier, .. } => {
                let pages = self.held_pages.of(tier);
                *pages = pages.saturating_sub(1);
                self.pages.push(event);
            }
            CacheEvent::DocumentsStored {
                ref salt,
                scope,
                ref path,
            } => {
                if self.held.store(salt, scope, path) {
                    self.documents.push(event);
                }
            }
            CacheEvent::DocumentsRemoved { salt, scope, path } => {
                if let Some(left) = self.held.remove(&salt, scope, &path) {
                    // The event names the first document that is no longer cached; those after it are not either.
                    let path = path[..=left].into();
                    let event = CacheEvent::DocumentsRemoved { salt, scope, path };
                    self.documents.push(event);
                }
            }
            CacheEvent::Cleared => {
                self.held = HeldDocuments::default();
                self.held_pages = HeldPages {
                    disk: self.held_pages.disk,
                    ..HeldPages::default()
                };
                self.documents.push(CacheEvent::Cleared);
                self.pages.push(CacheEvent::Cleared);
            }
            CacheEvent::Gap { .. } => *self = Self::new(),
        }
    }

    fn news(&self, from: u64, events: Vec<CacheEvent>, reset: bool) -> EventsSince {
        EventsSince {
            epoch: self.epoch,
            from,
            next: from + events.len() as u64,
            reset,
            held: self.held_pages,
            events,
        }
    }

    fn progress(&self) -> Progress {
        Progress {
            epoch: self.epoch,
            documents: self.documents.next(),
            pages: self.pages.next(),
        }
    }
}

impl HeldPages {
    fn of(&mut self, tier: Tier) -> &mut u64 {
        match tier {
            Tier::Device => &mut self.device,
            Tier::Host => &mut self.host,
            Tier::Disk => &mut self.disk,
        }
    }
}

impl Ring {
    /// Returns the number of events of this kind in the epoch up to the newest one, which is the position after it.
    fn next(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    fn push(&mut self, event: CacheEvent) {
        if self.events.len() == CAPACITY {
            self.events.pop_front();
            self.first += 1;
        }
        self.events.push_back(event);
    }

    fn oldest(&self, limit: usize) -> (u64, Vec<CacheEvent>) {
        let events = self.events.iter().take(limit).cloned();
        (self.first, events.collect())
    }

    /// Returns the number of events before the position `since`, and at most `limit` events after it. Returns `None` if
    /// `since` is `None` or belongs to another epoch than `epoch`, or some events after it are no longer stored.
    fn since(
        &self,
        epoch: u64,
        since: Option<Position>,
        limit: usize,
    ) -> Option<(u64, Vec<CacheEvent>)> {
        let from = since
            .filter(|since| since.epoch == epoch)
            .map(|since| since.next)
            .filter(|next| (self.first..=self.next()).contains(next))?;
        let known = usize::try_from(from - self.first).ok()?;
        let events = self.events.range(known..).take(limit).cloned();
        Some((from, events.collect()))
    }
}

/// Returns a random number to identify an epoch, so that no reader has seen it before, from this process or an earlier
/// one.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::PageHash;

    fn stored(path: &[u64]) -> CacheEvent {
        CacheEvent::DocumentsStored {
            salt: "".into(),
            scope: 1,
            path: path.iter().map(|&document| (document, 10)).collect(),
        }
    }

    fn removed(path: &[u64]) -> CacheEvent {
        CacheEvent::DocumentsRemoved {
            salt: "".into(),
            scope: 1,
            path: path.iter().map(|&document| (document, 10)).collect(),
        }
    }

    fn page(number: u64) -> CacheEvent {
        CacheEvent::Removed {
            hash: PageHash(number.into()),
            tier: Tier::Host,
        }
    }

    fn at(news: &EventsSince) -> Option<Position> {
        Some(Position {
            epoch: news.epoch,
            next: news.next,
        })
    }

    #[test]
    fn a_reader_goes_on_where_it_stopped() {
        let feed = Feed::new();
        let all = feed.documents_since(None, 9);
        assert!(all.reset && all.events.is_empty());
        feed.publish(vec![stored(&[1]), page(1), stored(&[1, 2])]);
        let first = feed.documents_since(at(&all), 1);
        assert_eq!(
            (first.reset, &first.events[..]),
            (false, &[stored(&[1])][..])
        );
        let second = feed.documents_since(at(&first), 9);
        assert_eq!((second.from, second.next), (1, 2));
        assert_eq!(second.events, [stored(&[1, 2])]);
        let third = feed.documents_since(at(&second), 9);
        assert_eq!((third.reset, third.events.len()), (false, 0));
        // Pages have positions of their own.
        let pages = feed.pages_since(None, 9);
        assert_eq!((pages.from, pages.events), (0, vec![page(1)]));
    }

    #[test]
    fn a_reader_that_fell_behind_gets_what_is_held() {
        let feed = Feed::new();
        let start = at(&feed.documents_since(None, 0));
        feed.publish(vec![stored(&[1, 2]), stored(&[1, 3]), removed(&[1, 2])]);
        for number in 0..CAPACITY as u64 / 2 {
            feed.publish(vec![stored(&[1, 3, number]), removed(&[1, 3, number])]);
        }
        let news = feed.documents_since(start, 9);
        assert!(news.reset);
        assert_eq!(news.events, [stored(&[1, 3])]);
        assert_eq!(news.next, CAPACITY as u64 + 3);
        // The reader continues from there.
        feed.publish(vec![stored(&[4])]);
        let more = feed.documents_since(at(&news), 9);
        assert_eq!((more.reset, more.events), (false, vec![stored(&[4])]));
    }

    #[test]
    fn positions_of_the_future_and_of_another_life_are_not_known() {
        let feed = Feed::new();
        feed.publish(vec![stored(&[1])]);
        let now = feed.documents_since(None, 9);
        for position in [
            Position {
                epoch: now.epoch,
                next: now.next + 1,
            },
            Position {
                epoch: now.epoch ^ 1,
                next: now.next,
            },
        ] {
            assert!(feed.documents_since(Some(position), 9).reset);
            assert!(feed.pages_since(Some(position), 9).reset);
        }
    }

    #[test]
    fn a_restart_and_a_gap_begin_another_life() {
        let feed = Feed::new();
        feed.publish(vec![stored(&[1]), page(1)]);
        let mut before = feed.documents_since(None, 9);
        for lost in [CacheEvent::Gap { events: 3 }, CacheEvent::Gap { events: 0 }] {
            feed.publish(vec![lost, stored(&[2])]);
            let after = feed.documents_since(at(&before), 9);
            assert!(after.reset && after.epoch != before.epoch);
            assert_eq!(after.events, [stored(&[2])]);
            before = after;
        }
        feed.restart();
        let after = feed.documents_since(at(&before), 9);
        assert!(after.reset && after.events.is_empty());
    }

    #[test]
    fn what_is_cleared_is_cleared_for_both_kinds_of_readers() {
        let feed = Feed::new();
        feed.publish(vec![stored(&[1])]);
        let before = feed.documents_since(None, 9);
        feed.publish(vec![CacheEvent::Cleared]);
        let news = feed.documents_since(at(&before), 9);
        assert_eq!(news.events, [CacheEvent::Cleared]);
        assert_eq!(feed.pages_since(None, 9).events, [CacheEvent::Cleared]);
        assert!(feed.documents_since(None, 9).events.is_empty());
    }

    #[test]
    fn whoever_watches_sees_that_there_are_news() {
        let feed = Feed::new();
        let mut progress = feed.watch();
        let before = *progress.borrow_and_update();
        feed.publish(vec![]);
        assert!(!progress.has_changed().unwrap());
        feed.publish(vec![stored(&[1])]);
        assert!(progress.has_changed().unwrap());
        assert_eq!(progress.borrow().documents, before.documents + 1);
    }
}
