//! Weights on a device, uploaded tensor by tensor: matrices as bf16, rounded if wider or packed, or in FP8 as they are
//! in the file; norms and biases as f32.
//!
//! Matrices that multiply the same rows are stacked: queries, keys and values; gate and up.

use super::device::{Array, Bf16, Device, Fault};
use super::kernels::Heads;
use super::{CudaError, CudaPrecision, Progress};
use crate::models::{self, Checkpoint, LayerWeights, ModelConfig, Tensor};

/// A model's weights in the device's memory.
pub(super) struct Model {
    pub(super) heads: Heads,
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) vocabulary: usize,
    pub(super) eps: f32,
    /// Cosines and sines of the rotary embedding, `[positions][cosines, sines]`; `None` until [`Model::tabulate`].
    pub(super) rotary: Option<Array<f32>>,
    pub(super) embedding: Array<Bf16>,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Array<f32>,
    /// The output layer, from hidden state to logits; `None` if the token embedding also serves as the output layer.
    pub(super) head: Option<Array<Bf16>>,
}

/// A layer's matrix `[outputs, inputs]`.
pub(super) enum Matrix {
    Bf16(Array<Bf16>),
    /// Numbers in FP8 (E4M3) with a scale for each output. Inputs and outputs are divisible by 16, no number is NaN.
    Fp8 {
        numbers: Array<u8>,
        scales: Array<f32>,
    },
}

pub(super) struct Layer {
    pub(super) input_norm: Array<f32>,
    /// Projection matrices of queries, keys and values, stacked by rows.
    pub(super) qkv: Matrix,
    pub(super) qkv_bias: Option<Array<f32>>,
    /// Weights of the norms of query heads and of key heads; `None` if the model does not norm them.
    pub(super) qk_norm: Option<[Array<f32>; 2]>,
    pub(super) output: Matrix,
    pub(super) output_bias: Option<Array<f32>>,
    pub(super) mlp_norm: Array<f32>,
    pub(super) gate_up: Matrix,
    pub(super) gate_up_bias: Option<Array<f32>>,
    pub(super) down: Matrix,
    pub(super) down_bias: Option<Array<f32>>,
}

impl Model {
    /// Uploads the weights of `checkpoint` tensor by tensor: matrices as `precision` says, norms and biases as f32.
    /// Calls `progress` after each part of a matrix.
    pub(super) fn load(
        device: &mut dyn Device,
        checkpoint: &Checkpoint,
        heads: Heads,
        precision: CudaPrecision,
        progress: Progress<'_>,
    ) -> Result<Self, CudaError> {
        let config = checkpoint.config();
        let mut loader = Loader {
            device,
            precision,
            done: 0,
            total: bytes_of_weights(config),
            progress,
        };
        let embedding = loader.wide(&[checkpoint.embedding()?])?;
        let layers = (0..config.layers)
            .map(|index| loader.layer(checkpoint.layer_in_fp8(index)?))
            .collect::<Result<_, CudaError>>()?;
        let norm = loader.vector(&[&checkpoint.final_norm()?])?;
        let head = match checkpoint.head()? {
            Some(head) => Some(loader.wide(&[head])?),
            None => None,
        };
        Ok(Self {
            heads,
            hidden: config.hidden,
            intermediate: config.intermediate,
            vocabulary: config.vocabulary,
            eps: config.norm_eps,
            rotary: None,
            embedding,
            layers,
            norm,
            head,
        })
    }

    /// Uploads the cosines and sines of the rotary embedding for positions 0 to `positions - 1`.
    pub(super) fn tabulate(
        &mut self,
        device: &mut dyn Device,
        config: &ModelConfig,
        positions: u32,
    ) -> Result<(), Fault> {
        self.rotary = Some(Array::of(device, &config.rope.table(positions))?);
        Ok(())
    }

    pub(super) fn heads(&self) -> &Heads {
        &self.heads
    }

    /// Returns whether any matrix is in FP8.
    pub(super) fn has_fp8(&self) -> bool {
        self.layers.iter().any(|layer| {
            [&layer.qkv, &layer.output, &layer.gate_up, &layer.down]
                .into_iter()
                .any(|matrix| matches!(matrix, Matrix::Fp8 { .. }))
        })
    }

    /// Returns the number of elements in a token's queries, keys and values of all heads together.
    pub(super) fn qkv_width(&self) -> usize {
        (self.heads.heads + 2 * self.heads.kv_heads) * self.heads.head_dim
    }
}

/// Returns the number of bytes of all matrices in bf16, without norms and biases.
fn bytes_of_weights(c: &ModelConfig) -> u64 {
    let attention = 2 * (c.heads + c.kv_heads) * c.head_dim * c.hidden;
    let layer = attention + 3 * c.intermediate * c.hidden;
    let ends = if c.tied { 1 } else { 2 } * c.vocabulary * c.hidden;
    ((c.layers * layer + ends) * size_of::<Bf16>()) as u64
}

