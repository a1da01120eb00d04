//! Finds a chat body's documents: in its `documents` array, in texts of its messages, and as blocks of their content.
//!
//! A text is searched for one format after another, and the first one found is used: tags, a tool's JSON, then the
//! opt-in formats. A tool's result without any of these may be treated as one document. The documents of one text form
//! one group, unless [labels](super::labels) between them say which is which.

use super::Skip;
use super::array::Retrieved;
use super::chat::{Chat, PARAMETERS, ParsedMessage, Start, named};
use super::content::{Block, Piece};
use super::formats::PartStyle;
use super::found::{Chain, Finder, FoundDocument, Group, GroupLayout, HintSpot, Message};
use super::json::{offset_in, range_in};
use super::labels;
use super::lists::{Author, Lines};
use super::numbered::Numbered;
use super::results::results;
use super::salt::SaltField;
use super::scan::is_value;
use super::search::{find_any, find_bracket, has, pass_space};
use super::tags::{self, Span};
use super::text::Text;
use crate::config::{Config, DocumentFormat, DocumentsField, RawDocuments};
use crate::conversation::outputs::MIN_OUTPUT_BYTES;
use crate::tree::Scope;
use crate::work::hashed;
use std::borrow::Cow;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A parsed body: its messages with their documents, and the fields that a prompt depends on.
#[derive(Debug)]
pub struct Parsed<'a> {
    /// The request's body, as text.
    pub(crate) text: &'a str,
    /// The model's name; empty if neither the body nor the path has one.
    pub(crate) model: Cow<'a, str>,
    pub(crate) salt: SaltField<'a>,
    /// The documents of a `documents` array that stays in the body: the engine's chat template renders them, probably
    /// before all messages. `None` if there is no such array.
    pub(crate) front: Option<Group<'a>>,
    pub(crate) messages: Vec<Message<'a>>,
    /// The documents that the gateway writes into the message with this index, before the message's own text; `None` if
    /// there are none.
    pub(crate) rendered: Option<(usize, Group<'a>)>,
    pub(super) retrieval: Option<&'a str>,
    /// True if the body's messages are in the field `messages`, as in a chat completion.
    pub(super) is_chat: bool,
    /// True if the body lets the server remove earlier parts of the prompt, so that no text may refer to them.
    pub(crate) may_be_cut: bool,
    /// The JSON of each element of `tools`, or of `functions` if there are no tools.
    pub(crate) tools: Vec<&'a str>,
    pub(crate) start: Start<'a>,
    /// The JSON of the fields [`PARAMETERS`], which a chat template may render; `None` if absent or `null`.
    pub(crate) parameters: [Option<&'a str>; PARAMETERS.len()],
}

impl<'a> Parsed<'a> {
    /// Returns a hash that identifies the chat at every turn: of the chat up to and including the first user message
    /// that can receive documents, or the first message if there is none.
    pub(crate) fn start(&self) -> Chain {
        let mut messages = self.messages.iter();
        let asked = messages.find(|message| message.entry.is_some());
        asked
            .or(self.messages.first())
            .map_or(Chain(0), |message| message.chain)
    }

    /// Returns the index of the last message into which the gateway may write: the last user message without a tool's
    /// result. `None` if there is none.
    pub(crate) fn writable(&self) -> Option<usize> {
        (self.messages.iter()).rposition(|message| message.entry.is_some())
    }

    /// Sets the model of a body that does not name one: Gemini and Bedrock name it in the path.
    ///
    /// # Errors
    /// Returns [`Skip::LongModelName`] if the name is too long; the model's name then stays empty.
    pub fn for_model(&mut self, model: &str) -> Result<(), Skip> {
        if self.model.is_empty() {
            named(model)?;
            self.model = Cow::Owned(model.to_owned());
        }
        Ok(())
    }

    /// Returns whether the body's messages are in the field `messages`, as in a chat completion.
    pub(crate) fn is_chat_completion(&self) -> bool {
        self.is_chat
    }

    /// Returns the body's `previous_response_id`, the id of a stored response that the request continues; `None` if
    /// absent.
    #[must_use]
    pub fn previous_response(&self) -> Option<Cow<'a, str>> {
        self.start.previous_response()
    }

    /// Returns whether the body has documents whose order the gateway may change. A tool's whole result, which counts
    /// as one document if `documents.outputs` is on, is none of these: it always stays in its place.
    #[must_use]
    pub fn has_documents(&self) -> bool {
        let mut messages = self.messages.iter();
        self.front.is_some()
            || self.rendered.is_some()
            || messages.any(|message| message.ordered().next().is_some())
    }

    /// Returns whether the body has documents that the gateway may change: documents to order, or a tool's whole result
    /// in which lines may be replaced by references to an earlier copy.
    pub(crate) fn has_groups(&self) -> bool {
        let mut messages = self.messages.iter();
        self.has_documents() || messages.any(|message| !message.groups.is_empty())
    }
}

