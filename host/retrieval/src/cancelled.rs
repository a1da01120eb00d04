//! Cancellation of a search: the caller holds a guard, and dropping it sets a flag that the search checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that ends a search whose caller has disconnected. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Cancelled(Arc<AtomicBool>);

/// Cancels a search when it is dropped.
#[derive(Debug)]
#[must_use]
pub struct CancelOnDrop(Cancelled);

impl Cancelled {
    /// Returns whether the search has been cancelled.
    #[must_use]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns a guard that cancels the search when it is dropped.
    pub fn on_drop(&self) -> CancelOnDrop {
        CancelOnDrop(self.clone())
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}
