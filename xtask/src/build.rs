//! `cargo xtask build`: the filter, as a Wasm module and as a dynamic module, and the host.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

use crate::setup;
use crate::step::Step;
use crate::workspace::Workspace;

/// The filter's target.
pub(crate) const FILTER_TARGET: &str = "wasm32-wasip1";

/// How to build.
#[derive(Args)]
pub(crate) struct Options {
    /// Cargo profile of the host and of the dynamic module
    #[arg(long, default_value = "release")]
    profile: String,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    setup::for_demo(workspace)?;
    println!("{}", filter(workspace)?.display());
    println!("{}", dynamic(workspace, &options.profile)?.display());
    println!("{}", host(workspace, &options.profile)?.display());
    Ok(())
}

/// Builds the filter and returns its path.
pub(crate) fn filter(workspace: &Workspace) -> Result<PathBuf> {
    let arguments = [
        "build",
        "--locked",
        "--profile",
        "wasm",
        "--target",
        FILTER_TARGET,
        "--package",
        "foreword-filter",
    ];
    Step::cargo("filter", workspace.root(), &arguments).run()?;
    built(
        workspace
            .artifacts_for(FILTER_TARGET, "wasm")
            .join("foreword_filter.wasm"),
    )
}

/// Builds the filter as a dynamic module and returns its path.
fn dynamic(workspace: &Workspace, profile: &str) -> Result<PathBuf> {
    let target = ["--package", "foreword-dynamic", "--lib"];
    native(workspace, "dynamic module", profile, &target)?;
    built(workspace.artifacts(profile).join("libforeword_dynamic.so"))
}

/// Builds the host and returns its path.
pub(crate) fn host(workspace: &Workspace, profile: &str) -> Result<PathBuf> {
    let target = ["--package", "foreword", "--bin", "foreword"];
    native(workspace, "host", profile, &target)?;
    built(workspace.artifacts(profile).join("foreword"))
}

/// Builds for this machine.
fn native(workspace: &Workspace, name: &str, profile: &str, target: &[&str]) -> Result<()> {
    let arguments = [&["build", "--locked", "--profile", profile], target].concat();
    Step::cargo(name, workspace.root(), &arguments).run()
}

fn built(path: PathBuf) -> Result<PathBuf> {
    ensure!(path.is_file(), "cargo built no {}", path.display());
    Ok(path)
}