/// Parses `body`, a chat request, and finds its documents as configured.
///
/// # Errors
/// Returns [`Skip`], the reason why the body must be forwarded unchanged.
pub fn parse<'a>(body: &'a [u8], config: &Config) -> Result<Parsed<'a>, Skip> {
    read(body, None, config)
}

/// Parses `body`, a chat request, and finds its documents as configured. The documents `retrieved` are added if the
/// body has no `documents` array of its own, or an empty one.
///
/// # Errors
/// Returns [`Skip`], the reason why the body must be forwarded unchanged; documents in `retrieved` may be the reason
/// too.
pub fn parse_with<'a>(
    body: &'a [u8],
    retrieved: &Retrieved<'a>,
    config: &Config,
) -> Result<Parsed<'a>, Skip> {
    read(body, Some(retrieved), config)
}

fn read<'a>(
    body: &'a [u8],
    retrieved: Option<&Retrieved<'a>>,
    config: &Config,
) -> Result<Parsed<'a>, Skip> {
    let body = super::text_of(body)?;
    let chat = Chat::read(body)?;
    let mut finder = Finder::new(body, config);
    let array = chat
        .documents
        .filter(|_| config.documents.field != DocumentsField::Ignore);
    let is_empty = |array: &str| {
        array.starts_with('[') && array.as_bytes().get(pass_space(array, 1)) == Some(&b']')
    };
    let (front, rendered) = match (array, retrieved) {
        (array, Some(retrieved)) if array.is_none_or(is_empty) => {
            (None, finder.retrieved(retrieved, array, &chat.messages)?)
        }
        (Some(array), _) => finder.array(array, &chat)?,
        (None, _) => (None, None),
    };
    let mut messages = Vec::with_capacity(chat.messages.len());
    for parsed in chat.messages {
        let mut before = Before::new(body, &parsed);
        let mut message = parsed.message;
        for piece in &parsed.pieces {
            let groups = &mut message.groups;
            match piece {
                Piece::Text(text, author) => {
                    groups.extend(finder.text(&mut before, text, *author)?);
                }
                Piece::Blocks(blocks, style) => {
                    groups.extend(finder.blocks(&mut before, blocks, Some(*style))?);
                }
                Piece::Results(blocks) => {
                    groups.extend(finder.blocks(&mut before, blocks, None)?);
                }
            }
        }
        messages.push(message);
    }
    Ok(Parsed {
        text: body,
        model: chat.model,
        salt: chat.salt,
        front,
        messages,
        rendered,
        retrieval: chat.retrieval,
        is_chat: chat.is_chat,
        may_be_cut: chat.may_be_cut,
        tools: chat.tools,
        start: chat.start,
        parameters: chat.parameters,
    })
}

