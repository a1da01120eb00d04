//! The default policy: after the heaviest sequence of documents that is cached, the other documents are ordered for
//! later requests to match.
//!
//! After these documents (the match), the sequence (path) is new to the engine, so its order is free, and later
//! requests can match its beginning. Recent requests serve as the sample of later ones.
//!
//! ```text
//!   request {a b c d e}, resident path [c]  recent requests with c: {c a b} {c a x} {c b a} {c e y}
//!   gain of a: 3 x its tokens, weighed by what those three share further ──▶ [c a], then [c a b], …
//! ```
//!
//! **Skewed traffic** (some documents are requested far more than others): the next document is the one with the
//! greatest expected gain. The gain is the document's tokens times a sum, over the recent requests that contain it and
//! the whole path so far, of the tokens that such a request shares beyond the path. The sum prefers documents that lead
//! to longer shared paths; the factor prefers long documents, which gain more when they match.
//!
//! **Even traffic** (documents of a topic are requested alike): counts differ by chance alone, and only show which
//! combinations were cached lately, in one order or another. So the next document is the one seen *least* often with
//! the path in the last [`EVEN_AGE`] requests, and the tree collects more combinations.
//!
//! The kind of traffic is measured ([`Skew`]): under skew, the same documents are frequent in the older and in the
//! newer half of the window, while differences by chance are not the same in both halves.
//!
//! It takes time in proportion to the occurrences of the candidates in the window of recent requests, then to the
//! recent requests that contain the path, once for every document that they share. The bench `policies` has times and
//! reuse.
//!
//! This is the default policy: it reuses a tenth to two thirds more than `longest` where topics recur, and as much
//! elsewhere, for two more microseconds (`benches/results/ordering.md`). It learns from the requests of all workers.

use super::longest::heaviest_path;
use super::window::{MAX_DOCUMENTS, Shared, Window};
use super::{Displacement, Order, Policy, Start, followed_by_rank};
use crate::document::{Candidate, Fingerprint};
use crate::sort::sort_by_key;
use smallvec::SmallVec;

/// The policy `foresight`: first the sequence of documents with the most cached tokens, then the documents that later
/// requests will likely share. It learns from requests, not from the cache, so what it learnt is valid whatever
/// precedes the documents in the prompt, and after an engine's restart.
pub(super) struct Foresight {
    window: Window,
    skew: Skew,
    allowed: Displacement,
}

/// In even traffic (documents of a topic are requested alike), only this number of latest requests counts: combinations
/// of documents in older ones are assumed to be evicted. From 20 to 300, reuse differs by less than 1 %.
const EVEN_AGE: u16 = 100;
/// Most recent requests times candidates that are compared for one order: 1,024 requests for 32 candidates.
const MOST_STEPS: usize = 32_768;

impl Foresight {
    pub(super) fn new(window: u16, allowed: Displacement) -> Self {
        Self {
            window: Window::new(window),
            skew: Skew::default(),
            allowed,
        }
    }
}

