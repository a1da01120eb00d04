//! Kernels: one matrix microkernel and the vector loops around it, for each instruction set.
//!
//! Every matrix product here has one shape: a few rows of `a`, broadcast value by value, times a strip of `b` that is
//! one or two vectors wide, with `k` ascending.
//!
//! ```text
//!             k ─▶                     strip of b: [k][16 or 32]
//!  row 0  a₀₀ a₀₁ a₀₂ …                b₀ ┌────────────────┐
//!  row 1  a₁₀ a₁₁ a₁₂ …      ×         b₁ │                │   c[row][·] += a[row][k] · b[k][·]
//!  …  (up to 12 rows at once)          b₂ └────────────────┘   one fused multiply-add each, k = 0, 1, 2, …
//! ```
//!
//! Each output has one accumulator and takes its products in ascending `k`. Its bits therefore do not depend on how
//! many rows are computed with it, nor on where `k` is cut (storing and reloading an f32 changes nothing). Decode and
//! prefill, weights and attention all run this kernel, which makes the backend batch-invariant. Different instruction
//! sets may differ in the last bits; a process uses one throughout.
//!
//! Left operands are stored for the kernel as `[row / 12][column / 128][row % 12][144]` f32; twelve rows are a *tile*.
//! The row stride is a constant (addresses are immediates, and one pointer serves twelve rows) and an odd number of
//! cache lines (rows do not compete for one set of the first-level cache). The 16 columns of padding are never read.
//!
//! Where weights are bf16 and activations may be too, [`pairs`] takes the place of this kernel; where weights are
//! packed, [`packed`] does.
//!
//! This module does not know what is multiplied. Unsafe code stays in the files of intrinsics and in the calls into
//! them.
//!
//! A library that chooses its blocking by shape cannot be batch-invariant. Measured against one (`gemm`), these kernels
//! take 1.04 to 1.07 times as long for each operation (`benches/results/engine.md`).

#![allow(
    unsafe_code,
    reason = "vector intrinsics need a CPU feature, known only at run time, and raw pointers"
)]

pub(super) mod lanes;
pub(super) mod packed;
pub(super) mod pairs;
mod portable;

#[cfg(not(target_arch = "x86_64"))]
#[path = "absent.rs"]
mod x86;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::precision::Precision;
use crate::models::Element;
use half::{bf16, f16};
use packed::PackedProduct;
use pairs::Parts;
use std::ops::Range;

/// Number of f32 values in a vector, as the kernels count them; narrower CPUs use two registers for one.
pub(super) const LANES: usize = 16;
/// Number of outputs in a panel of weights, and of columns that a kernel computes at once.
pub(super) const PANEL: usize = 2 * LANES;
/// Number of rows in a tile of a left operand, computed at once.
pub(super) const TILE_ROWS: usize = 12;
/// Number of columns of a left operand that are stored together in one block of a tile (twelve rows).
pub(super) const BLOCK: usize = 128;
/// Distance in floats from one row to the next within a block of a tile (twelve rows by [`BLOCK`] columns); what it is
/// more than [`BLOCK`] is padding.
pub(super) const STRIDE: usize = BLOCK + LANES;
/// Number of floats in one block of a tile (twelve rows by [`BLOCK`] columns), padding included.
pub(super) const TILE_BLOCK: usize = TILE_ROWS * STRIDE;

/// A number type in which a right operand (weights, keys or values) can be stored: f32, bf16 or f16.
pub(super) trait Scalar: Copy + Default + Send + Sync + 'static {
    const ELEMENT: Element;
    fn widen(self) -> f32;
}

impl Scalar for f32 {
    const ELEMENT: Element = Element::F32;
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Scalar for bf16 {
    const ELEMENT: Element = Element::Bf16;
    /// Converts to f32 by a shift, which vectorises, unlike `bf16::to_f32`, which quiets NaNs.
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

impl Scalar for f16 {
    const ELEMENT: Element = Element::F16;
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32_const()
    }
}

/// The value that the outputs of a product start from: zero, or the sum of earlier products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Zero: the product overwrites the output.
    Zero,
    /// The present content of the output, the sum over earlier ranges of `k`, to which this product is added.
    Sum,
}

