//! The microkernel without intrinsics, for CPUs without supported vector instructions, and the simplest to read.
//!
//! The loops have constant bounds, so that the compiler vectorises them with what the target has. The fused
//! multiply-add is used only where the target has it as an instruction (aarch64), because emulating it is far slower
//! than rounding twice.

use super::{Checked, LANES, Loop, STRIDE, Scalar, Start, TILE_ROWS};

/// Number of rows computed at once: four rows of sixteen values fit the 32 vector registers of aarch64 and strain
/// x86-64's sixteen.
const ROWS: usize = 4;

const FMA: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

pub(super) fn run(body: impl Loop) {
    body.run::<FMA>();
}

pub(super) fn multiply<E: Scalar>(product: Checked<'_, E>) {
    let product = product.0;
    for column in (0..product.columns).step_by(LANES) {
        let mut row = product.rows.start;
        while row < product.rows.end {
            let within = row % TILE_ROWS;
            let left = (TILE_ROWS - within).min(product.rows.end - row);
            let a = &product.a[row / TILE_ROWS * product.a_tile + within * STRIDE..];
            let b = &product.b[column.min(product.b.len())..];
            let c = &mut product.c[(row - product.rows.start) * product.c_stride + column..];
            let shape = (product.k, product.b_stride, product.c_stride, product.start);
            row += if left >= ROWS {
                tile::<E, ROWS>(a, b, c, shape);
                ROWS
            } else {
                tile::<E, 1>(a, b, c, shape);
                1
            };
        }
    }
}

fn tile<E: Scalar, const ROWS: usize>(
    a: &[f32],
    b: &[E],
    c: &mut [f32],
    (k, b_stride, c_stride, start): (usize, usize, usize, Start),
) {
    let mut sums = [[0f32; LANES]; ROWS];
    if start == Start::Sum {
        for (row, sums) in sums.iter_mut().enumerate() {
            sums.copy_from_slice(&c[row * c_stride..][..LANES]);
        }
    }
    for k in 0..k {
        let b = &b[k * b_stride..][..LANES];
        for (row, sums) in sums.iter_mut().enumerate() {
            let a = a[row * STRIDE + k];
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = super::lanes::fma::<FMA>(a, b.widen(), *sum);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        c[row * c_stride..][..LANES].copy_from_slice(sums);
    }
}
