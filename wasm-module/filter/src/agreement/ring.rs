//! A ring buffer of entries in the proxy's shared data, which all workers read and write.
//!
//! ```text
//!   …/head     7                                     number of positions assigned so far
//!   …/0..=3    [4: …] [5: …] [6: …] [3: …]           slot p mod 4 holds the entry of position p, with p
//! ```
//!
//! A writer takes a position by compare-and-swap on `head`, then writes the slot. In between, the slot still holds an
//! older entry, which a reader recognises by its position. No worker waits for another.
//!
//! Compare-and-swap cannot guard the *creation* of a key. So [`Ring::open`] creates `head`: Envoy loads the plugin on
//! its main thread, in a VM of its own, before on any worker. Only the owner of a position writes its slot;
//! [`Ring::empty`], for the ring of a replaced configuration, is the exception.

use crate::host::{Host, HostError};
use crate::swap;

/// A ring buffer of entries in the proxy's shared data. An entry's position is its number since the ring was created.
#[derive(Debug)]
pub(super) struct Ring {
    /// The prefix of the ring's keys in shared data. The number of entries is part of it, so rings of different sizes
    /// are different rings.
    prefix: String,
    head: String,
    entries: u32,
}

/// The state of a ring buffer when it was last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// Number of positions assigned so far, which is the position of the next entry.
    pub(super) next: u64,
    /// The compare-and-swap number, which changes whenever a position is assigned.
    number: u32,
}

/// The content of the slot in shared data for an assigned position of a ring buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// The entry that was written at the position.
    Holds(Vec<u8>),
    /// No entry yet, or still one of an earlier position: the writer has not finished, or never will.
    Unwritten,
    /// An entry of a later position, which overwrote the wanted one, or bytes that no writer wrote.
    Lost,
}

impl Ring {
    /// Opens the ring buffer `name` with room for `entries` entries (at least 1), and creates it if there is none.
    pub(super) fn open(host: &impl Host, name: &str, entries: u32) -> Result<Self, HostError> {
        let prefix = format!("foreword/{LAYOUT}/{name}/{entries}/");
        let ring = Self {
            head: format!("{prefix}head"),
            prefix,
            entries,
        };
        swap::create(host, &ring.head, &0_u64.to_le_bytes())?;
        Ok(ring)
    }

    /// Empties the ring buffer's slots in shared data. Positions go on from where they were.
    pub(super) fn empty(&self, host: &impl Host) -> Result<(), HostError> {
        let used = self.head(host)?.next.min(self.entries());
        (0..used).try_for_each(|slot| {
            host.set_shared_data(&self.slot(slot), &[], None)?;
            Ok(())
        })
    }

    pub(super) fn entries(&self) -> u64 {
        u64::from(self.entries)
    }

    pub(super) fn head(&self, host: &impl Host) -> Result<Head, HostError> {
        let (next, number) = read_head(host, &self.head)?;
        Ok(Head { next, number })
    }

    /// Appends an entry and returns its position; `None` if other writers were faster at every attempt. `seen`, the
    /// ring's state as last read, saves reading it unless it has changed.
    pub(super) fn push(
        &self,
        host: &impl Host,
        seen: Option<Head>,
        entry: &[u8],
    ) -> Result<Option<u64>, HostError> {
        let Some(position) = self.reserve(host, seen)? else {
            return Ok(None);
        };
        self.write(host, position, entry)?;
        Ok(Some(position))
    }

    pub(super) fn reserve(
        &self,
        host: &impl Host,
        seen: Option<Head>,
    ) -> Result<Option<u64>, HostError> {
        let seen = seen.map(|head| (head.next, head.number));
        swap::change(host, &self.head, seen, read_head, |next| {
            next.wrapping_add(1).to_le_bytes().to_vec()
        })
    }

    pub(super) fn write(
        &self,
        host: &impl Host,
        position: u64,
        entry: &[u8],
    ) -> Result<(), HostError> {
        let entry = [&position.to_le_bytes()[..], entry].concat();
        host.set_shared_data(&self.slot(position), &entry, None)?;
        Ok(())
    }

    /// Reads the slot of `position`, which must have been assigned.
    pub(super) fn read(&self, host: &impl Host, position: u64) -> Result<Slot, HostError> {
        let Some((mut entry, _)) = host.shared_data(&self.slot(position))? else {
            return Ok(Slot::Unwritten);
        };
        let Some(found) = entry.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
            return Ok(Slot::Lost);
        };
        Ok(if found == position {
            entry.drain(..size_of::<u64>());
            Slot::Holds(entry)
        } else if found < position {
            Slot::Unwritten
        } else {
            Slot::Lost
        })
    }

    fn slot(&self, position: u64) -> String {
        // The divisor is never zero: `open` requires at least one entry.
        let slot = position.checked_rem(self.entries()).unwrap_or(0);
        format!("{}{slot}", self.prefix)
    }
}

/// Returns the number of a ring's positions assigned so far, and its compare-and-swap number. `key` is the key of the
/// ring's state in shared data.
fn read_head<H: Host>(host: &H, key: &str) -> Result<(u64, u32), HostError> {
    let ([next], number) = swap::numbers(host, key, NO_HEAD)?;
    Ok((next, number))
}

/// Version of the ring buffer's layout in shared data. A build with another version uses another ring.
const LAYOUT: &str = "1";

/// Error status for a ring buffer whose state in shared data is missing or malformed.
const NO_HEAD: u32 = 200;
