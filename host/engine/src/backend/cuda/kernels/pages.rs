//! The kernel that copies KV pages, within the device and to and from host memory.

use super::super::device::{Argument, Device, Fault, Part, Queue};
use super::{arguments, check_multiple, launch_in};

arguments! {
    struct CopyPages {
        from: u64, to: u64, pairs: u64, from_stride: u64, to_stride: u64, runs: u32, run: u32, pitch: u32, unused: u32,
    }
}

/// The layout of pages in their buffers: the distance between pages, and the runs of contiguous bytes of each page that
/// are copied.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct Runs {
    /// Bytes from the start of one page to the start of the next, in the source and in the destination.
    pub(in crate::backend::cuda) strides: [usize; 2],
    pub(in crate::backend::cuda) runs: usize,
    /// Bytes that are copied of each run, a multiple of 16.
    pub(in crate::backend::cuda) run: usize,
    /// Bytes from the start of one run to the start of the next within a page, the same in source and destination.
    pub(in crate::backend::cuda) pitch: usize,
}

/// Queues copies of pages from the buffer at address `from` to the one at address `to`. `pairs [pages][from, to]` has
/// the page ids, which must be within the buffers. The buffers may be the same one if no page is both read and written.
pub(in crate::backend::cuda) fn copy_pages(
    device: &mut dyn Device,
    queue: Queue,
    from: u64,
    to: u64,
    pairs: Part<'_, u32>,
    runs: &Runs,
) -> Result<(), Fault> {
    check_multiple("run", runs.run, 16);
    check_multiple("pitch", runs.pitch, 16);
    // A grid's y dimension is smaller than the number of pages in a pool.
    const PAGES: usize = 1 << 15;
    for first in (0..pairs.len() / 2).step_by(PAGES) {
        let argument = CopyPages {
            from,
            to,
            pairs: pairs.address() + (first * 8) as u64,
            from_stride: runs.strides[0] as u64,
            to_stride: runs.strides[1] as u64,
            runs: runs.runs as u32,
            run: runs.run as u32,
            pitch: runs.pitch as u32,
            unused: 0,
        };
        let pages = PAGES.min(pairs.len() / 2 - first);
        let grid = [(runs.runs * runs.run).div_ceil(256 * 16), pages, 1];
        // SAFETY: pages are within their buffers, and runs within pages, as the pool that calls has checked.
        unsafe { launch_in(device, queue, "copy_pages", grid, 256, 0, &argument)? };
    }
    Ok(())
}
