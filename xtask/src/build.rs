//! `cargo xtask build`: the filter, as a Wasm module and as a dynamic module, and the host.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::setup;
use crate::step::Step;
use crate::workspace::Workspace;

/// The target triple that the Proxy-Wasm filter is compiled for.
pub(crate) const FILTER_TARGET: &str = "wasm32-wasip1";

/// Options of `cargo xtask build`.
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

/// What was built, for the tests and for the demo.
pub(crate) struct Built {
    /// Path of the filter's Wasm module.
    pub(crate) filter: PathBuf,
    /// Path of the `foreword` binary.
    pub(crate) host: PathBuf,
}

impl Built {
    /// Tells a step's tests of it, which else build both by themselves.
    pub(crate) fn given_to(&self, step: Step) -> Step {
        step.env("FOREWORD_FILTER", &self.filter.to_string_lossy())
            .env("FOREWORD_HOST", &self.host.to_string_lossy())
    }
}

/// Builds the filter and returns its path.
pub(crate) fn filter(workspace: &Workspace) -> Result<PathBuf> {
    module(
        workspace,
        "filter",
        "foreword-filter",
        FILTER_TARGET,
        "wasm",
    )
}

/// Builds a package as a Wasm module and returns its path. The same source gives the same bytes on every machine: none of
/// the builder's own paths is in them, where panics would name them.
pub(crate) fn module(
    workspace: &Workspace,
    name: &str,
    package: &str,
    target: &str,
    profile: &str,
) -> Result<PathBuf> {
    let remap = remapped(target, &sources()?);
    let arguments = [
        "build",
        "--locked",
        "--profile",
        profile,
        "--target",
        target,
        "--package",
        package,
        "--config",
        &*remap,
    ];
    Step::cargo(name, workspace.root(), &arguments).run()?;
    let file = package.replace('-', "_") + ".wasm";
    built(workspace.artifacts_for(target, profile).join(file))
}

/// The folders that cargo unpacked the dependencies into, one per registry.
fn sources() -> Result<Vec<PathBuf>> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo")));
    let registries = home.context("no home folder")?.join("registry/src");
    let mut found = Vec::new();
    // None at all: every dependency comes from elsewhere (vendored), by paths that we do not know.
    for registry in fs::read_dir(&registries).into_iter().flatten() {
        found.push(registry?.path());
    }
    found.sort();
    Ok(found)
}

/// Cargo's setting under which the compiler writes `/` in place of each of these folders.
fn remapped(target: &str, folders: &[PathBuf]) -> String {
    let flags = folders.iter().map(|folder| {
        let folder = folder.display();
        format!("{:?}", format!("--remap-path-prefix={folder}=/"))
    });
    let flags: Vec<String> = flags.collect();
    format!("target.{target}.rustflags=[{}]", flags.join(","))
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

/// Builds the dynamic module and the host as a release ships them, without the builder's paths, and returns their paths.
///
/// They have a profile, and so a folder, of their own: other flags would make cargo build everything twice.
pub(crate) fn for_release(workspace: &Workspace) -> Result<[PathBuf; 2]> {
    const PROFILE: &str = "dist";
    let mut folders = sources()?;
    folders.push(workspace.root().to_owned());
    folders.push(workspace.target().to_owned());
    let remap = remapped(&host_triple()?, &folders);
    // The C compiler writes paths too.
    let flags: Vec<String> = folders
        .iter()
        .map(|folder| format!("-ffile-prefix-map={}=/", folder.display()))
        .collect();
    for package in ["foreword-dynamic", "foreword"] {
        let arguments = [
            "build",
            "--locked",
            "--profile",
            PROFILE,
            "--package",
            package,
            "--config",
            &*remap,
        ];
        Step::cargo(package, workspace.root(), &arguments)
            .env("CFLAGS", &flags.join(" "))
            .run()?;
    }
    let folder = workspace.artifacts(PROFILE);
    Ok([
        built(folder.join("libforeword_dynamic.so"))?,
        built(folder.join("foreword"))?,
    ])
}

/// The target that this machine's compiler builds for.
pub(crate) fn host_triple() -> Result<String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("rustc cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(line.context("rustc -vV names no host")?.to_owned())
}

fn built(path: PathBuf) -> Result<PathBuf> {
    ensure!(path.is_file(), "cargo built no {}", path.display());
    Ok(path)
}
