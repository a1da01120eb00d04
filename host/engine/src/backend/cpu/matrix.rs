//! Matrix products over whole layers: weights in panels, activations in tiles, sums in blocks.
//!
//! ```text
//!  Tiles  (left)   see `left_operand`                              read by the kernel row by row
//!  Panels (right)  [output / 32][input][32]                        one stream per panel, in the checkpoint's type;
//!                  [output / 32][input / 2][32][2]                 bf16 that is multiplied by bf16
//!                  [output / 32], then see `kernels::packed`       packed
//!  Sums   (out)    [row / block][output / 32][row % block][32]     a task writes one contiguous piece
//! ```
//!
//! A task multiplies one block of rows by one panel. Its share of the tiles stays in the second-level cache from panel
//! to panel, and a block of its panel's inputs stays in the first-level cache from tile to tile. A task owns its piece
//! of the sums and computes every output whole, so neither threads nor their number affect a result.

use super::aligned::Aligned;
use super::kernels::packed::{self, PackedProduct};
use super::kernels::{BLOCK, Kernels, PANEL, Product, Scalar, Start, TILE_BLOCK, TILE_ROWS, pairs};
use super::left_operand::{Bytes, Form, Tiles};
use crate::models::{Element, Packing, Tensor};
use half::{bf16, f16};
use pairs::{Machine, Pair, PairProduct};
use rayon::prelude::*;
use std::ops::Range;

/// Maximum size in bytes of the tiles of activations in one block of rows: half of a second-level cache of 2 MiB. A
/// larger block reads the weights less often, but its tiles no longer fit the cache together with sums and weights.
const MAX_BLOCK_BYTES: usize = 1 << 20;
/// Minimum number of tiles (12 or 16 rows) in a block when rows are cut into smaller blocks to keep more threads busy.
const MIN_BLOCK_TILES: usize = 3;
/// Number of tasks per thread to aim for when rows are cut into blocks, provided that there are enough rows.
const TASKS_PER_THREAD: usize = 4;
/// Minimum number of rows from which a block of 16-bit weights is converted to f32 once instead of for every tile of
/// rows.
const WIDEN_ROWS: usize = MIN_BLOCK_TILES * TILE_ROWS;
/// Inputs of packed weights that are multiplied in one pass over a task's rows: so few that these weights stay in the
/// first-level cache.
const PACKED_INPUTS: usize = 512;
/// Minimum number of multiply-adds that are worth handing to another thread. For one row of activations, their weights
/// are 256 KiB of bf16, which take some ten microseconds to read.
const MIN_TASK: usize = 1 << 17;

/// The results `[rows, outputs]` of a matrix product in f32, stored by blocks of rows and panels of 32 outputs.
#[derive(Default)]
pub(super) struct Sums {
    data: Aligned<f32>,
    block_rows: usize,
    panels: usize,
}

impl Sums {
    /// Sets the shape for the product of the activations `tiles` with weights of `panels` panels (32 outputs each), and
    /// cuts the rows into blocks. The values are undefined.
    fn resize(&mut self, tiles: &Tiles, panels: usize) {
        let (rows, tile_rows) = (tiles.rows(), tiles.tile_rows());
        let max_block_tiles = (MAX_BLOCK_BYTES / tiles.tile_bytes()).max(MIN_BLOCK_TILES);
        // Blocks of equal size, cut between tiles; more of them where panels alone would leave threads idle.
        let wanted = (TASKS_PER_THREAD * rayon::current_num_threads()).div_ceil(panels);
        let blocks = rows
            .div_ceil(max_block_tiles * tile_rows)
            .max(wanted.min(rows / (MIN_BLOCK_TILES * tile_rows)));
        self.block_rows = match blocks {
            0 | 1 => rows,
            _ => rows.div_ceil(blocks).next_multiple_of(tile_rows),
        };
        let blocks = rows.div_ceil(self.block_rows);
        self.panels = panels;
        self.data.resize(blocks * panels * self.block_rows * PANEL);
    }

