//! Tests of matrix products, of few rows and of many.

use super::{Random, assert_close, devices, gated, put, read, room, wide};
use crate::backend::cuda::device::{Bf16, Output, Product};
use crate::backend::cuda::kernels;

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
                let weights = device_weights.part(0..outputs * inputs);
                let product = Product {
                    weights,
                    input: device_input.all(),
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
                kernels::multiply_gate(
                    device,
                    device_weights.all(),
                    part,
                    device_input.all(),
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
