//! A prompt as the positions that a provider's cache tells apart.
//!
//! ```text
//!   [tool] [tool] │ system │ user: text "Read:" │ <doc a> │ <doc b> │ "Why?" │ assistant … │ user …
//!     0      1        2             3                4         5        6          7           8
//!   hash of position n = everything up to its end, without markers
//! ```
//!
//! A position is a tool, a block of a message's content, or, where texts are to be [split](Blocks::Split), a piece of a
//! text: what precedes its documents, each document with the separator before it, and the rest. Markers do not count
//! towards a position's hash, and neither do the spaces of JSON. A place that must not be marked (thinking, empty text,
//! what an assistant said, blocks inside a tool's result) has none.

use super::rules::CacheKind;
use crate::body::scan::{self, Scan};
use crate::body::{
    self, GroupLayout, Message, Parsed, PartStyle, Role, Skip, inner_of, offset_in, range_in,
};
use smallvec::SmallVec;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A prompt's positions, in order, and what the body says of caching beside them.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The positions, in the order of the prompt.
    pub positions: Vec<Position>,
    /// The lifetime that a top-level `cache_control` asks for the end of the prompt: Anthropic's automatic mode.
    pub automatic: Option<MarkTtl>,
    /// OpenAI's `prompt_cache_options`, as far as it matters.
    pub mode: Mode,
    /// Hash of what separates prompts that never share: model, salt, realm.
    pub(super) scope: u64,
    /// The client's `prompt_cache_key`, if it has one.
    pub(super) has_key: bool,
    /// Texts that consist of pieces.
    pub(super) texts: Vec<SplitText>,
    /// True if the prompt has more than [`MAX_MARKED_POSITIONS`] positions; those beyond are missing here.
    pub(super) is_cut_short: bool,
    /// Offset behind the body's opening brace.
    pub(super) inside: usize,
}

/// OpenAI's caching mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The body says nothing, which means [`Mode::Implicit`].
    #[default]
    Unsaid,
    /// The end of the latest message is marked by itself.
    Implicit,
    /// Only marked places count.
    Explicit,
}

/// How texts become positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// A block is a position, as the body has it.
    AsWritten,
    /// A text with documents has a position for each of them.
    Split,
}

/// One position of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Hash of the prompt up to the position's end.
    pub hash: u64,
    /// Estimated tokens of the prompt up to the position's end.
    pub tokens: u64,
    /// The kind of text that ends here.
    pub part: Part,
    /// Number of documents that stand side by side up to here; 0 where none ends.
    pub depth: u32,
    /// Number of the position as a look-back counts: a run of a tool's calls, or of their results, counts once.
    pub step: u32,
    /// The marker that the body has here.
    pub mark: Option<MarkTtl>,
    /// Whether a message of a user or a tool, or the opening system text, ends here.
    pub ends_message: bool,
    pub(super) place: Option<MarkPlace>,
}

impl Position {
    /// Returns whether a marker may be set here.
    #[must_use]
    pub fn may_be_marked(&self) -> bool {
        self.place.is_some()
    }
}

/// The kind of text that ends at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// A tool's declaration.
    Tools,
    /// A piece of the system text.
    System,
    /// A piece of a message.
    Message,
    /// A document.
    Document,
    /// The end of the prompt's last message.
    Last,
}

/// How long a marker asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkTtl {
    /// The lifetime that needs no words: 5 minutes; 30 with OpenAI.
    Default,
    /// One hour; 12 with OpenAI.
    Long,
}

/// Where a marker goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkPlace {
    /// A field behind a block's opening brace.
    Field(usize),
    /// A block behind the one that ends here.
    Behind(usize),
    /// On a piece of one of [`Layout::texts`], by their indexes.
    Piece(usize, usize),
}

/// A text that consists of pieces.
#[derive(Clone, Debug)]
pub(super) struct SplitText {
    pub(super) wrap: TextWrap,
    /// The quotes included.
    pub(super) raw: Range<usize>,
    /// Where a piece ends and the next one begins.
    pub(super) cuts: SmallVec<[usize; 8]>,
    /// What the text's block is called.
    pub(super) style: PartStyle,
}

