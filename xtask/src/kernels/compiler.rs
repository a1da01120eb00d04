//! The functions of NVRTC that compile a program.

#![expect(
    unsafe_code,
    reason = "the compiler is a C library, found and opened at run time"
)]

use std::ffi::{CString, c_char, c_int, c_void};

use anyhow::{Context, Result, bail, ensure};
use libloading::{Library, Symbol};

use crate::setup::Nvrtc;

type Program = *mut c_void;
type Strings = *const *const c_char;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    Strings,
    Strings,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, Strings) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;

/// Line numbers of the sources in compiled code, for compute-sanitizer. The instructions are the same with and without.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lines {
    Dropped,
    Kept,
}

/// The loaded compiler library.
pub(super) struct Compiler {
    library: Library,
    /// Opened first, because the library loads it by a name that is not on the library path.
    _builtins: Library,
}

impl Compiler {
    pub(super) fn open(nvrtc: &Nvrtc) -> Result<Self> {
        let open = |path: &std::path::Path| {
            // SAFETY: the libraries are NVIDIA's, verified by their checksums; opening them computes nothing.
            unsafe { Library::new(path) }.with_context(|| format!("opening {}", path.display()))
        };
        Ok(Self {
            _builtins: open(&nvrtc.builtins)?,
            library: open(&nvrtc.library)?,
        })
    }

    /// Compiles the source `root`, which includes the others. Returns the code, and the messages of compiler and
    /// assembler. For an architecture `compute_N` the code is PTX, and no assembler runs.
    pub(super) fn compile(
        &self,
        root: &str,
        sources: &[(String, String)],
        architecture: &str,
        lines: Lines,
    ) -> Result<(Vec<u8>, String)> {
        let text = |text: &str| CString::new(text).context("a source holds a zero byte");
        let (_, main) = sources
            .iter()
            .find(|(name, _)| name == root)
            .with_context(|| format!("there is no {root}"))?;
        let (main, name) = (text(main)?, text(root)?);
        let others = sources.iter().filter(|(name, _)| name != root);
        let others: Vec<(CString, CString)> = others
            .map(|(name, source)| Ok((text(name)?, text(source)?)))
            .collect::<Result<_>>()?;
        let names: Vec<_> = others.iter().map(|(name, _)| name.as_ptr()).collect();
        let texts: Vec<_> = others.iter().map(|(_, source)| source.as_ptr()).collect();
        let target = format!("--gpu-architecture={architecture}");
        let mut options = vec![target.as_str(), "--std=c++17", "--ptxas-options=-v"];
        options.extend((lines == Lines::Kept).then_some("--generate-line-info"));
        let get = if architecture.starts_with("compute") {
            "nvrtcGetPTX"
        } else {
            "nvrtcGetCUBIN"
        };
        let options = options.into_iter().map(text).collect::<Result<Vec<_>>>()?;
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the types are those of nvrtc.h; every string lives to the end of the block; buffers have the lengths
        // that the library requires; the program is destroyed once.
        unsafe {
            let create: Symbol<'_, Create> = self.symbol("nvrtcCreateProgram")?;
            let compile: Symbol<'_, Compile> = self.symbol("nvrtcCompileProgram")?;
            let destroy: Symbol<'_, Destroy> = self.symbol("nvrtcDestroyProgram")?;
            let mut program = std::ptr::null_mut();
            let count = texts.len() as c_int;
            let outcome = create(
                &mut program,
                main.as_ptr(),
                name.as_ptr(),
                count,
                texts.as_ptr(),
                names.as_ptr(),
            );
            ensure!(outcome == 0, "NVRTC takes no program: error {outcome}");
            let outcome = compile(program, options.len() as c_int, options.as_ptr());
            let log = self.get(program, "nvrtcGetProgramLog")?;
            let log = String::from_utf8_lossy(&log)
                .trim_end_matches('\0')
                .to_owned();
            let code = if outcome == 0 {
                Some(self.get(program, get)?)
            } else {
                None
            };
            destroy(&mut program);
            match code {
                Some(code) => Ok((code, log)),
                None => bail!("the kernels do not compile for {architecture}:\n{log}"),
            }
        }
    }

    /// # Safety
    /// The program must be one of the library's, and there must be a function with the suffix `Size` for its size.
    unsafe fn get(&self, program: Program, function: &str) -> Result<Vec<u8>> {
        // SAFETY: by the contract.
        unsafe {
            let size: Symbol<'_, Size> = self.symbol(&format!("{function}Size"))?;
            let get: Symbol<'_, Get> = self.symbol(function)?;
            let mut bytes = 0;
            ensure!(size(program, &mut bytes) == 0, "{function}Size failed");
            let mut buffer = vec![0u8; bytes];
            ensure!(
                get(program, buffer.as_mut_ptr().cast()) == 0,
                "{function} failed"
            );
            Ok(buffer)
        }
    }

    /// # Safety
    /// `T` must be the function's type.
    unsafe fn symbol<T>(&self, name: &str) -> Result<Symbol<'_, T>> {
        // SAFETY: by the contract.
        unsafe { self.library.get(name.as_bytes()) }.with_context(|| format!("NVRTC has no {name}"))
    }
}
