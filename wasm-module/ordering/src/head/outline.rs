//! Divides a request's prompt into pieces (tools, documents, sentences or lines) that an index can store: hashes and
//! counts, and no text.
//!
//! ```text
//!   segments   Tool  Tool  System              Message  Document  Document  Question
//!   pieces      1     1    a line, a sentence     1        1         1      1, or lines if there are documents
//! ```
//!
//! A piece is the unit in which prompts are compared. Its *hash* covers the bytes that an engine would match. Its hash
//! `same` ignores the order of keys in a tool and the score in a document.

use super::marks::{DocumentMarks, Marks};
use super::segments::{Segment, SegmentKind, Segments};
use super::tools::name_of;
use crate::body::scan::{self, Scan};
use crate::body::{FoundDocument, Message, Parsed, Role, inner_of, offset_in};
use crate::document::estimate_tokens;
use crate::listing::Retrieved;
use smallvec::SmallVec;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The smallest part of a prompt that is compared (a tool, a document, or a sentence or line of a text), as hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Hash of the bytes of this tool, document or sentence that must be equal for an engine to reuse its KV state.
    pub(super) hash: u64,
    /// Hash of the content of the tool, document or sentence, independent of the order of a tool's JSON keys and, at
    /// [`Depth::Full`], of a document's score.
    pub(super) same: u64,
    /// Hash of the tool's name or the document's label; 0 if it has none, or only a number.
    pub(super) name: u64,
    pub(super) bytes: u32,
    /// Hash of a document's text without the rank and score; 0 for tools and sentences.
    pub(super) apart: u32,
    /// Hash of the part of a document's text that is read to find differences, and of the text's length if that is not
    /// all of it; 0 for tools and sentences.
    pub(super) exact: u32,
    /// The [sketch](DocumentMarks::sketch) of a document, by which edited versions are recognised; 0 for tools and
    /// sentences.
    pub(super) sketch: [u8; 8],
    pub(super) marks: Marks,
}

/// The part of each text of a prompt that is read to find how it differs from earlier ones. A hash of the whole text is
/// computed in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The whole text is read: for tools that read logs.
    Full,
    /// Of long texts, only the beginning and the end are read: for a gateway, where a client waits for the answer.
    Light,
}

impl Depth {
    const FIRST: usize = 256;
    const LAST: usize = 64;
    /// The maximum number of bytes of a text that are read at [`Depth::Light`]. Up to three more are read to complete a
    /// character.
    pub(super) const LOOKED_AT: usize = Self::FIRST + Self::LAST;

    /// Returns the parts of `text` to read at this depth: all of it and an empty part, or its beginning and its end.
    fn of(self, text: &str) -> [&str; 2] {
        if self == Self::Full || text.len() <= Self::LOOKED_AT {
            return [text, ""];
        }
        let first = text.ceil_char_boundary(Self::FIRST);
        let last = text.ceil_char_boundary(text.len() - Self::LAST);
        [text.get(..first), text.get(last..)].map(Option::unwrap_or_default)
    }
}

/// A function that returns the stored piece (tool, document or sentence) with a hash, so that its text need not be read
/// again; `None` if none is stored.
pub(super) type Known<'k> = dyn Fn(u64) -> Option<Piece> + 'k;

/// A piece (tool, document or sentence) of a prompt whose text may not have been read yet; [`RawPiece::made`] returns
/// the complete piece. Ranges are ranges of a text that the caller stores.
#[derive(Clone, Debug)]
pub(super) enum RawPiece {
    /// A complete piece (tool, document or sentence). Boxed, because it is rare in a gateway and three times the size
    /// of the other variants.
    Made(Box<Piece>),
    Tool(Range<usize>),
    Document {
        fingerprint: u64,
        /// Hash of the document's label; 0 if it has none, or only a number.
        name: u64,
        tokens: u32,
        /// Length of the document's text in bytes.
        length: u32,
        /// The parts of the document's text to read, as ranges of a text that the caller stores.
        looked: [Range<usize>; 2],
    },
    /// A text of a message that is short enough for its [`Marks`] to be computed.
    Text {
        hash: u64,
        range: Range<usize>,
    },
}

