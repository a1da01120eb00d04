//! The bounds of a chat memory.

/// The bounds of a chat memory. Beyond either, the least recently used messages are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Most messages; 0 disables the memory.
    pub(crate) max_entries: u32,
    /// Most bytes, indices included.
    pub(crate) max_bytes: u64,
}
