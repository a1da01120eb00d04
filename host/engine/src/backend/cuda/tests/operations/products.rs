//! Tests of matrix products, of few rows and of many.

use super::super::fp8::narrow;
use super::{Random, assert_close, devices, gated, put, read, room, wide};
use crate::backend::cuda::device::{Array, Bf16, Device, Fp8, Operands, Output, Product};
use crate::backend::cuda::kernels;
use crate::models::fp8_value;
use half::bf16;

#[test]
fn products_of_few_and_of_many_rows_agree_with_f64() {
    for mut device in devices() {
        let device = &mut *device;
        for (number, (rows, inputs, outputs)) in [
            (1, 8, 1),
            (1, 1000, 33),
            (2, 264, 64),
            (3, 2048, 7),
            (4, 40, 130),
            (5, 72, 9),
            (130, 256, 48),
        ]
        .into_iter()
        .enumerate()
        {
            let random = &mut Random::new(number as u64);
            let (weights, input) = (
                random.narrow(2 * outputs * inputs),
                random.narrow(rows * inputs),
            );
            let (wide_weights, wide_input) = (wide(&weights), wide(&input));
            let sum = |row: usize, output: usize| -> f64 {
                let weights = &wide_weights[output * inputs..][..inputs];
                weights
                    .iter()
                    .zip(&wide_input[row * inputs..])
                    .map(|(w, x)| w * x)
                    .sum()
            };
            let sums = |outputs: usize| -> Vec<f64> {
                let row = |row: usize| (0..outputs).map(move |output| (row, output));
                let places = (0..rows).flat_map(row);
                places.map(|(row, output)| sum(row, output)).collect()
            };
            let expected = sums(outputs);
            let device_weights = put(device, &weights);
            let device_input = put(device, &input);
            let before = random.values(rows * outputs);
            let mut narrow = room::<Bf16>(device, rows * outputs);
            let mut plain = room::<f32>(device, rows * outputs);
            let mut added = put(device, &before);
            for output in [
                Output::Bf16(narrow.all_mut()),
                Output::F32(plain.all_mut()),
                Output::Add(added.all_mut()),
            ] {
                let product = Product {
                    operands: Operands::Bf16 {
                        weights: device_weights.part(0..outputs * inputs),
                        input: device_input.all(),
                    },
                    output,
                    rows,
                    inputs,
                    outputs,
                };
                kernels::multiply(device, &product).unwrap();
            }
            assert_close("product", &read(device, &narrow), &expected, 1e-4);
            for (at, (found, expected)) in read(device, &plain).iter().zip(&expected).enumerate() {
                assert!(
                    (f64::from(*found) - expected).abs() < 1e-3,
                    "{at}: {found}, {expected}"
                );
            }
            for ((found, expected), before) in
                read(device, &added).iter().zip(&expected).zip(&before)
            {
                assert!((f64::from(*found) - expected - f64::from(*before)).abs() < 1e-3);
            }
            if rows > kernels::MATVEC_ROWS {
                continue;
            }
            let bias = random.values(2 * outputs);
            let device_bias = put(device, &bias);
            for with_bias in [false, true] {
                let part = with_bias.then(|| device_bias.all());
                let mut output = room::<Bf16>(device, rows * outputs);
                let operands = Operands::Bf16 {
                    weights: device_weights.all(),
                    input: device_input.all(),
                };
                kernels::multiply_gate(
                    device,
                    operands,
                    part,
                    output.all_mut(),
                    rows,
                    inputs,
                    outputs,
                )
                .unwrap();
                let expected = gated(&sums(2 * outputs), outputs, with_bias.then_some(&bias));
                assert_close("gated product", &read(device, &output), &expected, 1e-3);
            }
        }
    }
}

/// A matrix in FP8 on a device, and its values.
struct Quantised {
    numbers: Array<u8>,
    scales: Array<f32>,
    values: Vec<f64>,
}

impl Quantised {
    fn new(device: &mut dyn Device, numbers: &[u8], scales: &[f32]) -> Self {
        let width = numbers.len() / scales.len();
        let rows = numbers.chunks(width).zip(scales);
        let value = |number: &u8, scale: f32| f64::from(fp8_value(*number)) * f64::from(scale);
        Self {
            numbers: put(device, numbers),
            scales: put(device, scales),
            values: rows
                .flat_map(|(row, scale)| row.iter().map(|number| value(number, *scale)))
                .collect(),
        }
    }

    fn all(&self) -> Fp8<'_> {
        Fp8 {
            numbers: self.numbers.all(),
            scales: self.scales.all(),
        }
    }
}

/// Shapes of products in FP8: rows, inputs and outputs.
const SHAPES: [(usize, usize, usize); 7] = [
    (1, 16, 16),
    (1, 1008, 48),
    (2, 272, 64),
    (3, 4112, 16),
    (4, 48, 144),
    (5, 80, 32),
    (130, 256, 48),
];

