//! Makes reports, each one self-contained HTML file: a filled template, inline plots and a style sheet.
//!
//! ```text
//!   template ── {{rows}}, … ──▶ page.html, with title and style ──▶ page
//!                  ▲
//!      words: numbers and texts;  plot: SVG, at two widths
//! ```
//!
//! A report's content is up to its command, such as `foreword replay`. This crate determines how reports look, and
//! reads the logs that they are about.

pub mod files;
pub mod log;
pub mod plot;
pub mod progress;
pub mod words;

use anyhow::Result;
use plot::Width;

/// Returns an HTML page with this title, which needs and may load no other files. It shows `template` with every
/// `{{name}}` replaced by the value of that name; `style` extends the common style sheet.
#[must_use]
pub fn page(title: &str, style: &str, template: &str, values: &[(&str, String)]) -> String {
    let style = [include_str!("style.css"), style].concat();
    let frame = [
        ("title", title.to_owned()),
        ("style", style),
        ("content", filled(template, values)),
    ];
    filled(include_str!("page.html"), &frame)
}

/// Returns `template` with every `{{name}}` replaced by the value of that name, or by nothing if there is none.
/// Placeholders within values are not replaced.
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

/// Returns a tile with the value of a figure, its description, and a comment such as an earlier value, as HTML.
#[must_use]
pub fn tile(what: &str, value: &str, was: &str) -> String {
    format!(
        "<div class=\"tile\"><span>{what}</span><b class=\"best\">{value}</b><span class=\"was\">{was}</span></div>\n"
    )
}

/// Returns a table row with a head; `head` and `cells` are HTML.
#[must_use]
pub fn row(head: &str, cells: &[String]) -> String {
    let cells = cells.iter().map(|cell| format!("<td>{cell}</td>"));
    format!("<tr><th>{head}</th>{}</tr>\n", cells.collect::<String>())
}

/// Returns a plot at both widths; the style sheet shows the one that fits. `words` describes it for screen readers.
///
/// # Errors
/// Returns the error of `plot`.
pub fn both_widths(words: &str, plot: impl Fn(Width) -> Result<String>) -> Result<String> {
    let drawn = |class: &str, width| -> Result<String> {
        let svg = plot(width)?;
        Ok(format!(
            "<div class=\"{class}\" role=\"img\" aria-label=\"{words}\">{svg}</div>"
        ))
    };
    let desktop = drawn("desktop", Width::Desktop)?;
    Ok(desktop + "\n" + &drawn("phone", Width::Phone)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_in_their_places_and_one_that_looks_like_a_place_is_none() {
        let values = [("a", "{{b}}".to_owned()), ("b", "{{title}}".to_owned())];
        let page = page("T", ".x {}\n", "<p>{{a}} {{b}}</p>\n", &values);
        assert!(page.starts_with("<!doctype html>") && page.contains("<title>T</title>"));
        assert!(page.contains(".x {}\n</style>"));
        assert!(page.contains("<main>\n<p>{{b}} {{title}}</p>\n</main>"));
    }
}
