//! Measures what the clients' own order would have found in the cache, beside what the sent order found: what ordering
//! saves, without an experiment.
//!
//! Every beginning of a run of documents, in rank order, is kept as a hash, and a later request in its client's order finds
//! the longest one that is known. Two sets are kept. When the newer one holds as much as the engine's cache, it becomes the
//! older one, which is dropped. So the clients' order is measured against a cache of once to twice the engine's that is
//! never cleared, and with one engine the saving is rather understated. With several, whose caches are full, it may be
//! overstated: the sent order is matched with each engine's tree.
//!
//! Two limits: updates from other workers hold the clients' order of new messages, but not of replayed ones; and documents of
//! a chat's later turns are found only by chats whose earlier documents were sent in the same order.

use crate::document::Fingerprint;
use crate::tree::{Bounds, Scope};
use fxhash::FxHashSet;

/// The beginnings of documents that requests would have left in the cache in their clients' order, for one tenant and model.
#[derive(Debug)]
pub(crate) struct ClientOrder {
    bounds: Bounds,
    newer: FxHashSet<u64>,
    older: FxHashSet<u64>,
    /// Estimated tokens of the documents in `newer`.
    tokens: u64,
}

impl ClientOrder {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            newer: FxHashSet::default(),
            older: FxHashSet::default(),
            tokens: 0,
        }
    }

    /// Returns the estimated tokens at the beginning of `ranked`, documents in rank order, that the cache would hold if all
    /// requests had been sent in their clients' order. Records the documents.
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
