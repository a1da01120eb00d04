//! Weights in FP8 (E4M3), as llm-compressor and the makers of models publish them for vLLM.
//!
//! | `quantization_config.quant_method` | scales | numbers that share one |
//! | --- | --- | --- |
//! | `compressed-tensors`, 8-bit floats | `NAME_scale` | the tensor, a row, or a block of `block_structure` |
//! | `fp8` | `NAME_scale_inv`, also `NAME_scale` | a block of `weight_block_size`, or the tensor |
//!
//! | backend | scales | weights in memory | activations |
//! | --- | --- | --- | --- |
//! | CPU; CUDA by default | any | bf16: number times scale, rounded once, when the checkpoint is loaded | as they are |
//! | CUDA with `--cuda-precision fp8` | by tensor or row | FP8 as in the file, a scale for each row | FP8, a scale for each token |
//! | the same | by block | bf16 | as they are |
//!
//! Where activations stay as they are, results are nearer to the original model's than those of an engine that
//! quantises activations too. The scales of activations (`input_scale`) and of a quantised KV cache (`k_scale`) have no
//! effect: activations in FP8 are scaled by their own largest value. A tensor that is not in FP8 is read as in any
//! other checkpoint.

use super::tensor::{Element, Tensor};
use half::bf16;
use rayon::prelude::*;
use serde_json::Value;
use std::borrow::Cow;

/// Numbers of rows and columns of the part of a matrix that shares a scale.
pub(crate) type Block = [usize; 2];

/// A matrix in FP8 (E4M3) with a scale for each row.
pub(crate) struct Fp8Matrix<'a> {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// The numbers, `[rows, columns]`, one byte each.
    pub(crate) numbers: &'a [u8],
    /// For each row, the factor by which its numbers are multiplied.
    pub(crate) scales: Vec<f32>,
}

impl Fp8Matrix<'_> {
    /// Returns the matrix in bf16: each number times the scale of its row, rounded to nearest, ties to even.
    pub(crate) fn widened(&self) -> Tensor<'static> {
        let (rows, columns) = (self.rows, self.columns);
        widened(self.numbers, rows, columns, &self.scales, [1, columns])
    }

    /// Returns whether a number is NaN.
    pub(crate) fn has_nan(&self) -> bool {
        self.numbers.par_iter().any(|number| number & 127 == 127)
    }
}

/// Maximum number of rows, and of columns, of a block of weights that shares a scale.
const MAX_SIDE: u64 = 1 << 20;

/// Reads `config`, the `quantization_config` of a model, and returns the size of the blocks of weights that share a
/// scale; `None` if it names none.
///
/// # Errors
/// Returns the reason if the configuration names anything but weights in FP8.
pub(super) fn resolve(config: &Value) -> Result<Option<Block>, String> {
    match config["quant_method"].as_str() {
        Some("fp8") => {
            let format = &config["fmt"];
            if !format.is_null() && format != "e4m3" {
                return unsupported("fmt", format, "\"e4m3\"");
            }
            match &config["weight_block_size"] {
                Value::Null => Ok(None),
                sides => block("weight_block_size", sides).map(Some),
            }
        }
        Some("compressed-tensors") => {
            for (name, absent) in [("sparsity_config", "dense"), ("transform_config", "")] {
                let value = &config[name];
                let is_empty = value.as_object().is_some_and(serde_json::Map::is_empty);
                if !(value.is_null() || is_empty || value["format"] == absent) {
                    return unsupported(name, value, "null");
                }
            }
            let Some(groups) = config["config_groups"].as_object() else {
                return unsupported("config_groups", &config["config_groups"], "an object");
            };
            let mut blocks = Vec::new();
            for (name, group) in groups {
                if let Some(found) = of_group(name, &group["weights"])? {
                    blocks.push(found);
                }
            }
            blocks.dedup();
            match *blocks {
                [] => Ok(None),
                [block] => Ok(Some(block)),
                _ => Err("quantization_config.config_groups have blocks of several sizes, supported: one size".into()),
            }
        }
        _ => unsupported(
            "quant_method",
            &config["quant_method"],
            "\"compressed-tensors\" or \"fp8\" with weights in FP8, bf16, f16 and f32 without a quantization_config, and GGUF",
        ),
    }
}

