//! A prompt as a list of positions, which are the points at which a provider's cache may have a boundary (the end of a
//! cached prefix).
//!
//! ```text
//!   [tool] [tool] │ system │ user: text "Read:" │ <doc a> │ <doc b> │ "Why?" │ assistant … │ user …
//!     0      1        2             3                4         5        6          7           8
//!   hash of position n = everything up to its end, without markers
//! ```
//!
//! A position is the end of a tool, of a block of a message's content, or, where texts are to be
//! [split](Blocks::Split), of a piece of a text: the text before its documents, each document with the separator before
//! it, and the rest. Markers and JSON white space do not count towards a position's hash. Where providers allow no
//! marker (thinking, empty text, an assistant's message, blocks inside a tool's result), or where the client sent the
//! marker's field as `null`, the gateway can set none.

use super::rules::CacheKind;
use crate::body::scan::{self, Scan};
use crate::body::text::is_blank;
use crate::body::{self, Message, Parsed, PartStyle, Role, Skip, inner_of, offset_in, range_in};
use smallvec::SmallVec;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The positions of a prompt (ends of blocks) at which a provider's cache may have a boundary, in order, and the
/// caching fields of the body.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The positions (ends of blocks) at which the cache may have a boundary, in the order of the prompt.
    pub positions: Vec<Position>,
    /// Lifetime that a `cache_control` at the body's top level requests for the whole prompt (Anthropic's automatic
    /// mode); `None` if the body has none.
    pub automatic: Option<MarkTtl>,
    /// The caching mode that OpenAI's `prompt_cache_options` selects in this body.
    pub mode: Mode,
    /// Hash of what decides, apart from the prompt, which cache is used: the model, the client's salt, and the `realm`
    /// of [`Layout::of`].
    pub(super) scope: u64,
    /// True if the body has a `prompt_cache_key`, even `null`: the gateway must not write a second one.
    pub(super) has_key: bool,
    /// The texts of the prompt that the gateway may divide into several blocks.
    pub(super) texts: Vec<SplitText>,
    /// True if the prompt has more than [`MAX_MARKED_POSITIONS`] positions (ends of blocks). The later ones are missing
    /// here.
    pub(super) is_cut_short: bool,
    /// Offset in the body just after its opening brace, at which fields can be inserted.
    pub(super) inside: usize,
}

/// The caching mode of OpenAI's API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The body does not set a mode, which means [`Mode::Implicit`].
    #[default]
    Unsaid,
    /// The provider sets a cache marker at the end of the latest message.
    Implicit,
    /// Only cache markers in the body count.
    Explicit,
}

/// The granularity of a prompt's positions (points at which a cached prefix may end): whole blocks of the request body,
/// or also the documents within a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Each block of the request body ends at one position of the prompt.
    AsWritten,
    /// A text with documents has several positions: the end of each document, of the text before the documents and of
    /// the text after them. Every other block ends at one position.
    Split,
}

/// A position of a prompt: the end of a block of the body, or of a piece of a text that may become a block. A cache may
/// have a boundary there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Hash of the prompt up to this position, without cache markers.
    pub hash: u64,
    /// Estimated tokens of the prompt up to this position.
    pub tokens: u64,
    /// The kind of block or text that ends at this position.
    pub part: Part,
    /// Number of documents in an unbroken row that ends at this position; 0 if no document ends here.
    pub depth: u32,
    /// Number of steps from the prompt's beginning to this position, as a provider counts them when it searches
    /// backwards for a cached prefix: adjacent tool calls count as one step, adjacent results too, and any other
    /// position is a step of its own.
    pub step: u32,
    /// Lifetime of the cache marker that the client's body has at this position; `None` if it has none.
    pub mark: Option<MarkTtl>,
    /// True if a message of a user, the last of adjacent tools' results, or the system text before all messages ends at
    /// this position.
    pub ends_message: bool,
    pub(super) place: Option<MarkPlace>,
}

