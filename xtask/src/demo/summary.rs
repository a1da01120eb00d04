//! Sums and quantiles of requests.

use std::time::Duration;

use foreword_report::plot::quantile;

use super::replay::Sample;

/// Sums and quantiles of one arm.
pub(super) struct Summary {
    pub(super) requests: usize,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) ttft_mean_ms: f64,
    pub(super) ttft_p50_ms: f64,
    pub(super) ttft_p95_ms: f64,
    pub(super) total_p95_ms: f64,
    pub(super) right: usize,
}

impl Summary {
    pub(super) fn of(samples: &[Sample]) -> Self {
        let times = sorted_ms(samples);
        let totals = sorted(samples.iter().map(|sample| sample.total));
        Self {
            requests: samples.len(),
            prompt_tokens: samples.iter().map(|sample| sample.prompt_tokens).sum(),
            cached_tokens: samples.iter().map(|sample| sample.cached_tokens).sum(),
            ttft_mean_ms: times.iter().sum::<f64>() / times.len().max(1) as f64,
            ttft_p50_ms: quantile(&times, 0.50),
            ttft_p95_ms: quantile(&times, 0.95),
            total_p95_ms: quantile(&totals, 0.95),
            right: samples.iter().filter(|sample| sample.is_right).count(),
        }
    }

    /// Returns the number of prompt tokens that were not cached.
    pub(super) fn computed(&self) -> u64 {
        self.prompt_tokens.saturating_sub(self.cached_tokens)
    }

    /// Returns the share of questions with a right answer.
    pub(super) fn exact_match(&self) -> f64 {
        self.right as f64 / self.requests.max(1) as f64
    }

    /// Returns the share of prompt tokens that were cached.
    pub(super) fn share(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }
}

/// Returns the times to the first token in milliseconds, ascending.
pub(super) fn sorted_ms(samples: &[Sample]) -> Vec<f64> {
    sorted(samples.iter().map(|sample| sample.ttft))
}

fn sorted(times: impl Iterator<Item = Duration>) -> Vec<f64> {
    let mut times: Vec<f64> = times.map(|time| 1000.0 * time.as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.5), 50.0);
        assert_eq!(quantile(&values, 0.95), 95.0);
        assert_eq!(quantile(&values[..1], 0.95), 1.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