impl RawPiece {
    /// Returns the piece for a document of a prompt; `keep` stores the parts of the document's text to read and returns
    /// the range of each.
    pub(super) fn document(
        fingerprint: u64,
        label: &str,
        text: &str,
        tokens: u32,
        depth: Depth,
        keep: impl FnMut(&str) -> Range<usize>,
    ) -> Self {
        let name = if label.is_empty() || is_count(label) {
            0
        } else {
            xxh3_64_with_seed(label.as_bytes(), 2) | 1
        };
        Self::Document {
            fingerprint,
            name,
            tokens,
            length: length(text),
            looked: depth.of(text).map(keep),
        }
    }

    /// Returns the piece for a sentence or line of a message's text; `keep` stores the text and returns its range. A
    /// text that is too long to be read at this depth is not stored.
    pub(super) fn text(
        text: &str,
        role: Role,
        depth: Depth,
        keep: impl FnOnce(&str) -> Range<usize>,
    ) -> Self {
        let hash = xxh3_64_with_seed(text.as_bytes(), role as u64 + 3);
        if depth == Depth::Light && text.len() > LONGEST_MARKED {
            let piece = Piece::plain(hash, length(text), Marks::default());
            return Self::Made(Box::new(piece));
        }
        let range = keep(text);
        Self::Text { hash, range }
    }

    /// Returns the complete piece of a prompt for a value other than text, such as a tool call or an image, given as
    /// JSON.
    pub(super) fn opaque(raw: &str, role: Role) -> Self {
        let hash = xxh3_64_with_seed(raw.as_bytes(), role as u64 + 13);
        Self::Made(Box::new(Piece::plain(hash, length(raw), Marks::default())))
    }

    /// Returns the completed piece (tool, document or sentence). `kept` is the text to which the piece's ranges refer;
    /// `known` finds a stored piece to use instead.
    pub(super) fn made(&self, kept: &str, depth: Depth, known: &Known<'_>) -> Piece {
        let of = |range: &Range<usize>| kept.get(range.clone()).unwrap_or_default();
        match self {
            Self::Made(piece) => **piece,
            Self::Tool(range) => tool(of(range)),
            Self::Document {
                fingerprint,
                name,
                tokens,
                length,
                looked: [first, last],
            } => {
                let hash = seeded(*fingerprint, b"document");
                known(hash).unwrap_or_else(|| {
                    let piece = Piece {
                        hash,
                        same: *fingerprint,
                        name: *name,
                        ..Piece::plain(hash, tokens.saturating_mul(4), Marks::default())
                    };
                    piece.of_document([of(first), of(last)], *length, depth)
                })
            }
            Self::Text { hash, range } => known(*hash).unwrap_or_else(|| {
                let text = of(range);
                Piece::plain(*hash, length(text), Marks::of(text))
            }),
        }
    }
}

impl Piece {
    /// Returns a piece for a sentence or line with these hashes; the hashes that only tools and documents have are 0.
    fn plain(hash: u64, bytes: u32, marks: Marks) -> Self {
        Self {
            hash,
            same: hash,
            name: 0,
            bytes,
            apart: 0,
            exact: 0,
            sketch: [0; 8],
            marks,
        }
    }

    /// Returns this document's piece with the hashes of the document's text added, given the text's beginning, its end
    /// (empty if the beginning is all) and its length in bytes.
    fn of_document(self, [first, last]: [&str; 2], length: u32, depth: Depth) -> Self {
        let found = DocumentMarks::of(first);
        let mut apart = u64::from(found.apart);
        let mut exact = xxh3_64_with_seed(first.as_bytes(), 5);
        if !last.is_empty() {
            apart = xxh3_64_with_seed(last.as_bytes(), apart);
            exact = xxh3_64_with_seed(last.as_bytes(), exact ^ u64::from(length));
        }
        let apart = if length == 0 { 0 } else { (apart as u32) | 1 };
        Self {
            same: match depth {
                Depth::Full if apart != 0 => {
                    seeded(u64::from(apart), b"document apart from its rank")
                }
                _ => self.same,
            },
            apart,
            exact: exact as u32,
            sketch: found.sketch,
            marks: found.marks,
            ..self
        }
    }
}