impl Position {
    /// Returns whether the provider allows a cache marker at this position (end of a block) and the gateway knows how
    /// to write it.
    #[must_use]
    pub fn may_be_marked(&self) -> bool {
        self.place.is_some()
    }
}

/// The kind of block or text that ends at a position of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The definition of one tool in the request's list of tools.
    Tools,
    /// A block, or a piece of a text, of the system text before all messages.
    System,
    /// A block, or a piece of a text, of a message.
    Message,
    /// A document in a message or in the system text.
    Document,
    /// The last block, or piece of a text, of the prompt, if it belongs to a message and is no document.
    Last,
}

/// The lifetime that a cache marker requests: how long a provider keeps the cached prefix if it is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkTtl {
    /// The default lifetime, requested by a marker without a `ttl` field: 5 minutes, or 30 minutes with OpenAI.
    Default,
    /// The long lifetime: one hour, or 12 hours with OpenAI.
    Long,
}

/// The place in the body, and the form, in which a cache marker for a position can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkPlace {
    /// As the first field of a block, inserted at this offset in the body, just after the block's opening brace.
    Field(usize),
    /// As a block of its own, inserted at this offset in the body, just after the block that ends at the position.
    Behind(usize),
    /// As a field of the block that a piece of a text becomes when the text is divided. The numbers are the text's
    /// index in [`Layout::texts`] and the piece's index in that text.
    Piece(usize, usize),
}

/// A text of the prompt that the gateway may divide into several blocks, to set cache markers between them.
#[derive(Clone, Debug)]
pub(super) struct SplitText {
    pub(super) wrap: TextWrap,
    /// Range of the text in the body, quotes included.
    pub(super) raw: Range<usize>,
    /// Offsets in the body at which one piece of the text ends and the next one begins, that is, where the text may be
    /// divided.
    pub(super) cuts: SmallVec<[usize; 8]>,
    /// The JSON form of the blocks into which the text is divided, such as `{"type":"text","text":"…"}`.
    pub(super) style: PartStyle,
}

/// The JSON that encloses a text in the body. It decides how the text can be divided into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextWrap {
    /// The text is in a block, given by the offsets in the body after its opening brace and of its closing one, and
    /// whether its `text` field precedes its `type`.
    Block {
        open: usize,
        close: usize,
        is_text_first: bool,
    },
    /// The text is the whole content of a message, without a block around it.
    Content,
    /// The text is the whole `input` of a Responses request, which stands for its only user message.
    Input,
}

