//! Finds a chat body's documents: in its `documents` array, and in tagged spans of its messages.

use super::chat::{Chain, Chat, Entry, RawTurn, Wrap};
use super::json::{inner, offset_in, range_in, read};
use super::text::Text;
use super::{Skip, tags};
use crate::config::{Config, DocumentsField};
use crate::document::{Fingerprint, estimate_tokens};
use crate::tree::Scope;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A body's messages and documents; perhaps no documents.
#[derive(Debug)]
pub(crate) struct Parsed<'a> {
    /// The body.
    pub(crate) text: &'a str,
    /// The model's name, empty when the body has none.
    pub(crate) model: Cow<'a, str>,
    /// Documents that the engine's template renders, before every message.
    pub(crate) front: Option<Group<'a>>,
    pub(crate) messages: Vec<Message<'a>>,
    /// Documents that are to be written into the message of that index, before its own.
    pub(crate) rendered: Option<(usize, Group<'a>)>,
}

/// A message.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    /// By what the chat up to here is known.
    pub(crate) chain: Chain,
    /// The chat's turn that it belongs to.
    pub(crate) turn: u32,
    /// Where documents can be written into it, and what precedes them in the prompt.
    pub(crate) entry: Option<(Entry, Scope)>,
    /// The documents of each of its texts that has any.
    pub(crate) groups: Vec<Group<'a>>,
}

/// Documents that are ordered together: they stand together.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    /// What precedes them in the prompt, as the client wrote it.
    pub(crate) scope: Scope,
    /// In the client's order; at least one.
    pub(crate) found: Vec<Found<'a>>,
    pub(crate) place: Place,
    /// Where an order hint goes, and what separates it from its neighbours.
    pub(crate) hint: Option<HintPlace>,
}

/// One document. Its strings are copies of the body's bytes, escapes included.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    pub(crate) fingerprint: Fingerprint,
    /// What a hint calls it; empty when it has no id.
    pub(crate) label: &'a str,
    pub(crate) tokens: u32,
    pub(crate) source: Source<'a>,
}

/// Where a document's bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source<'a> {
    /// It moves as it stands.
    Whole(&'a str),
    /// It is rendered from the strings of a `documents` element (empty when absent).
    Parts {
        id: &'a str,
        title: &'a str,
        text: &'a str,
    },
}

/// Where a group's documents go.
#[derive(Debug)]
pub(crate) enum Place {
    /// Each into one of these ranges of the body; what is between them stays. When documents are dropped, the last
    /// slots are left empty, unless `all_filled`.
    Slots {
        slots: Vec<Range<usize>>,
        all_filled: bool,
    },
    /// Their rendered blocks into a message; `array` becomes `null`.
    Render { array: Range<usize>, entry: Entry },
}

/// See [`Group::hint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HintPlace {
    pub(crate) at: usize,
    pub(crate) before: &'static str,
    pub(crate) after: &'static str,
}

impl<'a> Found<'a> {
    /// The block as it stands in a message of the body; `None` if the client sends the document apart.
    pub(crate) fn block_in_message(&self) -> Option<&'a str> {
        match self.source {
            Source::Whole(whole) => Some(whole),
            Source::Parts { .. } => None,
        }
    }
}

impl Group<'_> {
    /// Whether its documents are written into a message.
    pub(crate) fn is_rendered(&self) -> bool {
        matches!(self.place, Place::Render { .. })
    }
}

#[derive(Deserialize)]
struct RawDocument<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    title: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

/// The text of an element of a `documents` array, without escapes; `None` if it has none.
pub(crate) fn element_text(element: &str) -> Option<Cow<'_, str>> {
    let text = if element.starts_with('"') {
        inner(element)
    } else {
        let raw: RawDocument<'_> = serde_json::from_str(element).ok()?;
        raw.text.or(raw.content).and_then(|text| inner(text.get()))
    };
    Some(Text::new(text?).plain)
}

impl Parsed<'_> {
    /// Whether the body holds a document.
    pub(crate) fn has_documents(&self) -> bool {
        self.front.is_some()
            || self.rendered.is_some()
            || self
                .messages
                .iter()
                .any(|message| !message.groups.is_empty())
    }
}

/// Finds the documents of `body`.
///
/// # Errors
/// Why there is nothing to do.
pub(crate) fn parse<'a>(body: &'a [u8], config: &Config) -> Result<Parsed<'a>, Skip> {
    let body = std::str::from_utf8(body).map_err(|error| Skip::InvalidUtf8 {
        offset: error.valid_up_to(),
    })?;
    let chat = Chat::read(body)?;
    let mut finder = Finder {
        body,
        config,
        count: 0,
    };
    let array = chat
        .documents
        .filter(|_| config.field != DocumentsField::Ignore);
    let (front, rendered) = match array {
        Some(array) => finder.array(array, &chat.messages)?,
        None => (None, None),
    };
    let mut messages = Vec::with_capacity(chat.messages.len());
    for message in &chat.messages {
        let mut groups = Vec::new();
        for &text in &message.texts {
            groups.extend(finder.spans(message, text)?);
        }
        messages.push(Message {
            chain: message.chain,
            turn: message.turn,
            entry: message.entry.map(|entry| (entry, rendered_scope(message))),
            groups,
        });
    }
    Ok(Parsed {
        text: body,
        model: chat.model,
        front,
        messages,
        rendered,
    })
}