/// Returns the products of `operands` as bf16, as f32, and added to `before`.
fn products(
    device: &mut dyn Device,
    operands: Operands<'_>,
    (rows, inputs, outputs): (usize, usize, usize),
    before: &[f32],
) -> (Vec<bf16>, Vec<f32>, Vec<f32>) {
    let mut narrow = room::<Bf16>(device, rows * outputs);
    let mut plain = room::<f32>(device, rows * outputs);
    let mut added = put(device, before);
    for output in [
        Output::Bf16(narrow.all_mut()),
        Output::F32(plain.all_mut()),
        Output::Add(added.all_mut()),
    ] {
        let product = Product {
            operands,
            output,
            rows,
            inputs,
            outputs,
        };
        kernels::multiply(device, &product).unwrap();
    }
    (
        read(device, &narrow),
        read(device, &plain),
        read(device, &added),
    )
}

#[test]
fn products_in_fp8_agree_with_f64_within_the_rounding_of_sums() {
    for mut device in devices() {
        let device = &mut *device;
        for (number, shape) in SHAPES.into_iter().enumerate() {
            let (rows, inputs, outputs) = shape;
            let random = &mut Random::new(number as u64);
            let mut matrix = |rows: usize| {
                // Every number except NaN.
                let number = |bits: u64| if bits & 127 == 127 { 0 } else { bits as u8 };
                let numbers: Vec<u8> = (0..rows * inputs).map(|_| number(random.bits())).collect();
                let scales: Vec<f32> = (0..rows).map(|_| (2.0 + random.value()) / 512.0).collect();
                Quantised::new(device, &numbers, &scales)
            };
            let (weights, input) = (matrix(2 * outputs), matrix(rows));
            let before = random.values(rows * outputs);
            let part = Fp8 {
                numbers: weights.numbers.part(0..outputs * inputs),
                scales: weights.scales.part(0..outputs),
            };
            let operands = Operands::Fp8 {
                weights: part,
                input: input.all(),
            };
            let (narrow, plain, added) = products(device, operands, shape, &before);
            let products = |row: usize, output: usize| {
                let weights = weights.values[output * inputs..].iter().take(inputs);
                (input.values[row * inputs..].iter().zip(weights)).map(|(x, w)| x * w)
            };
            for at in 0..rows * outputs {
                let products = || products(at / outputs, at % outputs);
                let sum: f64 = products().sum();
                let sizes: f64 = products().map(f64::abs).sum();
                // Each of `inputs` additions, and each multiplication by a scale, rounds by at most 2^-24 of the sum of
                // absolute values.
                let error = (inputs + 3) as f64 * sizes * 2f64.powi(-24);
                let off = |found: f64, expected: f64| (found - expected).abs();
                assert!(off(plain[at].into(), sum) <= error, "{shape:?}, f32 {at}");
                let whole = sum + f64::from(before[at]);
                let added_error = error + (whole.abs() + error) * 2f64.powi(-24);
                assert!(
                    off(added[at].into(), whole) <= added_error,
                    "{shape:?}, added {at}"
                );
                let rounded = error + (sum.abs() + error) * 2f64.powi(-8);
                assert!(
                    off(narrow[at].to_f64(), sum) <= rounded,
                    "{shape:?}, bf16 {at}"
                );
            }
            if rows > kernels::MATVEC_ROWS {
                continue;
            }
            let bias = random.values(2 * outputs);
            let device_bias = put(device, &bias);
            let mut output = room::<Bf16>(device, rows * outputs);
            let operands = Operands::Fp8 {
                weights: weights.all(),
                input: input.all(),
            };
            let part = Some(device_bias.all());
            let to = output.all_mut();
            kernels::multiply_gate(device, operands, part, to, rows, inputs, outputs).unwrap();
            let sums: Vec<f64> = (0..rows * 2 * outputs)
                .map(|at| products(at / (2 * outputs), at % (2 * outputs)).sum())
                .collect();
            let expected = gated(&sums, outputs, Some(&bias));
            assert_close("gated FP8", &read(device, &output), &expected, 1e-3);
        }
    }
}

#[test]
fn products_of_small_integers_in_fp8_are_exact() {
    for mut device in devices() {
        let device = &mut *device;
        for (number, shape) in SHAPES.into_iter().enumerate() {
            let (rows, inputs, outputs) = shape;
            let random = &mut Random::new(number as u64);
            let mut matrix = |rows: usize| {
                let number = |value: usize| narrow(value as f32 - 4.0);
                let numbers: Vec<u8> = (0..rows * inputs)
                    .map(|_| number(random.below(9)))
                    .collect();
                let scales: Vec<f32> = (0..rows)
                    .map(|_| 2f32.powi(random.below(9) as i32 - 4))
                    .collect();
                Quantised::new(device, &numbers, &scales)
            };
            let (weights, input) = (matrix(outputs), matrix(rows));
            let operands = Operands::Fp8 {
                weights: weights.all(),
                input: input.all(),
            };
            let before = vec![0.5; rows * outputs];
            let found = products(device, operands, shape, &before);
            let sums: Vec<f32> = (0..rows * outputs)
                .map(|at| {
                    let weights = weights.values[at % outputs * inputs..].iter().take(inputs);
                    let input = input.values[at / outputs * inputs..].iter();
                    input.zip(weights).map(|(x, w)| x * w).sum::<f64>() as f32
                })
                .collect();
            let rounded = sums.iter().map(|sum| bf16::from_f32(*sum)).collect();
            let added = sums.iter().map(|sum| sum + 0.5).collect();
            assert_eq!(found, (rounded, sums, added), "{shape:?}");
        }
    }
}
