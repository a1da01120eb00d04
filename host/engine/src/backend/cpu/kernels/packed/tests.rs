use super::super::Kernels;
use super::super::tests::numbers;
use super::*;
use proptest::prelude::*;

const PACKINGS: [Packing; 8] = [
    Packing::Q4_0,
    Packing::Q4_1,
    Packing::Q5_0,
    Packing::Q5_1,
    Packing::Q8_0,
    Packing::Q4K,
    Packing::Q5K,
    Packing::Q6K,
];

/// Returns random packed rows with finite scales.
fn packed_rows(packing: Packing, seed: u32, outputs: usize, inputs: usize) -> Vec<Vec<u8>> {
    let (count, size) = packing.block();
    let bytes = inputs / count * size;
    let row = |output: usize| {
        let random = numbers(seed.wrapping_add(output as u32 * 7), bytes);
        let mut row: Vec<u8> = random.iter().map(|x| (x * 1e6) as i32 as u8).collect();
        for (at, block) in row.chunks_exact_mut(size).enumerate() {
            let scales = block[packing.scale()..].as_chunks_mut::<2>().0;
            scales[0] = f16::from_f32(0.01 + at as f32 * 0.003).to_le_bytes();
            if packing.f16s() == 2 {
                scales[1] = f16::from_f32(-0.4 + output as f32 * 0.02).to_le_bytes();
            }
        }
        row
    };
    (0..outputs).map(row).collect()
}

fn panel(packing: Packing, rows: &[Vec<u8>], inputs: usize) -> Vec<u8> {
    let mut panel = vec![0; panel_bytes(packing, inputs)];
    for (output, row) in rows.iter().enumerate() {
        pack_row(packing, row, output, &mut panel);
    }
    panel
}

/// Activations rounded to 8 bits, with the scale and sum of each block.
struct Rounded {
    integers: Vec<i8>,
    scales: Vec<[f32; 2]>,
    inputs: usize,
}

impl Rounded {
    fn of(kernels: Kernels, values: &[f32], inputs: usize) -> Self {
        let mut rounded = Self {
            integers: vec![0; values.len()],
            scales: vec![[0.0; 2]; values.len() / BLOCK],
            inputs,
        };
        kernels.run(Quantise {
            from: values,
            integers: &mut rounded.integers,
            scales: &mut rounded.scales,
        });
        rounded
    }

    fn value(&self, row: usize, input: usize) -> f64 {
        let at = row * self.inputs + input;
        f64::from(self.integers[at]) * f64::from(self.scales[at / BLOCK][0])
    }

