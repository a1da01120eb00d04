//! What the API, the KV feed and the bridge share as HTTP servers: reading bodies within bounds, and refusing requests.

pub(crate) mod body;
pub(crate) mod refusals;
