//! A real device, through CUDA's driver, which is located at run time.
//!
//! The libraries of the driver and of cuBLASLt may be absent. Their presence is checked before any of their functions
//! is called, because the bindings panic where a library or a symbol is missing.

mod modules;
mod products;

use super::CudaError;
use super::device::{Device, Fault, Launch, Product, Queue};
use cudarc::cublaslt::sys as blas;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use modules::Modules;
use products::Products;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// The reason why a CUDA device cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// True if the machine has a CUDA driver or the device file of one (`/dev/nvidiactl`): its user then expects a GPU
    /// to be used.
    pub has_driver: bool,
    /// The reason, in words: what was found and what is needed.
    pub reason: String,
}

/// Returns the reason why device `ordinal` (its index as CUDA counts) cannot be used, or `None` if no check finds one.
/// No check opens the device.
pub fn unavailable(ordinal: u32) -> Option<Unavailable> {
    find(ordinal).err()
}

/// A device that [`find`] has checked: driver, libraries and kernels for it are there.
struct Found {
    handle: sys::CUdevice,
    /// Compute capability of the device: its major and minor version.
    capability: (u32, u32),
}

/// Checks whether device `ordinal` can be used: that there are a recent driver, cuBLASLt, the device, and kernels for
/// it (embedded, or to be compiled). Returns the reason if not.
fn find(ordinal: u32) -> Result<Found, Unavailable> {
    // SAFETY: loads libraries by their names and nothing more.
    let (loads, cublas) = unsafe { (sys::is_culib_present(), blas::is_culib_present()) };
    let has_driver = loads || Path::new(CONTROL).exists();
    let absent = |reason| Unavailable { has_driver, reason };
    if !loads {
        return Err(absent(match has_driver {
            true => format!(
                "there is {CONTROL}, but the driver's library (libcuda.so.1) does not load: add its folder to \
                 LD_LIBRARY_PATH, or use the image foreword-host-cuda, which has what it needs"
            ),
            false => "there is no CUDA driver on this machine (libcuda)".to_owned(),
        }));
    }
    let found = catch_unwind(|| {
        let mut version = 0;
        // SAFETY: a number is written to, no more.
        unsafe { sys::cuDriverGetVersion(&mut version) }
            .result()
            .map_err(words)?;
        if version < NEEDED {
            return Err(format!(
                "the CUDA driver supports CUDA {}.{}, and CUDA 13.0 is needed: update the driver to 580 or later",
                version / 1000,
                version % 1000 / 10
            ));
        }
        if !cublas {
            return Err("there is a CUDA driver, but no cuBLASLt (libcublasLt.so.13): install CUDA 13's libraries, add \
                 their folder to LD_LIBRARY_PATH, or use the image foreword-host-cuda, which contains them"
                .to_owned());
        }
        result::init().map_err(|error| format!("CUDA does not start: {}", words(error)))?;
        let count = result::device::get_count().map_err(words)?;
        if ordinal as i32 >= count {
            return Err(format!(
                "there is no CUDA device {ordinal}: {count} were found"
            ));
        }
        let handle = result::device::get(ordinal as i32).map_err(words)?;
        let (major, minor) = capability(handle).map_err(words)?;
        if major < 8 {
            let name = result::device::get_name(handle).map_err(words)?;
            return Err(format!(
                "{name} has compute capability {major}.{minor}, at least 8.0 is needed"
            ));
        }
        modules::obtainable(major, minor)?;
        Ok(Found {
            handle,
            capability: (major, minor),
        })
    });
    found
        .unwrap_or_else(|_| Err(TOO_OLD.to_owned()))
        .map_err(absent)
}

/// The device file that NVIDIA's kernel module creates; it tells that the machine has a CUDA driver.
const CONTROL: &str = "/dev/nvidiactl";

/// Minimum CUDA version that the driver must support, as `1000 · major + 10 · minor`: the kernels' machine code has
/// CUDA 13's ABI.
const NEEDED: i32 = 13_000;

const TOO_OLD: &str =
    "this machine's CUDA lacks functions of CUDA 13: update the driver to 580 or later";

