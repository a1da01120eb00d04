//! A checkpoint's tensors by their role in a layer, each checked for presence, type and shape.
//!
//! [`Checkpoint::random`] fills the same roles with random numbers, for measuring shapes of which no file exists.

use super::fp8::{self, Block, Fp8Matrix};
use super::gguf::{Gguf, is_gguf};
use super::safetensors::{Entry, Tensors};
use super::tensor::{Element, Tensor, rows_and_columns};
use super::{CheckpointError, ModelConfig, Packing};
use half::{bf16, f16};
use rayon::prelude::*;
use std::borrow::Cow;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

/// The tensors of a decoder layer. A matrix, of type `M`, is `[outputs, inputs]`; its bias, `None` if the model has none,
/// follows it.
pub(crate) struct LayerWeights<'a, M = Tensor<'a>> {
    pub(crate) input_norm: Tensor<'a>,
    /// Matrices of the query, key and value projections.
    pub(crate) qkv: [M; 3],
    pub(crate) qkv_bias: Option<[Tensor<'a>; 3]>,
    /// Weights of the norms of a query head and of a key head; `None` if the model does not norm them.
    pub(crate) qk_norm: Option<[Tensor<'a>; 2]>,
    pub(crate) output: M,
    pub(crate) output_bias: Option<Tensor<'a>>,
    /// Weights of the norms of the outputs of attention and of the feed-forward layer, applied before these are added
    /// to the residual stream; `None` if the model does not norm these outputs.
    pub(crate) post_norms: Option<[Tensor<'a>; 2]>,
    pub(crate) mlp_norm: Tensor<'a>,
    /// Gate and up matrices of the feed-forward layer.
    pub(crate) gate_up: [M; 2],
    pub(crate) gate_up_bias: Option<[Tensor<'a>; 2]>,
    pub(crate) down: M,
    pub(crate) down_bias: Option<Tensor<'a>>,
}

/// A matrix whose numbers stay in FP8 where a scale applies to whole rows.
pub(crate) enum Matrix<'a> {
    /// A matrix in another number type, or widened to bf16.
    Wide(Tensor<'a>),
    /// A matrix in FP8 with a scale for each row.
    Fp8(Fp8Matrix<'a>),
}

impl<'a> Matrix<'a> {
    /// Returns the matrix with numbers in FP8 widened to bf16.
    pub(crate) fn widened(self) -> Tensor<'a> {
        match self {
            Self::Wide(tensor) => tensor,
            Self::Fp8(matrix) => matrix.widened(),
        }
    }
}

/// A model's configuration and weights, as stored in files or random, not yet laid out for a backend.
pub struct Checkpoint {
    config: ModelConfig,
    source: Source,
}

enum Source {
    Files(Tensors),
    Gguf(Gguf),
    Random(Element, u64),
}

impl Checkpoint {
    /// Opens the checkpoint at `path`, a folder or a GGUF file: reads its configuration and maps its weights into
    /// memory.
    ///
    /// # Errors
    /// Returns a [`CheckpointError`] when a file is missing, malformed or of an unsupported architecture.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        if is_gguf(path) {
            let file = Gguf::open(path)?;
            return Ok(Self {
                config: ModelConfig::of_gguf(&file)?,
                source: Source::Gguf(file),
            });
        }
        Ok(Self {
            config: ModelConfig::load(path)?,
            source: Source::Files(Tensors::open(path)?),
        })
    }

    /// Returns a checkpoint with random weights of number type `element`, of the shape that `config` describes. They
    /// depend on `seed` alone. A matrix has a standard deviation of one over the square root of its inputs, so that
    /// activations keep their scale through any number of layers.
    pub fn random(config: ModelConfig, element: Element, seed: u64) -> Self {
        Self {
            config,
            source: Source::Random(element, seed),
        }
    }

    /// Returns the configuration that describes the model's architecture.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns a hash of the model's architecture and of samples of each tensor, by which stored KV state of this model
    /// is told apart from that of others.
    pub fn fingerprint(&self) -> u128 {
        let mut hash = Xxh3::new();
        hash.update(format!("{:?}", self.config).as_bytes());
        match &self.source {
            Source::Files(files) => files.sample(&mut hash),
            Source::Gguf(file) => file.sample(&mut hash),
            Source::Random(element, seed) => {
                hash.update(format!("random {element:?} {seed}").as_bytes());
            }
        }
        hash.digest128()
    }

    /// Returns the tensors of the decoder layer with index `index`, checked for presence, type and shape.
    pub(crate) fn layer(&self, index: usize) -> Result<LayerWeights<'_>, CheckpointError> {
        self.layer_of(index, |name, shape| self.tensor(name, shape))
    }

    /// Returns the tensors of the decoder layer with index `index` as [`Checkpoint::layer`] does, with matrices in FP8
    /// where the files have them so and a scale applies to whole rows.
    pub(crate) fn layer_in_fp8(
        &self,
        index: usize,
    ) -> Result<LayerWeights<'_, Matrix<'_>>, CheckpointError> {
        self.layer_of(index, |name, shape| match &self.source {
            Source::Files(files) => files.matrix(name, shape, self.config.fp8_block),
            _ => self.tensor(name, shape).map(Matrix::Wide),
        })
    }

    fn layer_of<'a, M>(
        &'a self,
        index: usize,
        read: impl Fn(&str, &[usize]) -> Result<M, CheckpointError>,
    ) -> Result<LayerWeights<'a, M>, CheckpointError> {
        let c = &self.config;
        let (queries, keys) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let name = |rest: &str| format!("model.layers.{index}.{rest}");
        let matrix = |rest: &str, rows: usize, columns: usize| {
            read(&name(&format!("{rest}.weight")), &[rows, columns])
        };
        let norm = |rest: &str, length: usize| self.norm(&name(&format!("{rest}.weight")), length);
        let bias =
            |rest: &str, length: usize| self.tensor(&name(&format!("{rest}.bias")), &[length]);
        Ok(LayerWeights {
            input_norm: norm("input_layernorm", c.hidden)?,
            qkv: [
                matrix("self_attn.q_proj", queries, c.hidden)?,
                matrix("self_attn.k_proj", keys, c.hidden)?,
                matrix("self_attn.v_proj", keys, c.hidden)?,
            ],
            qkv_bias: when(c.qkv_bias, || {
                Ok([
                    bias("self_attn.q_proj", queries)?,
                    bias("self_attn.k_proj", keys)?,
                    bias("self_attn.v_proj", keys)?,
                ])
            })?,
            qk_norm: when(c.qk_norm, || {
                Ok([
                    norm("self_attn.q_norm", c.head_dim)?,
                    norm("self_attn.k_norm", c.head_dim)?,
                ])
            })?,
            output: matrix("self_attn.o_proj", c.hidden, queries)?,
            output_bias: when(c.output_bias, || bias("self_attn.o_proj", c.hidden))?,
            post_norms: when(c.post_norms, || {
                Ok([
                    norm("post_attention_layernorm", c.hidden)?,
                    norm("post_feedforward_layernorm", c.hidden)?,
                ])
            })?,
            mlp_norm: match c.post_norms {
                true => norm("pre_feedforward_layernorm", c.hidden)?,
                false => norm("post_attention_layernorm", c.hidden)?,
            },
            gate_up: [
                matrix("mlp.gate_proj", c.intermediate, c.hidden)?,
                matrix("mlp.up_proj", c.intermediate, c.hidden)?,
            ],
            gate_up_bias: when(c.mlp_bias, || {
                Ok([
                    bias("mlp.gate_proj", c.intermediate)?,
                    bias("mlp.up_proj", c.intermediate)?,
                ])
            })?,
            down: matrix("mlp.down_proj", c.hidden, c.intermediate)?,
            down_bias: when(c.mlp_bias, || bias("mlp.down_proj", c.hidden))?,
        })
    }

    /// Returns the number type of the key projection in the first layer, which stands for the type in which attention
    /// may be computed.
    pub(crate) fn attention_element(&self) -> Result<Element, CheckpointError> {
        let (c, name) = (&self.config, "model.layers.0.self_attn.k_proj.weight");
        match &self.source {
            Source::Random(element, _) => Ok(*element),
            Source::Files(_) | Source::Gguf(_) => {
                let tensor = self.tensor(name, &[c.kv_heads * c.head_dim, c.hidden])?;
                Ok(tensor.element)
            }
        }
    }

    /// Returns the token embedding, `[vocabulary, hidden]`.
    pub(crate) fn embedding(&self) -> Result<Tensor<'_>, CheckpointError> {
        self.tensor(
            "model.embed_tokens.weight",
            &[self.config.vocabulary, self.config.hidden],
        )
    }

    /// Returns the weights of the norm before the output layer, `[hidden]`.
    pub(crate) fn final_norm(&self) -> Result<Tensor<'_>, CheckpointError> {
        self.norm("model.norm.weight", self.config.hidden)
    }

    /// Returns the weights of the norm called `name`, `[length]`. Adds 1 to each if the files store them minus one.
    fn norm(&self, name: &str, length: usize) -> Result<Tensor<'_>, CheckpointError> {
        let tensor = self.tensor(name, &[length])?;
        let is_less_one = self.config.norms_less_one && matches!(self.source, Source::Files(_));
        if !is_less_one {
            return Ok(tensor);
        }
        let values = tensor.to_f32().into_iter();
        Ok(Tensor {
            element: Element::F32,
            data: values
                .flat_map(|value| (1.0 + value).to_le_bytes())
                .collect(),
            ..tensor
        })
    }

    /// Returns the output layer, `[vocabulary, hidden]`, or `None` if the token embedding also serves as the output
    /// layer.
    pub(crate) fn head(&self) -> Result<Option<Tensor<'_>>, CheckpointError> {
        when(!self.config.tied, || {
            self.tensor(
                "lm_head.weight",
                &[self.config.vocabulary, self.config.hidden],
            )
        })
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        match &self.source {
            Source::Random(element, seed) => Ok(random(name, shape, *element, *seed)),
            Source::Files(files) => files.in_blocks(name, shape, self.config.fp8_block),
            Source::Gguf(file) => file.tensor(name, shape),
        }
    }
}

