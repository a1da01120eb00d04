//! Who leaves a tier next: the pages that may, in order of their [rank](Rank), and the tier's clock.
//!
//! ```text
//!   device   ●──●──●──◌   only the last of a chain may go: what is in a tier hangs together from above
//!                  └──◌
//! ```
//!
//! Every operation is `O(log pages)`.

use super::policy::{EvictionPolicy, Usage};
use super::tree::NodeId;
use std::collections::BTreeSet;

/// What a page is worth to its tier; the lowest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// The bits of a number that is not negative: they sort as it does.
    priority: u64,
    /// When it was last used.
    last: u64,
    pub(super) node: NodeId,
}

pub(super) struct Queue {
    policy: EvictionPolicy,
    /// The highest priority of what has gone (RAGCache, equation 3).
    clock: f64,
    ranks: BTreeSet<Rank>,
}

impl Queue {
    pub(super) fn new(policy: EvictionPolicy) -> Self {
        Self {
            policy,
            clock: 0.0,
            ranks: BTreeSet::new(),
        }
    }

    /// What a page is worth now.
    pub(super) fn rank(&self, node: NodeId, usage: &Usage) -> Rank {
        let priority = self.policy.priority(self.clock, usage);
        Rank {
            // Adding zero turns a negative zero, whose bits are high, into the other.
            priority: (priority.max(0.0) + 0.0).to_bits(),
            last: usage.last,
            node,
        }
    }

    /// A page may go.
    pub(super) fn file(&mut self, rank: Rank) {
        self.ranks.insert(rank);
    }

    /// A page may not go any more, or has gone.
    pub(super) fn unfile(&mut self, rank: Rank) {
        self.ranks.remove(&rank);
    }

    /// Who goes next.
    pub(super) fn first(&self) -> Option<NodeId> {
        self.ranks.first().map(|rank| rank.node)
    }

    /// Who goes now, for want of room: the clock advances.
    pub(super) fn victim(&mut self) -> Option<NodeId> {
        let rank = self.ranks.first()?;
        self.clock = self.clock.max(f64::from_bits(rank.priority));
        Some(rank.node)
    }

    /// Those that may go, in order.
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.ranks.iter().copied()
    }
}
