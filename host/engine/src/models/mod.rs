//! Checkpoints: architectures as data, weights as memory-mapped tensors.

use std::path::Path;

/// What is wrong with a checkpoint.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct CheckpointError {
    /// The file's path.
    pub file: String,
    /// What is wrong with it: the value found and the values supported.
    pub reason: String,
}

/// A model's architecture: the Llama, Mistral, Qwen2 and Qwen3 families differ in these values alone.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Tokens that end an answer (`eos_token_id` of `generation_config.json`, else of `config.json`).
    pub eos_tokens: Vec<u32>,
    /// Positions that the model was made for.
    pub max_positions: u32,
}

impl ModelConfig {
    /// Reads `config.json` and, where present, `generation_config.json` in `folder`.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn load(folder: &Path) -> Result<Self, CheckpointError> {
        let _ = folder;
        todo!()
    }
}
