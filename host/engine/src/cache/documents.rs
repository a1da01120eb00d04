//! The documents of a prompt, as announced by the gateway.
//!
//! The cache itself works on tokens and does not need documents. But a gateway that orders documents must learn which
//! *documents* are still cached, and an eviction policy decides better if it knows which pages hold one document.

use std::sync::Arc;

/// The documents of a prompt, in order. Tokens between two documents count towards the second one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentPath {
    /// The gateway's hash of everything in the prompt that precedes the documents.
    pub scope: u64,
    /// Token index of the first document's first token.
    pub start: u32,
    /// The documents, in the order of the prompt, with ends ascending and within the prompt.
    pub documents: Vec<DocumentSpan>,
}

/// One document of a prompt, with the token index at which it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentSpan {
    /// The gateway's hash that identifies the document by its text.
    pub fingerprint: u64,
    /// Token index after the document's last token.
    pub end: u32,
}

/// The error for a document that ends before the previous one or past the prompt; it names the document's index and the
/// allowed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("document {index} ends at token {end}, not between {least} and {most}")]
pub struct DocumentPathError {
    /// Index of the offending document in [`DocumentPath::documents`].
    pub index: usize,
    /// Token index at which the offending document is announced to end.
    pub end: u32,
    /// Smallest allowed end: the token index at which the previous document ends; for the first document,
    /// [`DocumentPath::start`].
    pub least: u32,
    /// Largest allowed end: the number of tokens in the prompt.
    pub most: u32,
}

/// A document as events report it: its fingerprint, and the number of tokens since the end of the document before it.
pub type Document = (u64, u32);

impl DocumentPath {
    /// Checks that the documents' ends ascend and are within a prompt of `tokens` tokens.
    ///
    /// # Errors
    /// Returns a [`DocumentPathError`] when a document ends before the previous one or past the prompt.
    pub fn validate(&self, tokens: u32) -> Result<(), DocumentPathError> {
        let mut before = self.start;
        for (index, document) in self.documents.iter().enumerate() {
            if document.end < before || document.end > tokens {
                return Err(DocumentPathError {
                    index,
                    end: document.end,
                    least: before,
                    most: tokens,
                });
            }
            before = document.end;
        }
        Ok(())
    }

    /// Returns each document's fingerprint with the number of tokens from the end of the previous document to its own
    /// end.
    pub fn sizes(&self) -> Arc<[Document]> {
        let mut before = self.start;
        let sized = self.documents.iter().map(|document| {
            let tokens = document.end - before;
            before = document.end;
            (document.fingerprint, tokens)
        });
        sized.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(start: u32, ends: &[u32]) -> DocumentPath {
        let document = |(fingerprint, &end): (u64, &u32)| DocumentSpan { fingerprint, end };
        DocumentPath {
            scope: 1,
            start,
            documents: (0..).zip(ends).map(document).collect(),
        }
    }

    #[test]
    fn ends_ascend_within_the_prompt() {
        assert_eq!(path(2, &[5, 5, 9]).validate(9), Ok(()));
        assert_eq!(path(0, &[]).validate(0), Ok(()));
        for (path, reason) in [
            (
                path(2, &[1]),
                "document 0 ends at token 1, not between 2 and 9",
            ),
            (
                path(0, &[4, 3]),
                "document 1 ends at token 3, not between 4 and 9",
            ),
            (
                path(0, &[4, 10]),
                "document 1 ends at token 10, not between 4 and 9",
            ),
        ] {
            assert_eq!(path.validate(9).unwrap_err().to_string(), reason);
        }
    }

    #[test]
    fn a_document_has_the_tokens_since_the_one_before() {
        assert_eq!(*path(2, &[5, 5, 9]).sizes(), [(0, 3), (1, 0), (2, 4)]);
    }
}
