//! The work on tokens between two matrix products: sums of the residual stream, norms, and the gate of the feed-forward
//! layer.

use super::heads::inverse_rms;
use super::kernels::{BLOCK, Loop, PANEL, lanes};
use super::left_operand::Tile;
use super::matrix::Sums;
use crate::models::Activation;

/// The operation that adds a matrix product (the output of attention or of the feed-forward layer) to the residual
/// stream.
#[derive(Clone, Copy)]
pub(super) enum Addend<'a> {
    /// Adds the product as it is, then the bias of its weights, `[hidden]`; `None` if they have no bias.
    Biased(Option<&'a [f32]>),
    /// Applies an RMS norm with these weights, `[hidden]`, to the product, and adds the normed product.
    Normed(&'a [f32]),
}

/// Adds a matrix product to one token's row of the residual stream, norms the row, and writes the result to a row of
/// `tile`, part of the left operand of the next product.
pub(super) struct Norm<'a, 'b> {
    /// The token's row of the residual stream, `[hidden]`, which the product is added to.
    pub(super) residual: &'a mut [f32],
    /// The product to add, the index of the token's row in it, and the operation that adds it. `None` in the first
    /// layer.
    pub(super) addend: Option<(&'a Sums, usize, Addend<'a>)>,
    /// Weights `[hidden]` of the norm that is applied to the residual stream.
    pub(super) weights: &'a [f32],
    pub(super) eps: f32,
    pub(super) tile: &'a mut Tile<'b>,
    /// Index of the row of `tile` (12 or 16 tokens) that is written.
    pub(super) row: usize,
}

impl Loop for Norm<'_, '_> {
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        match self.addend {
            None => {}
            Some((sums, row, Addend::Biased(bias))) => {
                for (panel, part) in self.residual.chunks_mut(PANEL).enumerate() {
                    for (value, sum) in part.iter_mut().zip(sums.segment(row, panel)) {
                        *value += sum;
                    }
                }
                for (value, bias) in self.residual.iter_mut().zip(bias.unwrap_or_default()) {
                    *value += bias;
                }
            }
            Some((sums, row, Addend::Normed(weights))) => {
                let mut square = 0.0;
                for (panel, part) in self.residual.chunks(PANEL).enumerate() {
                    square += lanes::sum_of_squares::<FMA>(&sums.segment(row, panel)[..part.len()]);
                }
                let scale = 1.0 / (square / self.residual.len() as f32 + self.eps).sqrt();
                let parts = self.residual.chunks_mut(PANEL).zip(weights.chunks(PANEL));
                for (panel, (part, weights)) in parts.enumerate() {
                    let sums = sums.segment(row, panel);
                    for ((value, sum), weight) in part.iter_mut().zip(sums).zip(weights) {
                        *value += sum * scale * weight;
                    }
                }
            }
        }
        let scale = inverse_rms::<FMA>(self.residual, self.eps);
        let blocks = self.residual.chunks(BLOCK).zip(self.weights.chunks(BLOCK));
        let mut buffer = [0.0; BLOCK];
        for (block, (values, weights)) in blocks.enumerate() {
            let normed = &mut buffer[..values.len()];
            for ((to, value), weight) in normed.iter_mut().zip(values).zip(weights) {
                *to = value * scale * weight;
            }
            self.tile.write(self.row, block * BLOCK, normed);
        }
    }
}

/// Computes `activation(gate) * up` for one token of a feed-forward layer, and writes it to a row of `tile`, part of
/// the left operand of the down projection.
pub(super) struct Gate<'a, 'b> {
    pub(super) sums: &'a Sums,
    /// Index of the row of `sums`, the product with the gate and up weights, that belongs to the token.
    pub(super) source: usize,
    /// Index of the panel (32 columns) of `sums` at which the up columns begin; the gate columns begin at panel 0.
    pub(super) up: usize,
    /// Biases of the gate and of the up projection, `[intermediate]` each; `None` if the model has none.
    pub(super) bias: Option<&'a [Vec<f32>; 2]>,
    pub(super) activation: Activation,
    pub(super) intermediate: usize,
    pub(super) tile: &'a mut Tile<'b>,
    /// Index of the row of `tile` (12 or 16 tokens) that is written.
    pub(super) row: usize,
}

impl Loop for Gate<'_, '_> {
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        for (panel, column) in (0..self.intermediate).step_by(PANEL).enumerate() {
            let mut gate = *self.sums.segment(self.source, panel);
            let mut up = *self.sums.segment(self.source, self.up + panel);
            if let Some([gate_bias, up_bias]) = self.bias {
                let add = |to: &mut [f32], bias: &[f32]| {
                    to.iter_mut().zip(bias).for_each(|(to, bias)| *to += bias);
                };
                add(&mut gate, &gate_bias[column..]);
                add(&mut up, &up_bias[column..]);
            }
            let pairs = gate.iter_mut().zip(&up);
            match self.activation {
                Activation::Silu => {
                    pairs.for_each(|(gate, up)| *gate = lanes::silu::<FMA>(*gate) * up);
                }
                Activation::Gelu => {
                    pairs.for_each(|(gate, up)| *gate = lanes::gelu::<FMA>(*gate) * up);
                }
            }
            let width = PANEL.min(self.intermediate - column);
            self.tile.write(self.row, column, &gate[..width]);
        }
    }
}
