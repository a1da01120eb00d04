//! A module's limits: instructions and time per callback, its memory, and the bytes that it passes to the proxy.

use std::time::Duration;
use wasmtime::ResourceLimiter;

/// A module's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Instructions per callback. Envoy has no such limit: an endless loop blocks its worker for ever.
    pub fuel: u64,
    /// Time per callback, for machines that execute the instructions too slowly.
    pub deadline: Duration,
    /// Memory per VM, in bytes.
    pub memory_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fuel: 2_000_000_000,
            deadline: Duration::from_secs(30),
            memory_bytes: 512 << 20,
        }
    }
}

/// Most bytes that one callback may pass to the proxy, which keeps some of them outside the VM's memory.
pub(crate) const HANDED_OVER: usize = 256 << 20;

/// Limits a VM's memory: all its linear memories together, and the entries of all its tables.
#[derive(Debug)]
pub(crate) struct MemoryWatch {
    limit: u64,
    held: u64,
    table_entries: usize,
    /// Largest total so far.
    pub(crate) peak: u64,
}

/// A module exceeded its memory limit.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("it wanted {wanted} bytes of memory, more than the limit of {limit}")]
pub(crate) struct MemoryExceeded {
    pub(crate) wanted: u64,
    pub(crate) limit: u64,
}

/// A callback passed more bytes to the proxy than the limit.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("it handed the proxy more than {HANDED_OVER} bytes")]
pub(crate) struct HandedOver;

/// A module called WASI's `proc_exit`.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("it ended itself with code {0}")]
pub(crate) struct Exited(pub(crate) i32);

impl MemoryWatch {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            held: 0,
            table_entries: 0,
            peak: 0,
        }
    }
}

impl ResourceLimiter for MemoryWatch {
    /// Ends the callback if the limit is exceeded. If growth were only refused, the module would trap elsewhere, for a
    /// reason that does not mention memory.
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let wanted = self.held + desired.saturating_sub(current) as u64;
        if wanted > self.limit {
            return Err(MemoryExceeded {
                wanted,
                limit: self.limit,
            }
            .into());
        }
        self.held = wanted;
        self.peak = self.peak.max(wanted);
        Ok(true)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let wanted = self.table_entries + desired.saturating_sub(current);
        if wanted > TABLE_ENTRIES {
            return Ok(false);
        }
        self.table_entries = wanted;
        Ok(true)
    }
}

/// Most table entries (functions callable by pointer) of a module, more than any has.
const TABLE_ENTRIES: usize = 1 << 20;
