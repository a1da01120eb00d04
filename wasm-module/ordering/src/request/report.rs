//! The report on the documents of one request.

use serde::Serialize;

/// The changes to the documents of one request, and the number of documents that are believed to be in the engine's
/// cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Name of the policy that ordered the documents.
    pub policy: &'static str,
    /// Number of documents found in the body.
    pub documents: u32,
    /// Number of documents that the engine is believed to have cached: in each run of adjacent documents, those at its
    /// beginning.
    pub matched: u32,
    /// Number of documents that are sent at another position than in the client's list.
    pub moved: u32,
    /// Number of documents that were dropped because an earlier document in the same list of the client's is the same
    /// byte for byte.
    pub dropped: u32,
    /// Number of documents and tools' results of which a part or all was replaced by location hints (references to the
    /// same text in an earlier turn).
    pub deduplicated: u32,
    /// Number of documents that were pinned: the client did not send them again, and the gateway repeated them in the
    /// message in which an earlier request of the chat sent them.
    pub pinned: u32,
    /// Number of messages whose documents got the same order and location hints (references to earlier copies) as when
    /// an earlier request forwarded them.
    pub replayed: u32,
    /// True if at least one order hint (a sentence with the retriever's ranking) was written after documents.
    pub hinted: bool,
    /// True if at least one order hint (a sentence with the retriever's ranking) names documents by their positions
    /// instead of labels, because a label could be read as more than a name.
    pub numbered: bool,
    /// Estimated tokens of the documents sent, including those pinned (repeated by the gateway from earlier requests).
    pub document_tokens: u64,
    /// Estimated tokens of the documents that `matched` counts.
    pub matched_tokens: u64,
    /// Estimated tokens of this request's documents that would have been cached if every request had been sent in its
    /// client's order.
    #[serde(skip)]
    pub client_matched_tokens: u64,
    /// Estimated tokens of the whole forwarded body.
    #[serde(skip)]
    pub estimated_tokens: u64,
}