impl Tensors {
    /// Returns the values of the tensor called `name`, converted to f32. The tensor must have the shape `shape`.
    ///
    /// # Errors
    /// Returns a [`CheckpointError`] when the tensor is missing or has another shape or an unsupported type.
    pub fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, CheckpointError> {
        Ok(self.tensor(name, shape)?.to_f32())
    }

    pub(crate) fn tensor(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<Tensor<'_>, CheckpointError> {
        self.in_blocks(name, shape, None)
    }

    /// Returns the tensor called `name`, checked for shape and type. FP8 numbers are converted to bf16; those of each
    /// `block` share a scale, unless the shape of the scales says that there is one for each row or one for the tensor.
    pub(super) fn in_blocks(
        &self,
        name: &str,
        shape: &[usize],
        block: Option<Block>,
    ) -> Result<Tensor<'_>, CheckpointError> {
        self.matrix(name, shape, block).map(Matrix::widened)
    }

    /// Returns the tensor called `name`, checked for shape and type, as [`Tensors::in_blocks`] does, but in FP8 if a
    /// scale applies to whole rows.
    pub(super) fn matrix(
        &self,
        name: &str,
        shape: &[usize],
        block: Option<Block>,
    ) -> Result<Matrix<'_>, CheckpointError> {
        let (rows, columns) = rows_and_columns(shape);
        let Some((path, entry, bytes)) = self.get(name) else {
            return Err(CheckpointError::new(
                &self.folder,
                format!("tensor {name} is missing, expected with shape {shape:?}"),
            ));
        };
        let wrong = |reason| CheckpointError::new(path, format!("tensor {name}: {reason}"));
        let is_fp8 = entry.dtype == FP8;
        let element = match is_fp8 {
            true => None,
            false => Some(element(entry, ", F8_E4M3 with scales").map_err(wrong)?),
        };
        let is_expected = (entry.shape.iter().copied()).eq(shape.iter().map(|&size| size as u64));
        if !is_expected {
            return Err(wrong(format!(
                "shape is {:?}, expected {shape:?}",
                entry.shape
            )));
        }
        let size = element.map_or(1, |element| element.block().1);
        let expected = (rows * columns) as u64 * size as u64;
        if bytes.len() as u64 != expected {
            return Err(wrong(format!(
                "it has {} bytes, expected {expected}",
                bytes.len()
            )));
        }
        let Some(element) = element else {
            let (shared, scales) = self
                .scales(name, rows, columns, block)
                .map_err(|reason| CheckpointError::new(path, reason))?;
            let [high, wide] = shared;
            return Ok(if wide < columns {
                Matrix::Wide(fp8::widened(bytes, rows, columns, &scales, shared))
            } else {
                Matrix::Fp8(Fp8Matrix {
                    rows,
                    columns,
                    numbers: bytes,
                    scales: (0..rows).map(|row| scales[row / high]).collect(),
                })
            });
        };
        Ok(Matrix::Wide(Tensor {
            element,
            rows,
            columns,
            data: Cow::Borrowed(bytes),
        }))
    }

    /// Returns two things for the FP8 tensor called `name`: the size of the blocks (rows, columns) that share a scale,
    /// and the scales, row-major.
    fn scales(
        &self,
        name: &str,
        rows: usize,
        columns: usize,
        block: Option<Block>,
    ) -> Result<(Block, Vec<f32>), String> {
        let names = ["scale", "scale_inv"].map(|end| format!("{name}_{end}"));
        let found = (names.iter()).find_map(|name| Some((name, self.get(name)?)));
        let Some((scale, (_, entry, bytes))) = found else {
            let [one, other] = names;
            return Err(format!(
                "tensor {name}: dtype is {FP8}, and neither {one} nor {other} is there"
            ));
        };
        let wrong = |reason| format!("tensor {scale}: {reason}");
        let element = element(entry, "").map_err(wrong)?;
        let Some(shared) = fp8::shared(&entry.shape, rows, columns, block) else {
            return Err(wrong(format!(
                "shape is {:?}, expected one number, one for each of {rows} rows, or one for each block of {block:?}",
                entry.shape
            )));
        };
        let count = rows.div_ceil(shared[0]) * columns.div_ceil(shared[1]);
        let expected = count * element.block().1;
        if bytes.len() != expected {
            return Err(wrong(format!(
                "it has {} bytes, expected {expected}",
                bytes.len()
            )));
        }
        let scales = Tensor {
            element,
            rows: 1,
            columns: count,
            data: Cow::Borrowed(bytes),
        };
        Ok((shared, scales.to_f32()))
    }
}

