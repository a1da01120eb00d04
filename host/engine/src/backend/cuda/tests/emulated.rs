//! The emulator as a device: the kernels of `kernels/`, compiled for the CPU, and products in f32.
//!
//! Every launch runs twice, once with the first thread of each block first and once with the last one first, and must
//! produce the same bits: if it does not, a barrier is missing. The compiled library is in the tests' folder and is
//! rebuilt when a source changes.

use crate::backend::cuda::device::{Device, Fault, Launch, Output, Product, Queue};
use crate::backend::cuda::forward::MAX_RECORDINGS;
use crate::models::fp8_value;
use half::bf16;
use libloading::Library;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use xxhash_rust::xxh3::xxh3_64;

type Allocate = unsafe extern "C" fn(usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);
type Launcher = unsafe extern "C" fn(
    *const c_char,
    *const u32,
    u32,
    u32,
    *const c_void,
    u64,
    bool,
    *mut c_char,
    u64,
    *mut Work,
);

/// Numbers of a launch that stand for its cost.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Number of calls of the kernels' `load_unchanged`, which loads words that no kernel writes, such as logits.
    pub(super) loads: u64,
    /// Additions to shared memory.
    pub(super) adds: u64,
}

/// Bytes that were copied between a device and the host.
#[derive(Debug, Default)]
pub(super) struct Copied {
    pub(super) read: AtomicU64,
    pub(super) written: AtomicU64,
}

struct Emulator {
    allocate: Allocate,
    free: Free,
    launch: Launcher,
}

/// Returns the emulator, or why there is none here.
fn emulator() -> Result<&'static Emulator, String> {
    static LOADED: OnceLock<Result<Emulator, String>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Emulator, String> {
    let library = compile("emulator.cpp")?;
    // SAFETY: the library is ours; loading it registers kernels and nothing more.
    let library = unsafe { Library::new(&library) }.map_err(|error| error.to_string())?;
    let library = Box::leak(Box::new(library));
    // SAFETY: the types are those of `emulator.cpp`.
    unsafe {
        let text = |error: libloading::Error| error.to_string();
        Ok(Emulator {
            allocate: *library
                .get::<Allocate>(b"foreword_allocate")
                .map_err(text)?,
            free: *library.get::<Free>(b"foreword_free").map_err(text)?,
            launch: *library.get::<Launcher>(b"foreword_launch").map_err(text)?,
        })
    }
}

/// Compiles a library of `kernels/` unless it exists. A failing compiler fails the test; a missing one is a reason to
/// skip.
pub(super) fn compile(source: &str) -> Result<PathBuf, String> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err("the emulator runs on x86-64 Linux alone".to_owned());
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    // The test binary may run on a machine without the sources.
    if !sources.is_dir() {
        return Err(format!("{} is not here", sources.display()));
    }
    let mut names: Vec<PathBuf> = [&sources, &sources.join("standin")]
        .into_iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|end| ["cpp", "cu", "cuh", "h"].iter().any(|one| end == *one))
        })
        .collect();
    names.sort();
    let bytes: Vec<u8> = names
        .iter()
        .flat_map(|path| std::fs::read(path).unwrap())
        .collect();
    let folder = std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_owned();
    let stem = source.trim_end_matches(".cpp").replace('/', "-");
    let library = folder.join(format!("{stem}-{:016x}.so", xxh3_64(&bytes)));
    if library.exists() {
        return Ok(library);
    }
    if Command::new("g++").arg("--version").output().is_err() {
        return Err("there is no g++ to compile the emulator with".to_owned());
    }
    // Another process may compile it too; the last one renames the same library into place.
    let unfinished = folder.join(format!("{stem}-{}.so", std::process::id()));
    let compiled = Command::new("g++")
        .args([
            "-std=c++17",
            "-O2",
            "-Wno-unknown-pragmas",
            "-fno-strict-aliasing",
            "-fPIC",
            "-shared",
            "-o",
        ])
        .arg(&unfinished)
        .arg(sources.join(source))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert!(
        compiled.status.success(),
        "the kernels do not compile for the emulator:\n{errors}"
    );
    std::fs::rename(&unfinished, &library).unwrap();
    Ok(library)
}

