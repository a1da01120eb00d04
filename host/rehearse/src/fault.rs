//! Faults of a module: which callback failed, and why. They contain no text of a request: of a panic's message, only
//! the place in the source is recorded.

use std::time::Duration;
use wasmtime::Trap;

/// A callback that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{callback}: {kind}{}", panicked(.place))]
pub struct Fault {
    /// Name of the callback in the ABI, such as `proxy_on_request_body`.
    pub callback: &'static str,
    /// The kind of the fault.
    pub kind: FaultKind,
    /// Place of the panic in the source, `FILE:LINE:COLUMN`; `None` if the module logged none.
    pub place: Option<String>,
}

/// The reason for which a callback failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// The module trapped: a panic, an access out of bounds, or a stack overflow. The text is wasmtime's.
    #[error("{0}")]
    Trap(String),
    /// The callback executed more than this many instructions.
    #[error("it did not end within {0} instructions: an endless loop?")]
    Fuel(u64),
    /// The callback took longer than this.
    #[error("it did not end within {0:?}")]
    Deadline(Duration),
    /// The module exceeded its memory limit.
    #[error("it wanted {wanted} bytes of memory, more than the limit of {limit}")]
    Memory {
        /// Bytes requested.
        wanted: u64,
        /// Limit in bytes.
        limit: u64,
    },
    /// The callback passed more than 256 MiB to the proxy.
    #[error("it handed the proxy more than {HANDED_OVER} bytes")]
    HandedOver,
    /// The module exited with this code, by WASI's `proc_exit`.
    #[error("it ended itself with code {0}")]
    Exit(i32),
    /// The module paused the request, and no pending call could make it resume.
    #[error("it holds the request, and no call is under way that could end that")]
    Held,
}

impl FaultKind {
    /// Returns the kind's name, such as `trap`.
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

fn panicked(place: &Option<String>) -> String {
    let place = place.as_ref().map(|place| format!(", panicked at {place}"));
    place.unwrap_or_default()
}

impl Fault {
    /// Converts wasmtime's error from a callback to a fault; `fuel` and `deadline` are the limits of the call. A host
    /// call ends the callback with a [`FaultKind`] as its error.
    pub(crate) fn new(
        callback: &'static str,
        error: &wasmtime::Error,
        fuel: u64,
        deadline: Duration,
        place: Option<String>,
    ) -> Self {
        let thrown = error.downcast_ref::<FaultKind>().cloned();
        let kind = thrown.unwrap_or_else(|| match error.downcast_ref::<Trap>() {
            Some(Trap::OutOfFuel) => FaultKind::Fuel(fuel),
            Some(Trap::Interrupt) => FaultKind::Deadline(deadline),
            Some(trap) => FaultKind::Trap(trap.to_string()),
            None => FaultKind::Trap(error.root_cause().to_string()),
        });
        Self {
            callback,
            kind,
            place,
        }
    }
}

/// Maximum number of bytes that a callback may pass to the proxy, which stores some of them outside the VM's memory.
pub(crate) const HANDED_OVER: usize = 256 << 20;
