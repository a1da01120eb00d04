//! Starlette with uvicorn, and h2: the tests of paths send their spellings to what vLLM and SGLang serve with.

use std::process::Command;

use anyhow::{Result, ensure};

use super::{python, say};
use crate::workspace::Workspace;

const REQUIREMENTS: &str = "xtask/src/setup/starlette.txt";

/// Installs them into a folder of their own, unless this Python can import them there already.
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
