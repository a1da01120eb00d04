//! Checkpoints: architectures as data, weights as memory-mapped tensors.
//!
//! ```text
//! folder ── config.json ───────────▶ ModelConfig  sizes, rotary positions, what a layer has
//!        ── generation_config.json ┘
//!        ── *.safetensors ─────────▶ Checkpoint   the tensors a layer needs, checked for presence, type and shape
//! ```
//!
//! Owned here: which checkpoints are supported, how their files are read and what their tensors are called. Not known
//! here: how a backend lays weights out or computes with them, and anything about text.
//!
//! Whatever these files hold, reading them ends in a value or in a [`CheckpointError`], never in a panic.

mod checkpoint;
mod config;
mod rope;
mod safetensors;

pub use checkpoint::{Checkpoint, Element, Tensors};
pub(crate) use checkpoint::{LayerWeights, Tensor};
pub use config::ModelConfig;
pub(crate) use rope::Rope;

use std::fmt::Display;
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

impl CheckpointError {
    /// `reason` found in `file`.
    pub(crate) fn new(file: &Path, reason: impl Display) -> Self {
        Self {
            file: file.display().to_string(),
            reason: reason.to_string(),
        }
    }
}
