//! Tests of each kernel against the same operation written plainly in f64, on random shapes: odd sizes, groups of query
//! heads, page sizes, prefixes, one token, none.

mod attention;
mod memory;
mod pages;
mod products;
mod rows;
mod sampling;

use super::{Random, devices, is_emulated};
use crate::backend::cuda::device::{Array, Device, Plain};
use half::bf16;

fn wide(values: &[bf16]) -> Vec<f64> {
    values
        .iter()
        .map(|value| f64::from(value.to_f32()))
        .collect()
}

/// Compares a result in bf16, allowing half a unit in its last place and the error of f32 sums.
fn assert_close(name: &str, found: &[bf16], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found.to_f32()) - expected).abs();
        assert!(
            error <= tolerance + expected.abs() / 256.0,
            "{name}[{at}] is {found}, expected {expected}"
        );
    }
}

fn put<T: Plain>(device: &mut dyn Device, values: &[T]) -> Array<T> {
    Array::of(device, values).unwrap()
}

fn room<T: Plain>(device: &mut dyn Device, count: usize) -> Array<T> {
    Array::new(device, count).unwrap()
}

fn read<T: Plain + Default>(device: &mut dyn Device, array: &Array<T>) -> Vec<T> {
    let mut values = vec![T::default(); array.len()];
    array.read(device, 0, &mut values).unwrap();
    values
}

/// Returns `silu(gate) * up` of rows `[gate, up]`, `width` of each, with the bias `[gate, up]`.
fn gated(sums: &[f64], width: usize, bias: Option<&[f32]>) -> Vec<f64> {
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let rows = sums.chunks(2 * width);
    rows.flat_map(|row| {
        let biased = |at: usize| row[at] + bias.map_or(0.0, |bias| f64::from(bias[at]));
        (0..width)
            .map(|at| silu(biased(at)) * biased(width + at))
            .collect::<Vec<_>>()
    })
    .collect()
}