impl<'a> Finder<'a, '_> {
    /// Finds the documents in one text of a message, in groups; none if the text has no documents. With
    /// `documents.outputs`, a tool's long result without documents becomes a group with the whole result as its
    /// document. `before`, the running hash of the prompt, advances to the beginning of the last group found. Returns
    /// an error if the body has too many documents.
    fn text(
        &mut self,
        before: &mut Before<'a>,
        source: &'a str,
        author: Author,
    ) -> Result<Vec<Group<'a>>, Skip> {
        let found = self.within(before, source, author)?;
        let is_output = found.is_empty()
            && self.config.documents.outputs
            && author == Author::Tool
            && source.len() >= MIN_OUTPUT_BYTES;
        if !is_output {
            return Ok(found);
        }
        let range = range_in(self.body, source);
        Ok(vec![Group {
            scope: before.scope(range.start),
            format: DocumentFormat::Outputs,
            found: vec![FoundDocument::whole(source, "")],
            place: GroupLayout::Slots {
                slots: Vec::from([range]),
                all_filled: false,
            },
            hint: None,
            is_labelled: false,
        }])
    }

    /// Finds the documents within a text, in groups, by the first enabled format that matches it, such as tags or
    /// headings; empty if none does. `before`, the running hash of the prompt, advances to the beginning of the last
    /// group found. Returns an error if the body has too many documents.
    fn within(
        &mut self,
        before: &mut Before<'a>,
        source: &'a str,
        author: Author,
    ) -> Result<Vec<Group<'a>>, Skip> {
        let is_clients = self.is_clients(source, author);
        if !is_clients && !self.may_hold_documents(source, author) {
            return Ok(Vec::new());
        }
        let text = Text::new(source);
        let Some((spans, format)) = self.spans(&text.plain, author, is_clients) else {
            return Ok(Vec::new());
        };
        self.add(spans.len())?;
        let offset = offset_in(self.body, source);
        let is_tagged = matches!(format, DocumentFormat::Tags | DocumentFormat::Clients);
        // Documents directly within quotes are in a string of a program or of inner JSON.
        let is_quoted = |span: &Span| {
            let (before, behind) = (span.whole.start, span.whole.end);
            let plain = &*text.plain;
            (plain.get(..before)).is_some_and(|before| before.ends_with(['"', '\'']))
                || (plain.get(behind..)).is_some_and(|behind| behind.starts_with(['"', '\'']))
        };
        let is_json = format == DocumentFormat::Results
            || is_tagged && (is_value(&text.plain) || spans.iter().any(is_quoted));
        // A range between tags may become empty or hold a location hint, except in JSON or in a string of a program;
        // every range of a list must hold a document.
        let all_filled = !is_tagged || is_json;
        let numbered = match is_tagged {
            true => Numbered::all(&text, &spans),
            false => vec![None; spans.len()],
        };
        let counts = match format {
            DocumentFormat::Tags => labels::groups(&text.plain, &spans),
            _ => vec![spans.len()],
        };
        let is_labelled = counts.len() > 1;
        let mut spans = spans.into_iter().zip(numbered);
        let mut groups = Vec::with_capacity(counts.len());
        for count in counts {
            let mut found = Vec::with_capacity(count);
            let mut slots = Vec::with_capacity(count);
            let mut end = 0;
            for (span, numbered) in spans.by_ref().take(count) {
                let range = text.source(&span.whole);
                let whole = source.get(range.clone()).unwrap_or_default();
                let id = span.id.as_ref().and_then(|id| source.get(text.source(id)));
                found.push(FoundDocument {
                    numbered,
                    ..FoundDocument::whole(whole, id.unwrap_or_default())
                });
                slots.push(offset + range.start..offset + range.end);
                end = span.whole.end;
            }
            let at = match is_tagged {
                true => tags::wrapper_end(&text.plain, end),
                false => end,
            };
            groups.push(Group {
                scope: before.scope(slots.first().map_or(0, |slot| slot.start)),
                format,
                found,
                place: GroupLayout::Slots { slots, all_filled },
                hint: (!is_json).then(|| HintSpot {
                    at: offset + text.source(&(at..at)).end,
                    before: r"\n",
                    after: "",
                }),
                is_labelled,
            });
        }
        Ok(groups)
    }

    /// Returns whether a text, escaped as in a JSON string, may contain documents and so must be unescaped and
    /// searched.
    fn may_hold_documents(&self, source: &str, author: Author) -> bool {
        let formats = &self.config.documents;
        let has_tags = !(self.config.documents.tags.is_empty() && formats.loose_tags.is_empty());
        has_tags && find_bracket(source, 0).is_some()
            || formats.results && author == Author::Tool && has(source, "results")
            || self.has_lists() && may_hold_lists(source, formats)
    }

    /// Returns whether a text may contain documents in the format of a known client (AnythingLLM, Dify, LlamaIndex,
    /// RAGFlow), and the configuration says that such documents are to be found.
    fn is_clients(&self, source: &str, author: Author) -> bool {
        self.config.documents.clients && author == Author::Other && super::clients::may_hold(source)
    }

    fn has_lists(&self) -> bool {
        let formats = &self.config.documents;
        formats.numbered || formats.rules || formats.headings
    }

    /// Returns the ranges of the documents in a text, with their format: the first enabled one that matches; `None` if
    /// no format matches.
    fn spans(
        &self,
        plain: &str,
        author: Author,
        is_clients: bool,
    ) -> Option<(Vec<Span>, DocumentFormat)> {
        let formats = &self.config.documents;
        let found = |spans: Vec<Span>, format| (!spans.is_empty()).then_some((spans, format));
        if is_clients {
            let spans = super::clients::spans(plain);
            if !spans.is_empty() {
                return Some((spans, DocumentFormat::Clients));
            }
        }
        let tagged = tags::spans(plain, &self.config.documents.tags, &formats.loose_tags);
        found(tagged, DocumentFormat::Tags)
            .or_else(|| {
                let is_on = formats.results && author == Author::Tool;
                found(is_on.then(|| results(plain))?, DocumentFormat::Results)
            })
            .or_else(|| {
                let lines = self.has_lists().then(|| Lines::read(plain, author))?;
                let listed = |is_on: bool, format, find: &dyn Fn(&Lines) -> Vec<Span>| {
                    found(is_on.then(|| find(&lines))?, format)
                };
                let numbered = || {
                    listed(formats.numbered, DocumentFormat::Numbered, &|lines| {
                        lines.numbered(plain)
                    })
                };
                numbered()
                    .or_else(|| {
                        listed(formats.rules, DocumentFormat::Rules, &|lines| {
                            lines.ruled(plain)
                        })
                    })
                    .or_else(|| {
                        listed(formats.headings, DocumentFormat::Headings, &|lines| {
                            lines.headed(plain)
                        })
                    })
            })
    }

    /// Returns the group of adjacent document `blocks`; `None` if there are none or their format is disabled. `before`
    /// is the running hash of the prompt and advances to the first block. `style` is the form of the content's text
    /// parts, for an order hint (a sentence with the retriever's ranking) after the last block; it is `None` for
    /// documents in a tool's result, where no text may be inserted. Returns an error if the body has too many
    /// documents.
    fn blocks(
        &mut self,
        before: &mut Before<'a>,
        blocks: &[Block<'a>],
        style: Option<PartStyle>,
    ) -> Result<Option<Group<'a>>, Skip> {
        let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else {
            return Ok(None);
        };
        let formats = &self.config.documents;
        let is_on = match style {
            Some(_) => formats.blocks,
            None => formats.results,
        };
        if !is_on {
            return Ok(None);
        }
        self.add(blocks.len())?;
        let found = (blocks.iter()).map(|block| FoundDocument::whole(block.raw, block.label));
        let slots = blocks.iter().map(|block| range_in(self.body, block.raw));
        Ok(Some(Group {
            scope: before.scope(offset_in(self.body, first.raw)),
            format: match style {
                Some(_) => DocumentFormat::Blocks,
                None => DocumentFormat::Results,
            },
            found: found.collect(),
            place: GroupLayout::Slots {
                slots: slots.collect(),
                all_filled: true,
            },
            hint: style.map(|style| HintSpot {
                at: range_in(self.body, last.raw).end,
                before: style.open_behind(),
                after: r#""}"#,
            }),
            is_labelled: false,
        }))
    }
}

