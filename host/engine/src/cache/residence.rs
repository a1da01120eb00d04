//! In which tiers a node's page is, and what follows from it.
//!
//! ```text
//!                 ┌──────── computed ────────▶ device ────────┐
//!                 │                             │ ▲           │ evicted (first time: copied to host)
//!              nowhere                     hit: │ │ load      ▼
//!                 │                             │ │         host, and device while replicated or loaded
//!                 └─── read back from disk ─────┴─┴─────────▶ │
//!                                                             └─ evicted: written to disk, the node is forgotten
//! ```
//!
//! The four moves below are the only ones that change where a page is. Each keeps the counts of its parent, the queues,
//! the stamps that a [`Sighting`](super::Sighting) compares, and the events in step.

use super::PrefixCache;
use super::events::{CacheEvent, Tier};
use super::marks::Marks;
use super::policy::Usage;
use super::queue::{Queue, Rank};
use super::tree::{self, NodeId};
use crate::backend::{HostPageId, PageId};

/// A page of the tree, and where it is.
pub(super) type Node = tree::Node<Residence>;

/// Where a node's page is and how it is used.
#[derive(Default)]
pub(super) struct Residence {
    pub(super) device: Option<Copy<PageId>>,
    pub(super) host: Option<Copy<HostPageId>>,
    /// Children whose pages are there.
    pub(super) device_children: u32,
    pub(super) host_children: u32,
    /// The device's page is to be filled by a load that has not been carried out.
    pub(super) loading: bool,
    /// Loads from the host's page that have not been carried out.
    pub(super) pins: u32,
    /// The host's page was made for fault tolerance alone and counts as such, while the device has one as well.
    pub(super) replica: bool,
    pub(super) usage: Usage,
    pub(super) marks: Marks,
}

/// A page in a tier.
pub(super) struct Copy<Page> {
    pub(super) page: Page,
    /// As of its last use.
    pub(super) rank: Rank,
    /// Whether it is in its queue: it may be evicted.
    pub(super) filed: bool,
}

impl<Page> Copy<Page> {
    /// Files the page under `rank` or, where it may not be evicted, not at all.
    fn refile(&mut self, queue: &mut Queue, rank: Rank, evictable: bool) {
        if self.filed && (!evictable || self.rank != rank) {
            queue.unfile(self.rank);
        }
        if evictable && (!self.filed || self.rank != rank) {
            queue.file(rank);
        }
        self.rank = rank;
        self.filed = evictable;
    }
}

impl Node {
    pub(super) fn device_page(&self) -> Option<PageId> {
        self.at.device.as_ref().map(|copy| copy.page)
    }

    pub(super) fn host_page(&self) -> Option<HostPageId> {
        self.at.host.as_ref().map(|copy| copy.page)
    }
}

impl PrefixCache {
    /// `page`, held or idle, holds the node's KV state or is about to.
    pub(super) fn enter_device(&mut self, id: NodeId, page: PageId) {
        let rank = self.device.rank(id, &self.tree[id].at.usage);
        self.tree[id].at.device = Some(Copy {
            page,
            rank,
            filed: false,
        });
        self.counts.device += 1;
        if let Some(parent) = self.tree[id].parent {
            self.tree[parent].at.device_children += 1;
        }
        self.moved(id);
        self.tell_stored(id, Tier::Device);
    }

    /// The node's page on the device, if it has one, is its no more; it is not given back.
    pub(super) fn leave_device(&mut self, id: NodeId) -> Option<PageId> {
        let at = &mut self.tree[id].at;
        let copy = at.device.take()?;
        // The host's page is an ordinary one now.
        if at.replica
            && let Some(host) = &mut at.host
        {
            if std::mem::take(&mut host.filed) {
                self.replicas.unfile(host.rank);
            }
            at.replica = false;
            host.rank = self.host.rank(id, &at.usage);
            self.counts.replicas -= 1;
        }
        if copy.filed {
            self.device.unfile(copy.rank);
        }
        self.counts.device -= 1;
        if let Some(parent) = self.tree[id].parent {
            self.tree[parent].at.device_children -= 1;
        }
        self.moved(id);
        self.tell_removed(id, Tier::Device);
        Some(copy.page)
    }

