//! Starlette with uvicorn, and h2: the tests send spellings of paths to the HTTP stack of vLLM and SGLang.

use std::process::Command;

use anyhow::{Result, ensure};

use super::{python, say};
use crate::workspace::Workspace;

const REQUIREMENTS: &str = "xtask/src/setup/starlette.txt";

/// Installs the packages into their own folder, unless this Python can import them from there.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    let folder = workspace.tools().join("starlette");
    let import = || {
        let asked = Command::new(python::PYTHON)
            .args([
                "-c",
                "import starlette.applications, uvicorn, h2.connection",
            ])
            .env("PYTHONPATH", &folder)
            .output();
        asked.is_ok_and(|output| output.status.success())
    };
    if folder.is_dir() && import() {
        say("starlette", "it is there");
        return Ok(());
    }
    python::install_locked(workspace, "starlette", REQUIREMENTS, &folder)?;
    ensure!(
        import(),
        "Python cannot import starlette, uvicorn and h2 from {}",
        folder.display()
    );
    Ok(())
}
