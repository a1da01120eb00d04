//! A trace under one policy: tokens reused as requests go by, and how long decisions took.

use super::progress;
use super::trace::Trace;
use anyhow::Result;
use foreword_ordering::policy::{PolicyKind, PolicyOptions};
use foreword_ordering::simulation::{Capacity, Replay, Reuse};
use std::time::{Duration, Instant};

/// What a policy came to.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) name: &'static str,
    pub(super) reuse: Reuse,
    /// Requests so far, and the reuse up to there: at most [`POINTS`] points at even distances, the last one at the
    /// end.
    pub(super) curve: Vec<(usize, Reuse)>,
    /// Time to decide a request: intern its documents, order them, remember the order. Not the body's rewriting.
    pub(super) mean_us: f64,
    pub(super) p99_us: f64,
}

/// Points of a curve: more than a plot has pixels for is waste.
const POINTS: usize = 240;

/// Replays `trace` under `kind`.
pub(super) fn replay(
    trace: &Trace,
    kind: PolicyKind,
    options: &PolicyOptions,
    capacity: Capacity,
) -> Result<Outcome> {
    let requests = trace.requests();
    let bar = progress::bar(kind.name(), requests)?;
    let mut replay = Replay::new(kind, options, capacity);
    let mut nanoseconds = Vec::with_capacity(requests);
    let mut curve = Vec::with_capacity(POINTS.min(requests));
    let mut next_point = 1;
    for at in 0..requests {
        let mut taken = Duration::ZERO;
        for part in trace.request(at) {
            let began = Instant::now();
            let order = replay.decide(&part);
            taken += began.elapsed();
            replay.serve(&part, &order);
        }
        nanoseconds.push(u32::try_from(taken.as_nanos()).unwrap_or(u32::MAX));
        let done = at + 1;
        if done * POINTS >= next_point * requests {
            curve.push((done, replay.reuse()));
            next_point = done * POINTS / requests + 1;
        }
        if done % progress::STRIDE == 0 {
            bar.set_position(done as u64);
            bar.set_message(format!("{:.1} % reused", 100.0 * replay.reuse().share()));
        }
    }
    bar.finish_and_clear();
    let sum: u64 = nanoseconds.iter().copied().map(u64::from).sum();
    Ok(Outcome {
        name: kind.name(),
        reuse: replay.reuse(),
        curve,
        mean_us: sum as f64 / 1000.0 / requests.max(1) as f64,
        p99_us: f64::from(quantile(&mut nanoseconds, 0.99)) / 1000.0,
    })
}

/// The nearest-rank quantile; 0 of none.
fn quantile(values: &mut [u32], share: f64) -> u32 {
    if values.is_empty() {
        return 0;
    }
    let rank = (share * values.len() as f64).ceil() as usize;
    let (_, value, _) = values.select_nth_unstable(rank.clamp(1, values.len()) - 1);
    *value
}

#[cfg(test)]
mod tests {
    use super::super::trace::tests::generated;
    use super::*;
    use foreword_ordering::simulation;

    #[test]
    fn it_reuses_what_the_cores_replay_does_and_the_curve_ends_there() {
        let options = PolicyOptions::default();
        for requests in [1, 7, 239, 240, 241, 1_000] {
            let (trace, list) = generated(requests);
            let capacity = Capacity::of_prompts(20, &list);
            for kind in [PolicyKind::Retrieval, PolicyKind::Longest] {
                let outcome = replay(&trace, kind, &options, capacity).unwrap();
                let core = simulation::replay(&list, kind, &options, capacity);
                assert_eq!(outcome.reuse, core);
                assert_eq!(outcome.curve.last(), Some(&(requests, core)));
                assert_eq!(outcome.curve.len(), POINTS.min(requests));
                assert!(outcome.mean_us > 0.0);
            }
        }
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let mut values: Vec<u32> = (1..=100).rev().collect();
        assert_eq!(quantile(&mut values, 0.99), 99);
        assert_eq!(quantile(&mut [5], 0.99), 5);
        assert_eq!(quantile(&mut [], 0.5), 0);
    }
}
