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

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::oci::{self, Entry, Image, read};
use crate::step::Step;
use crate::workspace::{Workspace, empty_folder, output};
use crate::{build, image, kernels, setup};

/// The file with a release's checksums.
const SUMS: &str = "SHA256SUMS";
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
    ensure!(
        folder.starts_with(workspace.target()) || holds_a_release_alone(&folder)?,
        "{} holds other files than a release's ({SUMS} lists those): name another folder",
        folder.display()
    );
    empty_folder(&folder)?;

    kernels::embed(workspace)?;
    let filter = read(&build::filter(workspace)?)?;
    let shipped = build::for_release(workspace)?;
    let host_components = components(workspace, "host/daemon", &build::host_triple()?)?;
    let filter_components = components(workspace, "wasm-module/filter", build::FILTER_TARGET)?;

    let mut entries = vec![
        Entry::new("foreword", read(&shipped.host)?, 0o755),
        Entry::new("foreword.cdx.json", host_components.clone(), 0o644),
        Entry::new("foreword_filter.wasm", filter.clone(), 0o644),
        Entry::new("libforeword_dynamic.so", read(&shipped.dynamic)?, 0o755),
    ];
    for (program, path) in build::PROGRAMS.into_iter().zip(&shipped.programs) {
        let list = components(workspace, program.folder, &build::host_triple()?)?;
        entries.push(Entry::new(program.name, read(path)?, 0o755));
        entries.push(Entry::new(
            &format!("{}.cdx.json", program.name),
            list,
            0o644,
        ));
    }
    for path in documents(workspace)? {
        let bytes = read(&workspace.root().join(&path))?;
        entries.push(Entry::new(&path, bytes, 0o644));
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
    let image = image::host(&shipped.host, Some(&shipped.programs[0]))?;
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
    fs::write(folder.join(SUMS), &release.sums)?;
    print!("{}", release.sums);
    Ok(())
}

/// Returns whether `folder` is missing or has no files but those of a release.
fn holds_a_release_alone(folder: &Path) -> Result<bool> {
    if !folder.exists() {
        return Ok(true);
    }
    let sums = fs::read_to_string(folder.join(SUMS)).unwrap_or_default();
    let listed: Vec<&str> = sums
        .lines()
        .filter_map(|line| Some(line.split_once("  ")?.1))
        .collect();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if name != SUMS && !listed.iter().any(|listed| name == *listed) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A release in progress.
struct Release<'a> {
    folder: &'a Path,
    /// A line per file in the format of `sha256sum`.
    sums: String,
}

impl Release<'_> {
    fn add(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        oci::save(&self.folder.join(name), bytes)?;
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
        entries.push(Entry::new(path, read(&folder.path().join(path))?, 0o644));
    }
    let mut blobs = Vec::new();
    for blob in fs::read_dir(folder.path().join("blobs/sha256"))? {
        let name = blob?.file_name().to_string_lossy().into_owned();
        blobs.push(format!("blobs/sha256/{name}"));
    }
    blobs.sort();
    for path in blobs {
        let bytes = read(&folder.path().join(&path))?;
        entries.push(Entry::new(&path, bytes, 0o644));
    }
    oci::archive(&entries)
}

/// Returns the tracked documents and configurations in a release, as paths from the root.
fn documents(workspace: &Workspace) -> Result<Vec<String>> {
    let mut list = Command::new("git");
    list.args(["ls-files", "-z", "--"])
        .args(["gateway-config", "docs", "LICENSE", "*.md"])
        .args([":!:tests", ":!:benches"])
        .current_dir(workspace.root());
    let names = output(&mut list)?;
    let names = names.split_terminator('\0').map(ToOwned::to_owned);
    let names: Vec<String> = names.collect();
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
    // With a given time, it writes that time and no random serial number.
    let made = Step::program(
        "components",
        workspace.root(),
        &program,
        "cyclonedx --quiet",
    )
    .args([OsStr::new("--manifest-path"), manifest.as_os_str()])
    .args(["--format", "json", "--no-build-deps", "--target", target])
    .args(["--spec-version", "1.5", "--override-filename", NAME])
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
    let mut log = Command::new("git");
    log.args(["log", "-1", "--format=%ct"])
        .current_dir(workspace.root());
    let time = output(&mut log).context("a release is made in a git checkout")?;
    Ok(time.trim().to_owned())
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
