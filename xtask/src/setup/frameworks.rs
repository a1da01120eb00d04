//! RAG frameworks and their SDKs (240 MB), whose requests the tests send through a gateway.

use std::process::Command;

use anyhow::{Result, ensure};

use super::{python, say};
use crate::workspace::Workspace;

const REQUIREMENTS: &str = "xtask/src/setup/frameworks.txt";

/// Imports a package of each framework, which imports the others.
const IMPORTS: &str = "import openai, cohere, langchain_openai, langchain_classic.chains, llama_index.llms.openai_like, \
                       haystack.components.generators.chat";

/// Installs the frameworks into their own folder, unless they were installed from the same list.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    let folder = workspace.tools().join("frameworks");
    let wanted = std::fs::read_to_string(workspace.root().join(REQUIREMENTS))?;
    // Written last, so that an interrupted installation does not look complete.
    let installed = folder.join("installed.txt");
    if std::fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        say("frameworks", "as frameworks.txt says");
        return Ok(());
    }
    let listed = ["--requirement", REQUIREMENTS];
    python::install(workspace, "frameworks", &listed, &folder)?;
    let import = Command::new(python::PYTHON)
        .args(["-c", IMPORTS])
        .env("PYTHONPATH", &folder)
        .env("HAYSTACK_TELEMETRY_ENABLED", "False")
        .output()?;
    ensure!(
        import.status.success(),
        "Python cannot import the frameworks from {}: {}",
        folder.display(),
        String::from_utf8_lossy(&import.stderr)
    );
    Ok(std::fs::write(&installed, wanted)?)
}