/// Returns the size of the blocks of weights that share a scale in the group called `name` of a `compressed-tensors`
/// configuration; `None` if its scales are by row or by tensor. `weights` is null for a group that quantises
/// activations only.
fn of_group(name: &str, weights: &Value) -> Result<Option<Block>, String> {
    if weights.is_null() {
        return Ok(None);
    }
    let at = |field: &str| format!("config_groups.{name}.weights.{field}");
    for (field, supported) in [
        ("type", Value::from("float")),
        ("num_bits", Value::from(8)),
        ("symmetric", Value::from(true)),
    ] {
        if weights[field] != supported {
            return unsupported(&at(field), &weights[field], &supported.to_string());
        }
    }
    match weights["strategy"].as_str() {
        Some("tensor" | "channel") => Ok(None),
        Some("block") => block(&at("block_structure"), &weights["block_structure"]).map(Some),
        _ => unsupported(
            &at("strategy"),
            &weights["strategy"],
            "\"tensor\", \"channel\" or \"block\"",
        ),
    }
}

/// Reads the size of a block, `[rows, columns]` or the text `"128x128"` that older files have.
fn block(name: &str, value: &Value) -> Result<Block, String> {
    let side = |side: &Value| side.as_u64().filter(|side| (1..=MAX_SIDE).contains(side));
    let sides = match value {
        Value::String(text) => (text.split('x'))
            .map(|side| side.parse::<u64>().map(Value::from).ok())
            .collect(),
        value => value.as_array().cloned(),
    };
    let sides = sides.and_then(|sides| sides.iter().map(side).collect::<Option<Vec<u64>>>());
    match sides.as_deref() {
        Some(&[rows, columns]) => Ok([rows as usize, columns as usize]),
        _ => unsupported(name, value, "[rows, columns] of a block, as [128, 128]"),
    }
}

fn unsupported<T>(name: &str, value: &Value, supported: &str) -> Result<T, String> {
    Err(format!(
        "quantization_config.{name} is {value}, supported: {supported}"
    ))
}

/// Returns the size of the blocks (rows, columns) that share a scale, in a matrix `[rows, columns]` whose scales have
/// the shape `shape`. Returns `None` if the shapes do not fit together.
pub(super) fn shared(
    shape: &[u64],
    rows: usize,
    columns: usize,
    block: Option<Block>,
) -> Option<Block> {
    let grid = block.map(|[high, wide]| [rows.div_ceil(high), columns.div_ceil(wide)]);
    let is = |expected: &[usize]| shape.iter().copied().eq(expected.iter().map(|&n| n as u64));
    match block {
        Some(block) if grid.is_some_and(|grid| is(&grid)) => Some(block),
        _ if is(&[rows, 1]) || is(&[rows]) => Some([1, columns]),
        _ if shape.iter().all(|&size| size == 1) => Some([rows, columns]),
        _ => None,
    }
}

/// Returns a matrix in bf16: each FP8 number times the scale of its block, rounded to nearest, ties to even.
pub(super) fn widened(
    numbers: &[u8],
    rows: usize,
    columns: usize,
    scales: &[f32],
    [high, wide]: Block,
) -> Tensor<'static> {
    let values: [f32; 256] = std::array::from_fn(|bits| value(bits as u8));
    let across = columns.div_ceil(wide);
    let mut data = vec![0; 2 * rows * columns];
    let matrix = data.par_chunks_exact_mut(2 * columns);
    (matrix.zip(numbers.par_chunks_exact(columns)).enumerate()).for_each(|(row, (to, from))| {
        let scales = scales.iter().skip(row / high * across);
        let blocks = to.chunks_mut(2 * wide).zip(from.chunks(wide));
        for ((to, from), scale) in blocks.zip(scales) {
            for (to, &number) in to.as_chunks_mut::<2>().0.iter_mut().zip(from) {
                *to = bf16::from_f32(values[number as usize] * scale).to_le_bytes();
            }
        }
    });
    Tensor {
        element: Element::Bf16,
        rows,
        columns,
        data: Cow::Owned(data),
    }
}