/// A device that runs kernels on the CPU.
pub(in crate::backend::cuda) struct Emulated {
    emulator: &'static Emulator,
    /// True if the device runs Hopper's warpgroup multiplications (`sm_90a`).
    warpgroups: bool,
    /// Sizes of allocations by address.
    memory: BTreeMap<u64, usize>,
    /// The recording in progress, if there is one.
    recording: bool,
    recordings: Vec<Vec<Recorded>>,
    /// Number of launches by kernel, so that tests can ask what ran.
    pub(in crate::backend::cuda) launches: BTreeMap<&'static str, usize>,
    /// The work of the last launch.
    pub(super) work: Work,
    pub(super) copied: Arc<Copied>,
}

/// A recorded launch or product, by value.
enum Recorded {
    Launch {
        kernel: &'static str,
        grid: [u32; 3],
        threads: u32,
        shared: u32,
        argument: Vec<u64>,
        size: usize,
    },
    Product(Shape),
}

/// A product, with its addresses.
#[derive(Clone, Copy)]
struct Shape {
    weights: u64,
    input: u64,
    /// Scales of the weights and of the input; `None` for operands in bf16.
    scales: Option<[u64; 2]>,
    output: u64,
    kind: Kind,
    rows: usize,
    inputs: usize,
    outputs: usize,
}

#[derive(Clone, Copy)]
enum Kind {
    Bf16,
    F32,
    Add,
}

impl Emulated {
    /// Returns an emulated device. Where there is no emulator, prints why and returns `None`.
    pub(in crate::backend::cuda) fn new(warpgroups: bool) -> Option<Self> {
        match emulator() {
            Ok(emulator) => Some(Self {
                emulator,
                warpgroups,
                memory: BTreeMap::new(),
                recording: false,
                recordings: Vec::new(),
                launches: BTreeMap::new(),
                work: Work::default(),
                copied: Arc::default(),
            }),
            Err(reason) => {
                eprintln!("SKIPPED: {reason}");
                None
            }
        }
    }

    /// Runs a kernel by its name, in one order of threads.
    pub(super) fn launch_once(
        &self,
        kernel: &str,
        grid: [u32; 3],
        threads: u32,
        shared: u32,
        (argument, size): (*const u8, usize),
        backwards: bool,
    ) -> Result<Work, Fault> {
        let mut work = Work::default();
        let name = CString::new(kernel).unwrap();
        let mut message = vec![0u8; 512];
        // SAFETY: name, grid, message and work live through the call; the emulator checks the argument's size.
        unsafe {
            (self.emulator.launch)(
                name.as_ptr(),
                grid.as_ptr(),
                threads,
                shared,
                argument.cast(),
                size as u64,
                backwards,
                message.as_mut_ptr().cast(),
                message.len() as u64,
                &raw mut work,
            );
        }
        let length = message.iter().position(|byte| *byte == 0).unwrap();
        match std::str::from_utf8(&message[..length]).unwrap() {
            "" => Ok(work),
            message => Err(Fault::Refused(message.to_owned())),
        }
    }

    /// Runs a kernel in both orders of threads, which must agree.
    fn launch_twice(
        &self,
        kernel: &str,
        grid: [u32; 3],
        threads: u32,
        shared: u32,
        argument: (*const u8, usize),
    ) -> Result<Work, Fault> {
        let before = self.contents();
        self.launch_once(kernel, grid, threads, shared, argument, true)?;
        let backwards = self.contents();
        for (address, bytes) in before {
            self.bytes_mut(address, bytes.len()).copy_from_slice(&bytes);
        }
        let work = self.launch_once(kernel, grid, threads, shared, argument, false)?;
        for (address, bytes) in backwards {
            if self.bytes(address, bytes.len()) != bytes {
                return Err(Fault::Refused(format!(
                    "{kernel}: the result depends on the order of threads"
                )));
            }
        }
        Ok(work)
    }

    /// Returns the contents of small buffers; large ones are weights.
    fn contents(&self) -> Vec<(u64, Vec<u8>)> {
        let small = self.memory.iter().filter(|(_, bytes)| **bytes <= COMPARED);
        small
            .map(|(address, bytes)| (*address, self.bytes(*address, *bytes).to_vec()))
            .collect()
    }

