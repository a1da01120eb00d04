//! Locations: the repository's root, cargo's target folder, and the folder of downloaded tools.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The repository on this machine.
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
    members: Vec<PathBuf>,
}

/// The part of `cargo metadata` that is used.
#[derive(Deserialize)]
struct Metadata {
    workspace_root: PathBuf,
    target_directory: PathBuf,
    /// The workspace's members, without dependencies.
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    manifest_path: PathBuf,
}

impl Workspace {
    /// Returns the locations as cargo reports them; it knows `CARGO_TARGET_DIR` and the user's configuration.
    pub(crate) fn find() -> Result<Self> {
        let mut ask = cargo();
        ask.args(["metadata", "--no-deps", "--format-version", "1"]);
        let metadata: Metadata = serde_json::from_str(&output(&mut ask)?)?;
        Ok(Self {
            root: metadata.workspace_root,
            target: metadata.target_directory,
            members: metadata
                .packages
                .into_iter()
                .filter_map(|package| Some(package.manifest_path.parent()?.to_owned()))
                .collect(),
        })
    }

    /// Returns the path of the repository's root.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folders of the workspace's packages.
    pub(crate) fn members(&self) -> &[PathBuf] {
        &self.members
    }

    /// Returns the folder of downloaded tools, which git ignores and which can be deleted.
    pub(crate) fn tools(&self) -> PathBuf {
        self.root.join(".tools")
    }

    /// Returns cargo's target folder.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Returns the folder of `profile`'s artifacts for the native target.
    pub(crate) fn artifacts(&self, profile: &str) -> PathBuf {
        self.target.join(profile_folder(profile))
    }

    /// Returns the folder of `profile`'s artifacts for another target.
    pub(crate) fn artifacts_for(&self, target: &str, profile: &str) -> PathBuf {
        self.target.join(target).join(profile_folder(profile))
    }
}

/// Returns the cargo that runs this program, so that a toolchain chosen on the command line also applies to the steps, without
/// what cargo said of this program's package: build scripts that read it (ring's) would run again at each change between
/// this program and a shell, and all that depend on them would be compiled again.
pub(crate) fn cargo() -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    let is_packages =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_packages) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command without printing it, and returns what it prints.
///
/// # Errors
/// Returns an error with the command's first two words if it cannot be started, fails, or prints other than UTF-8.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output();
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.take(2).map(OsStr::to_string_lossy).collect();
    let name = words.join(" ");
    let output = output.with_context(|| format!("{name} cannot be started"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {errors}");
    String::from_utf8(output.stdout).with_context(|| format!("{name} prints other than UTF-8"))
}

/// Removes what `folder` contains, and creates it if it is missing.
pub(crate) fn empty_folder(folder: &Path) -> Result<()> {
    if folder.is_dir() {
        fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))
}

/// Returns a profile's folder: `debug` for the dev profile, otherwise the profile's name.
fn profile_folder(profile: &str) -> &str {
    match profile {
        "dev" | "test" => "debug",
        "bench" => "release",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_found_with_its_root_manifest() {
        let workspace = Workspace::find().unwrap();
        assert!(workspace.root().join("rust-toolchain.toml").is_file());
        assert!(workspace.artifacts("dev").ends_with("debug"));
        assert!(
            workspace
                .artifacts_for("wasm32-wasip1", "wasm")
                .ends_with("wasm32-wasip1/wasm")
        );
    }
}