impl Layout {
    /// Returns the positions (ends of blocks) of the prompt in a parsed body, for this kind of cache. `realm` stands
    /// for what else separates caches, such as the engine: the same prompt has different hashes in different realms.
    ///
    /// # Errors
    /// Returns [`Skip::NoDocuments`] if the body is not a JSON object.
    pub fn of(
        parsed: &Parsed<'_>,
        kind: CacheKind,
        blocks: Blocks,
        realm: u64,
    ) -> Result<Self, Skip> {
        let text = parsed.text;
        let names = [
            "cache_control",
            "prompt_cache_options",
            "prompt_cache_key",
            "input",
        ];
        let top = text.trim_ascii();
        let [automatic, options, key, input] =
            (Scan::new(top).fields(names)).map_err(|_| Skip::NoDocuments)?;
        let is_set = |value: &&str| *value != "null";
        let said = [parsed.model(), parsed.client_salt().unwrap_or_default()];
        let scope =
            (said.iter()).fold(realm, |seed, part| xxh3_64_with_seed(part.as_bytes(), seed));
        let is_openai = kind == CacheKind::OpenAi;
        let mut reading = Reading {
            body: text,
            kind,
            blocks,
            has_message_markers: kind == CacheKind::Anthropic
                && (parsed.messages.iter()).any(|message| {
                    let (head, tail) = body::around(message.raw, message.content);
                    [head, tail].iter().any(|part| has_message_marker(part))
                }),
            format: match (parsed.is_chat_completion(), input.filter(is_set)) {
                (true, _) => Format::Messages,
                (false, Some(_)) => Format::Responses,
                _ => Format::Other,
            },
            hash: (key.filter(|key| is_openai && is_set(key)))
                .map_or(scope, |key| xxh3_64_with_seed(key.as_bytes(), scope)),
            bytes: 0,
            step: 0,
            run: None,
            depth: 0,
            slots: Vec::new(),
            layout: Self {
                automatic: automatic
                    .filter(|_| kind == CacheKind::Anthropic)
                    .and_then(ttl),
                mode: options.filter(|_| is_openai).map_or(Mode::Unsaid, mode),
                has_key: key.is_some(),
                scope,
                inside: offset_in(text, top) + 1,
                ..Self::default()
            },
        };
        reading.tools(parsed);
        let mut is_head = true;
        for (at, message) in parsed.messages.iter().enumerate() {
            if is_head && message.role != Role::System {
                is_head = false;
                // Providers drop cached messages, but neither tools nor system text, when these parameters change.
                for (name, value) in parsed.parameters() {
                    reading.fold(name.as_bytes());
                    reading.fold(value.as_bytes());
                }
            }
            if reading.layout.is_cut_short {
                break;
            }
            let next = parsed.messages.get(at + 1);
            reading.message(message, next, is_head);
        }
        let mut layout = reading.layout;
        if let Some(last) = layout.positions.last_mut()
            && last.part == Part::Message
        {
            last.part = Part::Last;
        }
        Ok(layout)
    }

    /// Returns the estimated tokens of the whole prompt.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.positions.last().map_or(0, |last| last.tokens)
    }

    /// Returns the positions at which this body has a cache marker, as indices in `positions`, in order, each with the
    /// marker's lifetime. The marker that a provider with this kind of cache sets automatically is included.
    #[must_use]
    pub fn marks(&self, kind: CacheKind) -> Vec<(usize, MarkTtl)> {
        let written = self.positions.iter().enumerate();
        let mut marks: Vec<(usize, MarkTtl)> = written
            .filter_map(|(at, position)| Some((at, position.mark?)))
            .collect();
        let last = match (kind, self.automatic) {
            (CacheKind::Anthropic, Some(ttl)) => {
                (self.positions.len().checked_sub(1)).zip(Some(ttl))
            }
            (CacheKind::OpenAi, _) if self.mode != Mode::Explicit => {
                let ends = self.positions.iter().rposition(|at| at.ends_message);
                ends.zip(Some(MarkTtl::Default))
            }
            _ => None,
        };
        if let Some((at, ttl)) = last
            && marks.iter().all(|(marked, _)| *marked != at)
        {
            marks.push((at, ttl));
            marks.sort_unstable_by_key(|(at, _)| *at);
        }
        marks
    }

    /// Returns whether the client controls caching itself, by cache markers or by a caching mode in the body.
    #[must_use]
    pub fn is_clients(&self) -> bool {
        self.automatic.is_some()
            || self.mode != Mode::Unsaid
            || self
                .positions
                .iter()
                .any(|position| position.mark.is_some())
    }
}

/// The maximum number of positions (ends of blocks) that are read of one prompt if its texts are to be divided; if it
/// has more, the gateway sets no markers in it.
pub(super) const MAX_MARKED_POSITIONS: usize = 2_048;

/// The format of a request's body, named after the body's field that contains the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// The messages are in the field `messages`: OpenAI chat, Anthropic, Bedrock Converse.
    Messages,
    /// The messages are in the field `input`: OpenAI Responses.
    Responses,
    /// The messages are in neither `messages` nor `input`. No provider supports cache markers in such a body.
    Other,
}

