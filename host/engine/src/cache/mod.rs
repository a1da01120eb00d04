//! The prefix cache: which pages hold the KV state of which prefix, and in which tier.
//!
//! This module owns page numbers, the tokens whose KV state pages hold, the leases on pages, and eviction. It knows no
//! arithmetic, no request and no time. It only does bookkeeping: data movements are returned as [`Transfer`]s and
//! loads, for the caller to carry out.
//!
//! A running sequence has a [`Lease`]: its page table, and the right to write the pages that only it holds.
//!
//! ```text
//!   lease.pages   [ 7 ][ 2 ][ 9 ][ 4 ][ 5 ]
//!                 └─shared──┘    │
//!                 nodes of the   └─ private: being written, invisible to others
//!                 tree, read-only
//! ```
//!
//! * [`PrefixCache::open`] finds the longest cached prefix, holds its full pages and takes private ones for the rest. A
//!   match that ends inside a page is copied into the first private page (copy-on-write).
//! * [`PrefixCache::commit`] turns private pages into nodes of the tree as soon as they are full *and computed*, so
//!   that concurrent sequences share them. Two sequences that computed the same page end up sharing one.
//! * [`PrefixCache::close`] also keeps the last, partly filled page, and releases all others.
//!
//! Pages that no lease holds are *idle*: they are kept while there is room. There are three tiers (RAGCache §5.1):
//!
//! ```text
//!   device   computes on its pages; full ──▶ evicts the lowest-ranked leaf to host memory, if it is not there already
//!   host     loaded by the step that needs the page; full ──▶ evicts the lowest-ranked leaf to disk, if there is one
//!   disk     read back by fetch, ahead of the step; pages are found by hash, there is no tree
//! ```
//!
//! The pages on the device form a connected tree from the root, and those in host memory hang from it. So every prefix
//! of a cached sequence is cached, in a tier at least as near. [`EvictionPolicy`] ranks pages.
//!
//! Memory is bounded by the pools: every node has a page, and a salt is stored only while it has pages.

mod boundaries;
#[cfg(any(test, feature = "invariants"))]
#[path = "tests/check.rs"]
mod check;
mod config;
pub mod disk;
mod disk_tier;
mod documents;
mod events;
mod hash;
mod lease;
mod lookup;
mod open;
#[cfg(test)]
mod tests;
mod tiers;
mod tree;

pub use config::{CacheConfig, Cost, DiskReplicaBounds, Pages};
pub use disk_tier::{DiskCounts, DiskTier};
pub use documents::{Document, DocumentPath, DocumentPathError, DocumentSpan};
pub use events::{CacheEvent, Tier};
pub use hash::PageHash;
pub use lease::{CacheUse, Lease, Match, Opening, SlotCopy};
pub use lookup::CachedLookup;
pub use tiers::fetch::Fetch;
pub use tiers::policy::EvictionPolicy;
pub use tiers::transfers::Transfer;

use crate::TokenId;
use events::EventLog;
use std::sync::Arc;
use tiers::disk_replicas::DiskReplicas;
use tiers::fetch::Fetching;
use tiers::history::History;
use tiers::pool::{HostPool, Pool};
use tiers::queue::Queue;
use tiers::residence::{Node, Residence};
use tiers::transfers::InFlight;
use tree::{Insertion, NodeId, Tree};

/// A cache of the KV state of prefixes, in pages on the device, in host memory and on disk. It does the bookkeeping for
/// a backend's pools of pages; the caller moves the data.
pub struct PrefixCache {
    page_tokens: u32,
    pool: Pool,
    host_pool: HostPool,
    tree: Tree<Residence>,
    /// Eviction order of the device's pages: those that no lease (running sequence) holds and that no page on the
    /// device follows.
    device: Queue,
    /// Eviction order of the pages in host memory that no page in host memory follows, except replicas (copies of pages
    /// that are still on the device).
    host: Queue,
    /// Pages in host memory that are replicas (copies of pages that are still on the device), the least frequently used
    /// first.
    replicas: Queue,
    max_replicas: u32,
    /// True if all pages of a document are evicted together, as [`EvictionPolicy::PgdsfPaper`] does.
    evicts_documents: bool,
    /// Number of a prompt's leading documents whose pages stay in the cache, see [`CacheConfig::max_documents`].
    max_documents: Option<u32>,
    history: History,
    cost: Option<Arc<Cost>>,
    disk: Option<Arc<dyn DiskTier>>,
    fetching: Fetching,
    disk_replicas: DiskReplicas,
    transfers: Vec<Transfer>,
    in_flight: InFlight,
    events: EventLog,
    /// Counts uses of pages, in place of a clock. Of two pages that no lease holds, of which one follows the other, the
    /// later one in the sequence was never used more recently.
    now: u64,
    /// The counters and gauges that the cache keeps itself. Those that its parts keep are 0 here.
    counts: CacheStats,
}

