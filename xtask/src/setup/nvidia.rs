//! NVIDIA's libraries from their PyPI wheels: the kernel compiler NVRTC, and cuBLASLt, which computes matrix products.
//! Opening them needs neither a device nor a driver.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::wheel::Source;
use crate::workspace::Workspace;

const NVRTC: Source<2> = Source {
    name: "nvrtc",
    requirement: "nvidia-cuda-nvrtc==13.0.88",
    sha256: "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
    folder: "",
    files: [
        "nvidia/cu13/lib/libnvrtc.so.13",
        "nvidia/cu13/lib/libnvrtc-builtins.so.13.0",
    ],
    home: "nvrtc",
};

const CUBLAS: Source<2> = Source {
    name: "cublas",
    requirement: "nvidia-cublas==13.1.0.3",
    sha256: "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171",
    folder: "",
    files: [
        "nvidia/cu13/lib/libcublasLt.so.13",
        "nvidia_cublas-13.1.0.3.dist-info/licenses/License.txt",
    ],
    home: "cublas",
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
    ensure!(
        HAS_WHEELS,
        "the wheel of {} is pinned for x86-64 Linux alone",
        source.requirement
    );
    source.install(workspace)
}

/// True on x86-64 Linux, the platform of the pinned wheels.
pub(crate) const HAS_WHEELS: bool = cfg!(all(target_os = "linux", target_arch = "x86_64"));
