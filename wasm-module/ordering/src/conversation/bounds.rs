//! The bounds of a memory of messages.

/// The bounds of a memory of messages. Beyond either bound, the least recently used messages are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The maximum number of messages recorded for one tenant and model; with 0, none are recorded.
    pub(crate) max_entries: u32,
    /// The maximum size of all messages in estimated bytes, indices included.
    pub(crate) max_bytes: u64,
}
