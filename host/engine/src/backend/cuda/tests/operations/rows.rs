//! Tests of the work on rows between two products.

use super::super::fp8::quantised;
use super::{Random, assert_close, devices, gated, put, read, room, wide};
use crate::backend::cuda::device::Bf16;
use crate::backend::cuda::kernels;
use half::bf16;

#[test]
fn rows_are_embedded_chosen_and_normed() {
    for mut device in devices() {
        let device = &mut *device;
        for (hidden, rows) in [(8, 1), (64, 3), (1032, 5), (3584, 2)] {
            let random = &mut Random::new(hidden as u64);
            let table = random.narrow(11 * hidden);
            let tokens: Vec<u32> = (0..rows).map(|_| random.below(11) as u32).collect();
            let device_table = put(device, &table);
            let device_tokens = put(device, &tokens);
            let mut residual = room::<f32>(device, rows * hidden);
            kernels::embed_rows(
                device,
                device_table.all(),
                device_tokens.all(),
                residual.all_mut(),
                hidden,
            )
            .unwrap();
            let embedded: Vec<f32> = tokens
                .iter()
                .flat_map(|token| {
                    table[*token as usize * hidden..][..hidden]
                        .iter()
                        .map(|x| x.to_f32())
                })
                .collect();
            assert_eq!(read(device, &residual), embedded);

            let chosen: Vec<u32> = (0..rows as u32).rev().chain([0]).collect();
            let device_chosen = put(device, &chosen);
            let mut kept = room::<f32>(device, chosen.len() * hidden);
            kernels::keep_rows(
                device,
                residual.all(),
                device_chosen.all(),
                kept.all_mut(),
                hidden,
            )
            .unwrap();
            let expected: Vec<f32> = chosen
                .iter()
                .flat_map(|row| &embedded[*row as usize * hidden..][..hidden])
                .copied()
                .collect();
            assert_eq!(read(device, &kept), expected);

            let (bias, weights) = (random.values(hidden), random.values(hidden));
            let device_bias = put(device, &bias);
            let device_weights = put(device, &weights);
            for with_bias in [false, true] {
                let mut residual = put(device, &embedded);
                let mut output = room::<Bf16>(device, rows * hidden);
                let bias_part = with_bias.then(|| device_bias.all());
                kernels::norm_rows(
                    device,
                    residual.all_mut(),
                    bias_part,
                    device_weights.all(),
                    output.all_mut(),
                    rows,
                    1e-6,
                )
                .unwrap();
                let mut sums: Vec<f64> = embedded.iter().copied().map(f64::from).collect();
                if with_bias {
                    sums.iter_mut()
                        .zip(bias.iter().cycle())
                        .for_each(|(x, bias)| *x += f64::from(*bias));
                }
                for (found, expected) in read(device, &residual).iter().zip(&sums) {
                    assert!((f64::from(*found) - expected).abs() < 1e-6);
                }
                let normed: Vec<f64> = sums
                    .chunks(hidden)
                    .flat_map(|row| {
                        let scale = 1.0
                            / (row.iter().map(|x| x * x).sum::<f64>() / hidden as f64 + 1e-6)
                                .sqrt();
                        row.iter()
                            .zip(&weights)
                            .map(move |(x, w)| x * scale * f64::from(*w))
                            .collect::<Vec<_>>()
                    })
                    .collect();
                assert_close("normed", &read(device, &output), &normed, 1e-4);
            }
        }
    }
}

#[test]
fn the_gate_is_applied_with_and_without_bias() {
    for mut device in devices() {
        let device = &mut *device;
        for (rows, width) in [(1, 8), (3, 200), (2, 4096)] {
            let random = &mut Random::new(width as u64);
            let sums: Vec<bf16> = random
                .narrow(rows * width * 2)
                .iter()
                .map(|x| bf16::from_f32(x.to_f32() * 6.0))
                .collect();
            let bias = random.values(width * 2);
            let device_sums = put(device, &sums);
            let device_bias = put(device, &bias);
            for with_bias in [false, true] {
                let mut output = room::<Bf16>(device, rows * width);
                let part = with_bias.then(|| device_bias.all());
                kernels::gate_rows(
                    device,
                    device_sums.all(),
                    part,
                    output.all_mut(),
                    rows,
                    width,
                )
                .unwrap();
                let expected = gated(&wide(&sums), width, with_bias.then_some(&bias));
                assert_close("gate", &read(device, &output), &expected, 1e-5);
            }
        }
    }
}

#[test]
fn rows_are_quantised_to_the_nearest_numbers() {
    // Every value up to 448, with both signs: the scale is 1, so ties, subnormal numbers and the largest number occur.
    let all: Vec<bf16> = (0..=0x43e0)
        .flat_map(|bits| [bits, bits | 0x8000])
        .map(bf16::from_bits)
        .collect();
    let most = bf16::from_f32(448.0);
    let mut rows: Vec<Vec<bf16>> = (all.chunks(1007))
        .map(|values| {
            values
                .iter()
                .copied()
                .chain([most; 1008])
                .take(1008)
                .collect()
        })
        .collect();
    let whole = rows.len();
    // Scales that are no powers of two, and so small that a quotient exceeds 448.
    let random = &mut Random::new(1);
    for size in [1e-40, 1e-30, 0.3, 7.0, 1e30] {
        let values = random.values(1008).into_iter();
        rows.push(values.map(|x| bf16::from_f32(x * size)).collect());
    }
    rows.push(vec![bf16::from_bits(1); 1008]);
    rows.push(vec![-bf16::ZERO; 1008]);
    for special in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
        let mut row = random.narrow(1008);
        row[601] = special;
        rows.push(row);
    }
    let (count, width) = (rows.len(), 1008);
    for mut device in devices() {
        let device = &mut *device;
        let input = put(device, &rows.concat());
        let mut numbers = room::<u8>(device, count * width);
        let mut scales = room::<f32>(device, count);
        kernels::quantise_rows(
            device,
            input.all(),
            numbers.all_mut(),
            scales.all_mut(),
            count,
            width,
        )
        .unwrap();
        let (numbers, scales) = (read(device, &numbers), read(device, &scales));
        for (at, row) in rows.iter().enumerate() {
            let (expected, scale) = quantised(row);
            assert_eq!(scales[at].to_bits(), scale.to_bits(), "scale of row {at}");
            assert!(numbers[at * width..][..width] == expected, "row {at}");
        }
        assert_eq!(scales[..whole], vec![1.0; whole]);
        assert_eq!(numbers[(count - 5) * width], 0x7e, "saturated");
        assert_eq!(
            (scales[count - 4], numbers[(count - 4) * width]),
            (1.0, 0x80)
        );
        assert!(numbers[(count - 3) * width..].iter().all(|n| *n == 0x7f));
    }
}

#[test]
#[should_panic(expected = "residual has 63 elements, 64 are needed")]
fn a_buffer_that_is_too_short_is_refused() {
    let Some(mut device) = devices().pop() else {
        panic!("residual has 63 elements, 64 are needed (skipped: no device)");
    };
    let device = &mut *device;
    let mut residual = room::<f32>(device, 63);
    let weights = room::<f32>(device, 32);
    let mut output = room::<Bf16>(device, 64);
    let _ = kernels::norm_rows(
        device,
        residual.all_mut(),
        None,
        weights.all(),
        output.all_mut(),
        2,
        1e-5,
    );
}
