//! The changes that stabilise a prompt's head (tools and system text), so that it begins like earlier prompts: ranges
//! of the client's body and their replacements.

use super::report::HeadReport;
use crate::body::edit::replaced;
use crate::body::{Chain, Parsed, range_in};
use std::borrow::Cow;
use std::ops::Range;

/// The changes that stabilise a prompt's head (tools and system text), so that it begins like earlier prompts. All
/// ranges are byte ranges of the client's body.
#[derive(Debug, Default)]
pub(crate) struct Decision<'a> {
    /// For each changed element of `tools`: its range, and the JSON of the tool to write there instead.
    pub(crate) tools: Vec<(Range<usize>, Cow<'a, str>)>,
    /// Ranges of the body to remove, such as volatile spans (texts that change between requests) that move; sorted,
    /// with a gap between any two.
    pub(crate) removed: Vec<Range<usize>>,
    /// Volatile spans (texts that change between requests) that are replaced by the value that they had in the
    /// conversation's first request.
    pub(crate) frozen: Vec<Frozen<'a>>,
    /// The volatile spans (texts that change between requests) that move into the newest user message or keep their
    /// first values. `None` if there are none of either, or if the body has no user message that can be written to.
    pub(crate) moved: Option<Moved>,
    pub(crate) report: HeadReport,
}

/// A volatile span (a text that changes between requests) of the system text that is not forwarded as it is: in its
/// place, every request of the conversation has the value that the span had in the first one.
#[derive(Clone, Debug)]
pub(crate) struct Frozen<'a> {
    pub(crate) range: Range<usize>,
    /// The text of the volatile span (a text that changes between requests) in this request, escaped as in a JSON
    /// string.
    pub(crate) words: &'a str,
}

/// The volatile spans of the system text (texts that change between requests) that are recorded with the newest user
/// message: (1) those that move into this message; (2) those that stay in the system text, replaced by the value that
/// they had in the conversation's first request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Index in the request of the user message into which the volatile spans (texts that change between requests) are
    /// written.
    pub(crate) message: u32,
    /// The text of the volatile spans (texts that change between requests) that move, one a line, escaped as in a JSON
    /// string. Empty if none moves.
    pub(crate) words: Box<str>,
    /// Hash of `words` and of the values, from the conversation's first request, of the volatile spans that stay in the
    /// system text.
    pub(crate) hash: u64,
    /// A hash of each volatile span (a text that changes between requests): first those that move into the user
    /// message, then those that stay in the system text with the value of the first request.
    pub(crate) spans: Box<[u64]>,
}

impl Decision<'_> {
    /// Returns whether the decision makes any change to the body.
    pub(crate) fn writes(&self) -> bool {
        !self.tools.is_empty()
            || !self.removed.is_empty()
            || !self.frozen.is_empty()
            || self.moved.is_some()
    }

    /// Returns the JSON of the body's field with the tools as it is forwarded; `None` if the tools are unchanged.
    pub(crate) fn tools_field(&self, parsed: &Parsed<'_>) -> Option<String> {
        let field = parsed.start.field.filter(|_| !self.tools.is_empty())?;
        let tools = self.tools.iter();
        let tools = tools.map(|(slot, tool)| (slot.clone(), &**tool));
        Some(replaced(parsed.text, range_in(parsed.text, field), tools))
    }

    /// Returns the ranges of removed texts and of texts that keep their first values, sorted. The hashes that identify
    /// chats and scopes (prompts before documents) leave these ranges out, so that they match requests with other
    /// values.
    pub(crate) fn unhashed_ranges(&self) -> Vec<Range<usize>> {
        let frozen = self.frozen.iter().map(|span| span.range.clone());
        merged(self.removed.iter().cloned().chain(frozen).collect())
    }
}

/// The order in which a tool's JSON keys (and the elements of its set-like arrays), or the tools of a set, are
/// forwarded. Workers send it to each other, so that all use the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// A hash of the tool that does not depend on the order of its JSON keys and set-like arrays; or, for the order of
    /// a set of tools, the key of that set.
    pub(crate) canonical: u64,
    /// For each list of two or more members (JSON keys, or elements of a set): its members in the order forwarded, each
    /// as its rank among the list's sorted members. The order of the lists does not depend on the client.
    pub(crate) order: Box<[u8]>,
}

/// A forwarded user message with contexts (retrieved documents) that its client will omit later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContextMessage {
    /// The key by which the message is found when the client sends it without its contexts (retrieved documents).
    pub(crate) key: u128,
    /// The message's content as forwarded, encoded in JSON.
    pub(crate) content: Box<str>,
    /// Range in `content` of the text that has the contexts (retrieved documents) and the question, inside its quotes.
    pub(crate) text: Range<u32>,
    /// Estimated tokens of the message as forwarded.
    pub(crate) tokens: u32,
}

/// A record that one chat continued after a [`ContextMessage`], whose contexts (retrieved documents) the client then
/// omitted, and received them again. They are restored in that chat's later requests too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The [`ContextMessage::key`] of the message whose contexts (retrieved documents) the chat received.
    pub(crate) key: u128,
    /// Hash of the chat up to and including the first message after the [`ContextMessage`] that is not a system
    /// message. It identifies the chat.
    pub(crate) next: Chain,
}

/// Returns the ranges sorted; those that touch or overlap are merged, and empty ones dropped.
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
