//! Memory on cache-line boundaries, since a vector load that crosses one costs two, and in large pages where the system
//! has them, since streaming gigabytes through 4 KiB pages spends a part of its time on translating addresses.

#![allow(
    unsafe_code,
    reason = "asking for large pages is a system call on an address"
)]

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
    /// `length` default values. Zeroes of a large allocation of floats cost nothing until they are touched.
    pub(super) fn new(length: usize) -> Self {
        let memory = vec![T::default(); length + LINE / size_of::<T>()];
        want_large_pages(memory.as_ptr(), memory.len());
        Self::over(memory, length)
    }

    /// `length` default values that are all written at once: what is about to be filled, as weights are.
    pub(super) fn touched(length: usize) -> Self {
        let mut memory = Vec::with_capacity(length + LINE / size_of::<T>());
        // Before the first touch: a small page stays small.
        want_large_pages(memory.as_ptr(), memory.capacity());
        memory.resize(length + LINE / size_of::<T>(), T::default());
        Self::over(memory, length)
    }

    fn over(memory: Vec<T>, length: usize) -> Self {
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

/// Elsewhere the system decides by itself.
#[cfg(not(target_os = "linux"))]
fn want_large_pages<T>(_: *const T, _: usize) {}

/// Asks Linux to back whole pages of `length` values from `start` on by large ones, where it leaves that to programs.
#[cfg(target_os = "linux")]
fn want_large_pages<T>(start: *const T, length: usize) {
    /// Smaller pieces of memory are not worth a system call.
    const WORTH: usize = 4 << 20;
    const PAGE: usize = 4096;
    let bytes = length * size_of::<T>();
    if bytes >= WORTH {
        let skipped = start.addr().next_multiple_of(PAGE) - start.addr();
        // SAFETY: the range lies within an allocation; the advice changes no content. Refusal costs speed only.
        unsafe {
            libc::madvise(
                start.byte_add(skipped).cast_mut().cast(),
                (bytes - skipped) / PAGE * PAGE,
                libc::MADV_HUGEPAGE,
            );
        }
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
        // The last in large pages, where there are any.
        for length in [1, 31, 1000, 5, 3 << 20] {
            values.resize(length);
            assert_eq!(values.len(), length);
            assert_eq!(values.as_ptr().addr() % LINE, 0);
            let filled = Aligned::<[u16; 2]>::touched(length);
            assert_eq!(filled.len(), length);
            assert_eq!(filled.as_ptr().addr() % LINE, 0);
        }
    }
}
