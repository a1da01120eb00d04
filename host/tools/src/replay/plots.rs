//! The plots of the report of `foreword replay`, as SVG text.

use super::figures::Figures;
use super::simulate::PolicyOutcome;
use anyhow::Result;
use foreword_report::plot::{BASELINE, BEST, INK, OTHERS, Points, Width, drawn, label, lines};
use foreword_report::words::percent;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// Plots a bar for every policy with the share of document tokens reused, and a line at the upper bound of this share
/// under any order. Returns the SVG text.
pub(super) fn bars(figures: &Figures, width: Width) -> Result<String> {
    const ROW: i32 = 34;
    const TOP: i32 = 30;
    const NAMES: i32 = 116;
    const VALUES: i32 = 64;
    const LABEL: i32 = 150;
    let rows = i32::try_from(figures.outcomes.len())?;
    let pixels = width.pixels();
    let height = TOP + rows * ROW + 8;
    let room = f64::from(i32::try_from(pixels)? - NAMES - VALUES);
    let shares = figures.outcomes.iter().map(|outcome| outcome.reuse.share());
    let greatest = shares.fold(figures.bound.share.max(f64::MIN_POSITIVE), f64::max);
    let x = |share: f64| NAMES + (room * share / greatest).round() as i32;
    let words = |side| label(15, side);
    let size = (pixels, u32::try_from(height)?);
    drawn("bars", size, |area| {
        for (row, outcome) in (0..).zip(&figures.outcomes) {
            let top = TOP + row * ROW;
            let (middle, share) = (top + ROW / 2, outcome.reuse.share());
            let name = outcome.name;
            area.draw(&Text::new(name, (NAMES - 10, middle), words(HPos::Right)))?;
            let corners = [(NAMES, top + 5), (x(share).max(NAMES + 1), top + ROW - 5)];
            let style = colour(figures, outcome).filled();
            area.draw(&Rectangle::new(corners, style))?;
            let beside = (x(share) + 8, middle);
            area.draw(&Text::new(percent(share), beside, words(HPos::Left)))?;
        }
        let bound = x(figures.bound.share);
        let line = [(bound, TOP - 8), (bound, height - 4)];
        area.draw(&PathElement::new(line, INK.stroke_width(1)))?;
        let label = format!("upper bound {}", percent(figures.bound.share));
        // The label is on the side with room for it.
        let (at, side) = if bound + LABEL > i32::try_from(pixels)? {
            (bound + VALUES - 8, HPos::Right)
        } else {
            (bound, HPos::Left)
        };
        area.draw(&Text::new(label, (at, TOP - 18), words(side)))?;
        Ok(())
    })
}

/// Plots for every policy, over the number of requests so far, the percentage of their document tokens that were
/// reused. Returns the SVG text.
pub(super) fn reuse(figures: &Figures, width: Width) -> Result<String> {
    let line = |outcome: &PolicyOutcome| -> Points {
        let points = outcome.curve.iter();
        let points = points.map(|&(requests, reuse)| (requests as f64, 100.0 * reuse.share()));
        points.collect()
    };
    let shown = &figures.outcomes;
    over_requests(figures, shown, width, "% of document tokens", line)
}

/// Plots the cumulative number of document tokens computed, in thousands, without Foreword and under the policy with
/// the most reuse. Returns the SVG text.
pub(super) fn computed(figures: &Figures, width: Width) -> Result<String> {
    let mut shown: Vec<PolicyOutcome> = figures.best().into_iter().cloned().collect();
    shown.extend(figures.baseline().cloned());
    let line = |outcome: &PolicyOutcome| -> Points {
        let start = std::iter::once((0.0, 0.0));
        let points = outcome.curve.iter().map(|&(requests, reuse)| {
            let left = reuse.document_tokens - reuse.reused_tokens;
            (requests as f64, left as f64 / 1000.0)
        });
        start.chain(points).collect()
    };
    over_requests(figures, &shown, width, "thousand tokens", line)
}

fn colour(figures: &Figures, outcome: &PolicyOutcome) -> RGBColor {
    let is = |other: Option<&PolicyOutcome>| other.is_some_and(|other| other.name == outcome.name);
    if is(figures.best()) {
        BEST
    } else if is(figures.baseline()) {
        BASELINE
    } else {
        OTHERS
    }
}

/// Plots a line of points for each of `outcomes` over the number of requests. Returns the SVG text.
fn over_requests(
    figures: &Figures,
    outcomes: &[PolicyOutcome],
    width: Width,
    y_words: &str,
    line: impl Fn(&PolicyOutcome) -> Points,
) -> Result<String> {
    let outcomes = outcomes.iter();
    let drawn = outcomes.map(|outcome| (colour(figures, outcome), line(outcome)));
    lines(drawn.collect(), "requests so far", y_words, width)
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::example;
    use super::*;
    use foreword_ordering::policy::PolicyKind;

    #[test]
    fn every_plot_shows_the_best_and_the_baseline_at_both_widths() {
        let figures = example(300, &PolicyKind::ALL);
        for width in [Width::Desktop, Width::Phone] {
            for plot in [bars, reuse, computed] {
                let svg = plot(&figures, width).unwrap();
                assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
                assert!(svg.contains("#C26A0B") && svg.contains("#1F5FD0"));
            }
            let svg = bars(&figures, width).unwrap();
            assert!(PolicyKind::ALL.iter().all(|kind| svg.contains(kind.name())));
        }
    }

    #[test]
    fn one_request_and_one_policy_are_enough() {
        let figures = example(1, &[PolicyKind::Sorted]);
        for plot in [bars, reuse, computed] {
            assert!(plot(&figures, Width::Phone).is_ok());
        }
    }
}
