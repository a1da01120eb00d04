//! The report on one request, for its sender.

/// The changes to a request's documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Name of the policy.
    pub policy: &'static str,
    /// Documents found in the body.
    pub documents: u32,
    /// Documents at the prompt's beginning whose KV state the engine is believed to hold.
    pub matched: u32,
    /// Documents that changed place.
    pub moved: u32,
    /// Repeats that were dropped because they equal another document of their group byte for byte.
    pub dropped: u32,
    /// Documents replaced by a location hint, because an earlier turn of the chat holds them byte for byte.
    pub deduplicated: u32,
    /// Documents of earlier requests that were written again at their first place.
    pub pinned: u32,
    /// Messages with documents that were replayed.
    pub replayed: u32,
    /// Whether an order hint was written.
    pub hinted: bool,
    /// Whether a hint uses places instead of labels, because a label is not allowed outside its document.
    pub numbered: bool,
    /// Estimated tokens of the documents sent, pinned ones included.
    pub document_tokens: u64,
    /// Estimated tokens of the matched documents.
    pub matched_tokens: u64,
    /// Estimated tokens of the documents that would have been matched if every request had been sent in its client's order.
    pub client_matched_tokens: u64,
    /// Estimated tokens of the whole body.
    pub estimated_tokens: u64,
}

impl Report {
    /// Returns the report of a request before any change.
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
