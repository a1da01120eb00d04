//! Writes a body with some of its ranges replaced; every other byte is copied.

use super::chat::{Entry, Wrap};
use super::parse::{Found, HintPlace, Place, Source};
use super::scan::is_value;
use crate::sort::sort_by_key;
use std::borrow::Cow;
use std::ops::Range;

/// A range of the body and what stands there instead.
#[derive(Debug)]
pub(crate) struct Edit<'a> {
    range: Range<usize>,
    with: Pieces<'a>,
}

/// What stands there, and what separates it from its neighbours. Few pieces, so that an edit is no list in the heap.
type Pieces<'a> = [Cow<'a, str>; 3];

/// What is sent in a document's place.
#[derive(Debug)]
pub(crate) enum Sent<'g, 'a> {
    Document(&'g Found<'a>),
    /// These words, which say where the document stands.
    Reference(String),
}

/// Documents of an array as they are written into a message.
#[derive(Debug)]
pub(crate) struct Rendering {
    /// Everything that is inserted, hint and wrapping included.
    pub(crate) text: String,
    /// For every document sent (not for references): its block and, if it has one, its label, in `text`.
    pub(crate) documents: Vec<(Range<usize>, Range<usize>)>,
}

impl<'a> Edit<'a> {
    /// Something else stands in a range of the body.
    pub(crate) fn replace(range: Range<usize>, with: String) -> Self {
        Self {
            range,
            with: one(with.into()),
        }
    }

    /// Documents that were written into a message before are written into it again.
    pub(crate) fn insert(entry: Entry, text: &'a str) -> Self {
        Self {
            range: entry.at..entry.at,
            with: one(text.into()),
        }
    }
}

fn one(piece: Cow<'_, str>) -> Pieces<'_> {
    ["".into(), piece, "".into()]
}

/// The edits that put `sent` and a hint where a group's documents stood; what was rendered, if they were rendered.
pub(crate) fn edits<'a>(
    place: &Place<'a>,
    hint_place: Option<HintPlace>,
    sent: Vec<Sent<'_, 'a>>,
    hint: Option<String>,
) -> (Vec<Edit<'a>>, Option<Rendering>) {
    let hint = hint.zip(hint_place);
    match place {
        Place::Slots { slots, .. } => {
            let mut sent = sent.into_iter();
            let mut edits: Vec<Edit<'a>> = slots
                .iter()
                .map(|slot| Edit {
                    range: slot.clone(),
                    with: match sent.next() {
                        Some(Sent::Document(found)) => one(block(found)),
                        Some(Sent::Reference(words)) => one(words.into()),
                        None => Pieces::default(),
                    },
                })
                .collect();
            edits.extend(hint.map(|(hint, place)| Edit {
                range: place.at..place.at,
                with: [place.before.into(), hint.into(), place.after.into()],
            }));
            (edits, None)
        }
        Place::Render {
            array,
            entry,
            around,
        } => {
            let rendering = render(entry.wrap, *around, &sent, hint);
            let mut edits = vec![Edit {
                range: entry.at..entry.at,
                with: one(rendering.text.clone().into()),
            }];
            edits.extend(array.as_ref().map(|array| Edit {
                range: array.clone(),
                with: one("null".into()),
            }));
            (edits, Some(rendering))
        }
    }
}

fn render(
    wrap: Wrap,
    [before, behind]: [&str; 2],
    sent: &[Sent<'_, '_>],
    hint: Option<(String, HintPlace)>,
) -> Rendering {
    let mut text = String::new();
    let mut documents = Vec::with_capacity(sent.len());
    if let Wrap::Part { .. } = wrap {
        text.push_str(r#"{"type":"text","text":""#);
    }
    text.push_str(before);
    for sent in sent {
        match sent {
            Sent::Document(found) => documents.push(write_block(&mut text, &found.source)),
            Sent::Reference(words) => {
                text.push_str(words);
                text.push_str(r"\n");
            }
        }
    }
    text.push_str(behind);
    if let Some((hint, place)) = hint {
        text.push_str(place.before);
        text.push_str(&hint);
        text.push_str(place.after);
    }
    text.push_str(match wrap {
        Wrap::None => r"\n",
        Wrap::Part { others: true } => r#"\n"},"#,
        Wrap::Part { others: false } => r#"\n"}"#,
    });
    Rendering { text, documents }
}

/// Whether a body stays JSON when `text` is inserted where that wrapping belongs. What was rendered may; this is for a
/// text that came from elsewhere.
pub(crate) fn fits(wrap: Wrap, text: &str) -> bool {
    match wrap {
        Wrap::None => is_value(&format!("\"{text}\"")),
        Wrap::Part { others: true } => text.strip_suffix(',').is_some_and(is_value),
        Wrap::Part { others: false } => is_value(text),
    }
}

/// A document's block: a pure function of the document, or prefixes would never match.
pub(crate) fn block<'a>(document: &Found<'a>) -> Cow<'a, str> {
    match &document.source {
        Source::Whole(whole) => Cow::Borrowed(whole),
        parts @ Source::Parts { .. } => {
            let mut text = String::new();
            write_block(&mut text, parts);
            text.into()
        }
    }
}

/// Writes a document's block; where it stands in `text`, and where its label does: its id, or else its title.
fn write_block(text: &mut String, source: &Source<'_>) -> (Range<usize>, Range<usize>) {
    let start = text.len();
    let mut label = start..start;
    match *source {
        Source::Whole(whole) => text.push_str(whole),
        Source::Parts {
            id,
            title,
            text: words,
        } => {
            text.push_str("<document");
            if !id.is_empty() {
                text.push_str(r#" id=\""#);
                label = text.len()..text.len() + id.len();
                text.push_str(id);
                text.push_str(r#"\""#);
            }
            text.push_str(r">\n");
            if !title.is_empty() {
                if id.is_empty() {
                    label = text.len()..text.len() + title.len();
                }
                text.push_str(title);
                text.push_str(r"\n\n");
            }
            text.push_str(words);
            text.push_str(r"\n</document>\n");
        }
    }
    (start..text.len(), label)
}

/// The id, title and text that [`write_block`] may have written `block` from, the blank line behind it left out: without
/// a title, and with one. None for a block that it did not write.
pub(crate) fn parts_of_block(block: &str) -> [Option<[&str; 3]>; 2] {
    let read = || {
        let rest = block.strip_prefix("<document")?;
        let (id, rest) = match rest.strip_prefix(r#" id=\""#) {
            Some(rest) => rest.split_once(r#"\">\n"#)?,
            None => ("", rest.strip_prefix(r">\n")?),
        };
        Some((id, rest.strip_suffix(r"\n</document>")?))
    };
    let Some((id, words)) = read() else {
        return [None, None];
    };
    let titled = words.split_once(r"\n\n");
    [
        Some([id, "", words]),
        titled.map(|(title, text)| [id, title, text]),
    ]
}

/// `body` with `edits` made, which must not overlap.
pub(crate) fn apply(body: &str, mut edits: Vec<Edit<'_>>) -> Vec<u8> {
    // No two are alike, for they do not overlap.
    sort_by_key(&mut edits, |edit| (edit.range.start, edit.range.end));
    let added: usize = edits
        .iter()
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
