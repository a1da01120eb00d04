//! What is done with a head, as data: ranges of the client's body, and what stands there instead.

use super::report::HeadReport;
use crate::body::{Chain, Parsed, range_in};
use std::borrow::Cow;
use std::ops::Range;

/// What is done with a head. Its ranges are of the client's body.
#[derive(Debug, Default)]
pub(crate) struct Decision<'a> {
    /// Tools in each other's places.
    pub(crate) tools: Vec<(Range<usize>, Cow<'a, str>)>,
    /// What is taken out, side by side with nothing: in their order, none touches another.
    pub(crate) removed: Vec<Range<usize>>,
    /// Spans whose first value stays.
    pub(crate) frozen: Vec<Frozen<'a>>,
    /// What is written into the newest user message.
    pub(crate) moved: Option<Moved>,
    pub(crate) report: HeadReport,
}

/// A span whose first value stays.
#[derive(Clone, Debug)]
pub(crate) struct Frozen<'a> {
    pub(crate) range: Range<usize>,
    /// As written.
    pub(crate) words: &'a str,
}

/// What is written into the newest user message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// The index of that message.
    pub(crate) message: u32,
    /// As between the quotes of a JSON string: spans on lines of their own. Empty where spans are only frozen.
    pub(crate) words: Box<str>,
    /// A hash of the words, and of the values of frozen spans.
    pub(crate) hash: u64,
    /// A hash of each span, frozen ones too.
    pub(crate) spans: Box<[u64]>,
}

impl Decision<'_> {
    /// Whether anything of the body is written anew.
    pub(crate) fn writes(&self) -> bool {
        !self.tools.is_empty()
            || !self.removed.is_empty()
            || !self.frozen.is_empty()
            || self.moved.is_some()
    }

    /// The field of the tools as it is sent; `None`: as it came.
    pub(crate) fn tools_field(&self, parsed: &Parsed<'_>) -> Option<String> {
        let field = parsed.start.field.filter(|_| !self.tools.is_empty())?;
        let start = range_in(parsed.text, field).start;
        let mut out = String::with_capacity(field.len());
        let mut done = 0;
        for (slot, tool) in &self.tools {
            out.push_str(field.get(done..slot.start.checked_sub(start)?)?);
            out.push_str(tool);
            done = slot.end.checked_sub(start)?;
        }
        out.push_str(field.get(done..)?);
        Some(out)
    }

    /// What chats and scopes are not known by: what is taken out, and what is frozen.
    pub(crate) fn unknown(&self) -> Vec<Range<usize>> {
        let frozen = self.frozen.iter().map(|span| span.range.clone());
        merged(self.removed.iter().cloned().chain(frozen).collect())
    }
}

/// The order of the members of each list of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// Of the tool, whatever order its members stand in.
    pub(crate) canonical: u64,
    /// For each list of two members or more, in the canonical order of lists, the ranks of its members as they stand.
    pub(crate) order: Box<[u8]>,
}

/// A user message as it was sent to be ordered: with contexts that its client leaves out later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContextMessage {
    /// By what it is known without them.
    pub(crate) key: u128,
    /// Its content, as written.
    pub(crate) content: Box<str>,
    /// The text in it that contexts and question stand in, without quotes.
    pub(crate) text: Range<u32>,
    /// Its estimated tokens.
    pub(crate) tokens: u32,
}

/// How a chat went on behind a [`ContextMessage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) key: u128,
    /// The chain of the message that follows it.
    pub(crate) next: Chain,
}

/// Ranges in their order, those that touch or overlap as one.
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
