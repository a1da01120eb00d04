//! Computes the same sums with this processor's widest vectors. `pulp` detects them once, and contains the unsafe code
//! for instructions that may be missing.

use super::{Lanes, Looks, QUAD, QUADS, SEGMENT, total};
use pulp::{Arch, Simd, WithSimd};

/// The available instructions.
#[derive(Clone, Copy)]
pub(in super::super) struct Machine(Arch);

impl Machine {
    pub(in super::super) fn new() -> Self {
        Self(Arch::new())
    }

    /// Computes [`squared_distance`](super::squared_distance) with these instructions.
    pub(in super::super) fn squared_distance(
        self,
        a: &[f32],
        b: &[f32],
        limit: f32,
    ) -> Option<f32> {
        self.0.dispatch(Squares { a, b, limit })
    }

    /// Computes [`inner_product`](super::inner_product) with these instructions.
    pub(in super::super) fn inner_product(self, a: &[f32], b: &[f32]) -> f32 {
        self.0.dispatch(Products { a, b })
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Machine")
    }
}

const LANES: usize = QUAD * QUADS;

struct Squares<'r> {
    a: &'r [f32],
    b: &'r [f32],
    limit: f32,
}

impl WithSimd for Squares<'_> {
    type Output = Option<f32>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Option<f32> {
        let Self { a, b, limit } = self;
        let term = |a, b| {
            let difference = simd.sub_f32s(a, b);
            simd.mul_f32s(difference, difference)
        };
        match LANES / S::F32_LANES {
            1 => sum::<S, 1>(simd, a, b, limit, term),
            2 => sum::<S, 2>(simd, a, b, limit, term),
            4 => sum::<S, 4>(simd, a, b, limit, term),
            _ => super::squared_distance(a, b, limit),
        }
    }
}

struct Products<'r> {
    a: &'r [f32],
    b: &'r [f32],
}

impl WithSimd for Products<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let Self { a, b } = self;
        let term = |a, b| simd.mul_f32s(a, b);
        let sum = match LANES / S::F32_LANES {
            1 => sum::<S, 1>(simd, a, b, f32::INFINITY, term),
            2 => sum::<S, 2>(simd, a, b, f32::INFINITY, term),
            4 => sum::<S, 4>(simd, a, b, f32::INFINITY, term),
            _ => return super::inner_product(a, b),
        };
        sum.unwrap_or_default()
    }
}

/// Computes the sum with the lanes in `VECTORS` vectors.
#[inline(always)]
fn sum<S: Simd, const VECTORS: usize>(
    simd: S,
    a: &[f32],
    b: &[f32],
    limit: f32,
    term: impl Fn(S::f32s, S::f32s) -> S::f32s,
) -> Option<f32> {
    let mut sums = [simd.splat_f32s(0.0); VECTORS];
    let mut looks = Looks::default();
    for (a, b) in a.chunks_exact(SEGMENT).zip(b.chunks_exact(SEGMENT)) {
        let ((a, _), (b, _)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
        let ((a, _), (b, _)) = (a.as_chunks::<VECTORS>(), b.as_chunks::<VECTORS>());
        for (a, b) in a.iter().zip(b) {
            for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
                *sum = simd.add_f32s(*sum, term(a, b));
            }
        }
        if looks.is_due() && total(&lanes::<S, VECTORS>(&sums)) > limit {
            return None;
        }
    }
    Some(total(&lanes::<S, VECTORS>(&sums))).filter(|sum| *sum <= limit)
}

#[inline(always)]
fn lanes<S: Simd, const VECTORS: usize>(sums: &[S::f32s; VECTORS]) -> Lanes {
    let mut lanes = [[0.0; QUAD]; QUADS];
    let (vectors, _) = S::as_mut_simd_f32s(lanes.as_flattened_mut());
    for (vector, sum) in vectors.iter_mut().zip(sums) {
        *vector = *sum;
    }
    lanes
}