struct Reading<'a> {
    body: &'a str,
    kind: CacheKind,
    blocks: Blocks,
    /// True if a message has a marker beside its content. Clients set it on other messages in the next request. Then no
    /// text is divided: a text that was sent whole with such a marker must be the same without it.
    has_message_markers: bool,
    format: Format,
    hash: u64,
    bytes: usize,
    step: u32,
    /// The kind of the adjacent tool calls or results to which the last position belongs, which count as one step (see
    /// [`Position::step`]). `None` if that position is a step of its own.
    run: Option<Run>,
    depth: u32,
    /// Ranges in the body of the documents of the message that is being read, sorted.
    slots: Vec<Range<usize>>,
    layout: Layout,
}

/// The kind of adjacent blocks that count as one step (see [`Position::step`]): tool calls, or tools' results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Calls,
    Results,
}

impl<'a> Reading<'a> {
    fn fold(&mut self, bytes: &[u8]) {
        self.hash = xxh3_64_with_seed(bytes, self.hash);
    }

    fn push(&mut self, bytes: usize, part: Part, run: Option<Run>, place: Option<MarkPlace>) {
        if self.blocks == Blocks::Split && self.layout.positions.len() >= MAX_MARKED_POSITIONS {
            self.layout.is_cut_short = true;
            return;
        }
        self.bytes += bytes;
        self.step += u32::from(run.is_none() || run != self.run);
        self.run = run;
        self.depth = if part == Part::Document {
            self.depth + 1
        } else {
            0
        };
        self.layout.positions.push(Position {
            hash: self.hash,
            tokens: (self.bytes as u64).div_ceil(4),
            part,
            depth: self.depth,
            step: self.step,
            mark: None,
            ends_message: false,
            place,
        });
    }

    fn mark(&mut self, ttl: Option<MarkTtl>) {
        if let (Some(last), Some(ttl)) = (self.layout.positions.last_mut(), ttl) {
            last.mark = Some(ttl);
        }
    }

    fn tools(&mut self, parsed: &Parsed<'a>) {
        for tool in &parsed.tools {
            if self.layout.is_cut_short {
                return;
            }
            let block = Block::read(tool);
            // Anthropic appends a deferred tool to the conversation once it is found, and rejects a marker on it.
            if block.is_deferred && self.kind == CacheKind::Anthropic {
                continue;
            }
            if block.is_point {
                self.mark(block.mark);
                continue;
            }
            self.fold(b"tool");
            self.fold(&block.hash.to_le_bytes());
            let place = match self.kind {
                CacheKind::Anthropic if block.fields > 0 && !block.has_void_mark => {
                    Some(MarkPlace::Field(offset_in(self.body, tool) + 1))
                }
                CacheKind::Bedrock if block.is_tool_spec => {
                    Some(MarkPlace::Behind(range_in(self.body, tool).end))
                }
                _ => None,
            };
            self.push(block.bytes, Part::Tools, None, place);
            self.mark(block.mark);
        }
    }

