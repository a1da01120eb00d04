//! Finds the parts of a document's block that depend on the request: the document's number among the results, and its
//! rank, score or distance.
//!
//! ```text
//!   <source id="2" score="0.71">Text.</source> [CONTEXT 1]:\nText.\n[END CONTEXT 1] <doc id="a">\nRank: 2\nText.</doc>
//!               ^ number  ^^^^ score                    ^ number            ^ again              ^^^^^^^ score
//! ```
//!
//! The same document found for another question has other values, so its block would differ. Scores are looked for
//! where templates write them: in the attributes of the opening tag, on the first lines (metadata as `key: value` or
//! `<key>value</key>`), and on the last line. Only numbers under known names count.

use super::found::{FoundDocument, Source};
use super::search::{find, find_last, find_words, is_escape, pass, trimmed};
use crate::work::looked;
use smallvec::SmallVec;
use std::ops::Range;

/// The parts of a document's block (the document with its tags) that depend on the request: the document's number and
/// scores. All ranges are relative to the block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranks<'a> {
    /// The document's number by position in the request; empty if it has none, or has a name that is not a number.
    pub(crate) number: &'a str,
    /// The ranges of the document's number in its block (the document with its tags): none, one, or two if it is
    /// repeated.
    pub(crate) numbers: SmallVec<[Range<usize>; 2]>,
    /// For each score (rank, score or distance): the range of the document's block (with its tags) to remove, and the
    /// text of the score.
    pub(crate) scores: SmallVec<[(Range<usize>, &'a str); 2]>,
}

impl<'a> Ranks<'a> {
    /// Finds the number and the scores in a document's block (with its tags), which depend on the request; `None` if
    /// the block has neither or cannot be read, or if the gateway renders the document. O(opening tag + first lines).
    pub(crate) fn of(found: &FoundDocument<'a>) -> Option<Self> {
        let Source::Whole(block) = found.source else {
            return None;
        };
        let mut ranks = Self::default();
        let words = if block.starts_with('<') {
            let (attributes, end) = attributes(block)?;
            ranks.take_attributes(block, &attributes);
            // The document's text ends before the closing tag.
            end..find_last(block, b'<').filter(|last| *last >= end)?
        } else {
            let numbers = found.numbered.as_ref()?.numbers();
            ranks.number = block.get(numbers.first()?.clone())?;
            ranks.numbers = numbers;
            // The document's text begins after the line with the number.
            let line = ranks.numbers.first()?.end;
            let rest = block.get(line..)?;
            first_break(rest).map_or(line, |end| line + end + BREAK.len())..block.len()
        };
        ranks.take_lines(block, words);
        let says = !ranks.numbers.is_empty() || !ranks.scores.is_empty();
        says.then_some(ranks)
    }

    fn take_attributes(&mut self, block: &'a str, attributes: &[Attribute]) {
        let named = |names: &[&str]| {
            let key = |attribute: &&Attribute| {
                let key = block.get(attribute.key.clone()).unwrap_or_default();
                names.iter().any(|name| name.eq_ignore_ascii_case(key))
            };
            attributes.iter().find(key)
        };
        // If the attribute `id` is not a number, it is the document's own name.
        let number = named(&["id"]).or_else(|| named(NUMBERS));
        if let Some(number) = number
            && let Some(digits) = block.get(number.value.clone())
            && is_number(digits)
        {
            self.number = digits;
            self.numbers.push(number.value.clone());
        }
        for attribute in attributes {
            let key = block.get(attribute.key.clone()).unwrap_or_default();
            let value = block.get(attribute.value.clone()).unwrap_or_default();
            if is_score(key) && is_figure(value) {
                let words = block.get(attribute.key.start..attribute.end);
                let cut = attribute.start..attribute.end;
                self.scores.push((cut, words.unwrap_or_default()));
            }
        }
    }

    fn take_lines(&mut self, block: &'a str, words: Range<usize>) {
        let mut at = words.start;
        // If text follows the opening tag on its line, there is no metadata.
        let rest = block.get(pass_blanks(block, at)..).unwrap_or_default();
        let lines = if rest.starts_with(BREAK) || !block.starts_with('<') {
            MAX_LINES
        } else {
            0
        };
        for nth in 0..lines {
            let end = words.end.min(at + MAX_LINE_BYTES);
            let window = block
                .get(at..block.floor_char_boundary(end))
                .unwrap_or_default();
            let Some(length) = first_break(window) else {
                break;
            };
            let line = at..at + length;
            let behind = line.end + BREAK.len();
            match self.line(block, &line, behind) {
                Line::Score | Line::Field => {}
                // The rest of the opening tag's line.
                Line::Blank if nth == 0 => {}
                Line::Blank | Line::Text => break,
            }
            at = behind;
        }
        // Then the last line, unless it is one of the first lines.
        let from = words.end.saturating_sub(MAX_LINE_BYTES).max(at);
        let tail = block
            .get(block.ceil_char_boundary(from)..words.end)
            .unwrap_or_default();
        let text = trimmed_breaks(block, words.end - tail.len()..words.end);
        let tail = block.get(text.clone()).unwrap_or_default();
        // Most texts end with other characters, so this check saves the work below.
        if !tail.ends_with(|last: char| last.is_ascii_digit() || matches!(last, '%' | ')' | '>')) {
            return;
        }
        if let Some(cut) = last_break(tail) {
            let line = text.start + cut + BREAK.len()..text.end;
            let words = block.get(line).unwrap_or_default();
            if is_score_line(words) {
                self.scores.push((text.start + cut..text.end, words));
            }
        }
    }

    /// Returns the kind of a line at the beginning of a document. If it is a score, records the range to remove and the
    /// score's text. `behind` is the start of the next line.
    fn line(&mut self, block: &'a str, line: &Range<usize>, behind: usize) -> Line {
        let words = trimmed(block, line.clone());
        let text = block.get(words).unwrap_or_default();
        if text.is_empty() {
            return Line::Blank;
        }
        if is_score_line(text) {
            self.scores.push((line.start..behind, text));
            return Line::Score;
        }
        let is_field = field(text).is_some() || element(text).is_some();
        if is_field { Line::Field } else { Line::Text }
    }
}

/// The kind of a line at the beginning of a document.
enum Line {
    Blank,
    Score,
    /// A line of metadata that is not a score, such as `key: value` or `<key>value</key>`.
    Field,
    Text,
}

/// An attribute with a value in a document's opening tag, as ranges of the document's block (with its tags).
#[derive(Debug)]
struct Attribute {
    /// Byte offset in the block at which the white space before the attribute starts.
    start: usize,
    key: Range<usize>,
    value: Range<usize>,
    /// Byte offset in the block at which the attribute ends, after its closing quote.
    end: usize,
}

/// Returns the attributes with values of a block's opening tag, and the position after the tag; `None` if the tag
/// cannot be read.
fn attributes(block: &str) -> Option<(SmallVec<[Attribute; 4]>, usize)> {
    let mut found = SmallVec::new();
    let is_of_key = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    let mut at = pass(block, 1, is_of_key);
    loop {
        let start = at;
        at = pass_breaks(block, at);
        let byte = *block.as_bytes().get(at)?;
        if byte == b'>' {
            return Some((found, at + 1));
        }
        let key = at..pass(block, at, is_of_key);
        at = key.end;
        if key.is_empty() || found.len() >= MAX_ATTRIBUTES {
            return None;
        }
        if block.as_bytes().get(at) != Some(&b'=') {
            // An attribute without a value.
            continue;
        }
        at += 1;
        let rest = block.get(at..)?;
        let quote = QUOTES.iter().find(|quote| rest.starts_with(**quote));
        let (value, end) = match quote {
            Some(quote) => {
                let value = at + quote.len()..find_words(block, at + quote.len(), quote)?;
                let end = value.end + quote.len();
                (value, end)
            }
            None => {
                let is_of_value =
                    |byte: u8| byte != b'>' && byte != b'\\' && !byte.is_ascii_whitespace();
                let value = at..pass(block, at, is_of_value);
                let end = value.end;
                (value, end)
            }
        };
        at = end;
        found.push(Attribute {
            start,
            key,
            value,
            end,
        });
    }
}

/// Returns whether a line consists of a score alone: `score: 0.71`, `- **Rank:** 2`, `(distance = 0.2)`,
/// `<score>1</score>`.
fn is_score_line(line: &str) -> bool {
    let line = line
        .strip_prefix('(')
        .and_then(|line| line.strip_suffix(')'))
        .unwrap_or(line);
    let pair = field(line).or_else(|| element(line));
    pair.is_some_and(|(key, value)| is_score(key) && is_figure(value))
}

/// Returns the key and the value of a line `key: value` or `key = value`, which may be a list item or bold; `None` if
/// the line has another form.
fn field(line: &str) -> Option<(&str, &str)> {
    let line = line
        .strip_prefix("- ")
        .or_else(|| line.strip_prefix("* "))
        .unwrap_or(line);
    let (line, is_bold) = match line.strip_prefix("**") {
        Some(line) => (line, true),
        None => (line, false),
    };
    let is_of_key = |byte: u8| byte.is_ascii_alphanumeric() || b"_- ".contains(&byte);
    let end = pass(line, 0, is_of_key);
    let key = line.get(..end)?;
    let rest = line.get(end..)?;
    let rest = rest.strip_prefix("**").filter(|_| is_bold).unwrap_or(rest);
    let value = rest.strip_prefix(':').or_else(|| rest.strip_prefix('='))?;
    let value = value
        .strip_prefix("**")
        .filter(|_| is_bold)
        .unwrap_or(value);
    let key = key.get(trimmed(key, 0..key.len()))?;
    let value = value.get(trimmed(value, 0..value.len()))?;
    (!key.is_empty() && key.len() <= MAX_KEY_BYTES && !value.is_empty()).then_some((key, value))
}

/// Returns the name and the text of a line `<name>text</name>`; `None` if the line has another form.
fn element(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix('<')?;
    let close = find(rest, 0, b'>')?;
    let (name, text) = (rest.get(..close)?, rest.get(close + 1..)?);
    let text = text
        .strip_suffix('>')?
        .strip_suffix(name)?
        .strip_suffix("</")?;
    let text = text.get(trimmed(text, 0..text.len()))?;
    (!name.is_empty() && name.len() <= MAX_KEY_BYTES).then_some((name, text))
}

/// Returns whether a key of metadata names a score: words for scores and their qualifiers, such as `vector_score`,
/// separated by `_`, `-` or spaces.
fn is_score(key: &str) -> bool {
    looked(key.len());
    let mut words: SmallVec<[&str; 4]> = SmallVec::new();
    let mut start = 0;
    for (at, byte) in key.bytes().enumerate() {
        if matches!(byte, b'_' | b'-' | b' ') {
            words.extend(key.get(start..at));
            start = at + 1;
        }
    }
    words.extend(key.get(start..));
    let is = |names: &[&str], word: &&str| names.iter().any(|name| name.eq_ignore_ascii_case(word));
    words.iter().any(|word| is(SCORES, word))
        && (words.iter()).all(|word| is(SCORES, word) || is(QUALIFIERS, word))
}

/// Returns whether a metadata value is a number: `0.71`, `-1.5e-3`, `83 %`, `2/5`.
fn is_figure(value: &str) -> bool {
    looked(value.len());
    let is_of_number = |byte: u8| byte.is_ascii_digit() || b".,-+eE%/ ".contains(&byte);
    value.len() <= MAX_FIGURE_BYTES
        && value.bytes().any(|byte| byte.is_ascii_digit())
        && value.bytes().all(is_of_number)
}

fn is_number(digits: &str) -> bool {
    !digits.is_empty()
        && digits.len() <= MAX_DIGITS
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && (digits == "0" || !digits.starts_with('0'))
}

/// Returns the position of the first line break, written as the escape `\n` of a JSON string; `None` if there is none.
fn first_break(text: &str) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = find_words(text, from, BREAK)?;
        if is_escape(text, at) {
            return Some(at);
        }
        from = at + 1;
    }
}

