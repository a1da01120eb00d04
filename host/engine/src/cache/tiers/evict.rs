//! Eviction: how the cache makes room, and where evicted pages move.
//!
//! A page is copied to host memory when it is evicted from the device for the first time (*swap out only once*,
//! RAGCache §5.1). The copy stays when the page is loaded again, so the next eviction costs nothing. A page evicted
//! from host memory goes to disk unless the device still has it. Partial pages are dropped, because no other sequence
//! can find them by hash.
//!
//! Replicas are copies in host memory that are made before eviction: of the most used pages, from the top of the tree
//! down, within a share of the host's pages. When the device loses its memory, a page in host memory survives only if
//! all pages before it are there too, for instance as replicas (RAGCache §6).

use super::transfers::Transfer;
use crate::backend::{HostPageId, PageId, Store};
use crate::cache::PrefixCache;
use crate::cache::tree::NodeId;

/// Number of uses of a page from which on it may get a replica in host memory, a copy while it is still on the device.
const USED_OFTEN: u32 = 2;

impl PrefixCache {
    /// Takes a page of the device's pool for one holder, evicting another page if none is free. Returns `None` if none
    /// is free or evictable.
    pub(in crate::cache) fn take(&mut self) -> Option<PageId> {
        if self.pool.free().is_empty() {
            let mut victim = self.device.victim()?;
            loop {
                let before = self.same_document(victim);
                self.evict_from_device(victim);
                match before.filter(|&before| self.evictable(before).device) {
                    Some(before) => victim = before,
                    None => break,
                }
            }
        }
        self.pool.take()
    }

    /// Takes `count` pages of the device's pool, evicting others as needed. Returns `None`, and takes none, if too few
    /// are free or evictable; pages may have been evicted nevertheless.
    pub(in crate::cache) fn take_all(&mut self, count: u32) -> Option<Vec<PageId>> {
        let mut taken = Vec::with_capacity(count as usize);
        while taken.len() < count as usize {
            let Some(page) = self.take() else {
                taken.into_iter().for_each(|page| self.give_back(page));
                return None;
            };
            taken.push(page);
        }
        Some(taken)
    }

    /// Releases a device page that a lease or caller holds and that belongs to no node of the prefix tree. Without
    /// other holders it becomes free.
    pub(in crate::cache) fn give_back(&mut self, page: PageId) {
        if self.pool.release(page) {
            self.pool.give_back(page);
        }
    }

    fn evict_from_device(&mut self, id: NodeId) {
        let node = &self.tree[id];
        let page = node.device_page();
        if node.hash.is_some() && node.at.host.is_none() {
            self.copy_to_host(id, false);
        }
        self.counts.evicted += 1;
        self.leave_device(id);
        self.cut_off_if_gone(id);
        page.into_iter().for_each(|page| self.pool.give_back(page));
    }

    /// Schedules a copy of the node's device page to host memory, as a replica (while the page stays on the device) if
    /// `replica` is true. Returns `false` if host memory has no page that is free or evictable.
    fn copy_to_host(&mut self, id: NodeId, replica: bool) -> bool {
        let Some(from) = self.tree[id].device_page() else {
            return false;
        };
        let Some(to) = self.take_host() else {
            return false;
        };
        self.transfers.push(Transfer::Store(Store { from, to }));
        self.enter_host(id, to, replica);
        true
    }

    /// Takes a page of host memory, evicting another if none is free. Returns `None` if none is free or evictable.
    pub(in crate::cache) fn take_host(&mut self) -> Option<HostPageId> {
        if self.host_pool.free().is_empty() {
            let mut victim = self.host.victim()?;
            loop {
                let before = self.same_document(victim);
                self.counts.host_evicted += 1;
                self.evict_from_host(victim);
                // A replica is kept as long as the device has the page.
                match before
                    .filter(|&before| self.evictable(before).host && !self.tree[before].at.replica)
                {
                    Some(before) => victim = before,
                    None => break,
                }
            }
        }
        self.host_pool.take()
    }

    /// Returns the node of the page before this one, if both pages begin within the same document and the policy evicts
    /// whole documents. Otherwise returns `None`.
    fn same_document(&self, id: NodeId) -> Option<NodeId> {
        let node = &self.tree[id];
        node.parent
            .filter(|_| self.evicts_documents && node.at.continues)
    }

    fn evict_from_host(&mut self, id: NodeId) {
        self.save(id);
        self.leave_host(id);
        self.forget_if_gone(id);
    }

    /// Schedules a write of the node's host page to disk, if the page is full, not on the device, and there is a disk
    /// tier.
    pub(in crate::cache) fn save(&mut self, id: NodeId) {
        let node = &self.tree[id];
        if let (Some(page), Some(hash), None, Some(_)) =
            (node.host_page(), node.hash, node.device_page(), &self.disk)
        {
            let parent = self.tree.hash_before(&node.salt, node.parent);
            self.transfers.push(Transfer::Save { page, hash, parent });
        }
    }

    /// If the node's page is among the most used ones on the device, and the page before it is in host memory,
    /// schedules a copy of it to host memory: a replica, which survives the loss of the device. May drop a replica that
    /// is used at most half as often.
    pub(in crate::cache) fn replicate(&mut self, id: NodeId) {
        let node = &self.tree[id];
        let rooted = node
            .parent
            .is_none_or(|parent| self.tree[parent].at.host.is_some());
        let frequency = node.at.usage.frequency;
        let wanted = rooted
            && frequency >= USED_OFTEN
            && node.hash.is_some()
            && node.at.device.is_some()
            && node.at.host.is_none();
        if !wanted || self.max_replicas == 0 {
            return;
        }
        if self.counts.replicated >= self.max_replicas {
            // At least twice as often, so that two pages that are used alike do not replace each other in alternation.
            let least = self.replicas.first();
            let Some(least) = least.filter(|&least| {
                Some(least) != node.parent && self.tree[least].at.usage.frequency <= frequency / 2
            }) else {
                return;
            };
            self.leave_host(least);
        }
        self.copy_to_host(id, true);
    }
}
