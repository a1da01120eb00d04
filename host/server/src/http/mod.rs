//! HTTP handling that the API, the KV feed and the bridge share: bodies are read within limits of size, time and rate,
//! and requests without a valid key, or to unknown routes, are refused.

pub(crate) mod body;
pub(crate) mod refusals;