    /// `page` holds the node's KV state or is about to.
    pub(super) fn enter_host(&mut self, id: NodeId, page: HostPageId, replica: bool) {
        let queue = if replica { &self.replicas } else { &self.host };
        let rank = queue.rank(id, &self.tree[id].at.usage);
        let at = &mut self.tree[id].at;
        at.replica = replica;
        at.host = Some(Copy {
            page,
            rank,
            filed: false,
        });
        self.counts.host += 1;
        self.counts.replicas += u32::from(replica);
        self.in_flight.written.push(page);
        if let Some(parent) = self.tree[id].parent {
            self.tree[parent].at.host_children += 1;
        }
        self.moved(id);
        self.tell_stored(id, Tier::Host);
    }

    /// The node's page in host memory, if it has one, is its no more; it is free.
    pub(super) fn leave_host(&mut self, id: NodeId) {
        let at = &mut self.tree[id].at;
        let Some(copy) = at.host.take() else { return };
        let replica = std::mem::take(&mut at.replica);
        if copy.filed {
            let queue = if replica {
                &mut self.replicas
            } else {
                &mut self.host
            };
            queue.unfile(copy.rank);
        }
        self.counts.host -= 1;
        self.counts.replicas -= u32::from(replica);
        self.host_pool.give_back(copy.page);
        if let Some(parent) = self.tree[id].parent {
            self.tree[parent].at.host_children -= 1;
        }
        self.moved(id);
        self.tell_removed(id, Tier::Host);
    }

    /// Forgets a node that is in neither tier.
    pub(super) fn forget_if_gone(&mut self, id: NodeId) {
        let at = &self.tree[id].at;
        if at.device.is_some() || at.host.is_some() {
            return;
        }
        debug_assert!(self.tree.is_leaf(id), "{id:?} goes before what follows it");
        if let Some(node) = self.tree.remove(id) {
            if let Some(hash) = node.hash {
                self.history.keep(hash, node.at.usage);
            }
            node.at.marks.tell_removed(&node.salt, &mut self.events);
        }
    }

    /// Files a node where it belongs, under its rank.
    pub(super) fn refile(&mut self, id: NodeId) {
        self.file(id, |_, _, rank| rank);
    }

    /// Ranks a node anew, as used now; of a sequence, the last page first.
    pub(super) fn touch(&mut self, id: NodeId) {
        self.now += 1;
        self.tree[id].at.usage.last = self.now;
        self.file(id, |queue, usage, _| queue.rank(id, usage));
    }

    /// Files a node's pages where they belong, under what `rank` makes of the queue, the node's usage and the rank so far.
    fn file(&mut self, id: NodeId, rank: impl Fn(&Queue, &Usage, Rank) -> Rank) {
        let evictable = self.evictable(id);
        let at = &mut self.tree[id].at;
        if let Some(copy) = &mut at.device {
            let rank = rank(&self.device, &at.usage, copy.rank);
            copy.refile(&mut self.device, rank, evictable.device);
        }
        if let Some(copy) = &mut at.host {
            let queue = if at.replica {
                &mut self.replicas
            } else {
                &mut self.host
            };
            let rank = rank(queue, &at.usage, copy.rank);
            copy.refile(queue, rank, evictable.host);
        }
    }

    /// Whether a node may leave a tier: leaves first, and nothing that is held or on its way.
    pub(super) fn evictable(&self, id: NodeId) -> Evictable {
        let at = &self.tree[id].at;
        Evictable {
            device: at.device_children == 0
                && !at.loading
                && at
                    .device
                    .as_ref()
                    .is_some_and(|copy| self.pool.holders(copy.page) == 0),
            host: at.host_children == 0 && at.pins == 0 && at.host.is_some(),
        }
    }

    /// Files a node that moved and its parent, and stamps both.
    fn moved(&mut self, id: NodeId) {
        self.tree.note_move(id);
        self.refile(id);
        if let Some(parent) = self.tree[id].parent {
            self.refile(parent);
        }
    }

    fn tell_stored(&mut self, id: NodeId, tier: Tier) {
        let node = &self.tree[id];
        let Some(hash) = node.hash else { return };
        self.events.push(CacheEvent::Stored {
            hash,
            parent: node.parent.and_then(|parent| self.tree[parent].hash),
            tokens: node.tokens.clone(),
            salt: node.salt.clone(),
            tier,
        });
    }

    fn tell_removed(&mut self, id: NodeId, tier: Tier) {
        if let Some(hash) = self.tree[id].hash {
            self.events.push(CacheEvent::Removed { hash, tier });
        }
    }
}

/// See [`PrefixCache::evictable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Evictable {
    pub(super) device: bool,
    pub(super) host: bool,
}
