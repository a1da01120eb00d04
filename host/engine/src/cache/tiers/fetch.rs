//! Reading pages back from disk.
//!
//! ```text
//!   fetch ──▶ requests, page after page ──▶ (I/O thread) ──▶ receive: a host page, a node, a Transfer::Fill
//! ```
//!
//! A page that arrives is attached to the page before it, which is in the tree or has just arrived. If that page has
//! been evicted in the meantime, the arriving page is dropped: the fetch then cost one read and gained nothing.

use super::transfers::Transfer;
use crate::TokenId;
use crate::backend::Store;
use crate::cache::PrefixCache;
use crate::cache::hash::PageHash;
use crate::cache::lease::all_but_last;
use crate::cache::tree::{Insertion, Walk};
use fxhash::FxHashMap;
use std::sync::Arc;

/// Pages that have been requested from disk and have not arrived yet.
#[derive(Default)]
pub(in crate::cache) struct Fetching {
    pages: FxHashMap<PageHash, Wanted>,
}

impl Fetching {
    /// Forgets all requested pages: they are dropped when they arrive.
    pub(in crate::cache) fn clear(&mut self) {
        self.pages.clear();
    }
}

struct Wanted {
    salt: Arc<str>,
    parent: Option<PageHash>,
    tokens: Arc<[TokenId]>,
}

/// The hashes of pages that were requested from disk together, returned by [`PrefixCache::fetch`].
#[derive(Clone, Debug)]
pub struct Fetch {
    pages: Vec<PageHash>,
}

impl PrefixCache {
    /// Requests from disk the pages that follow the cached prefix of `tokens`, as many as host memory has room for.
    /// Returns `None` when there are none. [`PrefixCache::receive`] adds the pages to the cache as they arrive.
    pub fn fetch(&mut self, salt: &Arc<str>, tokens: &[TokenId]) -> Option<Fetch> {
        let disk = self.disk.clone()?;
        let walk = self.tree.walk(salt, all_but_last(tokens));
        let found = self.on_disk(salt, tokens, &walk);
        let reserved = self.fetching.pages.len() + self.disk_replicas.reserved();
        let room = (self.host_pool.pages() as usize).saturating_sub(reserved);
        let mut parent = walk.full.last().and_then(|&node| self.tree[node].hash);
        let skipped = walk.full.len();
        let mut pages = Vec::new();
        let chunks = tokens.chunks(self.page_tokens as usize).skip(skipped);
        for (hash, tokens) in found.into_iter().zip(chunks).take(room) {
            pages.push(hash);
            let before = parent.replace(hash);
            self.fetching.pages.entry(hash).or_insert_with(|| {
                disk.request(hash);
                Wanted {
                    salt: salt.clone(),
                    parent: before,
                    tokens: tokens.into(),
                }
            });
        }
        (!pages.is_empty()).then_some(Fetch { pages })
    }

    /// Returns true if every page of `fetch` has arrived from disk, or was found to be unreadable.
    pub fn is_fetched(&self, fetch: &Fetch) -> bool {
        let mut pages = fetch.pages.iter();
        !pages.any(|page| self.fetching.pages.contains_key(page))
    }

    /// Adds the pages that have arrived from disk to host memory and to the prefix tree, without waiting for others.
    /// The caller must then carry out the [transfers](PrefixCache::take_transfers), which fill the host pages.
    pub fn receive(&mut self) {
        let Some(disk) = self.disk.clone() else {
            return;
        };
        while let Some((hash, bytes)) = disk.completed() {
            if let Some(wanted) = self.fetching.pages.remove(&hash)
                && let Some(bytes) = bytes
            {
                self.arrive(wanted, bytes);
            }
        }
    }

    fn arrive(&mut self, wanted: Wanted, bytes: Vec<u8>) {
        let Wanted {
            salt,
            parent,
            tokens,
        } = wanted;
        let at = parent.map(|hash| self.tree.find(hash));
        // Making room could evict the parent itself, if it is a leaf that only host memory holds. The pin prevents
        // that.
        let parent = match at {
            None => None,
            Some(Some(parent)) => {
                self.tree[parent].at.pins += 1;
                self.refile(parent);
                Some(parent)
            }
            Some(None) => return,
        };
        let page = self.take_host();
        if let Some(parent) = parent {
            self.tree[parent].at.pins -= 1;
            self.refile(parent);
        }
        let Some(page) = page else { return };
        match self.tree.insert(&salt, parent, &tokens) {
            Insertion::Inserted { node, superseded } => {
                self.drop_superseded(superseded);
                self.recall(node);
                self.transfers.push(Transfer::Fill { page, bytes });
                self.enter_host(node, page, false);
                self.counts.fetched += 1;
            }
            // Another sequence computed the page in the meantime.
            Insertion::Covered(_) => self.host_pool.give_back(page),
        }
    }

    /// Returns the hashes of the consecutive pages on disk that follow the full pages found by `walk`, a lookup of
    /// `tokens`.
    pub(in crate::cache) fn on_disk(
        &self,
        salt: &str,
        tokens: &[TokenId],
        walk: &Walk,
    ) -> Vec<PageHash> {
        let Some(disk) = &self.disk else {
            return Vec::new();
        };
        let chunks = all_but_last(tokens).chunks_exact(self.page_tokens as usize);
        let mut hash = self.tree.hash_before(salt, walk.full.last().copied());
        let hashes = chunks.skip(walk.full.len()).map(|tokens| {
            hash = hash.then(tokens);
            hash
        });
        hashes.take_while(|&hash| disk.contains(hash)).collect()
    }

    /// Schedules a write to disk of every full page in memory, beginnings of sequences first, for an orderly shutdown.
    /// Pages that only the device holds pass through one page of host memory; if none can be had, they are not written.
    pub fn save_all(&mut self) {
        if self.disk.is_none() {
            return;
        }
        let passage = self.take_host();
        let mut nodes = self.tree.leaves_first();
        nodes.reverse();
        for node in nodes.into_iter().map(|id| &self.tree[id]) {
            let Some(hash) = node.hash else { continue };
            let parent = self.tree.hash_before(&node.salt, node.parent);
            if let Some(page) = node.host_page() {
                self.transfers.push(Transfer::Save { page, hash, parent });
            } else if let (Some(from), Some(to)) = (node.device_page(), passage) {
                self.transfers.push(Transfer::Store(Store { from, to }));
                self.transfers.push(Transfer::Save {
                    page: to,
                    hash,
                    parent,
                });
            }
        }
        passage
            .into_iter()
            .for_each(|page| self.host_pool.give_back(page));
    }
}
