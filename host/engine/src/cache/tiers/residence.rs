//! Residence: the tiers that hold a node's page, and the moves between them.
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
//! Only the four moves below (enter and leave, for device and host) change where a page is. Each of them updates the
//! parent's counts, the eviction queues, the stamps that a [`CachedLookup`](crate::cache::CachedLookup) compares, and
//! the events.

use super::disk_replicas::DiskCopy;
use super::policy::Usage;
use super::queue::{Queue, Rank};
use crate::backend::{HostPageId, PageId};
use crate::cache::PrefixCache;
use crate::cache::boundaries::DocumentBoundaries;
use crate::cache::events::{CacheEvent, Tier};
use crate::cache::tree::{self, NodeId};

/// A node of the prefix tree (one page of KV state after a certain prefix), with the tiers that hold its page.
pub(in crate::cache) type Node = tree::Node<Residence>;

/// Where the page of a node of the prefix tree is (on the device, in host memory, or both), and how it was used.
#[derive(Default)]
pub(in crate::cache) struct Residence {
    pub(in crate::cache) device: Option<TierPage<PageId>>,
    pub(in crate::cache) host: Option<TierPage<HostPageId>>,
    /// Number of child nodes whose pages are on the device. `host_children` counts those whose pages are in host
    /// memory.
    pub(in crate::cache) device_children: u32,
    pub(in crate::cache) host_children: u32,
    /// True while a copy from host memory into the node's device page is scheduled but not carried out.
    pub(in crate::cache) loading: bool,
    /// Number of reasons not to evict the page from host memory: copies from it that have not been carried out, and
    /// calls in progress that need it.
    pub(in crate::cache) pins: u32,
    /// True if the page in host memory is a replica: a copy that was made while the device still has the page.
    pub(in crate::cache) replica: bool,
    /// The state of the page's copy on disk.
    pub(in crate::cache) disk_copy: DiskCopy,
    /// True if the page begins within the same document as the page before it in the sequence.
    pub(in crate::cache) continues: bool,
    pub(in crate::cache) usage: Usage,
    pub(in crate::cache) marks: DocumentBoundaries,
}

/// A node's page in one tier: the device or host memory.
pub(in crate::cache) struct TierPage<Page> {
    pub(in crate::cache) page: Page,
    /// The page's rank in the tier's eviction order, as computed at its last use.
    pub(in crate::cache) rank: Rank,
    /// True if the page is in the eviction queue of its tier, that is, evictable.
    pub(in crate::cache) queued: bool,
}

impl<Page> TierPage<Page> {
    /// Puts the page into the eviction queue at `rank` if it is evictable; otherwise removes it from the queue.
    fn refile(&mut self, queue: &mut Queue, rank: Rank, evictable: bool) {
        if self.queued && (!evictable || self.rank != rank) {
            queue.dequeue(self.rank);
        }
        if evictable && (!self.queued || self.rank != rank) {
            queue.enqueue(rank);
        }
        self.rank = rank;
        self.queued = evictable;
    }
}

impl Node {
    pub(in crate::cache) fn device_page(&self) -> Option<PageId> {
        self.at.device.as_ref().map(|copy| copy.page)
    }

    pub(in crate::cache) fn host_page(&self) -> Option<HostPageId> {
        self.at.host.as_ref().map(|copy| copy.page)
    }
}

impl PrefixCache {
    /// Records that `page` holds the node's KV state on the device, and logs the event. Copies nothing: the page has
    /// been computed, or the caller schedules a copy from host memory that fills it.
    pub(in crate::cache) fn enter_device(&mut self, id: NodeId, page: PageId) {
        let rank = self.device.rank(id, &self.tree[id].at.usage);
        self.tree[id].at.device = Some(TierPage {
            page,
            rank,
            queued: false,
        });
        self.counts.cached += 1;
        if let Some(parent) = self.tree[id].parent {
            self.tree[parent].at.device_children += 1;
        }
        self.moved(id);
        self.tell_stored(id, Tier::Device);
    }