    fn multiply(
        &self,
        kernels: Kernels,
        (packing, panel): (Packing, &[u8]),
        rows: Range<usize>,
        blocks: Range<usize>,
        c: &mut [f32],
    ) {
        kernels.multiply_packed(PackedProduct {
            a: &self.integers,
            scales: &self.scales,
            inputs: self.inputs,
            rows,
            packing,
            panel,
            blocks,
            c,
        });
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn products_are_those_of_the_unpacked_weights_and_the_rounded_activations() {
    let (inputs, count) = (512, 7);
    let values = numbers(3, count * inputs);
    for packing in PACKINGS {
        let rows = packed_rows(packing, 5, PANEL, inputs);
        let panel = panel(packing, &rows, inputs);
        for kernels in Kernels::available() {
            let a = Rounded::of(kernels, &values, inputs);
            let mut c = vec![f32::NAN; count * PANEL];
            a.multiply(
                kernels,
                (packing, &panel),
                0..count,
                0..inputs / BLOCK,
                &mut c,
            );
            for (output, packed) in rows.iter().enumerate() {
                let (numbers, size) = packing.block();
                let mut weights = Vec::new();
                for block in packed.chunks_exact(size) {
                    let mut values = [0.0; 256];
                    packing.unpack(block, &mut values);
                    weights.extend_from_slice(&values[..numbers]);
                }
                let mut widened = vec![0.0; inputs];
                row(packing, &panel, output, &mut widened);
                assert_eq!(widened, weights, "{packing:?} {output}");
                for row in 0..count {
                    let terms = (0..inputs).map(|at| a.value(row, at) * f64::from(weights[at]));
                    let (sum, size) = terms.fold((0.0, 0.0), |(s, t), x| (s + x, t + x.abs()));
                    // Five roundings of each block's value, and one of each sum of blocks; offsets cancel part of the
                    // integers' sums, which are at most 16 times the terms.
                    let bound = size * (16.0 * 5.0 + (inputs / BLOCK) as f64) * 2f64.powi(-24);
                    let got = f64::from(c[row * PANEL + output]);
                    assert!(
                        (got - sum).abs() <= bound,
                        "{packing:?} {kernels:?} {row} {output}: {got}, {sum} within {bound}"
                    );
                    // Rounding moves each activation by at most half a step of its block.
                    let exact = (0..inputs)
                        .map(|at| f64::from(values[row * inputs + at]) * f64::from(weights[at]));
                    let steps = (0..inputs).map(|at| {
                        let [scale, _] = a.scales[(row * inputs + at) / BLOCK];
                        f64::from(scale) / 2.0 * f64::from(weights[at]).abs()
                    });
                    let most = steps.sum::<f64>() * 1.000_1 + bound;
                    assert!(
                        (got - exact.sum::<f64>()).abs() <= most,
                        "{packing:?} {row}"
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_instruction_set_and_cut_gives_the_same_bits(
        which in 0..PACKINGS.len(),
        seed: u32,
        records in 1..3usize,
        count in 1..11usize,
        cut in 0..20usize,
        only in 0..11usize,
        loudness in prop_oneof![Just(1e-4f32), Just(1.0), Just(3e4)],
    ) {
        let packing = PACKINGS[which];
        let inputs = records * 256;
        let panel = panel(packing, &packed_rows(packing, seed, PANEL, inputs), inputs);
        let values: Vec<f32> = numbers(seed ^ 1, count * inputs).iter().map(|x| x * loudness).collect();
        let all = Kernels::available();
        let portable = *all.iter().find(|kernels| kernels.name() == "portable").unwrap();
        let (blocks, only, cut) = (inputs / BLOCK, only % count, cut % (inputs / BLOCK));
        let a = Rounded::of(portable, &values, inputs);
        let mut expected = vec![f32::NAN; count * PANEL];
        a.multiply(portable, (packing, &panel), 0..count, 0..blocks, &mut expected);
        for kernels in all {
            let own = Rounded::of(kernels, &values, inputs);
            prop_assert_eq!(&own.integers, &a.integers);
            prop_assert_eq!(bits(own.scales.as_flattened()), bits(a.scales.as_flattened()));
            let mut c = vec![f32::NAN; count * PANEL];
            own.multiply(kernels, (packing, &panel), 0..count, 0..cut, &mut c);
            own.multiply(kernels, (packing, &panel), 0..count, cut..blocks, &mut c);
            prop_assert_eq!(bits(&c), bits(&expected), "{:?} {:?}", packing, kernels);
            let mut c = vec![f32::NAN; PANEL];
            own.multiply(kernels, (packing, &panel), only..only + 1, 0..blocks, &mut c);
            prop_assert_eq!(bits(&c), bits(&expected[only * PANEL..][..PANEL]));
        }
    }
}

#[test]
fn the_largest_integers_do_not_saturate() {
    let inputs = 256;
    for packing in PACKINGS {
        // 0xff: 15, or -1; 0x80: 8 and 0, or -128. With zeroes, weights of 6 bits are -32.
        for byte in [0x00, 0xff, 0x80, 0x7f] {
            let (count, size) = packing.block();
            let mut block = vec![byte; size];
            block[packing.scale()..][..2].copy_from_slice(&f16::ONE.to_le_bytes());
            match packing {
                Packing::Q4_1 | Packing::Q5_1 => block[2..4].fill(0),
                Packing::Q4K | Packing::Q5K => {
                    block[2..16].copy_from_slice(&[0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]);
                }
                Packing::Q6K => block[192..208].fill(1),
                _ => {}
            }
            let row = block.repeat(inputs / count);
            let mut weights = [0.0; 256];
            packing.unpack(&block, &mut weights);
            let panel = panel(packing, &vec![row; PANEL], inputs);
            for kernels in Kernels::available() {
                for loudest in [127.0, -127.0] {
                    let a = Rounded::of(kernels, &vec![loudest; inputs], inputs);
                    let mut c = vec![0.0; PANEL];
                    a.multiply(kernels, (packing, &panel), 0..1, 0..inputs / BLOCK, &mut c);
                    let sum: f32 = weights[..count].iter().sum();
                    let expected = sum * (inputs / count) as f32 * loudest;
                    assert_eq!(c, vec![expected; PANEL], "{packing:?} {byte:x} {kernels:?}");
                }
            }
        }
    }
}

#[test]
fn rounding_has_the_stated_error_and_keeps_what_is_not_finite() {
    for kernels in Kernels::available() {
        for loudness in [1e-29, 1.0, 1e38] {
            let values: Vec<f32> = numbers(9, 640).iter().map(|x| x * loudness).collect();
            let rounded = Rounded::of(kernels, &values, 640);
            for (at, value) in values.iter().enumerate() {
                let [scale, sum] = rounded.scales[at / BLOCK];
                let block = &rounded.integers[at / BLOCK * BLOCK..][..BLOCK];
                let largest = block.iter().map(|x| x.unsigned_abs()).max();
                assert_eq!(largest, Some(127), "{loudness}");
                let total: i32 = block.iter().map(|x| i32::from(*x)).sum();
                assert_eq!(sum, total as f32);
                let error = (rounded.value(0, at) - f64::from(*value)).abs();
                assert!(error <= f64::from(scale) * 0.500_1, "{value}");
            }
        }
        for (value, expected) in [
            (f32::NAN, f32::NAN),
            (f32::INFINITY, f32::NAN),
            (1e-31, 0.0),
        ] {
            let mut values = [0.0; 2 * BLOCK];
            values[7] = value;
            let rounded = Rounded::of(kernels, &values, 2 * BLOCK);
            assert_eq!(rounded.scales[0][0].to_bits() << 1, expected.to_bits() << 1);
            assert_eq!(rounded.scales[1], [0.0; 2]);
        }
    }
}

#[test]
fn products_beyond_their_slices_are_refused() {
    let inputs = 64;
    let panel = vec![0; panel_bytes(Packing::Q8_0, inputs)];
    let attempt = |a: usize, scales: usize, panel: &[u8], rows: usize, blocks: Range<usize>| {
        let (a, scales, mut c) = (vec![1; a], vec![[1.0; 2]; scales], vec![0.0; 2 * PANEL]);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            Kernels::available()[0].multiply_packed(PackedProduct {
                a: &a,
                scales: &scales,
                inputs,
                rows: 0..rows,
                packing: Packing::Q8_0,
                panel,
                blocks,
                c: &mut c,
            });
        }))
        .is_ok()
    };
    assert!(attempt(128, 4, &panel, 2, 0..2));
    assert!(!attempt(127, 4, &panel, 2, 0..2));
    assert!(!attempt(128, 3, &panel, 2, 0..2));
    assert!(!attempt(128, 4, &panel[1..], 2, 0..2));
    assert!(!attempt(192, 6, &panel, 3, 0..2));
    assert!(!attempt(128, 4, &panel, 2, 0..3));
}
