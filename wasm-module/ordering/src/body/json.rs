//! Pieces of a JSON text as pieces of the text: where they start, and errors that name the place and never what
//! stands there.

use super::Skip;
use super::scan::{Bad, Scan};
use serde::Deserialize;
use std::ops::Range;

/// What stands between the quotes of a raw JSON string; `None` if it is no string.
pub(super) fn inner(raw: &str) -> Option<&str> {
    raw.strip_prefix('"')?.strip_suffix('"')
}

/// Reads `part` of `body` as an object.
pub(super) fn object<'a, T: Deserialize<'a>>(body: &str, part: &'a str) -> Result<T, Skip> {
    // Serde would take an array for a struct.
    if part.starts_with('{') {
        read(body, part)
    } else {
        Err(invalid(body, offset_in(body, part), 1, 1))
    }
}

/// Reads `part` of `body`.
pub(super) fn read<'a, T: Deserialize<'a>>(body: &str, part: &'a str) -> Result<T, Skip> {
    serde_json::from_str(part)
        .map_err(|error| invalid(body, offset_in(body, part), error.line(), error.column()))
}

/// Passes over `part` of `body` as `read` says, all of it.
pub(super) fn scanned<'a, T>(
    body: &str,
    part: &'a str,
    read: impl FnOnce(&mut Scan<'a>) -> Result<T, Bad>,
) -> Result<T, Skip> {
    let mut scan = Scan::new(part);
    read(&mut scan)
        .and_then(|found| scan.end().map(|()| found))
        .map_err(|Bad(at)| misplaced(body, part, at))
}

/// An error at the byte `at` of `part`.
pub(super) fn misplaced(body: &str, part: &str, at: usize) -> Skip {
    invalid(body, offset_in(body, part) + at, 1, 1)
}

/// An error at `line` and `column` of the part of `body` that starts at `offset`.
fn invalid(body: &str, offset: usize, line: usize, column: usize) -> Skip {
    let before = body.get(..offset).unwrap_or_default();
    let lines = before.matches('\n').count();
    let last_line = before.len() - before.rfind('\n').map_or(0, |at| at + 1);
    Skip::InvalidJson {
        line: lines + line.max(1),
        column: if line <= 1 {
            last_line + column
        } else {
            column
        },
    }
}

/// Where `part`, a piece of `body`, starts in it.
pub(super) fn offset_in(body: &str, part: &str) -> usize {
    (part.as_ptr() as usize)
        .saturating_sub(body.as_ptr() as usize)
        .min(body.len())
}

pub(super) fn range_in(body: &str, part: &str) -> Range<usize> {
    let start = offset_in(body, part);
    start..start + part.len()
}
