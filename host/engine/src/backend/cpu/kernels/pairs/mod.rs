//! Products of bf16 with bf16, summed in f32, where the CPU has an instruction for them.
//!
//! Both kinds of instruction take inputs two at a time, so both operands are stored as *pairs* of adjacent inputs:
//!
//! ```text
//!  a (left)    [row / 16][input / 32][row % 16][16]   pairs along the inputs; sixteen rows are a tile
//!  b (right)   [input / 2][32 outputs]                a pair per output; one layout for every machine
//!  c           [row][32] f32
//! ```
//!
//! | machine | instruction | at once | the order of an output's sum |
//! | --- | --- | --- | --- |
//! | AMX | `TDPBF16PS` | 16 rows, 16 outputs, 32 inputs | 32 inputs in two partial sums, which then join the rest |
//! | AVX512-BF16 | `VDPBF16PS` | 1 row, 16 outputs, 2 inputs | input after input |
//! | emulated | none: `TDPBF16PS` written out | as AMX | as AMX |
//!
//! Activations that are multiplied by weights have this layout of `a`, in which sixteen rows of 32 inputs, which one
//! instruction loads, are adjacent. Attention has strides of its own ([`Left`]).
//!
//! A number may also be stored in two *parts*, its nearest bf16 and the bf16 nearest to the rest: 16 significant bits
//! instead of 8. Three products of parts then make up one product (low parts are not multiplied with each other), whose
//! terms are exact to 2^-15 (*bf16x2*: Henry, Tang and Heinecke, arXiv 1904.06376, section 2).
//!
//! Inputs are padded with zeroes to a multiple of 32 on both sides. Products may be cut along the inputs at any such
//! multiple, and along rows and outputs anywhere. The order of additions of an output stays the same, so its bits do
//! not depend on the rows and columns computed with it. They do depend on the machine; a process uses one throughout.
//!
//! Both instructions treat subnormal numbers as zero. Whether rounding activations to bf16 is worth its error is
//! decided elsewhere, by [`Precision`](super::Precision).
//!
//! bf16 by bf16 takes half the time of f32; logits deviate by one or two hundredths of their standard deviation.

mod tiles;

#[cfg(not(target_arch = "x86_64"))]
#[path = "absent.rs"]
mod amx;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(not(target_arch = "x86_64"))]
use amx as avx512;
#[cfg(target_arch = "x86_64")]
mod avx512;

use super::{LANES, PANEL, Start, extent};
use half::bf16;
use std::ops::Range;

/// Two adjacent inputs of an operand in bf16.
pub(in super::super) type Pair = [bf16; 2];

/// Number of rows in a tile of a left operand.
pub(in super::super) const ROWS: usize = 16;
/// Number of inputs in a step, the unit of storage; inputs are padded with zeroes to a multiple of this.
pub(in super::super) const DEPTH: usize = 32;
/// Maximum number of inputs of one [`PairProduct`]; more are multiplied in several.
pub(in super::super) const BLOCK: usize = 512;
/// Number of pairs in one step (32 inputs) of a tile, if its rows are adjacent.
pub(in super::super) const STEP_PAIRS: usize = ROWS * DEPTH / 2;

/// A left operand of bf16 pairs. Sixteen rows are a tile, and 32 inputs of a tile are a step.
#[derive(Clone, Copy)]
pub(in super::super) struct Left<'a> {
    /// The operand's pairs, beginning with the tile (16 rows) of row 0 and the first step (32 inputs) to multiply.
    pub(in super::super) pairs: &'a [Pair],
    /// Distance in `pairs` from one row of a tile (16 rows) to the next.
    pub(in super::super) row: usize,
    /// Distance in `pairs` from one step (32 inputs) of a tile (16 rows) to the next.
    pub(in super::super) step: usize,
    /// Distance in `pairs` from one tile (16 rows) to the next.
    pub(in super::super) tile: usize,
    /// Distance in `pairs` from a number's high part to its low part; `None` if each number is a single bf16.
    pub(in super::super) low: Option<usize>,
    /// True if the pairs are loaded past the first-level cache, which leaves it to the right operand; only AMX does so.
    pub(in super::super) streamed: bool,
}

