//! The microkernel in AVX-512, and in AVX2 with FMA and F16C.
//!
//! With AVX-512's 32 registers, 12 rows x 2 vectors of 16 take 24 accumulators and `b` takes 2; the rest are for
//! broadcasts. Each `k` takes 24 multiply-adds, 2 loads of `b` and 12 broadcasts. With AVX2's 16 registers, 6 rows x 2
//! vectors of 8 take 12 accumulators and `b` takes 2.
//!
//! Every function here is unsafe to call for two reasons only: the CPU must have the instructions (the caller holds an
//! [`Avx512`] or [`Avx2`]), and pointers are followed within the bounds that `Product::check` has established.

use super::{Checked, LANES, Loop, PANEL, STRIDE, Scalar, Start, TILE_ROWS};
use crate::models::Element;
use std::arch::x86_64::{
    __m256, __m512, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm256_castsi256_ps,
    _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm512_castsi512_ps,
    _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_slli_epi32, _mm512_storeu_ps,
};

/// Proof that the CPU has AVX-512 F, BW, DQ and VL, and AVX2, FMA and F16C as for [`Avx2`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        let present = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && Avx2::detect().is_some();
        present.then_some(Self(()))
    }
}

/// Proof that the CPU has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        let present = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        present.then_some(Self(()))
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
pub(super) fn run_avx512(body: impl Loop) {
    body.run::<true>();
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run_avx2(body: impl Loop) {
    body.run::<true>();
}

/// Converts `from` to f32 and writes the values to `to`, by AVX-512.
///
/// # Safety
/// `from` and `to` have the same length, a multiple of [`LANES`], and the CPU has AVX-512 F, BW, DQ and VL, and FMA.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
pub(super) unsafe fn widen_avx512<E: Scalar>(from: &[E], to: &mut [f32]) {
    for i in (0..to.len()).step_by(LANES) {
        // SAFETY: `i + 16 <= len` of both.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr().add(i), load_512(from.as_ptr().add(i))) };
    }
}

/// Converts `from` to f32 and writes the values to `to`, by AVX2.
///
/// # Safety
/// `from` and `to` have the same length, a multiple of [`LANES`], and the CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn widen_avx2<E: Scalar>(from: &[E], to: &mut [f32]) {
    for i in (0..to.len()).step_by(LANES / 2) {
        // SAFETY: `i + 8 <= len` of both.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr().add(i), load_256(from.as_ptr().add(i))) };
    }
}

/// Computes a matrix product by AVX-512.
///
/// # Safety
/// The CPU must have AVX-512 F, BW, DQ and VL, and FMA.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
pub(super) unsafe fn multiply_avx512<E: Scalar>(product: Checked<'_, E>) {
    let p = product.0;
    let (b, shape) = (
        p.b.as_ptr(),
        Shape::of(p.k, p.b_stride, p.c_stride, p.start),
    );
    let mut row = p.rows.start;
    while row < p.rows.end {
        let within = row % TILE_ROWS;
        let rows = (TILE_ROWS - within).min(p.rows.end - row);
        // SAFETY: rows `row..row + rows` lie in one tile, their first `k` columns in `a`, `k` rows of `columns` in `b`,
        // and their `columns` outputs in `c`, as checked.
        unsafe {
            let a =
                p.a.as_ptr()
                    .add(row / TILE_ROWS * p.a_tile + within * STRIDE);
            let c = p.c.as_mut_ptr().add((row - p.rows.start) * p.c_stride);
            macro_rules! tile {
                ($($count:literal)*) => {
                    match (rows, p.columns) {
                        $(($count, PANEL) => tile_512::<E, $count, 2>(a, b, c, shape),
                        ($count, _) => tile_512::<E, $count, 1>(a, b, c, shape),)*
                        _ => unreachable!("a tile has twelve rows"),
                    }
                };
            }
            tile!(1 2 3 4 5 6 7 8 9 10 11 12);
        }
        row += rows;
    }
}

/// Computes a matrix product by AVX2.
///
/// # Safety
/// The CPU must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn multiply_avx2<E: Scalar>(product: Checked<'_, E>) {
    let p = product.0;
    let shape = Shape::of(p.k, p.b_stride, p.c_stride, p.start);
    for column in (0..p.columns).step_by(LANES) {
        let mut row = p.rows.start;
        while row < p.rows.end {
            let within = row % TILE_ROWS;
            let rows = (TILE_ROWS - within)
                .min(p.rows.end - row)
                .min(TILE_ROWS / 2);
            // SAFETY: as in `multiply_avx512`, for sixteen columns from `column` on. With `k` 0, `b` may be shorter
            // than `column`; `wrapping_add` then makes a pointer that nothing follows.
            unsafe {
                let a =
                    p.a.as_ptr()
                        .add(row / TILE_ROWS * p.a_tile + within * STRIDE);
                let b = p.b.as_ptr().wrapping_add(column);
                let c =
                    p.c.as_mut_ptr()
                        .add((row - p.rows.start) * p.c_stride + column);
                match rows {
                    1 => tile_256::<E, 1>(a, b, c, shape),
                    2 => tile_256::<E, 2>(a, b, c, shape),
                    3 => tile_256::<E, 3>(a, b, c, shape),
                    4 => tile_256::<E, 4>(a, b, c, shape),
                    5 => tile_256::<E, 5>(a, b, c, shape),
                    _ => tile_256::<E, 6>(a, b, c, shape),
                }
            }
            row += rows;
        }
    }
}

