//! What was done with a head, or would be.

use std::ops::Range;

/// What was done with a request's head; where it is only reported, what would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadReport {
    /// Whether the body was changed; else the changes would have been made in mode `apply`.
    pub applied: bool,
    /// Tools that stand elsewhere than the client put them.
    pub tools_moved: u32,
    /// Tools whose keys stand in another order.
    pub tools_reformed: u32,
    /// Spans that moved behind the documents.
    pub moved: u32,
    /// Those of them that no pattern knows.
    pub learned: u32,
    /// Spans that stand as in the conversation's first request.
    pub frozen: u32,
    /// Spans that were left out.
    pub dropped: u32,
    /// Earlier messages of the chat that got the contexts back that they were sent with.
    pub restored: u32,
    /// Groups of contexts that moved out of the system text to the question that they were found for.
    pub relocated: u32,
    /// Documents whose number follows from their words.
    pub numbered: u32,
    /// Scores, ranks and distances of documents that stand behind them.
    pub scored: u32,
    /// Earlier messages that go without contexts, for these may be another chat's.
    pub doubtful: u32,
    /// Volatile spans that stay as they are: they look like instructions, or there is no room or place for them.
    pub left: u32,
    /// Texts, lines and tools that were not looked at because the request has too many of them.
    pub unread: u32,
    /// Every message, span and tool of these, as ranges of the client's body.
    pub changes: Vec<Change>,
}

/// One thing that was done with a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The kind of change that was made, or would be.
    pub kind: ChangeKind,
    /// The pattern's name, `learned`, or empty for tools.
    pub name: Box<str>,
    /// The bytes of the client's body that it was done with: a whole tool, or what a span takes.
    pub range: Range<usize>,
}

/// What was done with a range of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The tool stands elsewhere among the tools, or its keys do.
    Tool,
    /// It moved behind the documents, with its words.
    Moved,
    /// The conversation's first value stands there.
    Frozen,
    /// The span was left out of the prompt.
    Dropped,
    /// The contexts moved out of the system text, with their words, before the newest question.
    Context,
    /// A message's content that stands there as it was sent before, contexts included.
    Restored,
    /// A document's number: another one stands there, and words behind the documents say which it was.
    Number,
    /// A document's score, rank or distance, which stands behind the documents.
    Score,
}

impl HeadReport {
    /// Whether there is anything to be told.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.left + self.doubtful + self.unread == 0
    }
}