/// The operands of a product of bf16 pairs, `c[row - rows.start][0..columns] (+)= Σ a[row] · b[..][0..columns]`, which
/// overwrites `c` or is added to it, as `start` says.
pub(in super::super) struct PairProduct<'a> {
    pub(in super::super) a: Left<'a>,
    /// Rows of `a` to compute; the first must be a multiple of [`ROWS`].
    pub(in super::super) rows: Range<usize>,
    /// Right operand `[inputs / 2][32]`, with a multiple of [`DEPTH`] inputs, at most [`BLOCK`]. If numbers have two
    /// parts, all high parts come first, then all low parts.
    pub(in super::super) b: &'a [Pair],
    /// The right operand of the next product, which AMX's kernel prefetches to the second-level cache meanwhile. May be
    /// empty.
    pub(in super::super) next: &'a [Pair],
    /// Output `[rows.len()][32]`. If the slice has room for all sixteen rows of the last tile, those beyond `rows` are
    /// undefined afterwards.
    pub(in super::super) c: &'a mut [f32],
    /// Number of columns to compute, [`LANES`] or [`PANEL`]. The other columns of `c` keep their content.
    pub(in super::super) columns: usize,
    pub(in super::super) start: Start,
}

/// One of the up to three products that make up a [`PairProduct`]: the high or low parts of the left operand times
/// those of the right one. It is no product if `b` is empty.
#[derive(Clone, Copy)]
struct Term<'a> {
    /// Offset in pairs of the left operand's parts: 0 for the high parts, [`Left::low`] for the low ones.
    a: usize,
    b: &'a [Pair],
}

/// A [`PairProduct`] that has been checked: it reads and writes only within the slices of its operands.
struct Checked<'a>(PairProduct<'a>);

impl<'a> PairProduct<'a> {
    /// Returns the products whose sum is this one. If numbers have two parts, these are high · high, low · high and
    /// high · low; low · low is negligible. Otherwise there is one, and the last two are empty.
    #[inline(always)]
    fn terms(&self) -> [Term<'a>; 3] {
        let term = |a, b| Term { a, b };
        match self.a.low {
            None => [term(0, self.b), term(0, &[]), term(0, &[])],
            Some(low_part) => {
                let (high, low) = self.b.split_at(self.b.len() / 2);
                [term(0, high), term(low_part, high), term(0, low)]
            }
        }
    }

    /// Checks that the product reads and writes only within the slices of its operands.
    ///
    /// # Panics
    /// Panics when it would reach beyond them, which is a mistake in the caller's code and not in any input.
    fn check(self) -> Checked<'a> {
        let parts = 1 + usize::from(self.a.low.is_some());
        let (pairs, rows) = (self.b.len() / PANEL / parts, self.rows.len());
        assert!(
            self.b.len() == parts * pairs * PANEL
                && pairs.is_multiple_of(DEPTH / 2)
                && (1..=BLOCK / 2).contains(&pairs),
            "b has {} pairs, not whole steps of one block",
            self.b.len()
        );
        assert!(
            self.rows.start.is_multiple_of(ROWS) && self.rows.start <= self.rows.end,
            "rows {:?} do not begin a tile",
            self.rows
        );
        assert!(
            self.columns == LANES || self.columns == PANEL,
            "{} columns",
            self.columns
        );
        if let Some(last) = self.rows.end.checked_sub(1) {
            // A whole tile is read, however many of its rows are computed.
            let a = self.a;
            let step = extent(ROWS - 1, a.row, DEPTH / 2);
            let steps = extent(pairs / (DEPTH / 2) - 1, a.step, step);
            let read = extent(last / ROWS, a.tile, steps).saturating_add(a.low.unwrap_or(0));
            assert!(
                read <= a.pairs.len(),
                "a has {} pairs, {read} are read",
                a.pairs.len()
            );
        }
        assert!(
            rows * PANEL <= self.c.len(),
            "c has {} floats, {} are written",
            self.c.len(),
            rows * PANEL
        );
        Checked(self)
    }
}