/// Gauges and counters of one cache since it was created, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Number of pages in the device's pool.
    pub pages: u32,
    /// Device pages that leases hold now, those of running sequences and of computed speculative prefills; a shared page
    /// counts once.
    pub in_use: u32,
    /// Device pages that hold cached prefixes now, whether or not a lease holds them.
    pub cached: u32,
    /// Pages evicted from the device so far.
    pub evicted: u64,
    /// Number of pages in the host's pool.
    pub host_pages: u32,
    /// Pages in host memory that hold cached prefixes now.
    pub host_cached: u32,
    /// Pages in host memory now that are replicas: copies of pages on the device, kept in case it loses its memory.
    pub replicated: u32,
    /// Pages evicted from host memory so far.
    pub host_evicted: u64,
    /// Pages in device or host memory now that also have a copy on disk, so that a restarted process finds them.
    pub disk_replicas: u32,
    /// Copies to disk of pages that are still in memory, scheduled so far, in pages.
    pub disk_replicated: u64,
    /// Pages read back from disk into host memory so far.
    pub fetched: u64,
    /// Counters of the disk tier; all 0 if there is no disk tier.
    pub disk: DiskCounts,
}

impl PrefixCache {
    /// Returns an empty cache for pools of the sizes `pages`.
    pub fn new(pages: Pages, config: &CacheConfig) -> Self {
        let page_tokens = pages.tokens.max(1);
        let share = config.replicated_share.clamp(0.0, 1.0);
        let remembered = (config.policy).remembered(pages.device as usize + pages.host as usize);
        let mut host_pool = HostPool::new(pages.host);
        let bounds = (config.disk.as_ref()).map_or_else(Default::default, |_| config.disk_replicas);
        let mut disk_replicas = DiskReplicas::new(bounds);
        if bounds.pages > 0 {
            let passages = 0..DiskReplicas::passages_of(pages.host);
            disk_replicas.reserve(passages.filter_map(|_| host_pool.take()));
        }
        Self {
            page_tokens,
            pool: Pool::new(pages.device),
            host_pool,
            tree: Tree::new(page_tokens, config.identity),
            device: Queue::new(config.policy),
            host: Queue::new(config.policy),
            replicas: Queue::new(EvictionPolicy::Lfu),
            max_replicas: (f64::from(pages.host) * share) as u32,
            evicts_documents: config.policy.evicts_documents(),
            max_documents: config.max_documents,
            history: History::new(remembered),
            cost: config.cost.clone(),
            disk: config.disk.clone(),
            fetching: Fetching::default(),
            disk_replicas,
            transfers: Vec::new(),
            in_flight: InFlight::default(),
            events: EventLog::default(),
            now: 0,
            counts: CacheStats::default(),
        }
    }

    /// Empties the cache and gives it pools of the sizes `pages`. Every open lease becomes void: drop it, do not close
    /// it. Events that were not taken yet stay, followed by [`CacheEvent::Cleared`].
    pub fn start_over(&mut self, pages: Pages, config: &CacheConfig) {
        let mut events = std::mem::take(&mut self.events);
        events.push(CacheEvent::Cleared);
        *self = Self {
            events,
            ..Self::new(pages, config)
        };
    }

