//! Writes a body with some of its ranges replaced; every other byte is copied.

use crate::sort::sort_by_key;
use std::borrow::Cow;
use std::ops::Range;

/// A replacement of a range of a request's body.
#[derive(Debug)]
pub(crate) struct Edit<'a> {
    range: Range<usize>,
    with: Pieces<'a>,
}

/// The text of an [`Edit`]: separator, text, separator, each possibly empty. Three pieces suffice, so an edit needs no
/// list on the heap.
pub(super) type Pieces<'a> = [Cow<'a, str>; 3];

impl<'a> Edit<'a> {
    /// Returns the edit that replaces a range of the body with the text `with`.
    pub(crate) fn replace(range: Range<usize>, with: impl Into<Cow<'a, str>>) -> Self {
        Self::pieces(range, ["".into(), with.into(), "".into()])
    }

    /// Returns the edit that inserts the text `with` at an offset of the body.
    pub(crate) fn insert(at: usize, with: impl Into<Cow<'a, str>>) -> Self {
        Self::replace(at..at, with)
    }

    pub(super) fn pieces(range: Range<usize>, with: Pieces<'a>) -> Self {
        Self { range, with }
    }
}

/// Returns the substring `range` of `text` with each of `parts` (ranges of `text`, with the new text) replaced. They
/// must be sorted, disjoint and inside `range`.
pub(crate) fn replaced<'e>(
    text: &str,
    range: Range<usize>,
    parts: impl Iterator<Item = (Range<usize>, &'e str)> + Clone,
) -> String {
    let added: usize = parts.clone().map(|(_, with)| with.len()).sum();
    let mut out = String::with_capacity(range.len() + added);
    let mut done = range.start;
    for (part, with) in parts {
        out.push_str(text.get(done..part.start).unwrap_or_default());
        out.push_str(with);
        done = done.max(part.end);
    }
    out.push_str(text.get(done..range.end).unwrap_or_default());
    out
}

/// Returns `body` with `edits` applied, whose ranges must not overlap.
pub(crate) fn apply(body: &str, mut edits: Vec<Edit<'_>>) -> Vec<u8> {
    // The edits do not overlap, so no two ranges are equal.
    sort_by_key(&mut edits, |edit| (edit.range.start, edit.range.end));
    let added: usize = (edits.iter())
        .flat_map(|edit| &edit.with)
        .map(|piece| piece.len())
        .sum();
    let removed: usize = edits.iter().map(|edit| edit.range.len()).sum();
    let mut out = Vec::with_capacity((body.len() + added).saturating_sub(removed));
    let mut copied = 0;
    for edit in edits {
        let between = body.get(copied..edit.range.start).unwrap_or_default();
        out.extend_from_slice(between.as_bytes());
        for piece in &edit.with {
            out.extend_from_slice(piece.as_bytes());
        }
        copied = edit.range.end;
    }
    out.extend_from_slice(body.get(copied..).unwrap_or_default().as_bytes());
    out
}