    fn check(&self, address: u64, bytes: usize) {
        let buffer = self.memory.range(..=address).next_back();
        let fits =
            buffer.is_some_and(|(start, length)| address + bytes as u64 <= start + *length as u64);
        assert!(fits, "{bytes} bytes at {address:#x} are within no buffer");
    }

    fn bytes(&self, address: u64, bytes: usize) -> &[u8] {
        self.check(address, bytes);
        // SAFETY: the range is within a buffer of ours, which no launch is writing.
        unsafe { std::slice::from_raw_parts(address as *const u8, bytes) }
    }

    #[expect(clippy::mut_from_ref, reason = "device memory has no owner in Rust")]
    fn bytes_mut(&self, address: u64, bytes: usize) -> &mut [u8] {
        self.check(address, bytes);
        // SAFETY: as for `bytes`; no two slices are held at once over the same range.
        unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) }
    }

    fn product(&self, shape: Shape) {
        let Shape {
            rows,
            inputs,
            outputs,
            ..
        } = shape;
        let wide = |address, count: usize| -> Vec<f32> {
            if shape.scales.is_some() {
                let numbers = self.bytes(address, count).iter();
                return numbers.map(|number| fp8_value(*number)).collect();
            }
            let numbers = self.bytes(address, count * 2).as_chunks().0.iter();
            numbers.map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
        };
        let weights = wide(shape.weights, outputs * inputs);
        let input = wide(shape.input, rows * inputs);
        let scales = |address, count: usize| -> Vec<f32> {
            let scales = self.bytes(address, count * 4).as_chunks().0.iter();
            scales.map(|b| f32::from_le_bytes(*b)).collect()
        };
        let [weight_scales, input_scales] = match shape.scales {
            Some([weights, input]) => [scales(weights, outputs), scales(input, rows)],
            None => [vec![1.0; outputs], vec![1.0; rows]],
        };
        let size = if matches!(shape.kind, Kind::Bf16) {
            2
        } else {
            4
        };
        let output = self.bytes_mut(shape.output, rows * outputs * size);
        output
            .par_chunks_mut(outputs * size)
            .zip(input.par_chunks(inputs).zip(&input_scales))
            .for_each(|(output, (input, input_scale))| {
                let weights = weights.chunks(inputs).zip(&weight_scales);
                for (to, (weights, scale)) in output.chunks_mut(size).zip(weights) {
                    let sum: f32 = weights.iter().zip(input).map(|(w, x)| w * x).sum();
                    let sum = sum * input_scale * scale;
                    match shape.kind {
                        Kind::Bf16 => to.copy_from_slice(&bf16::from_f32(sum).to_le_bytes()),
                        Kind::F32 => to.copy_from_slice(&sum.to_le_bytes()),
                        Kind::Add => {
                            let before = f32::from_le_bytes(to.try_into().unwrap());
                            to.copy_from_slice(&(before + sum).to_le_bytes());
                        }
                    }
                }
            });
    }
}

/// Largest buffer in bytes that is compared between both orders of threads.
const COMPARED: usize = 1 << 20;

impl Drop for Emulated {
    fn drop(&mut self) {
        for address in self.memory.keys() {
            // SAFETY: the emulator allocated it, and nothing else frees it.
            unsafe { (self.emulator.free)(*address as *mut c_void) }
        }
    }
}

impl Device for Emulated {
    fn name(&self) -> &str {
        if self.warpgroups {
            "emulator with warpgroups"
        } else {
            "emulator"
        }
    }

    fn processors(&self) -> u32 {
        6
    }

    fn has_warpgroups(&self) -> bool {
        self.warpgroups
    }

    fn free_bytes(&mut self) -> Result<u64, Fault> {
        Ok(1 << 26)
    }

    fn allocate(&mut self, bytes: usize) -> Result<u64, Fault> {
        // SAFETY: any size can be asked for.
        let address = unsafe { (self.emulator.allocate)(bytes) } as u64;
        self.memory.insert(address, bytes);
        Ok(address)
    }