impl Policy for Foresight {
    fn order(&mut self, candidates: &[Candidate<'_>], start: Start<'_>) -> Order {
        let mut path = heaviest_path(candidates, start, self.allowed);
        let mut open = open_candidates(candidates, &path);
        if open.len() < 2 {
            return followed_by_rank(path, candidates.len());
        }
        let required: SmallVec<[Fingerprint; 16]> = (path.iter())
            .filter_map(|&rank| Some(candidates.get(usize::from(rank))?.fingerprint))
            .collect();
        let optional: SmallVec<[Fingerprint; 16]> =
            open.iter().map(|open| open.fingerprint).collect();
        let mut recent: Vec<Evidence> = self
            .window
            .sharing(&required, &optional)
            .into_iter()
            .map(|shared| Evidence::new(shared, &open))
            .collect();
        let skewed = self.skew.is_skewed();
        if !skewed {
            recent.retain(|evidence| evidence.age <= EVEN_AGE);
        }
        // Ages differ, so these are the newest ones. More would cost a small body too much.
        let most = MOST_STEPS / open.len().max(1);
        if recent.len() > most {
            recent.retain(|evidence| usize::from(evidence.age) <= most);
        }
        if recent.is_empty() {
            return followed_by_rank(path, candidates.len());
        }
        let mut scores = Scores::of(&recent);
        while !recent.is_empty() && !open.is_empty() {
            let allowed = (open.iter())
                .enumerate()
                .filter(|(_, open)| self.allowed.next(&path, open.rank));
            // On a tie, the best-ranked document.
            let next = allowed.min_by_key(|(_, open)| {
                let [requests, tokens] = scores.get(open);
                if skewed {
                    u128::MAX - u128::from(tokens) * u128::from(open.tokens)
                } else {
                    u128::from(requests)
                }
            });
            let Some((at, _)) = next else { break };
            let next = open.remove(at);
            path.push(next.rank);
            recent.retain_mut(|evidence| {
                let remains = evidence.has(&next);
                if !remains {
                    scores.remove(evidence);
                }
                evidence.follow(&next);
                remains && evidence.mask != 0
            });
            scores.follow(&next, &open);
        }
        followed_by_rank(path, candidates.len())
    }

    fn remember(&mut self, ranked: &[Fingerprint], order: &[u16]) {
        let newer = self.window.len() / 2;
        let counts = (ranked.iter()).map(|document| self.window.counts(*document, newer));
        self.skew.observe(&counts.collect::<Counts>());
        let placed = order.iter();
        self.window
            .push(placed.filter_map(|&rank| ranked.get(usize::from(rank)).copied()));
    }
}

/// A candidate document that is not yet in the order that is being built.
struct Open {
    fingerprint: Fingerprint,
    tokens: u32,
    rank: u16,
    /// The index of the bit that stands for this candidate in [`Shared::mask`].
    bit: u32,
}

/// Returns the best-ranked candidates that are not in `path` (the ranks of the order built so far), at most
/// [`MAX_DOCUMENTS`].
fn open_candidates(candidates: &[Candidate<'_>], path: &Order) -> SmallVec<[Open; 16]> {
    let mut placed: SmallVec<[u16; 16]> = path.clone();
    sort_by_key(&mut placed, |rank| *rank);
    (0_u16..)
        .zip(candidates)
        .filter(|(rank, _)| placed.binary_search(rank).is_err())
        .take(MAX_DOCUMENTS)
        .zip(0..)
        .map(|((rank, candidate), bit)| Open {
            fingerprint: candidate.fingerprint,
            tokens: candidate.tokens,
            rank,
            bit,
        })
        .collect()
}

/// A recent request that has all documents of the order built so far, and at least one other candidate.
struct Evidence {
    /// A bit for each candidate that is not yet in the order (see [`Open::bit`]), set if the recent request has this
    /// document.
    mask: u64,
    /// Estimated tokens of the candidates whose bits are set in `mask`.
    tokens: u64,
    age: u16,
}

impl Evidence {
    fn new(shared: Shared, open: &[Open]) -> Self {
        Self {
            mask: shared.mask,
            tokens: bits(shared.mask)
                .filter_map(|bit| open.get(bit))
                .map(|open| u64::from(open.tokens))
                .sum(),
            age: shared.age,
        }
    }

    fn has(&self, open: &Open) -> bool {
        self.mask >> open.bit & 1 == 1
    }

    /// Removes the candidate `next`, which was just added to the order, from this recent request's mask and tokens.
    fn follow(&mut self, next: &Open) {
        self.mask &= !(1 << next.bit);
        self.tokens = self.tokens.saturating_sub(next.tokens.into());
    }
}

/// For each candidate, at the index of its bit: the number of recent requests that have it, by which candidates are
/// compared in even traffic, and the sum of the tokens of all candidates that each of these has, for skewed traffic.
struct Scores([[u64; 2]; MAX_DOCUMENTS]);

impl Scores {
    fn of(recent: &[Evidence]) -> Self {
        let mut scores = Self([[0; 2]; MAX_DOCUMENTS]);
        for evidence in recent {
            scores.change(evidence, u64::wrapping_add);
        }
        scores
    }

    fn get(&self, open: &Open) -> [u64; 2] {
        self.0.get(open.bit as usize).copied().unwrap_or_default()
    }

    fn remove(&mut self, evidence: &Evidence) {
        self.change(evidence, u64::wrapping_sub);
    }

    fn change(&mut self, evidence: &Evidence, change: impl Fn(u64, u64) -> u64) {
        for bit in bits(evidence.mask) {
            if let Some([requests, tokens]) = self.0.get_mut(bit) {
                *requests = change(*requests, 1);
                *tokens = change(*tokens, evidence.tokens);
            }
        }
    }

    /// Subtracts the tokens of `next`, which was just added to the order, and which all remaining recent requests have.
    fn follow(&mut self, next: &Open, open: &[Open]) {
        for open in open {
            if let Some([requests, tokens]) = self.0.get_mut(open.bit as usize) {
                *tokens = tokens.wrapping_sub(*requests * u64::from(next.tokens));
            }
        }
    }
}

fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (bit < MAX_DOCUMENTS).then_some(bit)
    })
}

