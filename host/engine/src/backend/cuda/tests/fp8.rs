//! Tests of whole models in FP8: which matrices stay in it, and whether prefill and decode compute the same model.
//!
//! Tolerances, as the root mean square of all rows' errors by the rows' deviation. An activation in FP8 has an error of
//! 2.5 % of its size (2^-3 / sqrt(12) between 1 and 2), eight products one after another 7 %: [`WIDENED`], against the
//! same weights in bf16. Quantising makes small errors larger: numbers that nearly tie are rounded to neighbours, 6 to 12
//! % apart. Prefill and decode round to bf16 in different places, within attention and before the gate, and so stray
//! from each other by some of that: [`CUT`].

use super::models::{checkpoints, config};
use super::{Random, devices};
use crate::backend::Output;
use crate::backend::cuda::weights::Matrix;
use crate::backend::cuda::{CudaBackend, CudaConfig, CudaPrecision};
use crate::backend::tests::{run, segment, tokens};
use crate::models::{Checkpoint, fp8_value};
use half::bf16;
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;

const WIDENED: f64 = 1e-1;
const CUT: f64 = 6e-2;
const VOCABULARY: u32 = 96;

/// Returns the FP8 number (E4M3) nearest to a value, of two equally near ones the one that ends with a zero bit. NaN is
/// positive, larger values than 448 become 448.
pub(super) fn narrow(value: f32) -> u8 {
    if value.is_nan() {
        return 0x7f;
    }
    let size = value.abs();
    let above = (0..0x7f).position(|number| fp8_value(number) > size);
    let nearest = match above.map(|above| above as u8) {
        None => 0x7e,
        Some(above) => {
            let [to_below, to_above] = [above - 1, above]
                .map(|number| (f64::from(size) - f64::from(fp8_value(number))).abs());
            let is_below = to_below < to_above || (to_below == to_above && above % 2 == 1);
            above - u8::from(is_below)
        }
    };
    nearest | if value.is_sign_negative() { 0x80 } else { 0 }
}

/// Returns the numbers of a row in FP8, and its scale.
pub(super) fn quantised(row: &[bf16]) -> (Vec<u8>, f32) {
    let sizes = row.iter().map(|x| x.to_f32().abs());
    let scale = match sizes.clone().fold(0.0, f32::max) {
        _ if !sizes.clone().all(f32::is_finite) => f32::from_bits(0x7fff_ffff),
        0.0 => 1.0,
        largest => largest / 448.0,
    };
    let numbers = row.iter().map(|x| narrow(x.to_f32() / scale));
    (numbers.collect(), scale)
}

/// The format of a matrix in a file.
#[derive(Clone, Copy, PartialEq)]
enum Stored {
    ByRow,
    ByTensor,
    Bf16,
    /// By row, and one number is NaN.
    Nan,
}

/// Writes a checkpoint of two layers, whose matrices are stored as `stored` says, and opens it.
fn checkpoint(
    folder: &Path,
    intermediate: usize,
    stored: impl Fn(usize, &str) -> Stored,
) -> Checkpoint {
    let (hidden, queries, keys) = (64, 4 * 32, 2 * 32);
    let config = serde_json::json!({"model_type": "llama", "hidden_size": hidden, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": intermediate,
        "vocab_size": VOCABULARY, "max_position_embeddings": 256, "tie_word_embeddings": false,
        "quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
            "group_0": {"weights": {"type": "float", "num_bits": 8, "symmetric": true, "strategy": "channel"}}}}});
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let random = &mut Random::new(5);
    let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    let bytes = |values: &[bf16]| values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut add = |name: String, rows: usize, columns: usize, stored: Stored| {
        let deviation = (3.0 / columns as f32).sqrt();
        let values: Vec<bf16> = (random.values(rows * columns).iter())
            .map(|x| bf16::from_f32(x * deviation))
            .collect();
        let parts: Vec<(Vec<u8>, f32)> = match stored {
            Stored::Bf16 => {
                tensors.push((name, Dtype::BF16, vec![rows, columns], bytes(&values)));
                return;
            }
            Stored::ByTensor => vec![quantised(&values)],
            Stored::ByRow | Stored::Nan => values.chunks(columns).map(quantised).collect(),
        };
        let mut numbers = parts
            .iter()
            .flat_map(|part| part.0.clone())
            .collect::<Vec<_>>();
        if stored == Stored::Nan {
            numbers[7] = 0xff;
        }
        let scales = parts.iter().flat_map(|part| part.1.to_le_bytes()).collect();
        let shape = match stored {
            Stored::ByTensor => vec![1],
            _ => vec![rows, 1],
        };
        tensors.push((format!("{name}_scale"), Dtype::F32, shape, scales));
        tensors.push((name, Dtype::F8_E4M3, vec![rows, columns], numbers));
    };
    for layer in 0..2 {
        for (name, rows, columns) in [
            ("self_attn.q_proj", queries, hidden),
            ("self_attn.k_proj", keys, hidden),
            ("self_attn.v_proj", keys, hidden),
            ("self_attn.o_proj", hidden, queries),
            ("mlp.gate_proj", intermediate, hidden),
            ("mlp.up_proj", intermediate, hidden),
            ("mlp.down_proj", hidden, intermediate),
        ] {
            let full = format!("model.layers.{layer}.{name}.weight");
            add(full, rows, columns, stored(layer, name));
        }
    }
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        add(name.to_owned(), VOCABULARY as usize, hidden, Stored::Bf16);
    }
    let layers = (0..2).flat_map(|layer| {
        ["input_layernorm", "post_attention_layernorm"]
            .map(|name| format!("model.layers.{layer}.{name}.weight"))
    });
    for name in layers.chain(["model.norm.weight".to_owned()]) {
        tensors.push((
            name,
            Dtype::BF16,
            vec![hidden],
            bytes(&vec![bf16::ONE; hidden]),
        ));
    }
    let views = (tensors.iter()).map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
    Checkpoint::open(folder).unwrap()
}