    /// Records that the device no longer holds the node's KV state, logs the event, and returns the page, which the
    /// caller must make free. Returns `None` if the node has no page on the device.
    pub(in crate::cache) fn leave_device(&mut self, id: NodeId) -> Option<PageId> {
        let at = &mut self.tree[id].at;
        let copy = at.device.take()?;
        // The host's copy is now an ordinary page, not a replica.
        if at.replica
            && let Some(host) = &mut at.host
        {
            if std::mem::take(&mut host.queued) {
                self.replicas.dequeue(host.rank);
            }
            at.replica = false;
            host.rank = self.host.rank(id, &at.usage);
            self.counts.replicated -= 1;
        }
        if copy.queued {
            self.device.dequeue(copy.rank);
        }
        self.counts.cached -= 1;
        if let Some(parent) = self.tree[id].parent {
            self.tree[parent].at.device_children -= 1;
        }
        self.moved(id);
        self.tell_removed(id, Tier::Device);
        Some(copy.page)
    }

    /// Records that `page` holds the node's KV state in host memory, as a replica (a copy of a page that is still on
    /// the device) if `replica` is true, and logs the event. Copies nothing: the caller schedules the transfer that
    /// fills the page.
    pub(in crate::cache) fn enter_host(&mut self, id: NodeId, page: HostPageId, replica: bool) {
        let queue = if replica { &self.replicas } else { &self.host };
        let rank = queue.rank(id, &self.tree[id].at.usage);
        let at = &mut self.tree[id].at;
        at.replica = replica;
        at.host = Some(TierPage {
            page,
            rank,
            queued: false,
        });
        self.counts.host_cached += 1;
        self.counts.replicated += u32::from(replica);
        self.in_flight.written.push(page);
        if let Some(parent) = self.tree[id].parent {
            self.tree[parent].at.host_children += 1;
        }
        self.moved(id);
        self.tell_stored(id, Tier::Host);
    }

    /// Records that host memory no longer holds the node's KV state, logs the event, and makes the page free. Does
    /// nothing if the node has no page there.
    pub(in crate::cache) fn leave_host(&mut self, id: NodeId) {
        let at = &mut self.tree[id].at;
        let Some(copy) = at.host.take() else { return };
        let replica = std::mem::take(&mut at.replica);
        if copy.queued {
            let queue = if replica {
                &mut self.replicas
            } else {
                &mut self.host
            };
            queue.dequeue(copy.rank);
        }
        self.counts.host_cached -= 1;
        self.counts.replicated -= u32::from(replica);
        self.host_pool.give_back(copy.page);
        if let Some(parent) = self.tree[id].parent {
            self.tree[parent].at.host_children -= 1;
        }
        self.moved(id);
        self.tell_removed(id, Tier::Host);
    }

    /// Removes the node from the prefix tree if neither the device nor host memory has its page; its usage is recorded,
    /// and its documents are logged as removed.
    pub(in crate::cache) fn forget_if_gone(&mut self, id: NodeId) {
        let at = &self.tree[id].at;
        if at.device.is_some() || at.host.is_some() {
            return;
        }
        assert!(self.tree.is_leaf(id), "{id:?} goes before what follows it");
        self.disk_replicas.leave(&mut self.tree[id].at.disk_copy);
        if let Some(node) = self.tree.remove(id) {
            if let Some(hash) = node.hash {
                self.history.keep(hash, node.at.usage);
            }
            node.at.marks.tell_removed(&node.salt, &mut self.events);
        }
    }

    /// Adds the node's pages to the eviction queues, or removes them, as they are evictable or not now. Their ranks
    /// stay.
    pub(in crate::cache) fn refile(&mut self, id: NodeId) {
        self.enqueue(id, |_, _, rank| rank);
    }

    /// Records that a node's page was used now, and recomputes its rank for eviction. Call it for a sequence's last
    /// page first, so that no page counts as used later than the page before it.
    pub(in crate::cache) fn touch(&mut self, id: NodeId) {
        self.now += 1;
        self.tree[id].at.usage.last = self.now;
        self.enqueue(id, |queue, usage, _| queue.rank(id, usage));
    }

    /// Adds the node's pages to the eviction queues, or removes them, as they are evictable or not now. `rank` computes
    /// the new rank from the tier's queue, the node's usage and the present rank.
    fn enqueue(&mut self, id: NodeId, rank: impl Fn(&Queue, &Usage, Rank) -> Rank) {
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

    /// Returns the tiers that may evict the node's page: those that have it, that have no page of a child, and in which
    /// no lease and no scheduled copy uses it.
    pub(in crate::cache) fn evictable(&self, id: NodeId) -> Evictable {
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

    /// Updates the eviction queues for a node whose page entered or left a tier, and for its parent. Records both as
    /// changed in the tree.
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

/// The tiers that may evict a node's page, see [`PrefixCache::evictable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) struct Evictable {
    pub(in crate::cache) device: bool,
    pub(in crate::cache) host: bool,
}
