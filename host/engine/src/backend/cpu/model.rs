//! The forward pass: a batch of rows through all layers.
//!
//! ```text
//!  residual ─ norm ─▶ tiles ─ qkv ─▶ sums ─┬─ keys, values ─▶ pages
//!     ▲                                    └─ queries ─ attention ─▶ tiles ─ output ─▶ sums ─▶ + residual
//!     └──────────── sums ◀─ down ─ tiles ◀─ gate ─ sums ◀─ gate, up ─ tiles ◀─ norm ─┘
//! ```
//!
//! Scratch is kept from step to step. Rows work in parallel by tile, products by block and panel, attention by item,
//! pages by page; none of these cuts reaches into a result.

use super::attention::Attention;
use super::batch::{Batch, Cut, ITEM_ROWS, Write};
use super::heads::{Heads, MAX_HEAD, Rotary};
use super::kernels::{Kernels, Loop, TILE_ROWS};
use super::matrix::{Panels, Sums, Tiles, write_row};
use super::pages::{Layout, Pool};
use super::rows::{Gate, Norm};
use crate::backend::Step;
use crate::models::{Checkpoint, CheckpointError, LayerWeights, ModelConfig, Tensor};
use rayon::prelude::*;

/// Rows whose logits are computed at once: bounds the scratch that a scoring request needs.
const OUTPUT_ROWS: usize = 16 * TILE_ROWS;

/// Weights, laid out.
pub(super) struct Model {
    config: ModelConfig,
    kernels: Kernels,
    cut: Cut,
    rotary: Rotary,
    embedding: Panels,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// `None`: the embedding.
    head: Option<Panels>,
}

struct Layer {
    input_norm: Vec<f32>,
    /// Queries, keys, values.
    qkv: Panels,
    qkv_bias: Option<[Vec<f32>; 3]>,
    /// Of queries, of keys.
    qk_norm: Option<[Vec<f32>; 2]>,
    output: Panels,
    output_bias: Option<Vec<f32>>,
    mlp_norm: Vec<f32>,
    gate_up: Panels,
    gate_up_bias: Option<[Vec<f32>; 2]>,
    down: Panels,
    down_bias: Option<Vec<f32>>,
}

/// Memory that a step needs beside weights and pages.
pub(super) struct Scratch {
    /// `[rows, hidden]`.
    residual: Vec<f32>,
    tiles: Tiles,
    sums: Sums,
    /// `[items, ITEM_ROWS, value_stride]`.
    attended: Vec<f32>,
    /// Residuals of the rows whose logits are wanted.
    wanted: Vec<f32>,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self {
            residual: Vec::new(),
            tiles: Tiles::new(),
            sums: Sums::new(),
            attended: Vec::new(),
            wanted: Vec::new(),
        }
    }
}

