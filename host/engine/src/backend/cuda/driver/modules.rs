//! The kernels' code: embedded for known architectures, otherwise compiled on first use and cached on disk.
//!
//! ```text
//!   embedded (`cargo xtask kernels`) ──▶ ┐    machine code, or PTX that the driver compiles
//!   cached from an earlier start ──────▶ ├─▶ a module, its functions by name
//!   NVRTC, some seconds ───────────────▶ ┘
//! ```

use super::super::device::Fault;
use super::words;
use cudarc::driver::result;
use cudarc::driver::sys;
use cudarc::nvrtc::sys as nvrtc;
use fxhash::FxHashMap;
use std::ffi::{CString, c_char};
use std::panic::catch_unwind;
use std::path::PathBuf;

mod embedded {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// The loaded CUDA module with the kernels, and those of its functions that have been looked up.
pub(super) struct Modules {
    module: sys::CUmodule,
    /// True if the module has kernels that multiply by warpgroups (groups of four warps).
    pub(super) warpgroups: bool,
    /// Kernels by name, each with the bytes of dynamic shared memory that its launches are allowed so far.
    functions: FxHashMap<&'static str, (sys::CUfunction, u32)>,
}

/// Bytes of dynamic shared memory that a launch may have without setting the function's attribute.
const DEFAULT_SHARED: u32 = 48 << 10;

impl Modules {
    /// Loads the kernels for a compute capability: embedded ones, or else compiled or cached ones. The device's context
    /// must be current.
    pub(super) fn load(major: u32, minor: u32) -> Result<Self, Fault> {
        let (architecture, code) = match embedded_for(major, minor) {
            Some((architecture, code)) => (architecture.to_owned(), code.to_vec()),
            None => {
                let own = own_architecture(major, minor);
                let code = compiled(&own).map_err(Fault::Refused)?;
                (own, code)
            }
        };
        // SAFETY: the image is a whole module of machine code, or PTX that ends with a zero byte.
        let module = unsafe { result::module::load_data(code.as_ptr().cast()) }?;
        Ok(Self {
            module,
            warpgroups: architecture == WARPGROUPS && std::env::var_os(NO_WARPGROUPS).is_none(),
            functions: FxHashMap::default(),
        })
    }

    /// Returns the kernel with this name, allowed to be launched with `shared` bytes of dynamic shared memory. Looks it
    /// up on first use.
    pub(super) fn function(
        &mut self,
        name: &'static str,
        shared: u32,
    ) -> Result<sys::CUfunction, Fault> {
        let (function, allowed) = match self.functions.get(name) {
            Some(known) => *known,
            None => {
                let symbol =
                    CString::new(name).map_err(|error| Fault::Refused(error.to_string()))?;
                // SAFETY: the module is loaded.
                let function = unsafe { result::module::get_function(self.module, symbol) }
                    .map_err(|error| Fault::Refused(format!("kernel {name}: {}", words(error))))?;
                (function, DEFAULT_SHARED)
            }
        };
        if shared > allowed {
            let attribute =
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is of our module.
            unsafe { result::function::set_function_attribute(function, attribute, shared as i32) }
                .map_err(|error| {
                    Fault::Refused(format!(
                        "kernel {name} with {shared} bytes of shared memory: {}",
                        words(error)
                    ))
                })?;
        }
        self.functions.insert(name, (function, allowed.max(shared)));
        Ok(function)
    }

