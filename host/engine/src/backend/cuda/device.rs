//! What the backend asks of a device, and nothing else: memory, launches, products, two queues.
//!
//! ```text
//!   Compute   launch ─ multiply ─ launch ─────────▶ ┐ after(Copy, Compute): what follows in `Compute` waits for
//!   Copy      launch (pages of layer 0, 1, …) ────▶ ┘ what stands in `Copy` now
//! ```
//!
//! Implemented by the [driver](super::driver) and, in tests, by an emulator that runs the same kernels on the CPU. Memory
//! is named by address and length; what it holds has a type ([`Array`]), and a kernel's caller borrows it as Rust's
//! slices are borrowed.

use std::marker::PhantomData;
use std::ops::Range;

/// Where work is put, in order; the two run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// The model's arithmetic.
    Compute,
    /// Pages that come and go.
    Copy,
}

/// Why a device did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// It refused; what it holds is as it was.
    #[error("{0}")]
    Refused(String),
    /// It is lost with all that it held.
    #[error("{0}")]
    Lost(String),
}

/// A kernel's launch.
pub(super) struct Launch<'a> {
    pub(super) kernel: &'static str,
    pub(super) grid: [u32; 3],
    /// Threads of a block.
    pub(super) threads: u32,
    /// Bytes of shared memory of a block.
    pub(super) shared: u32,
    /// The kernel's one argument.
    pub(super) argument: &'a dyn Argument,
}

/// A struct that a kernel takes, laid out as C does.
pub(super) trait Argument {
    /// Its address and size.
    fn raw(&self) -> (*const u8, usize);
}

/// `output = input · weightsᵀ`, sums in f32.
pub(super) struct Product<'a> {
    /// `[outputs, inputs]`.
    pub(super) weights: Part<'a, Bf16>,
    /// `[rows, inputs]`.
    pub(super) input: Part<'a, Bf16>,
    /// `[rows, outputs]`.
    pub(super) output: Output<'a>,
    pub(super) rows: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

/// Where a product goes.
pub(super) enum Output<'a> {
    /// Rounded.
    Bf16(PartMut<'a, Bf16>),
    /// As it is.
    F32(PartMut<'a, f32>),
    /// Added to what stands there.
    Add(PartMut<'a, f32>),
}

/// A device, or something that plays one. Errors may come late: with a later call, at the latest with [`Device::wait`].
pub(super) trait Device: Send {
    /// In words, for logs.
    fn name(&self) -> &str;

    /// Units that run blocks side by side.
    fn processors(&self) -> u32;

    /// Whether its kernels include those that multiply by warpgroups (`kernels/prefill_wide.cu`): compute capability 9.0,
    /// by code compiled for `sm_90a`.
    fn has_warpgroups(&self) -> bool;

    /// Bytes that could be allocated now.
    fn free_bytes(&mut self) -> Result<u64, Fault>;

    /// An address divisible by 16 (256 on real devices). What stands there is undefined. Freed with the device.
    fn allocate(&mut self, bytes: usize) -> Result<u64, Fault>;

    /// Frees what was allocated, once nothing in the queues uses it.
    fn free(&mut self, address: u64) -> Result<(), Fault>;

    /// Zeroed memory of the host that the device reaches at the same address.
    fn pin(&mut self, bytes: usize) -> Result<u64, Fault>;

    /// Puts a copy to device memory into `Compute`; the bytes may change once it returns.
    ///
    /// # Safety
    /// `to` and the bytes behind it are of this device's memory.
    unsafe fn write(&mut self, to: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// Copies from device memory, after everything in `Compute`.
    ///
    /// # Safety
    /// As for [`Device::write`].
    unsafe fn read(&mut self, from: u64, bytes: &mut [u8]) -> Result<(), Fault>;

    /// Puts a launch into a queue.
    ///
    /// # Safety
    /// The argument is the kernel's, and the kernel stays within the memory that it names.
    unsafe fn launch(&mut self, queue: Queue, launch: &Launch<'_>) -> Result<(), Fault>;

    /// Puts a product into `Compute`. The parts are as long as the shapes say: [`kernels`](super::kernels) has checked.
    fn multiply(&mut self, product: &Product<'_>) -> Result<(), Fault>;

    /// What is put into `then` from now on begins after what stands in `first`.
    fn after(&mut self, first: Queue, then: Queue) -> Result<(), Fault>;

    /// Returns when everything in the queue is done.
    fn wait(&mut self, queue: Queue) -> Result<(), Fault>;

    /// Whether work can be recorded and repeated.
    fn can_record(&self) -> bool;

    /// From now on, what is put into `Compute` is recorded and not done.
    fn begin_recording(&mut self) -> Result<(), Fault>;

    /// What was recorded, by number.
    fn end_recording(&mut self) -> Result<usize, Fault>;

    /// Puts everything that was recorded into `Compute`.
    fn repeat(&mut self, recording: usize) -> Result<(), Fault>;

    /// Forgets all recordings.
    fn forget_recordings(&mut self) -> Result<(), Fault>;
}

/// A number that devices and this machine write alike.
pub(super) trait Plain: Copy + Send + 'static {}

impl Plain for u8 {}
impl Plain for u32 {}
impl Plain for f32 {}
impl Plain for Bf16 {}

/// [`half::bf16`] by the name of its format.
pub(super) type Bf16 = half::bf16;

/// Memory of a device with a type. Freed with the device, or by [`Array::free`].
pub(super) struct Array<T> {
    address: u64,
    length: usize,
    holds: PhantomData<fn() -> T>,
}

/// Some of an array, to be read.
#[derive(Clone, Copy)]
pub(super) struct Part<'a, T> {
    address: u64,
    length: usize,
    holds: PhantomData<&'a T>,
}

/// Some of an array, to be written.
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
            // Nothing is placed at address 0.
            address: device.allocate(bytes.max(16))?,
            length,
            holds: PhantomData,
        })
    }

    /// Of the host's memory, pinned and zeroed.
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

    /// # Panics
    /// As slices do, when the range is not within the array.
    pub(super) fn part(&self, range: Range<usize>) -> Part<'_, T> {
        let (address, length) = self.within(range);
        Part {
            address,
            length,
            holds: PhantomData,
        }
    }

    /// # Panics
    /// As [`Array::part`].
    pub(super) fn part_mut(&mut self, range: Range<usize>) -> PartMut<'_, T> {
        let (address, length) = self.within(range);
        PartMut {
            address,
            length,
            holds: PhantomData,
        }
    }

    /// # Panics
    /// When the values do not fit behind `start`.
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

    /// # Panics
    /// When there are fewer values behind `start`.
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
    /// The host's view of pinned memory.
    ///
    /// # Safety
    /// The array was made by [`Array::pinned`], its device is alive, and nothing in the queues touches the range.
    ///
    /// # Panics
    /// As [`Array::part`].
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

/// The bytes of plain values.
pub(super) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: plain types are numbers without padding, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_of_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as for `bytes_of`, and any bits are a value.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
