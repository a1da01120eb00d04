//! Checkpoints: architectures as data, and weights as memory-mapped tensors.
//!
//! ```text
//! folder ── config.json ───────────▶ ModelConfig  sizes, rotary positions, options of a layer
//!        ── generation_config.json ┘
//!        ── *.safetensors ─────────▶ Checkpoint   a layer's tensors, checked for presence, type and shape; FP8 widened
//! FILE.gguf ── all of these, and the tokenizer and the chat template
//! ```
//!
//! This module owns which checkpoints are supported, how their files are read and what their tensors are called. It
//! does not know how a backend lays weights out or computes with them, and knows nothing of text.
//!
//! For any content of these files, reading them ends in a value or in a [`CheckpointError`], never in a panic.

mod checkpoint;
mod config;
mod fp8;
mod gemma;
pub(crate) mod gguf;
mod packing;
mod raw_config;
mod rope;
mod safetensors;
mod tensor;

pub use checkpoint::Checkpoint;
pub(crate) use checkpoint::{LayerWeights, Matrix};
pub(crate) use config::Activation;
pub use config::ModelConfig;
pub(crate) use fp8::Fp8Matrix;
#[cfg(test)]
pub(crate) use fp8::value as fp8_value;
pub use packing::Packing;
pub(crate) use rope::Rope;
pub use safetensors::Tensors;
pub use tensor::Element;
pub(crate) use tensor::Tensor;

use std::fmt::Display;
use std::path::Path;

/// The reason that a checkpoint, the files of a model, cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct CheckpointError {
    /// Path of the file, or of the folder if a file in it is missing.
    pub file: String,
    /// A sentence that names the part of the file that is wrong, the value found and the values supported.
    pub reason: String,
}

impl CheckpointError {
    /// Returns an error that names the path `file`, with `reason`.
    pub(crate) fn new(file: &Path, reason: impl Display) -> Self {
        Self {
            file: file.display().to_string(),
            reason: reason.to_string(),
        }
    }
}