/// Number of rows of the right operand by which prefetching is ahead of the multiplication. A single row is computed
/// without prefetching, and in f32 also less than a whole tile: these already request more than memory delivers.
const AHEAD: usize = 16;

#[derive(Clone, Copy)]
struct Shape {
    k: usize,
    b_stride: usize,
    c_stride: usize,
    start: Start,
}

impl Shape {
    fn of(k: usize, b_stride: usize, c_stride: usize, start: Start) -> Self {
        Self {
            k,
            b_stride,
            c_stride,
            start,
        }
    }
}

/// Multiplies `ROWS` rows of one tile of `a` by `VECTORS` vectors of 16 columns of `b`, and writes or adds to `c`.
///
/// # Safety
/// `a` has `ROWS` rows of `k` floats at [`STRIDE`], `b` has `k` rows and `c` has `ROWS` rows of `VECTORS * 16` values.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
unsafe fn tile_512<E: Scalar, const ROWS: usize, const VECTORS: usize>(
    a: *const f32,
    mut b: *const E,
    c: *mut f32,
    shape: Shape,
) {
    let fetch = if size_of::<E>() == 2 {
        ROWS > 1
    } else {
        ROWS == TILE_ROWS
    };
    // SAFETY: see above; the last step of `b` may leave its slice, but is not followed, and a fetch ahead reads
    // nothing.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        if shape.start == Start::Sum {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_loadu_ps(c.add(row * shape.c_stride + v * 16));
                }
            }
        }
        for k in 0..shape.k {
            if fetch {
                let ahead = b.wrapping_add(AHEAD * shape.b_stride);
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                if size_of::<E>() * VECTORS == 8 {
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(16).cast());
                }
            }
            let mut strip = [_mm512_setzero_ps(); VECTORS];
            for (v, strip) in strip.iter_mut().enumerate() {
                *strip = load_512(b.add(v * 16));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let value = _mm512_set1_ps(*a.add(row * STRIDE + k));
                for (sum, strip) in sums.iter_mut().zip(strip) {
                    *sum = _mm512_fmadd_ps(value, strip, *sum);
                }
            }
            b = b.wrapping_add(shape.b_stride);
        }
        for (row, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                _mm512_storeu_ps(c.add(row * shape.c_stride + v * 16), *sum);
            }
        }
    }
}

/// Multiplies `ROWS` rows of one tile of `a` by sixteen columns of `b`, and writes or adds to `c`.
///
/// # Safety
/// The conditions of [`tile_512`] hold for sixteen columns.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile_256<E: Scalar, const ROWS: usize>(
    a: *const f32,
    mut b: *const E,
    c: *mut f32,
    shape: Shape,
) {
    // SAFETY: see above; the last step of `b` may leave its slice, but is not followed.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
        if shape.start == Start::Sum {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm256_loadu_ps(c.add(row * shape.c_stride + v * 8));
                }
            }
        }
        for k in 0..shape.k {
            let strip = [load_256(b), load_256(b.add(8))];
            for (row, sums) in sums.iter_mut().enumerate() {
                let value = _mm256_set1_ps(*a.add(row * STRIDE + k));
                for (sum, strip) in sums.iter_mut().zip(strip) {
                    *sum = _mm256_fmadd_ps(value, strip, *sum);
                }
            }
            b = b.wrapping_add(shape.b_stride);
        }
        for (row, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                _mm256_storeu_ps(c.add(row * shape.c_stride + v * 8), *sum);
            }
        }
    }
}

/// Loads sixteen elements from `from` and converts them to f32.
///
/// # Safety
/// Sixteen elements must be readable at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
unsafe fn load_512<E: Scalar>(from: *const E) -> __m512 {
    // SAFETY: see above; the element's size is its type's.
    unsafe {
        match E::ELEMENT {
            Element::F32 => _mm512_loadu_ps(from.cast()),
            Element::Bf16 => {
                let narrow = _mm256_loadu_si256(from.cast());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(narrow)))
            }
            Element::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())),
            Element::Packed(_) => unreachable!("a scalar is not packed"),
        }
    }
}

/// Loads eight elements from `from` and converts them to f32.
///
/// # Safety
/// Eight elements must be readable at `from`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_256<E: Scalar>(from: *const E) -> __m256 {
    // SAFETY: see above; the element's size is its type's.
    unsafe {
        match E::ELEMENT {
            Element::F32 => _mm256_loadu_ps(from.cast()),
            Element::Bf16 => {
                let narrow = _mm_loadu_si128(from.cast());
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(narrow)))
            }
            Element::F16 => _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
            Element::Packed(_) => unreachable!("a scalar is not packed"),
        }
    }
}
