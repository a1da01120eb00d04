//! The forward pass on a device: the layers in order.
//!
//! ```text
//!  residual f32 ─ norm ─▶ rows ─ qkv ─▶ sums ─ place ─┬─ keys, values ─▶ pages
//!     ▲  ▲                                            └─ queries ─ attention ─▶ rows ─ output ─▶ + residual
//!     │  └── + ◀─ down ─ rows ◀─ gate ─ sums ◀─ gate, up ─ rows ◀─ norm ────────────────────────────┘
//! ```
//!
//! Products with the output and down matrices are added to the residual stream by the product itself. Biases are added
//! by the kernel that reads the rows next. A matrix in FP8 multiplies rows that are quantised to FP8 right before.
//! After the last layer's keys and values, only rows whose logits are wanted continue. A step that only decodes is
//! recorded once per bucket and then repeated. The first step of a bucket runs unrecorded, so that everything that
//! libraries prepare lazily is ready before the recording.

use super::device::{Array, Bf16, Device, Fault, Fp8, Operands, Output, Part, Product};
use super::kernels::{self, Context, HeadWeights, MATVEC_ROWS, Partials, Places};
use super::plan::{Bucket, Capacity, Cut, Plan};
use super::pools::Pools;
use super::weights::{Layer, Matrix, Model};
use crate::backend::TokenId;
use crate::sampling::{Draw, Sampling, SamplingError};
use fxhash::FxHashMap;

/// Buffers on the device that a step needs besides weights and KV pages, large enough for the largest step.
pub(super) struct Scratch {
    pub(super) words: Array<u32>,
    /// The host's copy of what the device buffer `words` contains; empty if its content is unknown.
    sent: Vec<u32>,
    residual: Array<f32>,
    kept: Array<f32>,
    normed: Array<Bf16>,
    sums: Array<Bf16>,
    queries: Array<Bf16>,
    attended: Array<Bf16>,
    gate_up: Array<Bf16>,
    inner: Array<Bf16>,
    quantised: Quantised,
    /// Logits of wanted rows, `[logit_rows, vocabulary]`; more rows than these are computed in several rounds.
    logits: Array<f32>,
    logit_rows: usize,
    choices: Array<Draw>,
    /// Results of sampling `[logit_rows][kind, token]`, where `kind` says whether a token was chosen, see
    /// [`kernels::sample_rows`].
    chosen: Array<u32>,
    partial_sums: Array<f32>,
    partial_stats: Array<f32>,
    recordings: FxHashMap<Bucket, Recording>,
    /// Number of CUDA graphs (recordings) that the device has now.
    recorded: usize,
}

/// The input of a product in FP8: numbers, `[rows, inputs]`, and a scale for each row. Empty if the model has no matrix
/// in FP8.
struct Quantised {
    numbers: Array<u8>,
    scales: Array<f32>,
}

impl Quantised {
    fn new(device: &mut dyn Device, model: &Model, rows: usize) -> Result<Self, Fault> {
        let rows = if model.has_fp8() { rows } else { 0 };
        let width = (model.hidden.max(model.intermediate)).max(model.heads.queries());
        Ok(Self {
            numbers: Array::new(device, rows * width)?,
            scales: Array::new(device, rows)?,
        })
    }

    /// Returns the operands of the product of `input [rows, inputs]` with `weights`. Quantises the input to FP8 first if
    /// the weights are in FP8.
    fn operands<'a>(
        &'a mut self,
        device: &mut dyn Device,
        weights: &'a Matrix,
        input: Part<'a, Bf16>,
        rows: usize,
        inputs: usize,
    ) -> Result<Operands<'a>, Fault> {
        Ok(match weights {
            Matrix::Bf16(weights) => Operands::Bf16 {
                weights: weights.all(),
                input,
            },
            Matrix::Fp8 { numbers, scales } => {
                let (to, to_scales) = (self.numbers.all_mut(), self.scales.all_mut());
                kernels::quantise_rows(device, input, to, to_scales, rows, inputs)?;
                Operands::Fp8 {
                    weights: Fp8 {
                        numbers: numbers.all(),
                        scales: scales.all(),
                    },
                    input: Fp8 {
                        numbers: self.numbers.all(),
                        scales: self.scales.all(),
                    },
                }
            }
        })
    }
}

