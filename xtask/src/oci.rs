//! OCI images in a folder that `skopeo`, `oras` or `crane` can push, without a Docker daemon.
//!
//! ```text
//! FOLDER/oci-layout, index.json ─► manifest ─► config
//!                                     └──────► layers: tar.gz
//! ```
//!
//! The same files give the same bytes, and so the same digest, on every machine: archives contain no time and no owner.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::workspace::empty_folder;

/// An image of layers.
#[derive(Clone)]
pub(crate) struct Image {
    /// `architecture`, `os` and `config` of the image's configuration.
    pub(crate) platform: Value,
    pub(crate) annotations: Value,
    /// Each layer's files as an uncompressed tar: see [`archive`]. The first layer is the lowest.
    pub(crate) layers: Vec<Vec<u8>>,
}

/// A file of an archive.
pub(crate) struct Entry<'a> {
    /// Path in the archive, without a leading `/`.
    pub(crate) path: String,
    pub(crate) bytes: Cow<'a, [u8]>,
    pub(crate) mode: u32,
}

impl<'a> Entry<'a> {
    pub(crate) fn new(path: &str, bytes: impl Into<Cow<'a, [u8]>>, mode: u32) -> Self {
        let (path, bytes) = (path.to_owned(), bytes.into());
        Self { path, bytes, mode }
    }
}

impl Image {
    /// Writes the image to `folder` under `tag`, replacing an existing one. Returns the manifest's digest, by which
    /// registries identify the image.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be written.
    pub(crate) fn write(self, folder: &Path, tag: &str) -> Result<String> {
        let blobs = folder.join("blobs/sha256");
        empty_folder(&blobs)?;

        let (mut layers, mut uncompressed) = (Vec::new(), Vec::new());
        for layer in &self.layers {
            layers.push(blob(&blobs, LAYER, &compressed(layer)?)?);
            uncompressed.push(digest(layer));
        }
        let mut config = self.platform;
        config["rootfs"] = json!({"type": "layers", "diff_ids": uncompressed});
        let config = blob(&blobs, CONFIG, config.to_string().as_bytes())?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": layers,
            "annotations": self.annotations,
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
}

/// Returns a tar of these files, in order, without times and owners.
///
/// # Errors
/// Returns an error if a path is too long for a tar header.
pub(crate) fn archive(entries: &[Entry<'_>]) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_ustar();
        header.set_size(entry.bytes.len() as u64);
        header.set_mode(entry.mode);
        header.set_mtime(0);
        tar.append_data(&mut header, &entry.path, &*entry.bytes)
            .with_context(|| format!("cannot pack {}", entry.path))?;
    }
    Ok(tar.into_inner()?)
}

/// Compresses the bytes with gzip, without a time or a name. More than 256 MiB are compressed fast: only NVIDIA's
/// libraries are so large, and they are mostly compressed already.
///
/// # Errors
/// Writing to a buffer in memory cannot fail.
pub(crate) fn compressed(bytes: &[u8]) -> Result<Vec<u8>> {
    let level = match bytes.len() {
        0..=0x1000_0000 => Compression::best(),
        _ => Compression::fast(),
    };
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), level);
    std::io::Write::write_all(&mut encoder, bytes)?;
    Ok(encoder.finish()?)
}

/// Returns the SHA-256 of the bytes in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes' digest in registries' format.
pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", sha256(bytes))
}

/// Writes a blob under its digest and returns its descriptor.
fn blob(blobs: &Path, media_type: &str, bytes: &[u8]) -> Result<Value> {
    let digest = digest(bytes);
    let name = digest.strip_prefix("sha256:").unwrap_or(&digest);
    save(&blobs.join(name), bytes)?;
    Ok(json!({"mediaType": media_type, "digest": digest, "size": bytes.len()}))
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

pub(crate) fn save(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
