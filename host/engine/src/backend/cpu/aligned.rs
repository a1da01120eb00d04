//! Memory that begins on a cache line, because a vector load that crosses one costs two loads. Large allocations use
//! huge pages where the system has them, because streaming gigabytes through 4 KiB pages spends part of its time on
//! address translation.

#![allow(
    unsafe_code,
    reason = "asking for large pages is a system call on an address"
)]

use std::ops::{Deref, DerefMut};

/// An array of values whose first value is at the start of a cache line of 64 bytes.
#[derive(Default)]
pub(super) struct Aligned<T> {
    /// The allocation; the array begins at index `start` of it. Never grown in place, because that would move it and
    /// change its alignment.
    memory: Vec<T>,
    start: usize,
    length: usize,
}

/// Number of bytes in a cache line of the CPU.
const LINE: usize = 64;

impl<T: Copy + Default> Aligned<T> {
    /// Returns an array of `length` default values. A large allocation of zero floats takes no memory until it is used.
    pub(super) fn new(length: usize) -> Self {
        let memory = vec![T::default(); length + LINE / size_of::<T>()];
        want_large_pages(memory.as_ptr(), memory.len());
        Self::over(memory, length)
    }

    /// Returns an array of `length` default values whose memory is written at once, for arrays that are about to be
    /// filled, such as weights.
    pub(super) fn touched(length: usize) -> Self {
        let mut memory = Vec::with_capacity(length + LINE / size_of::<T>());
        // Asked before the first touch, because a small page stays small.
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

    /// Sets the number of values to `length`. Keeps the values if the memory suffices; if the memory must grow, all
    /// become default values.
    pub(super) fn resize(&mut self, length: usize) {
        if self.start + length > self.memory.len() {
            *self = Self::new(length);
        }
        self.length = length;
    }
}

/// Does nothing: outside Linux the choice of memory page sizes is left to the system.
#[cfg(not(target_os = "linux"))]
fn want_large_pages<T>(_: *const T, _: usize) {}

/// Asks Linux to back the memory of the `length` values from `start` with huge pages, for systems that leave this to
/// programs.
#[cfg(target_os = "linux")]
fn want_large_pages<T>(start: *const T, length: usize) {
    /// Size in bytes below which asking for huge pages is not worth a system call.
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
        // The last length uses large pages, where there are any.
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