/// Returns the [`Piece`] of a tool, given its JSON.
fn tool(raw: &str) -> Piece {
    let shape = Shape::of(raw);
    Piece {
        same: seeded(shape.sorted, b"tools"),
        name: name_of(raw).map_or(0, |name| xxh3_64_with_seed(name.as_bytes(), 1) | 1),
        ..Piece::plain(seeded(shape.in_order, b"tool"), length(raw), Marks::of(raw))
    }
}

/// Returns whether the label of a document consists of digits only.
fn is_count(label: &str) -> bool {
    label.bytes().all(|byte| byte.is_ascii_digit())
}

/// The maximum length in bytes of a text whose [`Marks`] a gateway computes. Longer texts are only compared for
/// equality.
const LONGEST_MARKED: usize = 512;

fn length(text: &str) -> u32 {
    u32::try_from(text.len()).unwrap_or(u32::MAX)
}

fn seeded(hash: u64, what: &[u8]) -> u64 {
    xxh3_64_with_seed(what, hash)
}

/// The texts of one message of the body, split once for all parts of the prompt that are in this message.
#[derive(Default)]
pub(super) struct MessageTexts<'a> {
    message: Option<u32>,
    /// The current message's texts and other values, in order; `true` for a text.
    all: Vec<(&'a str, bool)>,
}

