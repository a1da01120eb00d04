//! The kernel in AVX-512 with VNNI: `VPDPBUSD` multiplies unsigned by signed bytes and adds four products to a sum of 32
//! bits, exactly.
//!
//! Integers of 4 bits are unsigned in the file. To those stored in 8 bits, which are signed, 128 is added, and the sums
//! begin at -128 times the sum of the activations' integers instead of 0.
//!
//! Up to four rows share the weights that are unpacked for them, and keep their 32 outputs in registers from the first
//! block to the last.

use super::vectors::{Format, Tile, by_format};
use super::{BLOCK, Checked, GROUP, PANEL};
use crate::models::Packing;
use std::arch::x86_64::{
    __m128i, __m512, __m512i, _mm_loadu_si128, _mm256_loadu_si256, _mm512_add_ps, _mm512_and_si512,
    _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtph_ps,
    _mm512_dpbusd_epi32, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps,
    _mm512_reduce_add_epi32, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_srli_epi16, _mm512_storeu_ps, _mm512_sub_ps,
    _mm512_xor_si512,
};
use std::ops::Range;

/// Number of f32 or 32-bit sums in a vector, one for each output.
const LANES: usize = 16;
/// Number of vectors that hold the sums of a panel's outputs for one row.
const VECTORS: usize = PANEL / LANES;
/// What is added to signed integers, so that they are unsigned.
const SHIFT: i32 = 128;

/// Proof that the CPU has AVX-512 F and BW, and VNNI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Vnni(());

impl Vnni {
    pub(in super::super) fn detect() -> Option<Self> {
        let present = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni");
        present.then_some(Self(()))
    }
}

/// Computes a product of 8-bit activations with packed weights.
///
/// # Safety
/// The CPU must have AVX-512 F and BW, and VNNI ([`Vnni`]).
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(in super::super) unsafe fn multiply(product: Checked<'_>) {
    // SAFETY: as above.
    unsafe { by_format!(product.0.packing, rows(product)) }
}

/// Computes a product with packed weights of format `F`, up to four rows at a time.
///
/// # Safety
/// The CPU must have AVX-512 F and BW, and VNNI; the product's weights must be of format `F`.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn rows<F: Format>(mut product: Checked<'_>) {
    let Range { mut start, end } = product.0.rows.clone();
    let blocks = product.0.blocks.clone();
    while start < end {
        let left = end - start;
        // SAFETY: the product has these rows and blocks, as checked.
        unsafe {
            let tile = Tile::of(&mut product, start);
            match left {
                1 => tile.multiply::<F, 1>(blocks.clone()),
                2 => tile.multiply::<F, 2>(blocks.clone()),
                3 => tile.multiply::<F, 3>(blocks.clone()),
                _ => tile.multiply::<F, 4>(blocks.clone()),
            }
        }
        start += left.min(4);
    }
}

impl Tile {
    /// Multiplies `ROWS` rows by the blocks `blocks` of the inputs (32 inputs each) and adds the products to the
    /// outputs.
    ///
    /// # Safety
    /// `a`, `scales` and `c` have `ROWS` rows, and both operands have the blocks.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn multiply<F: Format, const ROWS: usize>(self, blocks: Range<usize>) {
        let signed = F::LAYOUT.integers == BLOCK * PANEL;
        let mut c = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        // SAFETY: see above: the pointers stay within the blocks, their heads, and the rows.
        unsafe {
            for (row, c) in c.iter_mut().enumerate() {
                for (vector, c) in c.iter_mut().enumerate() {
                    *c = _mm512_loadu_ps(self.c.add(row * PANEL + vector * LANES));
                }
            }
            for block in blocks {
                let (head, at) = F::LAYOUT.places(block);
                let integers = self.panel.add(at);
                let a = self.a.add(block * BLOCK);
                let mut scale_and_sum = [[0.0; 2]; ROWS];
                // The sums of the first and of the last 16 inputs, or of all.
                let mut sums = [[[_mm512_setzero_si512(); VECTORS]; ROWS]; 2];
                for row in 0..ROWS {
                    scale_and_sum[row] = *self.scales.add(row * (self.inputs / BLOCK) + block);
                    if signed {
                        let all = scale_and_sum[row][1] as i32;
                        let first = if F::HALVES {
                            sum(a.add(row * self.inputs))
                        } else {
                            all
                        };
                        sums[0][row] = [_mm512_set1_epi32(-SHIFT * first); VECTORS];
                        sums[1][row] = [_mm512_set1_epi32(-SHIFT * (all - first)); VECTORS];
                    }
                }
                for group in 0..F::LAYOUT.integers / (PANEL * GROUP) {
                    let mut weights = [_mm512_setzero_si512(); VECTORS];
                    for (vector, weights) in weights.iter_mut().enumerate() {
                        let at = (group * PANEL + vector * LANES) * GROUP;
                        *weights = _mm512_loadu_si512(integers.add(at).cast());
                    }
                    let mut high = weights;
                    for (low, high) in weights.iter_mut().zip(&mut high) {
                        if signed {
                            *low = _mm512_xor_si512(*low, _mm512_set1_epi8(SHIFT as i8));
                        } else {
                            let mask = _mm512_set1_epi8(15);
                            *high = _mm512_and_si512(_mm512_srli_epi16::<4>(*low), mask);
                            *low = _mm512_and_si512(*low, mask);
                        }
                    }
                    let half = if F::HALVES { group / 4 } else { 0 };
                    for (row, sums) in sums[half].iter_mut().enumerate() {
                        let a = a.add(row * self.inputs + group * GROUP);
                        add_products(sums, &weights, a);
                        if !signed {
                            add_products(sums, &high, a.add(BLOCK / 2));
                        }
                    }
                }
                for vector in 0..VECTORS {
                    let scales = self.panel.add(at + F::LAYOUT.integers);
                    let head = self.panel.add(head);
                    let [weights, second] = weight_scales::<F>(head, scales, vector * LANES);
                    for (row, [scale, sum]) in scale_and_sum.into_iter().enumerate() {
                        let one = _mm512_cvtepi32_ps(sums[0][row][vector]);
                        let other = _mm512_cvtepi32_ps(sums[1][row][vector]);
                        let more = if F::HALVES {
                            other
                        } else {
                            _mm512_set1_ps(sum)
                        };
                        let mut value = _mm512_mul_ps(one, weights);
                        if !F::PLAIN {
                            value = _mm512_add_ps(value, _mm512_mul_ps(more, second));
                        }
                        let value = _mm512_mul_ps(value, _mm512_set1_ps(scale));
                        c[row][vector] = _mm512_add_ps(c[row][vector], value);
                    }
                }
            }
            for (row, c) in c.iter().enumerate() {
                for (vector, c) in c.iter().enumerate() {
                    _mm512_storeu_ps(self.c.add(row * PANEL + vector * LANES), *c);
                }
            }
        }
    }
}

