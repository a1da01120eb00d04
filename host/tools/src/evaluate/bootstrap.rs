//! The paired percentile bootstrap (Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter 13): it
//! estimates how much a figure (such as a share of right answers) would vary with other questions of the same kind.
//!
//! From `n` cases (questions and chats), `n` are drawn with replacement, 10,000 times. The figure is computed from
//! every draw, and the interval covers the middle 95 % of the results. A case is drawn as a whole, with its turns under
//! all arms (ways to ask). So a question's difficulty cancels out of a difference, and similar turns of one chat do not
//! count as independent.

use foreword_ordering::random::Random;
use foreword_report::plot::quantile;

/// The 95 % confidence interval of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) low: f64,
    pub(super) high: f64,
}

/// The verdict on the difference between the scores of two arms, or ways to ask (the first minus the second), over the
/// same cases, by the difference's 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The scores count as equal: both ends of the confidence interval of their difference are at most [`MARGIN`] (one
    /// percentage point) from 0, and there are at least [`MIN_CASES_WITHIN`] (300) cases.
    Within,
    /// The first score is higher: the confidence interval of the difference lies entirely above 0, and
    /// [`Verdict::Within`] does not apply.
    Better,
    /// The first score is lower: the confidence interval of the difference lies entirely below 0, and
    /// [`Verdict::Within`] does not apply.
    Worse,
    /// Unclear: there are fewer than [`MIN_CASES`] cases, or the interval includes 0 and [`Verdict::Within`] does not
    /// apply.
    NotEnough,
    /// No answer is right under either arm (way to ask), so there is nothing to compare.
    NothingRight,
}

/// Number of times that the cases (questions and chats) are drawn, with replacement, for one confidence interval.
pub(super) const RESAMPLES: usize = 10_000;

/// Largest difference between the scores of two arms (ways to ask) that counts as equal, in percentage points.
pub(super) const MARGIN: f64 = 1.0;

/// Minimum number of cases (questions and chats) for a verdict on a difference. With fewer, the bootstrap's interval is
/// too narrow: draws of the same few cases vary less than other questions would.
pub(super) const MIN_CASES: usize = 30;

/// Minimum number of cases (questions and chats) for [`Verdict::Within`], the verdict that the scores of two arms (ways
/// to ask) are equal within [`MARGIN`] (one percentage point). If the scores agree in all `n` cases, they can still
/// differ in a share of up to 3/n of all questions (the rule of three, at 95 %); drawing the same cases again cannot
/// show this. So 3/n must be at most one point, and `n` at least 300.
pub(super) const MIN_CASES_WITHIN: usize = 300;

/// Returns the 95 % confidence intervals of `N` statistics by the bootstrap. Each of the `resamples` draws takes
/// `cases` indices of cases (from 0) at random, with replacement, and `statistics` returns the values for the drawn
/// cases.
///
/// The same seed gives the same draws. With 0 cases, both ends are the value of a statistic for no cases.
pub(super) fn intervals<const N: usize>(
    cases: usize,
    resamples: usize,
    seed: u64,
    mut statistics: impl FnMut(&[usize]) -> [f64; N],
) -> [Interval; N] {
    let mut random = Random::new(seed);
    let mut drawn = vec![0; cases];
    let mut values: [Vec<f64>; N] = std::array::from_fn(|_| Vec::new());
    for _ in 0..resamples.max(1) {
        for case in &mut drawn {
            *case = random.below(cases as u64) as usize;
        }
        for (values, value) in values.iter_mut().zip(statistics(&drawn)) {
            values.push(value);
        }
    }
    values.map(|mut values| {
        values.sort_unstable_by(f64::total_cmp);
        Interval {
            low: quantile(&values, 0.025),
            high: quantile(&values, 0.975),
        }
    })
}

impl Verdict {
    /// Returns the verdict on a difference of scores in percentage points, by its confidence interval and the number of
    /// cases; differences within [`MARGIN`] count as equal.
    pub(super) fn of(difference: Interval, cases: usize) -> Self {
        let Interval { low, high } = difference;
        if cases < MIN_CASES {
            Self::NotEnough
        } else if low >= -MARGIN && high <= MARGIN && cases >= MIN_CASES_WITHIN {
            Self::Within
        } else if low > 0.0 {
            Self::Better
        } else if high < 0.0 {
            Self::Worse
        } else {
            Self::NotEnough
        }
    }

