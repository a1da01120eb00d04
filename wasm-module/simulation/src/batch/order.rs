//! The order of a batch.

/// The order in which a batch is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchOrder {
    /// The order of the file; the policy orders documents, request by request.
    Input,
    /// Requests and documents stand as planned.
    Plan,
}
