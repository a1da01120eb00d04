//! Python with pip: the way to Envoy's binary. Installed through apt where we may, asked for where we may not.

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
/// It does not, and this user may not install packages; the error holds the line to run.
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

/// Installs `packages`, names with exact versions, into `folder`, which is made anew: wheels alone, without what they
/// depend on, and nothing of it on the path.
pub(super) fn install_into(
    workspace: &Workspace,
    step: &str,
    packages: &[&str],
    folder: &Path,
) -> Result<()> {
    install(workspace, step, packages, folder)
}

/// Installs what a file of requirements names, each with an exact version, into `folder` in the same way.
pub(super) fn install_listed(
    workspace: &Workspace,
    step: &str,
    requirements: &str,
    folder: &Path,
) -> Result<()> {
    install(workspace, step, &["--requirement", requirements], folder)
}

/// Installs what a file of requirements names, each with an exact version and the sums of its wheels, into `folder` in the
/// same way.
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
        // What a test imports is compiled then; most is never imported.
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
