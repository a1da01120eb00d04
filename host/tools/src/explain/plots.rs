//! The plot of the report of `foreword explain`, as SVG text.

use super::causes::Row;
use anyhow::Result;
use foreword_report::plot::{BASELINE, OTHERS, Width, drawn, label};
use foreword_report::words::grouped;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// Plots one bar for each of `rows`, in their order. Its length is the number of prompt tokens that had to be computed
/// again because of the row's cause of cache misses. Returns SVG text of this width.
pub(super) fn tokens(rows: &[Row], width: Width) -> Result<String> {
    const ROW: i32 = 34;
    const TOP: i32 = 4;
    let pixels = width.pixels();
    // A phone has no room for names beside the bars.
    let (names, height) = width.choose((190, ROW), (0, ROW + 18));
    const VALUES: i32 = 96;
    let count = i32::try_from(rows.len().max(1))?;
    let room = f64::from(i32::try_from(pixels)? - names - VALUES);
    let greatest = rows.iter().map(|row| row.sum.tokens).fold(1, u64::max);
    let x = |tokens: u64| names + (room * tokens as f64 / greatest as f64).round() as i32;
    let words = |side| label(15, side);
    let size = (pixels, u32::try_from(TOP + count * height + 4)?);
    drawn("tokens by cause", size, |area| {
        for (at, row) in (0..).zip(rows) {
            let top = TOP + at * height;
            let bar = top + height - ROW;
            let middle = bar + ROW / 2;
            let name = row.name();
            let beside = ((names - 10, middle), HPos::Right);
            let (place, side) = width.choose(beside, ((0, top + 14), HPos::Left));
            area.draw(&Text::new(name, place, words(side)))?;
            let colour = if at == 0 { BASELINE } else { OTHERS };
            let end = x(row.sum.tokens).max(names + 1);
            let corners = [(names, bar + 5), (end, bar + ROW - 5)];
            area.draw(&Rectangle::new(corners, colour.filled()))?;
            let value = grouped(row.sum.tokens);
            area.draw(&Text::new(value, (end + 8, middle), words(HPos::Left)))?;
        }
        Ok(())
    })
}
