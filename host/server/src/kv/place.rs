//! Locates the ends of a request's documents in its tokens, using the gateway's path.
//!
//! A path that is missing, malformed or for another body costs only the marks in the cache: the engine then matches the
//! request by its tokens alone. Each case is counted.

use crate::metrics::{Placement, Placements};
use axum::http::{HeaderName, HeaderValue};
use foreword_engine::cache::{DocumentPath, DocumentSpan};
use foreword_ordering::path::{Located, Locator, SentPath};

/// Default name of the header in which the gateway sends a request's path.
pub const PATH_HEADER: HeaderName = HeaderName::from_static("x-foreword-path");

/// Locates the documents of one request.
pub struct Placer<'a> {
    locator: &'a Locator,
    header: Option<&'a HeaderValue>,
    body: &'a [u8],
    counts: &'a Placements,
}

/// The documents of a prompt, as byte positions.
#[derive(Debug, PartialEq, Eq)]
pub struct Placed(Located);

impl<'a> Placer<'a> {
    /// Returns a placer for the request with this body. `header` is the gateway's path header, if the request has one;
    /// `counts` receives the outcome.
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

    /// Returns the documents in the prompt that was rendered from the body. Among a chat's several runs it is the last,
    /// since the earlier ones were placed when they were new.
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
    /// Returns byte positions in the prompt, ascending: where the first document begins, then where each one ends.
    pub fn bytes(&self) -> Vec<usize> {
        let ends = self.0.documents.iter().map(|(_, end)| *end);
        std::iter::once(self.0.start).chain(ends).collect()
    }

    /// Converts to tokens; `tokens` are the numbers of tokens before each of [`Placed::bytes`].
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
