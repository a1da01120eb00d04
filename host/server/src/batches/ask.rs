//! The server as a batch sees it.

use crate::failure::Failure;
use std::sync::Arc;

/// A request of a batch.
pub(crate) struct Asking<'a> {
    /// Path of the route, such as `/v1/chat/completions`.
    pub(crate) url: &'a str,
    /// The id under which it appears in the log.
    pub(crate) id: String,
    /// Number of the API key in whose name it is asked.
    pub(crate) key: Option<usize>,
}

/// A server that answers the requests of batches.
pub(crate) trait Ask: Send + Sync + 'static {
    /// Answers a request as if it had come over the network by itself; returns the status and the body.
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

    /// Returns whether no request is let in any more.
    fn is_stopping(&self) -> bool;
}