    fn message(&mut self, message: &Message<'a>, next: Option<&Message<'a>>, is_head: bool) {
        self.fold(b"message");
        self.fold(message.role_name.as_bytes());
        // The name and id of a tool call are outside the message's content, so the bytes around the content count too.
        let (head, tail) = body::around(message.raw, message.content);
        let mut mark = None;
        for part in [head, tail] {
            let marked = self.has_message_markers.then(|| message_marker(part));
            let Some((without, marker)) = marked.flatten() else {
                self.fold(part.as_bytes());
                continue;
            };
            self.fold(without.as_bytes());
            mark = ttl(marker);
        }
        self.slots = documents_in(message);
        let before = self.layout.positions.len();
        let is_alone = message.raw.as_ptr() == message.content.as_ptr();
        // A system text in a field of its own is Anthropic's, or the `instructions` of Responses, which stay a string.
        let can_mark = self.format != Format::Other
            && mark.is_none()
            && match message.role {
                Role::System => {
                    !(is_alone
                        && (self.kind == CacheKind::OpenAi || self.format == Format::Responses))
                }
                Role::User => true,
                // The content of a `file_search_call` is its passages, or its id; that of a `function` is a string.
                Role::Tool => {
                    self.kind == CacheKind::OpenAi
                        && !matches!(&*message.role_name, "file_search_call" | "function")
                }
                Role::Assistant | Role::Other => false,
            };
        let part = if is_head { Part::System } else { Part::Message };
        let content = message.content;
        if inner_of(content).is_some() {
            let wrap = match (is_alone, message.role) {
                (true, Role::System) | (false, _) => Some(TextWrap::Content),
                (true, Role::User) if self.format == Format::Responses => Some(TextWrap::Input),
                (true, _) => None,
            };
            let wrap = wrap.filter(|_| can_mark && self.kind != CacheKind::Bedrock);
            let style = match self.format {
                Format::Responses => PartStyle::Input,
                _ => PartStyle::Typed,
            };
            self.text(content, part, wrap, style);
        } else if content.starts_with('[')
            && let Ok(elements) = Scan::new(content).elements()
        {
            for raw in elements {
                if self.layout.is_cut_short {
                    return;
                }
                self.block(raw, part, can_mark);
            }
        } else {
            self.fold(message.content.as_bytes());
            self.push(message.raw.len(), part, None, None);
        }
        if self.layout.positions.len() == before {
            return;
        }
        let goes_on = next.is_some_and(|next| next.role == message.role);
        let ends = match message.role {
            Role::User => true,
            Role::Tool => !goes_on,
            Role::System => is_head && !goes_on,
            Role::Assistant | Role::Other => false,
        };
        if let Some(last) = self.layout.positions.last_mut() {
            last.ends_message = ends;
        }
        self.mark(mark);
    }

    fn block(&mut self, raw: &'a str, part: Part, can_mark: bool) {
        let block = Block::read(raw);
        if block.is_point {
            self.mark(block.mark);
            return;
        }
        let range = range_in(self.body, raw);
        let is_markable = can_mark && block.is_markable(self.kind);
        if let Some(text) = block.text.filter(|_| block.is_plain_text(self.kind)) {
            let wrap = TextWrap::Block {
                open: range.start + 1,
                close: range.end - 1,
                is_text_first: block.is_text_first,
            };
            // A marker field before the text would stay with the first piece.
            let is_markable = is_markable && !(block.mark.is_some() && block.is_marked_early);
            let style = match block.kind {
                None => PartStyle::Bare,
                Some("input_text") => PartStyle::Input,
                Some(_) => PartStyle::Typed,
            };
            self.text(text, part, is_markable.then_some(wrap), style);
            self.mark(block.mark);
            return;
        }
        self.fold(b"block");
        self.fold(&block.hash.to_le_bytes());
        let place = match self.kind {
            CacheKind::Bedrock => MarkPlace::Behind(range.end),
            _ => MarkPlace::Field(range.start + 1),
        };
        // Bedrock refuses a `cachePoint` directly behind these.
        let is_markable = is_markable && !block.is_converse_document && !block.is_converse_video;
        let run = match block.kind {
            Some("tool_use") => Some(Run::Calls),
            Some("tool_result") => Some(Run::Results),
            _ => None,
        };
        let is_document =
            matches!(block.kind, Some("document" | "search_result")) || block.is_converse_document;
        let part = if is_document { Part::Document } else { part };
        self.push(block.bytes, part, run, is_markable.then_some(place));
        self.mark(block.mark);
    }

