//! Which pages hold which prefix.
//!
//! Owns page numbers, the tokens whose KV state they hold and who holds them; knows no arithmetic, no request and no
//! clock. A running sequence has a [`Lease`]: its page table, and the right to write the pages that only it holds.
//!
//! ```text
//!   lease.pages   [ 7 ][ 2 ][ 9 ][ 4 ][ 5 ]
//!                 └─shared──┘    │
//!                 nodes of the   └─ private: being written, invisible to others
//!                 tree, read-only
//! ```
//!
//! * [`PrefixCache::open`] finds the longest cached prefix, holds its full pages and takes private ones for the rest.
//!   A match that ends inside a page is copied into the first private page (copy-on-write, ADR-011).
//! * [`PrefixCache::commit`] turns private pages into nodes as soon as they are full *and computed*, so sequences
//!   that run side by side share them. Two that computed the same page end up with one.
//! * [`PrefixCache::close`] also keeps the last, partly filled page and lets go of everything.
//! * Pages of the tree that no lease holds are *idle*: kept, and taken back when somebody needs room, least recently
//!   used first and leaves before their parents, so what is in the tree is always a prefix. Eviction costs
//!   `O(log idle)`.
//!
//! Memory is bounded by the pool: a node is a page, a salt is stored only while it has pages.

mod documents;
mod events;
mod hash;
mod policy;
mod pool;
#[cfg(test)]
mod tests;
mod tree;

pub use documents::{Document, DocumentPath, DocumentSpan};
pub use events::{CacheEvent, Tier};
pub use hash::PageHash;
pub use policy::EvictionPolicy;

use crate::backend::{PageId, TokenId};
use events::EventLog;
use pool::Pool;
use std::collections::BTreeSet;
use std::sync::Arc;
use tree::{Insertion, Place, Tree};

/// The pages of a backend's pool and the prefixes that they hold.
pub struct PrefixCache {
    page_tokens: u32,
    pool: Pool,
    tree: Tree,
    /// Leaves of the tree that no lease holds, least recently used first.
    evictable: BTreeSet<(u64, PageId)>,
    /// Counts operations; stands in for time. No page was used later than an idle one that it follows.
    clock: u64,
    evicted: u64,
    events: EventLog,
}

/// A running sequence's pages. Give it back with [`PrefixCache::close`] or [`PrefixCache::abandon`]: dropping it
/// leaks them.
#[derive(Debug)]
#[must_use = "a dropped lease leaks its pages"]
pub struct Lease {
    salt: Arc<str>,
    /// The page table.
    pages: Vec<PageId>,
    /// How many of them, from the first, are full nodes of the tree; the others are private to this lease.
    shared: u32,
}

impl Lease {
    /// The page table: position `p` lives in `pages()[p / page_tokens]`.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }
}

/// What a prefix lookup found, for planning. Finding it changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Tokens that need not be computed, at most all but the last.
    pub tokens: u32,
    /// Full pages among them, which a lease would share.
    pub pages: u32,
    /// How many of those are idle: they count as available until the lease holds them.
    pub idle_pages: u32,
}

/// A lease with what was found for it.
#[derive(Debug)]
#[must_use = "a dropped lease leaks its pages"]
pub struct Opening {
    /// Pages for all of the sequence's tokens.
    pub lease: Lease,
    /// Tokens whose KV state the full shared pages hold.
    pub shared_tokens: u32,
    /// Further tokens to be had by copying.
    pub copy: Option<SlotCopy>,
}

/// Copy the first `tokens` slots of `from` to `to`, before any other call to the cache, and the sequence has that
/// many tokens more. Left undone, they are to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotCopy {
    /// A page of the tree.
    pub from: PageId,
    /// The lease's first private page.
    pub to: PageId,
    /// At least one.
    pub tokens: u32,
}

/// Gauges and counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Pages in the pool.
    pub pages: u32,
    /// Held by leases now; shared ones count once.
    pub in_use: u32,
    /// In the tree now, held or idle.
    pub cached: u32,
    /// Taken back from the tree to make room, so far.
    pub evicted: u64,
}

impl PrefixCache {
    /// An empty cache over pages `0..pages`, each with room for `page_tokens` tokens (at least one).
    pub fn new(pages: u32, page_tokens: u32) -> Self {
        let page_tokens = page_tokens.max(1);
        Self {
            page_tokens,
            pool: Pool::new(pages),
            tree: Tree::new(pages, page_tokens),
            evictable: BTreeSet::new(),
            clock: 0,
            evicted: 0,
            events: EventLog::default(),
        }
    }

