//! A stored tensor: its number type, its shape and its bytes.

use super::packing::Packing;
use half::{bf16, f16};
use rayon::prelude::*;
use std::borrow::Cow;

/// The number type of a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// IEEE 754 binary32.
    F32,
    /// The upper half of an [`Element::F32`].
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// Blocks of integers with scales.
    Packed(Packing),
}

impl Element {
    /// Returns the count of numbers in a block, and the block's size in bytes. A block of an unpacked type is one
    /// number.
    pub(crate) const fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::Bf16 | Self::F16 => (1, 2),
            Self::Packed(packing) => packing.block(),
        }
    }
}

/// A matrix `[rows, columns]` or a vector `[1, columns]`, row-major, little-endian. A packed row is whole blocks.
pub(crate) struct Tensor<'a> {
    pub(crate) element: Element,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// The bytes of `rows * columns` elements.
    pub(crate) data: Cow<'a, [u8]>,
}

impl Tensor<'_> {
    /// Returns the values, widened to f32.
    pub(crate) fn to_f32(&self) -> Vec<f32> {
        match self.element {
            Element::F32 => self.chunks().map(f32::from_le_bytes).collect(),
            Element::Bf16 => self
                .chunks()
                .map(|b| bf16::from_le_bytes(b).to_f32())
                .collect(),
            Element::F16 => self
                .chunks()
                .map(|b| f16::from_le_bytes(b).to_f32())
                .collect(),
            Element::Packed(packing) => self.map_packed(packing, |value| value),
        }
    }

    /// Returns the values in bf16, little-endian: unchanged if stored so, otherwise rounded to nearest even.
    pub(crate) fn to_bf16(&self) -> Cow<'_, [u8]> {
        let narrow = |value: f32| bf16::from_f32(value).to_le_bytes();
        match self.element {
            Element::Bf16 => Cow::Borrowed(&*self.data),
            Element::F32 => {
                let values = self.data.as_chunks::<4>().0.par_iter();
                let bytes = values
                    .map(|b| narrow(f32::from_le_bytes(*b)))
                    .collect::<Vec<_>>();
                Cow::Owned(bytes.into_flattened())
            }
            Element::F16 => {
                let values = self.data.as_chunks::<2>().0.par_iter();
                let wide = values.map(|b| f16::from_le_bytes(*b).to_f32());
                Cow::Owned(wide.map(narrow).collect::<Vec<_>>().into_flattened())
            }
            Element::Packed(packing) => {
                Cow::Owned(self.map_packed(packing, narrow).into_flattened())
            }
        }
    }

    /// Returns this tensor if it is not packed, otherwise one with its values rounded to bf16.
    pub(crate) fn unpacked(&self) -> Tensor<'_> {
        let (element, data) = match self.element {
            Element::Packed(_) => (Element::Bf16, self.to_bf16()),
            element => (element, Cow::Borrowed(&*self.data)),
        };
        Tensor {
            element,
            data,
            ..*self
        }
    }

    /// Returns `map` of each value of a packed tensor, in order.
    fn map_packed<T: Copy + Default + Send>(
        &self,
        packing: Packing,
        map: impl Fn(f32) -> T + Sync,
    ) -> Vec<T> {
        let (numbers, size) = packing.block();
        let mut mapped = vec![T::default(); self.data.len() / size * numbers];
        let blocks = self.data.par_chunks_exact(size);
        (blocks.zip(mapped.par_chunks_exact_mut(numbers))).for_each(|(block, to)| {
            let mut values = [0.0; 256];
            packing.unpack(block, &mut values);
            for (to, value) in to.iter_mut().zip(values) {
                *to = map(value);
            }
        });
        mapped
    }

    fn chunks<const N: usize>(&self) -> impl Iterator<Item = [u8; N]> {
        self.data.as_chunks::<N>().0.iter().copied()
    }
}

/// Returns a shape's rows and columns; a vector is one row.
pub(super) fn rows_and_columns(shape: &[usize]) -> (usize, usize) {
    match *shape {
        [rows, columns] => (rows, columns),
        _ => (1, shape.iter().product()),
    }
}
