//! A stored tensor: its number type, its shape and its bytes.

use super::packing::Packing;
use half::{bf16, f16};
use rayon::prelude::*;
use std::borrow::Cow;

/// The number type in which a tensor is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 32-bit floating point (IEEE 754 binary32).
    F32,
    /// bfloat16: the upper half of the bits of an [`Element::F32`].
    Bf16,
    /// 16-bit floating point (IEEE 754 binary16).
    F16,
    /// Blocks of integers with scales, in one of the formats of GGUF files.
    Packed(Packing),
}

impl Element {
    /// Returns the number of values in a block, and the block's size in bytes. In a type that is not packed, a block is
    /// one value.
    pub(crate) const fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::Bf16 | Self::F16 => (1, 2),
            Self::Packed(packing) => packing.block(),
        }
    }
}

/// A matrix `[rows, columns]` or a vector `[1, columns]`, row-major, little-endian. If packed, a row is whole blocks.
pub(crate) struct Tensor<'a> {
    pub(crate) element: Element,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// The bytes of `rows * columns` values, in the number type `element`.
    pub(crate) data: Cow<'a, [u8]>,
}

impl Tensor<'_> {
    /// Returns all values, converted to f32.
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

    /// Returns the bytes of all values in bf16, little-endian: unchanged if stored so, otherwise rounded to nearest,
    /// ties to even.
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

    /// Returns this tensor if it is not packed, otherwise one with its values converted to bf16.
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

    /// Returns the result of `map` for each value of this tensor, in order. The tensor must be packed in the format
    /// `packing`.
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

/// Returns the numbers of rows and columns of a tensor with this shape; a vector is one row.
pub(super) fn rows_and_columns(shape: &[usize]) -> (usize, usize) {
    match *shape {
        [rows, columns] => (rows, columns),
        _ => (1, shape.iter().product()),
    }
}
