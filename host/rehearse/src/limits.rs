//! What a module may use: instructions and time in a callback, memory of its own, memory of the proxy's.

use std::time::Duration;
use wasmtime::ResourceLimiter;

/// What a module may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Instructions of one callback. Envoy has no such limit: an endless loop stops its worker for ever.
    pub fuel: u64,
    /// Time of one callback, for a machine on which the instructions take too long.
    pub deadline: Duration,
    /// Bytes of a VM's memory.
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

/// Bytes that one callback may hand to the proxy: it keeps some of them, outside the VM's memory.
pub(crate) const HANDED_OVER: usize = 256 << 20;

/// Watches a VM's memory: that of all its memories together, and of all its tables, since a module may have many.
#[derive(Debug)]
pub(crate) struct MemoryWatch {
    limit: u64,
    held: u64,
    table_entries: usize,
    /// The most that it was.
    pub(crate) peak: u64,
}

/// A module wanted more memory than it may have.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("it wanted {wanted} bytes of memory, more than the limit of {limit}")]
pub(crate) struct MemoryExceeded {
    pub(crate) wanted: u64,
    pub(crate) limit: u64,
}

/// A callback handed the proxy more than it may.
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
    /// Beyond the limit the callback ends here: were the module only refused, it would trap somewhere else, for a reason
    /// that says nothing of memory.
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

/// Functions of a module that can be called by pointer: more than any has.
const TABLE_ENTRIES: usize = 1 << 20;
