//! `cargo xtask release`: builds all files of a release in one folder.
//!
//! ```text
//! foreword-VERSION-ARCH-linux.tar.gz   host and its programs, filter, order modules, dynamic module, gateway-config, documents
//! foreword-filter-VERSION.oci.tar      the filter as an OCI image, for Istio and Envoy Gateway
//! foreword-host-VERSION-ARCH.oci.tar   the host as an OCI image
//! foreword-host-cuda-VERSION-ARCH.oci.tar   the same for GPUs, with cuBLASLt; on x86-64 alone
//! foreword-VERSION.cdx.json            what the host was built from (CycloneDX)
//! foreword-filter-VERSION.cdx.json     what the filter was built from
//! SHA256SUMS                           of the files above
//! ```
//!
//! Two runs of the same commit give the same bytes: archives contain no time and no owner, the programs none of the
//! builder's paths, and the lists of components no serial number.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::oci::{self, Entry, Image};
use crate::step::Step;
use crate::workspace::Workspace;
use crate::{build, image, kernels, setup};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The arguments of `cargo xtask release`.
#[derive(Args)]
pub(crate) struct Options {
    /// Folder to write; a release that is there already is replaced
    #[arg(long, default_value = "target/dist")]
    output: PathBuf,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    setup::for_demo(workspace)?;
    let folder = workspace.root().join(&options.output);
    if folder.is_dir() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;

    kernels::embed(workspace)?;
    let filter = read(&build::filter(workspace)?)?;
    let build::Shipped {
        dynamic,
        host,
        programs,
    } = build::for_release(workspace)?;
    let host_components = components(workspace, "host/daemon", &build::host_triple()?)?;
    let filter_components = components(workspace, "wasm-module/filter", build::FILTER_TARGET)?;

    let mut entries = vec![
        file("foreword", read(&host)?, 0o755),
        file("foreword.cdx.json", host_components.clone(), 0o644),
        file("foreword_filter.wasm", filter.clone(), 0o644),
        file("libforeword_dynamic.so", read(&dynamic)?, 0o755),
    ];
    for (program, path) in build::PROGRAMS.into_iter().zip(&programs) {
        let list = components(workspace, program.folder, &build::host_triple()?)?;
        entries.push(file(program.name, read(path)?, 0o755));
        entries.push(file(&format!("{}.cdx.json", program.name), list, 0o644));
    }
    for path in documents(workspace)? {
        let bytes = read(&workspace.root().join(&path))?;
        entries.push(file(&path, bytes, 0o644));
    }
    let arch = std::env::consts::ARCH;
    let name = format!("foreword-{VERSION}-{arch}-linux");
    for entry in &mut entries {
        entry.path = format!("{name}/{}", entry.path);
    }
    entries.sort_by(|one, other| one.path.cmp(&other.path));

    let mut release = Release {
        folder: &folder,
        sums: String::new(),
    };
    let archive = oci::compressed(&oci::archive(&entries)?)?;
    release.add(&format!("{name}.tar.gz"), &archive)?;
    let name = format!("foreword-filter-{VERSION}.oci.tar");
    release.add(&name, &packed(image::filter(&filter)?)?)?;
    let image = image::host(&host, Some(&programs[0]))?;
    let name = format!("foreword-host-{VERSION}-{arch}.oci.tar");
    release.add(&name, &packed(image.clone())?)?;
    if setup::HAS_WHEELS {
        let image = image::with_cuda(image, &setup::cublas_lt(workspace)?)?;
        let name = format!("foreword-host-cuda-{VERSION}-{arch}.oci.tar");
        release.add(&name, &packed(image)?)?;
    }
    release.add(&format!("foreword-{VERSION}.cdx.json"), &host_components)?;
    release.add(
        &format!("foreword-filter-{VERSION}.cdx.json"),
        &filter_components,
    )?;
    fs::write(folder.join("SHA256SUMS"), &release.sums)?;
    print!("{}", release.sums);
    Ok(())
}

/// A release in progress.
struct Release<'a> {
    folder: &'a Path,
    /// A line per file in the format of `sha256sum`.
    sums: String,
}

impl Release<'_> {
    fn add(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.folder.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(self.sums, "{}  {name}", oci::sha256(bytes))?;
        Ok(())
    }
}