    /// Returns the verdict on a difference by the sign of its confidence interval and the number of cases. It ignores
    /// [`MARGIN`], so it is never [`Verdict::Within`].
    pub(super) fn of_sign(difference: Interval, cases: usize) -> Self {
        match difference {
            _ if cases < MIN_CASES => Self::NotEnough,
            Interval { low, .. } if low > 0.0 => Self::Better,
            Interval { high, .. } if high < 0.0 => Self::Worse,
            Interval { .. } => Self::NotEnough,
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Within => "within ±1 point",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NotEnough => "not enough questions",
            Self::NothingRight => "no answer is right",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean<'v>(values: &'v [f64]) -> impl FnMut(&[usize]) -> [f64; 1] + 'v {
        |drawn| [drawn.iter().map(|&at| values[at]).sum::<f64>() / drawn.len() as f64]
    }

    /// Returns the interval of the mean from all possible draws, instead of 10,000 random ones.
    fn exact(values: &[f64]) -> Interval {
        let n = values.len();
        let mut means: Vec<f64> = (0..n.pow(n as u32))
            .map(|number| {
                let drawn: Vec<_> = (0..n).map(|at| number / n.pow(at as u32) % n).collect();
                mean(values)(&drawn)[0]
            })
            .collect();
        means.sort_by(f64::total_cmp);
        let at = |share: f64| means[(share * means.len() as f64).ceil() as usize - 1];
        Interval {
            low: at(0.025),
            high: at(0.975),
        }
    }

    #[test]
    fn it_finds_what_all_possible_draws_give() {
        // Values without ties among their means, so that a quantile is not on a step by chance.
        for values in [
            &[1.0, 2.7, 7.3, 11.9, 20.1, 33.4][..],
            &[-3.1, 0.2, 0.9, 4.4, 4.6, 9.7, 30.3],
        ] {
            let exact = exact(values);
            let [drawn] = intervals(values.len(), RESAMPLES, 7, mean(values));
            let width = exact.high - exact.low;
            assert!((drawn.low - exact.low).abs() < 0.05 * width, "{drawn:?}");
            assert!((drawn.high - exact.high).abs() < 0.05 * width, "{drawn:?}");
        }
    }

    #[test]
    fn a_rate_gets_the_interval_that_the_normal_distribution_gives() {
        // 400 of 1,000: 0.4 ± 1.96 · sqrt(0.4 · 0.6 / 1000).
        let values: Vec<_> = (0..1_000).map(|at| f64::from(at % 5 < 2)).collect();
        let [found] = intervals(values.len(), 2_000, 3, mean(&values));
        let half = 1.96 * (0.24_f64 / 1_000.0).sqrt();
        assert!((found.low - (0.4 - half)).abs() < 0.004, "{found:?}");
        assert!((found.high - (0.4 + half)).abs() < 0.004, "{found:?}");
    }

    #[test]
    fn a_seed_fixes_the_interval() {
        let values: Vec<_> = (0..50).map(|at| f64::from(at * at % 17)).collect();
        let of = |seed| intervals(values.len(), 500, seed, mean(&values));
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        let [none] = intervals(0, 10, 1, |drawn| [drawn.len() as f64]);
        assert_eq!(none.high, 0.0);
    }

    #[test]
    fn verdicts_follow_the_interval_and_the_number_of_cases() {
        let of = |low, high, cases| Verdict::of(Interval { low, high }, cases);
        assert_eq!(of(-0.9, 0.9, 2_000), Verdict::Within);
        assert_eq!(of(0.1, 0.9, 2_000), Verdict::Within);
        assert_eq!(of(0.1, 1.1, 2_000), Verdict::Better);
        assert_eq!(of(-3.0, -0.1, 2_000), Verdict::Worse);
        assert_eq!(of(-1.1, 0.9, 2_000), Verdict::NotEnough);
        // All agree, but the cases are too few to conclude that.
        assert_eq!(of(0.0, 0.0, 299), Verdict::NotEnough);
        assert_eq!(of(0.0, 0.0, 300), Verdict::Within);
        assert_eq!(of(2.0, 4.0, 29), Verdict::NotEnough);
        assert_eq!(of(2.0, 4.0, 30), Verdict::Better);
        let of_sign = |low, high, cases| Verdict::of_sign(Interval { low, high }, cases);
        assert_eq!(of_sign(0.01, 0.9, 30), Verdict::Better);
        assert_eq!(of_sign(-0.2, -0.01, 30), Verdict::Worse);
        assert_eq!(of_sign(-0.01, 0.01, 900), Verdict::NotEnough);
        assert_eq!(of_sign(0.01, 0.9, 29), Verdict::NotEnough);
    }
}