    fn free(&mut self, address: u64) -> Result<(), Fault> {
        assert!(
            self.memory.remove(&address).is_some(),
            "{address:#x} was not allocated"
        );
        // SAFETY: the emulator allocated it.
        unsafe { (self.emulator.free)(address as *mut c_void) }
        Ok(())
    }

    fn pin(&mut self, bytes: usize) -> Result<u64, Fault> {
        let address = self.allocate(bytes)?;
        self.bytes_mut(address, bytes).fill(0);
        Ok(address)
    }

    unsafe fn write(&mut self, to: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.copied.written.fetch_add(bytes.len() as u64, Relaxed);
        self.bytes_mut(to, bytes.len()).copy_from_slice(bytes);
        Ok(())
    }

    unsafe fn read(&mut self, from: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.copied.read.fetch_add(bytes.len() as u64, Relaxed);
        bytes.copy_from_slice(self.bytes(from, bytes.len()));
        Ok(())
    }

    unsafe fn launch(&mut self, queue: Queue, launch: &Launch<'_>) -> Result<(), Fault> {
        let (argument, size) = launch.argument.raw();
        if self.recording && queue == Queue::Compute {
            let mut words = vec![0u64; size.div_ceil(8)];
            // SAFETY: the argument has `size` bytes, the words have room for them.
            unsafe { std::ptr::copy_nonoverlapping(argument, words.as_mut_ptr().cast(), size) };
            self.recordings.last_mut().unwrap().push(Recorded::Launch {
                kernel: launch.kernel,
                grid: launch.grid,
                threads: launch.threads,
                shared: launch.shared,
                argument: words,
                size,
            });
            return Ok(());
        }
        *self.launches.entry(launch.kernel).or_default() += 1;
        self.work = self.launch_twice(
            launch.kernel,
            launch.grid,
            launch.threads,
            launch.shared,
            (argument, size),
        )?;
        Ok(())
    }

    fn refuses_fp8(&mut self, _: usize, _: usize) -> Result<Option<String>, Fault> {
        Ok(None)
    }

    fn multiply(&mut self, product: &Product<'_>) -> Result<(), Fault> {
        let (output, kind) = match &product.output {
            Output::Bf16(output) => (output.address(), Kind::Bf16),
            Output::F32(output) => (output.address(), Kind::F32),
            Output::Add(output) => (output.address(), Kind::Add),
        };
        let [weights, input] = product.operands.addresses();
        let shape = Shape {
            weights,
            input,
            scales: product.operands.scales(),
            output,
            kind,
            rows: product.rows,
            inputs: product.inputs,
            outputs: product.outputs,
        };
        if self.recording {
            self.recordings
                .last_mut()
                .unwrap()
                .push(Recorded::Product(shape));
        } else {
            self.product(shape);
        }
        Ok(())
    }

    fn after(&mut self, _: Queue, _: Queue) -> Result<(), Fault> {
        Ok(())
    }

    fn wait(&mut self, _: Queue) -> Result<(), Fault> {
        assert!(!self.recording, "a recording cannot wait");
        Ok(())
    }

    fn can_record(&self) -> bool {
        true
    }

    fn begin_recording(&mut self) -> Result<(), Fault> {
        self.recording = true;
        self.recordings.push(Vec::new());
        Ok(())
    }

    fn end_recording(&mut self) -> Result<usize, Fault> {
        self.recording = false;
        assert!(
            self.recordings.len() <= MAX_RECORDINGS,
            "too many recordings"
        );
        Ok(self.recordings.len() - 1)
    }

    fn repeat(&mut self, recording: usize) -> Result<(), Fault> {
        let recorded = std::mem::take(&mut self.recordings[recording]);
        for one in &recorded {
            match one {
                Recorded::Launch {
                    kernel,
                    grid,
                    threads,
                    shared,
                    argument,
                    size,
                } => {
                    *self.launches.entry(kernel).or_default() += 1;
                    self.launch_twice(
                        kernel,
                        *grid,
                        *threads,
                        *shared,
                        (argument.as_ptr().cast(), *size),
                    )?;
                }
                Recorded::Product(shape) => self.product(*shape),
            }
        }
        self.recordings[recording] = recorded;
        Ok(())
    }

    fn forget_recordings(&mut self) -> Result<(), Fault> {
        self.recordings.clear();
        Ok(())
    }
}