/// Returns the compute capability of a device: its major and minor version.
fn capability(handle: sys::CUdevice) -> Result<(u32, u32), DriverError> {
    use sys::CUdevice_attribute as Attribute;
    let attribute = |attribute| {
        // SAFETY: the handle is a device's.
        unsafe { result::device::get_attribute(handle, attribute) }.map(|value| value as u32)
    };
    Ok((
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    ))
}

/// Returns whether the program contains compiled kernels for a compute capability; for tests.
#[cfg(test)]
pub(super) fn is_built_in(major: u32, minor: u32) -> bool {
    modules::embedded_for(major, minor).is_some()
}

/// Returns the name and description that the driver has for an error.
fn words(error: DriverError) -> String {
    let name = error
        .error_name()
        .map(|name| name.to_string_lossy().into_owned());
    let text = error
        .error_string()
        .map(|text| text.to_string_lossy().into_owned());
    match (name, text) {
        (Ok(name), Ok(text)) => format!("{name}: {text}"),
        _ => format!("CUDA error {}", error.0 as u32),
    }
}

impl From<DriverError> for Fault {
    fn from(error: DriverError) -> Self {
        // These errors make all of this process's memory on the device unusable.
        match error.0 as u32 {
            46 | 214 | 220 | 700 | 702 | 709 | 710 | 714..=719 | 999 => Self::Lost(words(error)),
            _ => Self::Refused(words(error)),
        }
    }
}

/// Bytes of pinned host memory through which copies to and from the device pass.
const STAGING: usize = 64 << 20;

/// An open CUDA device: its context, queues, loaded kernels and memory.
pub(super) struct Driver {
    name: String,
    handle: sys::CUdevice,
    /// Compute capability of the device: its major and minor version.
    capability: (u32, u32),
    context: sys::CUcontext,
    processors: u32,
    queues: [sys::CUstream; 2],
    /// CUDA event by which one queue waits for the other; recorded again for each wait.
    event: sys::CUevent,
    modules: Modules,
    products: Products,
    allocated: Vec<u64>,
    pinned: Vec<u64>,
    staging: *mut u8,
    /// Byte offset in the staging memory at which the next copy is placed; queued copies may still read the bytes
    /// before it.
    staged: usize,
    recordings: Vec<sys::CUgraphExec>,
}

// SAFETY: handles of the driver may be used from any thread once the context is made current there, which every method
// does; the raw pointers are owned.
unsafe impl Send for Driver {}

impl Driver {
    pub(super) fn open(ordinal: u32) -> Result<Self, CudaError> {
        let found = find(ordinal).map_err(|absent| CudaError::Unavailable(absent.reason))?;
        catch_unwind(AssertUnwindSafe(|| Self::on(found)))
            .unwrap_or_else(|_| Err(CudaError::Unavailable(TOO_OLD.to_owned())))
    }

    fn on(found: Found) -> Result<Self, CudaError> {
        let Found {
            handle,
            capability: (major, minor),
        } = found;
        use sys::CUdevice_attribute as Attribute;
        let attribute = |attribute| {
            // SAFETY: the handle is a device's.
            unsafe { result::device::get_attribute(handle, attribute) }.map_err(Fault::from)
        };
        let name = result::device::get_name(handle).map_err(Fault::from)?;
        // SAFETY: each handle is used as the driver's documentation has it, after it was made without an error.
        unsafe {
            let context = result::primary_ctx::retain(handle).map_err(Fault::from)?;
            result::ctx::set_current(context).map_err(Fault::from)?;
            let queue = || result::stream::create(result::stream::StreamKind::NonBlocking);
            let modules = Modules::load(major, minor)?;
            Ok(Self {
                name: format!("{name} ({major}.{minor})"),
                handle,
                capability: (major, minor),
                context,
                processors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
                queues: [queue().map_err(Fault::from)?, queue().map_err(Fault::from)?],
                event: result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
                    .map_err(Fault::from)?,
                modules,
                products: Products::new()?,
                allocated: Vec::new(),
                pinned: Vec::new(),
                staging: result::malloc_host(STAGING, 0).map_err(Fault::from)?.cast(),
                staged: 0,
                recordings: Vec::new(),
            })
        }
    }

