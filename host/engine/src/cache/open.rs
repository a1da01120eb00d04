//! Looking up the cached prefix of a prompt, and opening a lease (a sequence's hold on pages) that shares it.

use super::boundaries::Route;
use super::lease::{CacheUse, Lease, Match, Opening, SlotCopy, all_but_last};
use super::tree::{NodeId, Walk};
use super::{DocumentPath, PrefixCache};
use crate::TokenId;
use crate::backend::{Load, PageId};
use std::sync::Arc;

impl PrefixCache {
    /// Finds the longest cached prefix of `tokens` among sequences with this cache salt. At least one token is left to
    /// compute, because the last one's logits are needed. Costs `O(tokens + pages · log siblings)`, where siblings are
    /// cached pages that follow the same prefix.
    pub fn lookup(&self, salt: &str, tokens: &[TokenId]) -> Match {
        let walk = self.tree.walk(salt, all_but_last(tokens));
        let near = self.on_device(&walk);
        let idle = walk.full[..near]
            .iter()
            .filter_map(|&node| self.tree[node].device_page())
            .filter(|&page| self.pool.holders(page) == 0);
        let tokens_found = self.tokens_of(&walk);
        let on_disk = self.on_disk(salt, tokens, &walk).len() + walk.full.len();
        Match {
            tokens: tokens_found,
            host_tokens: self.host_tokens_of(&walk, near),
            disk_tokens: (on_disk as u32 * self.page_tokens).saturating_sub(tokens_found),
            pages: near as u32,
            idle_pages: idle.count() as u32,
        }
    }

    /// Opens a lease with pages for all of `tokens`, sharing the pages of the longest cached prefix (see
    /// [`PrefixCache::lookup`]). Returns `None` if there are too few pages that no lease holds; pages may then have
    /// been evicted, and the order of eviction changed. `cache_use` says how many tokens the sequence may read from the
    /// cache, and whether its own pages stay there.
    pub fn open(
        &mut self,
        salt: &Arc<str>,
        tokens: &[TokenId],
        documents: Option<&DocumentPath>,
        cache_use: CacheUse,
    ) -> Option<Opening> {
        let read = all_but_last(cache_use.readable(tokens));
        let mut walk = self.tree.walk(salt, read);
        let near = self.on_device(&walk);
        let needed = self.pages_for(tokens.len()) - near as u32;
        // The pages that were found must not be evicted to make room for the rest.
        walk.full.iter().for_each(|&node| self.keep(node));
        if let Some((node, _)) = walk.tail {
            self.keep(node);
            if self.available() < needed {
                self.unkeep(node);
                walk.tail = None;
            }
        }
        let taken = (self.available() >= needed)
            .then(|| self.take_all(needed))
            .flatten();
        let host_tokens = self.host_tokens_of(&walk, near);
        let found = self.tokens_of(&walk);
        let tail = walk.tail.map(|(node, _)| node);
        let Some(taken) = taken else {
            let kept = walk.full.into_iter().chain(tail);
            kept.for_each(|node| self.unkeep(node));
            return None;
        };
        let new = tokens.len() as u32 - found;
        let mut lease = Lease {
            salt: salt.clone(),
            pages: Vec::with_capacity(taken.len() + near),
            nodes: walk.full,
            route: documents.map(|documents| Route::new(documents, self.page_tokens)),
            kept_tokens: match cache_use.keeps {
                true => self.kept_tokens(documents),
                false => 0,
            },
            seconds_per_token: self.seconds(found, new) / f64::from(new.max(1)),
        };
        let mut taken = taken.into_iter();
        let loads = self.share(&mut lease, near, &mut taken);
        for &node in tail.iter().chain(lease.nodes.iter().rev()) {
            self.touch(node);
        }
        lease.nodes.iter().for_each(|&node| self.replicate(node));
        self.note_replicas(&lease.nodes);
        lease.pages.extend(taken);
        self.mark(&mut lease);
        let mut opening = Opening {
            cached_tokens: lease.nodes.len() as u32 * self.page_tokens,
            host_tokens,
            loads,
            copy: None,
            lease,
        };
        if let Some((node, tokens)) = walk.tail {
            let to = opening.lease.pages[opening.lease.nodes.len()];
            self.open_tail(&mut opening, node, to, tokens);
        }
        Some(opening)
    }

