//! The forward pass: a batch of rows through all layers.
//!
//! ```text
//!  residual ─ norm ─▶ tiles ─ qkv ─▶ sums ─┬─ keys, values ─▶ pages
//!     ▲                                    └─ queries ─ attention ─▶ tiles ─ output ─▶ sums ─▶ + residual
//!     └──────────── sums ◀─ down ─ tiles ◀─ gate ─ sums ◀─ gate, up ─ tiles ◀─ norm ─┘
//! ```
//!
//! After the last layer's keys and values, only the rows whose logits are wanted continue; a prompt chunk that is not
//! the last one ends there. While a layer computes, the next layer's pages are loaded from the host pool, so only the
//! first layer waits for its own. Scratch memory is kept from step to step. Rows run in parallel by tile, products by
//! block and panel, attention by item, and pages by page. None of these cuts affects a result.

use super::attention::{Attention, item_rows};
use super::batch::{Batch, Cut, Selection};
use super::heads::{Heads, MAX_HEAD, Rotary};
use super::host::HostPool;
use super::kernels::pairs::Machine;
use super::kernels::{Kernels, Loop, TILE_ROWS};
use super::left_operand::Tiles;
use super::matrix::{Panels, Sums};
use super::pages::{KvType, LayerPool, Layout};
use super::rows::{Addend, Gate, Norm};
use crate::backend::Step;
use crate::backend::check::Write;
use crate::models::{Checkpoint, CheckpointError, Element, LayerWeights, ModelConfig, Tensor};
use rayon::prelude::*;

/// Returns the instructions with which attention multiplies pairs of bf16 (`None` if attention computes in f32), and
/// the number type of keys and values in memory. Attention multiplies bf16 only if the checkpoint's key projection is
/// bf16 or packed.
pub(super) fn attention_pairs(
    checkpoint: &Checkpoint,
    kernels: Kernels,
) -> Result<(Option<Machine>, KvType), CheckpointError> {
    let element = checkpoint.attention_element()?;
    let is_narrow = matches!(element, Element::Bf16 | Element::Packed(_));
    let pairs = kernels.attention().filter(|_| is_narrow);
    let (machine, parts) = pairs.unzip();
    Ok((machine, KvType::of(parts)))
}

/// A model's weights, laid out for the CPU's kernels.
pub(super) struct Model {
    config: ModelConfig,
    kernels: Kernels,
    /// The instructions with which attention multiplies pairs of bf16; `None` if attention computes in f32.
    attention: Option<Machine>,
    cut: Cut,
    rotary: Rotary,
    /// Rotary embedding of the layers with a sliding window; `None` if no layer has one.
    sliding_rotary: Option<Rotary>,
    embedding: Panels,
    /// Factor by which token embeddings are multiplied; `None` if the model does not scale them.
    embedding_scale: Option<f32>,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// The output layer, from hidden state to logits; `None` if the token embedding also serves as the output layer.
    head: Option<Panels>,
}

struct Layer {
    input_norm: Vec<f32>,
    /// Weights of the projections of queries, keys and values, side by side.
    qkv: Panels,
    qkv_bias: Option<[Vec<f32>; 3]>,
    /// Weights of the norms of query heads and of key heads; `None` if the model does not norm them.
    qk_norm: Option<[Vec<f32>; 2]>,
    /// Number of positions that a token attends to, itself included; `None` for all.
    window: Option<usize>,
    output: Panels,
    output_bias: Option<Vec<f32>>,
    /// Weights of the norms of the outputs of attention and of the feed-forward layer, applied before these are added
    /// to the residual stream; `None` if the model does not norm these outputs.
    post_norms: Option<[Vec<f32>; 2]>,
    mlp_norm: Vec<f32>,
    gate_up: Panels,
    gate_up_bias: Option<[Vec<f32>; 2]>,
    down: Panels,
    down_bias: Option<Vec<f32>>,
}

/// Memory that a step needs besides weights and KV pages; kept from step to step.
#[derive(Default)]
pub(super) struct Scratch {
    /// Residual stream `[rows, hidden]`, with a row for each token that is computed.
    residual: Vec<f32>,
    tiles: Tiles,
    sums: Sums,
    /// Attention outputs `[items, item_rows, padded_head]`: for each attention item, its rows (tokens times query
    /// heads).
    attended: Vec<f32>,
}

