//! An arena of values, each known by its slot's number.

/// Values in numbered slots. The number of a value that was released is given to a later one.
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
    /// Stores a value, and returns its number. The callers' bounds are far below 2^32 values.
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

    /// Releases a number. Its value remains until another one takes its place.
    pub(crate) fn release(&mut self, number: u32) {
        self.free.push(number);
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.all.get(number as usize)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.all.get_mut(number as usize)
    }

    /// Returns how many values are not released.
    pub(crate) fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Iterates over the values that are not released. O(values · released).
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let all = (0_u32..).zip(&self.all);
        let used = all.filter(|(number, _)| !self.free.contains(number));
        used.map(|(_, value)| value)
    }
}
