//! The plots of the evaluation's report as SVG, most with one row per arm and the arm's name at the left.

use super::arm::Arm;
use super::bootstrap::{Interval, MARGIN};
use super::compare::{Difference, Estimate, Figure};
use super::figures::{Figures, milliseconds, share, signed};
use super::profile::RankProfile;
use anyhow::Result;
use foreword_report::plot::{Area, BASELINE, BEST, GRID, INK, OTHERS, Width, drawn, label};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// Plots, for each arm (way to ask), the share of exactly right answers minus that in retrieval order, in percentage
/// points with confidence intervals, over a band of ±1 point. Returns the SVG text.
pub(super) fn exact_match_differences(figures: &Figures, width: Width) -> Result<String> {
    differences(figures, width, |difference| difference.exact_match.0)
}

/// Plots, for each arm (way to ask), the mean F1 score minus that in retrieval order, in percentage points with
/// confidence intervals, over a band of ±1 point. Returns the SVG text.
pub(super) fn f1_differences(figures: &Figures, width: Width) -> Result<String> {
    differences(figures, width, |difference| difference.f1.0)
}

fn differences(figures: &Figures, width: Width, of: fn(&Difference) -> Estimate) -> Result<String> {
    let rows = figures.orders().filter_map(|figure| {
        let Estimate { value, interval } = of(figure.difference.as_ref()?);
        Some(Row::of(figure, value, Some(interval), signed(value)))
    });
    rows_of(&rows.collect::<Vec<_>>(), Some(MARGIN), width)
}

/// Plots, for each arm (way to ask), the right answers' mean log-probability minus that in retrieval order, in nats per
/// token, with confidence intervals. Returns the SVG text.
pub(super) fn likelihood(figures: &Figures, width: Width) -> Result<String> {
    let rows = figures.arms.iter().filter_map(|figure| {
        let (less, _) = figure.answer_logprob.as_ref()?.less_retrieval?;
        let label = format!("{:+.3}", less.value);
        Some(Row::of(figure, less.value, Some(less.interval), label))
    });
    rows_of(&rows.collect::<Vec<_>>(), None, width)
}

/// Plots the share of exactly right answers with the answer's document first, in the middle and last, in percent with
/// intervals. Returns the SVG text.
pub(super) fn positions(figures: &Figures, width: Width) -> Result<String> {
    let rows = figures.positions().map(|figure| {
        let Estimate { value, interval } = figure.exact_match;
        Row::of(figure, value, Some(interval), share(value))
    });
    rows_of(&rows.collect::<Vec<_>>(), None, width)
}

/// Plots the rank profile (the effect of a document's place on the right answer, by the document's rank): a circle for
/// each class of ranks and of places. The circle's area shows the effect's size, its colour the sign; it is filled if
/// the effect's confidence interval excludes 0.
pub(super) fn profile(profile: &RankProfile, width: Width) -> Result<String> {
    let columns: Vec<&str> = profile.columns().collect();
    let rows: Vec<_> = profile.rows().collect();
    let cells = rows.iter().flat_map(|(_, row)| row);
    let most = cells.map(|cell| cell.value.abs()).fold(1e-9, f64::max);
    let pixels = i32::try_from(width.pixels())?;
    let names = NAMES / 2;
    let step = (pixels - names) / i32::try_from(columns.len().max(1))?;
    let height = CELL + i32::try_from(rows.len())? * CELL;
    let font = width.choose(15, 12);
    let size = (pixels.unsigned_abs(), height.unsigned_abs());
    drawn("profile", size, |area| {
        let words = |side| label(font, side);
        let x = |column: i32| names + column * step + step / 2;
        for (column, name) in (0..).zip(&columns) {
            let at = (x(column), CELL / 2);
            area.draw(&Text::new(*name, at, words(HPos::Center)))?;
        }
        for (number, (rank, row)) in (1..).zip(&rows) {
            let top = number * CELL;
            let at = (names - 10, top + CELL / 2);
            area.draw(&Text::new(*rank, at, words(HPos::Right)))?;
            for (column, cell) in (0..).zip(row) {
                let colour = if cell.value < 0.0 { BASELINE } else { BEST };
                let radius = (f64::from(RADIUS) * (cell.value.abs() / most).sqrt()).round() as i32;
                let is_certain = cell.low > 0.0 || cell.high < 0.0;
                let style = match is_certain {
                    true => colour.filled(),
                    false => colour.stroke_width(2),
                };
                let centre = (x(column), top + RADIUS + 4);
                area.draw(&Circle::new(centre, radius.max(1), style))?;
                let label = format!("{:+.3}", cell.value);
                let under = (x(column), top + CELL - 10);
                area.draw(&Text::new(label, under, words(HPos::Center)))?;
            }
        }
        Ok(())
    })
}

/// Height of a cell of the rank profile's plot, in pixels.
const CELL: i32 = 64;
/// Largest radius of a circle in a cell of the rank profile's plot, in pixels.
const RADIUS: i32 = 20;

/// Plots, for each arm (way to ask) for which the endpoint reports it, the share of prompt tokens that were cached.
/// Returns the SVG text.
pub(super) fn reused(figures: &Figures, width: Width) -> Result<String> {
    let rows = figures.orders().filter_map(|figure| {
        let reused = figure.reused?;
        Some(Row::of(figure, reused, None, share(reused)))
    });
    rows_of(&rows.collect::<Vec<_>>(), None, width)
}

/// Plots the median time to first token under each arm (way to ask), in milliseconds. Returns the SVG text.
pub(super) fn ttft(figures: &Figures, width: Width) -> Result<String> {
    let rows = figures.orders().map(|figure| {
        let median = figure.ttft_median;
        Row::of(figure, median, None, milliseconds(median))
    });
    rows_of(&rows.collect::<Vec<_>>(), None, width)
}