    /// Returns the same device, but without the kernels that multiply by warpgroups; for tests.
    #[cfg(test)]
    pub(super) fn without_warpgroups(mut self) -> Self {
        self.modules.warpgroups = false;
        self.name += ", without warpgroups";
        self
    }

    /// Makes the device's CUDA context current on the calling thread, as driver calls require.
    fn enter(&self) -> Result<(), Fault> {
        // SAFETY: the context is ours until we are dropped.
        Ok(unsafe { result::ctx::set_current(self.context) }?)
    }

    fn queue(&self, queue: Queue) -> sys::CUstream {
        self.queues[queue as usize]
    }

    /// Reserves `bytes` bytes of the staging memory, at most [`STAGING`], and returns their address. Waits for the
    /// compute queue if too few are left.
    fn stage(&mut self, bytes: usize) -> Result<*mut u8, Fault> {
        if self.staged + bytes > STAGING {
            self.wait(Queue::Compute)?;
        }
        // SAFETY: there is as much room: `wait` has freed all of it if there was not.
        let at = unsafe { self.staging.add(self.staged) };
        self.staged += bytes.next_multiple_of(256).min(STAGING - self.staged);
        Ok(at)
    }
}

impl Device for Driver {
    fn name(&self) -> &str {
        &self.name
    }

    fn processors(&self) -> u32 {
        self.processors
    }

    fn has_warpgroups(&self) -> bool {
        self.modules.warpgroups
    }

    fn free_bytes(&mut self) -> Result<u64, Fault> {
        self.enter()?;
        Ok(result::mem_get_info()?.0 as u64)
    }

