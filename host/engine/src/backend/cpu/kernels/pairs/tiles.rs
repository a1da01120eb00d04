//! The kernel for a machine of tiles: eight tiles of sixteen rows of sixteen 32-bit words.
//!
//! ```text
//!                 b: 32 inputs x 32 outputs
//!                    ┌── 6 ──┬── 7 ──┐
//!  a: 32 rows  ┌ 4 ┐ │   0   │   1   │      c += a · b, four products for four loads
//!  x 32 inputs ├ 5 ┤ │   2   │   3   │
//!              └───┘ └───────┴───────┘
//! ```
//!
//! A [`Unit`] is such a machine: the CPU's ([`super::amx`]) or the emulation in this file. The kernel's source is the
//! same for both, so what the emulation proves of packing, blocking and edges holds for the CPU too. Only single
//! instructions differ, and a self-check compares those with the emulation before they are used.

use super::{Checked, Left, PANEL, Pair, ROWS, Start, Term};
use std::slice::Chunks;

/// Number of 32-bit words in a row of a tile: sixteen sums, or sixteen pairs of bf16.
const WORDS: usize = 16;

/// A machine with eight tile registers, each of [`ROWS`] by [`WORDS`]: the CPU's AMX, or an emulation.
pub(super) trait Unit {
    /// Sets all words of tile register `T` to zero.
    fn zero<const T: usize>(&mut self);
    /// Fills tile register `T` with sixteen rows of sixteen pairs, or of sixteen sums as the two halves of each; in
    /// `from`, the rows are `stride` pairs apart.
    ///
    /// # Panics
    /// Panics when `from` is too short.
    fn load_pairs<const T: usize>(&mut self, from: &[Pair], stride: usize);
    /// Fills tile register `T` as [`Unit::load_pairs`] does, with a hint not to keep the data in the first-level cache.
    ///
    /// # Panics
    /// Panics when `from` is too short.
    fn stream_pairs<const T: usize>(&mut self, from: &[Pair], stride: usize);
    /// Prefetches the cache line of `pair` to the second-level cache.
    fn fetch(&mut self, pair: &Pair);
    /// Writes tile register `T` to `to`, as sixteen rows of sixteen sums that are `stride` floats apart.
    ///
    /// # Panics
    /// Panics when `to` is too short.
    fn store_sums<const T: usize>(&mut self, to: &mut [f32], stride: usize);
    /// Computes `c[m][n] += Σ a[m][k] · b[k][n]` over sixteen pairs `k`, where `c`, `a` and `b` are the tile registers
    /// `C`, `A` and `B`.
    fn multiply<const C: usize, const A: usize, const B: usize>(&mut self);
}

/// Returns the number of elements from the first to the last of sixteen rows of sixteen elements, `stride` apart.
pub(super) const fn span(stride: usize) -> usize {
    (ROWS - 1) * stride + WORDS
}

/// Buffer for the sums of two whole tiles of rows, where the output has room for fewer rows.
#[repr(align(64))]
struct Whole([f32; 2 * ROWS * PANEL]);

pub(super) fn multiply<U: Unit>(unit: &mut U, product: Checked<'_>) {
    let p = product.0;
    let left = Left {
        pairs: &p.a.pairs[p.rows.start / ROWS * p.a.tile..],
        ..p.a
    };
    let steps = p.rows.len().div_ceil(2 * ROWS) * p.b.len() / (WORDS * PANEL);
    let lines = p.next.chunks(WORDS);
    let fetch = Fetch {
        per_step: lines.len().div_ceil(steps.max(1)),
        lines,
    };
    let terms = p.terms();
    if p.columns == PANEL {
        multiply_rows::<U, true>(unit, left, p.rows.len(), terms, fetch, p.c, p.start);
    } else {
        multiply_rows::<U, false>(unit, left, p.rows.len(), terms, fetch, p.c, p.start);
    }
}

/// Cache lines of the next product's right operand to prefetch, spread over the steps of a product: memory is idle
/// while a product reads its caches.
struct Fetch<'a> {
    lines: Chunks<'a, Pair>,
    per_step: usize,
}

impl Fetch<'_> {
    #[inline(always)]
    fn step<U: Unit>(&mut self, unit: &mut U) {
        for line in self.lines.by_ref().take(self.per_step) {
            unit.fetch(&line[0]);
        }
    }
}

