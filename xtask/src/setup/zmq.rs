//! pyzmq and msgspec (1.1 MB of wheels), with which the tests read KV events, like readers of vLLM's events.

use std::process::Command;

use anyhow::{Result, ensure};

use super::{python, say};
use crate::workspace::Workspace;

const PACKAGES: [&str; 2] = ["pyzmq==27.3.0", "msgspec==0.22.0"];

/// Installs both into their own folder, unless this Python can import them from there.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    let folder = workspace.tools().join("python");
    let import = || {
        let asked = Command::new(python::PYTHON)
            .args(["-c", "import zmq, msgspec"])
            .env("PYTHONPATH", &folder)
            .output();
        asked.is_ok_and(|output| output.status.success())
    };
    if folder.is_dir() && import() {
        say("pyzmq, msgspec", "they are there");
        return Ok(());
    }
    python::install_into(workspace, "pyzmq, msgspec", &PACKAGES, &folder)?;
    ensure!(
        import(),
        "Python cannot import zmq and msgspec from {}",
        folder.display()
    );
    Ok(())
}
