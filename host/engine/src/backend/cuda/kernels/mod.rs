//! One safe function per kernel: each checks shapes and lengths against the memory that it is given, then launches.
//!
//! The argument structs mirror the kernels' own, field by field (`kernels/*.cu`): pointers first, then 32-bit numbers.
//! The emulator knows the sizes of both and refuses a launch where they differ.
//!
//! ```text
//!   rows       embedding, norms, gate, FP8       products   few rows; more are the library's
//!   attention  heads, prefill, decode            pages      copies            sampling   a token from a row
//! ```

mod attention;
mod pages;
mod products;
mod rows;
mod sampling;

pub(super) use attention::{
    Context, HeadWeights, Item, Partials, Places, combine_items, decode, decode_splits,
    place_heads, prefill,
};
pub(super) use pages::{Runs, copy_pages};
pub(super) use products::{multiply, multiply_gate};
pub(super) use rows::{embed_rows, gate_rows, keep_rows, norm_rows, quantise_rows};
pub(super) use sampling::sample_rows;

use super::device::{Argument, Device, Fault, Launch, Part, Queue};

/// Maximum number of rows of a work item of prefill attention: its tokens times the query heads that share a key and
/// value head.
pub(super) const PREFILL_ROWS: usize = 128;
/// Prefill attention divides positions into ranges (splits) that begin and end at multiples of this: whole blocks of
/// keys for every kernel.
pub(super) const PREFILL_KEYS: u32 = 128;
/// Maximum number of ranges (splits) into which the positions that one token attends to are divided.
pub(super) const MAX_SPLITS: u32 = 64;
/// Maximum number of rows (tokens) for which the kernel `matvec` computes matrix products; cuBLASLt computes larger
/// ones.
pub(super) const MATVEC_ROWS: usize = 4;
/// The value that marks padding in a list of the places where rows' keys and values are stored.
pub(super) const NO_SLOT: u32 = u32::MAX;
/// The largest width of an attention head, in elements, that the kernels have registers for.
pub(super) const MAX_HEAD: usize = 128;

/// Dimensions of a model's attention and of its KV pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    /// Width of a head in elements: a multiple of 8, at most [`MAX_HEAD`].
    pub(super) head_dim: usize,
    /// Tokens in a KV page, a power of two.
    pub(super) page_tokens: usize,
}

impl Heads {
    /// Returns the number of elements in one layer's part of a KV page: keys and values of all heads.
    pub(super) fn page(&self) -> usize {
        2 * self.kv_heads * self.page_tokens * self.head_dim
    }

    /// Returns the number of elements of one token's queries, over all heads.
    pub(super) fn queries(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the number of query heads that share a key and value head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn page_shift(&self) -> u32 {
        self.page_tokens.trailing_zeros()
    }

    /// Returns the width of a head in elements with which the kernels compute, 64 or 128; narrower heads are padded
    /// with zeroes.
    fn width(&self) -> usize {
        if self.head_dim <= 64 { 64 } else { MAX_HEAD }
    }

    /// Returns the factor by which attention scores are multiplied; it includes log2(e), because the softmax uses
    /// powers of two.
    fn scale(&self) -> f32 {
        std::f32::consts::LOG2_E / (self.head_dim as f32).sqrt()
    }
}

macro_rules! arguments {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            struct $name { $($field: $type),* }

            impl Argument for $name {
                fn raw(&self) -> (*const u8, usize) {
                    (std::ptr::from_ref(self).cast(), size_of::<Self>())
                }
            }
        )*
    };
}

use arguments;

/// Returns the device address of a range of an array, or 0 for `None`.
fn address<T>(part: Option<Part<'_, T>>) -> u64 {
    part.map_or(0, |part| part.address())
}

#[track_caller]
fn check(name: &str, found: usize, wanted: usize) {
    assert!(
        found >= wanted,
        "{name} has {found} elements, {wanted} are needed"
    );
}

#[track_caller]
fn check_multiple(name: &str, value: usize, of: usize) {
    assert!(
        value.is_multiple_of(of),
        "{name} is {value}, not a multiple of {of}"
    );
}

/// Queues a launch of `kernel` in the compute queue, with `shared` bytes of shared memory for each block. Does nothing
/// if the grid is empty.
///
/// # Safety
/// The conditions of [`Device::launch`] must hold.
unsafe fn launch(
    device: &mut dyn Device,
    kernel: &'static str,
    grid: [usize; 3],
    threads: u32,
    shared: usize,
    argument: &dyn Argument,
) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe {
        launch_in(
            device,
            Queue::Compute,
            kernel,
            grid,
            threads,
            shared,
            argument,
        )
    }
}

/// Queues a launch as [`launch`] does, in the queue that is given.
///
/// # Safety
/// The conditions of [`Device::launch`] must hold.
unsafe fn launch_in(
    device: &mut dyn Device,
    queue: Queue,
    kernel: &'static str,
    grid: [usize; 3],
    threads: u32,
    shared: usize,
    argument: &dyn Argument,
) -> Result<(), Fault> {
    if grid.contains(&0) {
        return Ok(());
    }
    let [x, y, z] = grid;
    assert!(
        x < 1 << 31 && y < 1 << 16 && z < 1 << 16,
        "{kernel}: a grid of {x} × {y} × {z} blocks is more than 2147483647 × 65535 × 65535"
    );
    let launch = Launch {
        kernel,
        grid: grid.map(|blocks| blocks as u32),
        threads,
        shared: shared as u32,
        argument,
    };
    // SAFETY: the caller's promise.
    unsafe { device.launch(queue, &launch) }
}
