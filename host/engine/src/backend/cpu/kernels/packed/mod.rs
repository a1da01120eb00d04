//! Products of 8-bit activations with weights that stay packed ([`Packing`]), summed exactly as integers in each block
//! of 32 inputs and then in f32.
//!
//! ```text
//!  a (left)    [row][input] i8, and [row][input / 32] of scale and sum of the integers
//!  b (right)   panels of 32 outputs; a panel is a stream of records, each with a block for every output
//!  c           [row][32] f32
//!
//!  a record    head     K types: [32] f16 scales, then [32] f16 offsets if there are any
//!              blocks   1, or 8 of K types, each for 32 inputs:
//!                         4 bits   [input % 16 / 4][output][input % 4] u8, inputs from 16 on in the upper halves
//!                         8 bits   [input / 4][output][input % 4] i8; those of 5 and 6 bits are widened
//!                         scales   [32] f16, then offsets; of K types [32] of 8 bits, or [2][32] for 16 inputs each
//! ```
//!
//! Four adjacent inputs of an output make up the 32 bits that an instruction sums. An output is the sum over blocks, in
//! ascending order, of
//!
//! ```text
//!  (scale of the weights · Σ integer products + offset of the weights · Σ integers of a) · scale of a
//! ```
//!
//! Each operation is rounded and none is fused, so an output has the same bits with any instruction set, whatever rows
//! are computed with it. Weights enter as the file's numbers exactly; only activations are rounded, to 1/254 of the
//! largest of 32.

#[cfg(not(target_arch = "x86_64"))]
#[path = "absent.rs"]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
mod vectors;
#[cfg(not(target_arch = "x86_64"))]
pub(super) use avx2 as vnni;
#[cfg(target_arch = "x86_64")]
pub(super) mod vnni;

use super::{Loop, PANEL};
use crate::models::Packing;
use half::f16;
use std::ops::Range;

/// Number of inputs in a block, whose products are summed exactly as integers.
pub(in super::super) const BLOCK: usize = 32;
/// Number of adjacent inputs that are stored together for each output.
const GROUP: usize = 4;

/// The sizes of a record: the unit of a panel's memory, with 32 or 256 inputs of 32 outputs, see the [module](self).
#[derive(Clone, Copy)]
struct Layout {
    /// Number of blocks of 32 inputs in a record: 1 or 8.
    blocks: usize,
    /// Bytes of a record's head, which has the scales (and offsets) that all its blocks share; 0 if they share none.
    head: usize,
    /// Bytes of the weights' integers in a block of 32 inputs of 32 outputs.
    integers: usize,
    /// Bytes of a block: its integers and its scales.
    block: usize,
}

impl Layout {
    const fn of(packing: Packing) -> Self {
        let (blocks, head, bits, scales) = match packing {
            Packing::Q4_0 => (1, 0, 4, 2 * PANEL),
            Packing::Q4_1 => (1, 0, 4, 4 * PANEL),
            Packing::Q5_1 => (1, 0, 8, 4 * PANEL),
            Packing::Q5_0 | Packing::Q8_0 => (1, 0, 8, 2 * PANEL),
            Packing::Q4K => (8, 4 * PANEL, 4, 2 * PANEL),
            Packing::Q5K => (8, 4 * PANEL, 8, 2 * PANEL),
            Packing::Q6K => (8, 2 * PANEL, 8, 2 * PANEL),
        };
        let integers = BLOCK * PANEL * bits / 8;
        Self {
            blocks,
            head,
            integers,
            block: integers + scales,
        }
    }

    const fn record(self) -> usize {
        self.head + self.blocks * self.block
    }

    /// Returns two byte offsets in a panel (32 outputs): of the head of the record that has block `block`, and of the
    /// block itself. A block is 32 inputs; the head of a record has the scales that its blocks share.
    const fn places(self, block: usize) -> (usize, usize) {
        let head = block / self.blocks * self.record();
        (head, head + self.head + block % self.blocks * self.block)
    }
}

