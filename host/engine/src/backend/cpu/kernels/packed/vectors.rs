//! Formats and operands as the vector kernels take them: a format as a type, operands as pointers.

use super::{BLOCK, Checked, Layout, PANEL};
use crate::models::Packing;

/// A quantisation format as a type, so that the kernel is compiled once for each format.
pub(super) trait Format {
    const PACKING: Packing;
    const LAYOUT: Layout = Layout::of(Self::PACKING);
    /// True if each block of 32 inputs has one scale for its first 16 inputs and another for its last 16.
    const HALVES: bool = matches!(Self::PACKING, Packing::Q6K);
    /// True if a weight is its integer times a scale, without an offset.
    const PLAIN: bool = matches!(Self::PACKING, Packing::Q5_0 | Packing::Q8_0);
    /// True if each sum of two products is widened from 16 to 32 bits at once, because sums of more do not fit 16 bits.
    const WIDE: bool = Self::LAYOUT.integers == BLOCK * PANEL && !Self::HALVES;
}

macro_rules! formats {
    ($($name:ident)*) => { $(
        pub(super) struct $name;
        impl Format for $name {
            const PACKING: Packing = Packing::$name;
        }
    )* };
}

formats!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4K Q5K Q6K);

/// Calls `$function` with the type that stands for the format `$packing`.
macro_rules! by_format {
    ($packing:expr, $function:ident($argument:expr)) => {{
        use crate::backend::cpu::kernels::packed::vectors;
        match $packing {
            Packing::Q4_0 => $function::<vectors::Q4_0>($argument),
            Packing::Q4_1 => $function::<vectors::Q4_1>($argument),
            Packing::Q5_0 => $function::<vectors::Q5_0>($argument),
            Packing::Q5_1 => $function::<vectors::Q5_1>($argument),
            Packing::Q8_0 => $function::<vectors::Q8_0>($argument),
            Packing::Q4K => $function::<vectors::Q4K>($argument),
            Packing::Q5K => $function::<vectors::Q5K>($argument),
            Packing::Q6K => $function::<vectors::Q6K>($argument),
        }
    }};
}

pub(super) use by_format;

/// Pointers to the operands of a product: activations, their scales and the outputs from one row on, and the weights.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) a: *const i8,
    pub(super) scales: *const [f32; 2],
    pub(super) inputs: usize,
    pub(super) panel: *const u8,
    pub(super) c: *mut f32,
}

impl Tile {
    /// Returns the operands of `product` from row `row` on, one of the rows to compute.
    ///
    /// # Safety
    /// `row` is one of the product's rows.
    pub(super) unsafe fn of(product: &mut Checked<'_>, row: usize) -> Self {
        let p = &mut product.0;
        // SAFETY: the row lies in `a`, in `scales` and in `c`, as checked.
        unsafe {
            Self {
                a: p.a.as_ptr().add(row * p.inputs),
                scales: p.scales.as_ptr().add(row * (p.inputs / BLOCK)),
                inputs: p.inputs,
                panel: p.panel.as_ptr(),
                c: p.c.as_mut_ptr().add((row - p.rows.start) * PANEL),
            }
        }
    }
}
