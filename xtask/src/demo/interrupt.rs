//! Detects Ctrl-C and SIGTERM between requests, so that the owners of host and Envoy stop them.

use std::sync::OnceLock;
use std::sync::{Condvar, Mutex, PoisonError};

use anyhow::{Context, Result, bail};

/// Whether the user wants to stop. There is one per process, because signals are per process.
pub(super) struct Interrupt {
    signal: &'static Signal,
}

#[derive(Default)]
struct Signal {
    arrived: Mutex<bool>,
    changed: Condvar,
}

impl Interrupt {
    /// Begins to catch SIGINT, SIGTERM and SIGHUP.
    pub(super) fn install() -> Result<Self> {
        static SIGNAL: OnceLock<Signal> = OnceLock::new();
        if let Some(signal) = SIGNAL.get() {
            return Ok(Self { signal });
        }
        let signal = SIGNAL.get_or_init(Signal::default);
        ctrlc::set_handler(|| signal.raise()).context("Ctrl-C cannot be caught")?;
        Ok(Self { signal })
    }

    /// Checks whether the user wants to stop.
    ///
    /// # Errors
    /// Returns an error if so.
    pub(super) fn check(&self) -> Result<()> {
        if *self
            .signal
            .arrived
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
        {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Waits until the user wants to stop.
    pub(super) fn wait(&self) {
        let arrived = self
            .signal
            .arrived
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        drop(self.signal.changed.wait_while(arrived, |arrived| !*arrived));
    }
}

impl Signal {
    fn raise(&self) {
        *self.arrived.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}
