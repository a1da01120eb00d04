//! Maps whose keys are hashes of clients' bytes, or follow from them.
//!
//! Their hasher has a key, since a client could choose documents whose hashes fill one part of a map: growing it, and each
//! look-up there, would then take time in proportion to its size. Maps are used for look-up only, so that workers with
//! different keys decide alike.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) type KeyedMap<K, V> = HashMap<K, V, MapHasher>;
pub(crate) type KeyedSet<K> = HashSet<K, MapHasher>;

#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
pub(crate) type MapHasher = keyed::Keyed;
/// The hasher in a browser, without a key: a page that chooses colliding documents slows only itself, and a second hasher
/// would make the npm package larger.
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
pub(crate) type MapHasher = fxhash::FxBuildHasher;

/// Sets the key of all maps that are created from now on. Programs that serve clients call it first, with a random number;
/// without it the key is 0.
pub fn set_key(key: u64) {
    KEY.store(key, Ordering::Relaxed);
}

static KEY: AtomicU64 = AtomicU64::new(0);

#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
mod keyed {
    use super::KEY;
    use std::hash::{BuildHasher, Hasher};
    use std::sync::atomic::Ordering;

    /// Hashes with the key that was set when this value was made.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Keyed(pub(super) u64);

    impl Default for Keyed {
        fn default() -> Self {
            Self(KEY.load(Ordering::Relaxed))
        }
    }

    impl BuildHasher for Keyed {
        type Hasher = KeyedHasher;

        fn build_hasher(&self) -> KeyedHasher {
            KeyedHasher {
                state: 0,
                key: self.0,
            }
        }
    }

    /// A hasher for a few numbers that are hashes themselves: the last one is mixed with the key. SipHash would cost a request
    /// up to 90 instructions a byte.
    pub(crate) struct KeyedHasher {
        state: u64,
        key: u64,
    }

    impl Hasher for KeyedHasher {
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.write_u64(u64::from(*byte));
            }
        }

        fn write_u32(&mut self, number: u32) {
            self.write_u64(u64::from(number));
        }

        fn write_u64(&mut self, number: u64) {
            self.state = self.state.wrapping_mul(MULTIPLIER).rotate_left(26) ^ number;
        }

        fn write_usize(&mut self, number: usize) {
            self.write_u64(number as u64);
        }

        fn write_u128(&mut self, number: u128) {
            self.write_u64(number as u64);
            self.write_u64((number >> 64) as u64);
        }

        /// Maps choose their places by the lower bits, on which all bits of the product depend.
        fn finish(&self) -> u64 {
            let hash = (self.state ^ self.key).wrapping_mul(MULTIPLIER);
            hash ^ hash >> 32
        }
    }

    /// Odd, with its bits well mixed (SplitMix64's).
    const MULTIPLIER: u64 = 0xbf58_476d_1ce4_e5b9;
}

#[cfg(test)]
mod tests {
    use super::keyed::Keyed;
    use std::hash::BuildHasher;

    #[test]
    fn numbers_that_fall_together_under_one_key_do_not_under_another() {
        let low = |key: u64, number: u64| Keyed(key).hash_one(number) & 0xfff;
        let chosen: Vec<u64> = (0..1 << 20).filter(|number| low(1, *number) == 0).collect();
        assert!(chosen.len() > 200);
        let together = chosen.iter().filter(|number| low(2, **number) == 0);
        assert!(together.count() < 5);
    }
}
