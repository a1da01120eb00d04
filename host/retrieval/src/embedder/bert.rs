//! A BERT encoder's forward pass, on the engine's kernels.
//!
//! ```text
//!   ids ─▶ word + position + type ─▶ norm ─▶ ┌ query, key, value ─▶ attention ─▶ output ─▶ + ─▶ norm ┐
//!                                            └◀───────── norm ◀─ + ◀─ down ◀─ gelu ◀─ up ◀───────────┘ × layers
//! ```
//!
//! The rows of several texts are stacked, `[tokens, hidden]` f32. Products run over all of them at once, attention
//! within each text, so a text's result does not depend on the other texts. Shapes come from `config.json`; names are
//! those of Hugging Face's `BertModel`.

use foreword_engine::backend::cpu::{Dense, Workspace};
use foreword_engine::models::{CheckpointError, Tensors};
use rayon::prelude::*;
use serde::Deserialize;
use std::ops::Range;

/// The fields used of `config.json`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Config {
    pub(super) model_type: String,
    pub(super) hidden_act: String,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    pub(super) max_position_embeddings: usize,
    pub(super) type_vocab_size: usize,
    pub(super) vocab_size: usize,
    pub(super) layer_norm_eps: f32,
    #[serde(default = "absolute")]
    pub(super) position_embedding_type: String,
}

fn absolute() -> String {
    "absolute".to_owned()
}

impl Config {
    /// Returns the first unsupported setting, or `None`.
    pub(super) fn unsupported(&self) -> Option<String> {
        let wrong = |field: &str, found: &str, wanted: &str| {
            Some(format!("{field} is {found:?}, supported: {wanted:?}"))
        };
        let sizes = [
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("max_position_embeddings", self.max_position_embeddings),
            ("type_vocab_size", self.type_vocab_size),
            ("vocab_size", self.vocab_size),
        ];
        if let Some((field, size)) = sizes
            .into_iter()
            .find(|(_, size)| !(1..=1 << 20).contains(size))
        {
            return Some(format!("{field} is {size}, supported: 1 to {}", 1 << 20));
        }
        match () {
            () if self.model_type != "bert" => wrong("model_type", &self.model_type, "bert"),
            () if self.hidden_act != "gelu" => wrong("hidden_act", &self.hidden_act, "gelu"),
            () if self.position_embedding_type != "absolute" => wrong(
                "position_embedding_type",
                &self.position_embedding_type,
                "absolute",
            ),
            () if !self.hidden_size.is_multiple_of(self.num_attention_heads) => Some(format!(
                "hidden_size {} is not a multiple of num_attention_heads {}",
                self.hidden_size, self.num_attention_heads
            )),
            () => None,
        }
    }
}

/// The model's weights, laid out for the kernels.
pub(super) struct Bert {
    config: Config,
    /// Word embeddings `[vocabulary, hidden]`.
    words: Vec<f32>,
    /// Position embeddings `[positions, hidden]`, with the first token type's vector added.
    positions: Vec<f32>,
    norm: Norm,
    layers: Vec<Layer>,
}

struct Layer {
    query: Dense,
    key: Dense,
    value: Dense,
    output: Dense,
    attention_norm: Norm,
    up: Dense,
    down: Dense,
    norm: Norm,
}

struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    eps: f32,
}

/// Scratch memory of a pass, reused by later passes.
#[derive(Default)]
pub(super) struct Scratch {
    hidden: Vec<f32>,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    attended: Vec<f32>,
    inner: Vec<f32>,
    workspace: Workspace,
}

impl Bert {
    pub(super) fn load(tensors: &Tensors, config: Config) -> Result<Self, CheckpointError> {
        let hidden = config.hidden_size;
        let embedding = |name: &str, rows: usize| {
            tensors.values(&format!("embeddings.{name}.weight"), &[rows, hidden])
        };
        let mut positions = embedding("position_embeddings", config.max_position_embeddings)?;
        let types = embedding("token_type_embeddings", config.type_vocab_size)?;
        for row in positions.chunks_exact_mut(hidden) {
            add(row, &types[..hidden]);
        }
        let layers = (0..config.num_hidden_layers)
            .map(|index| Layer::load(tensors, &format!("encoder.layer.{index}"), &config))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            words: embedding("word_embeddings", config.vocab_size)?,
            positions,
            norm: Norm::load(tensors, "embeddings.LayerNorm", &config)?,
            layers,
            config,
        })
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the last hidden states of `texts`, `[all tokens, hidden]`. No text may have more tokens than the model
    /// has positions, and every token must be below the vocabulary size.
    pub(super) fn forward<'s>(&self, texts: &[&[u32]], scratch: &'s mut Scratch) -> &'s [f32] {
        let hidden = self.config.hidden_size;
        let rows: usize = texts.iter().map(|text| text.len()).sum();
        let Scratch {
            hidden: states,
            query,
            key,
            value,
            attended,
            inner,
            workspace,
        } = scratch;
        states.clear();
        let mut spans: Vec<Range<usize>> = Vec::with_capacity(texts.len());
        for text in texts {
            let start = states.len() / hidden;
            for (position, &token) in text.iter().enumerate() {
                let at = states.len();
                states.extend_from_slice(&self.words[token as usize * hidden..][..hidden]);
                add(
                    &mut states[at..],
                    &self.positions[position * hidden..][..hidden],
                );
            }
            spans.push(start..start + text.len());
        }
        self.norm.apply(states);
        for buffer in [&mut *query, &mut *key, &mut *value, &mut *attended] {
            buffer.resize(rows * hidden, 0.0);
        }
        inner.resize(rows * self.config.intermediate_size, 0.0);
        for layer in &self.layers {
            layer.query.apply(states, query, workspace);
            layer.key.apply(states, key, workspace);
            layer.value.apply(states, value, workspace);
            for span in &spans {
                let part = span.start * hidden..span.end * hidden;
                attend(
                    &query[part.clone()],
                    &key[part.clone()],
                    &value[part.clone()],
                    &mut attended[part],
                    hidden,
                    self.config.num_attention_heads,
                );
            }
            layer.output.apply(attended, query, workspace);
            add(states, query);
            layer.attention_norm.apply(states);
            layer.up.apply(states, inner, workspace);
            inner.par_iter_mut().for_each(|value| *value = gelu(*value));
            layer.down.apply(inner, query, workspace);
            add(states, query);
            layer.norm.apply(states);
        }
        states
    }
}

