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

/// A queue of work on the device (a CUDA stream). Each of the two runs its work in order; they run concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// The queue of the model's arithmetic.
    Compute,
    /// The queue of copies of pages between the device's pool and the pool in host memory.
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

/// A launch of one CUDA kernel, with its grid and its argument.
pub(super) struct Launch<'a> {
    pub(super) kernel: &'static str,
    pub(super) grid: [u32; 3],
    /// Number of threads in a thread block.
    pub(super) threads: u32,
    /// Bytes of dynamic shared memory of each thread block.
    pub(super) shared: u32,
    /// The only argument of the kernel, a struct that matches the kernel's own.
    pub(super) argument: &'a dyn Argument,
}

/// A struct with C layout that a kernel takes as its argument.
pub(super) trait Argument {
    /// Returns the address of the struct and its size in bytes.
    fn raw(&self) -> (*const u8, usize);
}

/// A matrix product `output = input · weightsᵀ`, summed in f32.
pub(super) struct Product<'a> {
    pub(super) operands: Operands<'a>,
    /// Where the output, a matrix `[rows, outputs]`, is written, and how.
    pub(super) output: Output<'a>,
    pub(super) rows: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

/// The factors of a matrix product: `weights [outputs, inputs]` and `input [rows, inputs]`.
#[derive(Clone, Copy)]
pub(super) enum Operands<'a> {
    Bf16 {
        weights: Part<'a, Bf16>,
        input: Part<'a, Bf16>,
    },
    Fp8 {
        weights: Fp8<'a>,
        input: Fp8<'a>,
    },
}

/// A matrix in FP8 (E4M3), borrowed for reading, with a scale for each row.
#[derive(Clone, Copy)]
pub(super) struct Fp8<'a> {
    /// The numbers, one byte each.
    pub(super) numbers: Part<'a, u8>,
    /// For each row, the factor by which its numbers are multiplied.
    pub(super) scales: Part<'a, f32>,
}

impl Operands<'_> {
    /// Returns the addresses of the weights and of the input.
    pub(super) fn addresses(&self) -> [u64; 2] {
        match self {
            Self::Bf16 { weights, input } => [weights.address(), input.address()],
            Self::Fp8 { weights, input } => [weights.numbers.address(), input.numbers.address()],
        }
    }

    /// Returns the addresses of the scales of the weights and of the input; `None` for operands in bf16.
    pub(super) fn scales(&self) -> Option<[u64; 2]> {
        match self {
            Self::Bf16 { .. } => None,
            Self::Fp8 { weights, input } => {
                Some([weights.scales.address(), input.scales.address()])
            }
        }
    }
}