/// What stands around a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextWrap {
    /// A block, with this behind its opening brace and before its closing one.
    Block { open: usize, close: usize },
    /// Nothing: it is a whole content.
    Content,
    /// Nothing: it is a user's only message, Responses' `input`.
    Input,
}

impl Layout {
    /// Returns the positions of a body's prompt for a cache of that kind; prompts of two realms share nothing.
    ///
    /// # Errors
    /// Returns [`Skip::InvalidJson`] if a block is not what it should be.
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
            "contents",
        ];
        let top = text.trim_ascii();
        let [automatic, options, key, input, contents] =
            scan::fields(top, names).map_err(|_| Skip::NoDocuments)?;
        let said = [parsed.model(), parsed.client_salt().unwrap_or_default()];
        let scope = said
            .iter()
            .fold(realm, |seed, part| xxh3_64_with_seed(part.as_bytes(), seed));
        let is_openai = kind == CacheKind::OpenAi;
        let key = key.filter(|key| is_openai && *key != "null");
        let mut reading = Reading {
            body: text,
            kind,
            blocks,
            format: match (parsed.is_chat_completion(), input, contents) {
                (true, ..) => Format::Messages,
                (false, Some(_), _) => Format::Responses,
                _ => Format::Other,
            },
            hash: key.map_or(scope, |key| xxh3_64_with_seed(key.as_bytes(), scope)),
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
                // These invalidate messages, but neither tools nor system text.
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

    /// Returns the tokens of the whole prompt.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.positions.last().map_or(0, |last| last.tokens)
    }

    /// Returns the positions that are marked in the body, or by themselves, and for how long.
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

    /// Returns whether the body says anything of caching itself.
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

/// Most positions of a prompt that is marked.
pub(super) const MAX_MARKED_POSITIONS: usize = 2_048;

/// Which fields hold what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `messages`: OpenAI chat, Anthropic, Converse.
    Messages,
    /// `input`: OpenAI Responses.
    Responses,
    /// Others, which none of these caches serves.
    Other,
}

struct Reading<'a> {
    body: &'a str,
    kind: CacheKind,
    blocks: Blocks,
    format: Format,
    hash: u64,
    bytes: usize,
    step: u32,
    /// The run of blocks that the last position belongs to.
    run: Option<Run>,
    depth: u32,
    /// Where the documents of the message stand, in order.
    slots: Vec<Range<usize>>,
    layout: Layout,
}

