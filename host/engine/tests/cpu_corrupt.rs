//! Tests of checkpoints that are incomplete, contradictory or hostile: each gives an error that names what is wrong.

use foreword_engine::backend::cpu::{CpuBackend, CpuConfig, Precision};
use foreword_engine::backend::{Backend, Output, PageId, Segment, Step};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize_to_file};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// A copy of a fixture whose files a test corrupts.
struct Spoilt(TempDir);

impl Spoilt {
    fn copy_of(family: &str) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fixtures")
            .join(family);
        let copy = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(source).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
        Self(copy)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn edit_config(&self, key: &str, value: Value) {
        let path = self.path("config.json");
        let mut config: Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        config[key] = value;
        std::fs::write(path, config.to_string()).unwrap();
    }

    fn edit_tensors(&self, edit: impl FnOnce(&mut Tensors)) {
        let path = self.path("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        let mut tensors: Tensors = SafeTensors::deserialize(&bytes)
            .unwrap()
            .iter()
            .map(|(name, view)| {
                let parts = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
                (name.to_owned(), parts)
            })
            .collect();
        edit(&mut tensors);
        let views = tensors.iter().map(|(name, (dtype, shape, data))| {
            (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
        });
        serialize_to_file(views, None, &path).unwrap();
    }

    fn load(&self) -> Result<CpuBackend, String> {
        let config = CpuConfig {
            pages: 2,
            host_pages: 0,
            page_tokens: 16,
            threads: Some(1),
            precision: Precision::Auto,
        };
        CpuBackend::load(self.0.path(), &config).map_err(|error| error.to_string())
    }

    fn is_refused(&self, expected: &[&str]) {
        let error = self.load().err().expect("a spoilt checkpoint was loaded");
        for expected in expected {
            assert!(
                error.contains(expected),
                "{error:?} does not say {expected:?}"
            );
        }
    }
}

const NORM: &str = "model.layers.1.input_layernorm.weight";

#[test]
fn an_untouched_copy_loads() {
    assert!(Spoilt::copy_of("llama").load().is_ok());
    assert!(Spoilt::copy_of("qwen3").load().is_ok());
    let rewritten = Spoilt::copy_of("llama");
    rewritten.edit_tensors(|_| {});
    assert!(rewritten.load().is_ok());
}

#[test]
fn a_text_model_beside_a_vision_tower_computes_what_it_does_alone() {
    let logits = |copy: &Spoilt| {
        let segment = Segment {
            tokens: (5..30).collect(),
            start: 0,
            pages: vec![PageId(0), PageId(1)],
            output: Output::Last,
        };
        let step = Step {
            segments: vec![segment],
            ..Step::default()
        };
        let mut logits = Vec::new();
        copy.load().unwrap().run(&step, &mut logits).unwrap();
        logits
    };
    let expected = logits(&Spoilt::copy_of("gemma3"));
    // As published, and as transformers 5 writes it.
    for prefix in ["language_model.model.", "model.language_model."] {
        let copy = Spoilt::copy_of("gemma3");
        copy.edit_tensors(|tensors| {
            let text = std::mem::take(tensors).into_iter();
            tensors.extend(text.map(|(name, tensor)| (name.replacen("model.", prefix, 1), tensor)));
            let other = (Dtype::F32, vec![1], vec![0; 4]);
            tensors.insert("vision_tower.post_layernorm.bias".to_owned(), other);
        });
        let config = std::fs::read_to_string(copy.path("config.json")).unwrap();
        let text: Value = serde_json::from_str(&config).unwrap();
        let config = json!({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": text, "vision_config": {}});
        std::fs::write(copy.path("config.json"), config.to_string()).unwrap();
        assert_eq!(logits(&copy), expected, "{prefix}");
    }
}

#[test]
fn files_that_are_missing_or_cut_short_are_refused() {
    let copy = Spoilt::copy_of("llama");
    let whole = std::fs::read(copy.path("model.safetensors")).unwrap();
    for length in [0, 5, 8, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(copy.path("model.safetensors"), &whole[..length]).unwrap();
        copy.is_refused(&["model.safetensors"]);
    }
    std::fs::remove_file(copy.path("model.safetensors")).unwrap();
    copy.is_refused(&["neither model.safetensors nor model.safetensors.index.json"]);

    let copy = Spoilt::copy_of("llama");
    std::fs::write(copy.path("config.json"), r#"{"model_type": "llama""#).unwrap();
    copy.is_refused(&["config.json"]);
    std::fs::remove_file(copy.path("config.json")).unwrap();
    copy.is_refused(&["config.json"]);

    let copy = Spoilt::copy_of("qwen3");
    std::fs::remove_file(copy.path("model-00002-of-00002.safetensors")).unwrap();
    copy.is_refused(&["model-00002-of-00002.safetensors"]);
}

#[test]
fn a_missing_tensor_is_named_with_its_expected_shape() {
    let copy = Spoilt::copy_of("llama");
    copy.edit_tensors(|tensors| drop(tensors.remove(NORM)));
    copy.is_refused(&[NORM, "missing", "[64]"]);
}

#[test]
fn a_wrong_shape_is_named_with_found_and_expected() {
    let copy = Spoilt::copy_of("llama");
    copy.edit_tensors(|tensors| {
        let norm = tensors.get_mut(NORM).unwrap();
        norm.1 = vec![63];
        norm.2.truncate(126);
    });
    copy.is_refused(&[NORM, "[63]", "[64]"]);

    // The same number of values in another shape.
    let copy = Spoilt::copy_of("llama");
    copy.edit_tensors(|tensors| tensors.get_mut(NORM).unwrap().1 = vec![8, 8]);
    copy.is_refused(&[NORM, "[8, 8]", "[64]"]);
}

#[test]
fn a_wrong_type_is_named_with_the_supported_ones() {
    let copy = Spoilt::copy_of("llama");
    copy.edit_tensors(|tensors| tensors.get_mut(NORM).unwrap().0 = Dtype::I16);
    copy.is_refused(&[NORM, "I16", "BF16, F16, F32"]);
}

#[test]
fn an_index_with_a_nan_or_a_foreign_path_is_refused() {
    let copy = Spoilt::copy_of("qwen3");
    let index = copy.path("model.safetensors.index.json");
    let good = std::fs::read_to_string(&index).unwrap();
    std::fs::write(
        &index,
        good.replacen("\"model-00001-of-00002.safetensors\"", "NaN", 1),
    )
    .unwrap();
    copy.is_refused(&["model.safetensors.index.json"]);
    std::fs::write(&index, good.replace("model-00002", "../model-00002")).unwrap();
    copy.is_refused(&["../model-00002-of-00002.safetensors", "same folder"]);
}

#[test]
fn an_unknown_architecture_is_named_with_the_supported_ones() {
    let copy = Spoilt::copy_of("llama");
    copy.edit_config("model_type", json!("mamba"));
    copy.is_refused(&[
        "model_type is \"mamba\"",
        "llama, mistral, qwen2, qwen3, gemma3_text, gemma3",
    ]);
}

#[test]
fn a_configuration_that_contradicts_the_weights_is_refused() {
    for (key, value) in [
        ("num_hidden_layers", json!(3)),
        ("vocab_size", json!(4097)),
        ("num_key_value_heads", json!(4)),
        ("intermediate_size", json!(1)),
        ("hidden_size", json!(128)),
        ("head_dim", json!(254)),
    ] {
        let copy = Spoilt::copy_of("llama");
        copy.edit_config(key, value);
        copy.is_refused(&["tensor ", "expected"]);
    }
}

#[test]
fn headers_with_sizes_that_overflow_are_refused() {
    let copy = Spoilt::copy_of("llama");
    let huge = format!(
        r#"{{"{NORM}":{{"dtype":"BF16","shape":[{0},{0}],"data_offsets":[0,{0}]}}}}"#,
        u64::MAX
    );
    let mut bytes = (huge.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(huge.as_bytes());
    std::fs::write(copy.path("model.safetensors"), bytes).unwrap();
    copy.is_refused(&[NORM, "data_offsets"]);
}
