//! Reads tables of comma- or tab-separated values (RFC 4180): a value in quotes may hold separators, line ends and
//! doubled quotes.

use anyhow::{Context, Result, bail};

/// Returns the rows of `text`, blank lines left out.
pub(super) fn rows(text: &[u8], separator: char) -> Result<Vec<Vec<String>>> {
    let text = std::str::from_utf8(text).context("the table is not UTF-8")?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut rows = Vec::new();
    let (mut row, mut value) = (Vec::new(), String::new());
    let (mut line, mut opened) = (1_usize, None);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        line += usize::from(character == '\n');
        match (character, opened) {
            ('"', Some(_)) if characters.peek() == Some(&'"') => {
                characters.next();
                value.push('"');
            }
            ('"', Some(_)) => opened = None,
            ('"', None) if value.is_empty() && separator == ',' => opened = Some(line),
            (_, Some(_)) => value.push(character),
            ('\n', None) => {
                if value.ends_with('\r') {
                    value.pop();
                }
                if !row.is_empty() || !value.is_empty() {
                    row.push(std::mem::take(&mut value));
                    rows.push(std::mem::take(&mut row));
                }
            }
            (character, None) if character == separator => row.push(std::mem::take(&mut value)),
            (character, None) => value.push(character),
        }
    }
    if let Some(line) = opened {
        bail!("the quote that line {line} opens is not closed");
    }
    if !row.is_empty() || !value.is_empty() {
        row.push(value);
        rows.push(row);
    }
    Ok(rows)
}

/// Returns the place of a column that `header` must have.
pub(super) fn column(header: &[String], name: &str) -> Result<usize> {
    let place = header.iter().position(|title| title.trim() == name);
    place.with_context(|| {
        format!(
            "the table has no column {name:?}, only {}",
            header.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_quotes_hold_anything() {
        let read = rows(b"a,\"b, \"\"c\"\"\nd\",\r\n\n1,2,3", ',').unwrap();
        assert_eq!(read, [["a", "b, \"c\"\nd", ""], ["1", "2", "3"]]);
        assert_eq!(rows(b"x\t\"y\n", '\t').unwrap(), [["x", "\"y"]]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let error = rows(b"a\nb,\"c\nd", ',').unwrap_err().to_string();
        assert_eq!(error, "the quote that line 2 opens is not closed");
        assert!(rows(&[0xff], ',').is_err());
        let header = ["a".to_owned(), "b".to_owned()];
        assert_eq!(column(&header, "b").unwrap(), 1);
        let error = column(&header, "c").unwrap_err().to_string();
        assert_eq!(error, "the table has no column \"c\", only a, b");
    }
}
