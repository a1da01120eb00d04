//! A module's limits: instructions and time per callback, and memory.

use crate::fault::FaultKind;
use std::time::Duration;
use wasmtime::ResourceLimiter;

/// The limits of a module's callbacks and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of instructions of a callback. Envoy has no such limit: there an endless loop blocks its worker
    /// thread.
    pub fuel: u64,
    /// Longest time of a callback, for machines that execute its instructions too slowly.
    pub deadline: Duration,
    /// Maximum memory of a VM, in bytes.
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

/// Limits the memory of a VM: the sum of its linear memories, and the entries of its tables.
#[derive(Debug, Default)]
pub(crate) struct MemoryWatch {
    limit: u64,
    /// Current sum of the linear memories, in bytes.
    held: u64,
    table_entries: usize,
    /// Largest sum so far, in bytes.
    pub(crate) peak: u64,
}

impl MemoryWatch {
    pub(crate) fn new(limit: u64) -> Self {
        let unused = Self::default();
        Self { limit, ..unused }
    }
}

impl ResourceLimiter for MemoryWatch {
    /// Fails if the limit would be exceeded, which ends the callback. If growth were only refused, the module would
    /// trap later, for a reason that does not mention memory.
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let wanted = self.held + desired.saturating_sub(current) as u64;
        let limit = self.limit;
        if wanted > limit {
            return Err(FaultKind::Memory { wanted, limit }.into());
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

/// Maximum number of table entries (functions called by pointer) of a module, more than real modules have.
const TABLE_ENTRIES: usize = 1 << 20;
