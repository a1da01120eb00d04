//! What a waiting sequence would find, looked up once and then only when it may have changed.
//!
//! A queue is looked at in every step, and a look at a long prompt costs a descent of hundreds of pages. But what it
//! finds changes only where it ends: a page is added or goes at the last page that was found, or moves between the
//! device and the host at the last that was on the device. Two stamps tell.

use super::PrefixCache;
use super::lease::all_but_last;
use super::tree::NodeId;
use crate::TokenId;
use std::sync::Arc;

/// What was found for a sequence, and when.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// Tokens that need not be computed, at most all but the last.
    pub tokens: u32,
    /// Of those, the ones to be loaded from host memory.
    pub host_tokens: u32,
    salt: Arc<str>,
    /// The last full page that was found, and the last of those on the device.
    ends: [Option<NodeId>; 2],
    /// Counts the tree's changes, like a clock.
    seen: u64,
}

impl PrefixCache {
    /// As [`PrefixCache::lookup`], but for what may be remembered: neither who holds the pages nor what is on disk.
    pub fn sight(&self, salt: &Arc<str>, tokens: &[TokenId]) -> Sighting {
        let walk = self.tree.walk(salt, all_but_last(tokens));
        let near = self.on_device(&walk);
        Sighting {
            tokens: self.tokens_of(&walk),
            host_tokens: self.host_tokens_of(&walk, near),
            salt: salt.clone(),
            ends: [walk.full.last().copied(), walk.full[..near].last().copied()],
            seen: self.tree.changes(),
        }
    }

    /// Whether another look would find the same. `O(1)`.
    pub fn is_current(&self, sighting: &Sighting) -> bool {
        let Sighting {
            salt, ends, seen, ..
        } = sighting;
        *seen == self.tree.changes()
            || ends
                .iter()
                .all(|&end| self.tree.unchanged_since(*seen, salt, end))
    }
}
