//! Makes the text that replaces a group's documents in the forwarded body: the documents, location hints (references to
//! earlier copies) and an order hint (a sentence with the retriever's ranking).

use super::edit::Edit;
use super::found::{FoundDocument, GroupLayout, HintSpot, Source, Wrap};
use super::scan::is_value;
use super::search::find_words;
use std::borrow::Cow;
use std::ops::Range;

/// The text that is sent in place of one document of the body: the document, or a location hint (a reference to an
/// earlier copy).
#[derive(Debug)]
pub(crate) enum Sent<'g, 'a> {
    Document(&'g FoundDocument<'a>),
    /// A location hint: a sentence that says where in the chat the document already is.
    Reference(String),
}

/// The text that the gateway writes into a message for one group of documents: those of the body's `documents` array,
/// or those that it fetched from a retriever.
#[derive(Debug)]
pub(crate) struct Rendering {
    /// The text inserted into the message, including an order hint (a sentence with the retriever's ranking) and the
    /// JSON around the text.
    pub(crate) text: String,
    /// For each document sent in full: the ranges in `text` of its block (the document with its tags) and of its label;
    /// the label's range is empty if it has none.
    pub(crate) documents: Vec<(Range<usize>, Range<usize>)>,
}

/// Returns the edits of the body that write `sent` and an order hint (a sentence with the retriever's ranking) in place
/// of a group's documents. If the gateway writes these into a message, also returns the text that it inserts there;
/// otherwise `None`.
pub(crate) fn edits<'a>(
    place: &GroupLayout<'a>,
    hint_place: Option<HintSpot>,
    sent: Vec<Sent<'_, 'a>>,
    hint: Option<String>,
) -> (Vec<Edit<'a>>, Option<Rendering>) {
    let hint = hint.zip(hint_place);
    match place {
        GroupLayout::Slots { slots, .. } => {
            let mut sent = sent.into_iter();
            let mut edits: Vec<Edit<'a>> = (slots.iter())
                .map(|slot| {
                    let with = match sent.next() {
                        Some(Sent::Document(found)) => block(found),
                        Some(Sent::Reference(words)) => words.into(),
                        None => "".into(),
                    };
                    Edit::replace(slot.clone(), with)
                })
                .collect();
            edits.extend(hint.map(|(hint, place)| {
                let pieces = [place.before.into(), hint.into(), place.after.into()];
                Edit::pieces(place.at..place.at, pieces)
            }));
            (edits, None)
        }
        GroupLayout::Render {
            array,
            entry,
            around,
        } => {
            let rendering = render(entry.wrap, *around, &sent, hint);
            let mut edits = vec![Edit::insert(entry.at, rendering.text.clone())];
            edits.extend(array.clone().map(|array| Edit::replace(array, "null")));
            (edits, Some(rendering))
        }
    }
}

fn render(
    wrap: Wrap,
    [before, behind]: [&str; 2],
    sent: &[Sent<'_, '_>],
    hint: Option<(String, HintSpot)>,
) -> Rendering {
    let mut text = String::new();
    let mut documents = Vec::with_capacity(sent.len());
    let [open, close] = wrapping(wrap);
    text.push_str(open);
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
    text.push_str(r"\n");
    text.push_str(close);
    Rendering { text, documents }
}

/// Returns whether `text` begins and ends with the JSON that `wrap` requires, and has the inside of a valid JSON string
/// between. This checks text from other workers; text rendered here always passes.
pub(crate) fn fits(wrap: Wrap, text: &str) -> bool {
    let [open, close] = wrapping(wrap);
    let inner = text.strip_prefix(open);
    inner
        .and_then(|inner| inner.strip_suffix(close))
        .is_some_and(|inner| is_value(&format!("\"{inner}\"")))
}

/// Returns the JSON to write before and after a block that is inserted into a message.
pub(crate) fn wrapping(wrap: Wrap) -> [&'static str; 2] {
    match wrap {
        Wrap::None => ["", ""],
        Wrap::Part { others, style } => [style.open(), if others { r#""},"# } else { r#""}"# }],
    }
}

/// Returns the text of a document's block (with its tags). It depends on the document alone: otherwise prompts with the
/// same documents would have no common prefix.
pub(crate) fn block<'a>(document: &FoundDocument<'a>) -> Cow<'a, str> {
    match &document.source {
        Source::Whole(whole) => Cow::Borrowed(whole),
        parts @ Source::Parts { .. } => {
            let mut text = String::new();
            write_block(&mut text, parts);
            text.into()
        }
    }
}

/// Appends a document's block (with its tags) to `text`; returns the ranges in `text` of the block and of its label
/// (the id, or else the title; empty if it has neither).
fn write_block(text: &mut String, source: &Source<'_>) -> (Range<usize>, Range<usize>) {
    let start = text.len();
    let mut label = start..start;
    match source {
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

/// Returns the id, title and text from which [`write_block`] may have written `block` (without its last line break).
/// There are two readings, first as a block without a title, then as one with a title; each is `None` if `block` does
/// not have that form.
pub(crate) fn parts_of_block(block: &str) -> [Option<[&str; 3]>; 2] {
    let read = || {
        let rest = block.strip_prefix("<document")?;
        let (id, rest) = match rest.strip_prefix(r#" id=\""#) {
            Some(rest) => parted(rest, r#"\">\n"#)?,
            None => ("", rest.strip_prefix(r">\n")?),
        };
        Some((id, rest.strip_suffix(r"\n</document>")?))
    };
    let Some((id, words)) = read() else {
        return [None, None];
    };
    let titled = parted(words, r"\n\n");
    [
        Some([id, "", words]),
        titled.map(|(title, text)| [id, title, text]),
    ]
}

/// Returns the parts of `text` before and after the first `mark`; `None` if `text` does not contain it.
fn parted<'t>(text: &'t str, mark: &str) -> Option<(&'t str, &'t str)> {
    let at = find_words(text, 0, mark)?;
    Some((text.get(..at)?, text.get(at + mark.len()..)?))
}
