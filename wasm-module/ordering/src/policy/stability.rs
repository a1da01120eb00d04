//! Measures whether requests share more documents at the beginning if all are sent in rank order than if the best ones
//! are sent last, for [`Place::Auto`](super::Place::Auto).
//!
//! ```text
//!   request 1 2 3 4 5, an earlier one 1 2 3 6 7        shared in rank order: 3, with the best document last: 2
//!   request 1 2 3 4 5, an earlier one 2 1 3 6 7        shared in rank order: 0, with the best document last: 1
//! ```
//!
//! Both numbers are computed for each request, against the recent request that shares the most documents, independent
//! of the order sent. In rank order, a request shares the beginning that both requests have. With the best document
//! last, it shares all other documents that both have, provided that both begin with them.

use super::window::Window;
use crate::document::Fingerprint;
use smallvec::SmallVec;
use std::iter::once;

/// Compares two orders for recent requests: all documents in rank order, or the favoured ones (the retriever's best)
/// last. Tells in which of them requests would have had more documents at the beginning in common with earlier ones.
pub(super) struct RankStability {
    /// Recent requests, each as fingerprints: one for all its favoured documents (the retriever's best) together, and
    /// one for each other document.
    recent: Window,
    /// Recent requests, each as the fingerprints of all its beginnings: its first document in rank order (best first),
    /// its first two, and so on.
    beginnings: Window,
    /// Number of documents at the beginning that each request shares with a recent one if both are sent in rank order
    /// (best first), summed over requests with exponential decay.
    ranked: f64,
    /// Number of documents that each request can share, at the beginning, with a recent one if both are sent with their
    /// favoured documents (the retriever's best) last, summed over requests with exponential decay.
    last: f64,
    is_stable: bool,
}

/// Number of recent requests with which each request is compared.
const RECENT: u16 = 128;

/// The factor by which the weight of earlier requests in `ranked` and `last` (numbers of shared documents) shrinks with
/// each new one; after 70 requests, half is left.
const DECAY: f64 = 0.99;

/// Documents begin to stay in rank order (best first) when `ranked` exceeds this number times (`last` + 1), where both
/// are sums of shared documents, and stay until `ranked` no longer exceeds [`UNSTABLE`] times (`last` + 1).
const STABLE: f64 = 1.0;
const UNSTABLE: f64 = 0.95;

impl Default for RankStability {
    /// Returns the initial state, in which documents do not stay in rank order. It is as if earlier requests had shared
    /// two documents when the favoured ones (the retriever's best) are sent last, and none in rank order.
    fn default() -> Self {
        Self {
            recent: Window::new(RECENT),
            beginnings: Window::new(RECENT),
            ranked: 0.0,
            last: 2.0,
            is_stable: false,
        }
    }
}

impl RankStability {
    /// Records one request: its documents `ranked`, best first, of which the first `favoured` are favoured (the
    /// retriever's best). Adds to the fields `ranked` and `last` the number of documents at the beginning that it can
    /// share with a recent request in rank order, or with favoured documents last. Then decides again whether documents
    /// stay in rank order.
    pub(super) fn observe(&mut self, ranked: &[Fingerprint], favoured: u16) {
        let favoured = usize::from(favoured).min(ranked.len());
        let mut hash = 1;
        let beginnings: SmallVec<[Fingerprint; 16]> = (ranked.iter())
            .map(|document| {
                hash = document.behind(hash);
                Fingerprint(hash)
            })
            .collect();
        let (_, others) = ranked.split_at(favoured);
        let best = favoured.checked_sub(1).and_then(|at| beginnings.get(at));
        let best = best.copied().unwrap_or(Fingerprint(1));
        let members = || once(best).chain(others.iter().copied());
        let mut last = 0;
        for shared in (self.recent).sharing(&[], &members().collect::<SmallVec<[_; 16]>>()) {
            let others_shared = (shared.mask >> 1).count_ones() as usize;
            let is_whole = shared.mask & 1 == 1
                && others_shared == others.len()
                && self.recent.documents(shared.age) == 1 + others.len();
            last = last.max(others_shared + if is_whole { favoured } else { 0 });
        }
        self.recent.push(members());
        // A request with a given beginning has all shorter ones too, so the bits count its documents.
        let shared = self.beginnings.sharing(&[], &beginnings);
        let shared = shared.iter().map(|shared| shared.mask.count_ones()).max();
        self.beginnings.push(beginnings.into_iter());
        self.ranked = self.ranked * DECAY + f64::from(shared.unwrap_or_default());
        self.last = self.last * DECAY + last as f64;
        let least = if self.is_stable { UNSTABLE } else { STABLE };
        // `+ 1`: rank order must be ahead by a document.
        self.is_stable = self.ranked > (self.last + 1.0) * least;
    }

    /// Returns whether the documents of requests should all stay in rank order (best first) at present.
    pub(super) fn is_stable(&self) -> bool {
        self.is_stable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observe(stability: &mut RankStability, ranked: &[u64]) -> bool {
        let ranked: Vec<Fingerprint> = ranked.iter().copied().map(Fingerprint).collect();
        stability.observe(&ranked, 1);
        stability.is_stable()
    }

    #[test]
    fn ranks_are_stable_while_the_best_document_stays_the_best() {
        let mut stability = RankStability::default();
        // Bursts of ten requests that keep their three best documents.
        let mut stable = (0..200).map(|at: u64| {
            let burst = at / 10 * 100;
            observe(
                &mut stability,
                &[burst, burst + 1, burst + 2, 1_000_000 + at, 2_000_000 + at],
            )
        });
        assert_eq!((stable.next(), stable.last()), (Some(false), Some(true)));
        // The same documents, but another one is the best each time.
        let mut shuffled = (0..400).map(|at: u64| {
            let burst = at / 10 * 100;
            let mut ranked = [burst, burst + 1, burst + 2, burst + 3, burst + 4];
            ranked.rotate_left(at as usize % 5);
            observe(&mut stability, &ranked)
        });
        assert_eq!(
            (shuffled.next(), shuffled.last()),
            (Some(true), Some(false))
        );
    }

    #[test]
    fn whole_requests_that_repeat_say_nothing() {
        let mut stability = RankStability::default();
        assert!((0..500).all(|_| !observe(&mut stability, &[1, 2, 3])));
        assert!((0..500).all(|_| !observe(&mut stability, &[])));
        assert!((0..500).all(|_| !observe(&mut stability, &[7])));
    }
}
