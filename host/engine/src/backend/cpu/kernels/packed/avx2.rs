//! The kernel in AVX2: `VPMADDUBSW` multiplies unsigned by signed bytes and sums two products in 16 bits, saturating.
//!
//! Integers of 4 bits are unsigned in the file. Those stored in 8 bits (of 5, 6 and 8 bits) are signed and multiplied
//! as `|w| · (sign of w · a)`. Activations are at most 127 in magnitude, so no sum of two products saturates. As many
//! of these sums are added in 16 bits as fit:
//!
//! | bits | largest sum of two products | sums added in 16 bits |
//! | --- | --- | --- |
//! | 4 | 2 · 15 · 127 = 3 810 | 8, for 32 inputs: 30 480 |
//! | 6 | 2 · 32 · 127 = 8 128 | 4, for 16 inputs: 32 512 |
//! | 5 | 2 · 31 · 127 = 7 874 | 1, as for 8 bits |
//! | 8 | 2 · 128 · 127 = 32 512 | 1 |
//!
//! Up to four rows share the weights that are unpacked for them.

use super::vectors::{Format, Tile, by_format};
use super::{BLOCK, Checked, GROUP, PANEL};
use crate::models::Packing;
use std::arch::x86_64::{
    __m256, __m256i, _mm_loadl_epi64, _mm_loadu_si128, _mm256_abs_epi8, _mm256_add_epi16,
    _mm256_add_epi32, _mm256_add_ps, _mm256_and_si256, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps,
    _mm256_cvtepu8_epi32, _mm256_cvtph_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_sign_epi8, _mm256_srli_epi16,
    _mm256_storeu_ps, _mm256_sub_ps,
};
use std::ops::Range;

/// Number of f32 or 32-bit sums in an AVX2 vector, one for each output.
const LANES: usize = 8;

/// Computes a product of 8-bit activations with packed weights.
///
/// # Safety
/// The CPU must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) unsafe fn multiply(product: Checked<'_>) {
    // SAFETY: as above.
    unsafe { by_format!(product.0.packing, rows(product)) }
}

/// Computes a product with packed weights of format `F`, up to four rows at a time.
///
/// # Safety
/// The CPU must have AVX2, FMA and F16C, and the product's weights must be of format `F`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<F: Format>(mut product: Checked<'_>) {
    let Range { mut start, end } = product.0.rows.clone();
    while start < end {
        let left = end - start;
        // SAFETY: the product has these rows and blocks, as checked.
        unsafe {
            let tile = Tile::of(&mut product, start);
            for block in product.0.blocks.clone() {
                match left {
                    1 => tile.block::<F, 1, 4>(block),
                    2 => tile.block::<F, 2, 2>(block),
                    3 => tile.block::<F, 3, 2>(block),
                    _ => tile.block::<F, 4, 2>(block),
                }
            }
        }
        start += left.min(4);
    }
}

impl Tile {
    /// Multiplies `ROWS` rows by block `block` of the inputs (32 inputs) and adds the products to the outputs,
    /// `VECTORS` vectors of 8 outputs at a time.
    ///
    /// # Safety
    /// `a`, `scales` and `c` have `ROWS` rows, and both operands have the block.
    #[expect(
        clippy::needless_range_loop,
        reason = "rows and vectors are places in memory as well as in the sums"
    )]
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn block<F: Format, const ROWS: usize, const VECTORS: usize>(self, block: usize) {
        let (head, at) = F::LAYOUT.places(block);
        let ones = _mm256_set1_epi16(1);
        for first in (0..PANEL / LANES).step_by(VECTORS) {
            // The sums of the first and of the last 16 inputs, or of all.
            let mut sums = [[[_mm256_setzero_si256(); VECTORS]; ROWS]; 2];
            // SAFETY: see above: the pointers stay within the block, its head, and the rows.
            unsafe {
                let integers = self.panel.add(at + first * LANES * GROUP);
                let a = self.a.add(block * BLOCK);
                for group in 0..F::LAYOUT.integers / (PANEL * GROUP) {
                    let mut weights = [ones; VECTORS];
                    for (vector, weights) in weights.iter_mut().enumerate() {
                        *weights = load(integers.add((group * PANEL + vector * LANES) * GROUP));
                    }
                    if F::LAYOUT.integers < BLOCK * PANEL {
                        let mask = _mm256_set1_epi8(15);
                        let mut high = weights;
                        for (low, high) in weights.iter_mut().zip(&mut high) {
                            *high = _mm256_and_si256(_mm256_srli_epi16::<4>(*low), mask);
                            *low = _mm256_and_si256(*low, mask);
                        }
                        for (row, sums) in sums[0].iter_mut().enumerate() {
                            let a = a.add(row * self.inputs + group * GROUP);
                            for (a, weights) in [(a, &weights), (a.add(BLOCK / 2), &high)] {
                                let a = four(a);
                                for (sum, weights) in sums.iter_mut().zip(weights) {
                                    *sum =
                                        _mm256_add_epi16(*sum, _mm256_maddubs_epi16(*weights, a));
                                }
                            }
                        }
                    } else {
                        let mut sizes = weights;
                        for size in &mut sizes {
                            *size = _mm256_abs_epi8(*size);
                        }
                        let half = if F::HALVES { group / 4 } else { 0 };
                        for (row, sums) in sums[half].iter_mut().enumerate() {
                            let a = four(a.add(row * self.inputs + group * GROUP));
                            for (vector, sum) in sums.iter_mut().enumerate() {
                                let a = _mm256_sign_epi8(a, weights[vector]);
                                let pairs = _mm256_maddubs_epi16(sizes[vector], a);
                                *sum = if F::HALVES {
                                    _mm256_add_epi16(*sum, pairs)
                                } else {
                                    _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones))
                                };
                            }
                        }
                    }
                }
                for vector in 0..VECTORS {
                    let output = (first + vector) * LANES;
                    let scales = self.panel.add(at + F::LAYOUT.integers);
                    let [weights, second] =
                        weight_scales::<F>(self.panel.add(head), scales, output);
                    for row in 0..ROWS {
                        let [scale, sum] = *self.scales.add(row * (self.inputs / BLOCK) + block);
                        let [mut one, mut other] = [sums[0][row][vector], sums[1][row][vector]];
                        if !F::WIDE {
                            one = _mm256_madd_epi16(one, ones);
                            other = _mm256_madd_epi16(other, ones);
                        }
                        let value = _mm256_mul_ps(_mm256_cvtepi32_ps(one), weights);
                        let more = if F::HALVES {
                            _mm256_mul_ps(_mm256_cvtepi32_ps(other), second)
                        } else {
                            _mm256_mul_ps(second, _mm256_set1_ps(sum))
                        };
                        let value = if F::PLAIN {
                            value
                        } else {
                            _mm256_add_ps(value, more)
                        };
                        let c = self.c.add(row * PANEL + output);
                        let value = _mm256_mul_ps(value, _mm256_set1_ps(scale));
                        _mm256_storeu_ps(c, _mm256_add_ps(_mm256_loadu_ps(c), value));
                    }
                }
            }
        }
    }
}

