//! The report's plots as SVG.

use super::arm::Arm;
use super::figures::Part;
use super::results::{Experiment, distribution};
use anyhow::Result;
use foreword_report::plot::{self, BASELINE, BEST, OTHERS, Points, Width, lines, quantile};
use plotters::style::RGBColor;

/// Plots for each arm the distribution of the time to the first token. The slowest hundredth may be cut off.
pub(super) fn distributions(experiment: &Experiment, width: Width) -> Result<String> {
    let arms: Vec<_> = (experiment.outcomes.iter())
        .map(|outcome| (outcome.arm, distribution(experiment, outcome.arm)))
        .collect();
    let end = arms
        .iter()
        .map(|(_, times)| quantile(times, 0.99))
        .fold(1.0, f64::max)
        * 1.05;
    let drawn = arms
        .iter()
        .map(|(arm, times)| (colour(*arm), plot::distribution(times, end)));
    lines(
        drawn.collect(),
        "milliseconds to the first token",
        "% of requests",
        width,
    )
}

/// Plots for each arm the mean time to the first token over a sweep's values.
pub(super) fn sweep(points: &[&Experiment], what: &str, width: Width) -> Result<String> {
    let line = |arm: Arm| -> Points {
        let means = points.iter().filter_map(|experiment| {
            let rows = experiment.rows(Part::All);
            let row = rows.iter().find(|row| row.arm == arm)?;
            Some((experiment.value, 1e3 * row.mean.mean))
        });
        means.collect()
    };
    let drawn = Arm::FEW.map(|arm| (colour(arm), line(arm)));
    lines(drawn.to_vec(), what, "milliseconds, mean", width)
}

/// Returns an arm's colour: those of the gateway's defaults and of retrieval order differ from all others'.
fn colour(arm: Arm) -> RGBColor {
    match arm {
        Arm::SHIPPED => BEST,
        Arm::RETRIEVAL => BASELINE,
        _ => OTHERS,
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::example;
    use super::*;

    #[test]
    fn every_plot_draws_the_gateway_and_retrieval_order() {
        let results = example();
        let orders = results.orders.as_ref().unwrap();
        for width in [Width::Desktop, Width::Phone] {
            for svg in [
                distributions(orders, width).unwrap(),
                sweep(&[&results.sweeps[0], &results.sweeps[0]], "overlap", width).unwrap(),
            ] {
                assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
                assert!(svg.contains("#C26A0B") && svg.contains("#1F5FD0"));
                assert!(!svg.contains("NaN"));
            }
        }
    }
}