impl<'a> MessageTexts<'a> {
    /// Returns the texts of a segment (a part of the prompt) that is neither a tool nor a document, without quotes,
    /// each with `true` for text and `false` for another value. If the segment is a whole message, the message's other
    /// fields that a template renders, such as tool calls, come last. O(texts of the segment), plus the message's bytes
    /// for its first segment.
    pub(super) fn of(
        &mut self,
        body: &'a str,
        message: &Message<'a>,
        segment: &Segment,
    ) -> SmallVec<[(&'a str, bool); 2]> {
        let content = message.content;
        if self.message != segment.message {
            self.message = segment.message;
            self.all.clear();
            match inner_of(content) {
                Some(text) => self.all.push((text, true)),
                // An item that the parser does not divide.
                None if content.starts_with('{') => self.all.push((content, false)),
                None => parts(content, &mut self.all),
            }
        }
        let end = |part: &str| offset_in(body, part) + part.len();
        let first = (self.all).partition_point(|(part, _)| end(part) <= segment.range.start);
        let behind =
            (self.all).partition_point(|(part, _)| offset_in(body, part) < segment.range.end);
        let own = self.all.get(first..behind).unwrap_or_default();
        let within = own.iter().map(|(part, is_text)| {
            let start = offset_in(body, part);
            let from = segment.range.start.clamp(start, start + part.len()) - start;
            let to = segment.range.end.clamp(start, start + part.len()) - start;
            (part.get(from..to).unwrap_or_default(), *is_text)
        });
        let mut found: SmallVec<[(&str, bool); 2]> =
            within.filter(|(part, _)| !part.is_empty()).collect();
        let whole = offset_in(body, message.raw);
        if segment.range == (whole..whole + message.raw.len()) && message.raw != content {
            let names = [
                "tool_calls",
                "reasoning_content",
                "function_call",
                "thinking",
                "call_id",
                "name",
            ];
            let fields = scan::fields(message.raw, names).unwrap_or_default();
            // A message's `name` is its speaker; with a `call_id` it is the called function, which is rendered.
            let [.., call_id, name] = fields;
            let rendered = fields.into_iter().take(names.len() - 2);
            let rendered = rendered.chain([name.filter(|_| call_id.is_some())]);
            found.extend(rendered.flatten().map(|value| (value, false)));
        }
        found
    }
}

/// Appends to `all` the texts in a list of content parts, each with `true`, and other values, each with `false`. Beyond
/// [`MAX_PARTS`], the rest of the list is one value.
fn parts<'a>(content: &'a str, all: &mut Vec<(&'a str, bool)>) {
    let mut rest = None;
    // A syntax error ends the list, as the bound does.
    let _ = Scan::new(content).list(|scan| {
        let start = scan.next();
        if all.len() >= MAX_PARTS {
            rest = content.get(start..content.len().saturating_sub(1));
            return Err(scan::Bad(start));
        }
        let element = scan.value()?;
        let [text, nested] = scan::fields(element, ["text", "content"]).unwrap_or_default();
        match (text.and_then(inner_of), nested) {
            (Some(text), _) => all.push((text, true)),
            (None, Some(nested)) => match inner_of(nested) {
                Some(text) => all.push((text, true)),
                // Lists are searched one level deep, as for documents.
                None => {
                    for element in Scan::new(nested).elements().unwrap_or_default() {
                        let [text] = scan::fields(element, ["text"]).unwrap_or_default();
                        all.push(match text.and_then(inner_of) {
                            Some(text) => (text, true),
                            None => (element, false),
                        });
                    }
                }
            },
            (None, None) => all.push(match inner_of(element) {
                Some(text) => (text, true),
                None => (element, false),
            }),
        }
        Ok(())
    });
    all.extend(rest.map(|rest| (rest, false)));
}

/// The maximum number of texts of a message that become separate pieces of the prompt; the rest of the message is one
/// piece.
const MAX_PARTS: usize = 4_096;

/// Returns the pieces (tools, documents, sentences) of a prompt that an engine's cache distinguishes, in order, each
/// with its kind, hash and tokens.
#[must_use]
pub fn sent(parsed: &Parsed<'_>, segments: &Segments) -> Vec<(SegmentKind, Retrieved)> {
    let body = parsed.text;
    let mut pieces = Vec::with_capacity(segments.list.len() * 2);
    let mut texts = MessageTexts::default();
    let mut bytes = 0_u64;
    for segment in &segments.list {
        let raw = body.get(segment.range.clone()).unwrap_or_default();
        let mut add = |kind: SegmentKind, hash: u64, length: usize| {
            let end = bytes + length as u64;
            pieces.push((kind, Retrieved::piece(hash, tokens_between(bytes, end))));
            bytes = end;
        };
        match segment.kind {
            SegmentKind::Tool => {
                let hash = seeded(Shape::of(raw).in_order, b"tool");
                add(segment.kind, hash, raw.len());
            }
            SegmentKind::Document => {
                let hash = seeded(segment.hash, b"document");
                add(segment.kind, hash, segment.tokens as usize * 4);
            }
            kind => {
                let message = segment
                    .message
                    .and_then(|at| parsed.messages.get(at as usize));
                let Some(message) = message else { continue };
                let cut = cut_of(segment, false);
                for (text, is_text) in texts.of(body, message, segment) {
                    let seed = segment.role as u64 + if is_text { 3 } else { 13 };
                    let cut = if is_text { cut } else { SplitAt::Whole };
                    for unit in units(text, cut) {
                        let unit = text.get(unit).unwrap_or_default();
                        add(kind, xxh3_64_with_seed(unit.as_bytes(), seed), unit.len());
                    }
                }
            }
        }
    }
    pieces
}

/// Where a text of a prompt is split into units (lines or sentences), which are compared separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitAt {
    /// Nowhere: the text is one unit.
    Whole,
    /// After line breaks and at ends of sentences.
    Sentences,
    /// After line breaks, at ends of sentences and after colons, so that the words before a question are separate from
    /// it.
    Labels,
}