/// Returns the value of a number in FP8 E4M3 ("FN": no infinities, and one NaN of each sign).
pub(crate) fn value(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let size = match (exponent, mantissa) {
        (15, 7.0) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if bits < 128 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::super::{Checkpoint, Matrix, ModelConfig, Tensors};
    use super::*;
    use safetensors::tensor::{Dtype, TensorView};
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn values_are_those_of_the_format() {
        for (bits, expected) in [
            (0x00, 0.0),
            (0x01, 2f32.powi(-9)),
            (0x07, 7.0 * 2f32.powi(-9)),
            (0x08, 2f32.powi(-6)),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0xb8, -1.0),
            (0x7e, 448.0),
            (0xfe, -448.0),
        ] {
            assert_eq!(value(bits), expected, "{bits:#x}");
        }
        assert!(value(0x7f).is_nan() && value(0xff).is_nan());
        let positive: Vec<f32> = (0..0x7f).map(value).collect();
        assert!(positive.is_sorted_by(|one, other| one < other));
    }

    fn float8(block: Value) -> Value {
        json!({"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
            "kv_cache_scheme": null, "sparsity_config": {}, "transform_config": {},
            "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": {"dynamic": true, "type": "float"},
                "weights": {"type": "float", "num_bits": 8, "symmetric": true, "strategy": "block", "block_structure": block}}}})
    }

    #[test]
    fn configurations_name_a_block_or_say_what_is_not_supported() {
        let channel = |changes: Value| {
            let mut config = float8(Value::Null);
            let weights = &mut config["config_groups"]["group_0"]["weights"];
            weights["strategy"] = "channel".into();
            for (name, value) in changes.as_object().unwrap() {
                weights[name] = value.clone();
            }
            config
        };
        for (config, expected) in [
            (channel(json!({})), None),
            (channel(json!({"strategy": "tensor"})), None),
            (float8(json!([128, 64])), Some([128, 64])),
            (float8(json!("128x128")), Some([128, 128])),
            (json!({"quant_method": "fp8"}), None),
            (
                json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}),
                Some([128, 128]),
            ),
        ] {
            assert_eq!(resolve(&config), Ok(expected), "{config}");
        }
        for (config, expected) in [
            (
                json!({"quant_method": "awq"}),
                "quant_method is \"awq\", supported: \"compressed-tensors\"",
            ),
            (json!(null), "quant_method is null"),
            (
                json!({"quant_method": "fp8", "fmt": "e5m2"}),
                "fmt is \"e5m2\", supported: \"e4m3\"",
            ),
            (
                json!({"quant_method": "fp8", "weight_block_size": [128]}),
                "weight_block_size is [128]",
            ),
            (
                json!({"quant_method": "fp8", "weight_block_size": [0, 128]}),
                "weight_block_size is [0,128]",
            ),
            (
                json!({"quant_method": "compressed-tensors"}),
                "config_groups is null",
            ),
            (
                float8(json!("128")),
                "config_groups.group_0.weights.block_structure is \"128\"",
            ),
            (
                channel(json!({"num_bits": 4})),
                "weights.num_bits is 4, supported: 8",
            ),
            (
                channel(json!({"type": "int"})),
                "weights.type is \"int\", supported: \"float\"",
            ),
            (
                channel(json!({"symmetric": false})),
                "weights.symmetric is false",
            ),
            (
                channel(json!({"strategy": "group"})),
                "weights.strategy is \"group\"",
            ),
        ] {
            let reason = resolve(&config).unwrap_err();
            assert!(
                reason.contains(expected),
                "{reason:?} does not say {expected:?}"
            );
        }
        let mut config = channel(json!({}));
        config["transform_config"] = json!({"config_groups": {}});
        assert!(resolve(&config).unwrap_err().contains("transform_config"));
        config["transform_config"] = Value::Null;
        config["sparsity_config"] = json!({"format": "sparse-24-bitmask"});
        assert!(resolve(&config).unwrap_err().contains("sparsity_config"));
    }

    /// A tensor of a file: its name, type, shape and bytes.
    type Stored<'a> = (&'a str, Dtype, &'a [usize], Vec<u8>);

    fn write(folder: &Path, tensors: &[Stored<'_>]) {
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            (
                *name,
                TensorView::new(*dtype, shape.to_vec(), bytes).unwrap(),
            )
        });
        safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    }

    #[test]
    fn scales_are_by_tensor_by_row_or_by_block() {
        // 1, 1.5 and -2 in each row of three, of which the second is doubled by its exponent.
        let numbers = vec![0x38, 0x3c, 0xc0, 0x40, 0x44, 0xc8];
        let folder = tempfile::tempdir().unwrap();
        let weight = ("w", Dtype::F8_E4M3, &[2, 3][..], numbers);
        let read = |name: &str, shape: &[usize], scales: &[f32], block| {
            write(
                folder.path(),
                &[weight.clone(), (name, Dtype::F32, shape, floats(scales))],
            );
            let files = Tensors::open(folder.path()).unwrap();
            let tensor = files.in_blocks("w", &[2, 3], block);
            tensor
                .map(|tensor| tensor.to_f32())
                .map_err(|error| error.reason)
        };
        let one = [0.5, 0.75, -1.0, 1.0, 1.5, -2.0];
        assert_eq!(read("w_scale", &[], &[0.5], None).unwrap(), one);
        assert_eq!(read("w_scale", &[1], &[0.5], Some([2, 2])).unwrap(), one);
        let rows = [0.5, 0.75, -1.0, 6.0, 9.0, -12.0];
        assert_eq!(read("w_scale", &[2, 1], &[0.5, 3.0], None).unwrap(), rows);
        assert_eq!(read("w_scale", &[2], &[0.5, 3.0], None).unwrap(), rows);
        let blocks = [0.5, 0.75, -6.0, 1.0, 1.5, -12.0];
        assert_eq!(
            read("w_scale_inv", &[1, 2], &[0.5, 3.0], Some([2, 2])).unwrap(),
            blocks
        );
        // Scales of whole rows leave the numbers as they are.
        let kept = |name: &str, shape: &[usize], scales: &[f32], block| {
            write(
                folder.path(),
                &[weight.clone(), (name, Dtype::F32, shape, floats(scales))],
            );
            let files = Tensors::open(folder.path()).unwrap();
            match files.matrix("w", &[2, 3], block).ok().unwrap() {
                Matrix::Fp8(matrix) if matrix.numbers == weight.3 => Some(matrix.scales),
                Matrix::Fp8(matrix) => panic!("{:?}", matrix.numbers),
                Matrix::Wide(_) => None,
            }
        };
        let each = Some(vec![0.5, 3.0]);
        assert_eq!(kept("w_scale", &[2, 1], &[0.5, 3.0], None), each);
        assert_eq!(kept("w_scale", &[2], &[0.5, 3.0], Some([2, 2])), each);
        assert_eq!(kept("w_scale", &[], &[0.5], None), Some(vec![0.5; 2]));
        assert_eq!(
            kept("w_scale_inv", &[1, 2], &[0.5, 3.0], Some([2, 2])),
            None
        );

        let reason = read("w_scale_inv", &[1, 2], &[0.5, 3.0], None).unwrap_err();
        assert!(reason.contains("w_scale_inv: shape is [1, 2]"), "{reason}");
        let reason = read("other", &[1], &[0.5], None).unwrap_err();
        assert!(
            reason.contains("neither w_scale nor w_scale_inv"),
            "{reason}"
        );
        write(
            folder.path(),
            &[
                weight.clone(),
                ("w_scale", Dtype::F8_E4M3, &[1], vec![0x38]),
            ],
        );
        let files = Tensors::open(folder.path()).unwrap();
        let reason = files.in_blocks("w", &[2, 3], None).err().unwrap().reason;
        assert!(reason.contains("w_scale: dtype is F8_E4M3"), "{reason}");
    }

    #[test]
    fn a_checkpoint_takes_its_block_from_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let config = json!({"model_type": "llama", "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1,
            "intermediate_size": 4, "vocab_size": 2, "max_position_embeddings": 8,
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [2, 3]}});
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        write(
            folder.path(),
            &[
                (
                    "model.embed_tokens.weight",
                    Dtype::F8_E4M3,
                    &[2, 4],
                    vec![0x38; 8],
                ),
                (
                    "model.embed_tokens.weight_scale_inv",
                    Dtype::F32,
                    &[1, 2],
                    floats(&[2.0, 3.0]),
                ),
            ],
        );
        assert!(ModelConfig::load(folder.path()).is_ok());
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let embedding = checkpoint.embedding().unwrap();
        assert_eq!(embedding.to_f32(), [2.0, 2.0, 2.0, 3.0, 2.0, 2.0, 2.0, 3.0]);
    }
}