/// Returns the position of the last line break, written as the escape `\n` of a JSON string; `None` if there is none.
fn last_break(text: &str) -> Option<usize> {
    let mut end = text.len();
    loop {
        let at = find_last(text.get(..end)?, b'\\')?;
        let is_one = text.get(at..)?.starts_with(BREAK) && is_escape(text, at);
        if is_one {
            return Some(at);
        }
        end = at;
    }
}

fn pass_blanks(text: &str, at: usize) -> usize {
    pass(text, at, |byte| byte == b' ')
}

/// Returns the position after the white space that begins at `at`, literal spaces or escapes as in a JSON string.
fn pass_breaks(text: &str, mut at: usize) -> usize {
    loop {
        at = pass_blanks(text, at);
        let rest = text.get(at..).unwrap_or_default();
        if !SPACES.iter().any(|space| rest.starts_with(space)) {
            return at;
        }
        at += BREAK.len();
    }
}

/// Returns `range` of `text` without the white space at its end, which may be escaped as in a JSON string.
fn trimmed_breaks(text: &str, mut range: Range<usize>) -> Range<usize> {
    loop {
        range = trimmed(text, range);
        let rest = text.get(range.clone()).unwrap_or_default();
        let cut = SPACES.iter().find_map(|space| rest.strip_suffix(space));
        match cut.filter(|cut| !cut.ends_with('\\')) {
            Some(cut) => range.end = range.start + cut.len(),
            None => return range,
        }
    }
}

