//! Replicas on disk: copies of the most used pages, written while the engine runs, so that a restarted process finds
//! them even if the last one was killed (RAGCache §6).
//!
//! RAGCache keeps its replicas in host memory, which outlives a GPU failure. But after an error that CUDA calls sticky
//! the process must be restarted: its memory is lost, and only a file remains.
//!
//! ```text
//!   a request uses a page a second time ─▶ due: the most used first, upper levels first
//!      in host memory too ────────────────────────────────────────▶ saved in this step ─▶ kept
//!      on the device alone ─▶ copied to a passage in this step ───▶ saved in the next ──▶ kept
//! ```
//!
//! A *passage* is a host page reserved for such copies. The caller says how many pages a call may write, which bounds
//! the rate. A page is written only when the page before it is on disk, because a page without its predecessors is
//! never found. The number of pages kept is bounded: when the bound is reached, a page replaces the least used one of a
//! lower level (levels are powers of two of uses). A page that is no longer kept stays in the file until others need
//! its slot.

use super::transfers::Transfer;
use crate::backend::{HostPageId, Store};
use crate::cache::hash::PageHash;
use crate::cache::tree::NodeId;
use crate::cache::{DiskReplicaBounds, PrefixCache};
use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

#[cfg(any(test, feature = "invariants"))]
#[path = "../tests/check_disk_replicas.rs"]
mod check;

/// Number of uses of a page from which on it is copied to disk.
const USED_OFTEN: u32 = 2;

/// Number of pages that wait to be written from which on replication pauses, so that evicted pages are written first.
const MAX_BACKLOG: usize = 4;

/// Maximum number of host pages that one cache reserves for copying device pages to disk.
const MAX_PASSAGES: u32 = 8;

/// Bookkeeping of replicas on disk: which pages in device or host memory have a copy there, or are to get one.
#[derive(Default)]
pub(in crate::cache) struct DiskReplicas {
    bounds: DiskReplicaBounds,
    /// Pages that are to be written to disk; the last one is written first.
    due: BTreeSet<Standing>,
    /// Pages in memory that have a copy on disk, or whose write is scheduled. The first one is dropped from this set to
    /// make room.
    kept: BTreeSet<Standing>,
    /// Reserved host pages, through which device pages are copied to disk, that are free now.
    passages: Vec<HostPageId>,
    /// Device pages that earlier steps copied to reserved host pages, and that are to be written to disk from there;
    /// each after the page that it follows.
    copied: VecDeque<Copied>,
    /// Pages whose writes to disk are scheduled for the next step.
    saving: Vec<PageHash>,
    /// Counter that numbers pages in the order in which they became due to be written.
    number: u64,
    written: u64,
}

/// A page's rank for being copied to disk: pages rank by level, the base-2 logarithm of their uses rounded down; of one
/// level, the page that became due first ranks higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Standing {
    level: u32,
    number: Reverse<u64>,
    node: NodeId,
}

/// A device page that was copied to the reserved host page `passage`, from where it is to be written to disk.
struct Copied {
    passage: HostPageId,
    hash: PageHash,
    parent: PageHash,
}

/// The state of a page's copy on disk, for a page in memory: none, due to be written, or written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cache) struct DiskCopy(State);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    None,
    Due(Standing),
    Kept(Standing),
}

impl DiskReplicas {
    /// Returns the bookkeeping for a cache of whose pages in memory none has a copy on disk yet, with the bounds to
    /// keep.
    pub(in crate::cache) fn new(bounds: DiskReplicaBounds) -> Self {
        Self {
            bounds,
            ..Self::default()
        }
    }

    /// Returns how many of the `host_pages` host pages to reserve for copying device pages to disk: a quarter, at most
    /// [`MAX_PASSAGES`].
    pub(in crate::cache) fn passages_of(host_pages: u32) -> u32 {
        match host_pages {
            0 | 1 => 0,
            pages => (pages / 4).clamp(1, MAX_PASSAGES),
        }
    }

    pub(in crate::cache) fn reserve(&mut self, passages: impl Iterator<Item = HostPageId>) {
        self.passages.extend(passages);
    }

    /// Returns the number of host pages that are reserved for copying device pages to disk, free or in use.
    pub(in crate::cache) fn reserved(&self) -> usize {
        self.passages.len() + self.copied.len()
    }

    pub(in crate::cache) fn kept(&self) -> u32 {
        self.kept.len() as u32
    }

