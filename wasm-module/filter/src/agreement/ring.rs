//! A ring of entries in the proxy's shared data: who writes first, who overwrites whom, what a reader finds.
//!
//! ```text
//!   …/head     7                                     positions given out so far
//!   …/0..=3    [4: …] [5: …] [6: …] [3: …]           the entry of position p stands in slot p mod 4, and says p
//! ```
//!
//! A writer takes a position by compare-and-swap on `head`, then writes the slot. In between the slot still holds an
//! older entry, which a reader knows by its position. Nobody waits for anybody.
//!
//! Compare-and-swap cannot guard the *creation* of a key, so `head` is made by [`Ring::open`], which Envoy runs on its
//! main thread, in a VM of its own, before any worker's. Slots are written by nobody but the owner of their position.

use crate::host::{Host, HostError};

/// See the module's text.
#[derive(Debug)]
pub(super) struct Ring {
    /// What all keys begin with. The size is part of it: rings of different sizes are different rings.
    prefix: String,
    /// The key of the head.
    head: String,
    entries: u32,
}

/// How far a ring had come when somebody looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// Positions given out so far.
    pub(super) next: u64,
    /// Changes when another one is given out.
    number: u32,
}

/// What a reader finds at a position that was given out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Its entry.
    Holds(Vec<u8>),
    /// Its writer is not done yet, or never will be.
    Unwritten,
    /// A newer entry, or something that no writer wrote.
    Lost,
}

impl Ring {
    /// The ring of that name, made if there is none. `entries` is at least 1.
    pub(super) fn open(host: &impl Host, name: &str, entries: u32) -> Result<Self, HostError> {
        let prefix = format!("foreword/{LAYOUT}/{name}/{entries}/");
        let ring = Self {
            head: format!("{prefix}head"),
            prefix,
            entries,
        };
        if host.shared_data(&ring.head)?.is_none() {
            host.set_shared_data(&ring.head, &0_u64.to_le_bytes(), None)?;
        }
        Ok(ring)
    }

    pub(super) fn entries(&self) -> u64 {
        u64::from(self.entries)
    }

    pub(super) fn head(&self, host: &impl Host) -> Result<Head, HostError> {
        const CALL: &str = "shared_data";
        let missing = HostError {
            call: CALL,
            status: NO_HEAD,
        };
        let (next, number) = host.shared_data(&self.head)?.ok_or(missing)?;
        let next = <[u8; 8]>::try_from(next.as_slice()).map_err(|_| missing)?;
        Ok(Head {
            next: u64::from_le_bytes(next),
            number,
        })
    }

    /// Writes an entry behind all others; its position. `None` if others were faster every time. Who has `seen` the head
    /// need not look again, unless it has moved.
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
        mut seen: Option<Head>,
    ) -> Result<Option<u64>, HostError> {
        for _ in 0..ATTEMPTS {
            let head = match seen.take() {
                Some(head) => head,
                None => self.head(host)?,
            };
            let next = head.next.wrapping_add(1).to_le_bytes();
            if host.set_shared_data(&self.head, &next, Some(head.number))? {
                return Ok(Some(head.next));
            }
        }
        Ok(None)
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

    /// What is at a position below the head.
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
        // Never by zero: `open` asks for one entry at least.
        let slot = position.checked_rem(self.entries()).unwrap_or(0);
        format!("{}{slot}", self.prefix)
    }
}

/// Builds that lay a ring out otherwise use another one.
const LAYOUT: &str = "1";

/// Times that a writer may lose a race for a position. A race takes a microsecond and is lost to one who got a position.
const ATTEMPTS: u32 = 16;

/// The head is not there, or not ours.
const NO_HEAD: u32 = 200;