/// Returns the number of bytes in a panel: 32 outputs with `inputs` inputs each, stored in format `packing`. Panics
/// unless the inputs are whole blocks of that format.
pub(in super::super) fn panel_bytes(packing: Packing, inputs: usize) -> usize {
    let (numbers, _) = packing.block();
    assert!(inputs.is_multiple_of(numbers), "{inputs} inputs");
    inputs / numbers * Layout::of(packing).record()
}

/// Copies `row`, a row of a quantised matrix, into `panel` (32 outputs), where it becomes the weights of output
/// `output`.
pub(in super::super) fn pack_row(packing: Packing, row: &[u8], output: usize, panel: &mut [u8]) {
    let layout = Layout::of(packing);
    let records = panel.chunks_exact_mut(layout.record());
    for (from, record) in row.chunks_exact(packing.block().1).zip(records) {
        let (head, blocks) = record.split_at_mut(layout.head);
        for (number, to) in blocks.chunks_exact_mut(layout.block).enumerate() {
            let (integers, scales) = to.split_at_mut(layout.integers);
            let mut bytes = [0; BLOCK];
            let bytes = &mut bytes[..layout.integers / PANEL];
            match packing {
                Packing::Q4_0 | Packing::Q4_1 | Packing::Q8_0 => {
                    bytes.copy_from_slice(&from[from.len() - bytes.len()..]);
                }
                Packing::Q4K => {
                    let from_bytes = &from[16 + number / 2 * BLOCK..];
                    let half = |at: usize| from_bytes[at] >> (number % 2 * 4) & 15;
                    for (at, to) in bytes.iter_mut().enumerate() {
                        *to = half(at) | half(at + BLOCK / 2) << 4;
                    }
                }
                Packing::Q5_0 | Packing::Q5_1 | Packing::Q5K => {
                    let zero = if packing == Packing::Q5_0 { 16 } else { 0 };
                    for (at, to) in bytes.iter_mut().enumerate() {
                        let integer = packing.five_bits(from, number * BLOCK + at);
                        *to = integer.wrapping_sub(zero);
                    }
                }
                Packing::Q6K => {
                    for (at, to) in bytes.iter_mut().enumerate() {
                        *to = Packing::q6k_integer(from, number * BLOCK + at).cast_unsigned();
                    }
                }
            }
            for (group, four) in bytes.chunks_exact(GROUP).enumerate() {
                integers[(group * PANEL + output) * GROUP..][..GROUP].copy_from_slice(four);
            }
            let halves = if layout.head == 0 {
                &mut *scales
            } else {
                let [first, second] = match packing {
                    Packing::Q6K => [from[192 + 2 * number], from[193 + 2 * number]],
                    _ => Packing::group_scales(from, number),
                };
                scales[output] = first;
                scales[PANEL + output] = second;
                &mut *head
            };
            let f16s = from[packing.scale()..][..2 * packing.f16s()].chunks_exact(2);
            for (to, from) in halves.chunks_exact_mut(2 * PANEL).zip(f16s) {
                to[2 * output..][..2].copy_from_slice(from);
            }
        }
    }
}

/// The quantised weights from 32 inputs to the outputs of one panel, unpacked to 8-bit integers, with their scales and
/// offsets. A weight is its integer times its scale, plus its offset.
struct Block {
    /// The integers, `[input / 4][output][input % 4]`.
    integers: [[[i8; GROUP]; PANEL]; BLOCK / GROUP],
    /// Scales `[2][output]`: first those of the block's first 16 inputs, then those of its last 16.
    scales: [[f32; PANEL]; 2],
    offsets: [f32; PANEL],
}

