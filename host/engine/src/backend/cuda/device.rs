//! The interface between the backend and a device: memory, launches, products and two queues.
//!
//! ```text
//!   Compute   launch ─ multiply ─ launch ─────────▶ ┐ after(Copy, Compute): later work in `Compute` waits for
//!   Copy      launch (pages of layer 0, 1, …) ────▶ ┘ the work that is in `Copy` now
//! ```
//!
//! [`Device`] is implemented by the [driver](super::driver) and, in tests, by an emulator that runs the same kernels on
//! the CPU. Memory is named by address and length. Its content has a type ([`Array`]), and callers of kernels borrow it
//! as Rust borrows slices.

use std::marker::PhantomData;
use std::ops::Range;

/// A queue of work on the device. Each queue runs in order; the two run concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// The model's arithmetic.
    Compute,
    /// Copies of pages to and from the host pool.
    Copy,
}

/// The reason that a call of a device failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// The device refused a call; it keeps its memory and may accept other calls.
    #[error("{0}")]
    Refused(String),
    /// The device is lost, with everything in its memory.
    #[error("{0}")]
    Lost(String),
}

/// A launch of one kernel.
pub(super) struct Launch<'a> {
    pub(super) kernel: &'static str,
    pub(super) grid: [u32; 3],
    /// Threads in a block.
    pub(super) threads: u32,
    /// Bytes of shared memory for a block.
    pub(super) shared: u32,
    /// The kernel's only argument.
    pub(super) argument: &'a dyn Argument,
}

/// A struct that a kernel takes as its argument, with C layout.
pub(super) trait Argument {
    /// Returns the struct's address and size in bytes.
    fn raw(&self) -> (*const u8, usize);
}

/// A matrix product `output = input · weightsᵀ`, summed in f32.
pub(super) struct Product<'a> {
    /// Weights `[outputs, inputs]`.
    pub(super) weights: Part<'a, Bf16>,
    /// Input `[rows, inputs]`.
    pub(super) input: Part<'a, Bf16>,
    /// Output `[rows, outputs]`.
    pub(super) output: Output<'a>,
    pub(super) rows: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