    /// What happened since the last call, the oldest first.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        self.events.take()
    }

    /// Pages that are free or could be made so: all that no lease holds.
    pub fn available(&self) -> u32 {
        self.pool.pages() - self.pool.in_use()
    }

    /// Gauges and counters now.
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            pages: self.pool.pages(),
            in_use: self.pool.in_use(),
            cached: self.tree.len(),
            evicted: self.evicted,
        }
    }

    /// The longest cached prefix of `tokens` among sequences with this salt; at least one token is left to compute,
    /// since the last one's logits are wanted. `O(tokens + pages · log siblings)`.
    pub fn lookup(&self, salt: &str, tokens: &[TokenId]) -> Match {
        let walk = self.tree.walk(salt, all_but_last(tokens));
        let pages = walk.full.len() as u32;
        let copied = walk.tail.map_or(0, |(_, tokens)| tokens);
        let idle = walk
            .full
            .iter()
            .filter(|page| self.pool.holders(**page) == 0)
            .count();
        Match {
            tokens: pages * self.page_tokens + copied,
            pages,
            idle_pages: idle as u32,
        }
    }

    /// A lease with pages for all of `tokens`, those of the longest cached prefix shared (see
    /// [`PrefixCache::lookup`]). `None`, and nothing changed but the order of eviction, when there is no room.
    pub fn open(&mut self, salt: &Arc<str>, tokens: &[TokenId]) -> Option<Opening> {
        let walk = self.tree.walk(salt, all_but_last(tokens));
        self.clock += 1;
        let mut lease = Lease {
            salt: salt.clone(),
            shared: walk.full.len() as u32,
            pages: walk.full,
        };
        for &page in &lease.pages {
            self.hold(page);
        }
        let shared_tokens = lease.shared * self.page_tokens;
        let needed = self.pages_for(tokens.len()) - lease.shared;
        // The page to copy from must outlive the evictions that make room for its copy.
        let mut tail = walk.tail;
        if let Some((from, _)) = tail {
            self.hold(from);
            if self.available() < needed {
                self.release(from);
                tail = None;
            }
        }
        if self.available() < needed {
            self.abandon(lease);
            return None;
        }
        for _ in 0..needed {
            lease.pages.extend(self.take());
        }
        let copy = tail.map(|(from, tokens)| {
            self.release(from);
            SlotCopy {
                from,
                to: lease.pages[lease.shared as usize],
                tokens,
            }
        });
        Some(Opening {
            lease,
            shared_tokens,
            copy,
        })
    }

    /// Adds a private page to the lease; `false` when all pages are held by leases.
    pub fn grow(&mut self, lease: &mut Lease) -> bool {
        let page = self.take();
        lease.pages.extend(page);
        page.is_some()
    }

    /// Says that the first `computed` of the sequence's `tokens` have been computed: pages that they fill become
    /// visible to other sequences. Where another sequence was first, its page replaces this one's.
    pub fn commit(&mut self, lease: &mut Lease, tokens: &[TokenId], computed: u32) {
        let computed = &tokens[..computed as usize];
        let full = computed.chunks_exact(self.page_tokens as usize);
        if full.len() <= lease.shared as usize {
            return;
        }
        self.clock += 1;
        for tokens in full.skip(lease.shared as usize) {
            let index = lease.shared as usize;
            let own = lease.pages[index];
            match self.tree.insert(&lease.place(), tokens, own) {
                Insertion::Inserted { superseded } => self.inserted(own, superseded),
                Insertion::Covered(existing) => {
                    self.hold(existing);
                    self.release(own);
                    lease.pages[index] = existing;
                }
            }
            lease.shared += 1;
        }
    }

    /// Ends a lease and keeps the KV state of the first `computed` tokens for others.
    pub fn close(&mut self, mut lease: Lease, tokens: &[TokenId], computed: u32) {
        self.commit(&mut lease, tokens, computed);
        self.clock += 1;
        let tail = &tokens[(lease.shared * self.page_tokens) as usize..computed as usize];
        if !tail.is_empty() {
            let own = lease.pages[lease.shared as usize];
            match self.tree.insert(&lease.place(), tail, own) {
                Insertion::Inserted { superseded } => self.inserted(own, superseded),
                // The page goes back to the pool below.
                Insertion::Covered(existing) => self.touch(existing),
            }
        }
        self.abandon(lease);
    }

    /// Ends a lease whose private pages hold nothing of worth. What it committed before stays cached.
    pub fn abandon(&mut self, lease: Lease) {
        self.clock += 1;
        for &page in &lease.pages {
            self.release(page);
        }
    }

    /// Ends a lease whose pages are not to be trusted, those that it committed included: they leave the tree unless
    /// other leases or prefixes stand on them.
    pub fn forget(&mut self, lease: Lease) {
        let shared = lease.pages[..lease.shared as usize].to_vec();
        self.abandon(lease);
        for page in shared.into_iter().rev() {
            if !self.is_evictable(page) {
                break;
            }
            self.drop_leaf(page);
        }
    }

    /// Forgets every prefix that no lease holds; returns the number of pages freed.
    pub fn clear(&mut self) -> u32 {
        let before = self.tree.len();
        while let Some(&(_, page)) = self.evictable.first() {
            self.drop_leaf(page);
        }
        before - self.tree.len()
    }

    /// Asserts every invariant; `leases` are all that are open. Costs `O(pages · page_tokens)`: for tests.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub fn check<'a>(&self, leases: impl IntoIterator<Item = &'a Lease>) {
        self.pool.check();
        self.tree.check();
        let mut holders = vec![0; self.pool.pages() as usize];
        for lease in leases {
            let mut place = None;
            for (index, &page) in lease.pages.iter().enumerate() {
                holders[page.0 as usize] += 1;
                if index < lease.shared as usize {
                    assert!(
                        self.tree.contains(page),
                        "shared page {} is not in the tree",
                        page.0
                    );
                    assert_eq!(
                        self.tree.parent(page),
                        place,
                        "page {} stands in the wrong place",
                        page.0
                    );
                    place = Some(page);
                } else {
                    assert!(
                        !self.tree.contains(page),
                        "private page {} is in the tree",
                        page.0
                    );
                    assert_eq!(
                        self.pool.holders(page),
                        1,
                        "private page {} is shared",
                        page.0
                    );
                }
            }
        }
        for page in (0..self.pool.pages()).map(PageId) {
            assert_eq!(
                self.pool.holders(page),
                holders[page.0 as usize],
                "holders of page {}",
                page.0
            );
        }
        for page in self.pool.free() {
            assert!(
                !self.tree.contains(*page),
                "free page {} is in the tree",
                page.0
            );
        }
        let mut idle = 0;
        for page in self
            .tree
            .pages()
            .filter(|page| self.pool.holders(*page) == 0)
        {
            idle += 1;
            if let Some(parent) = self
                .tree
                .parent(page)
                .filter(|page| self.pool.holders(*page) == 0)
            {
                let (used, parent_used) = (self.tree.used(page), self.tree.used(parent));
                assert!(
                    used <= parent_used,
                    "page {} was used after page {}, which it follows",
                    page.0,
                    parent.0
                );
            }
        }
        let accounted = self.pool.free().len() + idle + self.pool.in_use() as usize;
        assert_eq!(accounted, self.pool.pages() as usize, "pages are lost");
        let evictable = self.tree.pages().filter(|&page| self.is_evictable(page));
        let evictable: BTreeSet<_> = evictable.map(|page| (self.tree.used(page), page)).collect();
        assert_eq!(self.evictable, evictable, "evictable pages are misfiled");
    }

    /// Pages that hold `tokens` tokens.
    fn pages_for(&self, tokens: usize) -> u32 {
        (tokens as u32).div_ceil(self.page_tokens)
    }

    /// A private page, evicting the least recently used leaf if none is free.
    fn take(&mut self) -> Option<PageId> {
        if self.pool.free().is_empty() {
            let &(_, page) = self.evictable.first()?;
            self.drop_leaf(page);
            self.evicted += 1;
        }
        self.pool.take()
    }

    /// Holds a page of the tree.
    fn hold(&mut self, page: PageId) {
        self.pool.hold(page);
        self.touch(page);
    }

    /// Lets go of a page: if nobody else holds it, it becomes idle or free.
    fn release(&mut self, page: PageId) {
        let idle = self.pool.release(page);
        if self.tree.contains(page) {
            self.touch(page);
        } else if idle {
            self.pool.give_back(page);
        }
    }

    /// `own`, held, became a node in place of `superseded`, a partial page, which nobody ever holds for long.
    fn inserted(&mut self, own: PageId, superseded: Option<(PageId, u64)>) {
        self.tree.set_used(own, self.clock);
        if let Some((page, used)) = superseded {
            self.evictable.remove(&(used, page));
            self.pool.give_back(page);
        }
    }

    /// Takes an evictable leaf out of the tree; its parent may become one.
    fn drop_leaf(&mut self, page: PageId) {
        self.evictable.remove(&(self.tree.used(page), page));
        if let Some(parent) = self.tree.remove(page)
            && self.is_evictable(parent)
        {
            self.evictable.insert((self.tree.used(parent), parent));
        }
        self.pool.give_back(page);
    }

    /// Files a node as used now, and as evictable if it is.
    fn touch(&mut self, page: PageId) {
        self.evictable.remove(&(self.tree.used(page), page));
        self.tree.set_used(page, self.clock);
        if self.is_evictable(page) {
            self.evictable.insert((self.clock, page));
        }
    }

    fn is_evictable(&self, page: PageId) -> bool {
        self.tree.is_leaf(page) && self.pool.holders(page) == 0
    }
}

impl Lease {
    /// Where the first private page belongs in the tree.
    fn place(&self) -> Place {
        match self.pages[..self.shared as usize].last() {
            Some(&page) => Place::After(page),
            None => Place::Root(self.salt.clone()),
        }
    }
}

fn all_but_last(tokens: &[TokenId]) -> &[TokenId] {
    &tokens[..tokens.len().saturating_sub(1)]
}