impl Block {
    fn read(packing: Packing, panel: &[u8], block: usize) -> Self {
        let layout = Layout::of(packing);
        let (head, at) = layout.places(block);
        let (integers, scales) = panel[at..][..layout.block].split_at(layout.integers);
        let half = |from: &[u8], at: usize| {
            f16::from_le_bytes([from[2 * at], from[2 * at + 1]]).to_f32_const()
        };
        let head = |at: usize| half(&panel[head..], at);
        let mut read = Self {
            integers: [[[0; GROUP]; PANEL]; BLOCK / GROUP],
            scales: [[0.0; PANEL]; 2],
            offsets: [0.0; PANEL],
        };
        let to = read.integers.as_flattened_mut().as_flattened_mut();
        if layout.integers == to.len() {
            for (to, from) in to.iter_mut().zip(integers) {
                *to = from.cast_signed();
            }
        } else {
            let (low, high) = to.split_at_mut(integers.len());
            for ((low, high), from) in low.iter_mut().zip(high).zip(integers) {
                (*low, *high) = ((from & 15).cast_signed(), (from >> 4).cast_signed());
            }
        }
        for output in 0..PANEL {
            let byte = |at: usize| scales[at * PANEL + output];
            let (scale, offset) = match packing {
                Packing::Q5_0 | Packing::Q8_0 => ([half(scales, output); 2], 0.0),
                Packing::Q4_0 => ([half(scales, output); 2], -8.0 * half(scales, output)),
                Packing::Q4_1 | Packing::Q5_1 => {
                    ([half(scales, output); 2], half(scales, PANEL + output))
                }
                Packing::Q4K | Packing::Q5K => (
                    [head(output) * f32::from(byte(0)); 2],
                    -(head(PANEL + output) * f32::from(byte(1))),
                ),
                Packing::Q6K => (
                    [0, 1].map(|at| head(output) * f32::from(byte(at).cast_signed())),
                    0.0,
                ),
            };
            (read.scales[0][output], read.scales[1][output]) = (scale[0], scale[1]);
            read.offsets[output] = offset;
        }
        read
    }
}

/// Writes the weights of output `output` of a panel to `to` as f32: the values that [`Packing::unpack`] returns.
pub(in super::super) fn row(packing: Packing, panel: &[u8], output: usize, to: &mut [f32]) {
    for (block, to) in to.chunks_exact_mut(BLOCK).enumerate() {
        let read = Block::read(packing, panel, block);
        for (at, to) in to.iter_mut().enumerate() {
            let integer = read.integers[at / GROUP][output][at % GROUP];
            let scale = read.scales[at / (BLOCK / 2)][output];
            *to = f32::from(integer) * scale + read.offsets[output];
        }
    }
}

/// The operands of a product of 8-bit activations with one panel of packed weights,
/// `c[row - rows.start][0..32] (+)= Σ a[row] · panel`, over some blocks of the inputs. If block 0 is among them, `c` is
/// overwritten; otherwise the product is added to it.
pub(in super::super) struct PackedProduct<'a> {
    /// The left operand, activations rounded to 8 bits, `[rows][inputs]`.
    pub(in super::super) a: &'a [i8],
    /// For each block of 32 inputs of each row of `a`, the scale and the sum of its integers, `[rows][inputs / 32]`.
    /// Kernels rely on the sum in every format.
    pub(in super::super) scales: &'a [[f32; 2]],
    pub(in super::super) inputs: usize,
    /// Rows of `a` to compute, as a range of row indices.
    pub(in super::super) rows: Range<usize>,
    pub(in super::super) packing: Packing,
    pub(in super::super) panel: &'a [u8],
    /// Range of the blocks (32 inputs each) to multiply.
    pub(in super::super) blocks: Range<usize>,
    /// Output `[rows.len()][32]`: the sums for the panel's 32 outputs for each computed row.
    pub(in super::super) c: &'a mut [f32],
}

/// A [`PackedProduct`] that has been checked: it reads and writes only within the slices of its operands.
pub(super) struct Checked<'a>(PackedProduct<'a>);

