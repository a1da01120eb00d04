//! The interface of the server for batches.

use crate::failure::Failure;
use std::sync::Arc;

/// A batch's request to the server.
pub(crate) struct Asking<'a> {
    /// Path of the route, such as `/v1/chat/completions`.
    pub(crate) url: &'a str,
    /// The request's id in the log.
    pub(crate) id: String,
    /// Number of the API key on whose behalf it runs.
    pub(crate) key: Option<usize>,
}

/// A server that handles the requests of batches.
pub(crate) trait Ask: Send + Sync + 'static {
    /// Handles a request as if it had come over the network; returns the status and the body.
    ///
    /// # Errors
    /// Returns the failures of its route.
    fn ask(
        self: Arc<Self>,
        asking: Asking<'_>,
        body: Vec<u8>,
    ) -> impl Future<Output = Result<(u16, Vec<u8>), Failure>> + Send;

    /// Returns whether no other request waits.
    fn is_idle(&self) -> bool;

    /// Returns whether the server admits no more requests.
    fn is_stopping(&self) -> bool;
}
