//! The report on a head: changes made, or only proposed.

use std::ops::Range;

/// The changes to a request's head; if not applied, those that would have been made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadReport {
    /// Whether the body was changed. If not, mode `apply` would have made the changes.
    pub applied: bool,
    /// Number of tools that changed position.
    pub tools_moved: u32,
    /// Tools whose keys changed order.
    pub tools_reformed: u32,
    /// Spans that moved behind the documents.
    pub moved: u32,
    /// The part of `moved` that no pattern matched.
    pub learned: u32,
    /// Spans that have the value of the conversation's first request.
    pub frozen: u32,
    /// Spans that were removed.
    pub dropped: u32,
    /// Earlier messages of the chat whose contexts were restored.
    pub restored: u32,
    /// Groups of contexts that moved out of the system text into the newest question's message.
    pub relocated: u32,
    /// Documents whose number is derived from their words.
    pub numbered: u32,
    /// Scores, ranks and distances that moved behind their documents.
    pub scored: u32,
    /// Earlier messages left without contexts, since these might be another chat's.
    pub doubtful: u32,
    /// Volatile spans that were not changed: they look like instructions, or there is no room or place for them.
    pub left: u32,
    /// Texts, lines and tools that were not read because the request has too many of them.
    pub unread: u32,
    /// Each changed message, span and tool, as a range of the client's body.
    pub changes: Vec<Change>,
}

/// One change to a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The kind of change, made or proposed.
    pub kind: ChangeKind,
    /// The pattern's name, `learned`, or empty for tools.
    pub name: Box<str>,
    /// The range of the client's body that changed: a whole tool, or a span.
    pub range: Range<usize>,
}

/// The kind of change to a range of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The tool changed place, or its keys changed order.
    Tool,
    /// The span moved behind the documents, word for word.
    Moved,
    /// The conversation's first value replaces the span.
    Frozen,
    /// The span was removed from the prompt.
    Dropped,
    /// The contexts moved out of the system text, with their words, before the newest question.
    Context,
    /// A message's content was replaced by the forwarded one, contexts included.
    Restored,
    /// A document's number was replaced; words after the documents give the original.
    Number,
    /// A document's score, rank or distance moved behind the documents.
    Score,
}

impl Change {
    pub(super) fn new(kind: ChangeKind, name: &str, range: Range<usize>) -> Self {
        Self {
            kind,
            name: name.into(),
            range,
        }
    }
}

impl HeadReport {
    /// Returns whether there is nothing to report.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.left + self.doubtful + self.unread == 0
    }
}
