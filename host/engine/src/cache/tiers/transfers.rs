//! Transfers and loads that are decided but not yet carried out, and what remains valid when they fail.
//!
//! The cache only does bookkeeping. Its driver carries out the [transfers](Transfer) in order, before the copies and
//! loads that it was given later. It then runs the step with those loads and reports success ([`PrefixCache::landed`])
//! or failure ([`PrefixCache::failed`]).

use crate::backend::{HostPageId, Store};
use crate::cache::PrefixCache;
use crate::cache::hash::PageHash;
use crate::cache::tree::NodeId;
use fxhash::FxHashSet;

/// A copy to or from a host page that the cache's caller has to carry out. Transfers are carried out in the order in
/// which they were scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Copy a device page to host memory. Later transfers and steps may overwrite the device page.
    Store(Store),
    /// Hand the bytes of a host page to [`DiskTier::write`](crate::cache::DiskTier::write). Later transfers may
    /// overwrite the host page.
    Save {
        /// The host page whose bytes are written to disk.
        page: HostPageId,
        /// Hash of the page's tokens and everything before them, by which the disk tier finds it.
        hash: PageHash,
        /// Hash of the page before this one in its sequence, or the tenant's root.
        parent: PageHash,
    },
    /// Fill a host page with bytes that were read from disk.
    Fill {
        /// The host page that the bytes are written to.
        page: HostPageId,
        /// The bytes that were read from disk.
        bytes: Vec<u8>,
    },
}

/// Scheduled copies whose outcome is not known yet. If one fails, what they were to write is undefined.
#[derive(Default)]
pub(in crate::cache) struct InFlight {
    /// Nodes whose host pages are to be copied to the device. The flag is true if the copy fills the node's own page
    /// there, false if it fills a private page of a lease.
    pub(in crate::cache) loads: Vec<(NodeId, bool)>,
    /// Host pages that scheduled transfers are to write.
    pub(in crate::cache) written: Vec<HostPageId>,
}

impl PrefixCache {
    /// Removes and returns the scheduled transfers. Carry them out, in order, before the copies, loads and pages that
    /// the cache has returned since the last call are used.
    pub fn take_transfers(&mut self) -> Vec<Transfer> {
        std::mem::take(&mut self.transfers)
    }

    /// Reports that everything scheduled has been carried out: transfers, copies, and the step with its loads.
    pub fn landed(&mut self) {
        self.disk_replicas.landed();
        self.in_flight.written.clear();
        for (node, onto_device) in std::mem::take(&mut self.in_flight.loads) {
            self.unpin(node, onto_device);
        }
    }

    /// Reports that a transfer, a copy or the step failed, so that every page that they were to write is undefined and
    /// leaves the cache. All leases opened since the last [`PrefixCache::landed`] must have been closed or abandoned.
    pub fn failed(&mut self) {
        self.transfers.clear();
        let loads = std::mem::take(&mut self.in_flight.loads);
        for (node, onto_device) in loads.into_iter().rev() {
            self.unpin(node, onto_device);
            if onto_device && let Some(page) = self.leave_device(node) {
                assert_eq!(self.pool.holders(page), 0, "{page:?} is held and undefined");
                self.pool.give_back(page);
            }
        }
        self.spoil_written();
    }

    /// Reports that the device has lost its memory. Pages in host memory remain cached if all pages before them are in
    /// host memory too. Every open lease becomes void: drop it, do not close it.
    pub fn lose_device(&mut self) {
        self.transfers.clear();
        for (node, onto_device) in std::mem::take(&mut self.in_flight.loads) {
            self.unpin(node, onto_device);
        }
        self.spoil_written();
        self.pool.reset();
        for id in self.tree.leaves_first() {
            if self.leave_device(id).is_some() {
                self.cut_off_if_gone(id);
            }
        }
    }

    /// Removes the host pages from the cache that scheduled transfers were to write, because they may not have been
    /// carried out. Costs `O(nodes)`.
    fn spoil_written(&mut self) {
        self.disk_replicas.spoil();
        let written = std::mem::take(&mut self.in_flight.written);
        let written: FxHashSet<HostPageId> = written.into_iter().collect();
        if written.is_empty() {
            return;
        }
        for id in self.tree.leaves_first() {
            let page = self.tree[id].host_page();
            if page.is_some_and(|page| written.contains(&page)) {
                self.leave_host(id);
                self.cut_off_if_gone(id);
            }
        }
    }

    /// If neither the device nor host memory has the node's page, removes the node and its descendants from the prefix
    /// tree. The descendants' pages, which only host memory has, are written to the disk tier if there is one.
    pub(in crate::cache) fn cut_off_if_gone(&mut self, id: NodeId) {
        let at = &self.tree[id].at;
        if at.device.is_some() || at.host.is_some() {
            return;
        }
        let mut cut = vec![id];
        let mut next = 0;
        while let Some(&node) = cut.get(next) {
            cut.extend(self.tree.children(node));
            next += 1;
        }
        for node in cut.into_iter().rev() {
            self.save(node);
            self.leave_host(node);
            self.forget_if_gone(node);
        }
    }

    fn unpin(&mut self, node: NodeId, onto_device: bool) {
        let at = &mut self.tree[node].at;
        at.pins -= 1;
        at.loading &= !onto_device;
        self.refile(node);
    }
}
