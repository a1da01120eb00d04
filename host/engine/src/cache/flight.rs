//! What has been decided and not yet carried out, and what is left when it fails.
//!
//! The cache only keeps books. Whoever drives it carries the [transfers](Transfer) out in order, before the copies and
//! loads that it was told of afterwards, then runs the step that those loads are in, and says how all that went
//! ([`PrefixCache::landed`]).

use super::PrefixCache;
use super::hash::PageHash;
use super::tree::NodeId;
use crate::backend::{HostPageId, Store};
use fxhash::FxHashSet;

/// Something to do with a host page, in the order in which it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Copy a page of the device that is about to be used otherwise.
    Store(Store),
    /// Hand a host page that is about to be used otherwise to [`DiskTier::write`](super::DiskTier::write).
    Save {
        /// The page.
        page: HostPageId,
        /// What it holds.
        hash: PageHash,
        /// What that follows: another page or a tenant's root.
        parent: PageHash,
    },
    /// Fill a host page with what was read from disk.
    Fill {
        /// The page.
        page: HostPageId,
        /// What it shall hold.
        bytes: Vec<u8>,
    },
}

/// What a failure would spoil.
#[derive(Default)]
pub(super) struct InFlight {
    /// Nodes whose host page is to be read, and whether that fills their page on the device.
    pub(super) loads: Vec<(NodeId, bool)>,
    /// Host pages that are to be written.
    pub(super) written: Vec<HostPageId>,
}

impl PrefixCache {
    /// What is to be done before anything that the cache was asked for since the last call is relied upon.
    pub fn take_transfers(&mut self) -> Vec<Transfer> {
        std::mem::take(&mut self.transfers)
    }

    /// Says that everything that was asked for has been carried out: transfers, copies, and the step with the loads.
    pub fn landed(&mut self) {
        self.in_flight.written.clear();
        for (node, onto_device) in std::mem::take(&mut self.in_flight.loads) {
            self.unpin(node, onto_device);
        }
    }

    /// Says that something of it failed: no page that was to be written is as it should be. All leases that were
    /// opened since [`PrefixCache::landed`] must have been given back.
    pub fn failed(&mut self) {
        self.transfers.clear();
        let loads = std::mem::take(&mut self.in_flight.loads);
        for (node, onto_device) in loads.into_iter().rev() {
            self.unpin(node, onto_device);
            if onto_device && let Some(page) = self.leave_device(node) {
                debug_assert_eq!(self.pool.holders(page), 0, "{page:?} is held and undefined");
                self.pool.give_back(page);
            }
        }
        self.spoil_written();
    }

    /// Says that the device has lost its memory: what is in host memory, and hangs together there, is all that is left.
    /// Every lease is void and must be dropped, not given back.
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

    /// Forgets the host pages that were to be written and may not have been. `O(nodes)`.
    fn spoil_written(&mut self) {
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

    /// Forgets a node that is nowhere any more, and with it what follows it: that is in host memory alone.
    pub(super) fn cut_off_if_gone(&mut self, id: NodeId) {
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
