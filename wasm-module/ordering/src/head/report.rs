//! The report on the changes to a prompt's head (tools, system text, documents' markup), applied or only proposed.

use std::ops::Range;

/// The name reported for volatile spans (texts that change between requests) that were found by comparing requests, not
/// by a pattern.
pub(super) const LEARNED: &str = "learned";

/// The changes to the head of a request's prompt (tools, system text, documents' markup). If they were not applied, the
/// counts are those of the changes proposed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadReport {
    /// True if there are changes to the prompt's head (tools, system text) and the forwarded body has them.
    pub applied: bool,
    /// Number of tools that are sent at another position than in the client's list.
    pub tools_moved: u32,
    /// Number of tools whose JSON keys changed order.
    pub tools_reformed: u32,
    /// Number of volatile spans (texts that change between requests) that moved behind the documents.
    pub moved: u32,
    /// Number of volatile spans (texts that change between requests) in `moved` that were found by comparing requests,
    /// not by a pattern.
    pub learned: u32,
    /// Number of volatile spans (texts that change between requests) replaced by their value in the conversation's
    /// first request.
    pub frozen: u32,
    /// Number of volatile spans (texts that change between requests) that were removed from the prompt.
    pub dropped: u32,
    /// Number of earlier messages of the chat whose contexts (retrieved documents) were restored.
    pub restored: u32,
    /// Number of groups of documents that moved from the system text into the newest user message.
    pub relocated: u32,
    /// Number of documents whose number was replaced by one derived from their text.
    pub numbered: u32,
    /// Number of documents' scores, ranks and distances that moved after the documents.
    pub scored: u32,
    /// Number of earlier messages whose contexts (retrieved documents), omitted by the client, were not restored,
    /// because the recorded ones might belong to another chat.
    pub doubtful: u32,
    /// Number of volatile spans (texts that change between requests) that were not changed, because they look like
    /// instructions, exceed a limit, or must not change.
    pub left: u32,
    /// Number of texts, lines and lists of tools that were not read because the request exceeds the limits on them.
    pub unread: u32,
    /// The changed tools, texts, messages, numbers and scores, each with a range of the client's body.
    pub changes: Vec<Change>,
}

/// One change to the head of a prompt (tools, system text, documents' markup), applied or proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The kind of change to `range`.
    pub kind: ChangeKind,
    /// The name of the pattern that found the volatile span (a text that changes between requests), or `learned` if
    /// none did; empty for changes to anything else.
    pub name: Box<str>,
    /// The changed range of the client's body: a tool, a volatile span (a text that changes between requests), a
    /// message's content, retrieved documents, a number or a score.
    pub range: Range<usize>,
}

/// The kind of change to a range of the client's body that is part of the prompt's head (tools, system text, documents'
/// markup).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// A tool moved in the list of tools, or its JSON keys changed order.
    Tool,
    /// The volatile span (a text that changes between requests) moved, unchanged, behind the documents of the newest
    /// user message.
    Moved,
    /// The volatile span (a text that changes between requests) was replaced by its value in the conversation's first
    /// request.
    Frozen,
    /// The volatile span (a text that changes between requests) was removed from the prompt.
    Dropped,
    /// The retrieved documents moved, with the words around them, from the system text into the newest user message.
    Context,
    /// The content of an earlier message was replaced by the content that an earlier request forwarded, which has the
    /// retrieved documents that the client left out since.
    Restored,
    /// The document's number was replaced; a sentence after the documents says which number to cite.
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
    /// Removes those of the report's changes at index `first` and later that move or remove volatile spans (texts that
    /// change between requests), and counts their spans as `left` (not changed) instead.
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

    /// Returns true if the report has no changes to the prompt's head (tools, system text), and counts nothing as left
    /// unchanged, doubtful or unread.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.left + self.doubtful + self.unread == 0
    }
}