/// A measure of whether traffic is skewed, that is, whether the documents that are requested often remain the same. It
/// is the correlation between documents' counts in the newer and in the older half of the window of recent requests,
/// summed over requests with exponential decay.
///
/// Within one half, bursts alone make counts differ, but they do not make the halves agree. The measure is taken where
/// requests are recorded rather than ordered, so that other workers' requests count equally.
struct Skew {
    /// Sum, over requests with exponential decay, of the products of two deviations from the mean count of a request's
    /// documents: in the newer and in the older half of the window. `newer_newer` and `older_older` are the sums of the
    /// squares in each half.
    newer_older: f64,
    newer_newer: f64,
    older_older: f64,
}

/// For each document of a request, the number of requests with it in the newer and in the older half of the window of
/// recent requests.
type Counts = SmallVec<[[u32; 2]; 16]>;

/// The factor by which the weight of earlier requests in [`Skew`] shrinks with each new one; after 1,000 requests, half
/// is left.
const DECAY: f64 = 0.9993;

/// The correlation (see [`Skew`]) above which traffic counts as skewed: some documents are requested far more than
/// others. The correlation is 0.0 on bursty traces and 0.4 to 0.7 on XQuAD, Zipf topics and conversations.
const SKEWED: f64 = 0.1;

impl Default for Skew {
    /// Returns the initial state, in which traffic counts as skewed: the sums give a correlation of 0.2, above
    /// [`SKEWED`].
    fn default() -> Self {
        Self {
            newer_older: 10.0,
            newer_newer: 50.0,
            older_older: 50.0,
        }
    }
}

impl Skew {
    /// Adds one request to the measure. `counts` has, for each of its documents, the number of requests with this
    /// document in the newer and in the older half of the window of recent requests.
    fn observe(&mut self, counts: &[[u32; 2]]) {
        let documents = counts.len().max(1) as f64;
        let mut means = [0.0; 2];
        for count in counts {
            for (mean, count) in means.iter_mut().zip(count) {
                *mean += f64::from(*count) / documents;
            }
        }
        self.newer_older *= DECAY;
        self.newer_newer *= DECAY;
        self.older_older *= DECAY;
        for [newer, older] in counts {
            let (newer, older) = (f64::from(*newer) - means[0], f64::from(*older) - means[1]);
            self.newer_older += newer * older;
            self.newer_newer += newer * newer;
            self.older_older += older * older;
        }
    }