/// Names of attributes, other than `id`, whose value may be a document's number by position.
const NUMBERS: &[&str] = &["index", "number", "position", "idx", "n", "no"];

/// Words for scores. A key of metadata names a score only if it contains at least one of them.
const SCORES: &[&str] = &[
    "score",
    "rank",
    "distance",
    "similarity",
    "relevance",
    "relevancy",
    "rerank",
    "reranker",
];

/// Words that may accompany a word of `SCORES` in the name of a score.
const QUALIFIERS: &[&str] = &[
    "vector",
    "search",
    "retrieval",
    "cosine",
    "semantic",
    "bm25",
    "hybrid",
    "rrf",
    "final",
    "match",
    "l2",
    "euclidean",
    "dense",
    "sparse",
];

/// Quotation marks as they appear in a text that is inside a JSON string.
const QUOTES: [&str; 2] = [r#"\""#, "'"];

/// The escape sequence of a line break in a JSON string.
const BREAK: &str = r"\n";

/// The escape sequences of white space in a JSON string.
const SPACES: [&str; 3] = [BREAK, r"\r", r"\t"];

/// The maximum number of attributes in a document's opening tag; in a tag with more, neither numbers nor scores are
/// found.
const MAX_ATTRIBUTES: usize = 16;

/// The maximum number of lines that are read as metadata before a document's text.
const MAX_LINES: usize = 10;

/// The maximum length of a line of metadata in a document, in bytes; a longer line ends the metadata.
const MAX_LINE_BYTES: usize = 160;

/// The maximum length of the key of a line of metadata in a document, in bytes.
const MAX_KEY_BYTES: usize = 32;

/// The maximum length of the number in a document's score, in bytes.
const MAX_FIGURE_BYTES: usize = 24;

/// The maximum number of digits in a document's number by position; a longer number counts as a name.
const MAX_DIGITS: usize = 4;
