//! The interface through which batches send requests to the server.

use crate::failure::Failure;
use std::sync::Arc;

/// The metadata of a batch's request.
pub(crate) struct Asking<'a> {
    /// Path of the route, such as `/v1/chat/completions`.
    pub(crate) url: &'a str,
    /// The request's id in the log.
    pub(crate) id: String,
    /// Number of the API key that owns the batch; `None` if no keys are configured.
    pub(crate) key: Option<usize>,
}

/// A server to which batches send requests.
pub(crate) trait Ask: Send + Sync + 'static {
    /// Handles a request like one that arrived over the network; returns status and body.
    ///
    /// # Errors
    /// Returns the failures of the route.
    fn ask(
        self: Arc<Self>,
        asking: Asking<'_>,
        body: Vec<u8>,
    ) -> impl Future<Output = Result<(u16, Vec<u8>), Failure>> + Send;

    /// Returns true if no other request waits in the engine's queue.
    fn is_idle(&self) -> bool;

    /// Returns whether the server admits no more requests.
    fn is_stopping(&self) -> bool;
}
