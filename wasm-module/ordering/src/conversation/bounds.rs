//! The bounds of the [memory](super::memory) of chats' messages.

/// The bounds of the memory of chats' messages of one tenant and model. Beyond either bound, the least recently used
/// messages are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The maximum number of messages recorded for one tenant and model; with 0, none are recorded.
    pub(crate) max_entries: u32,
    /// The maximum size of the memory of one tenant and model, in estimated bytes, including its indices.
    pub(crate) max_bytes: u64,
}
