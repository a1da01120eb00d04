//! Measures a device's peak rates with the operations that the backend itself uses: a large matrix product by cuBLASLt,
//! and a large copy by the kernel that copies pages.

use super::CudaError;
use super::device::{Array, Bf16, Device, Fault, Operands, Output, Product, Queue};
use super::driver::Driver;
use super::kernels::{self, Runs};
use std::time::Instant;

/// The highest rates that a device reached in a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Floating-point operations per second in a product of bf16 matrices; a multiplication and an addition count as
    /// two.
    pub matrix_flops: f64,
    /// Bytes per second of a copy within the device's memory; bytes read and bytes written both count.
    pub copy_bytes: f64,
}

/// Number of rows and of columns of the three square matrices of the measured product (both factors and the result).
/// Halved until all three fit into 1/32 of the device's free memory.
const SIDE: usize = 8192;

/// Number of bytes that the measured copy copies, many times the size of any cache. Halved until source and destination
/// together fit into half of the device's free memory.
const COPIED: usize = 4 << 30;

/// Number of measurements of each rate; the fastest one counts.
const RUNS: u32 = 10;

/// Measures the peak rates of device `ordinal` (its index as CUDA counts) on random numbers. Takes a second or two, and
/// up to nine gigabytes of the device's memory during that time.
///
/// # Errors
/// Returns a [`CudaError`] when there is no such device or it has too little memory.
pub fn ceilings(ordinal: u32) -> Result<Ceilings, CudaError> {
    let mut device = Driver::open(ordinal)?;
    let (side, copied) = sizes(device.free_bytes()?);
    measure(&mut device, side, copied).map_err(CudaError::from)
}

/// Returns the number of rows of the square matrices, and the number of bytes to copy, for a device with `free` bytes
/// left. The two buffers of the copy take up to half of `free`. The three matrices take up to 1/32, because a product's
/// time grows faster than its memory.
fn sizes(free: u64) -> (usize, usize) {
    let (mut side, mut copied) = (SIDE, COPIED);
    while (3 * side * side * size_of::<Bf16>()) as u64 > free / 32 {
        side /= 2;
    }
    while 2 * copied as u64 > free / 2 {
        copied /= 2;
    }
    (side, copied)
}

pub(super) fn measure(
    device: &mut dyn Device,
    side: usize,
    copied: usize,
) -> Result<Ceilings, Fault> {
    let weights = Array::of(device, &random(side * side, 1))?;
    let input = Array::of(device, &random(side * side, 2))?;
    let mut output = Array::<Bf16>::new(device, side * side)?;
    let product = fastest(device, |device| {
        let product = Product {
            operands: Operands::Bf16 {
                weights: weights.all(),
                input: input.all(),
            },
            output: Output::Bf16(output.all_mut()),
            rows: side,
            inputs: side,
            outputs: side,
        };
        kernels::multiply(device, &product)
    })?;
    let from = Array::<u8>::new(device, copied)?;
    let to = Array::<u8>::new(device, copied)?;
    // In as many pieces as make a grid.
    let pieces = 64;
    let piece = copied / pieces;
    let pairs: Vec<u32> = (0..pieces as u32)
        .flat_map(|piece| [piece, piece])
        .collect();
    let pairs = Array::of(device, &pairs)?;
    let runs = Runs {
        strides: [piece; 2],
        runs: 1,
        run: piece,
        pitch: piece,
    };
    let copy = fastest(device, |device| {
        let (from, to) = (from.all().address(), to.all().address());
        kernels::copy_pages(device, Queue::Compute, from, to, pairs.all(), &runs)
    })?;
    Ok(Ceilings {
        matrix_flops: 2.0 * (side as f64).powi(3) / product,
        copy_bytes: 2.0 * copied as f64 / copy,
    })
}

/// Returns the seconds that one call of `work` takes on the device, by the fastest of several measurements. Each
/// measurement calls it several times, to hide the latency of launches.
fn fastest(
    device: &mut dyn Device,
    mut work: impl FnMut(&mut dyn Device) -> Result<(), Fault>,
) -> Result<f64, Fault> {
    const REPEATS: u32 = 4;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        device.wait(Queue::Compute)?;
        let start = Instant::now();
        for _ in 0..REPEATS {
            work(device)?;
        }
        device.wait(Queue::Compute)?;
        best = best.min(start.elapsed().as_secs_f64() / f64::from(REPEATS));
    }
    Ok(best)
}

/// Returns `count` random numbers between -1 and 1, because products of zeroes run faster than products of numbers.
fn random(count: usize, seed: u32) -> Vec<Bf16> {
    let mut state = seed;
    let values = (0..count).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Bf16::from_f32((state >> 8) as f32 / (1u32 << 23) as f32 - 1.0)
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::tests::emulated::Emulated;

    #[test]
    fn small_devices_are_measured_by_less() {
        assert_eq!(sizes(140 << 30), (SIDE, COPIED));
        assert_eq!(sizes(15 << 30), (SIDE, COPIED / 2));
        assert_eq!(sizes(256 << 20), (1024, 64 << 20));
    }

    #[test]
    fn a_device_is_measured_by_a_product_and_a_copy() {
        let Some(mut device) = Emulated::new(false) else {
            return;
        };
        let ceilings = measure(&mut device, 64, 1 << 14).unwrap();
        assert!(
            ceilings.matrix_flops > 0.0 && ceilings.copy_bytes > 0.0,
            "{ceilings:?}"
        );
        assert!(device.launches["copy_pages"] == 40, "{:?}", device.launches);
    }
}
