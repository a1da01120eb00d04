//! The report on the changes to a head, applied or only proposed.

use std::ops::Range;

/// The name reported for spans that no pattern matches.
pub(super) const LEARNED: &str = "learned";

/// The changes to a request's head. If they were not applied, the counts are those of the changes proposed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadReport {
    /// True if there are changes and the forwarded body contains them.
    pub applied: bool,
    /// Number of tools at another position than in the client's list.
    pub tools_moved: u32,
    /// Number of tools whose keys changed order.
    pub tools_reformed: u32,
    /// Number of spans that moved behind the documents.
    pub moved: u32,
    /// Number of spans in `moved` that no pattern matched.
    pub learned: u32,
    /// Number of spans replaced by their value in the conversation's first request.
    pub frozen: u32,
    /// Number of spans that were removed.
    pub dropped: u32,
    /// Number of earlier messages of the chat whose contexts were restored.
    pub restored: u32,
    /// Number of groups of contexts that moved from the system text into the newest user message.
    pub relocated: u32,
    /// Number of documents whose number was replaced by one derived from their text.
    pub numbered: u32,
    /// Number of scores, ranks and distances that moved after the documents.
    pub scored: u32,
    /// Number of earlier messages left without contexts, because these might belong to another chat.
    pub doubtful: u32,
    /// Number of volatile spans not changed: they look like instructions, lack room, or must not change.
    pub left: u32,
    /// Number of texts, lines and lists of tools not read because the request has too much of them.
    pub unread: u32,
    /// The changed tools, spans and messages, each with a range of the client's body.
    pub changes: Vec<Change>,
}

/// One change to a head, applied or proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The kind of change made to the range, or proposed.
    pub kind: ChangeKind,
    /// The name of the span's pattern, or `learned` without one; empty for changes to anything but volatile spans.
    pub name: Box<str>,
    /// The changed range of the client's body: a tool, a span, a message's content, contexts, a number or a score.
    pub range: Range<usize>,
}

/// The kind of change to a range of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The tool moved, or its keys changed order.
    Tool,
    /// The span moved, unchanged, behind the documents of the newest user message.
    Moved,
    /// The span was replaced by its value in the conversation's first request.
    Frozen,
    /// The span was removed from the prompt.
    Dropped,
    /// The contexts moved, with the words around them, from the system text into the newest user message.
    Context,
    /// The message's content was replaced by the one forwarded earlier, contexts included.
    Restored,
    /// The document's number was replaced; a sentence after the documents gives the original.
    Number,
    /// The document's score, rank or distance moved into a sentence after the documents.
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
    /// Takes back the moves and removals from the change at index `first` on: their spans count as left.
    pub(super) fn leave(&mut self, first: usize) {
        for change in self.changes.split_off(first) {
            match change.kind {
                ChangeKind::Moved => {
                    self.moved -= 1;
                    self.learned -= u32::from(&*change.name == LEARNED);
                }
                ChangeKind::Dropped => self.dropped -= 1,
                _ => {
                    self.changes.push(change);
                    continue;
                }
            }
            self.left += 1;
        }
    }

    /// Returns whether the report has no change, and nothing left, doubtful or unread.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.left + self.doubtful + self.unread == 0
    }
}
