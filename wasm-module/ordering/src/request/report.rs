//! The report on the documents of one request.

/// The changes to one request's documents, and the number of documents that are believed to be in the engine's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Name of the policy that ordered the documents.
    pub policy: &'static str,
    /// Number of documents found in the body.
    pub documents: u32,
    /// Number of documents, at the beginning of each run of adjacent ones, whose KV state the engine is believed to
    /// have cached.
    pub matched: u32,
    /// Number of documents that are sent at another position than in the client's list.
    pub moved: u32,
    /// Number of repeated documents that were dropped because an earlier document of their group is the same byte for
    /// byte.
    pub dropped: u32,
    /// Number of documents and tools' results of which location hints replace a part or all, since an earlier turn has
    /// the text.
    pub deduplicated: u32,
    /// Number of documents of earlier requests that were pinned, that is, written into their message again.
    pub pinned: u32,
    /// Number of messages whose documents were arranged as when an earlier request forwarded them.
    pub replayed: u32,
    /// True if an order hint (the retriever's ranking) was written after documents.
    pub hinted: bool,
    /// True if an order hint names documents by their positions instead of labels, because a label could be read as
    /// more than a name in a hint.
    pub numbered: bool,
    /// Estimated tokens of the documents sent, including those repeated from earlier requests.
    pub document_tokens: u64,
    /// Estimated tokens of the documents that `matched` counts.
    pub matched_tokens: u64,
    /// Estimated tokens of the documents that would have been cached if every request had been sent in its client's
    /// order.
    pub client_matched_tokens: u64,
    /// Estimated tokens of the whole forwarded body.
    pub estimated_tokens: u64,
}

impl Report {
    /// Returns a report for this policy with all counts at 0.
    pub(crate) fn new(policy: &'static str) -> Self {
        Self {
            policy,
            documents: 0,
            matched: 0,
            moved: 0,
            dropped: 0,
            deduplicated: 0,
            pinned: 0,
            replayed: 0,
            hinted: false,
            numbered: false,
            document_tokens: 0,
            matched_tokens: 0,
            client_matched_tokens: 0,
            estimated_tokens: 0,
        }
    }
}
