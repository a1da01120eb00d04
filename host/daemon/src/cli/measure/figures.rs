//! The figures of a workload: a row per arm, over all requests and over the second half.
//!
//! The first requests of a seed are excluded, as in RAGCache++ (section 4), because engine and gateway begin empty. The
//! rest is *all*, and the second half of the trace *steady*. A figure is computed for each seed; the result is the mean
//! of these, with the half width of its 95 % interval by Student's t. With one seed there is no interval.

use super::arm::Arm;
use super::replay::{Outcome, Sample};
use foreword_report::plot::quantile;
use serde::Serialize;
use serde_json::{Value, json};

/// Number of requests excluded at the beginning of each seed's trace, but at most half of the trace.
pub(super) const WARM_UP: usize = 5;

/// A figure's mean over the seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Estimate {
    pub(super) mean: f64,
    /// Half the width of the 95 % interval; `None` for one seed.
    pub(super) within: Option<f64>,
}

foreword_ordering::named! {
    /// The part of a trace over which a figure is computed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Part {
        /// Everything after the warm-up.
        All = "all",
        /// The second half of the trace, where engine and gateway are warm.
        Steady = "steady",
    }
}

/// An arm's figures. Times are to the first token, in seconds.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) arm: Arm,
    pub(super) mean: Estimate,
    pub(super) p50: Estimate,
    pub(super) p95: Estimate,
    /// One minus the ratio of the arm's mean time to that in retrieval order, per seed; `None` for retrieval order.
    pub(super) mean_below: Option<Estimate>,
    /// One minus the ratio of the arm's median time to that in retrieval order, per seed; `None` for retrieval order.
    pub(super) p50_below: Option<Estimate>,
    /// Fraction (0 to 1) of requests that were faster than in retrieval order.
    pub(super) faster: Option<f64>,
    /// Fraction (0 to 1) of prompt tokens that the cache held.
    pub(super) saved_tokens: f64,
    /// One minus the ratio of the time to the first token to its median without a cache: the median, mean and 95th
    /// percentile of these savings (RAGCache++, table 7).
    pub(super) saved_time: Option<[f64; 3]>,
    /// Fraction (0 to 1) of requests whose time to the first token is below .6 of its median without a cache
    /// (RAGCache++'s Fast%, whose median is that of the warm-up).
    pub(super) fast: Option<f64>,
    /// Number of requests for which the cache held at least a part of the first document.
    pub(super) benefiting: usize,
    /// Number of all requests.
    pub(super) requests: usize,
    /// Mean number of tokens in a prompt.
    pub(super) prompt_tokens: f64,
    /// `prompt_tokens` minus those in retrieval order: the tokens of the hint.
    pub(super) hint_tokens: Option<f64>,
    /// Mean seconds that the gateway needed to order a request's documents.
    pub(super) ordering: f64,
    /// Mean seconds to make the prompt's tokens from the ordered body.
    pub(super) building: f64,
    /// Mean seconds in the engine until the first token.
    pub(super) prefill: f64,
}

impl Part {
    /// Returns the samples of one seed that belong to this part.
    pub(super) fn of(self, seed: &[Sample]) -> &[Sample] {
        let first = match self {
            Self::All => WARM_UP.min(seed.len() / 2),
            Self::Steady => seed.len() / 2,
        };
        seed.get(first..).unwrap_or_default()
    }
}

/// Returns a row for each outcome, in order. `shared` is the number of tokens that all prompts share at their
/// beginning.
pub(super) fn rows(outcomes: &[Outcome], part: Part, shared: u32) -> Vec<Row> {
    let of = |arm| outcomes.iter().find(|outcome| outcome.arm == arm);
    let (retrieval, none) = (of(Arm::RETRIEVAL), of(Arm::NoCache));
    outcomes
        .iter()
        .map(|outcome| row(outcome, retrieval, none, part, shared))
        .collect()
}

