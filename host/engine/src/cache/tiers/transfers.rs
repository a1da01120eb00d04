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

/// A data movement to or from a host page. Transfers are carried out in the order in which they were requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Copy a device page to host memory before the device page is used for something else.
    Store(Store),
    /// Hand a host page to [`DiskTier::write`](crate::cache::DiskTier::write) before the host page is used for
    /// something else.
    Save {
        /// The host page to read.
        page: HostPageId,
        /// Hash of the page's content.
        hash: PageHash,
        /// Hash of the page before it, or the tenant's root.
        parent: PageHash,
    },
    /// Fill a host page with bytes that were read from disk.
    Fill {
        /// The host page to write.
        page: HostPageId,
        /// The bytes that the page will hold.
        bytes: Vec<u8>,
    },
}

/// Everything that a failed step or transfer invalidates.
#[derive(Default)]
pub(in crate::cache) struct InFlight {
    /// Nodes whose host page is to be read, each with true if the load fills the node's page on the device.
    pub(in crate::cache) loads: Vec<(NodeId, bool)>,
    /// Host pages that are to be written.
    pub(in crate::cache) written: Vec<HostPageId>,
}

impl PrefixCache {
    /// Returns and removes the pending transfers. Carry them out, in order, before the copies, loads and pages that the
    /// cache has returned since the last call are used.
    pub fn take_transfers(&mut self) -> Vec<Transfer> {
        std::mem::take(&mut self.transfers)
    }

    /// Reports that everything requested has been carried out: transfers, copies, and the step with its loads.
    pub fn landed(&mut self) {
        self.disk_replicas.landed();
        self.in_flight.written.clear();
        for (node, onto_device) in std::mem::take(&mut self.in_flight.loads) {
            self.unpin(node, onto_device);
        }
    }

    /// Reports that a transfer, a copy or the step failed, so that every page that was to be written is undefined. All
    /// leases opened since the last [`PrefixCache::landed`] must have been closed or abandoned.
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

    /// Reports that the device has lost its memory. Only pages in host memory remain whose predecessors are all in host
    /// memory too. Every lease is void: drop it, do not close it.
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

    /// Removes the host pages whose writes may not have been carried out. Costs `O(nodes)`.
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

    /// If neither the device nor host memory has the node's page, removes the node and its descendants, whose pages
    /// only host memory has; these are saved to disk if there is one.
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
