//! The `documents` array beside a body's messages: OpenAI-compatible engines' and Cohere's.
//!
//! Its documents are written into the last user message, or its elements put in order, as the operator says
//! ([`DocumentsField`]). In a body of Cohere's first API, which nobody else reads, they stay in their array: its answers
//! cite documents by their ids, or by their places, and then nothing moves. An array that a retriever gave for the body
//! stands nowhere in it: its documents are always written.
//!
//! Documents are rendered here because most engines ignore the array unless their chat template knows it.

use super::Skip;
use super::chat::{Chat, Entry, ParsedMessage, Wrap};
use super::escape::{attribute, enclosed};
use super::found::{Finder, FoundDocument, Group, GroupLayout, HintSpot, Source};
use super::json::{elements, fields, inner, range_in};
use super::scan;
use super::text::unescaped;
use crate::config::{DocumentFormat, DocumentsField};
use crate::document::{Fingerprint, estimate_tokens};
use crate::tree::Scope;
use crate::work::hashed;
use std::borrow::Cow;
use std::ops::Range;

/// Documents that were found for a body, not by its client. They are written into its last user message, before its
/// text, and stay there where chats are [pinned](crate::config::RawConversation::pin).
#[derive(Clone, Copy, Debug)]
pub struct Retrieved<'a> {
    /// A JSON array, best first, of what may stand in a body's `documents`.
    pub documents: &'a str,
    /// What stands before and behind them, as between the quotes of a JSON string. The same for every request: it is not
    /// part of what the tree knows.
    pub around: [&'a str; 2],
}

/// Documents of an array: before every message, or to be written into a message.
pub(super) type FromArray<'a> = (Option<Group<'a>>, Option<(usize, Group<'a>)>);

/// An element's fields, as written, if they say anything.
struct RawDocument<'a> {
    id: Option<&'a str>,
    title: Option<&'a str>,
    text: Option<&'a str>,
    /// Cohere's way: the document's fields in an object of their own.
    data: Option<&'a str>,
}

/// What a `documents` element says, as it stands between quotes; empty where it says nothing.
struct Parts<'a> {
    id: &'a str,
    title: &'a str,
    text: &'a str,
    /// Whether it says so in an object `data`, which is Cohere's way.
    in_data: bool,
}

