//! Reads parts of a JSON text as substrings of the body. Errors contain a position and no content.

use super::Skip;
use super::scan::{self, Bad, Scan};
use crate::work::looked;
use std::borrow::Cow;
use std::ops::Range;

/// Returns the text of a JSON string without its quotes; `None` if the value is not a string.
pub(crate) fn inner(raw: &str) -> Option<&str> {
    raw.strip_prefix('"')?.strip_suffix('"')
}

/// Unescapes the text of a JSON string, or a part of that text.
pub(crate) fn unescaped(piece: &str) -> Cow<'_, str> {
    super::text::unescaped(piece, None)
}

/// Returns the JSON of the named fields of `part`, an object in `body`; `None` for a field that is absent or `null`.
/// Returns an error if `part` is not such an object or names a field twice.
pub(super) fn fields<'a, const N: usize>(
    body: &str,
    part: &'a str,
    names: [&str; N],
) -> Result<[Option<&'a str>; N], Skip> {
    scan::fields(part, names).map_err(|Bad(at)| misplaced(body, part, at))
}

/// Returns the JSON of each element of `part`, a list in `body`; an error if it is not a list.
pub(super) fn elements<'a>(body: &str, part: &'a str) -> Result<Vec<&'a str>, Skip> {
    scanned(body, part, Scan::elements)
}

/// Returns the unescaped text of a field's value, empty if it is `None`; an error if the value is not a string.
pub(super) fn text<'a>(body: &str, field: Option<&'a str>) -> Result<Cow<'a, str>, Skip> {
    let Some(value) = field else {
        return Ok(Cow::default());
    };
    super::string(value).ok_or_else(|| misplaced(body, value, 0))
}

/// Calls `read` with a scan of `part`, a substring of `body`; an error if it fails or leaves bytes unread.
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

/// Returns the error for invalid JSON at byte offset `at` of `part`, with the line and column in `body`.
pub(super) fn misplaced(body: &str, part: &str, at: usize) -> Skip {
    let before = body.get(..offset_in(body, part) + at).unwrap_or(body);
    looked(before.len());
    let [mut line, mut column] = [1, 1];
    for byte in before.bytes() {
        (line, column) = match byte {
            b'\n' => (line + 1, 1),
            _ => (line, column + 1),
        };
    }
    Skip::InvalidJson { line, column }
}

/// Returns the offset in `body` of its substring `part`.
pub(crate) fn offset_in(body: &str, part: &str) -> usize {
    (part.as_ptr() as usize)
        .saturating_sub(body.as_ptr() as usize)
        .min(body.len())
}

pub(crate) fn range_in(body: &str, part: &str) -> Range<usize> {
    let start = offset_in(body, part);
    start..start + part.len()
}