    /// Returns the number of leading tokens of a prompt with these documents whose pages may stay cached; `u32::MAX`
    /// for all.
    fn kept_tokens(&self, documents: Option<&DocumentPath>) -> u32 {
        let path = documents.map(|documents| &documents.documents[..]);
        match (self.max_documents, path) {
            (Some(most), Some(path)) if path.len() > most as usize => {
                let last = path[..most as usize].last();
                last.map_or(0, |document| document.end)
            }
            _ => u32::MAX,
        }
    }

    /// Adds the pages of the lease's nodes (pages of the prefix tree that were found) to its page table. The first
    /// `near` nodes have pages on the device. For each of the others, takes a page from `free` and returns the load
    /// from host memory that fills it. The caller has protected all nodes from eviction by [`PrefixCache::keep`].
    fn share(
        &mut self,
        lease: &mut Lease,
        near: usize,
        free: &mut impl Iterator<Item = PageId>,
    ) -> Vec<Load> {
        let mut loads = Vec::new();
        for (index, &node) in lease.nodes.iter().enumerate() {
            self.tree[node].at.usage.hit();
            if index >= near
                && let (Some(from), Some(to)) = (self.tree[node].host_page(), free.next())
            {
                loads.push(Load { from, to });
                // The page stays pinned in host memory until the load has been carried out.
                self.tree[node].at.loading = true;
                self.in_flight.loads.push((node, true));
                self.enter_device(node, to);
            }
            lease.pages.extend(self.tree[node].device_page());
        }
        loads
    }

    /// Makes the KV state of the first `tokens` tokens of a cached page, that of `node`, available in page `to`, and
    /// records how in `opening`: a copy on the device, or a load of the whole page from host memory, of which the
    /// sequence overwrites the rest.
    fn open_tail(&mut self, opening: &mut Opening, node: NodeId, to: PageId, tokens: u32) {
        let at = &self.tree[node].at;
        let from_host = at.device.is_none() || at.loading;
        match (self.tree[node].host_page(), self.tree[node].device_page()) {
            (Some(from), on_device) if from_host => {
                if on_device.is_some() {
                    self.tree[node].at.pins += 1;
                    self.unkeep(node);
                }
                self.in_flight.loads.push((node, false));
                opening.loads.push(Load { from, to });
                opening.cached_tokens += tokens;
            }
            (_, Some(from)) => {
                self.unkeep(node);
                opening.copy = Some(SlotCopy { from, to, tokens });
            }
            _ => {}
        }
    }

    /// Protects the node's page from eviction in one tier: on the device if it is there, otherwise in host memory.
    /// Calls count: each needs one [`PrefixCache::unkeep`].
    fn keep(&mut self, node: NodeId) {
        match self.tree[node].device_page() {
            Some(page) => self.pool.hold(page),
            None => self.tree[node].at.pins += 1,
        }
        self.refile(node);
    }

    /// Ends the protection from eviction that one call of [`PrefixCache::keep`] gave to the node's page.
    pub(super) fn unkeep(&mut self, node: NodeId) {
        match self.tree[node].device_page() {
            Some(page) => {
                self.pool.release(page);
            }
            None => self.tree[node].at.pins -= 1,
        }
        self.refile(node);
    }

    /// Returns how many of the full pages found by `walk`, a cache lookup, are on the device; these are the leading
    /// ones.
    pub(super) fn on_device(&self, walk: &Walk) -> usize {
        walk.full
            .partition_point(|&node| self.tree[node].at.device.is_some())
    }

    pub(super) fn tokens_of(&self, walk: &Walk) -> u32 {
        walk.full.len() as u32 * self.page_tokens + walk.tail.map_or(0, |(_, tokens)| tokens)
    }

    /// Returns how many of the tokens found by `walk`, a cache lookup, only host memory holds. `near` is the number of
    /// its full pages that are on the device.
    pub(super) fn host_tokens_of(&self, walk: &Walk, near: usize) -> u32 {
        let tail = walk
            .tail
            .filter(|&(node, _)| self.tree[node].at.device.is_none());
        let pages = (walk.full.len() - near) as u32;
        pages * self.page_tokens + tail.map_or(0, |(_, tokens)| tokens)
    }

    /// Returns the cost of computing `new` tokens after `cached` ones: seconds, or tokens if no cost is configured.
    fn seconds(&self, cached: u32, new: u32) -> f64 {
        match &self.cost {
            Some(cost) => cost(cached, new),
            None => f64::from(new),
        }
    }
}
