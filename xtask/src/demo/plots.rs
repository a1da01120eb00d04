//! The report's plots as SVG text. Colours are those of the light page; the page's style sheet selects them by
//! value and replaces them in dark mode, so [`RETRIEVAL`] and the others stand in `report.html` too.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::figures::{Arm, Figures, quantile, sorted_ms};

/// Which sizes a plot is drawn in: text in a scaled-down SVG would be too small to read on a phone.
#[derive(Clone, Copy)]
pub(super) enum Width {
    Desktop,
    Phone,
}

impl Width {
    fn pixels(self) -> (u32, u32) {
        match self {
            Self::Desktop => (760, 320),
            Self::Phone => (360, 280),
        }
    }

    fn x_labels(self) -> usize {
        match self {
            Self::Desktop => 11,
            Self::Phone => 5,
        }
    }
}

/// Share of prompt tokens found in the cache, over all requests so far, in percent.
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
    draw(width, "requests so far", "% of prompt tokens", line)
}

/// Share of requests whose first token came within a time. The slowest hundredth of an arm may lie off the plot.
pub(super) fn time_to_first_token(figures: &Figures, width: Width) -> Result<String> {
    let times = |arm| sorted_ms(figures.samples(arm));
    let slow = |arm| quantile(&times(arm), 0.99);
    let end = 1.05 * slow(Arm::Retrieval).max(slow(Arm::Ordered));
    let line = |arm| {
        let times = times(arm);
        let share = |rank: usize| 100.0 * rank as f64 / times.len() as f64;
        let shown = times
            .iter()
            .enumerate()
            .take_while(|(_, time)| **time <= end);
        let mut steps: Points = shown
            .flat_map(|(rank, &time)| [(time, share(rank)), (time, share(rank + 1))])
            .collect();
        if let Some(&(_, reached)) = steps.last() {
            steps.push((end, reached));
        }
        steps
    };
    draw(
        width,
        "milliseconds to the first token",
        "% of requests",
        line,
    )
}

/// Prompt tokens that had to be computed, summed up, in thousands.
pub(super) fn computed(figures: &Figures, width: Width) -> Result<String> {
    let line = |arm| {
        let mut sum = 0;
        let sums = figures.samples(arm).iter().map(move |sample| {
            sum += sample.prompt_tokens.saturating_sub(sample.cached_tokens);
            sum as f64 / 1000.0
        });
        numbered(sums)
    };
    draw(width, "requests so far", "thousand tokens", line)
}

/// The colour of the arm in retrieval order.
const RETRIEVAL: RGBColor = RGBColor(0xC2, 0x6A, 0x0B);
/// The colour of the ordered arm.
const ORDERED: RGBColor = RGBColor(0x1F, 0x5F, 0xD0);
const INK: RGBColor = RGBColor(0x47, 0x55, 0x69);
const GRID: RGBColor = RGBColor(0xE3, 0xE8, 0xEF);

fn colour(arm: Arm) -> RGBColor {
    match arm {
        Arm::Retrieval => RETRIEVAL,
        Arm::Ordered => ORDERED,
    }
}

type Points = Vec<(f64, f64)>;

fn numbered(values: impl Iterator<Item = f64>) -> Points {
    values
        .enumerate()
        .map(|(index, value)| ((index + 1) as f64, value))
        .collect()
}

fn draw(
    width: Width,
    x_words: &str,
    y_words: &str,
    line: impl Fn(Arm) -> Points,
) -> Result<String> {
    let lines = [Arm::Retrieval, Arm::Ordered].map(|arm| (arm, line(arm)));
    let greatest = |pick: fn(&(f64, f64)) -> f64| {
        lines
            .iter()
            .flat_map(|(_, points)| points)
            .map(pick)
            .fold(0.0, f64::max)
            .max(f64::MIN_POSITIVE)
    };
    let (x_end, y_end) = (greatest(|point| point.0), greatest(|point| point.1));
    let mut svg = String::new();
    let mut paint = || -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::with_string(&mut svg, width.pixels()).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .margin_right(16)
            .x_label_area_size(48)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..x_end, 0.0..y_end * 1.05)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .label_style(("sans-serif", 16).into_font().color(&INK))
            .x_labels(width.x_labels())
            .y_labels(6)
            .x_label_formatter(&|value| format!("{value:.0}"))
            .y_label_formatter(&|value| format!("{value:.0}"))
            .x_desc(x_words)
            .y_desc(y_words)
            .draw()?;
        for (arm, points) in &lines {
            chart.draw_series(LineSeries::new(
                points.iter().copied(),
                colour(*arm).stroke_width(2),
            ))?;
        }
        area.present()?;
        Ok(())
    };
    paint().map_err(|error| anyhow!("drawing {y_words} over {x_words}: {error}"))?;
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::figures::tests::example;

    #[test]
    fn every_plot_draws_both_arms_at_both_widths() {
        let figures = example(40);
        for width in [Width::Desktop, Width::Phone] {
            for plot in [reuse, time_to_first_token, computed] {
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

    #[test]
    fn the_page_replaces_the_colours_that_the_plots_use() {
        let page = include_str!("report.html");
        for RGBColor(red, green, blue) in [RETRIEVAL, ORDERED, INK, GRID] {
            let value = format!("#{red:02X}{green:02X}{blue:02X}");
            assert!(
                page.contains(&format!("\"{value}\"")),
                "report.html has no rule for {value}"
            );
        }
    }
}