/// The inputs of one step's computation: the device, the model, the pools of KV pages and the plan of the step.
pub(super) struct Pass<'a> {
    pub(super) device: &'a mut dyn Device,
    pub(super) model: &'a Model,
    pub(super) pools: &'a mut Pools,
    pub(super) plan: &'a Plan,
}

/// Maximum number of CUDA graphs kept on a device, since each takes memory there that the pools do not count. Steps
/// that only decode have some 350 padded shapes (35 numbers of rows, ten lengths), each with a graph of its own. At the
/// limit, all graphs are deleted.
pub(super) const MAX_RECORDINGS: usize = if cfg!(test) { 1 } else { 64 };

/// Number of words of the plan that are compared and sent to the device at once: copying fewer takes hardly less time.
const PIECE: usize = 4096;

/// State of the CUDA graph that computes decode steps of one padded shape ([`Bucket`]).
#[derive(Clone, Copy)]
enum Recording {
    /// A step of this shape ran once, launching kernels one by one. The next one records them in a graph.
    Prepared,
    Made(usize),
}

impl Scratch {
    pub(super) fn new(
        device: &mut dyn Device,
        model: &Model,
        capacity: &Capacity,
        rows: usize,
    ) -> Result<Self, Fault> {
        let hidden = rows * model.hidden;
        let logit_rows = capacity.decode_rows.max(16).min(rows);
        Ok(Self {
            words: Array::new(device, rows * 16)?,
            residual: Array::new(device, hidden)?,
            kept: Array::new(device, hidden)?,
            normed: Array::new(device, hidden)?,
            sums: Array::new(device, rows * model.qkv_width())?,
            queries: Array::new(device, rows * model.heads.queries())?,
            attended: Array::new(device, rows * model.heads.queries())?,
            gate_up: Array::new(device, rows * 2 * model.intermediate)?,
            inner: Array::new(device, rows * model.intermediate)?,
            quantised: Quantised::new(device, model, rows)?,
            logits: Array::new(device, logit_rows * model.vocabulary)?,
            logit_rows,
            choices: Array::new(device, logit_rows)?,
            chosen: Array::new(device, 2 * logit_rows)?,
            partial_sums: Array::new(device, capacity.results * model.heads.head_dim)?,
            partial_stats: Array::new(device, capacity.results * 2)?,
            recordings: FxHashMap::default(),
            recorded: 0,
            sent: Vec::new(),
        })
    }

    /// Computes the planned step of `pass` and appends the wanted logits and the sampled tokens, in the order of the
    /// step's segments.
    pub(super) fn compute(
        &mut self,
        pass: &mut Pass<'_>,
        logits: &mut Vec<f32>,
        drawn: &mut Vec<Result<TokenId, SamplingError>>,
    ) -> Result<(), Fault> {
        self.send(pass.device, &pass.plan.words)?;
        match pass.plan.bucket() {
            Some(bucket) => self.decode(pass, bucket)?,
            None => self.forward(pass)?,
        }
        self.receive(pass, logits, drawn)
    }

    /// Computes a step that only decodes. The first step of a padded shape (`bucket`) launches kernels one by one, the
    /// second records them in a CUDA graph, and later ones replay the graph.
    fn decode(&mut self, pass: &mut Pass<'_>, bucket: Bucket) -> Result<(), Fault> {
        let recording = match self.recordings.get(&bucket) {
            None => {
                self.forward(pass)?;
                self.recordings.insert(bucket, Recording::Prepared);
                return Ok(());
            }
            Some(Recording::Made(recording)) => *recording,
            Some(Recording::Prepared) => {
                if self.recorded == MAX_RECORDINGS {
                    self.forget(pass.device)?;
                }
                pass.device.begin_recording()?;
                let outcome = self.forward(pass);
                let recording = pass.device.end_recording();
                outcome?;
                let recording = recording?;
                self.recordings.insert(bucket, Recording::Made(recording));
                self.recorded += 1;
                recording
            }
        };
        pass.device.repeat(recording)
    }