impl Model {
    /// Lays out the weights of `checkpoint` for sequences of up to `positions` tokens.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        kernels: Kernels,
        positions: u32,
    ) -> Result<Self, CheckpointError> {
        let config = checkpoint.config().clone();
        let layers = (0..config.layers)
            .map(|index| Ok(Layer::new(&checkpoint.layer(index)?)))
            .collect::<Result<_, CheckpointError>>()?;
        let head = checkpoint.head()?;
        Ok(Self {
            cut: Cut::new(&config),
            rotary: Rotary::new(&config.rope, positions),
            embedding: Panels::pack(&[&checkpoint.embedding()?]),
            layers,
            norm: checkpoint.final_norm()?.to_f32(),
            head: head.map(|head| Panels::pack(&[&head])),
            config,
            kernels,
        })
    }

    pub(super) fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub(super) fn kernels(&self) -> Kernels {
        self.kernels
    }

    pub(super) fn cut(&self) -> Cut {
        self.cut
    }

    /// Computes `batch`, planned from `step`: writes the keys and values of its rows and appends the wanted logits.
    pub(super) fn forward(
        &self,
        step: &Step,
        batch: &Batch,
        pool: &mut Pool,
        scratch: &mut Scratch,
        logits: &mut Vec<f32>,
    ) {
        let hidden = self.config.hidden;
        // Only what grows is written: every value is set before it is read.
        scratch.residual.resize(batch.rows.len() * hidden, 0.0);
        let rows = scratch.residual.par_chunks_mut(hidden).zip(&batch.rows);
        rows.with_min_len(TILE_ROWS)
            .for_each(|(residual, row)| self.embedding.row(row.token as usize, residual));

        for (index, layer) in self.layers.iter().enumerate() {
            let before = index.checked_sub(1).map(|index| &self.layers[index]);
            let addend = before.map(|before| before.down_bias.as_deref());
            self.norm(scratch, addend, &layer.input_norm, batch.rows.len());
            layer
                .qkv
                .multiply(self.kernels, &scratch.tiles, &mut scratch.sums);
            self.store(layer, index, batch, &scratch.sums, pool);
            self.attend(layer, index, step, batch, pool, scratch);
            layer
                .output
                .multiply(self.kernels, &scratch.tiles, &mut scratch.sums);
            let addend = Some(layer.output_bias.as_deref());
            self.norm(scratch, addend, &layer.mlp_norm, batch.rows.len());
            layer
                .gate_up
                .multiply(self.kernels, &scratch.tiles, &mut scratch.sums);
            self.gate(layer, batch.rows.len(), scratch);
            layer
                .down
                .multiply(self.kernels, &scratch.tiles, &mut scratch.sums);
        }
        self.logits(batch, scratch, logits);
    }

    /// Adds the last product to the residual stream and norms it into the tiles; `addend` is `None` where there is no
    /// product yet, else its bias.
    fn norm(
        &self,
        scratch: &mut Scratch,
        addend: Option<Option<&[f32]>>,
        weights: &[f32],
        rows: usize,
    ) {
        let hidden = self.config.hidden;
        let Scratch {
            residual,
            tiles,
            sums,
            ..
        } = scratch;
        tiles.resize(rows, hidden);
        let residual = residual.par_chunks_mut(TILE_ROWS * hidden);
        tiles
            .par_tiles()
            .zip(residual)
            .enumerate()
            .for_each(|(number, (tile, residual))| {
                for (row, residual) in residual.chunks_exact_mut(hidden).enumerate() {
                    self.kernels.run(Norm {
                        residual,
                        addend: addend.map(|bias| (&*sums, number * TILE_ROWS + row, bias)),
                        weights,
                        eps: self.config.norm_eps,
                        tile,
                        row,
                    });
                }
            });
    }

    /// Writes keys and values to their pages.
    fn store(&self, layer: &Layer, index: usize, batch: &Batch, sums: &Sums, pool: &mut Pool) {
        let layout = pool.layout;
        let (keys, values) = (self.heads(layer, sums, 1), self.heads(layer, sums, 2));
        pool.write(
            &batch.writes,
            |write| write.page,
            |write, page| {
                self.kernels.run(Store {
                    keys,
                    values,
                    rotary: &self.rotary,
                    layout,
                    layer: index,
                    kv_heads: self.config.kv_heads,
                    write,
                    page,
                });
            },
        );
    }

    /// Attends, and gathers the items' outputs into tiles.
    fn attend(
        &self,
        layer: &Layer,
        index: usize,
        step: &Step,
        batch: &Batch,
        pool: &Pool,
        scratch: &mut Scratch,
    ) {
        let Scratch {
            tiles,
            sums,
            attended,
            ..
        } = scratch;
        let attention = Attention {
            kernels: self.kernels,
            queries: self.heads(layer, sums, 0),
            rotary: &self.rotary,
            pool,
            layer: index,
            item_heads: self.cut.item_heads,
            group: self.cut.group,
        };
        let stride = pool.layout.value_stride();
        attended.resize(batch.items.len() * ITEM_ROWS * stride, 0.0);
        let items = attended
            .par_chunks_mut(ITEM_ROWS * stride)
            .zip(&batch.items);
        items.for_each(|(out, item)| {
            attention.attend(item, &step.segments[item.segment as usize].pages, out);
        });

        let (head_dim, item_heads) = (self.config.head_dim, self.cut.item_heads);
        tiles.resize(batch.rows.len(), self.config.heads * head_dim);
        let rows = batch.rows.par_chunks(TILE_ROWS);
        tiles.par_tiles().zip(rows).for_each(|(tile, rows)| {
            for (number, row) in rows.iter().enumerate() {
                for head in 0..self.config.heads {
                    let item = row.item as usize + head / item_heads;
                    let within = row.within as usize * item_heads + head % item_heads;
                    let from = &attended[(item * ITEM_ROWS + within) * stride..][..head_dim];
                    write_row(tile, number, head * head_dim, from);
                }
            }
        });
    }

    fn gate(&self, layer: &Layer, rows: usize, scratch: &mut Scratch) {
        let Scratch { tiles, sums, .. } = scratch;
        tiles.resize(rows, self.config.intermediate);
        tiles.par_tiles().enumerate().for_each(|(number, tile)| {
            let first = number * TILE_ROWS;
            for row in 0..TILE_ROWS.min(rows - first) {
                self.kernels.run(Gate {
                    sums,
                    source: first + row,
                    up: layer.gate_up.start(1),
                    bias: layer.gate_up_bias.as_ref(),
                    intermediate: self.config.intermediate,
                    tile,
                    row,
                });
            }
        });
    }

    /// Appends the logits of the wanted rows.
    fn logits(&self, batch: &Batch, scratch: &mut Scratch, logits: &mut Vec<f32>) {
        let (hidden, vocabulary) = (self.config.hidden, self.config.vocabulary);
        let Scratch {
            residual,
            tiles,
            sums,
            wanted,
            ..
        } = scratch;
        // The last product is still to be added; the output layer's product will overwrite it.
        let bias = self
            .layers
            .last()
            .and_then(|layer| layer.down_bias.as_deref());
        wanted.resize(batch.wanted.len() * hidden, 0.0);
        for (to, &row) in wanted.chunks_exact_mut(hidden).zip(&batch.wanted) {
            sums.read(row as usize, 0, 0, to);
            let from = &residual[row as usize * hidden..][..hidden];
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
            let bias = bias.unwrap_or_default();
            to.iter_mut().zip(bias).for_each(|(to, bias)| *to += bias);
        }
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let start = logits.len();
        logits.resize(start + batch.wanted.len() * vocabulary, 0.0);
        let chunks = wanted.chunks_mut(OUTPUT_ROWS * hidden);
        for (wanted, logits) in chunks.zip(logits[start..].chunks_mut(OUTPUT_ROWS * vocabulary)) {
            tiles.resize(wanted.len() / hidden, hidden);
            let wanted = wanted.par_chunks_mut(TILE_ROWS * hidden);
            tiles.par_tiles().zip(wanted).for_each(|(tile, wanted)| {
                for (row, residual) in wanted.chunks_exact_mut(hidden).enumerate() {
                    self.kernels.run(Norm {
                        residual,
                        addend: None,
                        weights: &self.norm,
                        eps: self.config.norm_eps,
                        tile,
                        row,
                    });
                }
            });
            head.multiply(self.kernels, tiles, sums);
            let rows = logits.par_chunks_mut(vocabulary).enumerate();
            rows.for_each(|(row, logits)| sums.read(row, 0, 0, logits));
        }
    }

    /// Queries (0), keys (1) or values (2) of a layer's projection.
    fn heads<'a>(&'a self, layer: &'a Layer, sums: &'a Sums, kind: usize) -> Heads<'a> {
        Heads {
            sums,
            panel: layer.qkv.start(kind),
            head_dim: self.config.head_dim,
            bias: layer.qkv_bias.as_ref().map(|bias| bias[kind].as_slice()),
            norm: layer
                .qk_norm
                .as_ref()
                .and_then(|norm| norm.get(kind))
                .map(Vec::as_slice),
            norm_eps: self.config.norm_eps,
        }
    }
}

