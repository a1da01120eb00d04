//! The report on the documents of one request.

/// The changes to a request's documents, and how much of them the engine's cache is believed to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Name of the policy that ordered the documents.
    pub policy: &'static str,
    /// Number of documents found in the body.
    pub documents: u32,
    /// Number of documents, at the beginning of each run, whose KV state the engine is believed to hold.
    pub matched: u32,
    /// Number of documents that are sent at another position than in the client's list.
    pub moved: u32,
    /// Number of repeats that were dropped because an earlier document of their group is the same byte for byte.
    pub dropped: u32,
    /// Number of documents and tools' results that location hints replace, in part or whole, as an earlier turn has the
    /// text.
    pub deduplicated: u32,
    /// Number of documents of earlier requests that were pinned and written into their message again.
    pub pinned: u32,
    /// Number of messages whose documents were arranged as in an earlier request.
    pub replayed: u32,
    /// True if an order hint was written.
    pub hinted: bool,
    /// True if an order hint uses places instead of labels, because a label is unsafe outside its document.
    pub numbered: bool,
    /// Estimated tokens of the documents sent, including pinned ones.
    pub document_tokens: u64,
    /// Estimated tokens of the matched documents.
    pub matched_tokens: u64,
    /// Estimated tokens of the documents that would have matched if every request had been sent in its client's order.
    pub client_matched_tokens: u64,
    /// Estimated tokens of the whole forwarded body.
    pub estimated_tokens: u64,
}

impl Report {
    /// Returns the report with all counts at 0.
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
