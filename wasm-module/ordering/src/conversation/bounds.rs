//! The bounds of a chat memory.

/// The bounds of a memory; beyond them the least recently used messages are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Most messages; 0 switches the memory off.
    pub(crate) max_entries: u32,
    /// Most bytes, indices included.
    pub(crate) max_bytes: u64,
}
