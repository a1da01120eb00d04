//! Checks of the prefix cache's invariants.

use super::PrefixCache;
use super::lease::Lease;
use super::tiers::pool::Pool;
use super::tiers::queue::{Queue, Rank};
use super::tiers::residence::{self, Node};
use super::tree::NodeId;
use crate::backend::PageId;
use std::collections::{HashMap, HashSet};

impl PrefixCache {
    /// Asserts every invariant of the cache; `leases` must be all open leases. Costs `O(pages · page_tokens)`.
    ///
    /// # Panics
    /// Panics when an invariant does not hold.
    pub fn check<'a>(&self, leases: impl IntoIterator<Item = &'a Lease>) {
        self.pool.check();
        self.tree.check();
        self.check_holders(leases.into_iter());
        self.check_pages();
        for (id, node) in self.tree.nodes() {
            self.check_node(id, node);
        }
        self.check_queues();
        self.check_disk_replicas();
    }

    /// Asserts that the number of holders of each page is the number of leases (of running sequences) that have the
    /// page in their page table.
    fn check_holders<'a>(&self, leases: impl Iterator<Item = &'a Lease>) {
        let mut holders = vec![0; self.pool.pages() as usize];
        let on_device = self.pages_of_nodes();
        for lease in leases {
            assert!(lease.nodes.len() <= lease.pages.len());
            let mut parent = None;
            for (&node, &page) in lease.nodes.iter().zip(&lease.pages) {
                assert_eq!(
                    on_device.get(&page),
                    Some(&node),
                    "{page:?} is not {node:?}'s"
                );
                assert_eq!(self.tree[node].parent, parent, "{node:?} is out of place");
                assert!(
                    self.tree[node].hash.is_some(),
                    "{node:?} is shared and partial"
                );
                parent = Some(node);
            }
            for &page in &lease.pages {
                holders[page.0 as usize] += 1;
            }
            for page in &lease.pages[lease.nodes.len()..] {
                assert!(
                    !on_device.contains_key(page),
                    "private {page:?} is in the tree"
                );
                assert_eq!(self.pool.holders(*page), 1, "private {page:?} is shared");
            }
        }
        for page in (0..self.pool.pages()).map(PageId) {
            let held = holders[page.0 as usize];
            assert_eq!(self.pool.holders(page), held, "holders of {page:?}");
        }
    }

    /// Asserts that every page of the pools is accounted for exactly once: it is free, belongs to a node of the prefix
    /// tree, is private to a lease, or is reserved.
    fn check_pages(&self) {
        let on_device = self.pages_of_nodes();
        for page in self.pool.free() {
            assert!(
                !on_device.contains_key(page),
                "free {page:?} is in the tree"
            );
        }
        let idle = on_device.keys();
        let idle = idle.filter(|page| self.pool.holders(**page) == 0).count();
        let accounted = self.pool.free().len() + idle + self.pool.in_use() as usize;
        assert_eq!(accounted, self.pool.pages() as usize, "pages are lost");
        let hosts = self.tree.nodes().filter_map(|(_, node)| node.host_page());
        let in_host: HashSet<_> = hosts.collect();
        let count = self.counts.host_cached as usize;
        assert_eq!(in_host.len(), count, "a host page is two nodes'");
        for page in self.host_pool.free() {
            assert!(!in_host.contains(page), "free {page:?} is in the tree");
        }
        let free: HashSet<_> = self.host_pool.free().iter().collect();
        assert_eq!(
            free.len(),
            self.host_pool.free().len(),
            "a host page is free twice"
        );
        let accounted = free.len() + in_host.len() + self.disk_replicas.reserved();
        assert_eq!(
            accounted,
            self.host_pool.pages() as usize,
            "host pages are lost"
        );
    }

    fn pages_of_nodes(&self) -> HashMap<PageId, NodeId> {
        let nodes = self.tree.nodes();
        let pages: Vec<_> = nodes
            .filter_map(|(id, node)| Some((node.device_page()?, id)))
            .collect();
        let count = pages.len();
        let pages: HashMap<_, _> = pages.into_iter().collect();
        assert_eq!(pages.len(), count, "a page is two nodes'");
        pages
    }

    fn check_node(&self, id: NodeId, node: &Node) {
        let at = &node.at;
        let (device, host) = (at.device.is_some(), at.host.is_some());
        assert!(device || host, "{id:?} is nowhere");
        assert!(
            device || node.hash.is_some(),
            "partial {id:?} is in host memory"
        );
        if let Some(parent) = node.parent {
            let above = &self.tree[parent].at;
            assert!(
                !device || above.device.is_some(),
                "{id:?} is above its parent's tier"
            );
        }
        let children = |wanted: &dyn Fn(&residence::Residence) -> bool| {
            let children = self.tree.children(id);
            children
                .filter(|&child| wanted(&self.tree[child].at))
                .count() as u32
        };
        assert_eq!(
            at.device_children,
            children(&|at| at.device.is_some()),
            "{id:?}"
        );
        assert_eq!(
            at.host_children,
            children(&|at| at.host.is_some()),
            "{id:?}"
        );
        let loads = self.in_flight.loads.iter().filter(|(node, _)| *node == id);
        assert_eq!(at.pins as usize, loads.clone().count(), "pins of {id:?}");
        assert_eq!(
            at.loading,
            loads.clone().any(|load| load.1),
            "{id:?} is loading or not"
        );
        assert!(
            !at.loading || (device && host),
            "{id:?} is loaded from nowhere"
        );
        assert!(
            !at.replica || (device && host),
            "{id:?} is a replica of nothing"
        );
        if let Some(copy) = &at.device
            && let Some(parent) = node.parent.filter(|_| self.pool.holders(copy.page) == 0)
            && let Some(above) = self.tree[parent].device_page()
            && self.pool.holders(above) == 0
        {
            let (used, parent_used) = (at.usage.last, self.tree[parent].at.usage.last);
            assert!(
                used <= parent_used,
                "{id:?} was used after {parent:?}, which it follows"
            );
        }
    }

    /// Asserts that the eviction queues contain exactly the evictable pages, and that the counters of pages are right.
    fn check_queues(&self) {
        let filed = |wanted: &dyn Fn(NodeId, &Node) -> Option<Rank>| {
            let nodes = self.tree.nodes();
            let mut ranks: Vec<Rank> = nodes.filter_map(|(id, node)| wanted(id, node)).collect();
            ranks.sort();
            ranks
        };
        let same = |queue: &Queue, ranks: Vec<Rank>, name: &str| {
            assert!(queue.ranks().eq(ranks), "{name} pages are misfiled");
        };
        let evictable = |id| self.evictable(id);
        let of_device = |id, node: &Node| {
            let copy = node.at.device.as_ref()?;
            assert_eq!(copy.queued, evictable(id).device);
            copy.queued.then_some(copy.rank)
        };
        let of_host = |id, node: &Node, replica: bool| {
            let copy = node
                .at
                .host
                .as_ref()
                .filter(|_| node.at.replica == replica)?;
            assert_eq!(copy.queued, evictable(id).host);
            copy.queued.then_some(copy.rank)
        };
        same(&self.device, filed(&of_device), "device");
        same(
            &self.host,
            filed(&|id, node| of_host(id, node, false)),
            "host",
        );
        same(
            &self.replicas,
            filed(&|id, node| of_host(id, node, true)),
            "replicated",
        );
        let count = |wanted: &dyn Fn(&Node) -> bool| {
            self.tree.nodes().filter(|(_, node)| wanted(node)).count() as u32
        };
        assert_eq!(self.counts.cached, count(&|node| node.at.device.is_some()));
        assert_eq!(
            self.counts.host_cached,
            count(&|node| node.at.host.is_some())
        );
        assert_eq!(self.counts.replicated, count(&|node| node.at.replica));
        assert!(self.counts.replicated <= self.max_replicas);
    }
}

impl Pool {
    /// Asserts that the counts of holders agree with the list of free pages.
    pub(in crate::cache) fn check(&self) {
        let pages = (0..self.pages()).map(PageId);
        let held = pages.filter(|&page| self.holders(page) > 0).count();
        assert_eq!(held as u32, self.in_use(), "pages in use are miscounted");
        let mut free = vec![false; self.pages() as usize];
        for page in self.free() {
            assert!(
                !std::mem::replace(&mut free[page.0 as usize], true),
                "page {} is free twice",
                page.0
            );
            assert_eq!(self.holders(*page), 0, "page {} is free and held", page.0);
        }
    }
}
