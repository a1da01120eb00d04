//! The index of the file of KV pages: which page is in which slot, and which page is evicted when room is needed.
//!
//! The least recently used page is evicted first, but never before pages that follow it, as in the tiers above: a page
//! without its predecessor is of no use. Followers are counted even for a predecessor that is not on disk.

use super::format::Record;
use crate::cache::PageHash;
use fxhash::FxHashMap;
use std::collections::BTreeSet;
use std::collections::hash_map::Entry as MapEntry;

pub(super) struct Index {
    pages: FxHashMap<PageHash, Entry>,
    /// For each page or tenant's root, even if it is not stored itself, the number of stored pages that follow it; no
    /// entry means none.
    followers: FxHashMap<PageHash, u32>,
    /// Stored pages that no stored page follows, with the time of last use, least recently used first. They are evicted
    /// in this order.
    leaves: BTreeSet<(u64, PageHash)>,
    free: Vec<u32>,
    /// Counts uses of pages, in place of a clock.
    clock: u64,
}

/// A page that is in the file, or has a slot and is about to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) slot: u32,
    /// True if the page has been written to its slot in the file, false if it waits to be written.
    pub(super) written: bool,
    parent: PageHash,
    used: u64,
}

/// The slot of the file that was assigned to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) slot: u32,
    pub(super) stamp: u64,
    /// True if another page was evicted from the file to free the slot.
    pub(super) evicted: bool,
}

impl Index {
    /// Builds the index of a file with `slots` slots from its records, each with its slot. Of two records of the same
    /// page, the one written later counts.
    pub(super) fn new(slots: u32, records: impl Iterator<Item = (u32, Record)>) -> Self {
        let mut records: Vec<_> = records.collect();
        records.sort_unstable_by_key(|(_, record)| std::cmp::Reverse(record.stamp));
        let mut this = Self {
            pages: FxHashMap::default(),
            followers: FxHashMap::default(),
            leaves: BTreeSet::new(),
            free: Vec::new(),
            clock: records.first().map_or(0, |(_, record)| record.stamp),
        };
        let mut taken = vec![false; slots as usize];
        for (slot, record) in records {
            let Record {
                page,
                parent,
                stamp,
                ..
            } = record;
            if !this.pages.contains_key(&page) {
                taken[slot as usize] = true;
                this.insert(page, parent, slot, stamp, true);
            }
        }
        let free = (0..slots).rev().filter(|slot| !taken[*slot as usize]);
        this.free = free.collect();
        this
    }

    pub(super) fn len(&self) -> u32 {
        self.pages.len() as u32
    }

    pub(super) fn get(&self, page: PageHash) -> Option<Entry> {
        self.pages.get(&page).copied()
    }

    /// Records that a page was used now. Returns `false` if the page is not in the index.
    pub(super) fn touch(&mut self, page: PageHash) -> bool {
        let Some(entry) = self.pages.get_mut(&page) else {
            return false;
        };
        self.clock += 1;
        let before = std::mem::replace(&mut entry.used, self.clock);
        if self.leaves.remove(&(before, page)) {
            self.leaves.insert((self.clock, page));
        }
        true
    }

    /// Assigns a slot of the file to a page that is not in the index, evicting another page if no slot is free. The
    /// page follows `parent`, which is not evicted for it: returns `None` if no other page can be.
    pub(super) fn place(&mut self, page: PageHash, parent: PageHash) -> Option<Placed> {
        let mut evicted = false;
        if self.free.is_empty() {
            let mut leaves = self.leaves.iter();
            let &(_, leaf) = leaves.find(|(_, leaf)| *leaf != parent)?;
            self.remove(leaf);
            evicted = true;
        }
        let slot = self.free.pop()?;
        self.clock += 1;
        self.insert(page, parent, slot, self.clock, false);
        Some(Placed {
            slot,
            stamp: self.clock,
            evicted,
        })
    }

    /// Records that a page has been written to `slot`. Does nothing if the page has been removed or moved since.
    pub(super) fn written(&mut self, page: PageHash, slot: u32) {
        if let Some(entry) = self.pages.get_mut(&page)
            && entry.slot == slot
        {
            entry.written = true;
        }
    }

    /// Removes a page and frees its slot, whose number is returned; `None` if the page is not in the index.
    pub(super) fn remove(&mut self, page: PageHash) -> Option<u32> {
        let entry = self.pages.remove(&page)?;
        self.leaves.remove(&(entry.used, page));
        if let MapEntry::Occupied(mut followers) = self.followers.entry(entry.parent) {
            *followers.get_mut() -= 1;
            if *followers.get() == 0 {
                followers.remove();
                if let Some(parent) = self.pages.get(&entry.parent) {
                    self.leaves.insert((parent.used, entry.parent));
                }
            }
        }
        self.free.push(entry.slot);
        Some(entry.slot)
    }

    fn insert(&mut self, page: PageHash, parent: PageHash, slot: u32, used: u64, written: bool) {
        let entry = Entry {
            slot,
            written,
            parent,
            used,
        };
        self.pages.insert(page, entry);
        if !self.followers.contains_key(&page) {
            self.leaves.insert((used, page));
        }
        *self.followers.entry(parent).or_insert(0) += 1;
        if let Some(parent_entry) = self.pages.get(&parent) {
            self.leaves.remove(&(parent_entry.used, parent));
        }
    }

    /// Asserts that the index of a file with `slots` slots is consistent.
    #[cfg(test)]
    pub(super) fn check(&self, slots: u32) {
        let mut taken: Vec<u32> = self.pages.values().map(|entry| entry.slot).collect();
        taken.extend(&self.free);
        taken.sort_unstable();
        assert!(
            taken.into_iter().eq(0..slots),
            "slots are lost or used twice"
        );
        let mut followers = FxHashMap::default();
        for entry in self.pages.values() {
            *followers.entry(entry.parent).or_insert(0) += 1;
        }
        assert_eq!(self.followers, followers);
        let leaves = self
            .pages
            .iter()
            .filter(|(page, _)| !followers.contains_key(page));
        let leaves: BTreeSet<_> = leaves.map(|(page, entry)| (entry.used, *page)).collect();
        assert_eq!(self.leaves, leaves);
    }
}
