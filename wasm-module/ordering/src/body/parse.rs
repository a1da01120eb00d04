//! Finds a chat body's documents: in its `documents` array, and in tagged spans of its messages.

use super::text::Text;
use super::{MAX_MODEL_BYTES, Skip, tags};
use crate::config::{Config, DocumentsField};
use crate::document::{Fingerprint, estimate_tokens};
use crate::tree::Scope;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A body's documents.
#[derive(Debug)]
pub(crate) struct Parsed<'a> {
    /// The model's name, empty when the body has none.
    pub(crate) model: Cow<'a, str>,
    /// Documents that are ordered together, in the order in which they reach the prompt. At least one document.
    pub(crate) groups: Vec<Group<'a>>,
}

/// Documents that stand together.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    /// What precedes them in the prompt.
    pub(crate) scope: Scope,
    /// In the client's order.
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
#[derive(Debug)]
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
    /// Their rendered blocks at an offset of the body; `array` becomes `null`.
    Render {
        array: Range<usize>,
        at: usize,
        wrap: Wrap,
    },
}

/// What blocks are wrapped in where they are inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrap {
    /// Nothing: `at` is inside a string.
    None,
    /// A text part of its own: `at` is behind the `[` of a content array, which has other parts or not.
    Part { others: bool },
}

/// See [`Group::hint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HintPlace {
    pub(crate) at: usize,
    pub(crate) before: &'static str,
    pub(crate) after: &'static str,
}

#[derive(Deserialize)]
struct RawChat<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    messages: Vec<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    documents: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawMessage<'a> {
    #[serde(borrow)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawPart<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
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

/// Finds the documents of `body`.
///
/// # Errors
/// Why there is nothing to do.
pub(crate) fn parse<'a>(body: &'a [u8], config: &Config) -> Result<Parsed<'a>, Skip> {
    let body = std::str::from_utf8(body).map_err(|error| Skip::InvalidUtf8 {
        offset: error.valid_up_to(),
    })?;
    let chat: RawChat<'a> = object(body, body.trim_ascii())?;
    let model = chat.model.unwrap_or_default();
    if model.len() > MAX_MODEL_BYTES {
        return Err(Skip::LongModelName {
            bytes: model.len(),
            limit: MAX_MODEL_BYTES,
        });
    }
    let messages = Messages::read(body, &chat.messages, chat.tools)?;
    let mut finder = Finder {
        body,
        config,
        count: 0,
    };
    let mut groups = Vec::new();
    let array = chat
        .documents
        .filter(|_| config.field != DocumentsField::Ignore);
    let array = array
        .map(|array| finder.array(array, &messages))
        .transpose()?
        .flatten();
    let array_at = array.as_ref().map_or(0, |(message, _)| *message);
    let mut array = array.map(|(_, group)| group);
    for (at, message) in messages.all.iter().enumerate() {
        if at == array_at {
            groups.extend(array.take());
        }
        for &text in &message.texts {
            groups.extend(finder.spans(message, text)?);
        }
    }
    groups.extend(array);
    if finder.count > config.max_documents as usize {
        return Err(Skip::TooManyDocuments {
            found: finder.count,
            limit: config.max_documents,
        });
    }
    if groups.is_empty() {
        Err(Skip::NoDocuments)
    } else {
        Ok(Parsed { model, groups })
    }
}

/// A body's messages, each with the hash of everything before it.
struct Messages<'a> {
    all: Vec<Message<'a>>,
}

struct Message<'a> {
    /// Hash of the tools and of the messages before this one.
    before: u64,
    is_user: bool,
    /// The whole message.
    raw: &'a str,
    /// Its content, when it has one.
    content: Option<&'a str>,
    /// What stands between the quotes of its texts.
    texts: Vec<&'a str>,
}

