//! The colours, sizes and drawing functions that all plots share. The colours are those of the light page. The style
//! sheet finds them by value and replaces them in dark mode, so each also occurs in `style.css`.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The width of a plot. There are two, because the text of a scaled-down SVG would be too small to read on a phone.
#[derive(Clone, Copy)]
pub enum Width {
    /// For a page with margins.
    Desktop,
    /// For a page as narrow as a phone.
    Phone,
}

impl Width {
    /// Returns the value for this width.
    pub fn choose<T>(self, desktop: T, phone: T) -> T {
        match self {
            Self::Desktop => desktop,
            Self::Phone => phone,
        }
    }

    /// Returns the width in pixels.
    #[must_use]
    pub fn pixels(self) -> u32 {
        self.choose(760, 360)
    }

    /// Returns the height of a line plot in pixels.
    #[must_use]
    pub fn height(self) -> u32 {
        self.choose(320, 280)
    }
}

/// The colour of results without Foreword.
pub const BASELINE: RGBColor = RGBColor(0xC2, 0x6A, 0x0B);
/// The colour of the best result.
pub const BEST: RGBColor = RGBColor(0x1F, 0x5F, 0xD0);
/// The colour of all other results.
pub const OTHERS: RGBColor = RGBColor(0xA8, 0xB4, 0xC4);
/// The colour of text.
pub const INK: RGBColor = RGBColor(0x47, 0x55, 0x69);
/// The colour of a plot's grid.
pub const GRID: RGBColor = RGBColor(0xE3, 0xE8, 0xEF);

/// The drawing area of an SVG.
pub type Area<'s> = DrawingArea<SVGBackend<'s>, Shift>;

/// Returns the SVG that `paint` draws, of `size` (width, height) in pixels.
///
/// # Errors
/// Returns the error of `paint`, in a message that names `what` was to be drawn.
pub fn drawn(
    what: &str,
    size: (u32, u32),
    paint: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn std::error::Error>>,
) -> Result<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    let painted = paint(&area).and_then(|()| Ok(area.present()?));
    drop(area);
    painted.map_err(|error| anyhow!("cannot draw {what}: {error}"))?;
    Ok(svg)
}

/// Returns the style of a label of `size` pixels, vertically centred and aligned horizontally by `side`.
#[must_use]
pub fn label(size: i32, side: HPos) -> TextStyle<'static> {
    let font = ("sans-serif", size).into_font().color(&INK);
    font.pos(Pos::new(side, VPos::Center))
}

/// The points of a line as `(x, y)`, from left to right.
pub type Points = Vec<(f64, f64)>;

/// Returns the nearest-rank quantile `share` (0 to 1) of ascending values; 0 if there are none.
#[must_use]
pub fn quantile<T: Copy + Default>(ascending: &[T], share: f64) -> T {
    let rank = (share * ascending.len() as f64).ceil() as usize;
    let found = ascending.get(rank.saturating_sub(1));
    found.copied().unwrap_or_default()
}

/// Returns a distribution's line up to `end`: for each x, the percentage of the ascending values at or below x.
#[must_use]
pub fn distribution(ascending: &[f64], end: f64) -> Points {
    let share = |rank: usize| 100.0 * rank as f64 / ascending.len() as f64;
    let shown = ascending.iter().take_while(|value| **value <= end);
    let steps = shown.zip(0..);
    let steps = steps.flat_map(|(&value, rank)| [(value, share(rank)), (value, share(rank + 1))]);
    let mut steps: Points = steps.collect();
    if let Some(&(_, reached)) = steps.last() {
        steps.push((end, reached));
    }
    steps
}

/// Returns a plot of lines in their colours, over axes that begin at 0 and have the labels `x_words` and `y_words`. The
/// [`BEST`] line is on top; lines in [`OTHERS`] are thin and below all others.
///
/// # Errors
/// Returns an error if the plot cannot be drawn.
pub fn lines(
    mut lines: Vec<(RGBColor, Points)>,
    x_words: &str,
    y_words: &str,
    width: Width,
) -> Result<String> {
    lines.sort_by_key(|&(colour, _)| (colour != OTHERS, colour == BEST));
    // So that axes have numbers even if all lines stay at 0.
    let greatest = |pick: fn(&(f64, f64)) -> f64| {
        let points = lines.iter().flat_map(|(_, points)| points);
        points.map(pick).fold(1.0, f64::max)
    };
    let (x_end, y_end) = (greatest(|point| point.0), greatest(|point| point.1));
    let size = (width.pixels(), width.height());
    drawn(y_words, size, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(24)
            .x_label_area_size(48)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..x_end, 0.0..y_end * 1.05)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .label_style(("sans-serif", 15).into_font().color(&INK))
            .x_labels(width.choose(9, 4))
            .y_labels(6)
            .x_label_formatter(&|value| format!("{value:.0}"))
            .y_label_formatter(&|value| format!("{value:.0}"))
            .x_desc(x_words)
            .y_desc(y_words)
            .draw()?;
        for (colour, points) in &lines {
            let stroke = colour.stroke_width(if *colour == OTHERS { 1 } else { 2 });
            chart.draw_series(LineSeries::new(points.iter().copied(), stroke))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_drawn_in_their_colours_the_best_on_top() {
        let line = |colour| (colour, vec![(0.0, 0.0), (10.0, 50.0)]);
        for width in [Width::Desktop, Width::Phone] {
            let drawn = [BEST, OTHERS, BASELINE].map(line).to_vec();
            let svg = lines(drawn, "requests", "%", width).unwrap();
            let at = |value: &str| svg.find(&format!("stroke=\"{value}\"")).unwrap();
            assert!(at("#A8B4C4") < at("#C26A0B") && at("#C26A0B") < at("#1F5FD0"));
        }
    }

    #[test]
    fn lines_of_nothing_and_at_nothing_are_drawn() {
        for points in [vec![], vec![(0.0, 0.0)]] {
            let svg = lines(vec![(BEST, points)], "requests", "%", Width::Phone).unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"));
        }
    }

    #[test]
    fn the_style_sheet_replaces_the_colours_that_plots_use() {
        let style = include_str!("style.css");
        for RGBColor(red, green, blue) in [BASELINE, BEST, OTHERS, INK, GRID] {
            let value = format!("#{red:02X}{green:02X}{blue:02X}");
            assert!(
                style.contains(&format!("=\"{value}\"")),
                "no rule for {value}"
            );
        }
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let mut values: Vec<u32> = (1..=100).rev().collect();
        values.sort_unstable();
        assert_eq!(quantile(&values, 0.99), 99);
        assert_eq!(quantile(&[5], 0.99), 5);
        assert_eq!(quantile::<u32>(&[], 0.5), 0);
    }
}