impl Model {
    /// Loads the weights of `checkpoint` and lays them out, for sequences of up to `positions` tokens.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        kernels: Kernels,
        positions: u32,
    ) -> Result<Self, CheckpointError> {
        let config = checkpoint.config().clone();
        let layers = (0..config.layers)
            .map(|index| {
                let window = config.sliding(index).map(|sliding| sliding.window);
                Ok(Layer::new(&checkpoint.layer(index)?, window, kernels))
            })
            .collect::<Result<_, CheckpointError>>()?;
        let (embedding, head) = (checkpoint.embedding()?, checkpoint.head()?);
        let sliding_rope = config.sliding.as_ref().map(|sliding| &sliding.rope);
        let (attention, kv_type) = attention_pairs(checkpoint, kernels)?;
        Ok(Self {
            attention,
            cut: Cut::new(&config, item_rows(kv_type)),
            rotary: Rotary::new(&config.rope, positions),
            sliding_rotary: sliding_rope.map(|rope| Rotary::new(rope, positions)),
            embedding: Panels::pack(&[&embedding], kernels),
            embedding_scale: config.embedding_scale(embedding.element),
            layers,
            norm: checkpoint.final_norm()?.to_f32(),
            head: head.map(|head| Panels::pack(&[&head], kernels)),
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

    /// Returns whether any weights stay quantised in memory. Activations are then rounded to 8 bits for products with
    /// them, so results differ.
    pub(super) fn is_packed(&self) -> bool {
        let layers = self.layers.iter();
        let layers = layers.flat_map(|l| [&l.qkv, &l.output, &l.gate_up, &l.down]);
        let others = self.head.iter().chain([&self.embedding]);
        layers.chain(others).any(Panels::is_packed)
    }

    pub(super) fn multiplies_tiles(&self) -> bool {
        self.attention.is_some_and(Machine::has_tiles)
    }

    pub(super) fn cut(&self) -> Cut {
        self.cut
    }

    /// Computes `batch`, planned from `step`: copies pages of the step's loads from `host`, writes the keys and values
    /// of the batch's tokens to their pages, and appends the wanted logits to `logits`. `pool` has an element for each
    /// layer.
    pub(super) fn forward(
        &self,
        step: &Step,
        batch: &Batch,
        host: &HostPool,
        mut pool: &mut [LayerPool],
        scratch: &mut Scratch,
        logits: &mut Vec<f32>,
    ) {
        let hidden = self.config.hidden;
        // Only new memory is initialised; every value is set before it is read.
        scratch.residual.resize(batch.all.rows.len() * hidden, 0.0);
        let rows = scratch.residual.par_chunks_mut(hidden).zip(&batch.all.rows);
        rows.with_min_len(TILE_ROWS).for_each(|(residual, row)| {
            self.embedding.row(row.token as usize, residual);
            if let Some(scale) = self.embedding_scale {
                residual.iter_mut().for_each(|value| *value *= scale);
            }
        });

        if let Some(first) = pool.first_mut() {
            first.load(&batch.loads, host);
        }
        let mut addend = None;
        for (index, layer) in self.layers.iter().enumerate() {
            let Some((kv, later)) = pool.split_first_mut() else {
                break;
            };
            let is_last = index + 1 == self.layers.len();
            let selection = if is_last { &batch.wanted } else { &batch.all };
            // The first thread with nothing else to do copies the next layer's pages.
            rayon::join(
                || self.layer(layer, addend, step, batch, selection, kv, scratch),
                || {
                    if let Some(next) = later.first_mut() {
                        next.load(&batch.loads, host);
                    }
                },
            );
            if selection.rows.is_empty() {
                return;
            }
            addend = Some(layer.addend(1));
            pool = later;
        }
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        self.norm(scratch, addend, &self.norm, head);
        self.logits(head, scratch, logits);
    }

    /// Computes one layer: keys and values for all tokens of `batch`, and attention and the feed-forward layer for
    /// those of `selection`. The output of the down projection stays in `scratch`. `addend` is passed to
    /// [`Model::norm`].
    #[expect(clippy::too_many_arguments, reason = "what a layer needs, passed once")]
    fn layer(
        &self,
        layer: &Layer,
        addend: Option<Addend<'_>>,
        step: &Step,
        batch: &Batch,
        selection: &Selection,
        pool: &mut LayerPool,
        scratch: &mut Scratch,
    ) {
        self.norm(scratch, addend, &layer.input_norm, &layer.qkv);
        self.multiply(&layer.qkv, scratch);
        self.store(layer, batch, &scratch.sums, pool);
        if selection.rows.len() < batch.all.rows.len() {
            keep(selection, self.config.hidden, &mut scratch.residual);
        }
        if selection.rows.is_empty() {
            return;
        }
        self.attend(layer, step, selection, pool, scratch);
        self.multiply(&layer.output, scratch);
        self.norm(
            scratch,
            Some(layer.addend(0)),
            &layer.mlp_norm,
            &layer.gate_up,
        );
        self.multiply(&layer.gate_up, scratch);
        self.gate(layer, selection.rows.len(), scratch);
        self.multiply(&layer.down, scratch);
    }

    fn multiply(&self, weights: &Panels, scratch: &mut Scratch) {
        weights.multiply(self.kernels, &mut scratch.tiles, &mut scratch.sums);
    }

    /// Adds the last matrix product in `scratch` to the residual stream, norms the stream with `weights`, and writes
    /// the result to `scratch` as the left operand of a product with `next`. `addend` is the operation that adds the
    /// last product; `None` in the first layer, where there is none.
    fn norm(
        &self,
        scratch: &mut Scratch,
        addend: Option<Addend<'_>>,
        weights: &[f32],
        next: &Panels,
    ) {
        let hidden = self.config.hidden;
        let Scratch {
            residual,
            tiles,
            sums,
            ..
        } = scratch;
        tiles.shape(residual.len() / hidden, hidden, next.form());
        let tile_rows = tiles.tile_rows();
        let residual = residual.par_chunks_mut(tile_rows * hidden);
        tiles
            .par_tiles()
            .zip(residual)
            .enumerate()
            .for_each(|(number, (mut tile, residual))| {
                for (row, residual) in residual.chunks_exact_mut(hidden).enumerate() {
                    self.kernels.run(Norm {
                        residual,
                        addend: addend.map(|addend| (&*sums, number * tile_rows + row, addend)),
                        weights,
                        eps: self.config.norm_eps,
                        tile: &mut tile,
                        row,
                    });
                }
            });
    }

    /// Writes the keys and values of the batch's tokens, computed in `sums`, to this layer's part of their pages.
    fn store(&self, layer: &Layer, batch: &Batch, sums: &Sums, pool: &mut LayerPool) {
        let (layout, rotary) = (pool.layout, self.rotary(layer));
        let (keys, values) = (self.heads(layer, sums, 1), self.heads(layer, sums, 2));
        pool.write(
            &batch.writes,
            |write| write.page,
            |write, piece| {
                self.kernels.run(Store {
                    keys,
                    values,
                    rotary,
                    layout,
                    kv_heads: self.config.kv_heads,
                    write,
                    piece,
                });
            },
        );
    }

    /// Computes the attention of the tokens of `selection`, and writes their heads' outputs to `scratch`, as the left
    /// operand of the output projection.
    fn attend(
        &self,
        layer: &Layer,
        step: &Step,
        selection: &Selection,
        pool: &LayerPool,
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
            machine: self.attention,
            queries: self.heads(layer, sums, 0),
            rotary: self.rotary(layer),
            scalar: self.config.query_scalar,
            window: layer.window,
            pool,
            cut: self.cut,
        };
        let (stride, item_rows) = (pool.layout.padded_head(), self.cut.item_rows);
        attended.resize(selection.items.len() * item_rows * stride, 0.0);
        attention.attend(&selection.items, &step.segments, attended);

        let (head_dim, item_heads) = (self.config.head_dim, self.cut.item_heads);
        let next = layer.output.form();
        tiles.shape(selection.rows.len(), self.config.heads * head_dim, next);
        let rows = selection.rows.par_chunks(tiles.tile_rows());
        tiles.par_tiles().zip(rows).for_each(|(mut tile, rows)| {
            for (number, row) in rows.iter().enumerate() {
                for head in 0..self.config.heads {
                    let item = row.item as usize + head / item_heads * row.next_heads as usize;
                    let within = row.within as usize * item_heads + head % item_heads;
                    let from = &attended[(item * item_rows + within) * stride..][..head_dim];
                    tile.write(number, head * head_dim, from);
                }
            }
        });
    }

    fn gate(&self, layer: &Layer, rows: usize, scratch: &mut Scratch) {
        let Scratch { tiles, sums, .. } = scratch;
        tiles.shape(rows, self.config.intermediate, layer.down.form());
        let tile_rows = tiles.tile_rows();
        tiles
            .par_tiles()
            .enumerate()
            .for_each(|(number, mut tile)| {
                let first = number * tile_rows;
                for row in 0..tile_rows.min(rows - first) {
                    self.kernels.run(Gate {
                        sums,
                        source: first + row,
                        up: layer.gate_up.start(1),
                        bias: layer.gate_up_bias.as_ref(),
                        activation: self.config.activation,
                        intermediate: self.config.intermediate,
                        tile: &mut tile,
                        row,
                    });
                }
            });
    }

    /// Multiplies the normed tokens in `scratch` by the output layer `head` and appends their logits to `logits`.
    fn logits(&self, head: &Panels, scratch: &mut Scratch, logits: &mut Vec<f32>) {
        let vocabulary = self.config.vocabulary;
        self.multiply(head, scratch);
        let start = logits.len();
        logits.resize(start + scratch.tiles.rows() * vocabulary, 0.0);
        let rows = logits[start..].par_chunks_mut(vocabulary).enumerate();
        rows.for_each(|(row, logits)| scratch.sums.read(row, 0, 0, logits));
    }

    /// Returns the rotary embedding for a layer's queries and keys, which differs for layers with a sliding window.
    fn rotary(&self, layer: &Layer) -> &Rotary {
        let sliding = self.sliding_rotary.as_ref();
        sliding
            .filter(|_| layer.window.is_some())
            .unwrap_or(&self.rotary)
    }

    /// Returns the query heads (`kind` 0), key heads (1) or value heads (2) in `sums`, the output of the layer's
    /// projection.
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
    fn new(weights: &LayerWeights<'_>, window: Option<usize>, kernels: Kernels) -> Self {
        let pack = |parts: &[&Tensor<'_>]| Panels::pack(parts, kernels);
        let wide = Tensor::to_f32;
        let [q, k, v] = &weights.qkv;
        let [gate, up] = &weights.gate_up;
        Self {
            input_norm: wide(&weights.input_norm),
            qkv: pack(&[q, k, v]),
            qkv_bias: weights
                .qkv_bias
                .as_ref()
                .map(|bias| bias.each_ref().map(wide)),
            qk_norm: weights
                .qk_norm
                .as_ref()
                .map(|norm| norm.each_ref().map(wide)),
            window,
            output: pack(&[&weights.output]),
            output_bias: weights.output_bias.as_ref().map(wide),
            post_norms: weights
                .post_norms
                .as_ref()
                .map(|norms| norms.each_ref().map(wide)),
            mlp_norm: wide(&weights.mlp_norm),
            gate_up: pack(&[gate, up]),
            gate_up_bias: weights
                .gate_up_bias
                .as_ref()
                .map(|bias| bias.each_ref().map(wide)),
            down: pack(&[&weights.down]),
            down_bias: weights.down_bias.as_ref().map(wide),
        }
    }

    /// Returns the operation that adds the output of attention (`part` 0) or of the feed-forward layer (1) to the
    /// residual stream.
    fn addend(&self, part: usize) -> Addend<'_> {
        match &self.post_norms {
            Some(norms) => Addend::Normed(&norms[part]),
            None => Addend::Biased([&self.output_bias, &self.down_bias][part].as_deref()),
        }
    }
}

/// Removes from the residual stream all rows except those of `selection`, whose numbers ascend.
fn keep(selection: &Selection, hidden: usize, residual: &mut Vec<f32>) {
    for (to, row) in selection.rows.iter().enumerate() {
        let from = row.number as usize * hidden;
        residual.copy_within(from..from + hidden, to * hidden);
    }
    residual.truncate(selection.rows.len() * hidden);
}

/// Writes the keys and values of consecutive tokens to one layer's part of their KV page.
struct Store<'a> {
    keys: Heads<'a>,
    values: Heads<'a>,
    rotary: &'a Rotary,
    layout: Layout,
    kv_heads: usize,
    write: &'a Write,
    piece: &'a mut [u32],
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
                self.layout.store(self.piece, head, slot, key, value);
            }
        }
    }
}