    /// Deletes all CUDA graphs from the device. A shape of decode steps is recorded again when it recurs.
    fn forget(&mut self, device: &mut dyn Device) -> Result<(), Fault> {
        for recording in self.recordings.values_mut() {
            *recording = Recording::Prepared;
        }
        self.recorded = 0;
        device.forget_recordings()
    }

    /// Sends those parts of the plan's words to the device that differ from the ones there: most page tables have not
    /// changed. CUDA graphs contain the buffer's address, so growing the buffer deletes them all.
    fn send(&mut self, device: &mut dyn Device, words: &[u32]) -> Result<(), Fault> {
        if words.len() > self.words.len() {
            let larger = Array::new(device, words.len().next_power_of_two())?;
            self.forget(device)?;
            std::mem::replace(&mut self.words, larger).free(device)?;
            self.sent.clear();
        }
        // `sent` stays empty if a write fails, because the device's words are then unknown.
        let mut sent = std::mem::take(&mut self.sent);
        for (number, piece) in words.chunks(PIECE).enumerate() {
            let start = number * PIECE;
            if sent.get(start..start + piece.len()) != Some(piece) {
                self.words.write(device, start, piece)?;
            }
        }
        sent.resize(sent.len().max(words.len()), 0);
        sent[..words.len()].copy_from_slice(words);
        self.sent = sent;
        Ok(())
    }

    /// Queues the computation of all layers, and of the logits of the first wanted rows: as many as the buffer of
    /// logits has room for.
    fn forward(&mut self, pass: &mut Pass<'_>) -> Result<(), Fault> {
        let Pass { model, plan, .. } = *pass;
        let hidden = model.hidden;
        let tokens = self.words.part(plan.tokens.clone());
        kernels::embed_rows(
            pass.device,
            model.embedding.all(),
            tokens,
            self.residual.all_mut(),
            hidden,
        )?;
        pass.pools.load(pass.device, 0)?;
        let mut bias = None;
        let mut rows = plan.rows();
        for (number, layer) in model.layers.iter().enumerate() {
            pass.pools.loaded(pass.device)?;
            if number + 1 < model.layers.len() {
                pass.pools.load(pass.device, number + 1)?;
            }
            let weights = layer.input_norm.all();
            self.norm(pass.device, bias, weights, rows, model.eps)?;
            self.project(pass, layer, rows)?;
            self.place(pass, layer, number)?;
            let is_last = number + 1 == model.layers.len();
            if is_last && plan.wanted.len() < rows {
                rows = plan.wanted.len();
                let wanted = self.words.part(plan.wanted.clone());
                kernels::keep_rows(
                    pass.device,
                    self.residual.all(),
                    wanted,
                    self.kept.all_mut(),
                    hidden,
                )?;
                // From here on, the other buffer holds the residual stream.
                std::mem::swap(&mut self.residual, &mut self.kept);
            }
            if rows == 0 {
                return Ok(());
            }
            let cut = if is_last { &plan.last } else { &plan.all };
            self.attend(pass, number, cut)?;
            self.feed_forward(pass, layer, rows)?;
            bias = layer.down_bias.as_ref().map(Array::all);
        }
        self.norm(pass.device, bias, model.norm.all(), rows, model.eps)?;
        self.head(pass, 0, rows)
    }

    fn norm(
        &mut self,
        device: &mut dyn Device,
        bias: Option<Part<'_, f32>>,
        weights: Part<'_, f32>,
        rows: usize,
        eps: f32,
    ) -> Result<(), Fault> {
        let (residual, normed) = (self.residual.all_mut(), self.normed.all_mut());
        kernels::norm_rows(device, residual, bias, weights, normed, rows, eps)
    }

