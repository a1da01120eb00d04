//! Shared data for the filter: a key-value store for the whole process, as Envoy has for Wasm.
//!
//! All workers share a plugin here, so they already know each other's updates. But a plugin that replaces another one,
//! when the configuration changes, learns from it what the other one knew.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Values, each with the number of its last change.
static DATA: Mutex<Option<Data>> = Mutex::new(None);

type Data = HashMap<String, (Vec<u8>, u32)>;

/// Returns the value of a key, and the number of its last change.
pub(crate) fn get(key: &str) -> Option<(Vec<u8>, u32)> {
    lock().as_ref()?.get(key).cloned()
}

/// Sets a value; with `unchanged_since`, only if that is the number of its last change. Returns whether it was set.
pub(crate) fn set(key: &str, value: &[u8], unchanged_since: Option<u32>) -> bool {
    let mut data = lock();
    let data = data.get_or_insert_default();
    let number = data.get(key).map_or(0, |(_, number)| *number);
    if unchanged_since.is_some_and(|since| since != number) {
        return false;
    }
    let next = number.checked_add(1).unwrap_or(1);
    data.insert(key.to_owned(), (value.to_vec(), next));
    true
}

/// Locks the map. No call leaves it half changed, so a panic elsewhere spoils nothing.
fn lock() -> MutexGuard<'static, Option<Data>> {
    DATA.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_replaced_only_by_who_has_seen_it() {
        assert_eq!(get("a key"), None);
        assert!(set("a key", b"one", None));
        let (value, number) = get("a key").unwrap();
        assert_eq!(value, b"one");
        assert!(set("a key", b"two", Some(number)));
        assert!(!set("a key", b"three", Some(number)));
        assert_eq!(get("a key").unwrap().0, b"two");
    }
}
