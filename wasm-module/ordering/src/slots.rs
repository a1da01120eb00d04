//! An arena: values in numbered slots.

use fxhash::FxHashSet;

/// Values in numbered slots, found by number. The number of a released slot is given to a later value.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    all: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    /// Stores a value in an unused slot and returns the slot's number. Callers' bounds are far below 2^32 values.
    pub(crate) fn put(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                if let Some(slot) = self.get_mut(number) {
                    *slot = value;
                }
                number
            }
            None => {
                self.all.push(value);
                u32::try_from(self.all.len() - 1).unwrap_or(u32::MAX)
            }
        }
    }

    /// Releases the slot with this number, which must be in use. The slot's value remains until another one takes its
    /// place.
    pub(crate) fn release(&mut self, number: u32) {
        self.free.push(number);
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.all.get(number as usize)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.all.get_mut(number as usize)
    }

    /// Returns the number of slots in use.
    pub(crate) fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Iterates over the values whose slots were not released.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let free: FxHashSet<u32> = self.free.iter().copied().collect();
        let all = (0_u32..).zip(&self.all);
        let used = all.filter(move |(number, _)| !free.contains(number));
        used.map(|(_, value)| value)
    }
}
