//! The order of a batch.

foreword_ordering::named! {
    /// The order in which a batch is sent.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum BatchOrder {
        /// Requests and documents in the planned order.
        Plan = "plan",
        /// The file's order; the policy orders documents, request by request.
        Input = "input",
    }
}
