//! The checkpoints in `fixtures/` and what `transformers` computes from them, for tests of every backend.

#[path = "recorded.rs"]
mod recorded;

use recorded::floats;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A prompt, and what `transformers` computes from it.
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// Positions, and the best tokens with their logits at each.
    pub(crate) top: Vec<(usize, Vec<(u32, f32)>)>,
    /// Logits of the last position.
    pub(crate) last: Vec<f32>,
    /// The greedy continuation.
    pub(crate) greedy: Vec<u32>,
}

/// Returns the folders of all fixtures: those in `FOREWORD_FIXTURES` where tests run on another machine than they were
/// built on.
pub(crate) fn families() -> Vec<PathBuf> {
    let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let root = std::env::var_os("FOREWORD_FIXTURES").map_or_else(built, PathBuf::from);
    let mut folders: Vec<PathBuf> = std::fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("reference.json").exists())
        .collect();
    folders.sort();
    let types: Vec<String> = folders.iter().map(|folder| model_type(folder)).collect();
    for family in ["llama", "mistral", "qwen2", "qwen3", "gemma3_text"] {
        assert!(
            types.iter().any(|name| name == family),
            "no fixture of {family}"
        );
    }
    folders
}

fn model_type(folder: &Path) -> String {
    json(&folder.join("config.json"))["model_type"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Reads a JSON file.
pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the prompts of a fixture's reference.
pub(crate) fn prompts(folder: &Path) -> Vec<Prompt> {
    let token = |value: &Value| value.as_u64().unwrap() as u32;
    let tokens = |value: &Value| {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(token)
            .collect::<Vec<_>>()
    };
    let best = |value: &Value| (token(&value[0]), value[1].as_f64().unwrap() as f32);
    json(&folder.join("reference.json"))["prompts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|prompt| Prompt {
            tokens: tokens(&prompt["tokens"]),
            top: tokens(&prompt["logits_at"])
                .into_iter()
                .zip(prompt["top"].as_array().unwrap())
                .map(|(at, row)| {
                    (
                        at as usize,
                        row.as_array().unwrap().iter().map(best).collect(),
                    )
                })
                .collect(),
            last: floats(prompt["logits_last"].as_str().unwrap()),
            greedy: tokens(&prompt["greedy"]),
        })
        .collect()
}

/// Returns the standard deviation of a row.
pub(crate) fn deviation(row: &[f32]) -> f32 {
    let mean = row.iter().sum::<f32>() / row.len() as f32;
    (row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / row.len() as f32).sqrt()
}

/// Returns the root mean square of the differences between a row of logits and another one, in the latter's standard
/// deviations.
pub(crate) fn strays(row: &[f32], expected: &[f32]) -> f32 {
    let errors = row.iter().zip(expected).map(|(a, b)| a - b);
    let square = errors.map(|error| error * error).sum::<f32>() / expected.len() as f32;
    square.sqrt() / deviation(expected)
}
