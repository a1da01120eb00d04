//! The pairwise upper bound on a trace's reuse: each request counts its largest overlap, in tokens, with any one
//! earlier request of its scope. No order exceeds it, since a cached prefix came from one earlier request that had all
//! of it. On some traces no order reaches it: one request's best order is another's worst.
//!
//! The exact bound compares every two requests that share a document, so its cost grows with the square of the trace.
//! Beyond a budget of comparisons, it is estimated from a random sample of the requests.

use super::CompactTrace;
use foreword_ordering::document::Fingerprint;
use foreword_ordering::random::Random;
use foreword_ordering::tree::Scope;
use fxhash::FxHashMap;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// An upper bound on reuse under any order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// The bound, as a share of the document tokens.
    pub share: f64,
    /// True if it was estimated from a sample.
    pub sampled: bool,
}

impl Bound {
    /// Computes the bound of `trace`, with matches cut to whole pages of `page_tokens` tokens, like those of
    /// [`EngineCache`](super::EngineCache). `seed` determines the sample. `progress` is called after every part (a
    /// group of documents that is ordered separately), with its number from 1.
    #[must_use]
    pub fn of(
        trace: &CompactTrace,
        seed: u64,
        page_tokens: u32,
        progress: impl FnMut(usize),
    ) -> Self {
        Self::within(trace, seed, page_tokens, BUDGET, progress)
    }

    fn within(
        trace: &CompactTrace,
        seed: u64,
        page_tokens: u32,
        budget: u64,
        mut progress: impl FnMut(usize),
    ) -> Self {
        let Places { numbers, counts } = Places::of(trace);
        let every = comparisons(&counts).div_ceil(budget).max(1);
        let mut random = Random::new(seed);
        // By document number, the parts so far with that document.
        let mut holders: Vec<Vec<u32>> = vec![Vec::new(); counts.len()];
        // By part, the tokens shared with the current one.
        let mut shared: Vec<u64> = Vec::new();
        let (mut reused, mut total) = (0, 0);
        let mut met: Vec<u32> = Vec::new();
        let mut numbers = numbers.into_iter();
        for (at, (_, documents)) in trace.parts().enumerate() {
            let measured = random.below(every) == 0;
            for (document, number) in documents.zip(&mut numbers) {
                let Some(holders) = holders.get_mut(number) else {
                    continue;
                };
                if measured {
                    total += u64::from(document.tokens);
                    for &earlier in &*holders {
                        let Some(shared) = shared.get_mut(earlier as usize) else {
                            continue;
                        };
                        if *shared == 0 {
                            met.push(earlier);
                        }
                        *shared += u64::from(document.tokens);
                    }
                }
                // 2^32 requests would need more memory than there is.
                holders.push(u32::try_from(at).unwrap_or(u32::MAX));
            }
            shared.push(0);
            let taken = met
                .drain(..)
                .filter_map(|earlier| shared.get_mut(earlier as usize).map(std::mem::take));
            let most = taken.max().unwrap_or(0);
            reused += most - most % u64::from(page_tokens.max(1));
            progress(at + 1);
        }
        Self {
            share: if total == 0 {
                0.0
            } else {
                reused as f64 / total as f64
            },
            sampled: every > 1,
        }
    }
}

/// Most comparisons, which take some seconds.
const BUDGET: u64 = 400_000_000;

/// The documents of a trace as numbers, a different one in each scope.
struct Places {
    /// Document numbers of all parts, one part after another.
    numbers: Vec<usize>,
    /// By document number, the number of parts with it.
    counts: Vec<u64>,
}

impl Places {
    fn of(trace: &CompactTrace) -> Self {
        let mut known = FxHashMap::default();
        let mut places = Self {
            numbers: Vec::new(),
            counts: Vec::new(),
        };
        for (scope, documents) in trace.parts() {
            for document in documents {
                let next = places.counts.len();
                let number = *known
                    .entry(identity(scope, document.fingerprint))
                    .or_insert(next);
                if number == next {
                    places.counts.push(0);
                }
                if let Some(count) = places.counts.get_mut(number) {
                    *count += 1;
                }
                places.numbers.push(number);
            }
        }
        places
    }
}

/// Returns the identity of a document under a scope.
fn identity(scope: Scope, document: Fingerprint) -> Fingerprint {
    Fingerprint(xxh3_64_with_seed(&document.0.to_le_bytes(), scope.0))
}

/// Returns the number of pairs of parts that share a document, counted by document.
fn comparisons(counts: &[u64]) -> u64 {
    let pairs = counts.iter().map(|&n| n * n.saturating_sub(1) / 2);
    pairs.sum()
}

#[cfg(test)]
mod tests {
    use super::super::compact::tests::generated;
    use super::*;

    #[test]
    fn it_is_the_exact_bound_and_a_sample_comes_near() {
        let (trace, requests) = generated(2_000);
        let mut told = Vec::new();
        let exact = Bound::of(&trace, 0, 1, |done| told.push(done));
        let list = crate::workloads::upper_bound(&requests).share();
        assert!(!exact.sampled && (exact.share - list).abs() < 1e-12);
        assert_eq!(told, (1..=2_000).collect::<Vec<_>>());
        let sample = Bound::within(&trace, 3, 1, 20_000, |_| ());
        assert!(sample.sampled);
        assert!((sample.share - list).abs() < 0.05, "{sample:?} of {list}");
    }
}
