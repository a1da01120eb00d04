//! Debian's packages: installed where we may, asked for where we may not.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::step::Step;
use crate::workspace::Workspace;

/// Installs `package`, because `missing`.
///
/// # Errors
/// This user may not install packages, or there is no apt; the error holds the line to run.
pub(super) fn install(workspace: &Workspace, missing: &str, package: &str) -> Result<()> {
    if !(is_root() && Path::new("/usr/bin/apt-get").is_file()) {
        bail!(
            "{missing}; install it, then run this command again:\n  sudo apt-get install -y {package}"
        );
    }
    let apt = |arguments: &[&str]| {
        Step::program(package, workspace.root(), "apt-get".as_ref(), arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .run()
    };
    apt(&["update"])?;
    apt(&["install", "-y", "--no-install-recommends", package])
}

fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