impl<'a> PackedProduct<'a> {
    /// Checks that the product reads and writes only within the slices of its operands. Sets the outputs to zero if it
    /// begins with block 0.
    ///
    /// # Panics
    /// Panics when it would reach beyond them, which is a mistake in the caller's code and not in any input.
    pub(super) fn check(self) -> Checked<'a> {
        let (rows, blocks) = (&self.rows, &self.blocks);
        assert!(
            rows.start <= rows.end && blocks.start <= blocks.end,
            "rows {rows:?}, blocks {blocks:?}"
        );
        assert!(
            self.panel.len() >= panel_bytes(self.packing, self.inputs)
                && blocks.end <= self.inputs / BLOCK,
            "a panel of {} bytes, blocks {blocks:?}",
            self.panel.len()
        );
        assert!(
            rows.end.saturating_mul(self.inputs) <= self.a.len()
                && rows.end.saturating_mul(self.inputs / BLOCK) <= self.scales.len()
                && rows.len().saturating_mul(PANEL) <= self.c.len(),
            "rows {rows:?} of {} integers, {} scales, {} outputs",
            self.a.len(),
            self.scales.len(),
            self.c.len()
        );
        if blocks.start == 0 {
            self.c[..rows.len() * PANEL].fill(0.0);
        }
        Checked(self)
    }
}

/// Computes a product of 8-bit activations with packed weights, without intrinsics.
pub(super) fn multiply(product: Checked<'_>) {
    let p = product.0;
    for block in p.blocks {
        let weights = Block::read(p.packing, p.panel, block);
        for (row, c) in p.rows.clone().zip(p.c.as_chunks_mut::<PANEL>().0) {
            let a = &p.a[row * p.inputs + block * BLOCK..][..BLOCK];
            let [scale, sum] = p.scales[row * (p.inputs / BLOCK) + block];
            let mut sums = [[0i32; PANEL]; 2];
            for (group, (a, weights)) in a
                .as_chunks::<GROUP>()
                .0
                .iter()
                .zip(&weights.integers)
                .enumerate()
            {
                for (total, weights) in sums[group / 4].iter_mut().zip(weights) {
                    for (a, weight) in a.iter().zip(weights) {
                        *total += i32::from(*a) * i32::from(*weight);
                    }
                }
            }
            for (output, c) in c.iter_mut().enumerate() {
                let [first, last] = [sums[0][output], sums[1][output]];
                let of = |half: usize, sum: i32| sum as f32 * weights.scales[half][output];
                let value = match p.packing {
                    Packing::Q5_0 | Packing::Q8_0 => of(0, first + last),
                    Packing::Q6K => of(0, first) + of(1, last),
                    _ => of(0, first + last) + weights.offsets[output] * sum,
                };
                *c += value * scale;
            }
        }
    }
}

/// Rounds activations to 8 bits, in blocks of 32: the largest magnitude of each block becomes 127. A block with a
/// number that is not finite gets the scale NaN, and one whose numbers are all below 1e-30 becomes zero.
pub(in super::super) struct Quantise<'a> {
    /// The activations: at most 128 columns of one row, whole blocks of 32.
    pub(in super::super) from: &'a [f32],
    pub(in super::super) integers: &'a mut [i8],
    /// Output: the scale of each block of 32, and the sum of its integers.
    pub(in super::super) scales: &'a mut [[f32; 2]],
}

impl Loop for Quantise<'_> {
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let from = self.from.as_chunks::<BLOCK>().0.iter();
        let to = self.integers.as_chunks_mut::<BLOCK>().0.iter_mut();
        for ((from, to), scales) in from.zip(to).zip(self.scales) {
            // The order of magnitudes is that of their bits, and a NaN is above all.
            let largest = from
                .iter()
                .fold(0, |most, x| most.max(x.to_bits() << 1 >> 1));
            let largest = f32::from_bits(largest);
            let (scale, inverse) = match largest {
                _ if !largest.is_finite() => (f32::NAN, 0.0),
                _ if largest < 1e-30 => (0.0, 0.0),
                _ => (largest / 127.0, 127.0 / largest),
            };
            let mut sum = 0;
            for (to, x) in to.iter_mut().zip(from) {
                // The low bits hold the nearest integer, ties to even.
                *to = (x * inverse + ROUND).to_bits() as i8;
                sum += i32::from(*to);
            }
            *scales = [scale, sum as f32];
        }
    }
}

/// Adding this to a float below 2^22 rounds the float to an integer, which is then in the low bits.
const ROUND: f32 = 12_582_912.0;

#[cfg(test)]
mod tests;
