//! Detects Ctrl-C and SIGTERM between requests, so that the owners of host and Envoy stop them.

use std::sync::OnceLock;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};

/// Whether the user wants to stop. There is one per process, because signals are per process.
#[derive(Default)]
pub(super) struct Interrupt {
    arrived: Mutex<bool>,
    changed: Condvar,
}

impl Interrupt {
    /// Begins to catch SIGINT, SIGTERM and SIGHUP.
    pub(super) fn install() -> Result<&'static Self> {
        static INTERRUPT: OnceLock<Interrupt> = OnceLock::new();
        if let Some(known) = INTERRUPT.get() {
            return Ok(known);
        }
        let interrupt = INTERRUPT.get_or_init(Self::default);
        let raise = move || {
            *interrupt.arrived() = true;
            interrupt.changed.notify_all();
        };
        ctrlc::set_handler(raise).context("Ctrl-C cannot be caught")?;
        Ok(interrupt)
    }

    /// Checks whether the user wants to stop.
    ///
    /// # Errors
    /// Returns an error if so.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(!*self.arrived(), "interrupted");
        Ok(())
    }

    /// Waits until the user wants to stop.
    pub(super) fn wait(&self) {
        drop((self.changed).wait_while(self.arrived(), |arrived| !*arrived));
    }

    fn arrived(&self) -> MutexGuard<'_, bool> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
