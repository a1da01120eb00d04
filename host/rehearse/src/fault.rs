//! How a module fails: in which callback, and by what. No text of a request is in it: of a panic's message only the place in
//! the source is told.

use crate::limits::{Exited, HandedOver, MemoryExceeded};
use std::fmt;
use std::time::Duration;
use wasmtime::Trap;

/// A callback that did not end as it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The callback's name in the ABI, such as `proxy_on_request_body`.
    pub callback: &'static str,
    /// The kind of the fault.
    pub kind: FaultKind,
    /// Where the source panicked, if the module said so.
    pub place: Option<String>,
}

/// What went wrong in a callback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The module trapped: a panic, an access out of bounds, a stack overflow.
    Trap(String),
    /// It used all the instructions that a callback has.
    Fuel(u64),
    /// It took longer than a callback may.
    Deadline(Duration),
    /// It wanted more memory than it may have: so many bytes, of so many.
    Memory {
        /// Bytes that it wanted.
        wanted: u64,
        /// Bytes that it may have.
        limit: u64,
    },
    /// It handed the proxy more bytes than a callback may.
    HandedOver,
    /// The module ended itself, with this exit code.
    Exit(i32),
    /// It holds the request, and nothing is under way that could let it go on.
    Held,
}

impl FaultKind {
    /// One word, the same for all faults of a kind.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Trap(_) => "trap",
            Self::Fuel(_) => "fuel",
            Self::Deadline(_) => "deadline",
            Self::Memory { .. } => "memory",
            Self::HandedOver => "handed-over",
            Self::Exit(_) => "exit",
            Self::Held => "held",
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trap(reason) => f.write_str(reason),
            Self::Fuel(limit) => {
                write!(
                    f,
                    "it did not end within {limit} instructions: an endless loop?"
                )
            }
            Self::Deadline(limit) => write!(f, "it did not end within {limit:?}"),
            Self::Memory { wanted, limit } => MemoryExceeded {
                wanted: *wanted,
                limit: *limit,
            }
            .fmt(f),
            Self::HandedOver => HandedOver.fmt(f),
            Self::Exit(code) => Exited(*code).fmt(f),
            Self::Held => {
                f.write_str("it holds the request, and no call is under way that could end that")
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.callback, self.kind)?;
        match &self.place {
            Some(place) => write!(f, ", panicked at {place}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}

impl Fault {
    /// What wasmtime's error says of a callback.
    pub(crate) fn new(
        callback: &'static str,
        error: &wasmtime::Error,
        fuel: u64,
        deadline: Duration,
        place: Option<String>,
    ) -> Self {
        let kind = if let Some(exceeded) = error.downcast_ref::<MemoryExceeded>() {
            FaultKind::Memory {
                wanted: exceeded.wanted,
                limit: exceeded.limit,
            }
        } else if error.is::<HandedOver>() {
            FaultKind::HandedOver
        } else if let Some(Exited(code)) = error.downcast_ref() {
            FaultKind::Exit(*code)
        } else {
            match error.downcast_ref::<Trap>() {
                Some(Trap::OutOfFuel) => FaultKind::Fuel(fuel),
                Some(Trap::Interrupt) => FaultKind::Deadline(deadline),
                Some(trap) => FaultKind::Trap(trap.to_string()),
                None => FaultKind::Trap(error.root_cause().to_string()),
            }
        };
        Self {
            callback,
            kind,
            place,
        }
    }
}
