//! Activations as left operands, in the form that the next product's weights need.
//!
//! ```text
//!  Wide    [row / 12][column / 128][row % 12][144] f32             see `kernels`
//!  Pairs   [row / 16][column / 32][row % 16][16 pairs] bf16        see `kernels::pairs`
//!  Bytes   [row][column] i8, made of Wide before a product         see `kernels::packed`
//! ```
//!
//! Callers write f32 to a tile and do not know its form.

use super::aligned::Aligned;
use super::kernels::packed::{self, Quantise};
use super::kernels::{BLOCK, Kernels, STRIDE, TILE_BLOCK, TILE_ROWS, lanes, pairs};
use pairs::{Left, Pair};
use rayon::iter::Either;
use rayon::prelude::*;

/// The layout and number format in which a matrix product reads its left operand: f32 (`Wide`) or pairs of bf16
/// (`Pairs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    #[default]
    Wide,
    Pairs,
}

impl Form {
    /// Returns the number of rows in a tile, the rows that one call of a kernel reads together: 12 or 16.
    pub(super) fn tile_rows(self) -> usize {
        match self {
            Form::Wide => TILE_ROWS,
            Form::Pairs => pairs::ROWS,
        }
    }
}

/// A matrix of activations `[rows, columns]`, cut into tiles of 12 or 16 rows as the kernels read left operands. The
/// memory is reused from product to product.
#[derive(Default)]
pub(super) struct Tiles {
    form: Form,
    wide: Aligned<f32>,
    pairs: Aligned<Pair>,
    bytes: Bytes,
    rows: usize,
    columns: usize,
}

/// Activations rounded to 8 bits, for products with packed weights.
#[derive(Default)]
pub(super) struct Bytes {
    /// The activations as integers, `[rows][columns]`. Times the scale of its block of 32 columns, each approximates
    /// the activation.
    pub(super) integers: Aligned<i8>,
    /// For each block of 32 columns of each row, the scale and the sum of the integers, `[rows][columns / 32]`.
    pub(super) scales: Aligned<[f32; 2]>,
}

