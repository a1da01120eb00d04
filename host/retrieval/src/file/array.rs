//! Arrays of numbers in a mapped file, copied to memory when they are changed.

use bytemuck::Pod;
use memmap2::Mmap;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A slice of a mapped file, or a vector in memory.
pub struct Array<T: Pod>(Storage<T>);

enum Storage<T: Pod> {
    /// An aligned range of whole numbers in a mapped file, as [`Array::mapped`] has checked.
    Mapped(Arc<Mmap>, Range<usize>),
    Owned(Vec<T>),
}

impl<T: Pod> Array<T> {
    /// Returns an array in memory.
    #[must_use]
    pub fn owned(values: Vec<T>) -> Self {
        Self(Storage::Owned(values))
    }

    /// Returns the numbers in `bytes` of a mapped file; `None` if the range is outside the file, unaligned or not a
    /// whole number of elements.
    #[must_use]
    pub fn mapped(map: Arc<Mmap>, bytes: Range<usize>) -> Option<Self> {
        bytemuck::try_cast_slice::<u8, T>(map.get(bytes.clone())?).ok()?;
        Some(Self(Storage::Mapped(map, bytes)))
    }

    /// Returns the numbers for changing; the first call copies them to memory.
    pub fn to_mut(&mut self) -> &mut Vec<T> {
        if let Storage::Mapped(..) = self.0 {
            self.0 = Storage::Owned(self.to_vec());
        }
        match &mut self.0 {
            Storage::Owned(values) => values,
            Storage::Mapped(..) => unreachable!("made to be owned above"),
        }
    }
}

impl<T: Pod> Deref for Array<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.0 {
            Storage::Mapped(map, bytes) => bytemuck::cast_slice(&map[bytes.clone()]),
            Storage::Owned(values) => values,
        }
    }
}

impl<T: Pod> Default for Array<T> {
    fn default() -> Self {
        Self::owned(Vec::new())
    }
}
