//! Programs from crates.io, built at a pinned version into the ignored tools folder.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::say;
use crate::step::Step;
use crate::workspace::{Workspace, output};

/// A cargo subcommand: the package, the program and the version that this repository uses.
pub(super) struct CargoTool {
    /// Name of the package and of its program.
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    /// The version that the program prints.
    pub(super) version_line: &'static str,
    /// The arguments that make it print its version.
    pub(super) version_arguments: &'static [&'static str],
}

impl CargoTool {
    /// Returns the path of the program once [`CargoTool::install`] has run.
    pub(super) fn program(&self, workspace: &Workspace) -> PathBuf {
        self.home(workspace).join("bin").join(self.name)
    }

    /// Builds the program, unless this version is present.
    ///
    /// # Errors
    /// Returns an error if crates.io cannot be reached, or the build fails.
    pub(super) fn install(&self, workspace: &Workspace) -> Result<()> {
        let Self { name, version, .. } = *self;
        if self.is_there(workspace) {
            say(name, &format!("{version} is there"));
            return Ok(());
        }
        let build = workspace.tools().join(format!("{name}-build"));
        let install = format!("install {name} --locked --version {version} --root");
        // It runs for a second at a time; optimising it would only lengthen the first set-up.
        Step::cargo(name, workspace.root(), &install)
            .args([&*self.home(workspace), "--target-dir".as_ref(), &build])
            .args(["--force"])
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
            .run()?;
        std::fs::remove_dir_all(build)?;
        Ok(())
    }

    fn home(&self, workspace: &Workspace) -> PathBuf {
        workspace.tools().join(self.name)
    }

    fn is_there(&self, workspace: &Workspace) -> bool {
        let mut ask = Command::new(self.program(workspace));
        output(ask.args(self.version_arguments)).is_ok_and(|said| said.trim() == self.version_line)
    }
}