impl Tiles {
    /// Sets number of rows, number of columns and layout, for new content. The values are undefined, except for zeroes
    /// where columns of bf16 pairs are padded to a multiple of 32.
    pub(super) fn shape(&mut self, rows: usize, columns: usize, form: Form) {
        (self.rows, self.columns, self.form) = (rows, columns, form);
        let length = rows.div_ceil(form.tile_rows()) * self.tile_length();
        match form {
            Form::Wide => self.wide.resize(length),
            Form::Pairs => {
                self.pairs.resize(length);
                let padding = columns.next_multiple_of(pairs::DEPTH) - columns;
                if padding > 0 {
                    let zeroes = &[0.0; pairs::DEPTH][..padding];
                    self.par_tiles().for_each(|mut tile| {
                        (0..pairs::ROWS).for_each(|row| tile.write(row, columns, zeroes));
                    });
                }
            }
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the number of rows in a tile for the present form: 12 or 16.
    pub(super) fn tile_rows(&self) -> usize {
        self.form.tile_rows()
    }

    /// Returns the number of elements in a tile with all its columns: f32 numbers, or pairs of bf16.
    pub(super) fn tile_length(&self) -> usize {
        match self.form {
            Form::Wide => self.columns.div_ceil(BLOCK) * TILE_BLOCK,
            Form::Pairs => self.columns.div_ceil(pairs::DEPTH) * pairs::STEP_PAIRS,
        }
    }

    /// Returns the number of bytes in a tile (12 or 16 rows) with all its columns; the formula is the same for both
    /// forms.
    pub(super) fn tile_bytes(&self) -> usize {
        self.tile_length() * size_of::<f32>()
    }

    /// Returns a parallel iterator over the tiles (groups of 12 or 16 rows), in order, to fill them.
    pub(super) fn par_tiles(&mut self) -> impl IndexedParallelIterator<Item = Tile<'_>> {
        let length = self.tile_length();
        match self.form {
            Form::Wide => Either::Left(self.wide.par_chunks_mut(length).map(Tile::Wide)),
            Form::Pairs => Either::Right(self.pairs.par_chunks_mut(length).map(Tile::Pairs)),
        }
    }

    /// Returns the f32 values of all tiles, in the tiles' layout. The form must be [`Form::Wide`].
    pub(super) fn wide(&self) -> &[f32] {
        assert_eq!(self.form, Form::Wide);
        &self.wide
    }

    /// Rounds all activations to 8 bits; [`Tiles::bytes`] then returns the result. The form must be [`Form::Wide`] and
    /// the number of columns a multiple of 32.
    pub(super) fn quantise(&mut self, kernels: Kernels) {
        assert_eq!(self.form, Form::Wide);
        let (rows, columns, length) = (self.rows, self.columns, self.tile_length());
        let blocks = columns / packed::BLOCK;
        let Self { wide, bytes, .. } = self;
        bytes.integers.resize(rows * columns);
        bytes.scales.resize(rows * blocks);
        let integers = bytes.integers.par_chunks_mut(columns);
        let rows = integers.zip(bytes.scales.par_chunks_mut(blocks));
        let rows = rows.enumerate().with_min_len(TILE_ROWS);
        rows.for_each(|(row, (integers, scales))| {
            let tile = &wide[row / TILE_ROWS * length + row % TILE_ROWS * STRIDE..];
            let parts = integers.chunks_mut(BLOCK);
            let parts = parts.zip(scales.chunks_mut(BLOCK / packed::BLOCK));
            for (block, (integers, scales)) in parts.enumerate() {
                kernels.run(Quantise {
                    from: &tile[block * TILE_BLOCK..][..integers.len()],
                    integers,
                    scales,
                });
            }
        });
    }

    /// Returns the activations as last rounded to 8 bits by [`Tiles::quantise`].
    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the tiles as a left operand that begins at block `block` of their columns ([`pairs::BLOCK`] columns
    /// each). The form must be [`Form::Pairs`]. They are streamed past the first-level cache, because weights are read
    /// more often.
    pub(super) fn pairs(&self, block: usize) -> Left<'_> {
        assert_eq!(self.form, Form::Pairs);
        Left {
            pairs: &self.pairs[block * (pairs::BLOCK / pairs::DEPTH) * pairs::STEP_PAIRS..],
            row: pairs::DEPTH / 2,
            step: pairs::STEP_PAIRS,
            tile: self.tile_length(),
            low: None,
            streamed: true,
        }
    }
}

/// A tile of a left operand that is being filled: 12 rows of f32, or 16 rows of bf16 pairs.
pub(super) enum Tile<'a> {
    Wide(&'a mut [f32]),
    Pairs(&'a mut [Pair]),
}

impl Tile<'_> {
    /// Writes `values` to row `row` of the tile, from column `column` on, rounded to bf16 in a tile of pairs.
    #[inline(always)]
    pub(super) fn write(&mut self, row: usize, mut column: usize, mut values: &[f32]) {
        match self {
            Tile::Wide(tile) => write_row(tile, row, column, values),
            Tile::Pairs(tile) => {
                let tile = tile.as_flattened_mut();
                while !values.is_empty() {
                    let room = pairs::DEPTH - column % pairs::DEPTH;
                    let (part, rest) = values.split_at(values.len().min(room));
                    let to = &mut tile[pair_place(row, column)..][..part.len()];
                    for (to, value) in to.iter_mut().zip(part) {
                        *to = lanes::narrow(*value);
                    }
                    column += part.len();
                    values = rest;
                }
            }
        }
    }
}

/// Returns the index of the element in row `row` and column `column` of a tile of pairs, counted in single bf16
/// numbers.
#[inline(always)]
fn pair_place(row: usize, column: usize) -> usize {
    const DEPTH: usize = pairs::DEPTH;
    (column / DEPTH * pairs::ROWS + row) * DEPTH + column % DEPTH
}

/// Writes `values` to row `row` of a tile of f32 numbers (twelve rows), from column `column` on.
#[inline(always)]
pub(super) fn write_row(tile: &mut [f32], row: usize, mut column: usize, mut values: &[f32]) {
    while !values.is_empty() {
        let (part, rest) = values.split_at(values.len().min(BLOCK - column % BLOCK));
        tile[column / BLOCK * TILE_BLOCK + row * STRIDE + column % BLOCK..][..part.len()]
            .copy_from_slice(part);
        column += part.len();
        values = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn pairs_hold_rounded_values_and_zeroes_behind_them() {
        let mut tiles = Tiles::default();
        // Leave garbage in the memory that the second shape reuses.
        tiles.shape(17, 1024, Form::Pairs);
        let rubbish = [f32::NAN; 1024];
        tiles.par_tiles().for_each(|mut tile| {
            (0..pairs::ROWS).for_each(|row| tile.write(row, 0, &rubbish));
        });
        tiles.shape(17, 555, Form::Pairs);
        let values: Vec<f32> = (0..555).map(|i| i as f32 * 0.37 - 9.0).collect();
        tiles.par_tiles().for_each(|mut tile| {
            for row in 0..pairs::ROWS {
                tile.write(row, 0, &values[..301]);
                tile.write(row, 301, &values[301..]);
            }
        });
        let length = tiles.tile_length();
        let last = tiles.pairs[length..].as_flattened();
        for column in 0..576 {
            let expected = values
                .get(column)
                .copied()
                .map_or(bf16::ZERO, bf16::from_f32);
            let at = pair_place(0, column);
            assert_eq!(last[at].to_bits(), expected.to_bits(), "column {column}");
        }
    }
}
