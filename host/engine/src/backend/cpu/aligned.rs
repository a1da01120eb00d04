//! Memory on cache-line boundaries: a vector load that crosses one costs two.

use std::ops::{Deref, DerefMut};

/// Values that start on a cache line.
pub(super) struct Aligned<T> {
    /// Never grown once `start` is known: growing would move it.
    memory: Vec<T>,
    start: usize,
    length: usize,
}

/// Bytes of a cache line.
const LINE: usize = 64;

impl<T: Copy + Default> Aligned<T> {
    /// `length` default values. Zeroes of a large allocation cost nothing until they are touched.
    pub(super) fn new(length: usize) -> Self {
        let memory = vec![T::default(); length + LINE / size_of::<T>()];
        let start = memory
            .as_ptr()
            .align_offset(LINE)
            .min(memory.len() - length);
        Self {
            memory,
            start,
            length,
        }
    }

    /// Makes it `length` values long. What it held is lost where it has to grow, kept otherwise.
    pub(super) fn resize(&mut self, length: usize) {
        if self.start + length > self.memory.len() {
            *self = Self::new(length);
        }
        self.length = length;
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.memory[self.start..self.start + self.length]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_start_on_a_cache_line_whatever_the_length() {
        let mut values = Aligned::<u16>::new(0);
        for length in [1, 31, 1000, 5, 100_000] {
            values.resize(length);
            assert_eq!(values.len(), length);
            assert_eq!(values.as_ptr().addr() % LINE, 0);
        }
    }
}
