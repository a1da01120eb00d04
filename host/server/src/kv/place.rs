//! Finds where the documents of a prompt end, in tokens, from the header in which the gateway names them in order.
//!
//! If the header is missing, malformed or for another body, the engine matches the request by its tokens alone. Every
//! outcome is counted.

use crate::metrics::{Placement, Placements};
use axum::http::{HeaderName, HeaderValue};
use foreword_engine::cache::{DocumentPath, DocumentSpan};
use foreword_ordering::path::{Located, Locator, SentPath};

/// Default name of the header in which the gateway names a request's documents in the order chosen (the path).
pub const PATH_HEADER: HeaderName = HeaderName::from_static("x-foreword-path");

/// Finds where one request's documents are in its prompt.
pub struct Placer<'a> {
    locator: &'a Locator,
    header: Option<&'a HeaderValue>,
    body: &'a [u8],
    counts: &'a Placements,
}

/// The documents found in a prompt, with the bytes at which they begin and end.
#[derive(Debug, PartialEq, Eq)]
pub struct Placed(Located);

impl<'a> Placer<'a> {
    /// Returns a placer for the request with this body. `header` is the header in which the gateway names the documents
    /// in order (`None` if absent), and `counts` counts the outcome.
    pub fn new(
        locator: &'a Locator,
        header: Option<&'a HeaderValue>,
        body: &'a [u8],
        counts: &'a Placements,
    ) -> Self {
        Self {
            locator,
            header,
            body,
            counts,
        }
    }

    /// Returns the documents found in `prompt`, which was rendered from the request's body; `None` if none were found.
    /// If several messages have documents, returns those of the last message, since earlier requests have recorded the
    /// others.
    pub fn place(&self, prompt: &str) -> Option<Placed> {
        let (placed, outcome) = self.look(prompt);
        self.counts.count(outcome);
        placed
    }

    fn look(&self, prompt: &str) -> (Option<Placed>, Placement) {
        let Some(header) = self.header else {
            return (None, Placement::Absent);
        };
        let Some(path) = header
            .to_str()
            .ok()
            .and_then(|header| SentPath::from_header(header).ok())
        else {
            return (None, Placement::Malformed);
        };
        let located = self.locator.locate(&path, self.body, prompt);
        let mut located = located.unwrap_or_default();
        let asked: usize = path.runs.iter().map(|run| run.documents.len()).sum();
        let found: usize = located.iter().map(|run| run.documents.len()).sum();
        let outcome = match found {
            0 => Placement::NotFound,
            _ if found < asked => Placement::Partial,
            _ => Placement::Placed,
        };
        (located.pop().map(Placed), outcome)
    }
}

impl Placed {
    /// Returns positions in bytes of the prompt, ascending: where the first document begins, and where each document
    /// ends.
    pub fn bytes(&self) -> Vec<usize> {
        let ends = self.0.documents.iter().map(|(_, end)| *end);
        std::iter::once(self.0.start).chain(ends).collect()
    }

    /// Returns the documents with positions in tokens. `tokens[i]` must be the number of tokens before `bytes()[i]`.
    /// `None` if `tokens` is empty.
    pub fn in_tokens(&self, tokens: &[u32]) -> Option<DocumentPath> {
        let (start, ends) = tokens.split_first()?;
        let documents = self.0.documents.iter().zip(ends);
        Some(DocumentPath {
            scope: self.0.scope.0,
            start: *start,
            documents: documents
                .map(|((fingerprint, _), &end)| DocumentSpan {
                    fingerprint: fingerprint.0,
                    end,
                })
                .collect(),
        })
    }
}