/// What precedes documents that are written into `message`.
fn rendered_scope(message: &RawTurn<'_>) -> Scope {
    Scope(xxh3_64_with_seed(b"rendered", message.before))
}

/// Documents of an array: before every message, or to be written into a message.
type FromArray<'a> = (Option<Group<'a>>, Option<(usize, Group<'a>)>);

struct Finder<'a, 'c> {
    body: &'a str,
    config: &'c Config,
    /// Documents found so far.
    count: usize,
}

impl<'a> Finder<'a, '_> {
    /// The documents of the `documents` array; nothing if it is empty.
    fn array(
        &mut self,
        array: &'a RawValue,
        messages: &[RawTurn<'a>],
    ) -> Result<FromArray<'a>, Skip> {
        let elements: Vec<&'a RawValue> = read(self.body, array.get())?;
        self.add(elements.len())?;
        if elements.is_empty() {
            return Ok((None, None));
        }
        let target = (messages.iter().enumerate().rev())
            .find_map(|(at, message)| Some((at, message, message.entry?)));
        if self.config.field == DocumentsField::Reorder {
            let found = elements.iter().enumerate().map(|(index, element)| {
                let element = element.get();
                let (id, ..) = self.document(index, element)?;
                Ok(Found {
                    fingerprint: Fingerprint::of(&[element.as_bytes()]),
                    label: id,
                    tokens: estimate_tokens(element.len()),
                    source: Source::Whole(element),
                })
            });
            let found = found.collect::<Result<_, Skip>>()?;
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
        let found = elements.iter().enumerate().map(|(index, element)| {
            let (id, title, text) = self.document(index, element.get())?;
            Ok(Found {
                fingerprint: Fingerprint::of(&[id.as_bytes(), title.as_bytes(), text.as_bytes()]),
                label: if id.is_empty() { title } else { id },
                tokens: estimate_tokens(id.len() + title.len() + text.len()),
                source: Source::Parts { id, title, text },
            })
        });
        let group = Group {
            scope: rendered_scope(message),
            found: found.collect::<Result<_, Skip>>()?,
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

    /// Counts `documents` more.
    fn add(&mut self, documents: usize) -> Result<(), Skip> {
        self.count += documents;
        if self.count > self.config.max_documents as usize {
            Err(Skip::TooManyDocuments {
                found: self.count,
                limit: self.config.max_documents,
            })
        } else {
            Ok(())
        }
    }

    /// Id, title and text of a `documents` element, as they stand between their quotes.
    fn document(
        &self,
        index: usize,
        element: &'a str,
    ) -> Result<(&'a str, &'a str, &'a str), Skip> {
        if element.starts_with('"') {
            let text = inner(element).ok_or(Skip::MalformedDocument { index })?;
            return Ok(("", "", text));
        }
        if !element.starts_with('{') {
            return Err(Skip::MalformedDocument { index });
        }
        let raw: RawDocument<'a> = read(self.body, element)?;
        let text = raw.text.or(raw.content).and_then(|text| inner(text.get()));
        let id = raw
            .id
            .map(RawValue::get)
            .map_or("", |id| match id.as_bytes().first() {
                Some(b'"') => inner(id).unwrap_or_default(),
                Some(b'-' | b'0'..=b'9') => id,
                _ => "",
            });
        let title = raw
            .title
            .and_then(|title| inner(title.get()))
            .unwrap_or_default();
        Ok((id, title, text.ok_or(Skip::MalformedDocument { index })?))
    }

    /// The tagged documents in one text of a message.
    fn spans(&mut self, message: &RawTurn<'a>, source: &'a str) -> Result<Option<Group<'a>>, Skip> {
        if self.config.tags.is_empty() || !(source.contains('<') || source.contains("\\u003")) {
            return Ok(None);
        }
        let text = Text::new(source);
        let spans = tags::spans(&text.plain, &self.config.tags);
        let (Some(first), Some(last)) = (spans.first(), spans.last()) else {
            return Ok(None);
        };
        self.add(spans.len())?;
        let offset = offset_in(self.body, source);
        let start = offset_in(self.body, message.raw);
        let before = self
            .body
            .get(start..offset + text.source(&first.whole).start)
            .unwrap_or_default();
        let scope = Scope(xxh3_64_with_seed(before.as_bytes(), message.before));
        let hint_at = tags::wrapper_end(&text.plain, last.whole.end);
        let hint = HintPlace {
            at: offset + text.source(&(hint_at..hint_at)).end,
            before: r"\n",
            after: "",
        };
        let mut found = Vec::with_capacity(spans.len());
        let mut slots = Vec::with_capacity(spans.len());
        for span in &spans {
            let range = text.source(&span.whole);
            let whole = source.get(range.clone()).unwrap_or_default();
            let id = span.id.as_ref().and_then(|id| source.get(text.source(id)));
            found.push(Found {
                fingerprint: Fingerprint::of(&[whole.as_bytes()]),
                label: id.unwrap_or_default(),
                tokens: estimate_tokens(whole.len()),
                source: Source::Whole(whole),
            });
            slots.push(offset + range.start..offset + range.end);
        }
        Ok(Some(Group {
            scope,
            found,
            place: Place::Slots {
                slots,
                all_filled: false,
            },
            hint: Some(hint),
        }))
    }
}
