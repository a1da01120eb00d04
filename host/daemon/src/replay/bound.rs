//! The pairwise upper bound of [`foreword_ordering::simulation::upper_bound`] over a compact trace, and affordable on
//! a long one: the exact bound compares every two requests that share a document, which grows with the square of the
//! trace, so beyond a budget of comparisons it is estimated from a random sample of the requests.

use super::progress;
use super::trace::Trace;
use anyhow::Result;
use foreword_ordering::random::Random;
use fxhash::FxHashMap;

/// Comparisons that may be made: some seconds.
const BUDGET: u64 = 400_000_000;

/// No order reuses more than this.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bound {
    /// Share of the document tokens.
    pub(super) share: f64,
    /// Whether it was measured on a sample.
    pub(super) sampled: bool,
}

/// The bound of `trace`; `seed` draws the sample.
pub(super) fn upper_bound(trace: &Trace, seed: u64) -> Result<Bound> {
    within(trace, seed, BUDGET)
}

fn within(trace: &Trace, seed: u64, budget: u64) -> Result<Bound> {
    // Documents by scope, numbered; how many parts hold each.
    let mut numbers = FxHashMap::default();
    let mut counts: Vec<u64> = Vec::new();
    let mut places: Vec<usize> = Vec::new();
    let mut comparisons = 0_u64;
    for (scope, documents) in trace.parts() {
        for document in documents {
            let number = *numbers
                .entry((scope, document.fingerprint))
                .or_insert_with(|| {
                    counts.push(0);
                    counts.len() - 1
                });
            places.push(number);
            comparisons += counts[number];
            counts[number] += 1;
        }
    }
    drop(numbers);
    let every = comparisons.div_ceil(budget).max(1);
    let mut random = Random::new(seed);
    let parts = trace.parts().count();
    let bar = progress::bar("upper bound", parts)?;
    let mut holders: Vec<Vec<u32>> = vec![Vec::new(); counts.len()];
    let mut shared: Vec<u64> = vec![0; parts];
    let (mut reused, mut total) = (0, 0);
    let mut met: Vec<u32> = Vec::new();
    let mut numbers = places.into_iter();
    for (at, (_, documents)) in trace.parts().enumerate() {
        let measured = random.below(every) == 0;
        for (document, number) in documents.zip(&mut numbers) {
            if measured {
                total += u64::from(document.tokens);
                for &earlier in &holders[number] {
                    let shared = &mut shared[earlier as usize];
                    if *shared == 0 {
                        met.push(earlier);
                    }
                    *shared += u64::from(document.tokens);
                }
            }
            // 2^32 requests would need more memory than there is.
            holders[number].push(u32::try_from(at).unwrap_or(u32::MAX));
        }
        let taken = met
            .drain(..)
            .map(|earlier| std::mem::take(&mut shared[earlier as usize]));
        reused += taken.max().unwrap_or(0);
        if at % progress::STRIDE == 0 {
            bar.set_position(at as u64);
        }
    }
    bar.finish_and_clear();
    Ok(Bound {
        share: if total == 0 {
            0.0
        } else {
            reused as f64 / total as f64
        },
        sampled: every > 1,
    })
}

#[cfg(test)]
mod tests {
    use super::super::trace::tests::generated;
    use super::*;
    use foreword_ordering::simulation;

    #[test]
    fn it_is_the_cores_bound_and_a_sample_comes_near() {
        let (trace, requests) = generated(2_000);
        let exact = upper_bound(&trace, 0).unwrap();
        let core = simulation::upper_bound(&requests).share();
        assert!(!exact.sampled && (exact.share - core).abs() < 1e-12);
        let sample = within(&trace, 3, 20_000).unwrap();
        assert!(sample.sampled);
        assert!((sample.share - core).abs() < 0.05, "{sample:?} of {core}");
    }
}
