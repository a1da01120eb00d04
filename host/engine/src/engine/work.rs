//! What the device is to do between two decisions, and how it is called.
//!
//! Work is plain data: it can be computed by a thread that holds nothing but the device.

use crate::backend::{Backend, BackendError, Output, Step};
use crate::cache::SlotCopy;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// In this order: the copies, one after another, then the step.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) copies: Vec<SlotCopy>,
    /// A segment for each running sequence with a share, in order.
    pub(super) step: Step,
}

impl Work {
    pub(super) fn is_empty(&self) -> bool {
        self.copies.is_empty() && self.step.segments.is_empty()
    }

    /// Has it computed; the logits are then as [`Backend::run`] says. A panic of the backend is an error like any
    /// other: what it leaves behind is what a failed device leaves, pages that are undefined and go back to the pool.
    ///
    /// # Errors
    /// The backend's. No page but those that the work writes is affected, unless the device is lost.
    pub(super) fn run(
        &self,
        backend: &mut dyn Backend,
        logits: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        logits.clear();
        catch_unwind(AssertUnwindSafe(|| self.call(backend, logits))).unwrap_or_else(|panic| {
            let message = panic.downcast_ref::<&str>().copied();
            let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let message = message.unwrap_or("no message");
            Err(BackendError::Device(format!("it panicked: {message}")))
        })
    }

    fn call(&self, backend: &mut dyn Backend, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        for copy in &self.copies {
            backend.copy_slots(copy.from, copy.to, copy.tokens)?;
        }
        if self.step.segments.is_empty() {
            return Ok(());
        }
        backend.run(&self.step, logits)
    }

    /// The logits, if there are as many as were asked for: `[rows, vocabulary]`.
    pub(super) fn checked<'l>(
        &self,
        logits: &'l mut [f32],
        vocabulary: u32,
    ) -> Result<&'l mut [f32], BackendError> {
        let segments = self.step.segments.iter();
        let rows = segments
            .filter(|segment| segment.output == Output::Last)
            .count();
        if logits.len() == rows * vocabulary as usize {
            return Ok(logits);
        }
        let found = logits.len();
        Err(BackendError::Device(format!(
            "it computed {found} logits, not {rows} rows of {vocabulary}"
        )))
    }
}