    fn project(&mut self, pass: &mut Pass<'_>, layer: &Layer, rows: usize) -> Result<(), Fault> {
        let (device, inputs) = (&mut *pass.device, pass.model.hidden);
        let input = self.normed.all();
        let operands = (self.quantised).operands(device, &layer.qkv, input, rows, inputs)?;
        kernels::multiply(
            device,
            &Product {
                operands,
                output: Output::Bf16(self.sums.all_mut()),
                rows,
                inputs,
                outputs: pass.model.qkv_width(),
            },
        )
    }

    /// Splits the output of a layer's query, key and value projection: writes rotated queries to their buffer, and keys
    /// and values to their KV pages. `number` is the layer's index.
    fn place(&mut self, pass: &mut Pass<'_>, layer: &Layer, number: usize) -> Result<(), Fault> {
        let Pass { model, plan, .. } = *pass;
        let Some(rotary) = &model.rotary else {
            return Err(Fault::Refused("there is no table of positions".to_owned()));
        };
        let weights = HeadWeights {
            bias: layer.qkv_bias.as_ref().map(Array::all),
            norms: layer
                .qk_norm
                .as_ref()
                .map(|norms| norms.each_ref().map(Array::all)),
            rotary: rotary.all(),
            eps: model.eps,
        };
        let places = Places {
            positions: self.words.part(plan.positions.clone()),
            slots: self.words.part(plan.slots.clone()),
        };
        let (sums, queries, pool) = (
            self.sums.all(),
            self.queries.all_mut(),
            pass.pools.layer_mut(number),
        );
        let device = &mut *pass.device;
        kernels::place_heads(device, &model.heads, &weights, places, sums, queries, pool)
    }

    fn attend(&mut self, pass: &mut Pass<'_>, number: usize, cut: &Cut) -> Result<(), Fault> {
        let Pass { model, plan, .. } = *pass;
        let (heads, pool) = (&model.heads, pass.pools.layer(number));
        let device = &mut *pass.device;
        let Self {
            words,
            queries,
            attended,
            partial_sums,
            partial_stats,
            ..
        } = self;
        let context = |tables| Context {
            pool,
            tables: words.part(tables),
        };
        if plan.decode_rows() > 0 {
            kernels::decode(
                device,
                heads,
                context(plan.decode_tables.clone()),
                words.part(plan.lengths.clone()),
                plan.table_stride,
                plan.longest,
                queries.all(),
                attended.all_mut(),
                Partials::of(partial_sums, partial_stats),
            )?;
        }
        let items = words.part(cut.items.clone());
        let context = context(plan.tables.clone());
        let results = Partials::of(partial_sums, partial_stats);
        kernels::prefill(
            device,
            heads,
            context,
            items,
            queries.all(),
            attended.all_mut(),
            results,
        )?;
        let splits = words.part(cut.splits.clone());
        let results = Partials::of(partial_sums, partial_stats);
        kernels::combine_items(device, heads, splits, attended.all_mut(), results)
    }

    /// Computes a layer's output projection and feed-forward layer for the first `rows` rows, and adds both to the
    /// residual stream.
    fn feed_forward(
        &mut self,
        pass: &mut Pass<'_>,
        layer: &Layer,
        rows: usize,
    ) -> Result<(), Fault> {
        let (device, model) = (&mut *pass.device, pass.model);
        let (hidden, width) = (model.hidden, model.intermediate);
        let (input, inputs) = (self.attended.all(), model.heads.queries());
        let operands = (self.quantised).operands(device, &layer.output, input, rows, inputs)?;
        kernels::multiply(
            device,
            &Product {
                operands,
                output: Output::Add(self.residual.all_mut()),
                rows,
                inputs,
                outputs: hidden,
            },
        )?;
        let bias = layer.output_bias.as_ref().map(Array::all);
        self.norm(device, bias, layer.mlp_norm.all(), rows, model.eps)?;
        let bias = layer.gate_up_bias.as_ref().map(Array::all);
        let input = self.normed.all();
        let operands = (self.quantised).operands(device, &layer.gate_up, input, rows, hidden)?;
        if rows <= MATVEC_ROWS {
            let output = self.inner.all_mut();
            kernels::multiply_gate(device, operands, bias, output, rows, hidden, width)?;
        } else {
            kernels::multiply(
                device,
                &Product {
                    operands,
                    output: Output::Bf16(self.gate_up.all_mut()),
                    rows,
                    inputs: hidden,
                    outputs: 2 * width,
                },
            )?;
            kernels::gate_rows(
                device,
                self.gate_up.all(),
                bias,
                self.inner.all_mut(),
                rows,
                width,
            )?;
        }
        let input = self.inner.all();
        let operands = (self.quantised).operands(device, &layer.down, input, rows, width)?;
        kernels::multiply(
            device,
            &Product {
                operands,
                output: Output::Add(self.residual.all_mut()),
                rows,
                inputs: width,
                outputs: hidden,
            },
        )
    }