    /// Sets the shape for the product of the activations `tiles` with weights of `panels` panels (32 outputs each).
    /// Then calls `task` in parallel for each block of rows and each panel: with the rows, the panel's index, and the
    /// slice of the results to write.
    fn fill(
        &mut self,
        tiles: &Tiles,
        panels: usize,
        task: impl Fn(Range<usize>, usize, &mut [f32]) + Sync,
    ) {
        self.resize(tiles, panels);
        let block_rows = self.block_rows;
        let worth = (MIN_TASK / (tiles.columns() * block_rows * PANEL).max(1)).max(1);
        let tasks = self
            .data
            .par_chunks_mut(block_rows * PANEL)
            .with_min_len(worth);
        tasks.enumerate().for_each(|(number, sums)| {
            let (block, panel) = (number / panels, number % panels);
            let rows = block * block_rows..(block * block_rows + block_rows).min(tiles.rows());
            task(rows, panel, sums);
        });
    }

    /// Returns the 32 results of row `row` for the outputs of panel `panel`.
    #[inline(always)]
    pub(super) fn segment(&self, row: usize, panel: usize) -> &[f32; PANEL] {
        let (block, within) = (row / self.block_rows, row % self.block_rows);
        let start = ((block * self.panels + panel) * self.block_rows + within) * PANEL;
        self.data[start..]
            .first_chunk()
            .expect("a row and a panel within the shape")
    }

    /// Copies results of row `row` to `to`: the columns from `column` on, counted from the first column of panel
    /// `panel`; a panel has 32 columns.
    #[inline(always)]
    pub(super) fn read(&self, row: usize, panel: usize, mut column: usize, mut to: &mut [f32]) {
        while !to.is_empty() {
            let (part, rest) = to.split_at_mut(to.len().min(PANEL - column % PANEL));
            part.copy_from_slice(
                &self.segment(row, panel + column / PANEL)[column % PANEL..][..part.len()],
            );
            column += part.len();
            to = rest;
        }
    }
}

/// Weights `[inputs, outputs]` as right operands, in panels of 32 outputs: one matrix, or several (parts) side by side,
/// each beginning a panel.
pub(super) struct Panels {
    data: Data,
    inputs: usize,
    /// For each part (one of the matrices side by side), the index of its first panel (32 outputs); at the end, the
    /// number of all panels.
    starts: Vec<usize>,
}

enum Data {
    F32(Aligned<f32>),
    Bf16(Aligned<bf16>),
    F16(Aligned<f16>),
    /// Bf16 weights that are multiplied by bf16 activations, as pairs of inputs; the inputs are padded with zeroes.
    Pairs(Machine, Aligned<Pair>),
    /// For each part (one of the matrices side by side), its quantisation format and its packed weights.
    Packed(Vec<(Packing, Aligned<u8>)>),
}