    /// Adds the positions of a text: one for each piece if the text may be divided, otherwise one for the whole text.
    /// `raw` is the text in the body, quotes included. `wrap` is what encloses it; `None` if no marker is allowed
    /// there.
    fn text(&mut self, raw: &'a str, part: Part, wrap: Option<TextWrap>, style: PartStyle) {
        let range = range_in(self.body, raw);
        let inner = range.start + 1..(range.end - 1).max(range.start + 1);
        let divides = self.blocks == Blocks::Split && !self.has_message_markers;
        let documents = match wrap.filter(|_| divides) {
            Some(_) => within(&self.slots, &inner),
            None => &[],
        };
        let pieces = pieces(self.body, &inner, documents);
        let text = self.layout.texts.len();
        let mut cuts: SmallVec<[usize; 8]> = SmallVec::new();
        for (at, (piece, is_document)) in pieces.iter().enumerate() {
            let words = self.body.get(piece.clone()).unwrap_or_default();
            self.fold(b"text");
            self.fold(words.as_bytes());
            if at > 0 {
                cuts.push(piece.start);
            }
            let part = if *is_document { Part::Document } else { part };
            let place = wrap.filter(|_| !is_blank(words));
            let place = place.map(|_| MarkPlace::Piece(text, at));
            self.push(piece.len(), part, None, place);
        }
        if let Some(wrap) = wrap {
            self.layout.texts.push(SplitText {
                wrap,
                raw: range,
                cuts,
                style,
            });
        }
    }
}

/// Returns whether a message's JSON before or after its content may have the field `cache_control`.
fn has_message_marker(part: &str) -> bool {
    // Few messages have a `_` there, and to look for one character is cheap.
    part.contains('_') && part.contains("\"cache_control\"")
}

/// Returns `part`, a message's JSON before or after its content, without its field `cache_control`, and that field's
/// value; `None` if it has none. LiteLLM and OpenRouter read the field there, as a marker on the message's last block.
/// Where they ignore it, such as in some messages without text, it counts nevertheless: too few markers are set then, not
/// too many.
fn message_marker(part: &str) -> Option<(String, &str)> {
    let (before, rest) = part.split_once("\"cache_control\"")?;
    let mut scan = Scan::new(rest);
    scan.next();
    scan.expect(b':').ok()?;
    scan.next();
    let marker = scan.value().ok()?;
    let after = rest.get(scan.at()..)?.trim_ascii_start();
    // One of the two commas around the field goes with it.
    let without = match before.trim_ascii_end().strip_suffix(',') {
        Some(before) => [before.trim_ascii_end(), after].concat(),
        None => [
            before,
            after.strip_prefix(',').unwrap_or(after).trim_ascii_start(),
        ]
        .concat(),
    };
    Some((without, marker))
}

/// Returns the ranges in the body that the documents of a message occupy, sorted.
fn documents_in(message: &Message<'_>) -> Vec<Range<usize>> {
    let slots = message.ordered().flat_map(|group| group.place.slots());
    let mut found: Vec<Range<usize>> = slots.filter(|slot| !slot.is_empty()).cloned().collect();
    crate::sort::sort_by_key(&mut found, |slot| slot.start);
    found
}

/// Returns those of `slots` that lie inside the range `text`; `slots` must be sorted and disjoint.
fn within<'s>(slots: &'s [Range<usize>], text: &Range<usize>) -> &'s [Range<usize>] {
    let start = slots.partition_point(|slot| slot.start < text.start);
    let end = slots.partition_point(|slot| slot.end <= text.end);
    slots.get(start..end).unwrap_or_default()
}

/// Divides the text at the range `inner` of the body into pieces at the ends of `documents`, which are ranges in the
/// body. Returns the range of each piece in the body, with true if the piece ends with a document. No piece is blank,
/// unless the whole text is.
fn pieces(
    body: &str,
    inner: &Range<usize>,
    documents: &[Range<usize>],
) -> Vec<(Range<usize>, bool)> {
    let blank = |range: Range<usize>| is_blank(body.get(range).unwrap_or_default());
    let mut pieces = Vec::with_capacity(documents.len() + 2);
    let mut at = inner.start;
    for document in documents {
        if document.start < at {
            continue;
        }
        if pieces.is_empty() && !blank(at..document.start) {
            pieces.push((at..document.start, false));
            at = document.start;
        }
        pieces.push((at..document.end, true));
        at = document.end;
    }
    match pieces.last_mut() {
        Some((last, _)) if blank(at..inner.end) => last.end = inner.end,
        _ => pieces.push((at..inner.end, false)),
    }
    pieces
}