impl<'a> Messages<'a> {
    fn read(body: &str, raw: &[&'a RawValue], tools: Option<&RawValue>) -> Result<Self, Skip> {
        let mut before = xxh3_64_with_seed(tools.map_or("", RawValue::get).as_bytes(), 0);
        let mut all = Vec::with_capacity(raw.len());
        for &raw in raw {
            let raw = raw.get();
            let message: RawMessage<'a> = object(body, raw)?;
            let content = message.content.map(RawValue::get);
            let mut texts = Vec::new();
            match content {
                Some(content) if content.starts_with('"') => texts.extend(inner(content)),
                Some(content) if content.starts_with('[') => {
                    let parts: Vec<&'a RawValue> = read(body, content)?;
                    for part in parts {
                        if part.get().starts_with('{') {
                            let part: RawPart<'a> = read(body, part.get())?;
                            texts.extend(part.text.and_then(|text| inner(text.get())));
                        }
                    }
                }
                _ => {}
            }
            all.push(Message {
                before,
                is_user: message.role.as_deref() == Some("user"),
                raw,
                content,
                texts,
            });
            before = xxh3_64_with_seed(raw.as_bytes(), before);
        }
        Ok(Self { all })
    }
}

struct Finder<'a, 'c> {
    body: &'a str,
    config: &'c Config,
    /// Documents found so far.
    count: usize,
}

impl<'a> Finder<'a, '_> {
    /// The documents of the `documents` array, with the index of the message that they go into; `None` if it is
    /// empty.
    fn array(
        &mut self,
        array: &'a RawValue,
        messages: &Messages<'a>,
    ) -> Result<Option<(usize, Group<'a>)>, Skip> {
        let elements: Vec<&'a RawValue> = read(self.body, array.get())?;
        self.count += elements.len();
        if self.count > self.config.max_documents as usize {
            return Err(Skip::TooManyDocuments {
                found: self.count,
                limit: self.config.max_documents,
            });
        }
        if elements.is_empty() {
            return Ok(None);
        }
        let target = messages
            .all
            .iter()
            .enumerate()
            .rev()
            .find_map(|(at, message)| {
                let content = message.content.filter(|_| message.is_user)?;
                let start = offset_in(self.body, content) + 1;
                match content.as_bytes().first()? {
                    b'"' => Some((at, message, start, Wrap::None)),
                    b'[' => {
                        let others = !content.get(1..)?.trim_ascii_start().starts_with(']');
                        Some((at, message, start, Wrap::Part { others }))
                    }
                    _ => None,
                }
            });
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
            let scope = Scope(messages.all.first().map_or(0, |message| message.before));
            let hint = target.and_then(|(_, _, at, wrap)| {
                (wrap == Wrap::None).then_some(HintPlace {
                    at,
                    before: "",
                    after: r"\n\n",
                })
            });
            return Ok(Some((
                0,
                Group {
                    scope,
                    found,
                    place: Place::Slots {
                        slots,
                        all_filled: true,
                    },
                    hint,
                },
            )));
        }
        let (index_of, message, at, wrap) = target.ok_or(Skip::NoUserMessage)?;
        let found = elements.iter().enumerate().map(|(index, element)| {
            let (id, title, text) = self.document(index, element.get())?;
            Ok(Found {
                fingerprint: Fingerprint::of(&[id.as_bytes(), title.as_bytes(), text.as_bytes()]),
                label: if id.is_empty() { title } else { id },
                tokens: estimate_tokens(id.len() + title.len() + text.len()),
                source: Source::Parts { id, title, text },
            })
        });
        let found = found.collect::<Result<_, Skip>>()?;
        let array = range_in(self.body, array.get());
        let scope = Scope(xxh3_64_with_seed(b"rendered", message.before));
        let place = Place::Render { array, at, wrap };
        let hint = Some(HintPlace {
            at,
            before: "",
            after: r"\n",
        });
        Ok(Some((
            index_of,
            Group {
                scope,
                found,
                place,
                hint,
            },
        )))
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
    fn spans(&mut self, message: &Message<'a>, source: &'a str) -> Result<Option<Group<'a>>, Skip> {
        if self.config.tags.is_empty() || !(source.contains('<') || source.contains("\\u003")) {
            return Ok(None);
        }
        let text = Text::new(source);
        let spans = tags::spans(&text.plain, &self.config.tags);
        let (Some(first), Some(last)) = (spans.first(), spans.last()) else {
            return Ok(None);
        };
        self.count += spans.len();
        if self.count > self.config.max_documents as usize {
            return Err(Skip::TooManyDocuments {
                found: self.count,
                limit: self.config.max_documents,
            });
        }
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

/// What stands between the quotes of a raw JSON string; `None` if it is no string.
fn inner(raw: &str) -> Option<&str> {
    raw.strip_prefix('"')?.strip_suffix('"')
}

/// Reads `part` of `body` as an object.
fn object<'a, T: Deserialize<'a>>(body: &str, part: &'a str) -> Result<T, Skip> {
    // Serde would take an array for a struct.
    if part.starts_with('{') {
        read(body, part)
    } else {
        Err(invalid(body, offset_in(body, part), 1, 1))
    }
}

/// Reads `part` of `body`; an error names the place in `body`, and never what stands there.
fn read<'a, T: Deserialize<'a>>(body: &str, part: &'a str) -> Result<T, Skip> {
    serde_json::from_str(part)
        .map_err(|error| invalid(body, offset_in(body, part), error.line(), error.column()))
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
fn offset_in(body: &str, part: &str) -> usize {
    (part.as_ptr() as usize)
        .saturating_sub(body.as_ptr() as usize)
        .min(body.len())
}

fn range_in(body: &str, part: &str) -> Range<usize> {
    let start = offset_in(body, part);
    start..start + part.len()
}