fn row(
    outcome: &Outcome,
    retrieval: Option<&Outcome>,
    none: Option<&Outcome>,
    part: Part,
    shared: u32,
) -> Row {
    let by_seed = |outcome: &Outcome, figure: fn(&[f64]) -> f64| -> Vec<f64> {
        let seeds = outcome.seeds.iter();
        seeds.map(|seed| figure(&times(part.of(seed)))).collect()
    };
    let below = |figure: fn(&[f64]) -> f64| {
        let other = by_seed(retrieval.filter(|other| other.arm != outcome.arm)?, figure);
        let own = by_seed(outcome, figure);
        let shares: Vec<f64> = own
            .iter()
            .zip(other)
            .map(|(own, other)| 1.0 - own / other)
            .collect();
        Some(Estimate::of(&shares))
    };
    let samples: Vec<&Sample> = counted(outcome, part).collect();
    let count = samples.len().max(1) as f64;
    let sum = |figure: fn(&Sample) -> f64| samples.iter().map(|sample| figure(sample)).sum::<f64>();
    let cold = none
        .filter(|none| none.arm != outcome.arm)
        .map(|none| median(counted(none, part).map(Sample::ttft).collect()));
    let prompt_tokens = |outcome: &Outcome| {
        let samples = counted(outcome, part);
        samples
            .map(|sample| f64::from(sample.prompt_tokens))
            .sum::<f64>()
            / count
    };
    Row {
        arm: outcome.arm,
        mean: Estimate::of(&by_seed(outcome, mean)),
        p50: Estimate::of(&by_seed(outcome, |times| quantile(times, 0.5))),
        p95: Estimate::of(&by_seed(outcome, |times| quantile(times, 0.95))),
        mean_below: below(mean),
        p50_below: below(|times| quantile(times, 0.5)),
        faster: retrieval
            .filter(|other| other.arm != outcome.arm)
            .map(|other| {
                let pairs = samples.iter().zip(counted(other, part));
                pairs
                    .filter(|(own, other)| own.ttft() < other.ttft())
                    .count() as f64
                    / count
            }),
        saved_tokens: sum(|sample| f64::from(sample.cached_tokens))
            / sum(|sample| f64::from(sample.prompt_tokens)).max(1.0),
        fast: cold.map(|cold| {
            let fast = samples.iter().filter(|sample| sample.ttft() < 0.6 * cold);
            fast.count() as f64 / count
        }),
        saved_time: cold.map(|cold| {
            let mut saved: Vec<f64> = samples
                .iter()
                .map(|sample| 1.0 - sample.ttft() / cold)
                .collect();
            saved.sort_by(f64::total_cmp);
            [quantile(&saved, 0.5), mean(&saved), quantile(&saved, 0.95)]
        }),
        benefiting: samples
            .iter()
            .filter(|sample| sample.cached_tokens > shared)
            .count(),
        requests: samples.len(),
        prompt_tokens: prompt_tokens(outcome),
        hint_tokens: retrieval.map(|other| prompt_tokens(outcome) - prompt_tokens(other)),
        ordering: sum(|sample| sample.ordering) / count,
        building: sum(|sample| sample.building) / count,
        prefill: sum(|sample| sample.prefill) / count,
    }
}

/// Returns the samples of all seeds that belong to `part`.
pub(super) fn counted(outcome: &Outcome, part: Part) -> impl Iterator<Item = &Sample> {
    outcome.seeds.iter().flat_map(move |seed| part.of(seed))
}

/// Returns the samples' times to the first token, ascending.
pub(super) fn times<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Vec<f64> {
    let mut times: Vec<f64> = samples.into_iter().map(Sample::ttft).collect();
    times.sort_by(f64::total_cmp);
    times
}

impl Estimate {
    /// Returns the estimate from one value per seed.
    pub(super) fn of(values: &[f64]) -> Self {
        let average = mean(values);
        let squares: f64 = values.iter().map(|value| (value - average).powi(2)).sum();
        let within = values.len().checked_sub(2).map(|at| {
            let (count, free) = (values.len() as f64, (values.len() - 1) as f64);
            let quantile = STUDENT.get(at).copied().unwrap_or(1.96);
            quantile * (squares / free).sqrt() / count.sqrt()
        });
        Self {
            mean: average,
            within,
        }
    }
}

