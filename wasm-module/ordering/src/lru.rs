//! A map that evicts the least recently used of its values.

use crate::recency::Recency;
use crate::slots::Slots;
use fxhash::FxBuildHasher;
use std::collections::HashMap;
use std::fmt::{self, Debug, Formatter};
use std::hash::{BuildHasher, Hash};

/// A map that knows the order in which its values were last used. The caller of [`Lru::insert`] gives the maximum
/// number of values. A map of more than a few thousand has a hasher with a key, such as `hash::MapHasher`.
pub struct Lru<K, T, S = FxBuildHasher> {
    places: HashMap<K, u32, S>,
    entries: Slots<Option<(K, T)>>,
    recency: Recency,
}

impl<K: Debug, T: Debug, S> Debug for Lru<K, T, S> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.entries.fmt(f)
    }
}

impl<K, T, S: Default> Default for Lru<K, T, S> {
    fn default() -> Self {
        Self {
            places: HashMap::default(),
            entries: Slots::default(),
            recency: Recency::default(),
        }
    }
}

impl<K: Clone + Eq + Hash, T, S: BuildHasher> Lru<K, T, S> {
    /// Returns the number of values in the map.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the value with this key, without marking it as used; `None` if there is none.
    pub fn peek(&self, key: &K) -> Option<&T> {
        let entry = self.entries.get(*self.places.get(key)?)?;
        entry.as_ref().map(|(_, value)| value)
    }

    /// Returns the value with this key, and marks it as used; `None` if there is none.
    pub fn get(&mut self, key: &K) -> Option<&mut T> {
        let place = *self.places.get(key)?;
        self.recency.touch(place);
        let entry = self.entries.get_mut(place)?;
        entry.as_mut().map(|(_, value)| value)
    }

    /// Sets the value with this key and marks it as used. For a new key, first evicts the least recently used values
    /// until fewer than `max` are left (the new value is stored even if `max` is 0).
    pub fn insert(&mut self, key: K, value: T, max: usize) {
        if let Some(known) = self.get(&key) {
            *known = value;
            return;
        }
        while self.len() >= max.max(1) && self.pop().is_some() {}
        let place = self.entries.put(Some((key.clone(), value)));
        self.places.insert(key, place);
        self.recency.add(place);
    }

    /// Removes and returns the least recently used value with its key; `None` if there is no value.
    pub fn pop(&mut self) -> Option<(K, T)> {
        let place = self.recency.oldest()?;
        self.recency.remove(place);
        self.entries.release(place);
        let (key, value) = self.entries.get_mut(place)?.take()?;
        self.places.remove(&key);
        Some((key, value))
    }

    /// Removes and returns the value with this key; `None` if there is none.
    pub fn remove(&mut self, key: &K) -> Option<T> {
        let place = self.places.remove(key)?;
        self.recency.remove(place);
        self.entries.release(place);
        let (_, value) = self.entries.get_mut(place)?.take()?;
        Some(value)
    }

    /// Iterates over the values of the map, in no particular order.
    #[cfg(test)]
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten().map(|(_, value)| value)
    }
}