impl Start {
    /// Returns the start for the product over block `number` of the inputs, counted from 0, if the inputs are cut into
    /// blocks that are multiplied in order.
    pub(super) fn of_block(number: usize) -> Self {
        if number == 0 { Self::Zero } else { Self::Sum }
    }
}

/// The operands of a matrix product `c[row - rows.start][0..columns] (+)= Σ a[row][0..k] · b[0..k][0..columns]`, which
/// overwrites `c` or is added to it, as `start` says.
pub(super) struct Product<'a, E> {
    /// Left operand, in the layout of the [module](self): begins with the tile (twelve rows) of row 0 and the first
    /// column to multiply.
    pub(super) a: &'a [f32],
    /// Distance in floats of `a` from one tile (twelve rows) to the next.
    pub(super) a_tile: usize,
    /// Rows of `a` to compute, counted from the first row of the first tile.
    pub(super) rows: Range<usize>,
    /// Number of columns of `a` and rows of `b` to multiply, at most [`BLOCK`].
    pub(super) k: usize,
    /// Right operand `[k][b_stride]`, of which the first `columns` of each row are multiplied.
    pub(super) b: &'a [E],
    pub(super) b_stride: usize,
    /// Output `[rows.len()][c_stride]`, of which the first `columns` of each row are written.
    pub(super) c: &'a mut [f32],
    pub(super) c_stride: usize,
    /// Number of columns to compute: [`LANES`] or [`PANEL`].
    pub(super) columns: usize,
    pub(super) start: Start,
}

/// A [`Product`] that has been checked: it reads and writes only within the slices of its operands.
struct Checked<'a, E>(Product<'a, E>);

impl<'a, E> Product<'a, E> {
    /// Checks that the product reads and writes only within the slices of its operands.
    ///
    /// # Panics
    /// Panics when it would reach beyond them, which is a mistake in the caller's code and not in any input.
    fn check(self) -> Checked<'a, E> {
        assert!(
            self.columns == LANES || self.columns == PANEL,
            "{} columns",
            self.columns
        );
        assert!(
            self.k <= BLOCK,
            "{} terms exceed a block of {BLOCK}",
            self.k
        );
        assert!(
            self.a_tile >= TILE_BLOCK,
            "tiles overlap: {} floats",
            self.a_tile
        );
        assert!(self.rows.start <= self.rows.end, "rows {:?}", self.rows);
        if let Some(last) = self.rows.end.checked_sub(1) {
            let a = extent(
                last / TILE_ROWS,
                self.a_tile,
                extent(last % TILE_ROWS, STRIDE, self.k),
            );
            assert!(
                a <= self.a.len(),
                "a has {} floats, {a} are read",
                self.a.len()
            );
        }
        if let Some(last) = self.k.checked_sub(1) {
            let b = extent(last, self.b_stride, self.columns);
            assert!(
                b <= self.b.len(),
                "b has {} elements, {b} are read",
                self.b.len()
            );
        }
        if let Some(last) = self.rows.len().checked_sub(1) {
            let c = extent(last, self.c_stride, self.columns);
            assert!(
                c <= self.c.len(),
                "c has {} floats, {c} are written",
                self.c.len()
            );
        }
        Checked(self)
    }
}

/// Returns `count * stride + width`, the index after the last value that `count + 1` rows of `width` values span.
/// Saturates, so that it is never too small.
fn extent(count: usize, stride: usize, width: usize) -> usize {
    count.saturating_mul(stride).saturating_add(width)
}

