//! Leases: a sequence's pages in the cache.

use super::boundaries::Route;
use super::tree::NodeId;
use crate::TokenId;
use crate::backend::{Load, PageId};
use std::sync::Arc;

/// The pages of a running sequence. Return it with [`PrefixCache::close`](super::PrefixCache::close) or
/// [`PrefixCache::abandon`](super::PrefixCache::abandon): dropping it leaks the pages.
#[derive(Debug)]
#[must_use = "a dropped lease leaks its pages"]
pub struct Lease {
    pub(super) salt: Arc<str>,
    /// The page table: `pages[p / page_tokens]` holds position `p`.
    pub(super) pages: Vec<PageId>,
    /// The nodes of the leading pages, which are full and shared; the remaining pages are private to this lease.
    pub(super) nodes: Vec<NodeId>,
    pub(super) route: Option<Route>,
    /// Number of leading tokens of the sequence that may stay in the cache for others.
    pub(super) kept_tokens: u32,
    /// Mean cost of a token of the prompt that was not cached at opening: seconds, or 1 if no cost is configured.
    pub(super) seconds_per_token: f64,
}

impl Lease {
    /// Returns the page table: position `p` lives in `pages()[p / page_tokens]`.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }
}

/// A sequence's use of the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheUse {
    /// Maximum number of tokens of a cached prefix that the sequence starts from.
    pub reads: u32,
    /// True if the pages computed for the sequence stay in the cache, where later sequences can reuse them.
    pub keeps: bool,
}

impl CacheUse {
    /// Returns the beginning of `tokens` to look up: one token more than [`CacheUse::reads`], because the last token of
    /// a lookup is always computed.
    pub fn readable(self, tokens: &[TokenId]) -> &[TokenId] {
        let most = (self.reads as usize).saturating_add(1);
        &tokens[..tokens.len().min(most)]
    }
}

impl Default for CacheUse {
    fn default() -> Self {
        Self {
            reads: u32::MAX,
            keeps: true,
        }
    }
}

/// The result of a prefix lookup, for planning. A lookup changes nothing in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Number of tokens that need not be computed, at most all but the last.
    pub tokens: u32,
    /// The part of `tokens` that must be loaded from host memory.
    pub host_tokens: u32,
    /// Tokens after `tokens` that could be [fetched](super::PrefixCache::fetch) from disk.
    pub disk_tokens: u32,
    /// Full pages on the device that a lease would share, so that it needs no new ones for them.
    pub pages: u32,
    /// The idle ones of `pages`, which count as available until a lease holds them.
    pub idle_pages: u32,
}

/// A new lease, with the part of the sequence that was found in the cache.
#[derive(Debug)]
#[must_use = "a dropped lease leaks its pages"]
pub struct Opening {
    /// A lease with pages for all of the sequence's tokens.
    pub lease: Lease,
    /// Tokens whose KV state the lease's pages hold, once `loads` have been carried out.
    pub cached_tokens: u32,
    /// The part of `cached_tokens` that is loaded from host memory.
    pub host_tokens: u32,
    /// Loads to carry out before the sequence is computed. The lease must stay open until then.
    pub loads: Vec<Load>,
    /// A copy that, if carried out, adds further cached tokens.
    pub copy: Option<SlotCopy>,
}

/// Copies the first `tokens` slots of page `from` to page `to`. Carried out before any later work of the cache, it
/// gives the sequence that many more cached tokens. If it is left undone, those tokens must be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotCopy {
    /// A page of the tree, to read.
    pub from: PageId,
    /// The lease's first private page, to write.
    pub to: PageId,
    /// Number of slots to copy, at least one.
    pub tokens: u32,
}

/// Returns all tokens but the last. The last one is always computed, because its logits are needed.
pub(super) fn all_but_last(tokens: &[TokenId]) -> &[TokenId] {
    &tokens[..tokens.len().saturating_sub(1)]
}
