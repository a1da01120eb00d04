//! Python with pip: the way to Envoy's binary. Installed through apt where we may, asked for where we may not.

use std::process::Command;

use anyhow::{Result, bail};

use super::apt;
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

const PACKAGE: &str = "python3-pip";

fn runs(arguments: &[&str]) -> bool {
    Command::new(PYTHON)
        .args(arguments)
        .output()
        .is_ok_and(|output| output.status.success())
}
