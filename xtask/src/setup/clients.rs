//! The official SDKs of OpenAI and Anthropic (20 MB of wheels), with which the tests read the server's answers.

use std::process::Command;

use anyhow::{Result, ensure};

use super::{python, say};
use crate::workspace::Workspace;

/// Both SDKs and their dependencies.
const PACKAGES: [&str; 17] = [
    "openai==3.54.0",
    "anthropic==2.12.0",
    "annotated-types==0.8.0",
    "anyio==4.16.0",
    "docstring_parser==0.18.0",
    "h11==0.16.0",
    "httpcore2==2.16.2",
    "httpx2==2.16.2",
    "idna==3.20",
    "jiter==0.19.0",
    "opentelemetry-api==1.45.2",
    "pydantic==2.14.3",
    "pydantic_core==2.50.4",
    "sniffio==1.3.1",
    "truststore==0.10.5",
    "typing_extensions==4.16.0",
    "typing-inspection==0.4.5",
];

/// Installs the SDKs into their own folder, unless this Python can import them from there.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    let folder = workspace.tools().join("clients");
    let import = || {
        let asked = Command::new(python::PYTHON)
            .args(["-c", "import openai, anthropic"])
            .env("PYTHONPATH", &folder)
            .output();
        asked.is_ok_and(|output| output.status.success())
    };
    if folder.is_dir() && import() {
        say("openai, anthropic", "they are there");
        return Ok(());
    }
    python::install_into(workspace, "openai, anthropic", &PACKAGES, &folder)?;
    ensure!(
        import(),
        "Python cannot import openai and anthropic from {}",
        folder.display()
    );
    Ok(())
}