    /// Removes and returns the events since the last call, oldest first, see [`CacheEvent::Gap`].
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        self.events.take()
    }

    /// Returns the number of device pages that are free or could be evicted: all that no lease holds.
    pub fn available(&self) -> u32 {
        self.pool.pages() - self.pool.in_use()
    }

    /// Returns the current gauges and counters.
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            pages: self.pool.pages(),
            in_use: self.pool.in_use(),
            host_pages: self.host_pool.pages(),
            disk_replicas: self.disk_replicas.kept(),
            disk_replicated: self.disk_replicas.written(),
            disk: self
                .disk
                .as_ref()
                .map(|disk| disk.counts())
                .unwrap_or_default(),
            ..self.counts
        }
    }

    /// Adds a page to the end of the lease's page table, evicting another if none is free. Returns `false` if leases
    /// hold all pages.
    pub fn grow(&mut self, lease: &mut Lease) -> bool {
        let page = self.take();
        lease.pages.extend(page);
        page.is_some()
    }

    /// Reports that the first `computed` of the sequence's `tokens` have been computed, and that all data movements
    /// before that have been carried out ([`PrefixCache::landed`]). Pages that those tokens fill become visible to
    /// other sequences, except beyond the tokens that the lease may keep. Where another sequence committed the same
    /// page first, the lease gets that page instead of its own.
    pub fn commit(&mut self, lease: &mut Lease, tokens: &[TokenId], computed: u32) {
        let computed = &tokens[..computed.min(lease.kept_tokens) as usize];
        let full = computed.chunks_exact(self.page_tokens as usize);
        if full.len() <= lease.nodes.len() {
            return;
        }
        for tokens in full.skip(lease.nodes.len()) {
            let index = lease.nodes.len();
            let own = lease.pages[index];
            let parent = lease.nodes.last().copied();
            let node = match self.tree.insert(&lease.salt, parent, tokens) {
                Insertion::Inserted { node, superseded } => {
                    self.drop_superseded(superseded);
                    self.recall(node);
                    self.enter_device(node, own);
                    node
                }
                Insertion::Covered(node) => {
                    match self.tree[node].device_page() {
                        Some(existing) => {
                            self.pool.hold(existing);
                            self.give_back(own);
                            lease.pages[index] = existing;
                        }
                        None => self.enter_device(node, own),
                    }
                    node
                }
            };
            self.computed(node, lease);
            lease.nodes.push(node);
        }
        self.mark(lease);
    }

    /// Ends the lease of the sequence `tokens`. The KV state of its first `computed` tokens stays cached for other
    /// sequences, except beyond the tokens that the lease may keep.
    pub fn close(&mut self, mut lease: Lease, tokens: &[TokenId], computed: u32) {
        self.commit(&mut lease, tokens, computed);
        let shared = lease.nodes.len();
        let before = shared * self.page_tokens as usize;
        let end = computed.min(lease.kept_tokens) as usize;
        let tail = tokens.get(before..end).unwrap_or_default();
        if !tail.is_empty() {
            let parent = lease.nodes.last().copied();
            match self.tree.insert(&lease.salt, parent, tail) {
                Insertion::Inserted { node, superseded } => {
                    self.drop_superseded(superseded);
                    let own = lease.pages.swap_remove(shared);
                    self.enter_device(node, own);
                    self.computed(node, &lease);
                    self.unkeep(node);
                }
                // The page is returned to the pool below.
                Insertion::Covered(existing) => self.touch(existing),
            }
        }
        self.abandon(lease);
    }

    /// Ends a lease without keeping the pages that are private to it. Pages that it committed before stay cached.
    pub fn abandon(&mut self, lease: Lease) {
        for (&node, &page) in lease.nodes.iter().zip(&lease.pages).rev() {
            self.pool.release(page);
            self.touch(node);
        }
        for page in lease.pages.into_iter().skip(lease.nodes.len()) {
            self.give_back(page);
        }
    }

    /// Ends a lease whose pages may have wrong content, including those that it committed. From the last page to the
    /// first, they leave the cache and the disk, until one that another lease holds or that other cached pages follow.
    pub fn forget(&mut self, lease: Lease) {
        let nodes = lease.nodes.clone();
        self.abandon(lease);
        for node in nodes.into_iter().rev() {
            let at = &self.tree[node].at;
            let held = |page| self.pool.holders(page) > 0;
            let is_held = self.tree[node].device_page().is_some_and(held);
            if is_held || at.pins > 0 || !self.tree.is_leaf(node) {
                break;
            }
            if let (Some(disk), Some(hash)) = (&self.disk, self.tree[node].hash) {
                disk.remove(hash);
            }
            self.distrust_disk_replica(node);
            self.drop_leaf(node);
        }
    }

    /// Evicts every prefix that no lease holds, from the device, host memory and disk. Returns the number of device
    /// pages freed.
    pub fn clear(&mut self) -> u32 {
        let before = self.counts.cached;
        let told = std::mem::take(&mut self.events);
        for id in self.tree.leaves_first() {
            let evictable = self.evictable(id);
            if evictable.host {
                self.leave_host(id);
            }
            let at = &self.tree[id].at;
            let page = (evictable.device && at.host_children == 0 && at.pins == 0)
                .then(|| self.leave_device(id))
                .flatten();
            page.into_iter().for_each(|page| self.pool.give_back(page));
            self.forget_if_gone(id);
        }
        if let Some(disk) = &self.disk {
            disk.clear();
        }
        self.fetching.clear();
        self.forget_disk_replicas();
        self.history.clear();
        let removals = std::mem::replace(&mut self.events, told);
        if self.counts.cached == 0 && self.counts.host_cached == 0 {
            self.events.push(CacheEvent::Cleared);
        } else {
            self.events.append(removals);
        }
        before - self.counts.cached
    }

    /// Returns the number of pages that the KV state of `tokens` tokens takes.
    fn pages_for(&self, tokens: usize) -> u32 {
        (tokens as u32).div_ceil(self.page_tokens)
    }

    /// Records that the page of `node` was computed for the sequence of `lease`. If the page begins within the same
    /// document as the page before it, it takes over that page's count of uses: both were needed equally often, and
    /// only the document's end was evicted.
    fn computed(&mut self, node: NodeId, lease: &Lease) {
        let index = lease.nodes.len() as u32;
        let route = lease.route.as_ref();
        let continued = route.is_some_and(|route| route.continues(index));
        let before = lease.nodes.last().filter(|_| continued);
        let before = before.map_or(0, |&parent| self.tree[parent].at.usage.frequency);
        self.tree[node].at.continues = continued;
        let usage = &mut self.tree[node].at.usage;
        usage.miss(lease.seconds_per_token);
        usage.frequency = usage.frequency.max(before);
        self.touch(node);
    }

    /// Restores the usage that was recorded when the page of this new node last left the cache, if it is still
    /// recorded.
    fn recall(&mut self, node: NodeId) {
        if let Some(hash) = self.tree[node].hash {
            self.tree[node].at.usage = self.history.take(hash);
        }
    }

    /// Records, on the pages of the lease, the documents that end there, as far as its full pages have reached them,
    /// and logs these documents as cached.
    fn mark(&mut self, lease: &mut Lease) {
        let Some(route) = &mut lease.route else {
            return;
        };
        while let Some((index, document)) = route.pass(lease.nodes.len() as u32) {
            let marks = &mut self.tree[lease.nodes[index]].at.marks;
            marks.add(document, &lease.salt, &mut self.events);
        }
    }

    /// Releases the device page of a node with a partly filled page that has left the prefix tree, because a longer
    /// page took its place. Does nothing for `None`.
    fn drop_superseded(&mut self, superseded: Option<Box<Node>>) {
        let Some(node) = superseded else { return };
        let Some(copy) = node.at.device else { return };
        if copy.queued {
            self.device.dequeue(copy.rank);
        }
        self.counts.cached -= 1;
        self.pool.give_back(copy.page);
        if let Some(parent) = node.parent {
            self.tree[parent].at.device_children -= 1;
            self.refile(parent);
        }
    }

    /// Removes a node from all tiers and from the prefix tree. The node must have no children, and no lease may hold
    /// it.
    fn drop_leaf(&mut self, id: NodeId) {
        self.leave_host(id);
        let page = self.leave_device(id);
        page.into_iter().for_each(|page| self.pool.give_back(page));
        self.forget_if_gone(id);
    }
}