    /// Computes the logits of the wanted rows from index `first` on, as many as the buffer of logits has room for.
    /// `rows` is the number of all wanted rows, already normed.
    fn head(&mut self, pass: &mut Pass<'_>, first: usize, rows: usize) -> Result<(), Fault> {
        let model = pass.model;
        let count = self.logit_rows.min(rows - first);
        let input = first * model.hidden..(first + count) * model.hidden;
        kernels::multiply(
            pass.device,
            &Product {
                operands: Operands::Bf16 {
                    weights: model.head.as_ref().unwrap_or(&model.embedding).all(),
                    input: self.normed.part(input),
                },
                output: Output::F32(self.logits.all_mut()),
                rows: count,
                inputs: model.hidden,
                outputs: model.vocabulary,
            },
        )
    }

    /// Copies the wanted logits and the sampled tokens from the device and appends them in the order of the step's
    /// segments.
    fn receive(
        &mut self,
        pass: &mut Pass<'_>,
        logits: &mut Vec<f32>,
        drawn: &mut Vec<Result<TokenId, SamplingError>>,
    ) -> Result<(), Fault> {
        let Pass { model, plan, .. } = *pass;
        let vocabulary = model.vocabulary;
        // Padding is not among the wanted rows.
        let wanted = plan.decoding.unwrap_or(plan.wanted.len());
        // Rows without a draw are sampled greedily too, and the result is ignored.
        let mut choices = vec![Sampling::greedy().draw(0); wanted];
        for (row, draw) in &plan.draws {
            choices[*row as usize] = *draw;
        }
        let mut chosen = vec![0; 2 * wanted];
        logits.resize(plan.order.len() * vocabulary, 0.0);
        for first in (0..wanted).step_by(self.logit_rows) {
            if first > 0 {
                self.head(pass, first, plan.wanted.len())?;
            }
            let some = first..wanted.min(first + self.logit_rows);
            if !plan.draws.is_empty() {
                self.choices.write(pass.device, 0, &choices[some.clone()])?;
                let part = self.choices.part(0..some.len());
                kernels::sample_rows(
                    pass.device,
                    self.logits.all(),
                    part,
                    self.chosen.all_mut(),
                    vocabulary,
                )?;
                self.chosen
                    .read(pass.device, 0, &mut chosen[2 * some.start..2 * some.end])?;
            }
            // Only rows that the host asked for are copied, adjacent ones at once.
            let mut place = 0;
            for run in plan.order.chunk_by(|row, next| row + 1 == *next) {
                let row = run[0] as usize;
                let part = row.max(some.start)..(row + run.len()).min(some.end);
                if !part.is_empty() {
                    let to = (place + part.start - row) * vocabulary;
                    let to = &mut logits[to..to + part.len() * vocabulary];
                    let from = (part.start - some.start) * vocabulary;
                    self.logits.read(pass.device, from, to)?;
                }
                place += run.len();
            }
        }
        for (row, _) in &plan.draws {
            let tokens = vocabulary as u32;
            drawn.push(match chosen[2 * *row as usize..][..2] {
                [0, token] => Ok(token),
                [1, token] => Err(SamplingError::NotFinite { token }),
                _ => Err(SamplingError::NothingLeft { tokens }),
            });
        }
        Ok(())
    }
}