    pub(in crate::cache) fn written(&self) -> u64 {
        self.written
    }

    /// Records that the data movements scheduled for the last step have been carried out.
    pub(in crate::cache) fn landed(&mut self) {
        self.saving.clear();
    }

    /// Returns whether a write of the page to disk is scheduled, or the page has been copied to a reserved host page
    /// for it.
    fn is_on_its_way(&self, hash: PageHash) -> bool {
        self.saving.contains(&hash) || self.copied.iter().any(|copied| copied.hash == hash)
    }

    /// Drops the copies in reserved host pages, and the scheduled writes, after a failure has made their content
    /// undefined.
    pub(in crate::cache) fn spoil(&mut self) {
        self.saving.clear();
        let passages = self.copied.drain(..).map(|copied| copied.passage);
        self.passages.extend(passages);
    }

    /// Drops the copy of a page in a reserved host page, because its content may be wrong.
    fn distrust(&mut self, hash: PageHash) {
        let (distrusted, others) = (self.copied.drain(..)).partition(|copied| copied.hash == hash);
        self.copied = others;
        let distrusted: VecDeque<Copied> = distrusted;
        self.passages
            .extend(distrusted.iter().map(|copied| copied.passage));
    }

    fn place(&mut self, copy: &mut DiskCopy, to: State) {
        match std::mem::replace(&mut copy.0, to) {
            State::None => {}
            State::Due(standing) => _ = self.due.remove(&standing),
            State::Kept(standing) => _ = self.kept.remove(&standing),
        }
        match to {
            State::None => {}
            State::Due(standing) => _ = self.due.insert(standing),
            State::Kept(standing) => _ = self.kept.insert(standing),
        }
    }

    /// Removes a page that leaves memory from the sets of pages with a copy on disk and of pages to be written. `copy`
    /// is its state, which is reset.
    pub(in crate::cache) fn leave(&mut self, copy: &mut DiskCopy) {
        self.place(copy, State::None);
    }
}

impl PrefixCache {
    /// Returns whether pages wait to be copied to disk by [`PrefixCache::replicate_to_disk`].
    pub fn has_replicas_to_write(&self) -> bool {
        !self.disk_replicas.due.is_empty() || !self.disk_replicas.copied.is_empty()
    }

    /// Records that a request used the pages of these nodes, a sequence's pages from its first one on. Pages that have
    /// been used often, but have no copy on disk, become due to be written.
    pub(in crate::cache) fn note_replicas(&mut self, nodes: &[NodeId]) {
        let Some(disk) = &self.disk else { return };
        if self.disk_replicas.bounds.pages == 0 {
            return;
        }
        let often = |&&id: &&NodeId| self.tree[id].at.usage.frequency >= USED_OFTEN;
        let hashes = nodes.iter().take_while(often);
        let hashes: Vec<PageHash> = hashes.map_while(|&id| self.tree[id].hash).collect();
        if hashes.is_empty() {
            return;
        }
        let stored = disk.touch(&hashes);
        let mut frequency = u32::MAX;
        for (index, &id) in nodes[..hashes.len()].iter().enumerate() {
            let at = &mut self.tree[id].at;
            // A page never counts as used more often than the pages before it.
            frequency = frequency.min(at.usage.frequency);
            let level = frequency.ilog2();
            let (standing, is_kept) = match at.disk_copy.0 {
                State::None => (None, false),
                State::Due(standing) => (Some(standing), false),
                State::Kept(standing) => (Some(standing), true),
            };
            let keeps =
                index < stored || (is_kept && self.disk_replicas.is_on_its_way(hashes[index]));
            if is_kept == keeps && standing.is_some_and(|standing| standing.level == level) {
                continue;
            }
            let replicas = &mut self.disk_replicas;
            replicas.number += 1;
            let standing = Standing {
                level,
                number: Reverse(replicas.number),
                node: id,
            };
            let to = match keeps {
                true if is_kept || replicas.kept() < replicas.bounds.pages => State::Kept(standing),
                true => State::None,
                false => State::Due(standing),
            };
            replicas.place(&mut at.disk_copy, to);
        }
    }

