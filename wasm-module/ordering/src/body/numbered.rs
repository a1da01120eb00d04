//! Documents that their clients number by their positions in the request.
//!
//! ```text
//!   <source id="2" name="a.md">Text.</source>       [CONTEXT 1]:\nText.\n[END CONTEXT 1]
//!               ^ number       ^^^^^ words                   ^         ^^^^^              ^ again
//! ```
//!
//! Answers cite documents by these numbers, so each document keeps its number in every request. Documents that differ
//! only in their numbers are the same document: if an earlier turn has one, its text need not be sent again.

use super::search::{find_last, find_words};
use super::tags::Span;
use super::text::Text;
use crate::document::Fingerprint;
use crate::work::hashed;
use smallvec::SmallVec;
use std::ops::Range;

/// The ranges of a document's number and of its text, relative to the document's block (the document with its tags).
/// Only blocks with text have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Numbered {
    /// Range of the number in the block (the document with its tags); empty if the document has none.
    number: Range<u32>,
    /// Range, in the block (the document with its tags), of the number's repetition in the end tag; `None` if it is not
    /// repeated there.
    again: Option<Range<u32>>,
    words: Range<u32>,
    /// True if the document's text consists of passages that the client joined without separators.
    is_joined: bool,
}

/// The block (document with its tags) of a document that its client numbers by position, with the range of the number.
#[derive(Clone, Debug)]
pub(crate) struct NumberedBlock<'a> {
    pub(super) whole: &'a str,
    pub(super) numbered: Numbered,
}

impl Numbered {
    /// Returns, for each document at `spans` of the text, the ranges of its number (its id in the tag) and its text. If
    /// one has no text or an id that is not a number, returns `None` for all.
    pub(super) fn all(text: &Text<'_>, spans: &[Span]) -> Vec<Option<Self>> {
        let all: Option<Vec<Self>> = spans.iter().map(|span| Self::new(text, span)).collect();
        match all {
            Some(all) => all.into_iter().map(Some).collect(),
            None => vec![None; spans.len()],
        }
    }

    fn new(text: &Text<'_>, span: &Span) -> Option<Self> {
        let plain = &*text.plain;
        let start = span.whole.start;
        let id = span.id.clone();
        let is_tag = plain.get(start..)?.starts_with('<');
        let id = id.unwrap_or(start + usize::from(is_tag)..start + usize::from(is_tag));
        let number = plain.get(id.clone())?;
        if number.len() > MAX_DIGITS || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let block = plain.get(span.whole.clone())?;
        let end = span.whole.end;
        let (again, words) = if is_tag {
            let quote = plain.get(..id.start)?.ends_with('"');
            let rest = plain.get(id.end..end)?;
            let mut is_quoted = quote;
            let close = rest.bytes().position(|byte| {
                is_quoted ^= byte == b'"';
                byte == b'>' && !is_quoted
            })?;
            let last = find_last(block, b'<')?;
            (None, id.end + close + 1..start + last)
        } else if block.starts_with("[CONTEXT ") && !number.is_empty() {
            let closing = "\n[END CONTEXT ".len() + number.len() + 1;
            let again = end - 1 - number.len()..end - 1;
            (
                Some(again),
                id.end + "]:\n".len()..end.checked_sub(closing)?,
            )
        } else if block.starts_with("ID: ") {
            let mark = "└── Content:\n";
            let words = find_words(block, 0, mark)? + mark.len();
            (None, start + words..end)
        } else {
            // The text begins after the metadata, if there is any.
            let words = find_words(block, 0, "\n\n").map_or(0, |blank| blank + 2);
            (None, start + words..end)
        };
        let whole = text.source(&span.whole);
        let within = |range: &Range<usize>| {
            let range = text.source(range);
            let narrow = |at: usize| u32::try_from(at.checked_sub(whole.start)?).ok();
            let range = narrow(range.start)?..narrow(range.end)?;
            (range.start <= range.end).then_some(range)
        };
        Some(Self {
            number: within(&id)?,
            again: match again {
                Some(again) => Some(within(&again)?),
                None => None,
            },
            words: within(&words).filter(|words| !words.is_empty())?,
            is_joined: block.starts_with(JOINED),
        })
    }
}

impl Numbered {
    /// Returns the ranges of the number in the document's block (with its tags), including its repetition; empty if
    /// there is no number.
    pub(super) fn numbers(&self) -> SmallVec<[Range<usize>; 2]> {
        let numbers = [Some(self.number.clone()), self.again.clone()].into_iter();
        let numbers = numbers.flatten().filter(|number| !number.is_empty());
        numbers
            .map(|number| number.start as usize..number.end as usize)
            .collect()
    }
}

impl<'a> NumberedBlock<'a> {
    /// Returns the document's number in this request; empty if it has none.
    pub(crate) fn number(&self) -> &'a str {
        self.part(&self.numbered.number)
    }

    /// Returns a hash of the block (the document with its tags) without its number; it is the same wherever the client
    /// lists the document.
    pub(crate) fn identity(&self) -> Fingerprint {
        hashed(self.whole.len());
        Fingerprint::of(&self.parts().map(str::as_bytes))
    }

    /// Returns whether the two blocks (documents with their tags) are equal except for their numbers.
    pub(crate) fn is(&self, other: &NumberedBlock<'_>) -> bool {
        self.parts() == other.parts()
    }

    /// Returns the document's text without its tags, escaped as in a JSON string.
    pub(crate) fn words(&self) -> &'a str {
        self.part(&self.numbered.words)
    }

    /// Returns the document's text, escaped as in a JSON string, if it consists of passages that the client joined
    /// without separators (Dify); otherwise `None`.
    pub(crate) fn passages(&self) -> Option<&'a str> {
        self.numbered.is_joined.then_some(self.words())
    }

    /// Returns the document's block, tags included, with `words` in place of its text; `None` if that would not be
    /// shorter.
    pub(crate) fn with_words(&self, words: &str) -> Option<String> {
        let Range { start, end } = self.numbered.words;
        if words.len() >= end.saturating_sub(start) as usize {
            return None;
        }
        let before = self.whole.get(..start as usize)?;
        let behind = self.whole.get(end as usize..)?;
        Some([before, words, behind].concat())
    }

    /// Returns the block (the document with its tags) without its number, in three parts: before the number, between it
    /// and its repetition in the end tag, and after the repetition. If the number is not repeated, the last part is
    /// empty.
    fn parts(&self) -> [&'a str; 3] {
        let end = u32::try_from(self.whole.len()).unwrap_or(u32::MAX);
        let Numbered { number, again, .. } = &self.numbered;
        let again = again.clone().unwrap_or(end..end);
        [
            self.part(&(0..number.start)),
            self.part(&(number.end..again.start)),
            self.part(&(again.end..end)),
        ]
    }

    fn part(&self, range: &Range<u32>) -> &'a str {
        let range = range.start as usize..range.end as usize;
        self.whole.get(range).unwrap_or_default()
    }
}

/// The opening tag that Dify writes before passages that it joins without separators.
const JOINED: &str = "<context>\n";

/// The maximum number of digits in a document's number; a longer one counts as a name.
const MAX_DIGITS: usize = 4;