    fn is_skewed(&self) -> bool {
        self.newer_older > SKEWED * (self.newer_newer * self.older_older).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::{SCOPE, candidates, ordered, tree_of};

    fn foresight() -> Foresight {
        Foresight::new(100, Displacement::ANY)
    }

    /// Returns a policy that has learnt from `requests`, each a list of documents.
    fn taught(requests: &[&[u64]]) -> Foresight {
        let mut policy = foresight();
        let mut tree = tree_of(&[]);
        for request in requests {
            let candidates = candidates(&mut tree, request);
            policy.remember(
                &super::super::fingerprints(&candidates),
                &super::super::ranks(request.len()),
            );
        }
        policy
    }

    #[test]
    fn without_experience_rank_follows_the_match() {
        assert_eq!(
            ordered(&mut foresight(), &[&[3, 8]], &[1, 2, 3, 4]),
            [3, 1, 2, 4]
        );
    }

    #[test]
    fn what_was_asked_for_together_follows_the_match() {
        let mut policy = taught(&[&[3, 4, 8], &[3, 4, 2], &[3, 2, 4], &[1, 9], &[1, 8]]);
        assert_eq!(
            ordered(&mut policy, &[&[3, 7]], &[1, 2, 3, 4]),
            [3, 4, 2, 1]
        );
    }

    #[test]
    fn long_documents_stand_before_short_ones_asked_for_as_often() {
        // Document 60 has 70 tokens, document 1 has 11.
        let mut policy = taught(&[&[1, 60]]);
        assert_eq!(ordered(&mut policy, &[], &[1, 60]), [60, 1]);
    }

    #[test]
    fn even_traffic_gets_the_combination_least_seen() {
        let mut policy = taught(&[&[1, 2, 3], &[1, 2, 4], &[1, 3, 4]]);
        policy.skew.newer_older = 0.0;
        // 1 and 2 were seen together most: 4 and 3 come first.
        assert_eq!(ordered(&mut policy, &[], &[1, 2, 3, 4])[3], 1);
    }

    #[test]
    fn traffic_is_skewed_when_what_was_asked_for_more_still_is() {
        let mut skew = Skew::default();
        assert!(skew.is_skewed());
        // A burst for the first two documents, one for the last two: uneven in each half, but not the same way.
        for _ in 0..200 {
            skew.observe(&[[2, 0], [2, 0], [0, 2], [0, 2]]);
        }
        assert!(!skew.is_skewed());
        for _ in 0..1_000 {
            skew.observe(&[[2, 2], [1, 1], [0, 0], [0, 0]]);
        }
        assert!(skew.is_skewed());
    }

    #[test]
    fn what_others_ordered_shows_whether_traffic_is_skewed() {
        let mut policy = foresight();
        let mut tree = tree_of(&[]);
        let mut learn = |documents: &[u64]| {
            let candidates = candidates(&mut tree, documents);
            let ranked = super::super::fingerprints(&candidates);
            policy.remember(&ranked, &super::super::ranks(documents.len()));
            policy.skew.is_skewed()
        };
        // Bursts: documents frequent in one half of the window are absent from the other.
        let even = (0..2_000).map(|at: u64| learn(&[at / 50 % 4, 10 + at / 50 % 4, 20 + at % 5]));
        assert_eq!(even.last(), Some(false));
        let skewed = (0..2_000).map(|at: u64| learn(&[at % 2, 2 + at % 10, 20 + at % 40]));
        assert_eq!(skewed.last(), Some(true));
    }

    #[test]
    fn no_document_moves_farther_than_allowed() {
        let documents: Vec<u64> = (0..30).collect();
        let reversed: Vec<u64> = documents.iter().rev().copied().collect();
        for most in [0_u16, 1, 3, 40] {
            let mut policy = taught(&[&reversed, &[29, 5], &[29, 5]]);
            policy.allowed = Displacement(Some(most));
            let order = ordered(
                &mut policy,
                &[&reversed, &[2, 1, 0], &[9, 5, 0]],
                &documents,
            );
            let farthest = (0..)
                .zip(&order)
                .map(|(place, &document)| document.abs_diff(place))
                .max()
                .unwrap();
            assert!(
                farthest <= u64::from(most),
                "{farthest} places with {most} allowed"
            );
            assert_eq!(farthest == 0, most == 0);
        }
    }

    #[test]
    fn more_documents_than_bits_are_ordered_too() {
        let documents: Vec<u64> = (0..200).collect();
        let mut policy = taught(&[&documents, &documents]);
        let mut order = ordered(&mut policy, &[], &documents);
        order.sort_unstable();
        assert_eq!(order, documents);
        let mut tree = tree_of(&[&documents]);
        let candidates = candidates(&mut tree, &documents);
        assert_eq!(
            policy.order(&candidates, Start::behind(&tree, SCOPE)).len(),
            200
        );
    }
}
