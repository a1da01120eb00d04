//! The order of a batch.

/// The order in which a batch is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchOrder {
    /// The file's order; the policy orders documents, request by request.
    Input,
    /// Requests and documents in the planned order.
    Plan,
}
