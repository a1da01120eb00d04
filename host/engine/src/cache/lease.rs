//! What a sequence gets from the cache.

use super::marks::Route;
use super::tree::NodeId;
use crate::TokenId;
use crate::backend::{Load, PageId};
use std::sync::Arc;

/// A running sequence's pages. Give it back with [`PrefixCache::close`](super::PrefixCache::close) or
/// [`PrefixCache::abandon`](super::PrefixCache::abandon): dropping it leaks them.
#[derive(Debug)]
#[must_use = "a dropped lease leaks its pages"]
pub struct Lease {
    pub(super) salt: Arc<str>,
    /// The page table.
    pub(super) pages: Vec<PageId>,
    /// The nodes of the first of them, which are shared and full; the other pages are private to this lease.
    pub(super) nodes: Vec<NodeId>,
    pub(super) route: Option<Route>,
    /// What a token cost that the cache did not have.
    pub(super) seconds_per_token: f64,
}

impl Lease {
    /// The page table: position `p` lives in `pages()[p / page_tokens]`.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }
}

/// What a prefix lookup found, for planning. Finding it changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Tokens that need not be computed, at most all but the last.
    pub tokens: u32,
    /// Of those, the ones to be loaded from host memory.
    pub host_tokens: u32,
    /// Tokens after those that could be [fetched](super::PrefixCache::fetch) from disk.
    pub disk_tokens: u32,
    /// Full pages on the device, which a lease would share: it takes no pages for them.
    pub pages: u32,
    /// How many of those are idle: they count as available until the lease holds them.
    pub idle_pages: u32,
}

/// A lease with what was found for it.
#[derive(Debug)]
#[must_use = "a dropped lease leaks its pages"]
pub struct Opening {
    /// Pages for all of the sequence's tokens.
    pub lease: Lease,
    /// Tokens whose KV state the lease's pages hold, once `loads` have been carried out.
    pub cached_tokens: u32,
    /// Of those, the ones that are loaded.
    pub host_tokens: u32,
    /// To be carried out before the sequence is computed. The lease stays open until they have been.
    pub loads: Vec<Load>,
    /// Further tokens to be had by copying.
    pub copy: Option<SlotCopy>,
}

/// Copy the first `tokens` slots of `from` to `to`, before anything that the cache is asked for later, and the sequence
/// has that many tokens more. Left undone, they are to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotCopy {
    /// A page of the tree.
    pub from: PageId,
    /// The lease's first private page.
    pub to: PageId,
    /// At least one.
    pub tokens: u32,
}

/// What can be found of `tokens`: one is left to compute, since the last one's logits are wanted.
pub(super) fn all_but_last(tokens: &[TokenId]) -> &[TokenId] {
    &tokens[..tokens.len().saturating_sub(1)]
}
