//! A value that the requests of one plugin share and that one of them uses at a time.
//!
//! A Wasm VM runs on one worker thread, so there the value is always free, unless a host nests callbacks. Then the
//! request is handled without the value instead of trapping the worker. In a dynamic module all workers share the
//! plugin and wait for each other, for the microseconds that an order or a look-up takes.

use std::sync::{Mutex, MutexGuard, TryLockError};

/// A value that the requests of one plugin share behind a lock.
#[derive(Debug)]
pub(crate) struct Shared<T>(Mutex<T>);

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Locks the value, waiting for other threads. If a thread panicked while it held the lock, the value may be half
    /// changed: then `renew` repairs it first. `None` only in a Wasm VM, which has one thread, if an outer callback on
    /// it holds the lock; no known proxy causes that.
    pub(crate) fn lock(&self, renew: impl FnOnce(&mut T)) -> Option<MutexGuard<'_, T>> {
        let poisoned = match self.0.try_lock() {
            Ok(value) => return Some(value),
            // The only thread would wait for itself.
            Err(TryLockError::WouldBlock) if cfg!(target_arch = "wasm32") => return None,
            Err(TryLockError::WouldBlock) => match self.0.lock() {
                Ok(value) => return Some(value),
                Err(poisoned) => poisoned,
            },
            Err(TryLockError::Poisoned(poisoned)) => poisoned,
        };
        let mut value = poisoned.into_inner();
        renew(&mut value);
        self.0.clear_poison();
        Some(value)
    }

    /// Locks the value without waiting; `None` if it is locked. If a thread panicked while it held the lock, the value
    /// is returned unrepaired.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(value) => Some(value),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_panic_the_value_is_renewed_once() {
        let shared = Shared::new(1);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut value = shared.lock(|_| unreachable!()).unwrap();
            *value = 2;
            panic!("for the test");
        }));
        assert!(caught.is_err());
        assert_eq!(*shared.lock(|value| *value = 3).unwrap(), 3);
        assert_eq!(*shared.lock(|_| unreachable!()).unwrap(), 3);
    }
}