    /// Removes the module and its kernels from the device. An error of the driver is ignored.
    ///
    /// # Safety
    /// None of the module's kernels may be running, and none may be launched afterwards.
    pub(super) unsafe fn close(&mut self) {
        // SAFETY: the caller's promise.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

/// Environment variable that disables the kernels that multiply by warpgroups; kernels that use warps take their place.
const NO_WARPGROUPS: &str = "FOREWORD_NO_WARPGROUPS";

/// The only architecture with warpgroup instructions: later devices lack them, and code for plain `sm_90` may not use
/// them.
const WARPGROUPS: &str = "sm_90a";

/// Returns the name of the architecture to compile for so that the code runs on devices of this compute capability.
fn own_architecture(major: u32, minor: u32) -> String {
    match (major, minor) {
        (9, 0) => WARPGROUPS.to_owned(),
        _ => format!("sm_{major}{minor}"),
    }
}

/// The architecture of the embedded PTX, which drivers compile for devices of later major versions.
const PTX: &str = "compute_90";

/// Returns embedded code that runs on devices of this compute capability, with its architecture: machine code for
/// exactly this capability, else for the first one of the same major version, else, above major version 9, PTX. `None`
/// if there is no such code.
pub(super) fn embedded_for(major: u32, minor: u32) -> Option<(&'static str, &'static [u8])> {
    let named = |wanted: &str| embedded::MODULES.iter().find(|(name, _)| *name == wanted);
    named(&own_architecture(major, minor))
        .or_else(|| named(&format!("sm_{major}0")))
        .or_else(|| named(PTX).filter(|_| major > 9))
        .copied()
}

/// Returns an error when there is neither embedded code for a compute capability nor NVRTC to compile it.
pub(super) fn obtainable(major: u32, minor: u32) -> Result<(), String> {
    // SAFETY: looks for a library by its name.
    if embedded_for(major, minor).is_some() || unsafe { nvrtc::is_culib_present() } {
        return Ok(());
    }
    Err(format!(
        "no kernels for {} are built in, and there is no NVRTC (libnvrtc.so.13) to compile them with",
        own_architecture(major, minor)
    ))
}

/// Returns machine code of the kernels for an architecture from the disk cache, or compiles it and stores it there.
fn compiled(architecture: &str) -> Result<Vec<u8>, String> {
    catch_unwind(|| {
        let kept = kept_at(architecture);
        if let Some(code) = kept.as_ref().and_then(|path| std::fs::read(path).ok()) {
            return Ok(code);
        }
        let code = compile(architecture)?;
        if let Some(path) = kept {
            // The file is only a cache; if it cannot be written, the next start compiles again.
            let unfinished = path.with_extension(std::process::id().to_string());
            let _ = path.parent().map(std::fs::create_dir_all);
            let _ = std::fs::write(&unfinished, &code)
                .and_then(|()| std::fs::rename(&unfinished, &path));
        }
        Ok(code)
    })
    .unwrap_or_else(|_| Err("NVRTC lacks functions of CUDA 13: it is too old".to_owned()))
}

/// Returns the path at which compiled code for an architecture is cached on disk. It depends on the versions of
/// sources, compiler and driver; `None` if there is no cache folder or a version is unknown.
fn kept_at(architecture: &str) -> Option<PathBuf> {
    let cache = crate::cache_folder()?;
    let (mut major, mut minor, mut driver) = (0, 0, 0);
    // SAFETY: all three are written to, no more.
    let known = unsafe {
        nvrtc::nvrtcVersion(&mut major, &mut minor) == nvrtc::nvrtcResult::NVRTC_SUCCESS
            && sys::cuDriverGetVersion(&mut driver) == sys::CUresult::CUDA_SUCCESS
    };
    let name = format!(
        "{architecture}-{:016x}-{major}.{minor}-{driver}.cubin",
        embedded::HASH
    );
    known.then(|| cache.join("kernels").join(name))
}

/// Compiles the embedded kernel sources for an architecture by NVRTC and returns the machine code.
fn compile(architecture: &str) -> Result<Vec<u8>, String> {
    let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
    let root = embedded::SOURCES.iter().find(|(name, _)| *name == ROOT);
    let root = text(root.ok_or("the kernels are not built in")?.1)?;
    let others = embedded::SOURCES.iter().filter(|(name, _)| *name != ROOT);
    let (names, texts): (Vec<CString>, Vec<CString>) = others
        .map(|(name, source)| Ok((text(name)?, text(source)?)))
        .collect::<Result<Vec<_>, String>>()?
        .into_iter()
        .unzip();
    let pointers = |strings: &[CString]| {
        strings
            .iter()
            .map(|s| s.as_ptr())
            .collect::<Vec<*const c_char>>()
    };
    let options = [
        text(&format!("--gpu-architecture={architecture}"))?,
        text("--std=c++17")?,
    ];
    let failed = |what: &str, log: String| format!("NVRTC: {what} for {architecture}: {log}");
    let good = |outcome: nvrtc::nvrtcResult| outcome == nvrtc::nvrtcResult::NVRTC_SUCCESS;
    let mut program = std::ptr::null_mut();
    // SAFETY: all strings live to the end; lengths are queried before buffers are filled; the program is freed once.
    unsafe {
        let (names, texts) = (pointers(&names), pointers(&texts));
        let name = text(ROOT)?;
        let count = texts.len() as i32;
        if !good(nvrtc::nvrtcCreateProgram(
            &mut program,
            root.as_ptr(),
            name.as_ptr(),
            count,
            texts.as_ptr(),
            names.as_ptr(),
        )) {
            return Err(failed("no program", String::new()));
        }
        let options = pointers(&options);
        let compiled = nvrtc::nvrtcCompileProgram(program, options.len() as i32, options.as_ptr());
        let code = if good(compiled) {
            let mut bytes = 0;
            let _ = nvrtc::nvrtcGetCUBINSize(program, &mut bytes);
            let mut code = vec![0u8; bytes];
            let got = nvrtc::nvrtcGetCUBIN(program, code.as_mut_ptr().cast());
            if good(got) {
                Ok(code)
            } else {
                Err(failed("no code", String::new()))
            }
        } else {
            let mut bytes = 0;
            let _ = nvrtc::nvrtcGetProgramLogSize(program, &mut bytes);
            let mut log = vec![0u8; bytes.max(1)];
            let _ = nvrtc::nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
            Err(failed("errors", String::from_utf8_lossy(&log).into_owned()))
        };
        let _ = nvrtc::nvrtcDestroyProgram(&mut program);
        code
    }
}

const ROOT: &str = "kernels.cu";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_are_built_in_without_the_emulator() {
        let names: Vec<&str> = embedded::SOURCES.iter().map(|(name, _)| *name).collect();
        assert!(names.contains(&ROOT) && names.contains(&"device.cuh"));
        assert!(!names.iter().any(|name| name.starts_with("emulator")));
        let architecture = |major, minor| embedded_for(major, minor).map(|(name, _)| name);
        assert_eq!(architecture(7, 5), None);
        if !embedded::MODULES.is_empty() {
            let found =
                [(8, 9), (9, 0), (10, 0), (12, 1)].map(|(major, minor)| architecture(major, minor));
            assert_eq!(found, ["sm_80", WARPGROUPS, PTX, PTX].map(Some));
        }
        assert_eq!(own_architecture(9, 0), WARPGROUPS);
        assert_eq!(own_architecture(10, 0), "sm_100");
    }
}