/// Destination of a product, and how the sums are written to it.
pub(super) enum Output<'a> {
    /// Sums are rounded to bf16.
    Bf16(PartMut<'a, Bf16>),
    /// Sums are written as f32.
    F32(PartMut<'a, f32>),
    /// Sums are added to the present content.
    Add(PartMut<'a, f32>),
}

/// A device, or an emulation of one. Errors may be reported late: by a later call, at the latest by [`Device::wait`].
pub(super) trait Device: Send {
    /// Returns the device's name, for logs.
    fn name(&self) -> &str;

    /// Returns the number of multiprocessors, which run blocks concurrently.
    fn processors(&self) -> u32;

    /// Returns whether the kernels include those that multiply by warpgroups (`kernels/prefill_wide.cu`). These need
    /// compute capability 9.0 and code compiled for `sm_90a`.
    fn has_warpgroups(&self) -> bool;

    /// Returns the number of bytes that could be allocated now.
    fn free_bytes(&mut self) -> Result<u64, Fault>;

    /// Allocates memory at an address divisible by 16 (real devices: 256). Content undefined. Freed with the device.
    fn allocate(&mut self, bytes: usize) -> Result<u64, Fault>;

    /// Waits until no queue uses the memory any more, then frees it.
    fn free(&mut self, address: u64) -> Result<(), Fault>;

    /// Allocates zeroed, pinned host memory, which the device can access at the same address.
    fn pin(&mut self, bytes: usize) -> Result<u64, Fault>;

    /// Queues a copy to device memory in `Compute`. The bytes may change once the call returns.
    ///
    /// # Safety
    /// The range of `bytes.len()` bytes from `to` must lie within this device's memory.
    unsafe fn write(&mut self, to: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// Copies from device memory, after everything in `Compute`.
    ///
    /// # Safety
    /// The range of `bytes.len()` bytes from `from` must lie within this device's memory.
    unsafe fn read(&mut self, from: u64, bytes: &mut [u8]) -> Result<(), Fault>;

    /// Queues a launch.
    ///
    /// # Safety
    /// The argument must be the kernel's, and the kernel must stay within the memory that the argument names.
    unsafe fn launch(&mut self, queue: Queue, launch: &Launch<'_>) -> Result<(), Fault>;

    /// Queues a product in `Compute`. The parts have the lengths of the shapes, which [`kernels`](super::kernels) has
    /// checked.
    fn multiply(&mut self, product: &Product<'_>) -> Result<(), Fault>;

    /// Makes all work that is queued in `then` from now on wait for the work that is in `first` now.
    fn after(&mut self, first: Queue, then: Queue) -> Result<(), Fault>;

    /// Waits until everything in the queue is done.
    fn wait(&mut self, queue: Queue) -> Result<(), Fault>;

    /// Returns whether the device can record work and repeat it.
    fn can_record(&self) -> bool;

    /// Begins a recording: from now on, work that is queued in `Compute` is recorded and not carried out.
    fn begin_recording(&mut self) -> Result<(), Fault>;

    /// Ends the recording and returns its number.
    fn end_recording(&mut self) -> Result<usize, Fault>;

    /// Queues the work of a recording in `Compute`.
    fn repeat(&mut self, recording: usize) -> Result<(), Fault>;

    /// Deletes all recordings.
    fn forget_recordings(&mut self) -> Result<(), Fault>;
}

/// A number, or a struct of numbers without padding, with the same representation on devices and on this machine.
pub(super) trait Plain: Copy + Send + 'static {}

impl Plain for u8 {}
impl Plain for u32 {}
impl Plain for f32 {}
impl Plain for Bf16 {}

/// The bf16 of the `half` crate.
pub(super) type Bf16 = half::bf16;

/// A typed array in a device's memory. Freed with the device, or by [`Array::free`].
pub(super) struct Array<T> {
    address: u64,
    length: usize,
    holds: PhantomData<fn() -> T>,
}

/// A part of an array, borrowed for reading.
#[derive(Clone, Copy)]
pub(super) struct Part<'a, T> {
    address: u64,
    length: usize,
    holds: PhantomData<&'a T>,
}

/// A part of an array, borrowed for writing.
pub(super) struct PartMut<'a, T> {
    address: u64,
    length: usize,
    holds: PhantomData<&'a mut T>,
}

impl<T: Plain> Array<T> {
    pub(super) fn new(device: &mut dyn Device, length: usize) -> Result<Self, Fault> {
        let bytes = length.checked_mul(size_of::<T>());
        let bytes =
            bytes.ok_or_else(|| Fault::Refused(format!("{length} elements are too many")))?;
        Ok(Self {
            // Nothing may be placed at address 0.
            address: device.allocate(bytes.max(16))?,
            length,
            holds: PhantomData,
        })
    }

    /// Allocates an array in pinned, zeroed host memory.
    pub(super) fn pinned(device: &mut dyn Device, length: usize) -> Result<Self, Fault> {
        Ok(Self {
            address: device.pin((length * size_of::<T>()).max(16))?,
            length,
            holds: PhantomData,
        })
    }

    pub(super) fn of(device: &mut dyn Device, values: &[T]) -> Result<Self, Fault> {
        let mut array = Self::new(device, values.len())?;
        array.write(device, 0, values)?;
        Ok(array)
    }

    pub(super) fn free(self, device: &mut dyn Device) -> Result<(), Fault> {
        device.free(self.address)
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn all(&self) -> Part<'_, T> {
        self.part(0..self.length)
    }

    pub(super) fn all_mut(&mut self) -> PartMut<'_, T> {
        self.part_mut(0..self.length)
    }

    /// Borrows a range of the array for reading.
    ///
    /// # Panics
    /// Panics like a slice when the range is not within the array.
    pub(super) fn part(&self, range: Range<usize>) -> Part<'_, T> {
        let (address, length) = self.within(range);
        Part {
            address,
            length,
            holds: PhantomData,
        }
    }

    /// Borrows a range of the array for writing.
    ///
    /// # Panics
    /// Panics like a slice when the range is not within the array.
    pub(super) fn part_mut(&mut self, range: Range<usize>) -> PartMut<'_, T> {
        let (address, length) = self.within(range);
        PartMut {
            address,
            length,
            holds: PhantomData,
        }
    }

    /// Writes `values` to the array from index `start` on.
    ///
    /// # Panics
    /// Panics when the values do not fit after `start`.
    pub(super) fn write(
        &mut self,
        device: &mut dyn Device,
        start: usize,
        values: &[T],
    ) -> Result<(), Fault> {
        let (address, _) = self.within(start..start + values.len());
        // SAFETY: `within` has checked that the values fit into the array.
        unsafe { device.write(address, bytes_of(values)) }
    }

    /// Reads `values.len()` values of the array from index `start` on.
    ///
    /// # Panics
    /// Panics when there are fewer values after `start`.
    pub(super) fn read(
        &self,
        device: &mut dyn Device,
        start: usize,
        values: &mut [T],
    ) -> Result<(), Fault> {
        let (address, _) = self.within(start..start + values.len());
        // SAFETY: `within` has checked that the array has as many values; any bits are a value of a plain type.
        unsafe { device.read(address, bytes_of_mut(values)) }
    }

    fn within(&self, range: Range<usize>) -> (u64, usize) {
        let Range { start, end } = range;
        assert!(
            start <= end && end <= self.length,
            "{start}..{end} is not within an array of {}",
            self.length
        );
        (self.address + (start * size_of::<T>()) as u64, end - start)
    }
}

impl Array<u8> {
    /// Returns the host's view of a range of pinned memory.
    ///
    /// # Safety
    /// The array must come from [`Array::pinned`], its device must be alive, and no queue may access the range.
    ///
    /// # Panics
    /// Panics like a slice when the range is not within the array.
    pub(super) unsafe fn host(&mut self, range: Range<usize>) -> &mut [u8] {
        let (address, length) = self.within(range);
        // SAFETY: pinned memory is the host's at the device's address, zeroed when it was made.
        unsafe { std::slice::from_raw_parts_mut(address as *mut u8, length) }
    }
}

impl<T> Part<'_, T> {
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }
}

impl<T> PartMut<'_, T> {
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }
}

/// Returns the bytes of plain values.
pub(super) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: plain types are numbers without padding, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_of_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as for `bytes_of`, and any bits are a value.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
