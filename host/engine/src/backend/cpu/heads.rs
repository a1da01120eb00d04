//! The work on query, key and value heads between their projection and attention: bias, norm and rotary embedding.

use super::kernels::lanes;
use super::matrix::Sums;
use crate::models::Rope;

/// The largest width of an attention head (`head_dim`) that a model may have, in elements.
pub(super) const MAX_HEAD: usize = 256;

/// Access to all heads of one kind (query, key or value) in the output of a layer's query, key and value projection.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a> {
    pub(super) sums: &'a Sums,
    /// Index of the panel (32 columns) of `sums` at which the columns of this kind begin.
    pub(super) panel: usize,
    pub(super) head_dim: usize,
    /// Bias `[heads, head_dim]` of the projection; `None` if the model has none.
    pub(super) bias: Option<&'a [f32]>,
    /// Weights `[head_dim]` of the RMS norm of each head, the same for all; `None` if the model does not norm these
    /// heads.
    pub(super) norm: Option<&'a [f32]>,
    pub(super) norm_eps: f32,
}

impl Heads<'_> {
    /// Writes head `head` of the token in row `row` to `to`, `[head_dim]`, with bias and norm applied.
    #[inline(always)]
    pub(super) fn read<const FMA: bool>(&self, row: usize, head: usize, to: &mut [f32]) {
        let column = head * self.head_dim;
        self.sums.read(row, self.panel, column, to);
        if let Some(bias) = self.bias {
            for (to, bias) in to.iter_mut().zip(&bias[column..]) {
                *to += bias;
            }
        }
        if let Some(norm) = self.norm {
            let scale = inverse_rms::<FMA>(to, self.norm_eps);
            for (to, norm) in to.iter_mut().zip(norm) {
                *to = *to * scale * norm;
            }
        }
    }
}

/// Returns `1 / sqrt(mean(x²) + eps)`, the factor of an RMS norm.
#[inline(always)]
pub(super) fn inverse_rms<const FMA: bool>(x: &[f32], eps: f32) -> f32 {
    1.0 / (lanes::sum_of_squares::<FMA>(x) / x.len() as f32 + eps).sqrt()
}

/// Cosines and sines of the rotary embedding for every position up to a maximum.
pub(super) struct Rotary {
    /// Cosines and sines `[positions][cosines: half, sines: half]`, where `half` is the number of pairs in a head.
    table: Vec<f32>,
    half: usize,
}

impl Rotary {
    pub(super) fn new(rope: &Rope, positions: u32) -> Self {
        Self {
            table: rope.table(positions),
            half: rope.frequencies.len(),
        }
    }

    /// Rotates the pairs `(i, i + half)` of `head`, in place, by the angles of position `position` in the sequence.
    #[inline(always)]
    pub(super) fn rotate(&self, position: usize, head: &mut [f32]) {
        let row = &self.table[position * 2 * self.half..][..2 * self.half];
        let (cosines, sines) = row.split_at(self.half);
        let (low, high) = head.split_at_mut(self.half);
        for (((low, high), cosine), sine) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
            (*low, *high) = (*low * cosine - *high * sine, *high * cosine + *low * sine);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ModelConfig;

    #[test]
    fn rotation_keeps_lengths_and_depends_on_distance_alone() {
        let model = ModelConfig::parse(
            r#"{"model_type":"llama","hidden_size":64,"num_hidden_layers":1,"num_attention_heads":4,
            "intermediate_size":8,"vocab_size":8,"max_position_embeddings":128}"#,
        )
        .unwrap();
        let rotary = Rotary::new(&model.rope, 128);
        let (a, b): (Vec<f32>, Vec<f32>) = (0..16)
            .map(|i| ((i as f32).sin(), (i as f32 * 1.3).cos()))
            .unzip();
        let score = |at: usize, by: usize| {
            let (mut a, mut b) = (a.clone(), b.clone());
            rotary.rotate(at, &mut a);
            rotary.rotate(by, &mut b);
            a.iter().zip(&b).map(|(a, b)| a * b).sum::<f32>()
        };
        assert!((score(5, 0) - score(105, 100)).abs() < 1e-4);
        assert!((score(5, 0) - score(6, 0)).abs() > 1e-2);
        let mut same = a.clone();
        rotary.rotate(0, &mut same);
        assert_eq!(same, a);
    }
}
