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

/// Two adjacent inputs.
pub(in super::super) type Pair = [bf16; 2];

/// Rows in a tile.
pub(in super::super) const ROWS: usize = 16;
/// Inputs are padded to a multiple of this.
pub(in super::super) const DEPTH: usize = 32;
/// Maximum number of inputs of one product.
pub(in super::super) const BLOCK: usize = 512;
/// Pairs in a tile of one step, where its rows are adjacent.
pub(in super::super) const STEP_PAIRS: usize = ROWS * DEPTH / 2;

/// A left operand. Sixteen rows are a tile, and 32 inputs of a tile are a step.
#[derive(Clone, Copy)]
pub(in super::super) struct Left<'a> {
    /// Pairs from the first row's tile and the first step of interest on.
    pub(in super::super) pairs: &'a [Pair],
    /// Stride in `pairs` between the rows of a tile.
    pub(in super::super) row: usize,
    /// Stride in `pairs` between the steps of a tile.
    pub(in super::super) step: usize,
    /// Stride in `pairs` between tiles.
    pub(in super::super) tile: usize,
    /// Distance in `pairs` from a number's high part to its low part, if numbers have two parts.
    pub(in super::super) low: Option<usize>,
    /// True to load the pairs as streamed data (AMX only), which leaves the first-level cache to `b`.
    pub(in super::super) streamed: bool,
}

/// A product of bf16 pairs, `c[row - rows.start][0..columns] (+)= Σ a[row] · b[..][0..columns]`.
pub(in super::super) struct PairProduct<'a> {
    pub(in super::super) a: Left<'a>,
    /// Rows of `a` to compute; the first begins a tile.
    pub(in super::super) rows: Range<usize>,
    /// Right operand `[inputs / 2][32]`: a multiple of [`DEPTH`] inputs, at most [`BLOCK`]. If numbers are in two
    /// parts, all high parts come first.
    pub(in super::super) b: &'a [Pair],
    /// The right operand of the next product, which AMX's kernel fetches to the second-level cache meanwhile. May be
    /// empty.
    pub(in super::super) next: &'a [Pair],
    /// Output `[rows.len()][32]`. Where it holds the whole last tile, that tile's unwanted rows are undefined
    /// afterwards.
    pub(in super::super) c: &'a mut [f32],
    /// Columns to compute, [`LANES`] or [`PANEL`]. The others keep their content.
    pub(in super::super) columns: usize,
    pub(in super::super) start: Start,
}

/// A product of the high or low parts of `a` with those of `b`; none if `b` is empty.
#[derive(Clone, Copy)]
struct Term<'a> {
    /// Offset of the parts of `a`, in pairs: 0 for the high ones, [`Left::low`] for the low ones.
    a: usize,
    b: &'a [Pair],
}

/// A [`PairProduct`] that has been checked to stay within its slices.
struct Checked<'a>(PairProduct<'a>);

impl<'a> PairProduct<'a> {
    /// Returns the products whose sum is this one. If numbers are in two parts, these are high · high, low · high and
    /// high · low; low · low is negligible. Otherwise the last two are empty.
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

    /// Checks that the product stays within its slices.
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

/// The number of bf16 whose sum represents a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Parts {
    One,
    Two,
}

/// Instructions that multiply pairs of bf16. A value exists only where the CPU has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Machine {
    Amx(amx::Amx),
    Avx512(avx512::Avx512Bf16),
    /// AMX in software: slow, but it tests the AMX kernel on CPUs without AMX.
    #[cfg(test)]
    Emulated,
}

/// The result of detecting a machine.
pub(in super::super) struct DetectedMachine {
    pub(in super::super) machine: Option<Machine>,
    /// The reason that AMX is not used although the CPU has it; `None` if AMX is used or absent.
    pub(in super::super) warning: Option<String>,
}

impl Machine {
    /// Detects the fastest machine of this CPU.
    pub(in super::super) fn detect() -> DetectedMachine {
        let plain = || avx512::Avx512Bf16::detect().map(Machine::Avx512);
        match amx::Amx::detect() {
            Ok(Some(amx)) => DetectedMachine {
                machine: Some(Machine::Amx(amx)),
                warning: None,
            },
            Ok(None) => DetectedMachine {
                machine: plain(),
                warning: None,
            },
            Err(reason) => DetectedMachine {
                machine: plain(),
                warning: Some(format!("AMX is not used: {reason}")),
            },
        }
    }

    /// Returns all machines that can run here, the emulation included.
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

    /// Returns a human-readable name of the machine, with its vector instructions.
    pub(in super::super) fn name(self) -> &'static str {
        match self {
            Machine::Amx(_) => "AVX-512 and AMX, bf16 by bf16",
            Machine::Avx512(_) => "AVX-512, bf16 by bf16",
            #[cfg(test)]
            Machine::Emulated => "emulated tiles",
        }
    }

    /// Returns whether the machine is faster than the f32 kernels, as far as CPUs of its kind were measured.
    pub(in super::super) fn is_faster_than_f32(self) -> bool {
        match self {
            Machine::Amx(_) => true,
            Machine::Avx512(machine) => machine.is_faster_than_f32(),
            #[cfg(test)]
            Machine::Emulated => false,
        }
    }

    /// Returns whether the CPU multiplies tiles, so fast that three products of parts take less time than one in f32.
    pub(in super::super) fn has_tiles(self) -> bool {
        matches!(self, Machine::Amx(_))
    }

    /// Prepares the machine in the calling thread, which must have no other [`Ready`]. For AMX: configures the tiles.
    pub(in super::super) fn ready(self) -> Ready {
        match self {
            Machine::Amx(machine) => Ready::Amx(machine.unit()),
            Machine::Avx512(machine) => Ready::Avx512(machine),
            #[cfg(test)]
            Machine::Emulated => Ready::Emulated(Box::new(tiles::Emulated::new())),
        }
    }
}

/// A machine that is ready in one thread: its tiles are configured. Kept for as many products as possible, because
/// configuring takes about as long as a small one.
pub(in super::super) enum Ready {
    Amx(amx::TileRegisters),
    Avx512(avx512::Avx512Bf16),
    #[cfg(test)]
    Emulated(Box<tiles::Emulated>),
}

impl Ready {
    /// Computes `product`.
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
