//! Remembered lookups: the cached prefix of a waiting sequence, looked up again only when it may have changed.
//!
//! The queue looks at waiting sequences in every step, and looking up a long prompt descends through hundreds of pages.
//! But the result changes only at two nodes: after the last page found, where pages are added or removed, and after the
//! last page on the device, where pages move between device and host. Comparing the stamps of these nodes detects that.

use super::PrefixCache;
use super::lease::all_but_last;
use super::tree::NodeId;
use crate::TokenId;
use std::sync::Arc;

/// The result of a cache lookup, with what is needed to tell whether it is still valid.
#[derive(Clone, Debug)]
pub struct CachedLookup {
    /// Number of leading tokens that need not be computed, at most all but the last.
    pub tokens: u32,
    /// Of the `tokens`, the number that only host memory holds, so that they must be loaded onto the device.
    pub host_tokens: u32,
    salt: Arc<str>,
    /// The nodes of the prefix tree with the last full page that was found in any tier, and with the last one on the
    /// device; `None` if no page was found.
    ends: [Option<NodeId>; 2],
    /// The prefix tree's change counter at the time of the lookup.
    seen: u64,
}

impl PrefixCache {
    /// Looks up the cached prefix of `tokens` as [`PrefixCache::lookup`] does, in a form that can be kept and checked
    /// for validity. Leaves out which pages other sequences hold, and which are on disk.
    pub fn remember_lookup(&self, salt: &Arc<str>, tokens: &[TokenId]) -> CachedLookup {
        let walk = self.tree.walk(salt, all_but_last(tokens));
        let near = self.on_device(&walk);
        CachedLookup {
            tokens: self.tokens_of(&walk),
            host_tokens: self.host_tokens_of(&walk, near),
            salt: salt.clone(),
            ends: [walk.full.last().copied(), walk.full[..near].last().copied()],
            seen: self.tree.changes(),
        }
    }

    /// Returns false if repeating the lookup now might have a different result. Costs `O(1)`.
    pub fn is_current(&self, lookup: &CachedLookup) -> bool {
        let CachedLookup {
            salt, ends, seen, ..
        } = lookup;
        *seen == self.tree.changes()
            || ends
                .iter()
                .all(|&end| self.tree.unchanged_since(*seen, salt, end))
    }
}
