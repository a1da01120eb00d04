//! The kernel for products of bf16 in AVX512-BF16: eight rows by two vectors of outputs, with a pair of inputs
//! broadcast to each.
//!
//! `VDPBF16PS` adds the odd input's product and then the even one's, each rounded to nearest. An output has one running
//! sum, which takes two inputs at a time, however many rows there are.

use super::{Checked, DEPTH, LANES, PANEL, Pair, ROWS, Start, Term};
use std::arch::x86_64::{
    __cpuid, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_setzero_ps, _mm512_storeu_ps,
};
use std::mem::transmute;

/// Proof that the CPU has AVX-512 F and BF16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super::super) struct Avx512Bf16 {
    faster: bool,
}

impl Avx512Bf16 {
    pub(super) fn detect() -> Option<Self> {
        let present = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
        present.then(|| Self { faster: is_amd() })
    }

    /// Returns whether AVX512-BF16 is faster than the f32 kernels on this CPU. Measured: twice the f32 rate on AMD's
    /// Zen 5, half of it on Intel's Sapphire Rapids (which has AMX). The answer depends on the maker and not on a
    /// measurement, so that a machine computes the same bits every day.
    pub(super) fn is_faster_than_f32(self) -> bool {
        self.faster
    }

    #[inline]
    pub(super) fn multiply(self, product: Checked<'_>) {
        // SAFETY: an `Avx512Bf16` exists, and the product is checked.
        unsafe { multiply(product) }
    }
}

fn is_amd() -> bool {
    let name = __cpuid(0);
    [name.ebx, name.edx, name.ecx].map(u32::to_le_bytes) == [*b"Auth", *b"enti", *b"cAMD"]
}

/// Number of rows computed at once: their sixteen accumulators hide the latency, and the two halves of a tile read the
/// same right operand.
const GROUP: usize = ROWS / 2;
/// Number of pairs of inputs of each row in a step, the unit in which a left operand is stored.
const STEP: usize = DEPTH / 2;

/// Computes a product of bf16 pairs by AVX512-BF16.
///
/// # Safety
/// The CPU must have AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn multiply(product: Checked<'_>) {
    let (row, columns) = (product.0.a.row, product.0.columns);
    // SAFETY: see above. Where rows are adjacent their distance is made a constant, so that addresses are immediates.
    unsafe {
        match (columns, row) {
            (PANEL, STEP) => multiply_terms::<2>(product, STEP),
            (PANEL, _) => multiply_terms::<2>(product, row),
            _ => multiply_terms::<1>(product, row),
        }
    }
}

/// Computes the first `V` vectors (16 outputs each) of each row of a product. `a_row` is the stride between rows of the
/// left operand, in pairs.
///
/// # Safety
/// The CPU must have AVX512-BF16. The product is checked.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn multiply_terms<const V: usize>(product: Checked<'_>, a_row: usize) {
    let p = product.0;
    // The operands that every row reads take at most a quarter of the first-level cache.
    let parts = p.terms().into_iter().flat_map(|Term { a, b }| {
        let parts = b.chunks(PANEL * PART).enumerate();
        parts.map(move |(number, b)| (a + number * PART / STEP * p.a.step, b))
    });
    for (number, (a, b)) in parts.enumerate() {
        let start = if number == 0 { p.start } else { Start::Sum };
        for row in p.rows.clone().step_by(GROUP) {
            let a = &p.a.pairs[row / ROWS * p.a.tile + row % ROWS * a_row + a..];
            let c = &mut p.c[(row - p.rows.start) * PANEL..];
            let (a, steps, c) = (a.as_ptr(), b.len() / PANEL / STEP, c.as_mut_ptr());
            let (a, b) = ((a, a_row, p.a.step), b.as_ptr());
            // SAFETY: up to eight rows from `row` on lie in one tile, of which `a` holds `steps` steps; `b` has as
            // many, and `c` the rows that are left of the product's, as checked.
            unsafe {
                match p.rows.end - row {
                    1 => rows::<1, V>(a, b, steps, c, start),
                    2 => rows::<2, V>(a, b, steps, c, start),
                    3 => rows::<3, V>(a, b, steps, c, start),
                    4 => rows::<4, V>(a, b, steps, c, start),
                    5 => rows::<5, V>(a, b, steps, c, start),
                    6 => rows::<6, V>(a, b, steps, c, start),
                    7 => rows::<7, V>(a, b, steps, c, start),
                    _ => rows::<GROUP, V>(a, b, steps, c, start),
                }
            }
        }
    }
}

/// Number of pairs of inputs that are multiplied for all rows before the next ones.
const PART: usize = 128;

/// Multiplies `R` rows of `a` by `V` vectors (16 outputs each) of `b`, and writes or adds to `c`.
///
/// # Safety
/// The CPU must have AVX512-BF16. `a` points to `steps` steps of `R` rows, and comes with the number of pairs from one
/// row, and from one step, to the next. `b` has as many steps of [`PANEL`] pairs, and `c` has `R` rows of [`PANEL`]
/// floats. `V` vectors are within [`PANEL`].
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn rows<const R: usize, const V: usize>(
    (a, a_row, a_step): (*const Pair, usize, usize),
    b: *const Pair,
    steps: usize,
    c: *mut f32,
    start: Start,
) {
    // SAFETY: see above.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); V]; R];
        if start == Start::Sum {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_loadu_ps(c.add(row * PANEL + v * LANES));
                }
            }
        }
        for step in 0..steps {
            let (a, b) = (a.add(step * a_step), b.add(step * STEP * PANEL));
            for k in 0..STEP {
                let strip: [_; V] = std::array::from_fn(|v| load(b.add(k * PANEL + v * LANES)));
                for (row, sums) in sums.iter_mut().enumerate() {
                    let pair = a.add(row * a_row + k).cast::<i32>().read_unaligned();
                    let value = bits(_mm512_set1_epi32(pair));
                    for (sum, strip) in sums.iter_mut().zip(strip) {
                        *sum = _mm512_dpbf16_ps(*sum, value, strip);
                    }
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                _mm512_storeu_ps(c.add(row * PANEL + v * LANES), *sum);
            }
        }
    }
}

/// Loads sixteen pairs of bf16 from `from`, at any alignment.
///
/// # Safety
/// The CPU must have AVX-512, and sixteen pairs must be readable at `from`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(from: *const Pair) -> __m512bh {
    // SAFETY: see above.
    bits(unsafe { _mm512_loadu_si512(from.cast()) })
}

/// Reinterprets the 64 bytes of an integer vector as bf16 numbers.
#[inline]
#[target_feature(enable = "avx512f")]
fn bits(vector: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes, and any bits are numbers.
    unsafe { transmute::<__m512i, __m512bh>(vector) }
}
