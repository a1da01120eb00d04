//! Divides a request into the segments (parts) of its prompt, in the order in which engines render them.
//!
//! ```text
//!   body       {"messages":[system, user, assistant, user: "Read:\n<doc…>…</doc>\n<doc…>…</doc>\nWhy?" ], "tools":[…]}
//!   segments   Tool…  System  Message  Message  Message  Document  Message  Document  Question
//!                                               "Read:"            "\n"               "Why?"
//! ```
//!
//! Segments are ranges of the body and hold no text. The segments of one message cover it without gaps. Only documents
//! of a `documents` array are elsewhere in the body than in the prompt. Nothing is read twice: the ranges are the
//! parser's, and a whole message's hash derives from the one that identifies its chat.

use crate::body::{FoundDocument, Message, Parsed, Role, offset_in, range_in};
use crate::config::Config;
use crate::document::estimate_tokens;
use crate::hint::HintTemplate;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

crate::named! {
    /// The kind of a segment (part) of a prompt.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum SegmentKind {
        /// One element of the body's `tools`, or of `functions` if there are no tools.
        Tool = "tools",
        /// A system message before all other messages: the whole message if it has no documents; otherwise each text
        /// before, between or after its documents.
        System = "system",
        /// Any other message: the whole message if it has no documents; otherwise each text before, between or after
        /// its documents. If a user wrote the prompt's last message, the part of it that asks is a
        /// [`SegmentKind::Question`] instead.
        Message = "history",
        /// One document of the prompt, with the tags or other markup in which it is written, if any.
        Document = "documents",
        /// An order hint (a sentence with the retriever's ranking) that the client's body already contains, directly
        /// after documents.
        Hint = "hint",
        /// The question, if a user wrote the prompt's last message: the whole message if it has no documents; otherwise
        /// the text after its documents (and after the order hint, if they have one).
        Question = "question",
    }
}

/// One segment of a prompt: a tool, a document, or a text of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The kind of text that this segment (tool, document or text) holds.
    pub kind: SegmentKind,
    /// Role of the message to which the segment (tool, document or text) belongs; [`Role::Other`] for tools and
    /// documents before all messages.
    pub role: Role,
    /// Index of the message to which the segment (tool, document or text) belongs; a `system` field counts as the first
    /// message. `None` for a segment before all messages.
    pub message: Option<u32>,
    /// The range of the body that has this segment (tool, document or text). A document that a retriever returned is
    /// not in the body: its range is empty, at the offset where it would be written.
    pub range: Range<usize>,
    /// Index of the tool or the document among those of the request, from 0; 0 for texts.
    pub index: u32,
    /// Hash of the bytes and role of the segment (tool, document or text); for a document, its fingerprint. Equal bytes
    /// in two messages of one role have equal hashes if both segments are whole messages or neither is.
    pub hash: u64,
    /// Estimated tokens of the segment (tool, document or text).
    pub tokens: u32,
}

/// The segments (tools, documents, texts) of one request's prompt; see the [module documentation](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// The segments (tools, documents, texts), in the order of the prompt.
    pub list: Vec<Segment>,
}

impl Segments {
    /// Returns the segments (tools, documents, texts) of a body's prompt. O(segments), plus hashing of the text between
    /// documents.
    #[must_use]
    pub fn of(parsed: &Parsed<'_>, config: &Config) -> Self {
        let mut reading = Reading {
            parsed,
            hint: config.hint.as_ref(),
            documents: 0,
            list: Vec::with_capacity(parsed.tools.len() + parsed.messages.len() + 8),
        };
        reading.tools();
        if let Some(front) = &parsed.front {
            // It is unknown where the template renders these documents; most render them before all messages.
            for (slot, found) in front.place.slots().iter().zip(&front.found) {
                reading.document(None, slot.clone(), found);
            }
        }
        let opening = (parsed.messages.iter())
            .take_while(|message| message.role == Role::System)
            .count();
        for (at, message) in parsed.messages.iter().enumerate() {
            reading.message(at, at < opening, message);
        }
        Self { list: reading.list }
    }

    /// Returns the estimated tokens of the prompt, summed over its segments (tools, documents, texts).
    #[must_use]
    pub fn tokens(&self) -> u64 {
        let tokens = self.list.iter().map(|segment| u64::from(segment.tokens));
        tokens.sum()
    }

    /// Returns the segments (tools, documents, texts) before the first document, order hint (a sentence with the
    /// retriever's ranking) or question of the prompt; all segments if there is none.
    #[must_use]
    pub fn head(&self) -> &[Segment] {
        let end = self.list.iter().position(|segment| {
            matches!(
                segment.kind,
                SegmentKind::Document | SegmentKind::Hint | SegmentKind::Question
            )
        });
        end.and_then(|end| self.list.get(..end))
            .unwrap_or(&self.list)
    }
}

impl<'a> Parsed<'a> {
    /// Returns the segments (tools, documents, texts) of the body's prompt, in the order in which engines render them.
    #[must_use]
    pub fn segments(&self, config: &Config) -> Segments {
        Segments::of(self, config)
    }

    /// Iterates over the fields other than messages and tools that a chat template may render (`tool_choice`,
    /// `response_format`, `reasoning_effort`, `thinking`, `chat_template`, `chat_template_kwargs`), as name and JSON.
    pub fn parameters(&self) -> impl Iterator<Item = (&'static str, &'a str)> {
        let fields = crate::body::PARAMETERS.into_iter().zip(self.parameters);
        fields.filter_map(|(name, value)| Some((name, value?)))
    }

