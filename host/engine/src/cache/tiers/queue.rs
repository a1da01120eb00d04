//! The eviction queue of a tier: its evictable pages in order of their [rank](Rank), and the tier's clock.
//!
//! ```text
//!   device   ●──●──●──◌   only the last page of a chain is evictable: the pages of a tier form a connected tree
//!                  └──◌
//! ```
//!
//! Every operation costs `O(log pages)`.

use super::policy::{EvictionPolicy, Usage};
use crate::cache::tree::NodeId;
use std::collections::BTreeSet;

/// A page's rank in the eviction order of its tier; the page with the lowest rank is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::cache) struct Rank {
    /// The bits of the page's priority, a non-negative floating-point number; the bits sort as the number does.
    priority: u64,
    /// The cache's counter of uses at the page's last use, by which equal priorities are ordered.
    last: u64,
    pub(in crate::cache) node: NodeId,
}

pub(in crate::cache) struct Queue {
    policy: EvictionPolicy,
    /// The tier's clock: the highest priority of any page evicted from it (RAGCache, equation 3).
    clock: f64,
    ranks: BTreeSet<Rank>,
}

impl Queue {
    pub(in crate::cache) fn new(policy: EvictionPolicy) -> Self {
        Self {
            policy,
            clock: 0.0,
            ranks: BTreeSet::new(),
        }
    }

    /// Returns the rank that a page with this usage gets now.
    pub(in crate::cache) fn rank(&self, node: NodeId, usage: &Usage) -> Rank {
        let priority = self.policy.priority(self.clock, usage);
        Rank {
            // Adding zero turns a negative zero, whose sign bit would sort highest, into a positive one.
            priority: (priority.max(0.0) + 0.0).to_bits(),
            last: usage.last,
            node,
        }
    }

    /// Adds a page, which becomes evictable, at this rank.
    pub(in crate::cache) fn enqueue(&mut self, rank: Rank) {
        self.ranks.insert(rank);
    }

    /// Removes the page with this rank, which is no longer evictable or has left the tier.
    pub(in crate::cache) fn dequeue(&mut self, rank: Rank) {
        self.ranks.remove(&rank);
    }

    /// Returns the node of the page that would be evicted next; `None` if no page is evictable.
    pub(in crate::cache) fn first(&self) -> Option<NodeId> {
        self.ranks.first().map(|rank| rank.node)
    }

    /// Returns the node of the page to evict next and advances the tier's clock to the page's priority. The page stays
    /// in the queue until it leaves the tier. Returns `None` if no page is evictable.
    pub(in crate::cache) fn victim(&mut self) -> Option<NodeId> {
        let rank = self.ranks.first()?;
        self.clock = self.clock.max(f64::from_bits(rank.priority));
        Some(rank.node)
    }

    /// Iterates over the ranks of the evictable pages, in order of eviction.
    #[cfg(any(test, feature = "invariants"))]
    pub(in crate::cache) fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.ranks.iter().copied()
    }
}
