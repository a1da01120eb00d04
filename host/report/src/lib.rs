//! Reports as one HTML file each, which needs nothing else: a template filled, plots drawn inside, one style sheet.
//!
//! ```text
//!   template ── {{style}}, {{rows}}, … ──▶ filled ──▶ page
//!                  ▲
//!      words: numbers and texts;  plot: SVG, at two widths
//! ```
//!
//! What a report says is its writer's: `foreword replay`, `foreword evaluate`, `cargo xtask demo`. Here is only how it
//! looks.

pub mod plot;
pub mod words;

use anyhow::Result;
use plot::Width;

/// The style sheet, for a template's `{{style}}`.
#[must_use]
pub fn style() -> String {
    include_str!("style.css").to_owned()
}

/// `template` with every `{{name}}` replaced by its value, in one pass: a value that looks like a place is none.
#[must_use]
pub fn filled(template: &str, values: &[(&str, String)]) -> String {
    let mut pieces = template.split("{{");
    let mut page = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").unwrap_or(("", piece));
        let value = values.iter().find(|(known, _)| *known == name);
        debug_assert!(value.is_some(), "the template asks for {name}");
        page.push_str(value.map_or("", |(_, value)| value));
        page.push_str(rest);
    }
    page
}

/// A plot drawn twice; the style sheet shows the one that fits the screen.
///
/// # Errors
/// When it cannot be drawn.
pub fn both_widths(words: &str, plot: impl Fn(Width) -> Result<String>) -> Result<String> {
    let drawn = |class: &str, width| -> Result<String> {
        let svg = plot(width)?;
        Ok(format!(
            "<div class=\"{class}\" role=\"img\" aria-label=\"{words}\">{svg}</div>"
        ))
    };
    Ok(format!(
        "{}\n{}",
        drawn("desktop", Width::Desktop)?,
        drawn("phone", Width::Phone)?
    ))
}
