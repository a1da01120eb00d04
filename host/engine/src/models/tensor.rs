//! A stored tensor: its number type, its shape and its bytes.

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
}

impl Element {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

/// A matrix `[rows, columns]` or a vector `[1, columns]`, row-major, little-endian.
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
        }
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
