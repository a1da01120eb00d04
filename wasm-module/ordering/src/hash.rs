//! Maps whose keys are hashes of clients' bytes, or follow from them.
//!
//! Their hasher has a key, since a client could choose documents whose hashes fill one part of a map: growing it, and each
//! look-up there, would then take time in proportion to its size. Maps are used for look-up only, so that workers with
//! different keys decide alike.

use siphasher::sip::SipHasher13;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) type KeyedMap<K, V> = HashMap<K, V, Keyed>;
pub(crate) type KeyedSet<K> = HashSet<K, Keyed>;

/// Sets the key of all maps that are created from now on. Programs that serve clients call it first, with a random number;
/// without it the key is 0.
pub fn set_key(key: u64) {
    KEY.store(key, Ordering::Relaxed);
}

static KEY: AtomicU64 = AtomicU64::new(0);

/// Hashes with the key that was set when this value was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keyed(u64);

impl Default for Keyed {
    fn default() -> Self {
        Self(KEY.load(Ordering::Relaxed))
    }
}

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, !self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_fall_together_under_one_key_do_not_under_another() {
        let low = |key: u64, number: u64| Keyed(key).hash_one(number) & 0xfff;
        let chosen: Vec<u64> = (0..1 << 20).filter(|number| low(1, *number) == 0).collect();
        assert!(chosen.len() > 200);
        let together = chosen.iter().filter(|number| low(2, **number) == 0);
        assert!(together.count() < 5);
    }
}