/// Splits a text into units (lines or sentences) at the places `cut`, and returns their adjacent ranges. Each unit
/// includes the white space that follows. At most [`MAX_UNITS`]; the last one holds the rest of the text.
pub(super) fn units(text: &str, cut: SplitAt) -> SmallVec<[Range<usize>; 16]> {
    let bytes = text.as_bytes();
    let mut units = SmallVec::new();
    let mut start = 0;
    let mut at = 0;
    while at < bytes.len() && cut != SplitAt::Whole && units.len() + 1 < MAX_UNITS {
        let Some(&byte) = bytes.get(at) else { break };
        let next = bytes.get(at + 1).copied();
        let is_break = |at: usize| {
            bytes.get(at) == Some(&b'\n')
                || bytes.get(at) == Some(&b'\\') && bytes.get(at + 1) == Some(&b'n')
        };
        let ends = if is_break(at) {
            true
        } else if byte == b'\\' {
            at += 2;
            continue;
        } else {
            let is_sentence = matches!(byte, b'.' | b'!' | b'?') && at - start >= SHORTEST_SENTENCE;
            let is_label = byte == b':' && cut == SplitAt::Labels;
            (is_sentence || is_label) && next == Some(b' ')
        };
        if !ends {
            at += 1;
            continue;
        }
        if !is_break(at) {
            at += 1;
        }
        // The white space that follows belongs to the unit.
        loop {
            if is_break(at) {
                at += if bytes.get(at) == Some(&b'\n') { 1 } else { 2 };
            } else if bytes.get(at) == Some(&b' ') {
                at += 1;
            } else {
                break;
            }
        }
        units.push(start..at);
        start = at;
    }
    if start < text.len() {
        units.push(start..text.len());
    }
    units
}

/// The maximum number of units (lines or sentences) into which one text is split.
const MAX_UNITS: usize = 256;

/// The minimum length of a sentence in bytes, so that an abbreviation such as `e.g. this` ends none.
const SHORTEST_SENTENCE: usize = 12;

/// Returns the documents of a body in the order in which [`Segment::index`] numbers them, so that it is an index in
/// this list.
pub(super) fn documents<'p, 'a>(parsed: &'p Parsed<'a>) -> Vec<&'p FoundDocument<'a>> {
    let mut found: Vec<&FoundDocument<'_>> = Vec::new();
    if let Some(front) = &parsed.front {
        found.extend(&front.found);
    }
    for (at, message) in parsed.messages.iter().enumerate() {
        if let Some((target, group)) = &parsed.rendered
            && *target == at
        {
            found.extend(&group.found);
        }
        found.extend(message.ordered().flat_map(|group| &group.found));
    }
    found
}

/// Returns the estimated tokens of the bytes from `start` to `end` of a prompt, rounded so that adjacent parts add up
/// exactly.
pub(super) fn tokens_between(start: u64, end: u64) -> u32 {
    let upto = |bytes: u64| estimate_tokens(usize::try_from(bytes).unwrap_or(usize::MAX));
    upto(end).saturating_sub(upto(start))
}

/// Returns where the text of a segment (tool, document or text) is split into sentences or lines. `holds_documents` is
/// true if the segment's message has documents.
pub(super) fn cut_of(segment: &Segment, holds_documents: bool) -> SplitAt {
    if segment.kind == SegmentKind::System || segment.role == Role::System {
        SplitAt::Sentences
    } else if holds_documents {
        SplitAt::Labels
    } else {
        SplitAt::Whole
    }
}

/// Two hashes of a JSON value: one in the order of its keys, and one independent of the order of keys and of sets'
/// elements. Both ignore white space between values, since an engine renders the value itself.
#[derive(Clone, Copy)]
struct Shape {
    in_order: u64,
    sorted: u64,
}

impl Shape {
    /// Returns the hashes of a JSON value. Reads each byte once; a value that is not valid JSON is hashed as bytes.
    fn of(raw: &str) -> Self {
        let read = Self::value(&mut Scan::new(raw), raw, false, 0);
        read.unwrap_or_else(|_| Self::leaf(raw.trim_ascii()))
    }

    fn leaf(raw: &str) -> Self {
        Self::empty(xxh3_64_with_seed(raw.as_bytes(), 7))
    }

    fn empty(seed: u64) -> Self {
        Self {
            in_order: seed,
            sorted: seed,
        }
    }