/// Adds to the sums of 32 outputs the products of the four adjacent inputs at `a` with their weights.
///
/// # Safety
/// Four bytes are readable at `a`.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn add_products(sums: &mut [__m512i; VECTORS], weights: &[__m512i; VECTORS], a: *const i8) {
    // SAFETY: see above.
    let a = _mm512_set1_epi32(unsafe { a.cast::<i32>().read_unaligned() });
    for (sum, weights) in sums.iter_mut().zip(weights) {
        *sum = _mm512_dpbusd_epi32(*sum, *weights, a);
    }
}

/// Returns the sum of the sixteen integers at `a`.
///
/// # Safety
/// Sixteen bytes are readable at `a`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn sum(a: *const i8) -> i32 {
    // SAFETY: see above.
    _mm512_reduce_add_epi32(_mm512_cvtepi8_epi32(unsafe { bytes(a.cast()) }))
}

/// Returns two vectors for the sixteen outputs of a block from `output` on: their scales and their offsets. With
/// [`Format::HALVES`], which has no offsets, the second has the scales of the block's last 16 inputs.
///
/// # Safety
/// `head` and `scales` are those of a block of a panel.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn weight_scales<F: Format>(
    head: *const u8,
    scales: *const u8,
    output: usize,
) -> [__m512; 2] {
    // SAFETY: see above: sixteen f16, or sixteen bytes, of the places that the layout has.
    unsafe {
        match F::PACKING {
            Packing::Q5_0 | Packing::Q8_0 => [half(scales, output), _mm512_setzero_ps()],
            Packing::Q4_0 => {
                let scale = half(scales, output);
                [scale, _mm512_mul_ps(_mm512_set1_ps(-8.0), scale)]
            }
            Packing::Q4_1 | Packing::Q5_1 => [half(scales, output), half(scales, PANEL + output)],
            Packing::Q4K | Packing::Q5K => {
                let [scale, offset] = [output, PANEL + output].map(|at| scales.add(at));
                let scale = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes(scale)));
                let offset = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes(offset)));
                let offset = _mm512_mul_ps(half(head, PANEL + output), offset);
                [
                    _mm512_mul_ps(half(head, output), scale),
                    _mm512_sub_ps(_mm512_set1_ps(-0.0), offset),
                ]
            }
            Packing::Q6K => {
                let [one, other] = [output, PANEL + output].map(|at| scales.add(at));
                let one = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes(one)));
                let other = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes(other)));
                let head = half(head, output);
                [_mm512_mul_ps(head, one), _mm512_mul_ps(head, other)]
            }
        }
    }
}

/// Returns the sixteen f16 numbers from index `at` on, converted to f32.
///
/// # Safety
/// The 32 bytes of these numbers are readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn half(from: *const u8, at: usize) -> __m512 {
    // SAFETY: see above.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(from.add(2 * at).cast()) })
}

/// Loads 16 bytes from `from`, at any alignment.
///
/// # Safety
/// 16 bytes are readable at `from`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn bytes(from: *const u8) -> __m128i {
    // SAFETY: see above.
    unsafe { _mm_loadu_si128(from.cast()) }
}
