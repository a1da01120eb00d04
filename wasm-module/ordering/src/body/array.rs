//! The `documents` array of a body, a sibling of `messages` in OpenAI-compatible engines' and Cohere's APIs.
//!
//! [`DocumentsField`] decides whether its documents are written into the last user message or its elements are ordered
//! in place. In Cohere's v1 API, documents stay in their array. Its answers cite them by id; without ids they cite by
//! index, and nothing is moved. An array that a retriever returned is not part of the body: its documents are always
//! written into a message.
//!
//! Documents are rendered here because most engines ignore the array unless their chat template supports it.

use super::Skip;
use super::chat::{Chat, ParsedMessage};
use super::escape::{attribute, enclosed};
use super::found::{Entry, Finder, FoundDocument, Group, GroupLayout, HintSpot, Source, Wrap};
use super::json::{elements, fields, inner, range_in};
use super::scan::{self, Scan};
use super::search::has;
use super::text::unescaped;
use crate::config::{DocumentFormat, DocumentsField};
use crate::document::{Fingerprint, estimate_tokens};
use crate::tree::Scope;
use crate::work::hashed;
use std::borrow::Cow;
use std::ops::Range;

/// Documents that the gateway's retriever found for a request. They are written into the body's last user message,
/// before its text. If the configuration says so, they are [pinned](crate::config::RawConversation::pin) there
/// (repeated in the chat's later requests).
#[derive(Clone, Copy, Debug)]
pub struct Retrieved<'a> {
    /// A JSON array of documents, best first, in the form of a body's `documents` field.
    pub documents: &'a str,
    /// Text before and after all the documents, escaped as in a JSON string. It must be the same for every request,
    /// since the knowledge tree, which predicts what the engine's cache holds, does not record it.
    pub around: [&'a str; 2],
}

/// The group of documents in a body's `documents` array: the first value if they stay in the array; the second, with
/// the index of a message, if the gateway writes them into that message. At most one of the two is present.
pub(super) type FromArray<'a> = (Option<Group<'a>>, Option<(usize, Group<'a>)>);

/// The fields of an element of the `documents` array, as JSON; `None` if absent or `null`.
struct RawDocument<'a> {
    id: Option<&'a str>,
    title: Option<&'a str>,
    text: Option<&'a str>,
    /// The object in which Cohere's API puts the document's fields.
    data: Option<&'a str>,
    /// True if further texts or a title that is no string would be lost if the gateway rendered the document.
    has_more: bool,
}

/// The strings of an element of the `documents` array, without quotes; empty if absent.
struct Parts<'a> {
    id: &'a str,
    title: &'a str,
    text: &'a str,
    /// True if the fields of the element are in an object `data` (Cohere).
    in_data: bool,
    /// True if the element has texts that would be lost if the gateway rendered it: a second text that the first does
    /// not contain, or, in an object `data`, fields other than [`RawDocument::NAMES`]. The document then stays in the
    /// array.
    has_more: bool,
}

impl<'a> RawDocument<'a> {
    const NAMES: [&'static str; 6] = ["id", "title", "text", "content", "snippet", "data"];

    fn new(fields: [Option<&'a str>; 6]) -> Self {
        let [id, title, text, content, snippet, data] = fields;
        let texts = [text, content, snippet];
        let read = text.or(content).or(snippet);
        let is_other = |text: &Option<&str>| {
            // An excerpt of the text is no loss.
            let excerpt = text.and_then(inner).unwrap_or_default();
            text.is_some() && !read.and_then(inner).is_some_and(|read| has(read, excerpt))
        };
        Self {
            id,
            title,
            text: read.and_then(inner),
            data: data.filter(|data| data.starts_with('{')),
            has_more: texts.iter().any(is_other)
                || title.is_some_and(|title| inner(title).is_none()),
        }
    }
}

/// Returns the unescaped text of an element of a `documents` array; `None` if the element has no text.
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
    /// Finds the documents of `array`, the body's `documents` field, as a group that stays in the array or is written
    /// into a message (see [`FromArray`]). Returns `(None, None)` in two cases: (1) the array is empty; (2) its
    /// documents stay there and one in Cohere's form has no id, so that answers would cite it by index and the order
    /// must not change.
    ///
    /// Returns an error if the array is malformed, if the body has too many documents, or if the documents are to be
    /// written into a message and the chat has no user message for them.
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
        let stays = chat.is_cohere
            || self.config.documents.field == DocumentsField::Reorder
            || documents.iter().any(|parts| parts.has_more);
        let is_counted =
            |parts: &Parts<'_>| (parts.in_data || chat.is_cohere) && parts.id.is_empty();
        if stays && documents.iter().any(is_counted) {
            return Ok((None, None));
        }
        if stays {
            let found = elements.iter().zip(&documents);
            let found = found.map(|(element, parts)| FoundDocument::whole(element, parts.id));
            let found = found.collect();
            let slots = (elements.iter())
                .map(|element| range_in(self.body, element))
                .collect();
            // It is unknown where the template renders these documents; most render them before all messages.
            let scope = Scope(messages.first().map_or(0, |message| message.before));
            let hint = target.and_then(|(_, (entry, _))| {
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
                is_labelled: false,
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

    /// Finds the documents that a retriever returned, with the index of the message into which they are written; `None`
    /// if it returned none. `array` is the body's own `documents` array, which is empty; `None` if the body has none.
    pub(super) fn retrieved(
        &mut self,
        retrieved: &Retrieved<'a>,
        array: Option<&'a str>,
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
        let array = array.map(|array| range_in(self.body, array));
        Ok(Some(rendered(documents, target, array, retrieved.around)))
    }

    /// Reads the strings of the `documents` element with this index; an error if it is not a string or an object with a
    /// text.
    fn document(&self, index: usize, element: &'a str) -> Result<Parts<'a>, Skip> {
        if let Some(text) = inner(element) {
            return Ok(Parts {
                id: "",
                title: "",
                text,
                in_data: false,
                has_more: false,
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
        let (fields, has_more) = match data {
            Some(data) => {
                let fields = read(data)?;
                let is_outside = raw.text.is_some() || raw.title.is_some();
                let has_ids = id.is_some() && fields.id.is_some_and(|inner| Some(inner) != id);
                let is_more = is_outside || has_ids || fields.data.is_some() || has_more(data);
                (fields, is_more)
            }
            None => (raw, false),
        };
        let has_more = has_more || fields.has_more;
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
            has_more,
        })
    }
}

/// Returns whether an object has other fields than [`RawDocument::NAMES`], which are the ones read.
fn has_more(object: &str) -> bool {
    let mut is_more = false;
    // The object was already read, so it is valid.
    let _ = Scan::new(object).object(|scan, name| {
        is_more |= !RawDocument::NAMES.contains(&name);
        scan.value().map(|_| ())
    });
    is_more
}

/// Returns the last user message into which documents can be written (not a tool's result), as its index, with the
/// position in the body at which to write them and the scope there (hash of the prompt before them); `None` if there is
/// no such message.
fn target(messages: &[ParsedMessage<'_>]) -> Option<(usize, (Entry, Scope))> {
    let mut messages = messages.iter().enumerate().rev();
    messages.find_map(|(at, parsed)| Some((at, parsed.message.entry?)))
}

/// Returns the group of `documents` that the gateway writes into a message, after the index of that message, which is
/// passed in. `array` is the range of the body's `documents` field, `around` the text before and after all documents.
fn rendered<'a>(
    documents: Vec<Parts<'a>>,
    (index, (entry, scope)): (usize, (Entry, Scope)),
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
        scope,
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
        is_labelled: false,
    };
    (index, group)
}