/// Blocks that count once where they stand side by side.
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
            if block.is_point {
                self.mark(block.mark);
                continue;
            }
            self.fold(b"tool");
            self.fold(&block.hash.to_le_bytes());
            let place = match self.kind {
                CacheKind::Anthropic if tool.starts_with('{') && block.fields > 0 => {
                    Some(MarkPlace::Field(offset_in(self.body, tool) + 1))
                }
                CacheKind::Bedrock => Some(MarkPlace::Behind(range_in(self.body, tool).end)),
                _ => None,
            };
            self.push(block.bytes, Part::Tools, None, place);
            self.mark(block.mark);
        }
    }

    fn message(&mut self, message: &Message<'a>, next: Option<&Message<'a>>, is_head: bool) {
        self.fold(b"message");
        self.fold(message.role_name.as_bytes());
        // A call's name and number stand beside its content.
        let (head, tail) = body::around(message.raw, message.content);
        self.fold(head.as_bytes());
        self.fold(tail.as_bytes());
        self.slots = documents_in(message);
        let before = self.layout.positions.len();
        let is_alone = message.raw.as_ptr() == message.content.as_ptr();
        // A system text beside the messages is OpenAI's `instructions`, which takes no marker.
        let can_mark = self.format != Format::Other
            && match message.role {
                Role::System => !(is_alone && self.kind == CacheKind::OpenAi),
                Role::User => true,
                Role::Tool => self.kind == CacheKind::OpenAi,
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
            self.fold(message.raw.as_bytes());
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
            };
            // A marker before the text would stay with its first piece.
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

    /// A text, in pieces if it is to be split and can be.
    fn text(&mut self, raw: &'a str, part: Part, wrap: Option<TextWrap>, style: PartStyle) {
        let range = range_in(self.body, raw);
        let inner = range.start + 1..(range.end - 1).max(range.start + 1);
        let documents = match (self.blocks, wrap) {
            (Blocks::Split, Some(_)) => within(&self.slots, &inner),
            _ => &[],
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

/// Returns where the documents of a message stand, in order.
fn documents_in(message: &Message<'_>) -> Vec<Range<usize>> {
    let slots = message.groups.iter().flat_map(|group| match &group.place {
        GroupLayout::Slots { slots, .. } => slots.as_slice(),
        GroupLayout::Render { .. } => &[],
    });
    let mut found: Vec<Range<usize>> = slots.filter(|slot| !slot.is_empty()).cloned().collect();
    crate::sort::sort_by_key(&mut found, |slot| slot.start);
    found
}

/// Returns those of the `slots`, which are in order and apart, that stand in a text.
fn within<'s>(slots: &'s [Range<usize>], text: &Range<usize>) -> &'s [Range<usize>] {
    let start = slots.partition_point(|slot| slot.start < text.start);
    let end = slots.partition_point(|slot| slot.end <= text.end);
    slots.get(start..end).unwrap_or_default()
}

/// The pieces of a text with these documents, and whether each is a document. No piece is blank but a text that is.
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

/// Whether a piece of a JSON string holds spaces alone.
fn is_blank(piece: &str) -> bool {
    let mut bytes = piece.bytes();
    while let Some(byte) = bytes.next() {
        let is_space = match byte {
            b'\\' => matches!(bytes.next(), Some(b'n' | b't' | b'r')),
            byte => byte.is_ascii_whitespace(),
        };
        if !is_space {
            return false;
        }
    }
    true
}

/// A block, or a tool.
#[derive(Default)]
struct Block<'a> {
    kind: Option<&'a str>,
    /// Its text, with quotes.
    text: Option<&'a str>,
    mark: Option<MarkTtl>,
    /// Whether a marker stands before its text.
    is_marked_early: bool,
    /// Number of fields that are neither markers nor its type nor its text.
    others: u32,
    /// Number of fields.
    fields: u32,
    /// Whether it is a `cachePoint`.
    is_point: bool,
    /// Whether it is Converse's document.
    is_converse_document: bool,
    /// Hash without markers.
    hash: u64,
    /// Length without markers.
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
                return Ok(());
            }
            block.hash = xxh3_64_with_seed(name.as_bytes(), block.hash);
            block.hash = xxh3_64_with_seed(value.as_bytes(), block.hash);
            block.bytes += value.len();
            match name {
                "type" => block.kind = inner_of(value),
                "text" if inner_of(value).is_some() => block.text = Some(value),
                "document" if value.starts_with('{') => {
                    block.is_converse_document = true;
                    block.others += 1;
                }
                _ => block.others += 1,
            }
            Ok(())
        });
        if read.is_err() {
            // It is no object.
            block = Self {
                hash: xxh3_64_with_seed(raw.as_bytes(), 0),
                bytes: raw.len(),
                ..Self::default()
            };
        }
        block
    }

    /// Whether it may be marked in a cache of that kind.
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
        is_kind && !is_empty
    }

    /// Whether it is a text that consists of nothing else, so that it can become several.
    fn is_plain_text(&self, kind: CacheKind) -> bool {
        let is_text = match self.kind {
            Some(name) => matches!(name, "text" | "input_text"),
            None => kind == CacheKind::Bedrock,
        };
        is_text && self.others == 0
    }
}

/// How long a marker asks for, if it is one.
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

/// The mode that `prompt_cache_options` asks for.
fn mode(options: &str) -> Mode {
    let mode = scan::fields(options, ["mode"]);
    match mode.ok().and_then(|[mode]| inner_of(mode?)) {
        Some("explicit") => Mode::Explicit,
        _ if options == "null" => Mode::Unsaid,
        _ => Mode::Implicit,
    }
}