fn of(precision: CudaPrecision) -> CudaConfig {
    CudaConfig {
        precision,
        ..config()
    }
}

/// Returns the root mean square of all errors by the expected rows' deviation.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let mean = |row: &[f32]| row.iter().sum::<f32>() / row.len() as f32;
    let spread: f32 = (expected.chunks(VOCABULARY as usize))
        .flat_map(|row| row.iter().map(move |x| (x - mean(row)).powi(2)))
        .sum();
    let errors = found.iter().zip(expected).map(|(x, y)| (x - y).powi(2));
    f64::from(errors.sum::<f32>() / spread).sqrt()
}

#[test]
fn a_model_in_fp8_is_the_same_in_prefill_and_decode_and_near_the_widened_one() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 96, |_, name| match name {
        "mlp.down_proj" => Stored::ByTensor,
        _ => Stored::ByRow,
    });
    let prompt = tokens(VOCABULARY, 3, 70);
    for (device, other) in devices().into_iter().zip(devices()) {
        let name = device.name().to_owned();
        let open = |device, precision| {
            CudaBackend::build(&checkpoint, &of(precision), device, &mut |_, _| {}).unwrap()
        };
        let mut narrow = open(device, CudaPrecision::Fp8);
        for layer in &narrow.model.layers {
            for matrix in [&layer.qkv, &layer.output, &layer.gate_up, &layer.down] {
                assert!(matches!(matrix, Matrix::Fp8 { .. }));
            }
        }
        let mut wide = open(other, CudaPrecision::Bf16);
        assert!(!wide.model.has_fp8());
        assert_ne!(narrow.identity(), wide.identity(), "KV state differs");
        let whole = run(&mut narrow, vec![segment(&prompt, 0, 0..5, Output::All)]);
        // Chunks of one to four tokens, which one kernel computes, and of more.
        let (mut cut, mut at) = (Vec::new(), 0);
        for size in [1, 1, 4, 3, 2, 12, 1, 1, 1, 30, 1, 1, 5, 4, 3] {
            let part = segment(&prompt[at..at + size], at, 10..15, Output::All);
            cut.extend(run(&mut narrow, vec![part]));
            at += size;
        }
        assert_eq!(at, prompt.len());
        let widened = run(&mut wide, vec![segment(&prompt, 0, 0..5, Output::All)]);
        // Six sequences that decode together, by the library, and each alone, by the kernel for few rows.
        let one = |i: u32| segment(&prompt[20..21], 20, 20 + 2 * i..22 + 2 * i, Output::Last);
        for i in 0..6 {
            let start = &tokens(VOCABULARY, 9 + i, 20);
            let pages = 20 + 2 * i..22 + 2 * i;
            run(&mut narrow, vec![segment(start, 0, pages, Output::None)]);
        }
        let together = run(&mut narrow, (0..6).map(one).collect());
        for repetition in ["recorded", "repeated"] {
            let again = run(&mut narrow, (0..6).map(one).collect());
            assert!(again == together, "{name}, {repetition}");
        }
        let alone: Vec<f32> = (0..6)
            .flat_map(|i| run(&mut narrow, vec![one(i)]))
            .collect();

        let widened = distance(&whole, &widened);
        let (cut, alone) = (distance(&cut, &whole), distance(&alone, &together));
        println!("{name}: widened {widened:e}, cut {cut:e}, alone {alone:e} of a deviation");
        assert!(widened < WIDENED && widened > CUT, "{name}: {widened}");
        assert!(cut < CUT && alone < CUT, "{name}: {cut}, {alone}");
    }
}

#[test]
fn matrices_stay_in_fp8_if_all_their_parts_can() {
    let folder = tempfile::tempdir().unwrap();
    // 2 · 104 is divisible by 16, 104 is not.
    let checkpoint = checkpoint(folder.path(), 104, |layer, name| match (layer, name) {
        (0, "self_attn.v_proj") => Stored::Bf16,
        (0, "mlp.up_proj") => Stored::ByTensor,
        (1, "self_attn.o_proj") => Stored::Nan,
        _ => Stored::ByRow,
    });
    for device in devices() {
        let mut last = (0, 0);
        let mut progress = |done, total| last = (done, total);
        let config = of(CudaPrecision::Fp8);
        let mut machine = CudaBackend::build(&checkpoint, &config, device, &mut progress).unwrap();
        assert_eq!(last.0, last.1, "all bytes are reported");
        let found = (machine.model.layers.iter()).map(|layer| {
            [&layer.qkv, &layer.output, &layer.gate_up, &layer.down]
                .map(|matrix| matches!(matrix, Matrix::Fp8 { .. }))
        });
        assert_eq!(
            found.collect::<Vec<_>>(),
            [[false, true, true, false], [true, false, true, false]]
        );
        // The NaN of a widened matrix reaches the logits.
        let logits = run(&mut machine, vec![segment(&[1], 0, [0], Output::Last)]);
        assert!(logits.iter().all(|logit| logit.is_nan()));
    }
}

#[test]
fn a_checkpoint_without_fp8_is_refused() {
    for device in devices() {
        let config = of(CudaPrecision::Fp8);
        let built = CudaBackend::build(&checkpoints()[0], &config, device, &mut |_, _| {});
        let reason = built.err().unwrap().to_string();
        assert!(reason.contains("no matrix of the checkpoint"), "{reason}");
    }
}