    /// Schedules writes of at most `pages` pages to disk, and copies of as many to host memory, from where the next
    /// call writes them. Returns the number of writes scheduled. Does nothing while 4 or more writes wait for the disk.
    pub fn replicate_to_disk(&mut self, pages: u32) -> u32 {
        let Some(disk) = self.disk.clone() else {
            return 0;
        };
        if disk.backlog() >= MAX_BACKLOG {
            return 0;
        }
        let mut writes = 0;
        while writes < pages
            && let Some(copied) = self.disk_replicas.copied.pop_front()
        {
            let Copied {
                passage,
                hash,
                parent,
            } = copied;
            self.transfers.push(Transfer::Save {
                page: passage,
                hash,
                parent,
            });
            self.disk_replicas.saving.push(hash);
            // The transfers are carried out in order, so the passage may be used again at once.
            self.disk_replicas.passages.push(passage);
            writes += 1;
        }
        let mut copies = 0;
        while copies < pages
            && let Some(&Standing { node, level, .. }) = self.disk_replicas.due.last()
        {
            let parent = self.tree[node].parent;
            let follows = parent.is_none_or(|parent| {
                matches!(self.tree[parent].at.disk_copy.0, State::Kept(_))
                    || self.tree[parent]
                        .hash
                        .is_some_and(|hash| disk.contains(hash))
            });
            let Some(hash) = self.tree[node].hash.filter(|_| follows) else {
                self.drop_disk_copy(node);
                continue;
            };
            if !self.make_room_for_replica(level) {
                // All other pages that are due are used no more often than this one.
                self.forget_due_replicas();
                break;
            }
            let parent = self.tree.hash_before(&self.tree[node].salt, parent);
            let on_host = self.tree[node].host_page();
            let on_host = on_host.filter(|page| !self.in_flight.written.contains(page));
            let on_device = self.tree[node].device_page();
            let on_device = on_device.filter(|_| !self.tree[node].at.loading);
            if on_host.is_some() && writes == pages {
                break;
            }
            if let Some(page) = on_host {
                self.transfers.push(Transfer::Save { page, hash, parent });
                self.disk_replicas.saving.push(hash);
                writes += 1;
            } else if let Some(from) = on_device
                && let Some(passage) = self.disk_replicas.passages.pop()
            {
                let to = passage;
                self.transfers.push(Transfer::Store(Store { from, to }));
                copies += 1;
                self.disk_replicas.copied.push_back(Copied {
                    passage,
                    hash,
                    parent,
                });
            } else if on_device.is_some() && !self.disk_replicas.copied.is_empty() {
                // All passages are in use: the next step frees them.
                break;
            } else {
                // The next use makes it due again.
                self.drop_disk_copy(node);
                continue;
            }
            let at = &mut self.tree[node].at;
            if let State::Due(standing) = at.disk_copy.0 {
                self.disk_replicas
                    .place(&mut at.disk_copy, State::Kept(standing));
            }
        }
        self.disk_replicas.written += u64::from(writes);
        writes
    }

    /// Forgets which pages have copies on disk or are to get one, after the disk tier has been cleared.
    pub(in crate::cache) fn forget_disk_replicas(&mut self) {
        self.disk_replicas.spoil();
        let kept: Vec<NodeId> = (self.disk_replicas.kept.iter())
            .map(|standing| standing.node)
            .collect();
        kept.into_iter().for_each(|id| self.drop_disk_copy(id));
        self.forget_due_replicas();
    }

    /// Forgets the copy of a page whose content may be wrong, and any copy of it that is on its way to disk.
    pub(in crate::cache) fn distrust_disk_replica(&mut self, id: NodeId) {
        self.drop_disk_copy(id);
        if let Some(hash) = self.tree[id].hash {
            self.disk_replicas.distrust(hash);
        }
    }

    fn forget_due_replicas(&mut self) {
        let due: Vec<NodeId> = (self.disk_replicas.due.iter())
            .map(|standing| standing.node)
            .collect();
        due.into_iter().for_each(|id| self.drop_disk_copy(id));
    }

    fn drop_disk_copy(&mut self, id: NodeId) {
        self.disk_replicas.leave(&mut self.tree[id].at.disk_copy);
    }

    /// Makes room for one more page of this level (base-2 logarithm of its uses) among those with a copy on disk, whose
    /// number is bounded. Returns `false` if every one of them has at least this level.
    fn make_room_for_replica(&mut self, level: u32) -> bool {
        let replicas = &self.disk_replicas;
        if replicas.kept() < replicas.bounds.pages {
            return true;
        }
        let Some(&least) = replicas.kept.first().filter(|least| least.level < level) else {
            return false;
        };
        self.drop_disk_copy(least.node);
        true
    }
}