/// A block of a message's content, or a tool's definition, with those of its properties on which cache markers depend.
#[derive(Default)]
struct Block<'a> {
    kind: Option<&'a str>,
    /// The JSON string that is the block's text, quotes included; `None` if the block has no text.
    text: Option<&'a str>,
    mark: Option<MarkTtl>,
    /// True if a field with a cache marker precedes the block's `text` field.
    is_marked_early: bool,
    /// True if the block has a cache marker's field whose value is not an object, such as `null`: the gateway must not
    /// write the field a second time.
    has_void_mark: bool,
    /// True if the block's `text` field precedes its `type` field.
    is_text_first: bool,
    /// True if the block is a tool whose definition is loaded only once the model has found it (`defer_loading`).
    is_deferred: bool,
    /// Number of the block's fields other than `type`, `text` and cache markers.
    others: u32,
    /// Number of the block's fields, cache markers included.
    fields: u32,
    /// True if the block is a `cachePoint`, Bedrock's marker for the block before it.
    is_point: bool,
    /// True if the block is a document of Bedrock Converse.
    is_converse_document: bool,
    /// True if the block is a video in the format of Bedrock Converse.
    is_converse_video: bool,
    /// True if the block is a tool in the format of Bedrock Converse.
    is_tool_spec: bool,
    /// Hash of the names and JSON values of the block's fields, without cache markers. If the block is not an object,
    /// the hash of its JSON.
    hash: u64,
    /// Total length in bytes of the JSON values of the block's fields, without field names and without cache markers.
    /// If the block is not an object, the length of its JSON.
    bytes: usize,
}

impl<'a> Block<'a> {
    fn read(raw: &'a str) -> Self {
        let mut block = Self::default();
        let mut scan = Scan::new(raw);
        let read = scan.object(|scan, name| {
            let value = scan.value()?;
            block.fields += 1;
            if matches!(
                name,
                "cache_control" | "prompt_cache_breakpoint" | "cachePoint"
            ) {
                block.is_point = name == "cachePoint";
                block.mark = ttl(value);
                block.is_marked_early |= block.text.is_none();
                block.has_void_mark |= block.mark.is_none();
                return Ok(());
            }
            block.hash = xxh3_64_with_seed(name.as_bytes(), block.hash);
            block.hash = xxh3_64_with_seed(value.as_bytes(), block.hash);
            block.bytes += value.len();
            match name {
                "type" => {
                    block.kind = inner_of(value);
                    block.is_text_first = block.text.is_some();
                }
                "text" if inner_of(value).is_some() => block.text = Some(value),
                "document" if value.starts_with('{') => {
                    block.is_converse_document = true;
                    block.others += 1;
                }
                "video" | "toolSpec" if value.starts_with('{') => {
                    block.is_converse_video = name == "video";
                    block.is_tool_spec = name == "toolSpec";
                    block.others += 1;
                }
                _ => {
                    block.others += 1;
                    block.is_deferred |= match name {
                        "defer_loading" => value == "true",
                        "custom" => scan::fields(value, ["defer_loading"]) == Ok([Some("true")]),
                        _ => false,
                    };
                }
            }
            Ok(())
        });
        if read.is_err() {
            // A value that is not an object is hashed whole.
            block = Self {
                hash: xxh3_64_with_seed(raw.as_bytes(), 0),
                bytes: raw.len(),
                ..Self::default()
            };
        }
        block
    }

    /// Returns whether this kind of cache allows a cache marker on the block, and the gateway can write one.
    fn is_markable(&self, kind: CacheKind) -> bool {
        let is_kind = match (kind, self.kind) {
            (CacheKind::Anthropic, Some(name)) => matches!(
                name,
                "text" | "image" | "document" | "search_result" | "tool_result" | "image_url"
            ),
            (CacheKind::OpenAi, Some(name)) => matches!(
                name,
                "text"
                    | "image_url"
                    | "file"
                    | "input_audio"
                    | "input_text"
                    | "input_image"
                    | "input_file"
            ),
            (CacheKind::Bedrock, None) => self.fields > 0,
            _ => false,
        };
        let is_empty = self.text.and_then(inner_of).is_some_and(is_blank);
        is_kind && !is_empty && !self.has_void_mark
    }

