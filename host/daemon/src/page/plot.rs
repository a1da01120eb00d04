//! What all plots have in common. Colours are those of the light page; the style sheet selects them by value and
//! replaces them in dark mode, so each stands in `style.css` too.

use anyhow::{Result, anyhow};
use plotters::style::RGBColor;

/// Which sizes a plot is drawn in: text in a scaled-down SVG would be too small to read on a phone.
#[derive(Clone, Copy)]
pub(crate) enum Width {
    Desktop,
    Phone,
}

impl Width {
    pub(crate) fn pixels(self) -> u32 {
        match self {
            Self::Desktop => 760,
            Self::Phone => 360,
        }
    }

    pub(crate) fn height(self) -> u32 {
        match self {
            Self::Desktop => 320,
            Self::Phone => 280,
        }
    }

    pub(crate) fn x_labels(self) -> usize {
        match self {
            Self::Desktop => 9,
            Self::Phone => 4,
        }
    }
}

/// The colour of what happens without Foreword.
pub(crate) const BASELINE: RGBColor = RGBColor(0xC2, 0x6A, 0x0B);
/// The colour of the best outcome.
pub(crate) const BEST: RGBColor = RGBColor(0x1F, 0x5F, 0xD0);
/// The colour of everything else that was measured.
pub(crate) const OTHERS: RGBColor = RGBColor(0xA8, 0xB4, 0xC4);
/// The colour of words.
pub(crate) const INK: RGBColor = RGBColor(0x47, 0x55, 0x69);
/// The colour of a plot's grid.
pub(crate) const GRID: RGBColor = RGBColor(0xE3, 0xE8, 0xEF);

/// What `paint` draws into a text.
pub(crate) fn drawn(
    what: &str,
    paint: impl FnOnce(&mut String) -> Result<(), Box<dyn std::error::Error>>,
) -> Result<String> {
    let mut svg = String::new();
    paint(&mut svg).map_err(|error| anyhow!("cannot draw {what}: {error}"))?;
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
