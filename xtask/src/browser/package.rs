//! Builds the npm package as a folder, for `npm pack` and `npm install FOLDER`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::copy;
use crate::workspace::{Workspace, empty_folder};

pub(super) fn write(workspace: &Workspace, glue: &Path, folder: &Path) -> Result<()> {
    empty_folder(folder)?;
    for target in ["bundler", "web"] {
        copy(&glue.join(target), &folder.join(target))?;
    }
    let sources = workspace.root().join("wasm-module/browser");
    copy(&sources.join("README.md"), &folder.join("README.md"))?;
    copy(&workspace.root().join("LICENSE"), &folder.join("LICENSE"))?;

    let manifest = sources.join("package.json");
    let read = || -> Result<Value> { Ok(serde_json::from_str(&fs::read_to_string(&manifest)?)?) };
    let mut manifest = read().with_context(|| format!("reading {}", manifest.display()))?;
    // All packages of the workspace have the same version.
    manifest["version"] = env!("CARGO_PKG_VERSION").into();
    let text = serde_json::to_string_pretty(&manifest)? + "\n";
    fs::write(folder.join("package.json"), text).context("writing package.json")
}
