//! Debian packages: installed if the user may, otherwise requested from the user.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::step::Step;
use crate::workspace::{Workspace, output};

/// Installs `package`; `missing` says why it is needed.
///
/// # Errors
/// Returns an error with the command to run if this user may not install packages, or there is no apt.
pub(super) fn install(workspace: &Workspace, missing: &str, package: &str) -> Result<()> {
    if !(is_root() && Path::new("/usr/bin/apt-get").is_file()) {
        bail!(
            "{missing}; install it, then run this command again:\n  sudo apt-get install -y {package}"
        );
    }
    let apt = |arguments: &str| {
        Step::program(package, workspace.root(), "apt-get", arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .run()
    };
    apt("update")?;
    apt(&format!("install -y --no-install-recommends {package}"))
}

fn is_root() -> bool {
    output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}
