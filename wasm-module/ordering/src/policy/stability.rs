//! Measures whether requests repeat their best documents, for the place [`Auto`](super::Place::Auto).
//!
//! A request shares a prefix with an earlier one if the documents that both hold open the prompt. With the best document
//! last, these are documents other than the best. With the best document first, there are none unless both have the same
//! best document, but then it counts too.
//!
//! ```text
//!   request 1 2 3 4 5, an earlier one 1 2 3 6 7        the best document first: 3 shared, last: 2
//!   request 1 2 3 4 5, an earlier one 2 1 3 6 7        the best document first: 0 shared, last: 1
//! ```
//!
//! Both are counted for each request, against the recent request that shares most, whatever order was sent. So the measure
//! does not depend on the place in use.

use super::window::Window;
use crate::document::Fingerprint;
use smallvec::SmallVec;
use std::iter::once;

/// Measures whether recent requests would have shared more documents with their best ones first than with their best ones
/// last.
pub(super) struct RankStability {
    /// Recent requests, each as a fingerprint of its favoured documents and its other documents.
    recent: Window,
    /// Shared documents with the favoured ones first, with exponential decay.
    first: f64,
    /// Shared documents with the favoured ones last, with exponential decay.
    last: f64,
    is_stable: bool,
}

/// Number of recent requests that a request is compared with.
const RECENT: u16 = 128;

/// Factor of a request's weight for each later request; half is left after 70.
const DECAY: f64 = 0.99;

/// The ratio of both measures from which ranks are stable, and the one from which they no longer are.
const STABLE: f64 = 1.1;
const UNSTABLE: f64 = 1.0;

impl Default for RankStability {
    /// Starts as not stable, with the weight of some requests.
    fn default() -> Self {
        Self {
            recent: Window::new(RECENT),
            first: 0.0,
            last: 20.0,
            is_stable: false,
        }
    }
}

impl RankStability {
    /// Adds one request's documents in rank order, of which the first `favoured` ones keep a place.
    pub(super) fn observe(&mut self, ranked: &[Fingerprint], favoured: u16) {
        let favoured = usize::from(favoured).min(ranked.len());
        let (best, others) = ranked.split_at(favoured);
        let best = best.iter().fold(1, |hash, document| document.behind(hash));
        let best = Fingerprint(best);
        let members = || once(best).chain(others.iter().copied());
        let (mut first, mut last) = (0, 0);
        for shared in (self.recent).sharing(&[], &members().collect::<SmallVec<[_; 16]>>()) {
            let others_shared = (shared.mask >> 1).count_ones() as usize;
            if shared.mask & 1 == 1 {
                first = first.max(favoured + others_shared);
            }
            let is_whole = shared.mask & 1 == 1
                && others_shared == others.len()
                && self.recent.documents(shared.age) == 1 + others.len();
            last = last.max(others_shared + if is_whole { favoured } else { 0 });
        }
        self.recent.push(members());
        self.first = self.first * DECAY + first as f64;
        self.last = self.last * DECAY + last as f64;
        let least = if self.is_stable { UNSTABLE } else { STABLE };
        // One document is little to go by.
        self.is_stable = self.first > (self.last + 1.0) * least;
    }

    /// Returns whether the favoured documents are better first.
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
