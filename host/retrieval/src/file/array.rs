//! Numbers that stand in a mapped file, or in memory once they are changed.

use bytemuck::Pod;
use memmap2::Mmap;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A slice of a mapped file, or a vector.
pub struct Array<T: Pod>(Place<T>);

enum Place<T: Pod> {
    /// Bytes that are aligned and whole, as checked by [`Array::mapped`].
    Mapped(Arc<Mmap>, Range<usize>),
    Owned(Vec<T>),
}

impl<T: Pod> Array<T> {
    /// Numbers in memory.
    #[must_use]
    pub fn owned(values: Vec<T>) -> Self {
        Self(Place::Owned(values))
    }

    /// The numbers in `bytes` of a mapped file; `None` where they are not there, not aligned or not whole.
    #[must_use]
    pub fn mapped(map: Arc<Mmap>, bytes: Range<usize>) -> Option<Self> {
        bytemuck::try_cast_slice::<u8, T>(map.get(bytes.clone())?).ok()?;
        Some(Self(Place::Mapped(map, bytes)))
    }

    /// The numbers, to be changed: read into memory before the first change.
    pub fn to_mut(&mut self) -> &mut Vec<T> {
        if let Place::Mapped(..) = self.0 {
            self.0 = Place::Owned(self.to_vec());
        }
        match &mut self.0 {
            Place::Owned(values) => values,
            Place::Mapped(..) => unreachable!("made to be owned above"),
        }
    }
}

impl<T: Pod> Deref for Array<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.0 {
            Place::Mapped(map, bytes) => bytemuck::cast_slice(&map[bytes.clone()]),
            Place::Owned(values) => values,
        }
    }
}

impl<T: Pod> Default for Array<T> {
    fn default() -> Self {
        Self::owned(Vec::new())
    }
}
