//! cargo-cyclonedx, which lists a program's components.

use std::path::PathBuf;

use anyhow::Result;

use super::cargo_tool::CargoTool;
use crate::workspace::Workspace;

const CYCLONEDX: CargoTool = CargoTool {
    name: "cargo-cyclonedx",
    version: "0.5.9",
    version_line: "cargo-cyclonedx-cyclonedx 0.5.9",
    version_arguments: &["cyclonedx", "--version"],
};

/// Builds cargo-cyclonedx unless it is present, and returns its path.
pub(crate) fn install(workspace: &Workspace) -> Result<PathBuf> {
    CYCLONEDX.install(workspace)?;
    Ok(CYCLONEDX.program(workspace))
}