/// A loop over f32 values that is compiled once per instruction set; [`Kernels::run`] runs the version for the CPU.
///
/// `run` must be `#[inline(always)]`, or it is compiled for the least capable of them.
pub(super) trait Loop {
    /// Runs the loop. `FMA` is true if the instruction set has fused multiply-adds, see [`lanes::fma`].
    fn run<const FMA: bool>(self);
}

/// The kernels in use: instruction sets and ways of multiplying, chosen for the CPU at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kernels {
    isa: Isa,
    /// The instructions that multiply bf16 activations by bf16 weights; `None` if bf16 weights are converted to f32 and
    /// multiplied by f32 activations.
    pairs: Option<pairs::Machine>,
    /// The instructions for attention's products of bf16 by bf16, and the number of bf16 values (one or two) whose sum
    /// represents each number in them. They apply only to models with bf16 or packed weights. `None` if attention
    /// computes in f32 for all models.
    attention: Option<(pairs::Machine, Parts)>,
    /// True if packed (quantised) weights are multiplied as they are, by activations of 8 bits. Otherwise they are
    /// unpacked to bf16 when they are loaded.
    packed: bool,
}

/// The vector instruction set in use. An `Avx512` or `Avx2` exists only where the CPU has the instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Isa {
    /// With the instructions for packed weights if the CPU has them too.
    Avx512(x86::Avx512, Option<packed::vnni::Vnni>),
    Avx2(x86::Avx2),
    Portable,
}

impl Kernels {
    /// Chooses the best kernels for this CPU and `precision`. Also returns a warning for the operator if the CPU has
    /// AMX that cannot be used. Returns `None` if `precision` demands bf16 instructions and the CPU has none.
    pub(super) fn detect(precision: Precision) -> Option<(Self, Option<String>)> {
        let isa = x86::Avx512::detect()
            .map(|avx512| Isa::Avx512(avx512, packed::vnni::Vnni::detect()))
            .or_else(|| x86::Avx2::detect().map(Isa::Avx2))
            .unwrap_or(Isa::Portable);
        if precision == Precision::F32 {
            let kernels = Self {
                isa,
                pairs: None,
                attention: None,
                packed: false,
            };
            return Some((kernels, None));
        }
        let (machine, warning) = pairs::Machine::detect();
        let pairs = match (precision, machine) {
            (Precision::Bf16 | Precision::Bf16Kv, None) => return None,
            (Precision::Bf16 | Precision::Bf16Kv, machine) => machine,
            (_, machine) => machine.filter(|machine| machine.is_faster_than_f32()),
        };
        let attention = match precision {
            Precision::Bf16Kv => pairs.map(|machine| (machine, Parts::One)),
            _ => pairs
                .filter(|machine| machine.has_tiles())
                .map(|machine| (machine, Parts::Two)),
        };
        // Packed weights on CPUs with fast bf16 instructions and the portable packed kernel were not measured, so
        // `Auto` chooses neither.
        let packed = match precision {
            Precision::Packed => true,
            Precision::Auto => pairs.is_none() && !matches!(isa, Isa::Portable),
            _ => false,
        };
        let kernels = Self {
            isa,
            pairs,
            attention,
            packed,
        };
        Some((kernels, warning))
    }

    /// Returns all kernels that run on this CPU, for tests: one for each vector instruction set, best first; then, with
    /// the best set, those with bf16 instructions, with each way of computing attention.
    #[cfg(test)]
    pub(super) fn available() -> Vec<Self> {
        let (avx512, vnni) = (x86::Avx512::detect(), packed::vnni::Vnni::detect());
        let vectors = [
            avx512
                .zip(vnni)
                .map(|(avx512, vnni)| Isa::Avx512(avx512, Some(vnni))),
            avx512.map(|avx512| Isa::Avx512(avx512, None)),
            x86::Avx2::detect().map(Isa::Avx2),
            Some(Isa::Portable),
        ];
        let mut all: Vec<Self> = vectors
            .into_iter()
            .flatten()
            .map(|isa| Self {
                isa,
                pairs: None,
                attention: None,
                packed: true,
            })
            .collect();
        let best = Self {
            packed: false,
            ..all[0]
        };
        for machine in pairs::Machine::available() {
            let with = |pairs, parts: Option<Parts>| Self {
                pairs,
                attention: parts.map(|parts| (machine, parts)),
                ..best
            };
            all.extend([None, Some(Parts::One), Some(Parts::Two)].map(|p| with(Some(machine), p)));
            // No precision selects this combination. It isolates the error of attention in two parts.
            all.push(with(None, Some(Parts::Two)));
        }
        all
    }

