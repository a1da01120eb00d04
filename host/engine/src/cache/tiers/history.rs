//! Usage of pages that have left the cache.
//!
//! A page that is computed again after its eviction is not new: RAGCache's frequency is "the total retrieval count
//! within a time window", and eviction does not reset it (§5.1). Here the window is a number of departures: the pages
//! that left last.

use super::policy::Usage;
use crate::cache::hash::PageHash;
use fxhash::FxHashMap;
use std::collections::VecDeque;

pub(in crate::cache) struct History {
    /// For each page that left the cache, the number of its departure and its usage until then.
    usages: FxHashMap<PageHash, (u64, Usage)>,
    /// The pages that left the cache, oldest departure first. An entry is void if its page has returned since.
    departures: VecDeque<PageHash>,
    /// Number of the departure that the first entry of `departures` stands for.
    first: u64,
    capacity: usize,
}

impl History {
    /// Returns a history that records the usage of the last `capacity` pages that left the cache.
    pub(in crate::cache) fn new(capacity: usize) -> Self {
        Self {
            usages: FxHashMap::default(),
            departures: VecDeque::new(),
            first: 0,
            capacity,
        }
    }

    /// Records the usage of a page that leaves the cache. If the history is full, the record of the oldest departure is
    /// dropped.
    pub(in crate::cache) fn keep(&mut self, page: PageHash, usage: Usage) {
        if self.capacity == 0 {
            return;
        }
        if self.departures.len() == self.capacity
            && let Some(oldest) = self.departures.pop_front()
        {
            if self
                .usages
                .get(&oldest)
                .is_some_and(|(number, _)| *number == self.first)
            {
                self.usages.remove(&oldest);
            }
            self.first += 1;
        }
        let number = self.first + self.departures.len() as u64;
        self.departures.push_back(page);
        self.usages.insert(page, (number, usage));
    }

    /// Removes and returns the recorded usage of a page that enters the cache again; the default (no uses) if there is
    /// none.
    pub(in crate::cache) fn take(&mut self, page: PageHash) -> Usage {
        let before = self.usages.remove(&page);
        before.map_or_else(Usage::default, |(_, usage)| usage)
    }

    pub(in crate::cache) fn clear(&mut self) {
        self.first += self.departures.len() as u64;
        self.usages.clear();
        self.departures.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_to_go_are_remembered_once() {
        let mut history = History::new(2);
        let used = |times| {
            let mut usage = Usage::default();
            (0..times).for_each(|_| usage.hit());
            usage
        };
        let page = |number| PageHash(number);
        history.keep(page(1), used(1));
        history.keep(page(2), used(2));
        history.keep(page(3), used(3));
        assert_eq!(history.take(page(1)), used(0), "too long ago");
        assert_eq!(history.take(page(2)), used(2));
        assert_eq!(history.take(page(2)), used(0), "it is back");
        // The page's first departure falls out of the window; its second does not.
        history.keep(page(2), used(4));
        history.keep(page(5), used(5));
        assert_eq!(history.take(page(2)), used(4));
        assert_eq!(history.take(page(3)), used(0));
    }
}
