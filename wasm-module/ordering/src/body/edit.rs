//! Writes a body with some of its ranges replaced; every other byte is copied.

use super::parse::{Found, HintPlace, Place, Source, Wrap};
use std::ops::Range;

/// A range of the body and what stands there instead.
#[derive(Debug)]
pub(crate) struct Edit<'a> {
    range: Range<usize>,
    with: Vec<Piece<'a>>,
}

#[derive(Debug)]
enum Piece<'a> {
    Copied(&'a str),
    Made(String),
}

impl Piece<'_> {
    fn as_str(&self) -> &str {
        match self {
            Self::Copied(text) => text,
            Self::Made(text) => text,
        }
    }
}

/// The edits that put `kept` (in their new order) and a hint where a group's documents stood.
pub(crate) fn edits<'a>(
    place: &Place,
    hint_place: Option<HintPlace>,
    kept: &[&Found<'a>],
    hint: Option<String>,
) -> Vec<Edit<'a>> {
    let mut edits = Vec::new();
    match place {
        Place::Slots { slots, .. } => {
            let mut documents = kept.iter();
            for slot in slots {
                let with = documents
                    .next()
                    .map(|document| block(document))
                    .unwrap_or_default();
                edits.push(Edit {
                    range: slot.clone(),
                    with,
                });
            }
            if let (Some(hint), Some(at)) = (hint, hint_place) {
                let with = vec![
                    Piece::Copied(at.before),
                    Piece::Made(hint),
                    Piece::Copied(at.after),
                ];
                edits.push(Edit {
                    range: at.at..at.at,
                    with,
                });
            }
        }
        Place::Render { array, at, wrap } => {
            let mut with = Vec::new();
            if let Wrap::Part { .. } = wrap {
                with.push(Piece::Copied(r#"{"type":"text","text":""#));
            }
            for document in kept {
                with.extend(block(document));
            }
            if let (Some(hint), Some(place)) = (hint, hint_place) {
                with.extend([
                    Piece::Copied(place.before),
                    Piece::Made(hint),
                    Piece::Copied(place.after),
                ]);
            }
            with.push(Piece::Copied(match wrap {
                Wrap::None => r"\n",
                Wrap::Part { others: true } => r#"\n"},"#,
                Wrap::Part { others: false } => r#"\n"}"#,
            }));
            edits.push(Edit {
                range: *at..*at,
                with,
            });
            edits.push(Edit {
                range: array.clone(),
                with: vec![Piece::Copied("null")],
            });
        }
    }
    edits
}

/// A document's block: a pure function of the document, or prefixes would never match.
fn block<'a>(document: &Found<'a>) -> Vec<Piece<'a>> {
    let Source::Parts { id, title, text } = document.source else {
        return match document.source {
            Source::Whole(whole) => vec![Piece::Copied(whole)],
            Source::Parts { .. } => Vec::new(),
        };
    };
    let mut pieces = vec![Piece::Copied("<document")];
    if !id.is_empty() {
        pieces.extend([
            Piece::Copied(r#" id=\""#),
            Piece::Copied(id),
            Piece::Copied(r#"\""#),
        ]);
    }
    pieces.push(Piece::Copied(r">\n"));
    if !title.is_empty() {
        pieces.extend([Piece::Copied(title), Piece::Copied(r"\n\n")]);
    }
    pieces.extend([Piece::Copied(text), Piece::Copied(r"\n</document>\n")]);
    pieces
}

/// `body` with `edits` made, which must not overlap.
pub(crate) fn apply(body: &str, mut edits: Vec<Edit<'_>>) -> Vec<u8> {
    edits.sort_by_key(|edit| (edit.range.start, edit.range.end));
    let added: usize = edits
        .iter()
        .flat_map(|edit| &edit.with)
        .map(|piece| piece.as_str().len())
        .sum();
    let removed: usize = edits.iter().map(|edit| edit.range.len()).sum();
    let mut out = Vec::with_capacity((body.len() + added).saturating_sub(removed));
    let mut copied = 0;
    for edit in edits {
        out.extend_from_slice(
            body.get(copied..edit.range.start)
                .unwrap_or_default()
                .as_bytes(),
        );
        for piece in &edit.with {
            out.extend_from_slice(piece.as_str().as_bytes());
        }
        copied = edit.range.end;
    }
    out.extend_from_slice(body.get(copied..).unwrap_or_default().as_bytes());
    out
}