/// Name of the number type FP8 (E4M3) in a safetensors header.
const FP8: &str = "F8_E4M3";

/// Returns the number type of a tensor that needs no scales, or an error with the supported types, to which `also` is
/// appended.
fn element(entry: &Entry, also: &str) -> Result<Element, String> {
    match entry.dtype.as_str() {
        "F32" => Ok(Element::F32),
        "BF16" => Ok(Element::Bf16),
        "F16" => Ok(Element::F16),
        other => Err(format!("dtype is {other}, supported: BF16, F16, F32{also}")),
    }
}

fn when<T>(
    wanted: bool,
    make: impl FnOnce() -> Result<T, CheckpointError>,
) -> Result<Option<T>, CheckpointError> {
    if wanted { make().map(Some) } else { Ok(None) }
}

/// Returns a tensor of random values: norms around one, everything else around zero. The values depend on name and seed
/// alone.
fn random(name: &str, shape: &[usize], element: Element, seed: u64) -> Tensor<'static> {
    let (rows, columns) = rows_and_columns(shape);
    // FNV-1a, so that a tensor's values do not depend on which others are drawn.
    let start = name
        .bytes()
        .fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let (middle, deviation) = match name {
        _ if name.contains("norm") => (1.0, 0.1),
        _ if name.ends_with("bias") => (0.0, 0.1),
        _ if name.contains("embed") => (0.0, 1.0),
        _ => (0.0, 1.0 / (columns as f32).sqrt()),
    };
    let value = |index: usize| {
        let bits = random_bits(start, index);
        // A uniform value of standard deviation one.
        let uniform = ((bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 3f32.sqrt();
        middle + deviation * uniform
    };
    let element = match element {
        // As in files, vectors and rows that are not whole blocks are not packed.
        Element::Packed(packing)
            if shape.len() != 2 || !columns.is_multiple_of(packing.block().0) =>
        {
            Element::F32
        }
        element => element,
    };
    if let Element::Packed(packing) = element {
        let (numbers, size) = packing.block();
        let mut data = vec![0; rows * columns / numbers * size];
        let blocks = data.par_chunks_exact_mut(size).enumerate();
        blocks.for_each(|(block, to)| random_block(packing, deviation, to, start ^ block as u64));
        return Tensor {
            element,
            rows,
            columns,
            data: Cow::Owned(data),
        };
    }
    let width = element.block().1;
    let mut data = vec![0; rows * columns * width];
    let stretches = data.par_chunks_mut(STRETCH * width).enumerate();
    stretches.for_each(|(stretch, data)| {
        for (at, to) in data.chunks_exact_mut(width).enumerate() {
            let value = value(stretch * STRETCH + at);
            match element {
                Element::F32 => to.copy_from_slice(&value.to_le_bytes()),
                Element::Bf16 => to.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                Element::F16 => to.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                Element::Packed(_) => {}
            }
        }
    });
    Tensor {
        element,
        rows,
        columns,
        data: Cow::Owned(data),
    }
}

/// Fills the packed block `to` with random numbers of mean zero, or nearly so, and the standard deviation `deviation`.
fn random_block(packing: Packing, deviation: f32, to: &mut [u8], seed: u64) {
    for (at, bytes) in to.chunks_mut(8).enumerate() {
        bytes.copy_from_slice(&random_bits(seed, at).to_le_bytes()[..bytes.len()]);
    }
    // The deviation of values with scale 1 and the offset that balances it, for integers that are uniform.
    let (unit, offset) = match packing {
        Packing::Q4_0 => (4.6, None),
        Packing::Q4_1 => (4.6, Some(-7.5)),
        Packing::Q5_0 => (9.2, None),
        Packing::Q5_1 => (9.2, Some(-15.5)),
        Packing::Q8_0 => (74.0, None),
        Packing::Q4K => (258.0, Some(7.5)),
        Packing::Q5K => (527.0, Some(15.5)),
        Packing::Q6K => (1368.0, None),
    };
    let scale = deviation / unit;
    let numbers = [Some(scale), offset.map(|offset| scale * offset)];
    let places = to[packing.scale()..].as_chunks_mut::<2>().0;
    for (to, value) in places.iter_mut().zip(numbers.into_iter().flatten()) {
        *to = f16::from_f32(value).to_le_bytes();
    }
}

/// Returns element `index` of the stream of random bits that begins at `start`: SplitMix64, whose states form a
/// progression, so that any part of the stream can be computed independently.
fn random_bits(start: u64, index: usize) -> u64 {
    let steps = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let state = start.wrapping_add(steps);
    let mut bits = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits
}

/// Number of random values of a tensor that a thread computes at once.
const STRETCH: usize = 1 << 14;
