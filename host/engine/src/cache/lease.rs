//! Leases: a running sequence's hold on its pages in the cache.

use super::boundaries::Route;
use super::tree::NodeId;
use crate::TokenId;
use crate::backend::{Load, PageId};
use std::sync::Arc;

/// The pages that a running sequence holds, so that they are not evicted. Return it with
/// [`PrefixCache::close`](super::PrefixCache::close) or [`PrefixCache::abandon`](super::PrefixCache::abandon): dropping
/// it leaks the pages.
#[derive(Debug)]
#[must_use = "a dropped lease leaks its pages"]
pub struct Lease {
    pub(super) salt: Arc<str>,
    /// The page table: `pages[p / page_tokens]` holds the KV state of position `p`.
    pub(super) pages: Vec<PageId>,
    /// The nodes of the prefix tree whose pages are the first ones of `pages`: full pages, shared with other sequences.
    /// The remaining pages are private to this lease.
    pub(super) nodes: Vec<NodeId>,
    pub(super) route: Option<Route>,
    /// Number of leading tokens of the sequence whose pages may stay in the cache for other sequences.
    pub(super) kept_tokens: u32,
    /// Mean cost per token of those tokens of the prompt that were not cached when the lease was opened: seconds, or 1
    /// if no cost function is configured.
    pub(super) seconds_per_token: f64,
}

impl Lease {
    /// Returns the page table: `pages()[p / page_tokens]` holds the KV state of position `p`.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }
}

/// A sequence's permissions in the prefix cache: the number of tokens that it may read from the cache, and whether its
/// own pages stay there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheUse {
    /// Maximum number of leading tokens of the sequence that may be taken from the cache.
    pub reads: u32,
    /// True if the pages computed for the sequence stay in the cache, where later sequences can reuse them.
    pub keeps: bool,
}

impl CacheUse {
    /// Returns the beginning of `tokens` to look up in the cache: one token more than [`CacheUse::reads`], because a
    /// lookup never matches the last token that it is given.
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

/// The result of looking up a prompt in the cache, for planning: tokens found on the device, in host memory and on
/// disk. A lookup changes nothing in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Number of leading tokens that need not be computed, at most all but the last.
    pub tokens: u32,
    /// Of the `tokens`, the number that only host memory holds, so that they must be loaded onto the device.
    pub host_tokens: u32,
    /// Number of tokens after the first `tokens` that could be [fetched](super::PrefixCache::fetch) from disk.
    pub disk_tokens: u32,
    /// Number of full pages on the device that the sequence would share, so that it needs no new ones for them.
    pub pages: u32,
    /// Of the `pages`, the number that no lease holds now; they count as available until one does.
    pub idle_pages: u32,
}

/// A new lease, and the part of the sequence that was found in the cache.
#[derive(Debug)]
#[must_use = "a dropped lease leaks its pages"]
pub struct Opening {
    /// A lease (hold on pages) with pages for all of the sequence's tokens.
    pub lease: Lease,
    /// Number of leading tokens whose KV state the lease's pages hold, once `loads` have been carried out.
    pub cached_tokens: u32,
    /// Of the `cached_tokens`, the number that are loaded from host memory.
    pub host_tokens: u32,
    /// Copies of pages from host memory to the device, to be carried out before the sequence is computed. The lease
    /// must stay open until then.
    pub loads: Vec<Load>,
    /// A copy between pages on the device that, if carried out, adds further cached tokens; `None` if there is none to
    /// make.
    pub copy: Option<SlotCopy>,
}

/// A copy of the KV state of the first `tokens` tokens of page `from` to page `to`. Carried out before any later work
/// of the cache, it gives the sequence that many more cached tokens. If it is left undone, those tokens must be
/// computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotCopy {
    /// The page to read, which belongs to the cache's prefix tree.
    pub from: PageId,
    /// The page to write: the first page that is private to the sequence.
    pub to: PageId,
    /// Number of tokens whose KV state is copied, at least one.
    pub tokens: u32,
}

/// Returns all tokens but the last. The last one is always computed, because its logits are needed.
pub(super) fn all_but_last(tokens: &[TokenId]) -> &[TokenId] {
    &tokens[..tokens.len().saturating_sub(1)]
}