/// Returns two vectors for the eight outputs of a block from `output` on: their scales and their offsets. With
/// [`Format::HALVES`], which has no offsets, the second has the scales of the block's last 16 inputs.
///
/// # Safety
/// `head` and `scales` are those of a block of a panel.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn weight_scales<F: Format>(
    head: *const u8,
    scales: *const u8,
    output: usize,
) -> [__m256; 2] {
    // SAFETY: see above: eight f16, or eight bytes, of the places that the layout has.
    unsafe {
        match F::PACKING {
            Packing::Q5_0 | Packing::Q8_0 => [half(scales, output), _mm256_setzero_ps()],
            Packing::Q4_0 => {
                let scale = half(scales, output);
                [scale, _mm256_mul_ps(_mm256_set1_ps(-8.0), scale)]
            }
            Packing::Q4_1 | Packing::Q5_1 => [half(scales, output), half(scales, PANEL + output)],
            Packing::Q4K | Packing::Q5K => {
                let [scale, offset] = [output, PANEL + output].map(|at| scales.add(at).cast());
                let scale = _mm256_cvtepu8_epi32(_mm_loadl_epi64(scale));
                let offset = _mm256_cvtepu8_epi32(_mm_loadl_epi64(offset));
                let offset = _mm256_mul_ps(half(head, PANEL + output), _mm256_cvtepi32_ps(offset));
                [
                    _mm256_mul_ps(half(head, output), _mm256_cvtepi32_ps(scale)),
                    _mm256_sub_ps(_mm256_set1_ps(-0.0), offset),
                ]
            }
            Packing::Q6K => {
                let [one, other] = [output, PANEL + output].map(|at| scales.add(at).cast());
                let one = _mm256_cvtepi8_epi32(_mm_loadl_epi64(one));
                let other = _mm256_cvtepi8_epi32(_mm_loadl_epi64(other));
                let head = half(head, output);
                [
                    _mm256_mul_ps(head, _mm256_cvtepi32_ps(one)),
                    _mm256_mul_ps(head, _mm256_cvtepi32_ps(other)),
                ]
            }
        }
    }
}

/// Returns the eight f16 numbers from index `at` on, converted to f32.
///
/// # Safety
/// The sixteen bytes of these numbers are readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half(from: *const u8, at: usize) -> __m256 {
    // SAFETY: see above.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(from.add(2 * at).cast()) })
}

/// Loads 32 bytes from `from`, at any alignment.
///
/// # Safety
/// 32 bytes are readable at `from`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load(from: *const u8) -> __m256i {
    // SAFETY: see above.
    unsafe { _mm256_loadu_si256(from.cast()) }
}

/// Returns a vector that repeats the four adjacent inputs at `from` in every 32-bit lane.
///
/// # Safety
/// Four bytes are readable at `from`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn four(from: *const i8) -> __m256i {
    // SAFETY: see above.
    _mm256_set1_epi32(unsafe { from.cast::<i32>().read_unaligned() })
}
