//! The requirements of the npm package, the demo page and their tests: Node.js, three npm packages, and Debian's
//! Chromium; also the packages of Node.js clients.
//!
//! npm installs exactly the versions in `package-lock.json` of `tests/browser` and of `tests/node`, checks their
//! hashes, and runs no package's scripts. Only the browser tests need Chromium.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{apt, say};
use crate::step::Step;
use crate::workspace::{Workspace, output};

/// Returns the folder of `package.json`, into which npm installs.
pub(crate) fn npm_folder(workspace: &Workspace) -> PathBuf {
    workspace.root().join("tests/browser")
}

/// Installs Node.js and the npm packages of the browser's tests.
pub(super) fn node(workspace: &Workspace) -> Result<()> {
    with_node(workspace)?;
    packages(workspace, &npm_folder(workspace))
}

/// Installs Node.js and the npm packages of clients that the tests run through a gateway.
pub(super) fn clients(workspace: &Workspace) -> Result<()> {
    with_node(workspace)?;
    packages(workspace, &workspace.root().join("tests/node"))
}

fn with_node(workspace: &Workspace) -> Result<()> {
    if version("node").is_none() || version("npm").is_none() {
        apt::install(workspace, "Node.js or its npm is missing", "npm")?;
    }
    let node = version("node").unwrap_or_default();
    let major = node.trim_start_matches('v').split('.').next();
    let major: u32 = major.and_then(|major| major.parse().ok()).unwrap_or(0);
    ensure!(
        major >= LEAST_NODE,
        "Node.js {LEAST_NODE} or newer is needed, `node --version` says {node:?}"
    );
    Ok(())
}

/// Returns the path of the tests' Chromium: `FOREWORD_CHROMIUM`, or Debian's.
pub(crate) fn chromium() -> PathBuf {
    std::env::var_os("FOREWORD_CHROMIUM").map_or_else(|| PathBuf::from(CHROMIUM), PathBuf::from)
}

/// Installs Chromium, unless it is present.
pub(super) fn install_chromium(workspace: &Workspace) -> Result<()> {
    let program = chromium();
    if program.is_file() {
        say("chromium", &format!("{} is there", program.display()));
        return Ok(());
    }
    if program != Path::new(CHROMIUM) {
        bail!(
            "FOREWORD_CHROMIUM names {}, which is no file",
            program.display()
        );
    }
    apt::install(workspace, "Chromium is missing", "chromium")?;
    ensure!(
        program.is_file(),
        "apt-get installed chromium, but not as {CHROMIUM}; set FOREWORD_CHROMIUM to its path"
    );
    Ok(())
}

fn packages(workspace: &Workspace, folder: &Path) -> Result<()> {
    let lock = folder.join("package-lock.json");
    let wanted =
        fs::read_to_string(&lock).with_context(|| format!("reading {}", lock.display()))?;
    // Written last, so that an interrupted installation does not look complete.
    let installed = folder.join("node_modules/.installed-lock.json");
    if fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        say("npm packages", "as package-lock.json says");
        return Ok(());
    }
    Step::program("npm packages", workspace.root(), "npm", "ci --prefix")
        .args([folder])
        .args(["--ignore-scripts", "--no-audit", "--no-fund"])
        .run()?;
    fs::write(&installed, wanted).with_context(|| format!("writing {}", installed.display()))
}

fn version(program: &str) -> Option<String> {
    let said = output(Command::new(program).arg("--version")).ok()?;
    Some(said.trim().to_owned())
}

/// The oldest Node.js supported by its test runner and by Playwright.
const LEAST_NODE: u32 = 20;

const CHROMIUM: &str = "/usr/bin/chromium";
