//! Formats numbers and texts for tables, JSON and pages.

/// Rounds `value` to the nearest multiple of `1 / parts`.
#[must_use]
pub fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

/// Formats a fraction as a percentage, such as `12.3 %` for 0.123.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Formats `1234567` as `1,234,567`.
#[must_use]
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a section of a terminal's text: a blank line, `heading`, and `lines` without spaces at their ends; nothing if
/// there are no lines.
#[must_use]
pub fn section(heading: &str, lines: impl IntoIterator<Item = String>) -> String {
    let mut section = String::new();
    for line in lines {
        if section.is_empty() {
            section = format!("\n{heading}\n");
        }
        section += line.trim_end();
        section.push('\n');
    }
    section
}

/// Escapes `text` for HTML.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_numbers_are_grouped() {
        assert_eq!(
            [7, 999, 1000, 1_234_567].map(grouped),
            ["7", "999", "1,000", "1,234,567"]
        );
    }
}