    /// Returns the instructions that multiply bf16 activations by bf16 weights, or `None` if they are multiplied as
    /// f32.
    pub(super) fn pairs(self) -> Option<pairs::Machine> {
        self.pairs
    }

    /// Returns the instructions for attention's products of bf16 by bf16 and the number of bf16 whose sum represents a
    /// number, or `None` if attention computes in f32.
    pub(super) fn attention(self) -> Option<(pairs::Machine, Parts)> {
        self.attention
    }

    /// Returns whether packed (quantised) weights stay packed in memory and are multiplied by 8-bit activations.
    pub(super) fn keeps_packed(self) -> bool {
        self.packed
    }

    /// Returns a name of the instruction sets in use, without those for packed weights, which give the same bits
    /// everywhere.
    pub(super) fn name(self) -> &'static str {
        match (self.isa, self.pairs) {
            (Isa::Avx512(..), None) => "AVX-512",
            (Isa::Avx2(_), None) => "AVX2 with FMA and F16C",
            (Isa::Portable, None) => "portable",
            (_, Some(machine)) => machine.name(),
        }
    }

    /// Returns a name of the instruction sets in use with a model whose weights are packed.
    pub(super) fn packed_name(self) -> &'static str {
        match self.isa {
            Isa::Avx512(_, Some(_)) => "AVX-512 with VNNI",
            _ => self.name(),
        }
    }

    /// Computes `product` and writes its output.
    ///
    /// # Panics
    /// Panics when the product would reach beyond its slices.
    #[inline]
    pub(super) fn multiply<E: Scalar>(self, product: Product<'_, E>) {
        let product = product.check();
        match self.isa {
            // SAFETY: the product stays within its slices, and the CPU has the instructions.
            Isa::Avx512(..) => unsafe { x86::multiply_avx512(product) },
            // SAFETY: as above.
            Isa::Avx2(_) => unsafe { x86::multiply_avx2(product) },
            Isa::Portable => portable::multiply(product),
        }
    }

    /// Computes `product`, packed weights by 8-bit activations, and writes its output: the same bits on every CPU.
    ///
    /// # Panics
    /// Panics when the product would reach beyond its slices.
    #[inline]
    pub(super) fn multiply_packed(self, product: PackedProduct<'_>) {
        let product = product.check();
        match self.isa {
            // SAFETY: the product stays within its slices, and the CPU has the instructions.
            Isa::Avx512(_, Some(_)) => unsafe { packed::vnni::multiply(product) },
            // SAFETY: as above; both proofs include AVX2, FMA and F16C.
            Isa::Avx512(..) | Isa::Avx2(_) => unsafe { packed::avx2::multiply(product) },
            Isa::Portable => packed::multiply(product),
        }
    }

    /// Converts `from` to f32 and writes the values to `to`.
    ///
    /// # Panics
    /// Panics when the lengths differ or are not a multiple of [`LANES`].
    #[inline]
    pub(super) fn widen<E: Scalar>(self, from: &[E], to: &mut [f32]) {
        assert!(
            from.len() == to.len() && from.len().is_multiple_of(LANES),
            "{} elements to {} floats",
            from.len(),
            to.len()
        );
        match self.isa {
            // SAFETY: the lengths agree and are whole vectors, and the CPU has the instructions.
            Isa::Avx512(..) => unsafe { x86::widen_avx512(from, to) },
            // SAFETY: as above.
            Isa::Avx2(_) => unsafe { x86::widen_avx2(from, to) },
            Isa::Portable => to
                .iter_mut()
                .zip(from)
                .for_each(|(to, from)| *to = from.widen()),
        }
    }

    /// Runs `body`, compiled for the vector instruction set in use.
    #[inline]
    pub(super) fn run(self, body: impl Loop) {
        match self.isa {
            // SAFETY: the CPU has the instructions; `body` is safe code.
            Isa::Avx512(..) => unsafe { x86::run_avx512(body) },
            // SAFETY: as above.
            Isa::Avx2(_) => unsafe { x86::run_avx2(body) },
            Isa::Portable => portable::run(body),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns distinct, deterministic numbers.
    pub(super) fn numbers(seed: u32, count: usize) -> Vec<f32> {
        let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    struct Case {
        rows: Range<usize>,
        k: usize,
        columns: usize,
        b_stride: usize,
        c_stride: usize,
        start: Start,
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for (i, (first, count)) in [
            (0, 1),
            (0, 12),
            (3, 5),
            (0, 25),
            (11, 14),
            (7, 1),
            (0, 8),
            (5, 0),
        ]
        .into_iter()
        .enumerate()
        {
            for (j, k) in [1, 2, 7, 16, 31, 127, 128].into_iter().enumerate() {
                let columns = [LANES, PANEL][(i + j) % 2];
                cases.push(Case {
                    rows: first..first + count,
                    k,
                    columns,
                    b_stride: columns + [0, 16, 3][(i + 2 * j) % 3],
                    c_stride: columns + [0, 5][(i + j / 2) % 2],
                    start: [Start::Zero, Start::Sum][(i + j / 3) % 2],
                });
            }
        }
        cases
    }

    fn run<E: Scalar>(kernels: Kernels, case: &Case, a: &[f32], b: &[E], c: &mut [f32]) {
        kernels.multiply(Product {
            a,
            a_tile: TILE_BLOCK + 7,
            rows: case.rows.clone(),
            k: case.k,
            b,
            b_stride: case.b_stride,
            c,
            c_stride: case.c_stride,
            columns: case.columns,
            start: case.start,
        });
    }

    fn check_against_f64<E: Scalar>(narrow: impl Fn(f32) -> E) {
        for (number, case) in cases().into_iter().enumerate() {
            let a = numbers(number as u32, 4 * (TILE_BLOCK + 7));
            let b: Vec<E> = numbers(99, BLOCK * (PANEL + 16))
                .into_iter()
                .map(&narrow)
                .collect();
            let before = numbers(5, 30 * (PANEL + 5));
            for kernels in Kernels::available() {
                let mut c = before.clone();
                run(kernels, &case, &a, &b, &mut c);
                let mut expected: Vec<f64> = before.iter().copied().map(f64::from).collect();
                for (i, row) in case.rows.clone().enumerate() {
                    for column in 0..case.columns {
                        let sum: f64 = (0..case.k)
                            .map(|k| {
                                let a = a[row / TILE_ROWS * (TILE_BLOCK + 7)
                                    + row % TILE_ROWS * STRIDE
                                    + k];
                                f64::from(a) * f64::from(b[k * case.b_stride + column].widen())
                            })
                            .sum();
                        let cell = &mut expected[i * case.c_stride + column];
                        *cell = sum + if case.start == Start::Sum { *cell } else { 0.0 };
                    }
                }
                for (index, (got, expected)) in c.iter().zip(&expected).enumerate() {
                    assert!(
                        (f64::from(*got) - expected).abs() < 2e-5,
                        "{kernels:?}, case {number}, cell {index}: {got}, expected {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn products_agree_with_f64_for_every_instruction_set_and_type() {
        check_against_f64(|value| value);
        check_against_f64(bf16::from_f32);
        check_against_f64(f16::from_f32);
    }

    #[test]
    fn a_rows_bits_do_not_depend_on_rows_beside_it_nor_on_where_k_is_cut() {
        let a = numbers(1, 3 * TILE_BLOCK);
        let b = numbers(2, BLOCK * PANEL);
        for kernels in Kernels::available() {
            for columns in [LANES, PANEL] {
                let product = |rows: Range<usize>, terms: Range<usize>, c: &mut [f32], start| {
                    kernels.multiply(Product {
                        a: &a[terms.start..],
                        a_tile: TILE_BLOCK,
                        rows,
                        k: terms.len(),
                        b: &b[terms.start * PANEL..],
                        b_stride: PANEL,
                        c,
                        c_stride: columns,
                        columns,
                        start,
                    });
                };
                let mut whole = vec![0.0; 36 * columns];
                product(0..36, 0..BLOCK, &mut whole, Start::Zero);
                for rows in [0..1, 5..6, 35..36, 1..12, 9..17, 3..36] {
                    for cut in [0, 1, 63, 127] {
                        let mut part = vec![0.0; rows.len() * columns];
                        product(rows.clone(), 0..cut, &mut part, Start::Zero);
                        product(rows.clone(), cut..BLOCK, &mut part, Start::Sum);
                        let expected = &whole[rows.start * columns..rows.end * columns];
                        assert!(
                            part.iter()
                                .zip(expected)
                                .all(|(a, b)| a.to_bits() == b.to_bits()),
                            "{kernels:?} {rows:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn widening_is_exact() {
        let values = numbers(3, 160);
        let narrow: Vec<bf16> = values.iter().copied().map(bf16::from_f32).collect();
        let half: Vec<f16> = values.iter().copied().map(f16::from_f32).collect();
        for kernels in Kernels::available() {
            let mut wide = vec![0.0; 160];
            kernels.widen(&narrow, &mut wide);
            assert!(wide.iter().zip(&narrow).all(|(a, b)| *a == b.to_f32()));
            kernels.widen(&half, &mut wide);
            assert!(wide.iter().zip(&half).all(|(a, b)| *a == b.to_f32()));
            kernels.widen(&values, &mut wide);
            assert_eq!(wide, values);
        }
    }

    #[test]
    fn products_beyond_their_slices_are_refused() {
        let (a, b) = (vec![0f32; TILE_BLOCK], vec![0f32; 8 * PANEL]);
        let attempt = |a_length: usize,
                       b_length: usize,
                       c_length: usize,
                       rows: usize,
                       k: usize,
                       b_stride: usize| {
            let (a, b, mut c) = (&a[..a_length], &b[..b_length], vec![0f32; c_length]);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                Kernels::available()[0].multiply(Product {
                    a,
                    a_tile: TILE_BLOCK,
                    rows: 0..rows,
                    k,
                    b,
                    b_stride,
                    c: &mut c,
                    c_stride: PANEL,
                    columns: PANEL,
                    start: Start::Zero,
                });
            }))
            .is_ok()
        };
        assert!(attempt(STRIDE + 8, 8 * PANEL, 2 * PANEL, 2, 8, PANEL));
        assert!(!attempt(STRIDE + 7, 8 * PANEL, 2 * PANEL, 2, 8, PANEL));
        assert!(!attempt(STRIDE + 8, 8 * PANEL - 1, 2 * PANEL, 2, 8, PANEL));
        assert!(!attempt(STRIDE + 8, 8 * PANEL, 2 * PANEL - 1, 2, 8, PANEL));
        assert!(!attempt(TILE_BLOCK, 8 * PANEL, 13 * PANEL, 13, 8, PANEL));
        assert!(!attempt(TILE_BLOCK, 8 * PANEL, PANEL, 1, 129, 0));
        assert!(!attempt(
            TILE_BLOCK,
            8 * PANEL,
            PANEL,
            1,
            3,
            usize::MAX / 2 + 1
        ));
    }
}
