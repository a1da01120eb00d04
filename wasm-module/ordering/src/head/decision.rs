//! The changes to a head, as data: ranges of the client's body and their replacements.

use super::report::HeadReport;
use crate::body::edit::replaced;
use crate::body::{Chain, Parsed, range_in};
use std::borrow::Cow;
use std::ops::Range;

/// The changes to a head. All ranges are byte ranges of the client's body.
#[derive(Debug, Default)]
pub(crate) struct Decision<'a> {
    /// For each changed element of `tools`: its range, and the tool to write there instead, as JSON.
    pub(crate) tools: Vec<(Range<usize>, Cow<'a, str>)>,
    /// Ranges to remove, sorted, with a gap between any two.
    pub(crate) removed: Vec<Range<usize>>,
    /// Spans that are replaced by the conversation's first value.
    pub(crate) frozen: Vec<Frozen<'a>>,
    /// Spans that move into the newest user message; `None` if nothing moves and nothing is frozen.
    pub(crate) moved: Option<Moved>,
    pub(crate) report: HeadReport,
}

/// A volatile span whose first value in the conversation is forwarded at every turn.
#[derive(Clone, Debug)]
pub(crate) struct Frozen<'a> {
    pub(crate) range: Range<usize>,
    /// The span's value in this request, escaped as in a JSON string.
    pub(crate) words: &'a str,
}

/// Volatile spans that are written into the newest user message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Index of the message.
    pub(crate) message: u32,
    /// The spans, one a line, escaped as in a JSON string. Empty if spans are only frozen.
    pub(crate) words: Box<str>,
    /// Hash of `words` and of the frozen spans' values.
    pub(crate) hash: u64,
    /// A hash of each span, frozen ones included.
    pub(crate) spans: Box<[u64]>,
}

impl Decision<'_> {
    /// Returns whether the decision changes the body.
    pub(crate) fn writes(&self) -> bool {
        !self.tools.is_empty()
            || !self.removed.is_empty()
            || !self.frozen.is_empty()
            || self.moved.is_some()
    }

    /// Returns the body's `tools` field as forwarded, in JSON; `None` if the tools are unchanged.
    pub(crate) fn tools_field(&self, parsed: &Parsed<'_>) -> Option<String> {
        let field = parsed.start.field.filter(|_| !self.tools.is_empty())?;
        let tools = self.tools.iter();
        let tools = tools.map(|(slot, tool)| (slot.clone(), &**tool));
        Some(replaced(parsed.text, range_in(parsed.text, field), tools))
    }

    /// Returns the removed and frozen ranges, which the hashes of chats and scopes leave out.
    pub(crate) fn unhashed_ranges(&self) -> Vec<Range<usize>> {
        let frozen = self.frozen.iter().map(|span| span.range.clone());
        merged(self.removed.iter().cloned().chain(frozen).collect())
    }
}

/// The order in which a tool's keys (and set-like arrays) or a set's tools are forwarded, for other workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// Hash of the tool, independent of the order of its members; or the key of the set of tools.
    pub(crate) canonical: u64,
    /// For each list of two or more members, in the canonical order of lists: its members in the order forwarded, each
    /// as its rank among the list's sorted keys.
    pub(crate) order: Box<[u8]>,
}

/// A forwarded user message with contexts that its client will omit later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContextMessage {
    /// The key of the message without its contexts.
    pub(crate) key: u128,
    /// The message's content as forwarded, encoded in JSON.
    pub(crate) content: Box<str>,
    /// Range in `content` of the text with contexts and question, inside its quotes.
    pub(crate) text: Range<u32>,
    /// Estimated tokens of the message.
    pub(crate) tokens: u32,
}

/// A chat's continuation after a [`ContextMessage`], which entitles the chat to that message's contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) key: u128,
    /// The chain of the message that follows.
    pub(crate) next: Chain,
}

/// Sorts ranges, merges those that touch or overlap, and drops empty ones.
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