/// The running hash of the prompt, from which the scope (hash of the prompt before documents) of each group of
/// documents in a message is computed.
struct Before<'a> {
    body: &'a str,
    /// Offset in the body up to which `hash` covers the prompt.
    at: usize,
    hash: u64,
}

impl<'a> Before<'a> {
    fn new(body: &'a str, parsed: &ParsedMessage<'a>) -> Self {
        Self {
            body,
            at: offset_in(body, parsed.message.raw),
            hash: parsed.before,
        }
    }

    /// Returns the scope (hash of the prompt before documents) of documents that begin at byte `end` of the body, which
    /// must not precede the `end` of an earlier call. Each byte is hashed once, however many groups a message has.
    fn scope(&mut self, end: usize) -> Scope {
        let between = self.body.get(self.at..end).unwrap_or_default();
        hashed(between.len());
        self.hash = xxh3_64_with_seed(between.as_bytes(), self.hash);
        self.at = end;
        Scope(self.hash)
    }
}

/// Returns whether a text, escaped as in a JSON string, contains a character sequence that may mark a document in one
/// of the enabled list formats (numbered items, rules, headings).
fn may_hold_lists(source: &str, formats: &RawDocuments) -> bool {
    let mut at = 0;
    while let Some(found) = find_any(source, at, [b'[', b'#', b'-']) {
        let rest = source.get(found..).unwrap_or_default();
        if formats.numbered && rest.starts_with('[')
            || formats.headings && rest.starts_with('#')
            || formats.rules && rest.starts_with("---")
        {
            return true;
        }
        at = found + 1;
    }
    false
}
