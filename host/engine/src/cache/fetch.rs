//! Pages that come back from disk.
//!
//! ```text
//!   fetch ──▶ requests, page after page ──▶ (I/O thread) ──▶ receive: a host page, a node, a Transfer::Fill
//! ```
//!
//! A page that arrives finds its place by the page before it, which is in the tree or arrived just now. If that has
//! gone in the meantime, so does what arrives: a fetch that comes to nothing costs a read.

use super::PrefixCache;
use super::flight::Transfer;
use super::hash::PageHash;
use super::lease::all_but_last;
use super::tree::{Insertion, Walk};
use crate::TokenId;
use crate::backend::Store;
use fxhash::FxHashMap;
use std::sync::Arc;

/// Pages that were asked for.
#[derive(Default)]
pub(super) struct Fetching {
    pages: FxHashMap<PageHash, Wanted>,
}

struct Wanted {
    salt: Arc<str>,
    parent: Option<PageHash>,
    tokens: Arc<[TokenId]>,
}

/// Pages on their way from disk, see [`PrefixCache::fetch`].
#[derive(Clone, Debug)]
pub struct Fetch {
    pages: Vec<PageHash>,
}

impl PrefixCache {
    /// Asks for the pages on disk that follow what is found of `tokens`, as many as host memory has room for; `None`
    /// when there are none. They arrive with [`PrefixCache::receive`].
    pub fn fetch(&mut self, salt: &Arc<str>, tokens: &[TokenId]) -> Option<Fetch> {
        let disk = self.disk.clone()?;
        let walk = self.tree.walk(salt, all_but_last(tokens));
        let found = self.on_disk(salt, tokens, &walk);
        let room = (self.host_pool.pages() as usize).saturating_sub(self.fetching.pages.len());
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

    /// Whether every page of the fetch has arrived, or will not.
    pub fn is_fetched(&self, fetch: &Fetch) -> bool {
        let mut pages = fetch.pages.iter();
        !pages.any(|page| self.fetching.pages.contains_key(page))
    }

    /// Takes in the pages that have arrived from disk; does not wait. Afterwards there are transfers to be carried out.
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
        // Its place may be taken away by what makes room for it: a leaf of host memory alone.
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
                self.bury(superseded);
                self.recall(node);
                self.transfers.push(Transfer::Fill { page, bytes });
                self.enter_host(node, page, false);
                self.counts.fetched += 1;
            }
            // Somebody computed it in the meantime.
            Insertion::Covered(_) => self.host_pool.give_back(page),
        }
    }

    /// The pages on disk that follow each other after a walk.
    pub(super) fn on_disk(&self, salt: &str, tokens: &[TokenId], walk: &Walk) -> Vec<PageHash> {
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

    /// Has what is held in memory written to disk, the beginnings of sequences first; for an end in good order. Pages
    /// that only the device has pass through a page of the host.
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