/// Destination of a matrix product, and how the sums are written to it.
pub(super) enum Output<'a> {
    /// Sums are rounded to bf16 and overwrite the destination.
    Bf16(PartMut<'a, Bf16>),
    /// Sums are written as f32 and overwrite the destination.
    F32(PartMut<'a, f32>),
    /// Sums are added to the present content of the destination, in f32.
    Add(PartMut<'a, f32>),
}

/// A device, or an emulation of one. Errors of queued work may be reported late: by a later call, at the latest by
/// [`Device::wait`].
pub(super) trait Device: Send {
    /// Returns the device's name, for logs.
    fn name(&self) -> &str;

    /// Returns the number of multiprocessors, each of which runs thread blocks concurrently with the others.
    fn processors(&self) -> u32;

    /// Returns whether the loaded code has kernels that multiply matrices by groups of four warps (warpgroups,
    /// `kernels/prefill_wide.cu`). These need compute capability 9.0 and code compiled for `sm_90a`.
    fn has_warpgroups(&self) -> bool;

    /// Returns the number of bytes of device memory that could be allocated now.
    fn free_bytes(&mut self) -> Result<u64, Fault>;

    /// Allocates device memory and returns its address, divisible by 16 (on real devices by 256). The content is
    /// undefined. The memory is freed with the device, or by [`Device::free`].
    fn allocate(&mut self, bytes: usize) -> Result<u64, Fault>;

    /// Waits until no queue uses the memory at `address` any more, then frees it.
    fn free(&mut self, address: u64) -> Result<(), Fault>;

    /// Allocates zeroed, pinned host memory and returns its address, at which the device can access it too.
    fn pin(&mut self, bytes: usize) -> Result<u64, Fault>;

    /// Queues a copy of `bytes` to device memory at address `to`, in [`Queue::Compute`]. The bytes may change once the
    /// call returns.
    ///
    /// # Safety
    /// The range of `bytes.len()` bytes from `to` must lie within this device's memory.
    unsafe fn write(&mut self, to: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// Copies from device memory at address `from` to `bytes`, after everything in [`Queue::Compute`], and waits for
    /// it.
    ///
    /// # Safety
    /// The range of `bytes.len()` bytes from `from` must lie within this device's memory.
    unsafe fn read(&mut self, from: u64, bytes: &mut [u8]) -> Result<(), Fault>;

    /// Queues a launch of a kernel in `queue`.
    ///
    /// # Safety
    /// The argument must be the kernel's, and the kernel must stay within the memory that the argument names.
    unsafe fn launch(&mut self, queue: Queue, launch: &Launch<'_>) -> Result<(), Fault>;

    /// Returns the reason why [`Device::multiply`] does not support operands in FP8, for products of `inputs` and
    /// `outputs`; `None` if it does.
    fn refuses_fp8(&mut self, inputs: usize, outputs: usize) -> Result<Option<String>, Fault>;

    /// Queues a matrix product in [`Queue::Compute`]. Operands in FP8 need inputs and outputs divisible by 16. The
    /// operands must have the lengths that its shape says; [`kernels`](super::kernels) checks that.
    fn multiply(&mut self, product: &Product<'_>) -> Result<(), Fault>;

    /// Makes all work that is queued in `then` from now on wait for the work that is in `first` now. Returns at once.
    fn after(&mut self, first: Queue, then: Queue) -> Result<(), Fault>;

    /// Waits until everything that has been queued in `queue` is done.
    fn wait(&mut self, queue: Queue) -> Result<(), Fault>;

    /// Returns whether the device can record work (in a CUDA graph) and repeat it.
    fn can_record(&self) -> bool;

    /// Begins a recording: from now on, work that is queued in [`Queue::Compute`] is recorded and not carried out.
    fn begin_recording(&mut self) -> Result<(), Fault>;

    /// Ends the recording and returns its index, for [`Device::repeat`].
    fn end_recording(&mut self) -> Result<usize, Fault>;

    /// Queues the work of a recording, given its index, in [`Queue::Compute`].
    fn repeat(&mut self, recording: usize) -> Result<(), Fault>;

    /// Deletes all recordings; their indices become invalid.
    fn forget_recordings(&mut self) -> Result<(), Fault>;
}

/// A number, or a struct of numbers without padding, with the same representation on devices and on this machine, so
/// that it can be copied as bytes.
pub(super) trait Plain: Copy + Send + 'static {}

impl Plain for u8 {}
impl Plain for u32 {}
impl Plain for f32 {}
impl Plain for Bf16 {}

/// The 16-bit number type bf16, of the `half` crate.
pub(super) type Bf16 = half::bf16;

/// A typed array in a device's memory. Freed with the device, or by [`Array::free`].
pub(super) struct Array<T> {
    address: u64,
    length: usize,
    holds: PhantomData<fn() -> T>,
}

/// A range of an array in device memory, borrowed for reading.
#[derive(Clone, Copy)]
pub(super) struct Part<'a, T> {
    address: u64,
    length: usize,
    holds: PhantomData<&'a T>,
}

/// A range of an array in device memory, borrowed for writing.
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

    /// Writes `values` to the array on the device, from index `start` on.
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

    /// Reads the array on the device from index `start` on, and fills `values`.
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
    /// Returns a range of an array in pinned memory as a slice that this machine can access.
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

/// Returns the bytes that represent the values, in memory order.
pub(super) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: plain types are numbers without padding, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_of_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as for `bytes_of`, and any bits are a value.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
