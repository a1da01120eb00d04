//! The tests of this folder once more, through a stand-in for CUDA's driver and cuBLASLt (`kernels/standin`): what the
//! emulator is not asked for itself. Contexts, streams, events, graphs, modules, the library's descriptors and staged copies are
//! then the driver's business, as they are on a device, and the two streams run as far apart as CUDA allows.
//!
//! A process loads libraries once, so each order is a process of its own: this very program, told where to find the stand-in.

use super::emulated::compile;
use crate::backend::cuda::driver;
use std::path::PathBuf;
use std::process::Command;

/// Set for a process that finds the stand-in where CUDA would be.
const LOADED: &str = "FOREWORD_STANDIN";

/// Whether this process runs on the stand-in.
pub(super) fn is_loaded() -> bool {
    std::env::var_os(LOADED).is_some()
}

/// A folder with the stand-in under both its names, or why there is none.
fn folder() -> Result<PathBuf, String> {
    let library = compile("standin/driver.cpp")?;
    let folder = library.with_extension("");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["libcuda.so", "libcublasLt.so"] {
        let link = folder.join(name);
        if !link.exists() {
            // Another test may have been faster.
            let _ = std::os::unix::fs::symlink(&library, &link);
            assert!(link.exists(), "{} cannot be made", link.display());
        }
    }
    Ok(folder)
}

/// Runs the tests of the backend on the stand-in.
fn run_with(late: &str) {
    if is_loaded() {
        return;
    }
    if !driver::is_built_in(9, 0) {
        return eprintln!(
            "SKIPPED: the kernels are not built in; `cargo xtask kernels` compiles them"
        );
    }
    let folder = match folder() {
        Ok(folder) => folder,
        Err(reason) => return eprintln!("SKIPPED: {reason}"),
    };
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["cuda::tests::", "--skip", "standin", "--test-threads", "1"])
        .env("LD_LIBRARY_PATH", &folder)
        .env("FOREWORD_LATE", late)
        .env(LOADED, "1")
        .output()
        .unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(!out.contains("running 0 tests"), "{out}");
}

#[test]
fn through_the_driver_with_arithmetic_as_late_as_can_be() {
    run_with("first");
}

#[test]
fn through_the_driver_with_copies_as_late_as_can_be() {
    run_with("second");
}