/// A row of a plot, drawn as a bar from 0 to the value or, if there is a confidence interval, as a point with its
/// interval.
struct Row {
    name: &'static str,
    colour: RGBColor,
    value: f64,
    interval: Option<Interval>,
    label: String,
}

impl Row {
    fn of(figure: &Figure, value: f64, interval: Option<Interval>, label: String) -> Self {
        Self {
            name: figure.arm.name(),
            colour: colour(figure.arm),
            value,
            interval,
            label,
        }
    }
}

fn colour(arm: Arm) -> RGBColor {
    match arm {
        Arm::Retrieval => BASELINE,
        Arm::Ordered | Arm::OrderedHint | Arm::Dedup | Arm::DedupHint | Arm::Gateway(_) => BEST,
        _ => OTHERS,
    }
}

/// Height of a row of a plot, in pixels.
const ROW: i32 = 34;
/// Margin of a plot above the first row and below the last, in pixels.
const EDGE: i32 = 8;
/// Width of the column with the names of the arms (ways to ask), at the left of a plot, in pixels.
const NAMES: i32 = 132;
/// Width of the column with the values' labels, at the right of a plot, in pixels.
const LABELS: i32 = 84;

/// Draws `rows` below each other on one horizontal scale, and returns the plot as SVG text. The scale includes 0 and
/// all values and intervals. If `band` is given, the part of the scale from `-band` to `band` (in the values' unit) is
/// shaded.
fn rows_of(rows: &[Row], band: Option<f64>, width: Width) -> Result<String> {
    let ends = rows.iter().flat_map(|row| {
        let interval = row.interval.map(|interval| [interval.low, interval.high]);
        interval.unwrap_or([row.value; 2])
    });
    let [mut low, mut high] = band.map_or([0.0, 0.0], |band| [-1.5 * band, 1.5 * band]);
    for end in ends {
        (low, high) = (low.min(end), high.max(end));
    }
    let span = (high - low).max(1e-9);
    let pixels = i32::try_from(width.pixels())?;
    let height = 2 * EDGE + i32::try_from(rows.len())? * ROW;
    let room = f64::from(pixels - NAMES - LABELS);
    let x = |value: f64| NAMES + (room * (value - low) / span).round() as i32;
    let size = (pixels.unsigned_abs(), height.unsigned_abs());
    drawn("rows", size, |area| {
        if let Some(band) = band {
            let corners = [(x(-band), EDGE), (x(band), height - EDGE)];
            area.draw(&Rectangle::new(corners, GRID.filled()))?;
        }
        let zero = [(x(0.0), EDGE / 2), (x(0.0), height - EDGE / 2)];
        area.draw(&PathElement::new(zero, INK.stroke_width(1)))?;
        for (number, row) in (0..).zip(rows) {
            let top = EDGE + number * ROW;
            draw_row(area, row, top, &x, pixels)?;
        }
        Ok(())
    })
}

fn draw_row(
    area: &Area<'_>,
    row: &Row,
    top: i32,
    x: &impl Fn(f64) -> i32,
    pixels: i32,
) -> Result<(), Box<dyn std::error::Error>> {
    let words = |side| label(15, side);
    let middle = top + ROW / 2;
    let name = (NAMES - 10, middle);
    area.draw(&Text::new(row.name, name, words(HPos::Right)))?;
    match row.interval {
        Some(Interval { low, high }) => {
            let line = [(x(low), middle), (x(high), middle)];
            area.draw(&PathElement::new(line, row.colour.stroke_width(2)))?;
            for end in [low, high] {
                let tick = [(x(end), middle - 5), (x(end), middle + 5)];
                area.draw(&PathElement::new(tick, row.colour.stroke_width(2)))?;
            }
            let point = Circle::new((x(row.value), middle), 5, row.colour.filled());
            area.draw(&point)?;
        }
        None => {
            let corners = [
                (x(0.0), top + 5),
                (x(row.value).max(x(0.0) + 1), top + ROW - 5),
            ];
            area.draw(&Rectangle::new(corners, row.colour.filled()))?;
        }
    }
    let label = (pixels - LABELS + 12, middle);
    let label = Text::new(row.label.as_str(), label, words(HPos::Left));
    area.draw(&label)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::example;
    use super::super::profile;
    use super::*;

    #[test]
    fn every_plot_names_its_arms_at_both_widths() {
        let figures = example(&Arm::all().collect::<Vec<_>>(), 12);
        for width in [Width::Desktop, Width::Phone] {
            for plot in [
                exact_match_differences,
                f1_differences,
                reused,
                ttft,
                positions,
                likelihood,
            ] {
                let svg = plot(&figures, width).unwrap();
                assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
                assert!(!svg.contains("NaN") && !svg.contains("inf"));
            }
            let svg = exact_match_differences(&figures, width).unwrap();
            assert!(!svg.contains("\nretrieval\n"));
            assert!(svg.contains("\nordered+hint\n"));
            let svg = super::profile(&profile::tests::example(0.2, 0.1), width).unwrap();
            assert!(
                svg.contains("\nsecond last\n") && svg.contains("\nothers\n"),
                "{svg}"
            );
            assert_eq!(svg.matches("<circle").count(), 20);
            let svg = positions(&figures, width).unwrap();
            assert!(svg.contains("\nmiddle\n") && !svg.contains("\nreversed\n"));
        }
    }

    #[test]
    fn no_rows_and_rows_without_a_span_are_drawn() {
        let figures = example(&[Arm::Retrieval], 1);
        for plot in [exact_match_differences, reused, ttft, positions] {
            assert!(plot(&figures, Width::Phone).is_ok());
        }
    }
}
