//! `cargo xtask image`: the Wasm filter as an OCI image, in a folder that `skopeo`, `oras` or `crane` push as it stands.
//!
//! ```text
//! FOLDER/oci-layout, index.json ─► manifest ─► config
//!                                     └──────► layer: tar.gz with plugin.wasm
//! ```
//!
//! This is the "compat" variant of the Wasm Image Specification
//! (<https://github.com/solo-io/wasm/tree/master/spec>), which Istio's agent and Envoy Gateway fetch: the last layer is
//! an ordinary one and holds a file of that name. No Docker daemon takes part, and the same module gives the same bytes
//! and so the same digest on every machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::build;
use crate::workspace::Workspace;

/// What to make.
#[derive(Args)]
pub(crate) struct Options {
    /// Folder to write; an image that is there already is replaced
    #[arg(long, default_value = "target/image")]
    output: PathBuf,
    /// The image's name in the folder's index
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let module = build::filter(workspace)?;
    let module = fs::read(&module).with_context(|| format!("cannot read {}", module.display()))?;
    let folder = workspace.root().join(&options.output);
    let digest = write(&folder, &module, &options.tag)?;
    eprintln!(
        "push it: skopeo copy oci:{}:{} docker://REGISTRY/foreword/filter:{}",
        options.output.display(),
        options.tag,
        options.tag
    );
    println!("{digest}");
    Ok(())
}

/// Writes the image and returns the manifest's digest, by which a registry names it too.
fn write(folder: &Path, module: &[u8], tag: &str) -> Result<String> {
    let blobs = folder.join("blobs/sha256");
    if blobs.is_dir() {
        fs::remove_dir_all(&blobs).with_context(|| format!("cannot clear {}", blobs.display()))?;
    }
    fs::create_dir_all(&blobs).with_context(|| format!("cannot create {}", blobs.display()))?;

    let tar = archive(module)?;
    let layer = blob(&blobs, LAYER, &compressed(&tar)?)?;
    let config = json!({
        "architecture": "wasm",
        "os": "wasi",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [digest(&tar)]},
    });
    let config = blob(&blobs, CONFIG, config.to_string().as_bytes())?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": [layer],
        "annotations": {
            "module.wasm.image/variant": "compat",
            "org.opencontainers.image.title": "foreword-filter",
            "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
            "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
        },
    });
    let mut manifest = blob(&blobs, MANIFEST, manifest.to_string().as_bytes())?;
    let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]});
    save(&folder.join("index.json"), index.to_string().as_bytes())?;
    let layout = json!({"imageLayoutVersion": "1.0.0"});
    save(&folder.join("oci-layout"), layout.to_string().as_bytes())?;
    Ok(digest)
}

/// A tar with the module under the name that fetchers look for; no time, no owner.
fn archive(module: &[u8]) -> Result<Vec<u8>> {
    let mut header = tar::Header::new_ustar();
    header.set_size(module.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(0);
    let mut tar = tar::Builder::new(Vec::new());
    tar.append_data(&mut header, "plugin.wasm", module)?;
    Ok(tar.into_inner()?)
}

fn compressed(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new()
        .mtime(0)
        .write(Vec::new(), Compression::best());
    std::io::Write::write_all(&mut encoder, bytes)?;
    Ok(encoder.finish()?)
}

/// Writes a blob under its digest and returns its descriptor.
fn blob(blobs: &Path, media_type: &str, bytes: &[u8]) -> Result<Value> {
    let digest = digest(bytes);
    let name = digest.strip_prefix("sha256:").unwrap_or(&digest);
    save(&blobs.join(name), bytes)?;
    Ok(json!({"mediaType": media_type, "digest": digest, "size": bytes.len()}))
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{hex}")
}

fn save(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn json(path: &Path) -> Value {
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    /// Follows a descriptor to its bytes, which must be what it says.
    fn follow(folder: &Path, descriptor: &Value) -> Vec<u8> {
        let named = descriptor["digest"].as_str().unwrap();
        let bytes = fs::read(folder.join("blobs").join(named.replace(':', "/"))).unwrap();
        assert_eq!(digest(&bytes), named);
        assert_eq!(descriptor["size"], bytes.len());
        bytes
    }

    /// As Istio's agent does: the last layer must be a gzipped tar that holds `plugin.wasm`.
    #[test]
    fn a_fetcher_finds_the_module_in_the_last_layer() {
        let folder = tempfile::tempdir().unwrap();
        let module = b"\0asm and more".repeat(1000);
        write(folder.path(), b"an older module", "0.1").unwrap();
        let digest = write(folder.path(), &module, "0.2").unwrap();

        assert_eq!(
            json(&folder.path().join("oci-layout"))["imageLayoutVersion"],
            "1.0.0"
        );
        let index = json(&folder.path().join("index.json"));
        assert_eq!(index["manifests"].as_array().unwrap().len(), 1);
        let entry = &index["manifests"][0];
        assert_eq!(entry["digest"], digest.as_str());
        assert_eq!(
            entry["annotations"]["org.opencontainers.image.ref.name"],
            "0.2"
        );
        let manifest: Value = serde_json::from_slice(&follow(folder.path(), entry)).unwrap();
        assert_eq!(manifest["mediaType"], MANIFEST);
        let config: Value =
            serde_json::from_slice(&follow(folder.path(), &manifest["config"])).unwrap();

        let layer = manifest["layers"].as_array().unwrap().last().unwrap();
        assert_eq!(layer["mediaType"], LAYER);
        let mut tar = Vec::new();
        flate2::read::GzDecoder::new(&*follow(folder.path(), layer))
            .read_to_end(&mut tar)
            .unwrap();
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            super::digest(&tar).as_str()
        );
        let mut archive = tar::Archive::new(&*tar);
        let mut entry = archive.entries().unwrap().next().unwrap().unwrap();
        assert_eq!(entry.path().unwrap().to_str(), Some("plugin.wasm"));
        let mut found = Vec::new();
        entry.read_to_end(&mut found).unwrap();
        assert_eq!(found, module);

        let blobs = fs::read_dir(folder.path().join("blobs/sha256")).unwrap();
        assert_eq!(blobs.count(), 3, "the older image was left behind");
    }

    #[test]
    fn the_same_module_has_the_same_digest() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let digests = [one, two].map(|folder| write(folder.path(), b"module", "1").unwrap());
        assert_eq!(digests[0], digests[1]);
    }
}