/// Quantiles of Student's t for a two-sided interval of 95 %, for 1 to 10 degrees of freedom.
const STUDENT: [f64; 10] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
];

impl Row {
    /// Returns the row as JSON, with times in milliseconds, except ordering and building in microseconds.
    pub(super) fn to_json(&self) -> Value {
        let milliseconds = |estimate: Estimate| Estimate {
            mean: 1e3 * estimate.mean,
            within: estimate.within.map(|within| 1e3 * within),
        };
        json!({
            "arm": self.arm.name(),
            "ttft_mean_ms": milliseconds(self.mean),
            "ttft_p50_ms": milliseconds(self.p50),
            "ttft_p95_ms": milliseconds(self.p95),
            "mean_below_retrieval": self.mean_below,
            "p50_below_retrieval": self.p50_below,
            "faster": self.faster,
            "saved_tokens": self.saved_tokens,
            "saved_time": self.saved_time.map(|[p50, mean, p95]| json!({"p50": p50, "mean": mean, "p95": p95})),
            "fast": self.fast,
            "benefiting": self.benefiting,
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "hint_tokens": self.hint_tokens,
            "ordering_us": 1e6 * self.ordering,
            "building_us": 1e6 * self.building,
            "prefill_ms": 1e3 * self.prefill,
        })
    }
}

/// Returns the mean; 0 without values.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the median; 0 without values.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two arms of two seeds with ten requests each; the gateway halves every time and saves half of the tokens.
    pub(in crate::cli::measure) fn example() -> Vec<Outcome> {
        let seeds = |share: f64| -> Vec<Vec<Sample>> {
            let seed = |seed: u32| {
                let sample = |at: u32| Sample {
                    ordering: 1e-5,
                    building: 2e-5,
                    prefill: share * f64::from(100 + 10 * at + seed),
                    prompt_tokens: 1_000,
                    cached_tokens: ((1.0 - share) * 1_000.0) as u32,
                };
                (0..10).map(sample).collect()
            };
            (0..2).map(seed).collect()
        };
        [
            (Arm::NoCache, 1.0),
            (Arm::RETRIEVAL, 1.0),
            (Arm::SHIPPED, 0.5),
        ]
        .into_iter()
        .map(|(arm, share)| Outcome {
            arm,
            seeds: seeds(share),
            seconds: share,
        })
        .collect()
    }

    #[test]
    fn rows_compare_each_arm_with_retrieval_order() {
        let rows = rows(&example(), Part::All, 100);
        let shipped = &rows[2];
        assert_eq!(
            shipped.requests, 10,
            "the first five of each seed do not count"
        );
        assert_eq!(shipped.faster, Some(1.0));
        assert_eq!((shipped.saved_tokens, shipped.benefiting), (0.5, 10));
        assert!((shipped.mean_below.unwrap().mean - 0.5).abs() < 1e-3);
        assert!((shipped.saved_time.unwrap()[1] - 0.5).abs() < 0.01);
        assert_eq!((shipped.fast, rows[1].fast), (Some(1.0), Some(0.0)));
        assert_eq!(rows[1].benefiting, 0);
        assert_eq!(rows[1].faster, None);
        assert_eq!(shipped.hint_tokens, Some(0.0));
    }

    #[test]
    fn the_second_half_is_the_steady_state() {
        let outcomes = example();
        let steady = rows(&outcomes, Part::Steady, 100);
        assert!(steady[1].mean.mean > 150.0);
        assert_eq!(Part::Steady.of(&outcomes[0].seeds[0]).len(), 5);
        assert_eq!(Part::All.of(&outcomes[0].seeds[0][..4]).len(), 2);
    }

    #[test]
    fn an_interval_needs_two_seeds() {
        assert_eq!(Estimate::of(&[3.0]).within, None);
        assert_eq!(Estimate::of(&[1.0, 3.0]).mean, 2.0);
        // t with one degree of freedom, times the deviation of sqrt(2), by sqrt(2).
        assert!((Estimate::of(&[1.0, 3.0]).within.unwrap() - 12.706).abs() < 1e-9);
        assert_eq!(Estimate::of(&[2.0, 2.0, 2.0]).within, Some(0.0));
    }
}