/// Returns an image's folder as one file, for `skopeo copy oci-archive:FILE …`.
fn packed(image: Image) -> Result<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    image.write(folder.path(), VERSION)?;
    let mut entries = Vec::new();
    for path in ["oci-layout", "index.json"] {
        entries.push(file(path, read(&folder.path().join(path))?, 0o644));
    }
    let mut blobs = Vec::new();
    for blob in fs::read_dir(folder.path().join("blobs/sha256"))? {
        let name = blob?.file_name().to_string_lossy().into_owned();
        blobs.push(format!("blobs/sha256/{name}"));
    }
    blobs.sort();
    for path in blobs {
        let bytes = read(&folder.path().join(&path))?;
        entries.push(file(&path, bytes, 0o644));
    }
    oci::archive(&entries)
}

/// Returns the tracked documents and configurations in a release, as paths from the root.
fn documents(workspace: &Workspace) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--"])
        .args([
            "gateway-config",
            "docs",
            "LICENSE",
            "*.md",
            ":!:tests",
            ":!:benches",
        ])
        .current_dir(workspace.root())
        .output()
        .context("git cannot be started")?;
    ensure!(
        output.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let names = String::from_utf8(output.stdout)?;
    let names: Vec<String> = names
        .split_terminator('\0')
        .map(ToOwned::to_owned)
        .collect();
    ensure!(
        names.iter().any(|name| name == "LICENSE"),
        "a release is made in a git checkout: git lists no LICENSE here"
    );
    Ok(names)
}

/// Returns the components of the package in `folder` for `target`, as CycloneDX JSON.
fn components(workspace: &Workspace, folder: &str, target: &str) -> Result<Vec<u8>> {
    const NAME: &str = "foreword-components";
    let program = setup::cyclonedx(workspace)?;
    let manifest = workspace.root().join(folder).join("Cargo.toml");
    let manifest = manifest.to_string_lossy();
    let arguments = [
        "cyclonedx",
        "--quiet",
        "--manifest-path",
        &*manifest,
        "--format",
        "json",
        "--no-build-deps",
        "--target",
        target,
        "--spec-version",
        "1.5",
        "--override-filename",
        NAME,
    ];
    // With a given time, it writes that time and no random serial number.
    let made = Step::program("components", workspace.root(), &program, &arguments)
        .env("SOURCE_DATE_EPOCH", &commit_time(workspace)?)
        .run();
    let file = format!("{NAME}.json");
    let bytes = made.and_then(|()| read(&workspace.root().join(folder).join(&file)));
    // It writes a list next to each manifest of the workspace.
    for member in workspace.members() {
        let _ = fs::remove_file(member.join(&file));
    }
    let root = workspace.root().to_string_lossy();
    let text = String::from_utf8(bytes?)?.replace(&*root, "");
    ensure!(
        text.contains("CycloneDX"),
        "cargo-cyclonedx wrote something else"
    );
    Ok(text.into_bytes())
}

/// Returns the time of the checked-out commit, in seconds since 1970.
fn commit_time(workspace: &Workspace) -> Result<String> {
    let output = Command::new("git")
        .args(["log", "-1", "--format=%ct"])
        .current_dir(workspace.root())
        .output()
        .context("git cannot be started")?;
    ensure!(
        output.status.success(),
        "a release is made in a git checkout"
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn file(path: &str, bytes: Vec<u8>, mode: u32) -> Entry<'static> {
    Entry {
        path: path.to_owned(),
        bytes: Cow::Owned(bytes),
        mode,
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_packs_to_the_same_bytes_every_time() {
        let pack = || packed(image::filter(b"module").unwrap()).unwrap();
        assert_eq!(pack(), pack());
        let mut archive = tar::Archive::new(std::io::Cursor::new(pack()));
        let paths: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(paths[..2], ["oci-layout", "index.json"]);
        assert_eq!(paths.len(), 5, "{paths:?}");
    }

    #[test]
    fn sums_are_as_sha256sum_checks_them() {
        let folder = tempfile::tempdir().unwrap();
        let mut release = Release {
            folder: folder.path(),
            sums: String::new(),
        };
        release.add("a", b"x").unwrap();
        release.add("b", b"").unwrap();
        fs::write(folder.path().join("SHA256SUMS"), &release.sums).unwrap();
        let status = Command::new("sha256sum")
            .args(["--check", "--quiet", "SHA256SUMS"])
            .current_dir(folder.path())
            .status()
            .unwrap();
        assert!(status.success());
    }

    #[test]
    fn the_documents_are_those_that_users_read() {
        let documents = documents(&Workspace::find().unwrap()).unwrap();
        for needed in ["LICENSE", "README.md", "gateway-config/envoy/envoy.yaml"] {
            assert!(documents.iter().any(|name| name == needed), "{needed}");
        }
        assert!(!documents.iter().any(|name| name.starts_with("benches/")));
    }
}