    fn allocate(&mut self, bytes: usize) -> Result<u64, Fault> {
        self.enter()?;
        // SAFETY: the memory is not read before it is written.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(|error| {
            Fault::Refused(format!("{} MiB of memory: {}", bytes >> 20, words(error)))
        })?;
        self.allocated.push(address);
        Ok(address)
    }

    fn free(&mut self, address: u64) -> Result<(), Fault> {
        self.wait(Queue::Compute)?;
        self.wait(Queue::Copy)?;
        self.allocated.retain(|one| *one != address);
        // SAFETY: it was allocated here, and nothing uses it any more.
        Ok(unsafe { result::free_sync(address) }?)
    }

    fn pin(&mut self, bytes: usize) -> Result<u64, Fault> {
        self.enter()?;
        // Not write-combined, because the CPU reads host pages. With unified addressing the device uses the same
        // address.
        // SAFETY: the memory is zeroed before it is read.
        let pointer = unsafe {
            let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
            let pointer = result::malloc_host(bytes, flags).map_err(|error| {
                Fault::Refused(format!(
                    "{} MiB of pinned memory: {}",
                    bytes >> 20,
                    words(error)
                ))
            })?;
            pointer.cast::<u8>().write_bytes(0, bytes);
            pointer
        };
        self.pinned.push(pointer as u64);
        Ok(pointer as u64)
    }

    unsafe fn write(&mut self, to: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.enter()?;
        for (number, piece) in bytes.chunks(STAGING / 2).enumerate() {
            let staged = self.stage(piece.len())?;
            let to = to + (number * (STAGING / 2)) as u64;
            // SAFETY: there is room in the staging area, and, as the caller promises, at `to`.
            unsafe {
                staged.copy_from_nonoverlapping(piece.as_ptr(), piece.len());
                let staged = std::slice::from_raw_parts(staged, piece.len());
                result::memcpy_htod_async(to, staged, self.queue(Queue::Compute))?;
            }
        }
        Ok(())
    }

    unsafe fn read(&mut self, from: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.enter()?;
        for (number, piece) in bytes.chunks_mut(STAGING / 2).enumerate() {
            let staged = self.stage(piece.len())?;
            let from = from + (number * (STAGING / 2)) as u64;
            // SAFETY: as for `write`; the copy has landed before it is read.
            unsafe {
                let room = std::slice::from_raw_parts_mut(staged, piece.len());
                result::memcpy_dtoh_async(room, from, self.queue(Queue::Compute))?;
            }
            self.wait(Queue::Compute)?;
            // SAFETY: nothing else writes there.
            piece.copy_from_slice(unsafe { std::slice::from_raw_parts(staged, piece.len()) });
        }
        Ok(())
    }

    unsafe fn launch(&mut self, queue: Queue, launch: &Launch<'_>) -> Result<(), Fault> {
        self.enter()?;
        let function = self.modules.function(launch.kernel, launch.shared)?;
        let ([x, y, z], (argument, _)) = (launch.grid, launch.argument.raw());
        // SAFETY: the argument is the kernel's one parameter, as the caller promises; the driver copies it.
        unsafe {
            let mut parameters = [argument.cast_mut().cast::<c_void>()];
            let (block, stream) = ((launch.threads, 1, 1), self.queue(queue));
            result::launch_kernel(
                function,
                (x, y, z),
                block,
                launch.shared,
                stream,
                &mut parameters,
            )?;
        }
        Ok(())
    }

    fn refuses_fp8(&mut self, inputs: usize, outputs: usize) -> Result<Option<String>, Fault> {
        self.enter()?;
        Ok((self.products).refuses_fp8(self.capability, inputs, outputs))
    }

    fn multiply(&mut self, product: &Product<'_>) -> Result<(), Fault> {
        self.enter()?;
        let queue = self.queue(Queue::Compute);
        self.products.multiply(product, queue)
    }

    fn after(&mut self, first: Queue, then: Queue) -> Result<(), Fault> {
        self.enter()?;
        // SAFETY: event and queues are ours. Waiting takes the event as it was recorded last: now.
        unsafe {
            result::event::record(self.event, self.queue(first))?;
            let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            result::stream::wait_event(self.queue(then), self.event, flags)?;
        }
        Ok(())
    }

    fn wait(&mut self, queue: Queue) -> Result<(), Fault> {
        self.enter()?;
        // SAFETY: the queue is ours.
        unsafe { result::stream::synchronize(self.queue(queue)) }?;
        if queue == Queue::Compute {
            self.staged = 0;
        }
        Ok(())
    }

    fn can_record(&self) -> bool {
        true
    }

    fn begin_recording(&mut self) -> Result<(), Fault> {
        self.enter()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the queue is ours and is not being recorded.
        Ok(unsafe { result::stream::begin_capture(self.queue(Queue::Compute), mode) }?)
    }

    fn end_recording(&mut self) -> Result<usize, Fault> {
        self.enter()?;
        // SAFETY: the queue is being recorded; the graph is not used once it is instantiated.
        unsafe {
            let graph = result::stream::end_capture(self.queue(Queue::Compute))?;
            let recording = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            result::graph::destroy(graph)?;
            self.recordings.push(recording?);
        }
        Ok(self.recordings.len() - 1)
    }

    fn repeat(&mut self, recording: usize) -> Result<(), Fault> {
        self.enter()?;
        // SAFETY: recordings live until `forget_recordings`.
        Ok(unsafe {
            result::graph::launch(self.recordings[recording], self.queue(Queue::Compute))
        }?)
    }

    fn forget_recordings(&mut self) -> Result<(), Fault> {
        self.wait(Queue::Compute)?;
        for recording in self.recordings.drain(..) {
            // SAFETY: it is not running any more.
            unsafe { result::graph::exec_destroy(recording) }?;
        }
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // On a lost device, memory that cannot be freed is released with the process.
        let _ = self.wait(Queue::Copy);
        let _ = self.forget_recordings();
        // SAFETY: all handles were created here and are not used elsewhere; no work is running any more.
        unsafe {
            for address in self.allocated.drain(..) {
                let _ = result::free_sync(address);
            }
            for pinned in self.pinned.drain(..).chain([self.staging as u64]) {
                let _ = result::free_host(pinned as *mut c_void);
            }
            self.products.close();
            self.modules.close();
            let _ = result::event::destroy(self.event);
            for queue in self.queues {
                let _ = result::stream::destroy(queue);
            }
            let _ = result::primary_ctx::release(self.handle);
        }
    }
}
