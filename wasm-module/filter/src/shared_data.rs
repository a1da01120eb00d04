//! Shared data for modules that embed the filter in a process of their own: a key-value store, like Envoy's for its
//! Wasm VMs.
//!
//! Workers that share a plugin need no store to share updates about cached prefixes. But when the configuration
//! changes, the new plugin reads the old one's updates from here.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A key-value store that any thread may use. Each value has a number that changes with every write, for
/// compare-and-swap.
#[derive(Debug, Default)]
pub struct SharedData(Mutex<Option<Data>>);

type Data = HashMap<String, (Vec<u8>, u32)>;

impl SharedData {
    /// Returns an empty key-value store.
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Returns the value of `key` and the number of its last write; `None` if the key was never set.
    pub fn get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        self.lock().as_ref()?.get(key).cloned()
    }

    /// Sets the value of `key`. If `unchanged_since` is given, sets it only if that is the number of the value's last
    /// write (0 if the key was never set). Returns whether the value was set.
    pub fn set(&self, key: &str, value: &[u8], unchanged_since: Option<u32>) -> bool {
        let mut data = self.lock();
        let data = data.get_or_insert_default();
        let number = data.get(key).map_or(0, |(_, number)| *number);
        if unchanged_since.is_some_and(|since| since != number) {
            return false;
        }
        let next = number.checked_add(1).unwrap_or(1);
        data.insert(key.to_owned(), (value.to_vec(), next));
        true
    }

    /// Locks the store's map. No method leaves the map half changed, so it is used even if a thread panicked while
    /// holding the lock.
    fn lock(&self) -> MutexGuard<'_, Option<Data>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_replaced_only_by_who_has_seen_it() {
        let data = SharedData::new();
        assert_eq!(data.get("a key"), None);
        assert!(data.set("a key", b"one", None));
        let (value, number) = data.get("a key").unwrap();
        assert_eq!(value, b"one");
        assert!(data.set("a key", b"two", Some(number)));
        assert!(!data.set("a key", b"three", Some(number)));
        assert_eq!(data.get("a key").unwrap().0, b"two");
    }
}