impl Layer {
    fn load(tensors: &Tensors, name: &str, config: &Config) -> Result<Self, CheckpointError> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let dense = |rest: &str, inputs, outputs| {
            Dense::load(tensors, &format!("{name}.{rest}"), inputs, outputs)
        };
        let norm = |rest: &str| Norm::load(tensors, &format!("{name}.{rest}"), config);
        Ok(Self {
            query: dense("attention.self.query", hidden, hidden)?,
            key: dense("attention.self.key", hidden, hidden)?,
            value: dense("attention.self.value", hidden, hidden)?,
            output: dense("attention.output.dense", hidden, hidden)?,
            attention_norm: norm("attention.output.LayerNorm")?,
            up: dense("intermediate.dense", hidden, inner)?,
            down: dense("output.dense", inner, hidden)?,
            norm: norm("output.LayerNorm")?,
        })
    }
}

impl Norm {
    fn load(tensors: &Tensors, name: &str, config: &Config) -> Result<Self, CheckpointError> {
        let values = |part: &str| tensors.values(&format!("{name}.{part}"), &[config.hidden_size]);
        Ok(Self {
            weight: values("weight")?,
            bias: values("bias")?,
            eps: config.layer_norm_eps,
        })
    }

    /// Normalises every row in place.
    fn apply(&self, rows: &mut [f32]) {
        let length = self.weight.len();
        rows.par_chunks_exact_mut(length).for_each(|row| {
            let mean = row.iter().sum::<f32>() / length as f32;
            let squares: f32 = row
                .iter()
                .map(|value| (value - mean) * (value - mean))
                .sum();
            let scale = 1.0 / (squares / length as f32 + self.eps).sqrt();
            for ((value, weight), bias) in row.iter_mut().zip(&self.weight).zip(&self.bias) {
                *value = (*value - mean) * scale * weight + bias;
            }
        });
    }
}

/// Computes the attention between all tokens of one text, head by head.
fn attend(
    query: &[f32],
    key: &[f32],
    value: &[f32],
    attended: &mut [f32],
    hidden: usize,
    heads: usize,
) {
    let head_dim = hidden / heads;
    let scale = 1.0 / (head_dim as f32).sqrt();
    let tokens = key.len() / hidden;
    (attended.par_chunks_exact_mut(hidden))
        .zip(query.par_chunks_exact(hidden))
        .for_each_init(
            || vec![0.0; tokens],
            |weights, (attended, query)| {
                attended.fill(0.0);
                for head in 0..heads {
                    let part = head * head_dim..(head + 1) * head_dim;
                    let query = &query[part.clone()];
                    for (weight, key) in weights.iter_mut().zip(key.chunks_exact(hidden)) {
                        *weight = scale * dot(query, &key[part.clone()]);
                    }
                    softmax(weights);
                    let attended = &mut attended[part.clone()];
                    for (weight, value) in weights.iter().zip(value.chunks_exact(hidden)) {
                        for (sum, value) in attended.iter_mut().zip(&value[part.clone()]) {
                            *sum += weight * value;
                        }
                    }
                }
            },
        );
}

fn softmax(weights: &mut [f32]) {
    let most = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for weight in &mut *weights {
        *weight = (*weight - most).exp();
        sum += *weight;
    }
    for weight in weights {
        *weight /= sum;
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

fn add(to: &mut [f32], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

/// Returns `x Φ(x)`, with the error function of Abramowitz and Stegun 7.1.26, which is accurate to 1.5e-7.
fn gelu(x: f32) -> f32 {
    const COEFFICIENTS: [f32; 5] = [
        1.061_405_4,
        -1.453_152_1,
        1.421_413_8,
        -0.284_496_74,
        0.254_829_6,
    ];
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let polynomial = COEFFICIENTS.iter().fold(0.0, |sum, c| sum * t + c) * t;
    let erf = 1.0 - polynomial * (-z * z).exp();
    0.5 * x * (1.0 + erf.copysign(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gelu_is_that_of_the_normal_distribution() {
        // x Φ(x) to seven places, from tables of Φ.
        for (x, expected) in [
            (0.0, 0.0),
            (1.0, 0.841_344_7),
            (-1.0, -0.158_655_3),
            (2.0, 1.954_499_7),
            (-3.0, -0.004_049_7),
            (6.0, 6.0),
            (-20.0, 0.0),
        ] {
            assert!((gelu(x) - expected).abs() < 1e-6, "{x}: {}", gelu(x));
        }
    }

    #[test]
    fn weights_of_attention_add_up_to_one_however_large_the_scores() {
        let mut weights = [1e4, 1e4 - 1.0, -1e30];
        softmax(&mut weights);
        assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert!((weights[0] / weights[1] - std::f32::consts::E).abs() < 1e-5);
        assert_eq!(weights[2], 0.0);
    }
}