/// The number of bf16 whose sum represents a number: one (8 significant bits) or two (16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Parts {
    One,
    Two,
}

/// The instructions that multiply pairs of bf16. A value exists only where the CPU has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Machine {
    Amx(amx::Amx),
    Avx512(avx512::Avx512Bf16),
    /// AMX emulated in software: slow, but it tests the AMX kernel on CPUs without AMX.
    #[cfg(test)]
    Emulated,
}

impl Machine {
    /// Returns the fastest instructions of this CPU that multiply bf16, if it has any. Also returns a warning for the
    /// operator if the CPU has AMX that cannot be used.
    pub(in super::super) fn detect() -> (Option<Self>, Option<String>) {
        let plain = || avx512::Avx512Bf16::detect().map(Machine::Avx512);
        match amx::Amx::detect() {
            Ok(Some(amx)) => (Some(Machine::Amx(amx)), None),
            Ok(None) => (plain(), None),
            Err(reason) => (plain(), Some(format!("AMX is not used: {reason}"))),
        }
    }

    /// Returns all instructions that multiply bf16 and can run here, including the emulation of AMX; for tests.
    #[cfg(test)]
    pub(in super::super) fn available() -> Vec<Self> {
        let amx = amx::Amx::detect().ok().flatten().map(Machine::Amx);
        let plain = avx512::Avx512Bf16::detect().map(Machine::Avx512);
        if amx.is_none() {
            println!(
                "skipped: AMX, which this CPU does not have; its kernel runs on emulated tiles"
            );
        }
        amx.into_iter()
            .chain(plain)
            .chain([Machine::Emulated])
            .collect()
    }

    /// Returns a name of the instructions and of the vector instruction set that goes with them, for logs.
    pub(in super::super) fn name(self) -> &'static str {
        match self {
            Machine::Amx(_) => "AVX-512 and AMX, bf16 by bf16",
            Machine::Avx512(_) => "AVX-512, bf16 by bf16",
            #[cfg(test)]
            Machine::Emulated => "emulated tiles",
        }
    }

    /// Returns whether these instructions multiply bf16 faster than the f32 kernels multiply f32. AMX and AMD's
    /// AVX512-BF16 do, by measurements on one CPU of each kind.
    pub(in super::super) fn is_faster_than_f32(self) -> bool {
        match self {
            Machine::Amx(_) => true,
            Machine::Avx512(machine) => machine.is_faster_than_f32(),
            #[cfg(test)]
            Machine::Emulated => false,
        }
    }

    /// Returns whether these instructions multiply tiles (AMX): so fast that three products of bf16 parts take less
    /// time than one product in f32.
    pub(in super::super) fn has_tiles(self) -> bool {
        matches!(self, Machine::Amx(_))
    }

    /// Prepares the calling thread for products; for AMX, configures its tile registers. The thread must have no other
    /// [`Ready`].
    pub(in super::super) fn ready(self) -> Ready {
        match self {
            Machine::Amx(machine) => Ready::Amx(machine.unit()),
            Machine::Avx512(machine) => Ready::Avx512(machine),
            #[cfg(test)]
            Machine::Emulated => Ready::Emulated(Box::new(tiles::Emulated::new())),
        }
    }
}

/// Instructions that are ready for products in one thread: for AMX, the tile registers are configured. Kept for as many
/// products as possible, because configuring takes about as long as a small one.
pub(in super::super) enum Ready {
    Amx(amx::TileRegisters),
    Avx512(avx512::Avx512Bf16),
    #[cfg(test)]
    Emulated(Box<tiles::Emulated>),
}

impl Ready {
    /// Computes `product` and writes its output.
    ///
    /// # Panics
    /// Panics when the product would reach beyond its slices.
    #[inline]
    pub(in super::super) fn multiply(&mut self, product: PairProduct<'_>) {
        let product = product.check();
        match self {
            Ready::Amx(unit) => tiles::multiply(unit, product),
            Ready::Avx512(machine) => machine.multiply(product),
            #[cfg(test)]
            Ready::Emulated(unit) => tiles::multiply(&mut **unit, product),
        }
    }
}

#[cfg(test)]
mod tests;