    /// Returns the hashes of the next value of `text`. If `is_set` is true and the value is an array, the order of its
    /// elements has no meaning.
    fn value(scan: &mut Scan<'_>, text: &str, is_set: bool, depth: u32) -> Result<Self, scan::Bad> {
        let start = scan.next();
        let first = text.as_bytes().get(start).filter(|_| depth < MAX_DEPTH);
        match first {
            Some(b'{') => {
                let mut sum = Self::empty(1);
                scan.object(|scan, name| {
                    // A cache marker is not part of the content.
                    if name == "cache_control" {
                        return scan.value().map(drop);
                    }
                    let names_sets = matches!(name, "required" | "dependentRequired");
                    let held = Self::value(scan, text, names_sets || is_set, depth + 1)?;
                    let named = |held: u64| xxh3_64_with_seed(name.as_bytes(), held);
                    sum.in_order = behind(sum.in_order, named(held.in_order));
                    sum.sorted = beside(sum.sorted, named(held.sorted));
                    Ok(())
                })?;
                Ok(sum)
            }
            Some(b'[') => {
                let mut sum = Self::empty(2);
                scan.list(|scan| {
                    let held = Self::value(scan, text, false, depth + 1)?;
                    sum.in_order = behind(sum.in_order, held.in_order);
                    sum.sorted = match is_set {
                        true => beside(sum.sorted, held.sorted),
                        false => behind(sum.sorted, held.sorted),
                    };
                    Ok(())
                })?;
                Ok(sum)
            }
            _ => Ok(Self::leaf(scan.value()?.trim_ascii())),
        }
    }
}

fn behind(sum: u64, item: u64) -> u64 {
    xxh3_64_with_seed(&item.to_le_bytes(), sum)
}

fn beside(sum: u64, item: u64) -> u64 {
    sum.wrapping_add(xxh3_64_with_seed(&item.to_le_bytes(), 11))
}

/// The maximum depth of nesting at which lists and objects are parsed; deeper values are hashed as bytes.
const MAX_DEPTH: u32 = 24;

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, cut: SplitAt) -> Vec<&str> {
        units(text, cut)
            .into_iter()
            .map(|unit| &text[unit])
            .collect()
    }

    #[test]
    fn units_lie_side_by_side_and_end_behind_lines_and_sentences() {
        let text = r"You are a helpful one. Cite, e.g. pages.\n\n  Time: 14:03\nGo";
        let units = cut(text, SplitAt::Sentences);
        assert_eq!(
            units,
            [
                "You are a helpful one. ",
                r"Cite, e.g. pages.\n\n  ",
                r"Time: 14:03\n",
                "Go"
            ]
        );
        assert_eq!(cut(text, SplitAt::Whole), [text]);
        assert_eq!(
            cut(r"Question: Why?\nAnswer:", SplitAt::Labels),
            ["Question: ", r"Why?\n", "Answer:"]
        );
        assert!(cut("", SplitAt::Sentences).is_empty());
        let many = "a\\n".repeat(1_000);
        assert_eq!(cut(&many, SplitAt::Sentences).concat(), many);
        assert_eq!(cut(&many, SplitAt::Sentences).len(), MAX_UNITS);
    }

    #[test]
    fn a_tool_is_the_same_with_its_keys_and_its_required_ones_in_another_order() {
        let one = tool(
            r#"{"type":"function","function":{"name":"f","parameters":{"required":["a","b"],"enum":["x","y"]}}}"#,
        );
        let other = tool(
            r#"{"function":{"parameters":{"enum":["x","y"],"required":["b","a"]},"name":"f"},"type":"function"}"#,
        );
        assert_eq!((one.same, one.name), (other.same, other.name));
        assert_ne!(one.hash, other.hash);
        let enums = tool(
            r#"{"type":"function","function":{"name":"f","parameters":{"required":["a","b"],"enum":["y","x"]}}}"#,
        );
        assert_ne!(one.same, enums.same);
        let spaced = tool(
            r#"{"type": "function", "function": {"name": "f", "parameters":{"required":["a","b"],"enum":["x","y"]}}}"#,
        );
        assert_eq!(
            one.hash, spaced.hash,
            "white space between values is not rendered"
        );
    }

    #[test]
    fn a_deep_value_ends() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let deeper = format!(r#"{{"a":{deep}}}"#);
        assert_ne!(Shape::of(&deep).sorted, Shape::of(&deeper).sorted);
    }
}
