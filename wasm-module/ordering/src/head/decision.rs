//! The changes to a head, as data: ranges of the client's body and their replacements.

use super::report::HeadReport;
use crate::body::edit::replaced;
use crate::body::{Chain, Parsed, range_in};
use std::borrow::Cow;
use std::ops::Range;

/// The changes to a head. Its ranges are of the client's body.
#[derive(Debug, Default)]
pub(crate) struct Decision<'a> {
    /// The places in the array of tools whose bytes change: the range to replace, and the tool to write there, as JSON.
    pub(crate) tools: Vec<(Range<usize>, Cow<'a, str>)>,
    /// Ranges to remove, in order; no two touch.
    pub(crate) removed: Vec<Range<usize>>,
    /// Spans that keep their first value.
    pub(crate) frozen: Vec<Frozen<'a>>,
    /// Words to write into the newest user message.
    pub(crate) moved: Option<Moved>,
    pub(crate) report: HeadReport,
}

/// A span that keeps its first value.
#[derive(Clone, Debug)]
pub(crate) struct Frozen<'a> {
    pub(crate) range: Range<usize>,
    /// The span's words in this request, as written.
    pub(crate) words: &'a str,
}

/// Words to write into the newest user message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// The index of that message.
    pub(crate) message: u32,
    /// The words, escaped as in a JSON string, one span a line. Empty if spans are only frozen.
    pub(crate) words: Box<str>,
    /// Hash of the words and of the frozen spans' values.
    pub(crate) hash: u64,
    /// A hash of each span, frozen ones included.
    pub(crate) spans: Box<[u64]>,
}

impl Decision<'_> {
    /// Returns whether the body changes.
    pub(crate) fn writes(&self) -> bool {
        !self.tools.is_empty()
            || !self.removed.is_empty()
            || !self.frozen.is_empty()
            || self.moved.is_some()
    }

    /// Returns the value of the body's tools field as forwarded, as JSON; `None` if the tools are unchanged.
    pub(crate) fn tools_field(&self, parsed: &Parsed<'_>) -> Option<String> {
        let field = parsed.start.field.filter(|_| !self.tools.is_empty())?;
        let tools = self.tools.iter();
        let tools = tools.map(|(slot, tool)| (slot.clone(), &**tool));
        Some(replaced(parsed.text, range_in(parsed.text, field), tools))
    }

    /// Returns the ranges excluded from the hashes of chats and scopes: removed and frozen ones.
    pub(crate) fn unknown(&self) -> Vec<Range<usize>> {
        let frozen = self.frozen.iter().map(|span| span.range.clone());
        merged(self.removed.iter().cloned().chain(frozen).collect())
    }
}

/// The order of the members of each list of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// Hash of the tool, independent of the order of its members.
    pub(crate) canonical: u64,
    /// For each list of two members or more, in the canonical order of lists: the ranks of its members in their current
    /// order.
    pub(crate) order: Box<[u8]>,
}

/// A forwarded user message with contexts that its client omits later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContextMessage {
    /// The key of the message without its contexts.
    pub(crate) key: u128,
    /// The message's content as forwarded, encoded in JSON.
    pub(crate) content: Box<str>,
    /// Range in `content` of the text with contexts and question, without quotes.
    pub(crate) text: Range<u32>,
    /// Estimated tokens of the message.
    pub(crate) tokens: u32,
}

/// The continuation of a chat after a [`ContextMessage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) key: u128,
    /// The chain of the message after it.
    pub(crate) next: Chain,
}

/// Sorts ranges and merges those that touch or overlap.
pub(crate) fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    crate::sort::sort_by_key(&mut ranges, |range| (range.start, range.end));
    let mut out: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        match out.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}