impl Layer {
    fn new(weights: &LayerWeights<'_>) -> Self {
        let wide = Tensor::to_f32;
        let [q, k, v] = &weights.qkv;
        let [gate, up] = &weights.gate_up;
        Self {
            input_norm: wide(&weights.input_norm),
            qkv: Panels::pack(&[q, k, v]),
            qkv_bias: weights
                .qkv_bias
                .as_ref()
                .map(|bias| bias.each_ref().map(wide)),
            qk_norm: weights
                .qk_norm
                .as_ref()
                .map(|norm| norm.each_ref().map(wide)),
            output: Panels::pack(&[&weights.output]),
            output_bias: weights.output_bias.as_ref().map(wide),
            mlp_norm: wide(&weights.mlp_norm),
            gate_up: Panels::pack(&[gate, up]),
            gate_up_bias: weights
                .gate_up_bias
                .as_ref()
                .map(|bias| bias.each_ref().map(wide)),
            down: Panels::pack(&[&weights.down]),
            down_bias: weights.down_bias.as_ref().map(wide),
        }
    }
}

/// Writes the keys and values of some tokens to their page.
struct Store<'a> {
    keys: Heads<'a>,
    values: Heads<'a>,
    rotary: &'a Rotary,
    layout: Layout,
    layer: usize,
    kv_heads: usize,
    write: &'a Write,
    page: &'a mut [f32],
}

impl Loop for Store<'_> {
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let (mut key, mut value) = ([0.0; MAX_HEAD], [0.0; MAX_HEAD]);
        let (key, value) = (
            &mut key[..self.keys.head_dim],
            &mut value[..self.keys.head_dim],
        );
        for token in 0..self.write.tokens as usize {
            let (row, position) = (
                self.write.row as usize + token,
                self.write.position as usize + token,
            );
            let slot = position % self.layout.page_tokens;
            for head in 0..self.kv_heads {
                self.keys.read::<FMA>(row, head, key);
                self.rotary.rotate(position, key);
                self.values.read::<FMA>(row, head, value);
                self.layout
                    .store(self.page, self.layer, head, slot, key, value);
            }
        }
    }
}
