//! NVRTC, NVIDIA's kernel compiler, from its PyPI wheel. The library needs neither a device nor a driver.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use super::{say, wheel};
use crate::workspace::Workspace;

const REQUIREMENT: &str = "nvidia-cuda-nvrtc==13.0.88";
/// The checksum of the wheel for x86-64 Linux.
const SHA256: &str = "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575";

/// The compiler's libraries: the one to open, and the one that it loads by name.
pub(crate) struct Nvrtc {
    pub(crate) library: PathBuf,
    pub(crate) builtins: PathBuf,
}

/// Installs the compiler in `.tools/nvrtc`, unless it is present.
pub(crate) fn install(workspace: &Workspace) -> Result<Nvrtc> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("NVRTC's wheel is pinned for x86-64 Linux alone");
    }
    let home = workspace.tools().join("nvrtc");
    let nvrtc = libraries(&home);
    if nvrtc.library.is_file() && nvrtc.builtins.is_file() {
        say("nvrtc", &format!("{REQUIREMENT} is there"));
        return Ok(nvrtc);
    }
    wheel::unpack(workspace, "nvrtc", REQUIREMENT, &[SHA256], &home)?;
    ensure!(
        nvrtc.library.is_file() && nvrtc.builtins.is_file(),
        "the wheel of {REQUIREMENT} holds no {}",
        nvrtc.library.display()
    );
    say("nvrtc", &format!("installed in {}", home.display()));
    Ok(nvrtc)
}

fn libraries(home: &Path) -> Nvrtc {
    let folder = home.join("nvidia/cu13/lib");
    Nvrtc {
        library: folder.join("libnvrtc.so.13"),
        builtins: folder.join("libnvrtc-builtins.so.13.0"),
    }
}