/// Multiplies the first `rows` rows of `left` by all 32 columns of each term's right operand if `WIDE`, otherwise by
/// its first 16, and writes or adds to `c`.
#[inline(always)]
fn multiply_rows<U: Unit, const WIDE: bool>(
    unit: &mut U,
    left: Left<'_>,
    rows: usize,
    terms: [Term<'_>; 3],
    mut fetch: Fetch<'_>,
    c: &mut [f32],
    start: Start,
) {
    for first in (0..rows).step_by(2 * ROWS) {
        let (wanted, c) = ((rows - first).min(2 * ROWS), &mut c[first * PANEL..]);
        let left = Left {
            pairs: &left.pairs[first / ROWS * left.tile..],
            ..left
        };
        let second = wanted > ROWS;
        if c.len() >= (1 + usize::from(second)) * ROWS * PANEL {
            multiply_tiles::<U, WIDE>(unit, left, second, terms, &mut fetch, c, start);
        } else {
            let mut whole = Whole([0.0; 2 * ROWS * PANEL]);
            let c = &mut c[..wanted * PANEL];
            whole.0[..c.len()].copy_from_slice(c);
            multiply_tiles::<U, WIDE>(unit, left, second, terms, &mut fetch, &mut whole.0, start);
            c.copy_from_slice(&whole.0[..c.len()]);
        }
    }
}

/// Multiplies the first 16 rows of `left`, or the first 32 if `second`, by all 32 columns of each term's right operand
/// if `WIDE`, otherwise by its first 16. Writes the sum of the terms' products to `c`, or adds it, as `start` says.
#[inline(always)]
fn multiply_tiles<U: Unit, const WIDE: bool>(
    unit: &mut U,
    left: Left<'_>,
    second: bool,
    terms: [Term<'_>; 3],
    fetch: &mut Fetch<'_>,
    c: &mut [f32],
    start: Start,
) {
    const LOW: usize = ROWS * PANEL;
    match start {
        Start::Zero => {
            unit.zero::<0>();
            unit.zero::<1>();
            unit.zero::<2>();
            unit.zero::<3>();
        }
        Start::Sum => {
            let c: &[Pair] = bytemuck::cast_slice(c);
            unit.load_pairs::<0>(c, PANEL);
            if WIDE {
                unit.load_pairs::<1>(&c[WORDS..], PANEL);
            }
            if second {
                unit.load_pairs::<2>(&c[LOW..], PANEL);
                if WIDE {
                    unit.load_pairs::<3>(&c[LOW + WORDS..], PANEL);
                }
            }
        }
    }
    for Term { a, b } in terms {
        for (step, b) in b.chunks_exact(WORDS * PANEL).enumerate() {
            let a = &left.pairs[a + step * left.step..];
            fetch.step(unit);
            unit.load_pairs::<6>(b, PANEL);
            load_left::<U, 4>(unit, left, a);
            unit.multiply::<0, 4, 6>();
            if WIDE {
                unit.load_pairs::<7>(&b[WORDS..], PANEL);
                unit.multiply::<1, 4, 7>();
            }
            if second {
                load_left::<U, 5>(unit, left, &a[left.tile..]);
                unit.multiply::<2, 5, 6>();
                if WIDE {
                    unit.multiply::<3, 5, 7>();
                }
            }
        }
    }
    unit.store_sums::<0>(c, PANEL);
    if WIDE {
        unit.store_sums::<1>(&mut c[WORDS..], PANEL);
    }
    if second {
        unit.store_sums::<2>(&mut c[LOW..], PANEL);
        if WIDE {
            unit.store_sums::<3>(&mut c[LOW + WORDS..], PANEL);
        }
    }
}

/// Fills tile `T` with one step (sixteen rows of 32 inputs) of the left operand, which begins at `from`.
#[inline(always)]
fn load_left<U: Unit, const T: usize>(unit: &mut U, left: Left<'_>, from: &[Pair]) {
    if left.streamed {
        unit.stream_pairs::<T>(from, left.row);
    } else {
        unit.load_pairs::<T>(from, left.row);
    }
}

/// AMX's tile registers and instructions in software, as Intel's manual specifies them (Software Developer's Manual,
/// volume 2, `TDPBF16PS`).
pub(in super::super::super) struct Emulated([[[u32; WORDS]; ROWS]; 8]);

impl Emulated {
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "AMX's self-check is not there")
    )]
    pub(super) fn new() -> Self {
        Self([[[0; WORDS]; ROWS]; 8])
    }
}

impl Unit for Emulated {
    fn zero<const T: usize>(&mut self) {
        self.0[T] = [[0; WORDS]; ROWS];
    }

    fn load_pairs<const T: usize>(&mut self, from: &[Pair], stride: usize) {
        assert!(from.len() >= span(stride));
        for (row, from) in self.0[T].iter_mut().zip(from.chunks(stride)) {
            for (word, [even, odd]) in row.iter_mut().zip(from) {
                *word = u32::from(odd.to_bits()) << 16 | u32::from(even.to_bits());
            }
        }
    }

    fn stream_pairs<const T: usize>(&mut self, from: &[Pair], stride: usize) {
        self.load_pairs::<T>(from, stride);
    }

    fn fetch(&mut self, _: &Pair) {}

    fn store_sums<const T: usize>(&mut self, to: &mut [f32], stride: usize) {
        assert!(to.len() >= span(stride));
        for (row, to) in self.0[T].iter().zip(to.chunks_mut(stride)) {
            for (word, sum) in row.iter().zip(to) {
                *sum = f32::from_bits(*word);
            }
        }
    }

    /// Emulates the instruction `TDPBF16PS`, which multiplies two tiles of bf16 pairs and adds the result to a third.
    /// Even and odd inputs of the sixteen pairs have a partial sum each; their total is added to the output. Subnormal
    /// numbers count as zero, in inputs and results, and roundings are to nearest, ties to even.
    ///
    /// Intel's manual fuses multiplication and addition. A product of two bf16 has 16 significant bits, so f32 holds it
    /// exactly, and rounding it first changes nothing unless it leaves f32's range of exponents.
    fn multiply<const C: usize, const A: usize, const B: usize>(&mut self) {
        let flush = |x: f32| if x.is_subnormal() { 0.0 } else { x };
        let even = |word: u32| flush(f32::from_bits(word << 16));
        let odd = |word: u32| flush(f32::from_bits(word & 0xffff_0000));
        for m in 0..ROWS {
            let mut sums = [[0f32; 2]; WORDS];
            for k in 0..WORDS {
                let a = self.0[A][m][k];
                for (sum, &b) in sums.iter_mut().zip(&self.0[B][k]) {
                    sum[0] = flush(sum[0] + even(a) * even(b));
                    sum[1] = flush(sum[1] + odd(a) * odd(b));
                }
            }
            for (c, [even, odd]) in self.0[C][m].iter_mut().zip(sums) {
                *c = flush(flush(f32::from_bits(*c)) + flush(even + odd)).to_bits();
            }
        }
    }
}
