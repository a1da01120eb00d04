//! The interface through which batches have the server answer their requests.

use crate::failure::Failure;
use std::sync::Arc;

/// A request of a batch, except for its body: route, id and API key.
pub(crate) struct Asking<'a> {
    /// Path of the route, such as `/v1/chat/completions`.
    pub(crate) url: &'a str,
    /// The id of the request, as in the log.
    pub(crate) id: String,
    /// Number of the API key that owns the batch; `None` if no keys are configured.
    pub(crate) key: Option<usize>,
}

/// A server that answers the requests of batches.
pub(crate) trait Ask: Send + Sync + 'static {
    /// Handles a request like one that arrived over the network. Returns the status and the body of the response.
    ///
    /// # Errors
    /// Returns the failures of the route.
    fn ask(
        self: Arc<Self>,
        asking: Asking<'_>,
        body: Vec<u8>,
    ) -> impl Future<Output = Result<(u16, Vec<u8>), Failure>> + Send;

    /// Returns whether no request waits in the engine's queue.
    fn is_idle(&self) -> bool;

    /// Returns whether the server admits no more requests.
    fn is_stopping(&self) -> bool;
}