    /// Returns whether the block is a text and has no fields other than `type`, `text` and cache markers, so that the
    /// gateway can divide it.
    fn is_plain_text(&self, kind: CacheKind) -> bool {
        let is_text = match self.kind {
            Some(name) => matches!(name, "text" | "input_text"),
            None => kind == CacheKind::Bedrock,
        };
        is_text && self.others == 0
    }
}

/// Returns the lifetime that a cache marker requests; `None` if the marker's value is not an object.
fn ttl(marker: &str) -> Option<MarkTtl> {
    if !marker.starts_with('{') {
        return None;
    }
    let [ttl] = scan::fields(marker, ["ttl"]).ok()?;
    Some(match ttl.and_then(inner_of) {
        Some("1h" | "12h") => MarkTtl::Long,
        _ => MarkTtl::Default,
    })
}

/// Returns the caching mode that `options`, the value of `prompt_cache_options`, selects. Every value other than
/// `explicit`, even `null`, means [`Mode::Implicit`], not [`Mode::Unsaid`]: the field exists, so the gateway could set
/// a mode only by writing the field a second time.
fn mode(options: &str) -> Mode {
    let mode = scan::fields(options, ["mode"]);
    match mode.ok().and_then(|[mode]| inner_of(mode?)) {
        Some("explicit") => Mode::Explicit,
        _ => Mode::Implicit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_marker_beside_a_messages_content_counts_and_changes_no_hash() {
        const MARK: &str = r#""cache_control":{"type":"ephemeral"}"#;
        let documents = r#""<doc id=\"a\">A.</doc>\n<doc id=\"b\">B.</doc>\nWhy?""#;
        let layout = |message: &str, last: &str| {
            let body =
                format!(r#"{{"messages":[{{{message}}},{{"role":"user","content":"?"{last}}}]}}"#);
            let parsed = body::parse(body.as_bytes(), &Config::default()).unwrap();
            Layout::of(&parsed, CacheKind::Anthropic, Blocks::Split, 0).unwrap()
        };
        let marked_last = format!(",{MARK}");
        for (plain, marked) in [
            (
                r#""role":"user","content":"So.""#.to_owned(),
                [
                    format!(r#"{MARK} , "role":"user","content":"So.""#),
                    format!(r#""role":"user","content":"So." , {MARK}"#),
                ],
            ),
            (
                format!(r#""role":"user","content":{documents}"#),
                [
                    format!(r#"{MARK},"role":"user","content":{documents}"#),
                    format!(r#""role":"user","content":{documents},{MARK}"#),
                ],
            ),
            (
                r#""role":"assistant","content":null,"tool_calls":[]"#.to_owned(),
                [
                    format!(r#"{MARK},"role":"assistant","content":null,"tool_calls":[]"#),
                    format!(r#""role":"assistant","content":null,"tool_calls":[],{MARK}"#),
                ],
            ),
        ] {
            // The marker moves on to the last message.
            let moved = layout(&plain, &marked_last);
            let marks = moved.marks(CacheKind::Anthropic);
            assert_eq!(marks, [(1, MarkTtl::Default)], "{plain}");
            for marked in marked {
                let marked = layout(&marked, "");
                let marks = marked.marks(CacheKind::Anthropic);
                assert_eq!(marks, [(0, MarkTtl::Default)], "{plain}");
                for (marked, moved) in marked.positions.iter().zip(&moved.positions) {
                    assert_eq!(marked.hash, moved.hash, "{plain}");
                }
            }
        }
        let unmarked = layout(&format!(r#""role":"user","content":{documents}"#), "");
        assert_eq!(unmarked.positions.len(), 4, "documents end at positions");
    }
}