impl Panels {
    /// Lays out matrices `[outputs, inputs]` (`parts`), which have the same number of inputs, for products by
    /// `kernels`. Quantised matrices ([`Element::Packed`]) stay quantised if all are and `kernels` multiply them;
    /// otherwise they are widened to bf16 first. Others keep their number type if they share it, and are widened to f32
    /// if they do not.
    pub(super) fn pack(parts: &[&Tensor<'_>], kernels: Kernels) -> Self {
        let inputs = parts[0].columns;
        assert!(
            parts.iter().all(|part| part.columns == inputs),
            "matrices side by side have the same inputs"
        );
        let mut starts = vec![0];
        for part in parts {
            starts.push(starts[starts.len() - 1] + part.rows.div_ceil(PANEL));
        }
        if kernels.keeps_packed()
            && let Some(packed) = parts.iter().map(|part| pack_rows(part)).collect()
        {
            return Self {
                data: Data::Packed(packed),
                inputs,
                starts,
            };
        }
        let unpacked: Vec<_> = parts.iter().map(|part| part.unpacked()).collect();
        let parts: &[&Tensor<'_>] = &unpacked.iter().collect::<Vec<_>>();
        let element = parts[0].element;
        let shared = parts.iter().all(|part| part.element == element);
        let data = match element {
            Element::Bf16 if shared => match kernels.pairs() {
                Some(machine) => Data::Pairs(machine, pack_pairs(parts, &starts)),
                None => Data::Bf16(pack(parts, &starts, bf16::from_le_bytes)),
            },
            Element::F16 if shared => Data::F16(pack(parts, &starts, f16::from_le_bytes)),
            Element::F32 if shared => Data::F32(pack(parts, &starts, f32::from_le_bytes)),
            _ => {
                let wide: Vec<Tensor<'_>> = parts
                    .iter()
                    .map(|part| Tensor {
                        element: Element::F32,
                        rows: part.rows,
                        columns: part.columns,
                        data: part
                            .to_f32()
                            .iter()
                            .flat_map(|value| value.to_le_bytes())
                            .collect(),
                    })
                    .collect();
                let wide: Vec<&Tensor<'_>> = wide.iter().collect();
                Data::F32(pack(&wide, &starts, f32::from_le_bytes))
            }
        };
        Self {
            data,
            inputs,
            starts,
        }
    }

    /// Returns the index of the panel (32 outputs) at which matrix number `part` begins. Panels are counted through all
    /// matrices that are stored side by side.
    pub(super) fn start(&self, part: usize) -> usize {
        self.starts[part]
    }

    /// Returns whether the weights stay quantised in memory ([`Element::Packed`]).
    pub(super) fn is_packed(&self) -> bool {
        matches!(self.data, Data::Packed(_))
    }

    /// Returns the layout that the activations must have to be multiplied by these weights.
    pub(super) fn form(&self) -> Form {
        match self.data {
            Data::Pairs(..) => Form::Pairs,
            _ => Form::Wide,
        }
    }

    /// Computes `sums = tiles · weights`. The activations `tiles` must have as many columns as the weights have inputs,
    /// and the form [`Panels::form`]. For packed weights they are first rounded to 8 bits.
    pub(super) fn multiply(&self, kernels: Kernels, tiles: &mut Tiles, sums: &mut Sums) {
        assert_eq!(
            tiles.columns(),
            self.inputs,
            "the activations' width is the weights' inputs"
        );
        match &self.data {
            Data::F32(data) => multiply(kernels, data, self.panels(), tiles, sums),
            Data::Bf16(data) => multiply(kernels, data, self.panels(), tiles, sums),
            Data::F16(data) => multiply(kernels, data, self.panels(), tiles, sums),
            Data::Pairs(machine, data) => {
                multiply_pairs(*machine, data, self.panels(), tiles, sums);
            }
            Data::Packed(parts) => multiply_packed(kernels, parts, &self.starts, tiles, sums),
        }
    }

    /// Writes the weights of output `output` of the first part to `to`, converted to f32. For an embedding matrix, that
    /// is the embedding of token `output`.
    pub(super) fn row(&self, output: usize, to: &mut [f32]) {
        fn gather<E: Scalar>(data: &[E], inputs: usize, output: usize, to: &mut [f32]) {
            let panel = &data[output / PANEL * inputs * PANEL..][..inputs * PANEL];
            for (to, weights) in to.iter_mut().zip(panel.as_chunks::<PANEL>().0) {
                *to = weights[output % PANEL].widen();
            }
        }
        match &self.data {
            Data::F32(data) => gather(data, self.inputs, output, to),
            Data::Bf16(data) => gather(data, self.inputs, output, to),
            Data::F16(data) => gather(data, self.inputs, output, to),
            Data::Pairs(_, data) => {
                let panel = &data[output / PANEL * panel_pairs(self.inputs)..];
                for (to, weights) in to.chunks_mut(2).zip(panel.as_chunks::<PANEL>().0) {
                    for (to, weight) in to.iter_mut().zip(weights[output % PANEL]) {
                        *to = weight.widen();
                    }
                }
            }
            Data::Packed(parts) => {
                let (packing, data) = &parts[0];
                let length = packed::panel_bytes(*packing, self.inputs);
                let panel = &data[output / PANEL * length..][..length];
                packed::row(*packing, panel, output % PANEL, to);
            }
        }
    }

    fn panels(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }
}

/// Transposes the matrices `parts` into panels of 32 outputs; outputs beyond a matrix's last are zero. `starts` has the
/// first panel of each matrix, and `read` decodes a number from its bytes.
fn pack<E: Scalar, const N: usize>(
    parts: &[&Tensor<'_>],
    starts: &[usize],
    read: impl Fn([u8; N]) -> E + Sync,
) -> Aligned<E> {
    let inputs = parts[0].columns;
    let mut data = Aligned::touched(starts[starts.len() - 1] * inputs * PANEL);
    data.par_chunks_mut(inputs * PANEL)
        .enumerate()
        .for_each(|(panel, to)| {
            for (lane, row) in panel_rows::<N>(parts, starts, panel) {
                for (to, bytes) in to.iter_mut().skip(lane).step_by(PANEL).zip(row) {
                    *to = read(*bytes);
                }
            }
        });
    data
}

/// Returns the number of pairs of bf16 in a panel (32 outputs) of weights with `inputs` inputs, padding included.
fn panel_pairs(inputs: usize) -> usize {
    inputs.next_multiple_of(pairs::DEPTH) / 2 * PANEL
}

/// Transposes the bf16 matrices `parts` into panels of 32 outputs, as pairs of inputs. Outputs and inputs beyond a
/// matrix's last are zero. `starts` has the first panel of each matrix.
fn pack_pairs(parts: &[&Tensor<'_>], starts: &[usize]) -> Aligned<Pair> {
    let inputs = parts[0].columns;
    let mut data = Aligned::<Pair>::touched(starts[starts.len() - 1] * panel_pairs(inputs));
    data.par_chunks_mut(panel_pairs(inputs))
        .enumerate()
        .for_each(|(panel, to)| {
            for (lane, row) in panel_rows::<2>(parts, starts, panel) {
                for (to, pair) in to.iter_mut().skip(lane).step_by(PANEL).zip(row.chunks(2)) {
                    for (to, bytes) in to.iter_mut().zip(pair) {
                        *to = bf16::from_le_bytes(*bytes);
                    }
                }
            }
        });
    data
}

/// Copies a quantised matrix into panels of 32 outputs, still quantised, and returns them with their format. Returns
/// `None` if the matrix is not quantised. Outputs beyond the last are zero.
fn pack_rows(part: &Tensor<'_>) -> Option<(Packing, Aligned<u8>)> {
    let Element::Packed(packing) = part.element else {
        return None;
    };
    let (numbers, size) = packing.block();
    let (row, panel) = (
        part.columns / numbers * size,
        packed::panel_bytes(packing, part.columns),
    );
    let mut data = Aligned::touched(part.rows.div_ceil(PANEL) * panel);
    let panels = data.par_chunks_exact_mut(panel);
    (panels.zip(part.data.par_chunks(row * PANEL))).for_each(|(to, rows)| {
        for (output, row) in rows.chunks_exact(row).enumerate() {
            packed::pack_row(packing, row, output, to);
        }
    });
    Some((packing, data))
}

/// Iterates over the rows of the matrices `parts` that form panel `panel` (32 outputs), each with its column in the
/// panel. `starts` has the first panel of each matrix.
fn panel_rows<'a, const N: usize>(
    parts: &'a [&Tensor<'_>],
    starts: &[usize],
    panel: usize,
) -> impl Iterator<Item = (usize, &'a [[u8; N]])> {
    let number = starts.partition_point(|&start| start <= panel) - 1;
    let part = parts[number];
    let first = (panel - starts[number]) * PANEL;
    let rows = part.data.as_chunks::<N>().0.chunks_exact(part.columns);
    rows.skip(first).take(PANEL).enumerate()
}

fn multiply<E: Scalar>(
    kernels: Kernels,
    weights: &[E],
    panels: usize,
    tiles: &Tiles,
    sums: &mut Sums,
) {
    let panel_length = tiles.columns() * PANEL;
    sums.fill(tiles, panels, |rows, panel, c| {
        let panel = &weights[panel * panel_length..][..panel_length];
        let widen = rows.len() >= WIDEN_ROWS && E::ELEMENT != Element::F32;
        for (number, b) in panel.chunks(BLOCK * PANEL).enumerate() {
            let product = Product {
                a: &tiles.wide()[number * TILE_BLOCK..],
                a_tile: tiles.tile_length(),
                rows: rows.clone(),
                k: b.len() / PANEL,
                b,
                b_stride: PANEL,
                c,
                c_stride: PANEL,
                columns: PANEL,
                start: Start::of_block(number),
            };
            if widen {
                multiply_widened(kernels, product);
            } else {
                kernels.multiply(product);
            }
        }
    });
}

fn multiply_pairs(
    machine: Machine,
    weights: &[Pair],
    panels: usize,
    tiles: &Tiles,
    sums: &mut Sums,
) {
    let panel_length = panel_pairs(tiles.columns());
    sums.fill(tiles, panels, |rows, panel, c| {
        let first = panel * panel_length;
        let panel = &weights[first..][..panel_length];
        let mut machine = machine.ready();
        let chunk = pairs::BLOCK / 2 * PANEL;
        for (number, b) in panel.chunks(chunk).enumerate() {
            let next = (first + (number + 1) * chunk).min(weights.len());
            machine.multiply(PairProduct {
                a: tiles.pairs(number),
                rows: rows.clone(),
                b,
                next: &weights[next..weights.len().min(next + chunk)],
                c,
                columns: PANEL,
                start: Start::of_block(number),
            });
        }
    });
}

fn multiply_packed(
    kernels: Kernels,
    parts: &[(Packing, Aligned<u8>)],
    starts: &[usize],
    tiles: &mut Tiles,
    sums: &mut Sums,
) {
    tiles.quantise(kernels);
    let Bytes { integers, scales } = tiles.bytes();
    let inputs = tiles.columns();
    sums.fill(tiles, starts[parts.len()], |rows, panel, c| {
        let part = starts.partition_point(|&start| start <= panel) - 1;
        let (packing, data) = &parts[part];
        let length = packed::panel_bytes(*packing, inputs);
        for first in (0..inputs).step_by(PACKED_INPUTS) {
            kernels.multiply_packed(PackedProduct {
                a: integers,
                scales,
                inputs,
                rows: rows.clone(),
                packing: *packing,
                panel: &data[(panel - starts[part]) * length..][..length],
                blocks: first / packed::BLOCK..(first + PACKED_INPUTS).min(inputs) / packed::BLOCK,
                c,
            });
        }
    });
}

/// Computes the same bits as [`Kernels::multiply`], but converts the right operand to f32 once for all tiles of rows.
fn multiply_widened<E: Scalar>(kernels: Kernels, product: Product<'_, E>) {
    let mut wide = Wide([0.0; BLOCK * PANEL]);
    let wide = &mut wide.0[..product.b.len()];
    kernels.widen(product.b, wide);
    kernels.multiply(Product {
        b: wide,
        a: product.a,
        a_tile: product.a_tile,
        rows: product.rows,
        k: product.k,
        b_stride: product.b_stride,
        c: product.c,
        c_stride: product.c_stride,
        columns: product.columns,
        start: product.start,
    });
}

#[repr(align(64))]
struct Wide([f32; BLOCK * PANEL]);

#[cfg(test)]
mod tests {
    use super::super::precision::Precision;
    use super::*;
    use crate::models::{Checkpoint, ModelConfig};
    use std::borrow::Cow;

    fn value(i: usize) -> f32 {
        ((i * 7919 + 13) % 1009) as f32 / 504.5 - 1.0
    }

    fn tensor(element: Element, rows: usize, columns: usize, seed: usize) -> Tensor<'static> {
        let values = (0..rows * columns).map(|i| value(i + seed));
        let data: Vec<u8> = match element {
            Element::F32 => values.flat_map(f32::to_le_bytes).collect(),
            Element::Bf16 => values
                .flat_map(|v| bf16::from_f32(v).to_le_bytes())
                .collect(),
            Element::F16 => values
                .flat_map(|v| f16::from_f32(v).to_le_bytes())
                .collect(),
            Element::Packed(_) => unreachable!("see `packed`"),
        };
        Tensor {
            element,
            rows,
            columns,
            data: Cow::Owned(data),
        }
    }

    fn tiles(rows: usize, weights: &Panels) -> Tiles {
        let mut tiles = Tiles::default();
        tiles.shape(rows, weights.inputs, weights.form());
        let tile_rows = tiles.tile_rows();
        tiles
            .par_tiles()
            .enumerate()
            .for_each(|(number, mut tile)| {
                for row in 0..tile_rows.min(rows - number * tile_rows) {
                    let values: Vec<f32> = (0..weights.inputs)
                        .map(|column| value((number * tile_rows + row) * 31 + column * 17))
                        .collect();
                    tile.write(row, 0, &values);
                }
            });
        tiles
    }

    #[test]
    fn products_agree_with_f64_for_odd_shapes_and_every_type() {
        for (rows, inputs, outputs) in [(1, 40, 33), (13, 129, 7), (37, 300, 64), (301, 20, 50)] {
            for elements in [
                [Element::F32; 2],
                [Element::Bf16; 2],
                [Element::F16; 2],
                [Element::Bf16, Element::F32],
            ] {
                let parts = [
                    tensor(elements[0], outputs, inputs, 3),
                    tensor(elements[1], outputs + 5, inputs, 77),
                ];
                let mut sums = Sums::default();
                for kernels in Kernels::available() {
                    let weights = Panels::pack(&[&parts[0], &parts[1]], kernels);
                    let form = weights.form();
                    let input = |row: usize, i: usize| match form {
                        Form::Wide => value(row * 31 + i * 17),
                        Form::Pairs => bf16::from_f32(value(row * 31 + i * 17)).to_f32(),
                    };
                    weights.multiply(kernels, &mut tiles(rows, &weights), &mut sums);
                    for (number, part) in parts.iter().enumerate() {
                        let wide = part.to_f32();
                        for row in (0..rows).step_by(7) {
                            let mut got = vec![0.0; part.rows];
                            sums.read(row, weights.start(number), 0, &mut got);
                            for (output, got) in got.iter().enumerate() {
                                let expected: f64 = (0..inputs)
                                    .map(|i| {
                                        f64::from(input(row, i))
                                            * f64::from(wide[output * inputs + i])
                                    })
                                    .sum();
                                let error = (f64::from(*got) - expected).abs();
                                assert!(
                                    error < 5e-5,
                                    "{kernels:?} {rows}x{inputs}x{outputs}: {got}, {expected}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    /// Returns two random packed matrices `[70, 256]`.
    fn packed(packings: [Packing; 2]) -> [Tensor<'static>; 2] {
        let json = r#"{"model_type":"llama","hidden_size":256,"num_attention_heads":4,"num_hidden_layers":1,
            "intermediate_size":8,"vocab_size":70,"max_position_embeddings":16}"#;
        packings.map(|packing| {
            let config = ModelConfig::parse(json).unwrap();
            let random = Checkpoint::random(config, Element::Packed(packing), 5);
            let matrix = random.embedding().unwrap();
            let data = Cow::Owned(matrix.data.to_vec());
            Tensor { data, ..matrix }
        })
    }

    #[test]
    fn packed_matrices_side_by_side_are_those_by_themselves_and_take_their_bytes() {
        let parts = packed([Packing::Q4K, Packing::Q6K]);
        for kernels in Kernels::available() {
            let both = Panels::pack(&[&parts[0], &parts[1]], kernels);
            let mut sums = [Sums::default(), Sums::default()];
            both.multiply(kernels, &mut tiles(37, &both), &mut sums[0]);
            for (number, part) in parts.iter().enumerate() {
                let one = Panels::pack(&[part], kernels);
                assert_eq!(one.is_packed(), kernels.keeps_packed());
                one.multiply(kernels, &mut tiles(37, &one), &mut sums[1]);
                for row in 0..37 {
                    let mut got = [[0.0; 70]; 2];
                    sums[0].read(row, both.start(number), 0, &mut got[0]);
                    sums[1].read(row, 0, 0, &mut got[1]);
                    assert_eq!(got[0].map(f32::to_bits), got[1].map(f32::to_bits));
                }
                if let Data::Packed(parts) = &one.data {
                    // 96 of 70 rows in panels; integers of 6 bits take 8.
                    let bits = (parts[0].1.len() * 8) as f64 / (96.0 * 256.0);
                    assert!(bits < [4.7, 8.6][number], "{bits} bits a weight");
                }
            }
            // With a part that is not packed, nothing is.
            let plain = tensor(Element::F32, 70, 256, 1);
            assert!(!Panels::pack(&[&parts[0], &plain], kernels).is_packed());
        }
    }

    #[test]
    fn weights_that_do_not_stay_packed_are_multiplied_as_bf16() {
        let [matrix, _] = packed([Packing::Q4_1; 2]);
        let kernels = Kernels::detect(Precision::F32).unwrap().0;
        let mut got = [[0.0; 70]; 2];
        for (got, matrix) in got.iter_mut().zip([&matrix, &matrix.unpacked()]) {
            let weights = Panels::pack(&[matrix], kernels);
            let mut sums = Sums::default();
            weights.multiply(kernels, &mut tiles(1, &weights), &mut sums);
            sums.read(0, 0, 0, got);
        }
        assert_eq!(got[0], got[1]);
    }

    #[test]
    fn a_row_in_panels_is_the_matrix_row() {
        let [packed, _] = packed([Packing::Q4_1; 2]);
        for matrix in [tensor(Element::Bf16, 70, 45, 0), packed] {
            for kernels in Kernels::available() {
                let weights = Panels::pack(&[&matrix], kernels);
                let wide = if weights.is_packed() {
                    matrix.to_f32()
                } else {
                    matrix.unpacked().to_f32()
                };
                let mut row = vec![0.0; matrix.columns];
                for output in [0, 31, 32, 69] {
                    weights.row(output, &mut row);
                    assert_eq!(row, wide[output * matrix.columns..][..matrix.columns]);
                }
            }
        }
    }
}
