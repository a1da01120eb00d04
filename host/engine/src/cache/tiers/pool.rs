//! Page pools: which pages are free, and how many sequences hold each of the others.
//!
//! A pool owns counts and nothing else; it does not know a page's content. A page is in one of three states:
//!
//! ```text
//!            take                        release (last holder)
//!   free ───────────▶ held by n ≥ 1 ──────────────────────────▶ idle ──give_back──▶ free
//!                          ▲                                     │
//!                          └──────────────── hold ───────────────┘
//! ```
//!
//! Idle pages are those whose KV state is worth keeping. The pool's owner decides when to give them back.

use crate::backend::{HostPageId, PageId};

pub(in crate::cache) struct Pool {
    /// Free pages, taken from the end of the list. A free page is not held by a sequence and caches no prefix.
    free: Vec<PageId>,
    /// For each page, the number of sequences that hold it.
    holders: Vec<u32>,
    /// Number of pages that at least one sequence holds.
    in_use: u32,
}

impl Pool {
    pub(in crate::cache) fn new(pages: u32) -> Self {
        Self {
            free: (0..pages).rev().map(PageId).collect(),
            holders: vec![0; pages as usize],
            in_use: 0,
        }
    }

    /// Takes a free page, which then has one holder; `None` when no page is free.
    pub(in crate::cache) fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        self.hold(page);
        Some(page)
    }

    /// Adds one to the number of sequences that hold `page`.
    pub(in crate::cache) fn hold(&mut self, page: PageId) {
        let holders = &mut self.holders[page.0 as usize];
        if *holders == 0 {
            self.in_use += 1;
        }
        *holders += 1;
    }

    /// Subtracts one from the number of sequences that hold `page`. Returns true if none holds it any more; the page is
    /// then idle, not free.
    pub(in crate::cache) fn release(&mut self, page: PageId) -> bool {
        let holders = &mut self.holders[page.0 as usize];
        assert!(
            *holders > 0,
            "page {} is released more often than held",
            page.0
        );
        *holders -= 1;
        if *holders == 0 {
            self.in_use -= 1;
        }
        *holders == 0
    }

    /// Makes a page that no sequence holds free. Panics if one does.
    pub(in crate::cache) fn give_back(&mut self, page: PageId) {
        assert_eq!(
            self.holders[page.0 as usize], 0,
            "page {} is held and cannot be free",
            page.0
        );
        self.free.push(page);
    }

    /// Makes all pages free, whether or not sequences hold them.
    pub(in crate::cache) fn reset(&mut self) {
        *self = Self::new(self.pages());
    }

    pub(in crate::cache) fn holders(&self, page: PageId) -> u32 {
        self.holders[page.0 as usize]
    }

    pub(in crate::cache) fn pages(&self) -> u32 {
        self.holders.len() as u32
    }

    pub(in crate::cache) fn in_use(&self) -> u32 {
        self.in_use
    }

    pub(in crate::cache) fn free(&self) -> &[PageId] {
        &self.free
    }
}

/// The free pages of the host's pool. Sequences do not hold host pages: a page belongs to a node of the prefix tree
/// until it is given back.
pub(in crate::cache) struct HostPool {
    free: Vec<HostPageId>,
    pages: u32,
}

impl HostPool {
    pub(in crate::cache) fn new(pages: u32) -> Self {
        Self {
            free: (0..pages).rev().map(HostPageId).collect(),
            pages,
        }
    }

    pub(in crate::cache) fn take(&mut self) -> Option<HostPageId> {
        self.free.pop()
    }

    pub(in crate::cache) fn give_back(&mut self, page: HostPageId) {
        self.free.push(page);
    }

    pub(in crate::cache) fn pages(&self) -> u32 {
        self.pages
    }

    pub(in crate::cache) fn free(&self) -> &[HostPageId] {
        &self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_back_only_when_given_back() {
        let mut pool = Pool::new(2);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        assert_eq!((a, b, pool.take()), (PageId(0), PageId(1), None));
        pool.hold(a);
        assert!(!pool.release(a));
        assert!(pool.release(a));
        pool.check();
        assert_eq!(
            (pool.in_use(), pool.take()),
            (1, None),
            "an idle page is not free"
        );
        pool.give_back(a);
        pool.check();
        assert_eq!((pool.take(), pool.in_use()), (Some(a), 2));
    }
}
