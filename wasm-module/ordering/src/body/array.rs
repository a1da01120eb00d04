//! The `documents` array beside a body's messages: OpenAI-compatible engines' and Cohere's.
//!
//! Its documents are written into the last user message, or its elements put in order, as the operator says
//! ([`DocumentsField`]). In a body of Cohere's first API, which nobody else reads, they stay in their array: its answers
//! cite documents by their ids, or by their places, and then nothing moves.

use super::Skip;
use super::chat::{Chat, Wrap};
use super::json::{inner, range_in, read};
use super::parse::{Finder, Found, Group, HintPlace, Place, Source, rendered_scope};
use super::text::Text;
use crate::config::DocumentsField;
use crate::document::{Fingerprint, estimate_tokens};
use crate::object;
use crate::tree::Scope;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Documents of an array: before every message, or to be written into a message.
pub(super) type FromArray<'a> = (Option<Group<'a>>, Option<(usize, Group<'a>)>);

#[derive(Clone, Copy, Default)]
struct RawDocument<'a> {
    id: Option<&'a RawValue>,
    title: Option<&'a RawValue>,
    text: Option<&'a RawValue>,
    content: Option<&'a RawValue>,
    snippet: Option<&'a RawValue>,
    /// Cohere's way: the document's fields in an object of their own.
    data: Option<&'a RawValue>,
}

object!(
    impl<'de> RawDocument<'de> { id, title, text, content, snippet, data },
    others: Ignored
);

/// What a `documents` element says, as it stands between quotes; empty where it says nothing.
struct Parts<'a> {
    id: &'a str,
    title: &'a str,
    text: &'a str,
    /// Whether it says so in an object `data`, which is Cohere's way.
    in_data: bool,
}

impl<'a> RawDocument<'a> {
    /// Its text, by whatever name.
    fn text(&self) -> Option<&'a str> {
        let text = self.text.or(self.content).or(self.snippet)?;
        inner(text.get())
    }

    /// The object that holds the fields in Cohere's way.
    fn data(&self) -> Option<&'a str> {
        let data = self.data.map(RawValue::get)?;
        data.starts_with('{').then_some(data)
    }
}

/// The text of an element of a `documents` array, without escapes; `None` if it has none.
pub(crate) fn element_text(element: &str) -> Option<Cow<'_, str>> {
    if let Some(text) = inner(element) {
        return Some(Text::new(text).plain);
    }
    let raw: RawDocument<'_> = serde_json::from_str(element).ok()?;
    let fields = match raw.data() {
        Some(data) => serde_json::from_str(data).ok()?,
        None => raw,
    };
    Some(Text::new(fields.text()?).plain)
}

impl<'a> Finder<'a, '_> {
    /// The documents of the chat's `documents` array; nothing if there is none, or it is empty.
    pub(super) fn array(&mut self, chat: &Chat<'a>) -> Result<FromArray<'a>, Skip> {
        let field = self.config.field;
        let array = chat.documents.filter(|_| field != DocumentsField::Ignore);
        let Some(array) = array else {
            return Ok((None, None));
        };
        let messages = &chat.messages;
        let elements: Vec<&'a RawValue> = read(self.body, array.get())?;
        self.add(elements.len())?;
        if elements.is_empty() {
            return Ok((None, None));
        }
        let target = (messages.iter().enumerate().rev())
            .find_map(|(at, message)| Some((at, message, message.entry?)));
        let documents = elements.iter().enumerate();
        let documents = documents.map(|(index, element)| self.document(index, element.get()));
        let documents: Vec<Parts<'a>> = documents.collect::<Result<_, Skip>>()?;
        let stays = chat.is_cohere || field == DocumentsField::Reorder;
        let is_counted =
            |parts: &Parts<'_>| (parts.in_data || chat.is_cohere) && parts.id.is_empty();
        if stays && documents.iter().any(is_counted) {
            return Ok((None, None));
        }
        if stays {
            let found = elements.iter().zip(&documents);
            let found = found.map(|(element, parts)| Found::whole(element.get(), parts.id));
            let found = found.collect();
            let slots = elements
                .iter()
                .map(|element| range_in(self.body, element.get()))
                .collect();
            // Where the template renders the documents is unknown; before everything is the usual place.
            let scope = Scope(messages.first().map_or(0, |message| message.before));
            let hint = target.and_then(|(_, _, entry)| {
                (entry.wrap == Wrap::None).then_some(HintPlace {
                    at: entry.at,
                    before: "",
                    after: r"\n\n",
                })
            });
            let place = Place::Slots {
                slots,
                all_filled: true,
            };
            let group = Group {
                scope,
                found,
                place,
                hint,
            };
            return Ok((Some(group), None));
        }
        let (index_of, message, entry) = target.ok_or(Skip::NoUserMessage)?;
        let found = documents.into_iter().map(|parts| {
            let Parts {
                id, title, text, ..
            } = parts;
            Found {
                fingerprint: Fingerprint::of(&[id.as_bytes(), title.as_bytes(), text.as_bytes()]),
                label: if id.is_empty() { title } else { id },
                tokens: estimate_tokens(id.len() + title.len() + text.len()),
                source: Source::Parts { id, title, text },
            }
        });
        let group = Group {
            scope: rendered_scope(message),
            found: found.collect(),
            place: Place::Render {
                array: range_in(self.body, array.get()),
                entry,
            },
            hint: Some(HintPlace {
                at: entry.at,
                before: "",
                after: r"\n",
            }),
        };
        Ok((None, Some((index_of, group))))
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
        let raw: RawDocument<'a> = read(self.body, element)?;
        let data = raw.data();
        let fields: RawDocument<'a> = match data {
            Some(data) => read(self.body, data)?,
            None => raw,
        };
        let text = fields.text();
        let id =
            raw.id
                .or(fields.id)
                .map(RawValue::get)
                .map_or("", |id| match id.as_bytes().first() {
                    Some(b'"') => inner(id).unwrap_or_default(),
                    Some(b'-' | b'0'..=b'9') => id,
                    _ => "",
                });
        let title = fields
            .title
            .and_then(|title| inner(title.get()))
            .unwrap_or_default();
        Ok(Parts {
            id,
            title,
            text: text.ok_or(Skip::MalformedDocument { index })?,
            in_data: data.is_some(),
        })
    }
}
