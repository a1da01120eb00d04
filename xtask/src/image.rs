//! `cargo xtask image`: builds the Wasm filter, or the host, as an OCI image.
//!
//! The filter's image is the "compat" variant of the Wasm Image Specification
//! (<https://github.com/solo-io/wasm/tree/master/spec>), which Istio's agent and Envoy Gateway support: the last layer
//! is an ordinary one with a file `plugin.wasm`.
//!
//! The host's image has no base image. It contains `foreword`, the external processor that `foreword ext-proc` runs,
//! and their shared libraries from the build machine. For nodes with a GPU there is a second image:
//!
//! ```text
//!   host        layer 1: programs with their kernels, shared libraries
//!   host-cuda   layer 1, layer 2: cuBLASLt, with NVIDIA's licence and the shared libraries of both cuBLASLt and the driver
//!   node        the driver, which NVIDIA's container toolkit or device plugin mounts
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::oci::{self, Entry, Image, read};
use crate::setup::{self, CublasLt};
use crate::workspace::Workspace;
use crate::{build, kernels};

/// Options of `cargo xtask image`.
#[derive(Args)]
pub(crate) struct Options {
    /// Which program the image holds
    #[arg(long, value_enum, default_value_t = Program::Filter)]
    of: Program,
    /// Folder to write; an image that is there already is replaced
    #[arg(long, default_value = "target/image")]
    output: PathBuf,
    /// The image's name in the folder's index
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum Program {
    /// The Wasm module, as Istio and Envoy Gateway fetch it
    Filter,
    /// `foreword`, with `foreword ext-proc`, for Kubernetes and Podman
    Host,
    /// The same for nodes with a GPU: with cuBLASLt (423 MB to download, once)
    HostCuda,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let (name, image) = match options.of {
        Program::Filter => {
            let module = read(&build::filter(workspace)?)?;
            ("filter", filter(&module)?)
        }
        Program::Host | Program::HostCuda => {
            kernels::embed(workspace)?;
            let foreword = build::host(workspace, "release")?;
            let ext_proc = build::ext_proc(workspace, "release")?;
            let host = host(&foreword, Some(&ext_proc))?;
            match options.of {
                Program::HostCuda => ("host-cuda", with_cuda(host, &setup::cublas_lt(workspace)?)?),
                _ => ("host", host),
            }
        }
    };
    let folder = workspace.root().join(&options.output);
    let digest = image.write(&folder, &options.tag)?;
    eprintln!(
        "push it: skopeo copy oci:{}:{} docker://REGISTRY/foreword/{name}:{}",
        options.output.display(),
        options.tag,
        options.tag
    );
    println!("{digest}");
    Ok(())
}

/// Returns the image of the filter's Wasm module.
pub(crate) fn filter(module: &[u8]) -> Result<Image> {
    Ok(Image {
        platform: json!({"architecture": "wasm", "os": "wasi", "config": {}}),
        annotations: json!({
            "module.wasm.image/variant": "compat",
            "org.opencontainers.image.title": "foreword-filter",
            "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
            "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
        }),
        layers: vec![oci::archive(&[Entry::new("plugin.wasm", module, 0o644)])?],
    })
}

/// Returns the host's image, for this machine's processor, for which `program` was built. It includes the external
/// processor, if there is one.
pub(crate) fn host(program: &Path, ext_proc: Option<&Path>) -> Result<Image> {
    let passwd = b"foreword:x:65532:65532::/:/usr/sbin/nologin\n";
    let mut entries = vec![
        Entry::new("etc/group", b"foreword:x:65532:\n", 0o644),
        Entry::new("etc/passwd", passwd, 0o644),
        Entry::new("usr/local/bin/foreword", read(program)?, 0o755),
    ];
    let mut needed = libraries(program)?;
    if let Some(ext_proc) = ext_proc {
        let path = "usr/local/bin/foreword-gateway";
        entries.push(Entry::new(path, read(ext_proc)?, 0o755));
        needed.extend(libraries(ext_proc)?);
    }
    add_libraries(&mut entries, needed)?;
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    Ok(Image {
        platform: json!({
            "architecture": architecture,
            "os": "linux",
            "config": {
                "User": "65532:65532",
                "Entrypoint": ["/usr/local/bin/foreword"],
                "Env": ["PATH=/usr/local/bin", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
                "ExposedPorts": {"8000/tcp": {}},
            },
        }),
        annotations: json!({
            "org.opencontainers.image.title": "foreword-host",
            "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
            "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
        }),
        layers: vec![oci::archive(&entries)?],
    })
}

/// Adds a layer to the host's image with what it needs to compute on a GPU, except the driver.
pub(crate) fn with_cuda(mut host: Image, cublas: &CublasLt) -> Result<Image> {
    let library = "usr/local/cuda/lib64/libcublasLt.so.13";
    let licence = "usr/share/doc/nvidia-cublas/License.txt";
    let mut entries = vec![
        Entry::new(library, read(&cublas.library)?, 0o755),
        Entry::new(licence, read(&cublas.licence)?, 0o644),
    ];
    // The driver's library needs the same ones.
    add_libraries(&mut entries, libraries(&cublas.library)?)?;
    host.layers.push(oci::archive(&entries)?);
    if let Some(Value::Array(variables)) = host.platform.pointer_mut("/config/Env") {
        variables.push(format!("LD_LIBRARY_PATH={LIBRARY_FOLDERS}").into());
    }
    host.annotations["org.opencontainers.image.title"] = json!("foreword-host-cuda");
    host.annotations["org.opencontainers.image.licenses"] = json!(concat!(
        env!("CARGO_PKG_LICENSE"),
        " AND LicenseRef-NVIDIA-CUDA-EULA"
    ));
    Ok(host)
}

/// Where the CUDA image has cuBLASLt, and where container toolkits and device plugins mount the driver's library: an
/// image without a distribution has no list of folders for the loader.
const LIBRARY_FOLDERS: &str =
    "/usr/local/cuda/lib64:/usr/local/nvidia/lib64:/usr/lib64:/usr/lib/x86_64-linux-gnu";

/// Adds libraries of this machine under their own paths.
fn add_libraries(entries: &mut Vec<Entry<'_>>, mut paths: Vec<String>) -> Result<()> {
    paths.sort();
    paths.dedup();
    for path in paths {
        let bytes = read(Path::new(&path))?;
        entries.push(Entry::new(path.trim_start_matches('/'), bytes, 0o755));
    }
    Ok(())
}

/// Returns the paths of the loader and of the libraries that it would load for a program or a library.
fn libraries(program: &Path) -> Result<Vec<String>> {
    let output = Command::new("ldd")
        .arg(program)
        .env("LC_ALL", "C")
        .output()
        .context("ldd cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && !text.contains("not found"),
        "ldd {}: {}{text}",
        program.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    // `libm.so.6 => /lib/…/libm.so.6 (0x…)` or `/lib64/ld-linux-x86-64.so.2 (0x…)`; the kernel's own has no path.
    let paths = text.lines().filter_map(|line| {
        let line = line.trim();
        let path = line.split_once(" => ").map_or(line, |(_, path)| path);
        let path = path.split(" (").next()?.trim();
        path.starts_with('/').then(|| path.to_owned())
    });
    let mut paths: Vec<String> = paths.collect();
    // Before glibc 2.34, names are resolved by libraries that it loads at run time, which stand beside it.
    let libc = paths.iter().find(|path| path.ends_with("/libc.so.6"));
    let folder = libc.map(|libc| Path::new(libc).with_file_name(""));
    let resolvers = ["libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2"];
    for resolver in folder
        .iter()
        .flat_map(|folder| resolvers.map(|name| folder.join(name)))
    {
        let path = resolver.display().to_string();
        if resolver.is_file() && !paths.contains(&path) {
            paths.push(path);
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;

    fn json(path: &Path) -> Value {
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    /// Returns the bytes that a descriptor refers to, after checking their size and digest.
    fn follow(folder: &Path, descriptor: &Value) -> Vec<u8> {
        let named = descriptor["digest"].as_str().unwrap();
        let bytes = fs::read(folder.join("blobs").join(named.replace(':', "/"))).unwrap();
        assert_eq!(oci::digest(&bytes), named);
        assert_eq!(descriptor["size"], bytes.len());
        bytes
    }

    /// Reads the image like Istio's agent: the last layer must be a gzipped tar with `plugin.wasm`.
    #[test]
    fn a_fetcher_finds_the_module_in_the_last_layer() {
        let folder = tempfile::tempdir().unwrap();
        let module = b"\0asm and more".repeat(1000);
        filter(b"an older module")
            .unwrap()
            .write(folder.path(), "0.1")
            .unwrap();
        let digest = filter(&module)
            .unwrap()
            .write(folder.path(), "0.2")
            .unwrap();

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
        assert_eq!(manifest["mediaType"], oci::MANIFEST);
        let config: Value =
            serde_json::from_slice(&follow(folder.path(), &manifest["config"])).unwrap();

        let layer = manifest["layers"].as_array().unwrap().last().unwrap();
        assert_eq!(layer["mediaType"], oci::LAYER);
        let mut tar = Vec::new();
        flate2::read::GzDecoder::new(&*follow(folder.path(), layer))
            .read_to_end(&mut tar)
            .unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], oci::digest(&tar).as_str());
        let mut archive = tar::Archive::new(&*tar);
        let mut entry = archive.entries().unwrap().next().unwrap().unwrap();
        assert_eq!(entry.path().unwrap().to_str(), Some("plugin.wasm"));
        let mut found = Vec::new();
        entry.read_to_end(&mut found).unwrap();
        assert_eq!(found, module);

        let blobs = fs::read_dir(folder.path().join("blobs/sha256")).unwrap();
        assert_eq!(blobs.count(), 3, "the older image was left behind");
    }

    /// Only the image's files are the root: the program finds its loader and libraries there.
    #[test]
    fn a_hosts_image_runs_by_itself() {
        let root = tempfile::tempdir().unwrap();
        let image = host(Path::new("/bin/echo"), Some(Path::new("/bin/cat"))).unwrap();
        for layer in with_cuda(image, &stand_in()).unwrap().layers {
            tar::Archive::new(&*layer).unpack(root.path()).unwrap();
        }
        let output = std::process::Command::new("unshare")
            .args(["--user", "--map-root-user", "chroot"])
            .arg(root.path())
            .args(["/usr/local/bin/foreword", "it runs"])
            .output();
        match output {
            Ok(output) if output.status.success() => assert_eq!(output.stdout, b"it runs\n"),
            Ok(output) => {
                let error = String::from_utf8_lossy(&output.stderr);
                assert!(
                    error.starts_with("unshare:"),
                    "the image's program does not start: {error}"
                );
                eprintln!("SKIPPED: no user namespaces here: {error}");
            }
            Err(error) => eprintln!("SKIPPED: no `unshare` here: {error}"),
        }
    }

    /// Returns a library and a licence of this machine in place of NVIDIA's.
    fn stand_in() -> CublasLt {
        CublasLt {
            library: "/bin/ls".into(),
            licence: "/etc/passwd".into(),
        }
    }

    #[test]
    fn an_image_for_gpus_adds_a_layer_and_the_folders_of_libraries() {
        let plain = host(Path::new("/bin/echo"), None).unwrap();
        let programs = plain.layers.clone();
        let folder = tempfile::tempdir().unwrap();
        let image = with_cuda(plain, &stand_in()).unwrap();
        assert_eq!(
            image.layers[..1],
            programs,
            "the layer of programs is shared"
        );
        let tars: Vec<String> = image
            .layers
            .iter()
            .map(|layer| oci::digest(layer))
            .collect();
        let mut archive = tar::Archive::new(&*image.layers[1]);
        let paths: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(
            paths[..2],
            [
                "usr/local/cuda/lib64/libcublasLt.so.13",
                "usr/share/doc/nvidia-cublas/License.txt"
            ]
        );
        assert!(
            paths.iter().any(|path| path.ends_with("/libc.so.6")),
            "{paths:?}"
        );

        image.write(folder.path(), "1").unwrap();
        let index = json(&folder.path().join("index.json"));
        let manifest: Value =
            serde_json::from_slice(&follow(folder.path(), &index["manifests"][0])).unwrap();
        assert_eq!(manifest["layers"].as_array().unwrap().len(), 2);
        let config: Value =
            serde_json::from_slice(&follow(folder.path(), &manifest["config"])).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"], json!(tars));
        let variables = config["config"]["Env"].to_string();
        assert!(
            variables.contains("LD_LIBRARY_PATH=/usr/local/cuda/lib64:"),
            "{variables}"
        );
    }

    #[test]
    fn a_program_that_is_not_linked_here_is_named() {
        let error = host(Path::new("/no/such/program"), None).err().unwrap();
        assert!(format!("{error:#}").contains("/no/such/program"));
    }

    #[test]
    fn the_same_module_has_the_same_digest() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let digests = [one, two].map(|folder| {
            filter(b"module")
                .unwrap()
                .write(folder.path(), "1")
                .unwrap()
        });
        assert_eq!(digests[0], digests[1]);
    }
}