struct Loader<'a> {
    device: &'a mut dyn Device,
    precision: CudaPrecision,
    /// Bytes of matrices so far, as if all were in bf16.
    done: u64,
    total: u64,
    progress: Progress<'a>,
}

impl Loader<'_> {
    fn layer(&mut self, weights: LayerWeights<'_, models::Matrix<'_>>) -> Result<Layer, CudaError> {
        Ok(Layer {
            input_norm: self.vector(&[&weights.input_norm])?,
            qkv: self.matrix(weights.qkv.into())?,
            qkv_bias: self.optional(weights.qkv_bias.as_ref().map(|[q, k, v]| vec![q, k, v]))?,
            qk_norm: match &weights.qk_norm {
                Some([queries, keys]) => Some([self.vector(&[queries])?, self.vector(&[keys])?]),
                None => None,
            },
            output: self.matrix(vec![weights.output])?,
            output_bias: self.optional(weights.output_bias.as_ref().map(|bias| vec![bias]))?,
            mlp_norm: self.vector(&[&weights.mlp_norm])?,
            gate_up: self.matrix(weights.gate_up.into())?,
            gate_up_bias: self.optional(
                weights
                    .gate_up_bias
                    .as_ref()
                    .map(|[gate, up]| vec![gate, up]),
            )?,
            down: self.matrix(vec![weights.down])?,
            down_bias: self.optional(weights.down_bias.as_ref().map(|bias| vec![bias]))?,
        })
    }

    /// Uploads the rows of the matrices `parts`, one after another, as one stacked matrix. It is in FP8 if the precision
    /// is, all parts are, and products support the shape and the numbers.
    fn matrix(&mut self, parts: Vec<models::Matrix<'_>>) -> Result<Matrix, CudaError> {
        let narrow = match self.precision {
            CudaPrecision::Fp8 => in_fp8(&parts),
            CudaPrecision::Bf16 => None,
        };
        let Some(narrow) = narrow else {
            let parts: Vec<_> = parts.into_iter().map(models::Matrix::widened).collect();
            return self.wide(&parts).map(Matrix::Bf16);
        };
        let length = narrow.iter().map(|part| part.numbers.len()).sum();
        let mut numbers = Array::new(self.device, length)?;
        let mut at = 0;
        for piece in narrow.iter().flat_map(|part| part.numbers.chunks(PIECE)) {
            numbers.write(self.device, at, piece)?;
            at += piece.len();
            self.advance(piece.len());
        }
        let scales: Vec<f32> = narrow.iter().flat_map(|part| part.scales.clone()).collect();
        Ok(Matrix::Fp8 {
            numbers,
            scales: Array::of(self.device, &scales)?,
        })
    }

    /// Counts `values` values of a matrix as uploaded.
    fn advance(&mut self, values: usize) {
        self.done += (values * size_of::<Bf16>()) as u64;
        (self.progress)(self.done, self.total);
    }

    /// Uploads the rows of the matrices `parts`, one after another, as one stacked matrix in bf16.
    fn wide(&mut self, parts: &[Tensor<'_>]) -> Result<Array<Bf16>, CudaError> {
        let length = parts.iter().map(|part| part.rows * part.columns).sum();
        let mut array = Array::new(self.device, length)?;
        let mut at = 0;
        for part in parts {
            let bytes = part.to_bf16();
            for bytes in bytes.as_chunks::<2>().0.chunks(PIECE) {
                let values: Vec<Bf16> = bytes.iter().map(|b| Bf16::from_le_bytes(*b)).collect();
                array.write(self.device, at, &values)?;
                at += values.len();
                self.advance(values.len());
            }
        }
        Ok(array)
    }

    fn vector(&mut self, parts: &[&Tensor<'_>]) -> Result<Array<f32>, CudaError> {
        let values: Vec<f32> = parts.iter().flat_map(|part| part.to_f32()).collect();
        Ok(Array::of(self.device, &values)?)
    }

    fn optional(
        &mut self,
        parts: Option<Vec<&Tensor<'_>>>,
    ) -> Result<Option<Array<f32>>, CudaError> {
        parts.map(|parts| self.vector(&parts)).transpose()
    }
}

/// Returns the parts of a stacked matrix if all are in FP8, and products support their sizes and numbers.
fn in_fp8<'a, 'b>(parts: &'a [models::Matrix<'b>]) -> Option<Vec<&'a models::Fp8Matrix<'b>>> {
    let narrow = parts.iter().map(|part| match part {
        models::Matrix::Fp8(matrix) if matrix.columns % 16 == 0 && !matrix.has_nan() => {
            Some(matrix)
        }
        _ => None,
    });
    let narrow = narrow.collect::<Option<Vec<_>>>()?;
    let rows: usize = narrow.iter().map(|part| part.rows).sum();
    rows.is_multiple_of(16).then_some(narrow)
}

/// Number of values of a matrix that are uploaded at once.
const PIECE: usize = 16 << 20;
