//! Estimates how many document tokens the engine's cache would have held if documents had been sent in their clients'
//! order. The difference to the sent order is what ordering saves, measured without an experiment.
//!
//! For each run of adjacent documents in the client's order (its ranking), hashes of all its beginnings are recorded; a
//! later run matches its longest recorded beginning. There are two sets of hashes. When the newer one reaches the size
//! of the engine's cache, it replaces the older one. So the clients' order is measured against a cache of one to two
//! times the engine's size that is never cleared, and with one engine the saving is rather understated. With several
//! engines whose caches are full it may be overstated, since the sent order is matched with each engine's own knowledge
//! tree.
//!
//! Limits: updates from other workers hold the clients' order of new messages, but not of replayed ones (messages of
//! earlier turns that are forwarded as before); and documents of a chat's later turns are found only by chats whose
//! earlier documents were sent in the same order.

use crate::document::Fingerprint;
use crate::hash::KeyedSet;
use crate::tree::{Bounds, Scope};

/// A simulated cache for one tenant and model: hashes of the sequences of documents that an engine's cache would hold
/// if all requests were sent with their documents in their clients' order.
#[derive(Debug)]
pub(crate) struct ClientOrder {
    bounds: Bounds,
    newer: KeyedSet<u64>,
    older: KeyedSet<u64>,
    /// Estimated tokens of the documents whose hashes are in `newer`, the more recent of the two sets.
    tokens: u64,
}

impl ClientOrder {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            newer: KeyedSet::default(),
            older: KeyedSet::default(),
            tokens: 0,
        }
    }

    /// Records one run of adjacent documents. `ranked` are these in the client's order, each with its estimated number
    /// of tokens; `scope` is the hash of the prompt before them. Returns the estimated tokens of the documents at the run's beginning that the engine's cache
    /// would have held if all earlier requests had been sent in their clients' order.
    pub(crate) fn send(&mut self, scope: Scope, ranked: &[(Fingerprint, u32)]) -> u64 {
        let mut matched = 0;
        let mut is_known = true;
        let mut beginning = scope.0;
        for &(document, tokens) in ranked {
            beginning = document.behind(beginning);
            is_known &= self.newer.contains(&beginning) || self.older.contains(&beginning);
            if is_known {
                matched += u64::from(tokens);
            }
            if self.newer.insert(beginning) {
                self.tokens += u64::from(tokens);
            }
        }
        let is_full = self.newer.len() >= self.bounds.max_nodes as usize
            || (self.bounds.max_tokens).is_some_and(|most| self.tokens >= most);
        if is_full {
            self.older = std::mem::take(&mut self.newer);
            self.tokens = 0;
        }
        matched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(order: &mut ClientOrder, documents: &[u64]) -> u64 {
        let documents = documents
            .iter()
            .map(|document| (Fingerprint(*document), 10));
        order.send(Scope(1), &documents.collect::<Vec<_>>())
    }

    #[test]
    fn what_opens_alike_is_found_until_the_cache_is_full_of_newer_things() {
        let bounds = Bounds {
            max_nodes: 100,
            max_tokens: Some(40),
        };
        let mut order = ClientOrder::new(bounds);
        assert_eq!(send(&mut order, &[1, 2, 3]), 0);
        assert_eq!(send(&mut order, &[1, 2, 4]), 20);
        assert_eq!(send(&mut order, &[2, 1]), 0);
        // It was full, and what is asked for again stays.
        assert_eq!(send(&mut order, &[1, 2, 3]), 30);
        assert_eq!(send(&mut order, &[1, 2, 4]), 20);
        assert_eq!(send(&mut order, &[5, 6, 7, 8]), 0);
        assert_eq!(send(&mut order, &[9, 10, 11, 12]), 0);
        assert_eq!(send(&mut order, &[1, 2, 4]), 0);
    }
}