impl<'a> RawDocument<'a> {
    const NAMES: [&'static str; 6] = ["id", "title", "text", "content", "snippet", "data"];

    fn new(fields: [Option<&'a str>; 6]) -> Self {
        let [id, title, text, content, snippet, data] = fields;
        Self {
            id,
            title,
            text: text.or(content).or(snippet).and_then(inner),
            data: data.filter(|data| data.starts_with('{')),
        }
    }
}

/// The text of an element of a `documents` array, without escapes; `None` if it has none.
pub(crate) fn element_text(element: &str) -> Option<Cow<'_, str>> {
    if let Some(text) = inner(element) {
        return Some(unescaped(text, None));
    }
    let read = |object| {
        let fields = scan::fields(object, RawDocument::NAMES).ok()?;
        Some(RawDocument::new(fields))
    };
    let raw = read(element)?;
    let fields = match raw.data {
        Some(data) => read(data)?,
        None => raw,
    };
    Some(unescaped(fields.text?, None))
}

impl<'a> Finder<'a, '_> {
    /// The documents of the chat's array; nothing if it is empty.
    pub(super) fn array(&mut self, array: &'a str, chat: &Chat<'a>) -> Result<FromArray<'a>, Skip> {
        let messages = &chat.messages;
        let elements = elements(self.body, array)?;
        self.add(elements.len())?;
        if elements.is_empty() {
            return Ok((None, None));
        }
        let target = target(messages);
        let documents = elements.iter().enumerate();
        let documents = documents.map(|(index, element)| self.document(index, element));
        let documents: Vec<Parts<'a>> = documents.collect::<Result<_, Skip>>()?;
        let stays = chat.is_cohere || self.config.field == DocumentsField::Reorder;
        let is_counted =
            |parts: &Parts<'_>| (parts.in_data || chat.is_cohere) && parts.id.is_empty();
        if stays && documents.iter().any(is_counted) {
            return Ok((None, None));
        }
        if stays {
            let found = elements.iter().zip(&documents);
            let found = found.map(|(element, parts)| FoundDocument::whole(element, parts.id));
            let found = found.collect();
            let slots = elements
                .iter()
                .map(|element| range_in(self.body, element))
                .collect();
            // Where the template renders the documents is unknown; before everything is the usual place.
            let scope = Scope(messages.first().map_or(0, |message| message.before));
            let hint = target.and_then(|(_, _, entry)| {
                (entry.wrap == Wrap::None).then_some(HintSpot {
                    at: entry.at,
                    before: "",
                    after: r"\n\n",
                })
            });
            let place = GroupLayout::Slots {
                slots,
                all_filled: true,
            };
            let group = Group {
                scope,
                format: DocumentFormat::Field,
                found,
                place,
                hint,
            };
            return Ok((Some(group), None));
        }
        let array = range_in(self.body, array);
        let target = target.ok_or(Skip::NoUserMessage)?;
        Ok((
            None,
            Some(rendered(documents, target, Some(array), [""; 2])),
        ))
    }

    /// The documents that a retriever found; `None` if it found none.
    pub(super) fn retrieved(
        &mut self,
        retrieved: &Retrieved<'a>,
        messages: &[ParsedMessage<'a>],
    ) -> Result<Option<(usize, Group<'a>)>, Skip> {
        let elements = elements(self.body, retrieved.documents)?;
        self.add(elements.len())?;
        if elements.is_empty() {
            return Ok(None);
        }
        let documents = elements.iter().enumerate();
        let documents = documents.map(|(index, element)| self.document(index, element));
        let documents: Vec<Parts<'a>> = documents.collect::<Result<_, Skip>>()?;
        let target = target(messages).ok_or(Skip::NoUserMessage)?;
        Ok(Some(rendered(documents, target, None, retrieved.around)))
    }

    /// What a `documents` element says.
    fn document(&self, index: usize, element: &'a str) -> Result<Parts<'a>, Skip> {
        if let Some(text) = inner(element) {
            return Ok(Parts {
                id: "",
                title: "",
                text,
                in_data: false,
            });
        }
        if !element.starts_with('{') {
            return Err(Skip::MalformedDocument { index });
        }
        let read = |object| {
            let fields = fields(self.body, object, RawDocument::NAMES)?;
            Ok(RawDocument::new(fields))
        };
        let raw = read(element)?;
        let (id, data) = (raw.id, raw.data);
        let fields = match data {
            Some(data) => read(data)?,
            None => raw,
        };
        let id = (id.or(fields.id)).map_or("", |id| match id.as_bytes().first() {
            Some(b'"') => inner(id).unwrap_or_default(),
            Some(b'-' | b'0'..=b'9') => id,
            _ => "",
        });
        let title = fields.title.and_then(inner).unwrap_or_default();
        Ok(Parts {
            id,
            title,
            text: (fields.text).ok_or(Skip::MalformedDocument { index })?,
            in_data: data.is_some(),
        })
    }
}

/// The message that documents can be written into: the last one of a user's with text.
fn target<'m, 'a>(
    messages: &'m [ParsedMessage<'a>],
) -> Option<(usize, &'m ParsedMessage<'a>, Entry)> {
    let mut messages = messages.iter().enumerate().rev();
    messages.find_map(|(at, message)| Some((at, message, message.entry?)))
}

/// These documents, to be written into that message, and which one it is.
fn rendered<'a>(
    documents: Vec<Parts<'a>>,
    (index, message, entry): (usize, &ParsedMessage<'a>, Entry),
    array: Option<Range<usize>>,
    around: [&'a str; 2],
) -> (usize, Group<'a>) {
    let found = documents.into_iter().map(|parts| {
        let label = match parts.id {
            "" => parts.title,
            id => id,
        };
        let [id, title, text] = [
            attribute(parts.id),
            enclosed(parts.title),
            enclosed(parts.text),
        ];
        hashed(id.len() + title.len() + text.len());
        FoundDocument {
            fingerprint: Fingerprint::of(&[id.as_bytes(), title.as_bytes(), text.as_bytes()]),
            label,
            tokens: estimate_tokens(id.len() + title.len() + text.len()),
            source: Source::Parts { id, title, text },
            numbered: None,
        }
    });
    let group = Group {
        format: DocumentFormat::Field,
        scope: message.rendered_scope(),
        found: found.collect(),
        place: GroupLayout::Render {
            array,
            entry,
            around,
        },
        hint: Some(HintSpot {
            at: entry.at,
            before: "",
            after: r"\n",
        }),
    };
    (index, group)
}
