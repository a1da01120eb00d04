//! The report's plots as SVG text: the retrieval order beside the ordered arm.

use anyhow::Result;
use foreword_report::plot::{self, BASELINE, BEST, Points, Width, lines, quantile};

use super::arm::Arm;
use super::figures::Figures;
use super::replay::Sample;
use super::summary::sorted_ms;

/// Plots the share of prompt tokens found in the cache, over all requests so far, in percent.
pub(super) fn reuse(figures: &Figures, width: Width) -> Result<String> {
    let line = |arm| {
        let (mut prompt, mut cached) = (0, 0);
        let share = figures.samples(arm).iter().map(move |sample| {
            prompt += sample.prompt_tokens;
            cached += sample.cached_tokens;
            100.0 * cached as f64 / prompt.max(1) as f64
        });
        numbered(share)
    };
    both_arms(width, "requests so far", "% of prompt tokens", line)
}

/// Plots the share of requests whose first token came within a time. The slowest hundredth of an arm may be off the
/// plot.
pub(super) fn time_to_first_token(figures: &Figures, width: Width) -> Result<String> {
    distribution(|arm| figures.samples(arm), width)
}

/// Plots the same for the second part, on a larger model.
pub(super) fn time_on_shape(figures: &Figures, width: Width) -> Result<String> {
    distribution(|arm| figures.time.samples(arm), width)
}

/// Plots the seconds that a client has waited for first tokens in the second part, summed up.
pub(super) fn waited(figures: &Figures, width: Width) -> Result<String> {
    let line = |arm| {
        let mut sum = 0.0;
        let sums = figures.time.samples(arm).iter().map(move |sample| {
            sum += sample.ttft.as_secs_f64();
            sum
        });
        numbered(sums)
    };
    both_arms(width, "requests so far", "seconds", line)
}

fn distribution<'a>(samples: impl Fn(Arm) -> &'a [Sample], width: Width) -> Result<String> {
    let times = |arm| sorted_ms(samples(arm));
    let slow = |arm| quantile(&times(arm), 0.99);
    let end = 1.05 * slow(Arm::Retrieval).max(slow(Arm::Ordered));
    let line = |arm| plot::distribution(&times(arm), end);
    both_arms(
        width,
        "milliseconds to the first token",
        "% of requests",
        line,
    )
}

/// Plots the cumulative number of prompt tokens that had to be computed, in thousands.
pub(super) fn computed(figures: &Figures, width: Width) -> Result<String> {
    let line = |arm| {
        let mut sum = 0;
        let sums = figures.samples(arm).iter().map(move |sample| {
            sum += sample.prompt_tokens.saturating_sub(sample.cached_tokens);
            sum as f64 / 1000.0
        });
        numbered(sums)
    };
    both_arms(width, "requests so far", "thousand tokens", line)
}

fn numbered(values: impl Iterator<Item = f64>) -> Points {
    values
        .enumerate()
        .map(|(index, value)| ((index + 1) as f64, value))
        .collect()
}

fn both_arms(
    width: Width,
    x_words: &str,
    y_words: &str,
    line: impl Fn(Arm) -> Points,
) -> Result<String> {
    let arms = [(BASELINE, Arm::Retrieval), (BEST, Arm::Ordered)];
    let drawn = arms.map(|(colour, arm)| (colour, line(arm)));
    lines(drawn.to_vec(), x_words, y_words, width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::figures::tests::example;

    #[test]
    fn every_plot_draws_both_arms_at_both_widths() {
        let figures = example(40);
        for width in [Width::Desktop, Width::Phone] {
            for plot in [reuse, time_to_first_token, computed, time_on_shape, waited] {
                let svg = plot(&figures, width).unwrap();
                assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
                assert!(svg.contains("#C26A0B") && svg.contains("#1F5FD0"));
            }
        }
    }

    #[test]
    fn one_request_is_enough() {
        let figures = example(1);
        assert!(reuse(&figures, Width::Phone).is_ok());
        assert!(time_to_first_token(&figures, Width::Phone).is_ok());
    }
}