    /// Returns the JSON of the content of the message with this index; `None` if there is no such message, or its
    /// content is absent.
    #[must_use]
    pub fn content(&self, message: u32) -> Option<&'a str> {
        let message = self.messages.get(message as usize)?;
        Some(message.content).filter(|content| !content.is_empty())
    }

    /// Returns the body that was parsed, as text.
    #[must_use]
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// Returns the JSON of the `cache_salt` that the client sent; `None` if it sent none.
    #[must_use]
    pub fn client_salt(&self) -> Option<&'a str> {
        self.salt.given()
    }

    /// Returns the model's name; empty if neither the body nor the path has one.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }
}

struct Reading<'r, 'a> {
    parsed: &'r Parsed<'a>,
    hint: Option<&'r HintTemplate>,
    documents: u32,
    list: Vec<Segment>,
}

impl Reading<'_, '_> {
    fn tools(&mut self) {
        for (index, tool) in (0..).zip(&self.parsed.tools) {
            self.list.push(Segment {
                kind: SegmentKind::Tool,
                role: Role::Other,
                message: None,
                range: range_in(self.parsed.text, tool),
                index,
                hash: xxh3_64_with_seed(tool.as_bytes(), 0),
                tokens: estimate_tokens(tool.len()),
            });
        }
    }

    fn message(&mut self, at: usize, opens: bool, message: &Message<'_>) {
        let text = self.parsed.text;
        let written = match &self.parsed.rendered {
            Some((target, group)) if *target == at => Some(group),
            _ => None,
        };
        let is_last = at + 1 == self.parsed.messages.len();
        let asks = is_last && message.role == Role::User;
        let kind = if opens {
            SegmentKind::System
        } else {
            SegmentKind::Message
        };
        let at = u32::try_from(at).unwrap_or(u32::MAX);
        let whole = range_in(text, message.raw);
        let has_documents = written.is_some() || message.ordered().next().is_some();
        if !has_documents {
            let kind = if asks { SegmentKind::Question } else { kind };
            self.text(kind, message, at, whole, message.hash);
            return;
        }
        let mut done = whole.start;
        if let Some(group) = written {
            let start = group.place.start().clamp(done, whole.end);
            self.words(kind, message, at, done..start);
            done = start;
            for found in &group.found {
                // A retrieved document is not part of the body.
                let words = found.text();
                let range = match is_within(text, words) {
                    true => range_in(text, words),
                    false => start..start,
                };
                self.document(Some((at, message)), range, found);
            }
        }
        for group in message.ordered() {
            for (slot, found) in group.place.slots().iter().zip(&group.found) {
                self.words(kind, message, at, done..slot.start);
                self.document(Some((at, message)), slot.clone(), found);
                done = slot.end;
            }
        }
        if let Some(template) = self.hint
            && let Some(hint) = hint_behind(text, template, done..whole.end)
        {
            self.words(kind, message, at, done..hint.start);
            done = hint.end;
            self.words(SegmentKind::Hint, message, at, hint);
        }
        let kind = if asks { SegmentKind::Question } else { kind };
        self.words(kind, message, at, done..whole.end);
    }

    /// Adds a segment for the text of `range` in the message with index `at`, unless the range is empty.
    fn words(&mut self, kind: SegmentKind, message: &Message<'_>, at: u32, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let bytes = self.parsed.text.get(range.clone()).unwrap_or_default();
        let hash = xxh3_64_with_seed(bytes.as_bytes(), 0);
        self.text(kind, message, at, range, hash);
    }

    /// Adds a segment for the text of `range` in the message with index `at`. `hash` identifies the text, not its role.
    fn text(
        &mut self,
        kind: SegmentKind,
        message: &Message<'_>,
        at: u32,
        range: Range<usize>,
        hash: u64,
    ) {
        self.list.push(Segment {
            kind,
            role: message.role,
            message: Some(at),
            index: 0,
            hash: seeded(hash, message.role),
            tokens: estimate_tokens(range.len()),
            range,
        });
    }

    fn document(
        &mut self,
        message: Option<(u32, &Message<'_>)>,
        range: Range<usize>,
        found: &FoundDocument<'_>,
    ) {
        self.list.push(Segment {
            kind: SegmentKind::Document,
            role: message.map_or(Role::Other, |(_, message)| message.role),
            message: message.map(|(at, _)| at),
            range,
            index: self.documents,
            hash: found.fingerprint.0,
            tokens: found.tokens,
        });
        self.documents = self.documents.saturating_add(1);
    }
}

/// Returns the range of an order hint (a sentence with the retriever's ranking) in the body that follows the documents
/// directly; `range` begins after the documents. `None` if there is none.
fn hint_behind(text: &str, template: &HintTemplate, range: Range<usize>) -> Option<Range<usize>> {
    let rest = text.get(range.clone())?;
    let mut words = rest;
    // A hint is separated from the documents as `HintSpot` describes.
    words = words.strip_prefix(HINT_BLOCK).unwrap_or(words);
    while let Some(behind) = words.strip_prefix(r"\n") {
        words = behind;
    }
    let length = template.length(words)?;
    let start = range.start + (rest.len() - words.len());
    Some(start..start + length)
}

/// The JSON that opens the block of an order hint (a sentence with the retriever's ranking) after documents that are
/// content blocks.
const HINT_BLOCK: &str = r#",{"type":"text","text":""#;

fn is_within(text: &str, part: &str) -> bool {
    let start = part.as_ptr() as usize;
    let body = text.as_ptr() as usize;
    start >= body && start + part.len() <= body + text.len() && offset_in(text, part) <= text.len()
}

fn seeded(hash: u64, role: Role) -> u64 {
    xxh3_64_with_seed(&[role as u8], hash)
}
