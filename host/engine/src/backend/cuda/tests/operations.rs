//! Each kernel against the same operation written plainly in f64, on random shapes: odd sizes, groups of query heads, page
//! sizes, prefixes, one token, none.

use super::{Random, devices};
use crate::backend::cuda::device::{Array, Bf16, Device, Output, Product, Queue};
use crate::backend::cuda::kernels::{
    self, Choice, Context, HeadWeights, Heads, Item, NO_SLOT, Partials, Places, Runs,
};
use crate::sampling::{Sampling, SamplingError};
use half::bf16;

fn wide(values: &[bf16]) -> Vec<f64> {
    values
        .iter()
        .map(|value| f64::from(value.to_f32()))
        .collect()
}

/// A result in bf16: half a unit in its last place, and what f32 sums stray by.
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

fn read<T: super::super::device::Plain + Default>(
    device: &mut dyn Device,
    array: &Array<T>,
) -> Vec<T> {
    let mut values = vec![T::default(); array.len()];
    array.read(device, 0, &mut values).unwrap();
    values
}

/// A pool with the keys and values of some sequences, and the sequences as they are.
struct Cache {
    heads: Heads,
    pool: Vec<bf16>,
    /// Of each sequence.
    tables: Vec<Vec<u32>>,
}

impl Cache {
    fn random(random: &mut Random, heads: Heads, lengths: &[usize]) -> Self {
        let pages: Vec<usize> = lengths
            .iter()
            .map(|length| length.div_ceil(heads.page_tokens))
            .collect();
        let all: usize = pages.iter().sum::<usize>() + 2;
        let mut order = random.shuffled(all).into_iter();
        let tables = pages
            .iter()
            .map(|pages| order.by_ref().take(*pages).collect())
            .collect();
        let mut pool = random.narrow(all * heads.page());
        // What stands in slots that no sequence has reached must not matter.
        let mut cache = Self {
            heads,
            pool: Vec::new(),
            tables,
        };
        let mut used = vec![false; pool.len()];
        for (sequence, length) in lengths.iter().enumerate() {
            for position in 0..*length {
                for head in 0..heads.kv_heads {
                    for kind in 0..2 {
                        let at = cache.at(sequence, position, head, kind);
                        used[at..at + heads.head_dim].fill(true);
                    }
                }
            }
        }
        for (value, used) in pool.iter_mut().zip(used) {
            if !used {
                *value = bf16::NAN;
            }
        }
        cache.pool = pool;
        cache
    }

    /// Where the key (0) or value (1) of a position begins.
    fn at(&self, sequence: usize, position: usize, head: usize, kind: usize) -> usize {
        let Heads {
            kv_heads,
            head_dim,
            page_tokens,
            ..
        } = self.heads;
        let page = self.tables[sequence][position / page_tokens] as usize;
        (((page * 2 + kind) * kv_heads + head) * page_tokens + position % page_tokens) * head_dim
    }

    fn vector(&self, sequence: usize, position: usize, head: usize, kind: usize) -> Vec<f64> {
        let at = self.at(sequence, position, head, kind);
        wide(&self.pool[at..at + self.heads.head_dim])
    }

    /// What a query head sees of positions `0..seen`.
    fn attend(&self, sequence: usize, seen: usize, head: usize, query: &[f64]) -> Vec<f64> {
        let kv_head = head / self.heads.group();
        let scores: Vec<f64> = (0..seen)
            .map(|position| {
                let key = self.vector(sequence, position, kv_head, 0);
                let dot: f64 = key.iter().zip(query).map(|(a, b)| a * b).sum();
                dot / (self.heads.head_dim as f64).sqrt()
            })
            .collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|score| (score - top).exp()).sum();
        let mut out = vec![0.0; self.heads.head_dim];
        for (position, score) in scores.iter().enumerate() {
            let value = self.vector(sequence, position, kv_head, 1);
            for (out, value) in out.iter_mut().zip(value) {
                *out += (score - top).exp() / total * value;
            }
        }
        out
    }
}

/// Shapes of attention: query heads, key and value heads, width, tokens in a page.
const SHAPES: [(usize, usize, usize, usize); 7] = [
    (4, 4, 64, 16),
    (7, 1, 128, 32),
    (8, 2, 16, 64),
    (5, 1, 40, 16),
    (12, 4, 128, 16),
    (20, 1, 72, 16),
    (2, 1, 32, 256),
];

fn heads((heads, kv_heads, head_dim, page_tokens): (usize, usize, usize, usize)) -> Heads {
    Heads {
        heads,
        kv_heads,
        head_dim,
        page_tokens,
    }
}

#[test]
fn prefill_attends_to_the_prefix_and_causally_to_its_own_tokens() {
    for mut device in devices() {
        let device = &mut *device;
        for (number, shape) in SHAPES.into_iter().enumerate() {
            let random = &mut Random::new(number as u64);
            let heads = heads(shape);
            let most = kernels::PREFILL_ROWS / heads.group();
            // Segments by their first position and their tokens; cut into several splits or none.
            let segments = [
                (0, 1, 1),
                (0, most, 1),
                (63, 3.min(most), 1),
                (64, 2, 1),
                (130, most.min(9), 2),
                (200, 5.min(most), 4),
            ];
            let lengths: Vec<usize> = segments
                .iter()
                .map(|(start, tokens, _)| start + tokens)
                .collect();
            let cache = Cache::random(random, heads, &lengths);
            let rows: usize = segments.iter().map(|(_, tokens, _)| tokens).sum();
            let queries: Vec<bf16> = random
                .narrow(rows * heads.queries())
                .iter()
                .map(|x| bf16::from_f32(x.to_f32() * 3.0))
                .collect();

            let (mut items, mut tables, mut tokens_split) = (Vec::new(), Vec::new(), Vec::new());
            let (mut row, mut results) = (0u32, 0u32);
            for (sequence, &(start, tokens, splits)) in segments.iter().enumerate() {
                let chunk =
                    ((start + 1).div_ceil(splits) as u32).next_multiple_of(kernels::PREFILL_KEYS);
                let splits = (start as u32 + 1).div_ceil(chunk);
                for split in 0..splits {
                    let end = if split + 1 == splits {
                        (start + tokens) as u32
                    } else {
                        (split + 1) * chunk
                    };
                    items.push(Item {
                        query: row,
                        // The output in another order of rows.
                        output: rows as u32 - row - tokens as u32,
                        tokens: tokens as u32,
                        position: start as u32,
                        table: tables.len() as u32,
                        begin: split * chunk,
                        end,
                        split,
                        splits,
                        first: results,
                    });
                }
                if splits > 1 {
                    for token in 0..tokens as u32 {
                        tokens_split.extend([
                            rows as u32 - row - tokens as u32 + token,
                            splits,
                            results + token * heads.heads as u32 * splits,
                        ]);
                    }
                    results += tokens as u32 * heads.heads as u32 * splits;
                }
                tables.extend(&cache.tables[sequence]);
                row += tokens as u32;
            }
            let words: Vec<u32> = items.iter().flat_map(Item::words).collect();
            let items = Array::of(device, &words).unwrap();
            let tables = Array::of(device, &tables).unwrap();
            let pool = Array::of(device, &cache.pool).unwrap();
            let on_device = Array::of(device, &queries).unwrap();
            let mut output = Array::<Bf16>::new(device, rows * heads.queries()).unwrap();
            let mut sums = Array::<f32>::new(device, results as usize * heads.head_dim).unwrap();
            let mut stats = Array::<f32>::new(device, results as usize * 2).unwrap();
            let context = Context {
                pool: pool.all(),
                tables: tables.all(),
            };
            let partials = Partials {
                sums: sums.all_mut(),
                stats: stats.all_mut(),
            };
            kernels::prefill(
                device,
                &heads,
                context,
                items.all(),
                on_device.all(),
                output.all_mut(),
                partials,
            )
            .unwrap();
            let tokens_split = Array::of(device, &tokens_split).unwrap();
            let partials = Partials {
                sums: sums.all_mut(),
                stats: stats.all_mut(),
            };
            kernels::combine_items(
                device,
                &heads,
                tokens_split.all(),
                output.all_mut(),
                partials,
            )
            .unwrap();

            let found = read(device, &output);
            let mut row = 0;
            for (sequence, &(start, tokens, _)) in segments.iter().enumerate() {
                for token in 0..tokens {
                    for head in 0..heads.heads {
                        let at = ((row + token) * heads.heads + head) * heads.head_dim;
                        let query = wide(&queries[at..at + heads.head_dim]);
                        let expected = cache.attend(sequence, start + token + 1, head, &query);
                        let at =
                            ((rows - row - tokens + token) * heads.heads + head) * heads.head_dim;
                        let name =
                            format!("{shape:?}, segment {sequence}, token {token}, head {head}");
                        assert_close(&name, &found[at..at + heads.head_dim], &expected, 6e-3);
                    }
                }
                row += tokens;
            }
        }
    }
}

#[test]
fn decode_attends_to_everything_before_however_long() {
    for mut device in devices() {
        let device = &mut *device;
        for (number, shape) in SHAPES.into_iter().enumerate() {
            let random = &mut Random::new(40 + number as u64);
            let heads = heads(shape);
            let lengths = [1, 31, 0, 256, 33, 257, 700];
            let cache = Cache::random(random, heads, &lengths);
            let stride = cache.tables.iter().map(Vec::len).max().unwrap() + 1;
            // Beyond a table's end there is nothing that could be a page.
            let mut tables = vec![u32::MAX; stride * lengths.len()];
            for (table, to) in cache.tables.iter().zip(tables.chunks_mut(stride)) {
                to[..table.len()].copy_from_slice(table);
            }
            let queries = random.narrow(lengths.len() * heads.queries());
            let on_device = Array::of(device, &queries).unwrap();
            let tables = Array::of(device, &tables).unwrap();
            let pool = Array::of(device, &cache.pool).unwrap();
            let device_lengths = Array::of(device, &lengths.map(|length| length as u32)).unwrap();
            let untouched = vec![bf16::from_f32(7.0); lengths.len() * heads.queries()];
            let mut output = Array::of(device, &untouched).unwrap();
            let results = lengths.len() * heads.heads * kernels::MAX_SPLITS as usize;
            let mut sums = Array::<f32>::new(device, results * heads.head_dim).unwrap();
            let mut stats = Array::<f32>::new(device, results * 2).unwrap();
            let context = Context {
                pool: pool.all(),
                tables: tables.all(),
            };
            let partials = Partials {
                sums: sums.all_mut(),
                stats: stats.all_mut(),
            };
            // A grid for sequences of 1,024 serves these too.
            let longest = 1024;
            kernels::decode(
                device,
                &heads,
                context,
                device_lengths.all(),
                stride,
                longest,
                on_device.all(),
                output.all_mut(),
                partials,
            )
            .unwrap();
            let found = read(device, &output);
            for (row, length) in lengths.into_iter().enumerate() {
                for head in 0..heads.heads {
                    let at = (row * heads.heads + head) * heads.head_dim;
                    let range = at..at + heads.head_dim;
                    let expected = match length {
                        0 => vec![7.0; heads.head_dim],
                        _ => cache.attend(row, length, head, &wide(&queries[range.clone()])),
                    };
                    assert_close(
                        &format!("{shape:?}, row {row}, head {head}"),
                        &found[range],
                        &expected,
                        6e-3,
                    );
                }
            }
        }
    }
}

#[test]
fn splits_of_long_sequences_are_few() {
    assert_eq!(
        [1, 256, 257, 2048, 16384].map(kernels::decode_splits),
        [1, 1, 2, 8, 64]
    );
    assert_eq!(
        [16385, 131_072, u32::MAX].map(kernels::decode_splits),
        [33, 64, 64]
    );
}

#[test]
fn heads_get_bias_norm_and_rotation_and_go_to_their_slots() {
    for mut device in devices() {
        let device = &mut *device;
        for (number, shape) in SHAPES.into_iter().enumerate() {
            let random = &mut Random::new(80 + number as u64);
            let heads = heads(shape);
            let (rows, pages, dim, half) = (5, 3, heads.head_dim, heads.head_dim / 2);
            let width = (heads.heads + 2 * heads.kv_heads) * dim;
            let sums = random.narrow(rows * width);
            let (bias, norms) = (
                random.values(width),
                [random.values(dim), random.values(dim)],
            );
            let rotary = random.values(90 * dim);
            let positions: Vec<u32> = (0..rows).map(|_| random.below(90) as u32).collect();
            let mut slots = random.shuffled(pages * heads.page_tokens)[..rows].to_vec();
            slots[3] = NO_SLOT;
            let with_extras = number % 2 == 0;
            let on_device = [&bias, &norms[0], &norms[1], &rotary]
                .map(|values| Array::of(device, values).unwrap());
            let weights = HeadWeights {
                bias: with_extras.then(|| on_device[0].all()),
                norms: with_extras.then(|| [on_device[1].all(), on_device[2].all()]),
                rotary: on_device[3].all(),
                eps: 1e-5,
            };
            let (device_positions, device_slots) = (
                Array::of(device, &positions).unwrap(),
                Array::of(device, &slots).unwrap(),
            );
            let places = Places {
                positions: device_positions.all(),
                slots: device_slots.all(),
            };
            let device_sums = Array::of(device, &sums).unwrap();
            let before = bf16::from_f32(5.0);
            let mut queries = Array::of(device, &vec![before; rows * heads.queries()]).unwrap();
            let mut pool = Array::of(device, &vec![before; pages * heads.page()]).unwrap();
            kernels::place_heads(
                device,
                &heads,
                &weights,
                places,
                device_sums.all(),
                queries.all_mut(),
                pool.all_mut(),
            )
            .unwrap();

            let mut expected_queries = vec![5.0; rows * heads.queries()];
            let mut expected_pool = vec![5.0; pages * heads.page()];
            for row in (0..rows).filter(|row| slots[*row] != NO_SLOT) {
                for head in 0..heads.heads + 2 * heads.kv_heads {
                    let kind = if head < heads.heads {
                        0
                    } else {
                        1 + (head - heads.heads) / heads.kv_heads
                    };
                    let mut x = wide(&sums[row * width + head * dim..][..dim]);
                    if with_extras {
                        x.iter_mut()
                            .zip(&bias[head * dim..])
                            .for_each(|(x, bias)| *x += f64::from(*bias));
                        if kind < 2 {
                            let scale = 1.0
                                / (x.iter().map(|x| x * x).sum::<f64>() / dim as f64 + 1e-5).sqrt();
                            x.iter_mut()
                                .zip(&norms[kind])
                                .for_each(|(x, norm)| *x *= scale * f64::from(*norm));
                        }
                    }
                    if kind < 2 {
                        let angles = &rotary[positions[row] as usize * dim..];
                        for i in 0..half {
                            let (low, high) = (x[i], x[i + half]);
                            let (cosine, sine) =
                                (f64::from(angles[i]), f64::from(angles[half + i]));
                            (x[i], x[i + half]) =
                                (low * cosine - high * sine, high * cosine + low * sine);
                        }
                    }
                    if kind == 0 {
                        expected_queries[(row * heads.heads + head) * dim..][..dim]
                            .copy_from_slice(&x);
                    } else {
                        let (page, slot) = (
                            slots[row] as usize / heads.page_tokens,
                            slots[row] as usize % heads.page_tokens,
                        );
                        let kv_head = (head - heads.heads) % heads.kv_heads;
                        let at = (((page * 2 + kind - 1) * heads.kv_heads + kv_head)
                            * heads.page_tokens
                            + slot)
                            * dim;
                        expected_pool[at..at + dim].copy_from_slice(&x);
                    }
                }
            }
            assert_close(
                &format!("{shape:?}: queries"),
                &read(device, &queries),
                &expected_queries,
                1e-3,
            );
            assert_close(
                &format!("{shape:?}: pool"),
                &read(device, &pool),
                &expected_pool,
                1e-3,
            );
        }
    }
}

#[test]
fn rows_are_embedded_chosen_and_normed() {
    for mut device in devices() {
        let device = &mut *device;
        for (hidden, rows) in [(8, 1), (64, 3), (1032, 5), (3584, 2)] {
            let random = &mut Random::new(hidden as u64);
            let table = random.narrow(11 * hidden);
            let tokens: Vec<u32> = (0..rows).map(|_| random.below(11) as u32).collect();
            let (device_table, device_tokens) = (
                Array::of(device, &table).unwrap(),
                Array::of(device, &tokens).unwrap(),
            );
            let mut residual = Array::<f32>::new(device, rows * hidden).unwrap();
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
            let device_chosen = Array::of(device, &chosen).unwrap();
            let mut kept = Array::<f32>::new(device, chosen.len() * hidden).unwrap();
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
            let (device_bias, device_weights) = (
                Array::of(device, &bias).unwrap(),
                Array::of(device, &weights).unwrap(),
            );
            for with_bias in [false, true] {
                let mut residual = Array::of(device, &embedded).unwrap();
                let mut output = Array::<Bf16>::new(device, rows * hidden).unwrap();
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

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
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
            let (device_sums, device_bias) = (
                Array::of(device, &sums).unwrap(),
                Array::of(device, &bias).unwrap(),
            );
            for with_bias in [false, true] {
                let mut output = Array::<Bf16>::new(device, rows * width).unwrap();
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
                let expected: Vec<f64> = wide(&sums)
                    .chunks(width * 2)
                    .flat_map(|row| {
                        let biased =
                            |at: usize| row[at] + if with_bias { f64::from(bias[at]) } else { 0.0 };
                        (0..width)
                            .map(|at| silu(biased(at)) * biased(width + at))
                            .collect::<Vec<_>>()
                    })
                    .collect();
                assert_close("gate", &read(device, &output), &expected, 1e-5);
            }
        }
    }
}

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
            let places = || (0..rows).flat_map(|row| (0..outputs).map(move |output| (row, output)));
            let expected: Vec<f64> = places().map(|(row, output)| sum(row, output)).collect();
            let (device_weights, device_input) = (
                Array::of(device, &weights).unwrap(),
                Array::of(device, &input).unwrap(),
            );
            let before = random.values(rows * outputs);
            let mut narrow = Array::<Bf16>::new(device, rows * outputs).unwrap();
            let mut plain = Array::<f32>::new(device, rows * outputs).unwrap();
            let mut added = Array::of(device, &before).unwrap();
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
            let device_bias = Array::of(device, &bias).unwrap();
            for with_bias in [false, true] {
                let part = with_bias.then(|| device_bias.all());
                let mut gated = Array::<Bf16>::new(device, rows * outputs).unwrap();
                kernels::multiply_gate(
                    device,
                    device_weights.all(),
                    part,
                    device_input.all(),
                    gated.all_mut(),
                    rows,
                    inputs,
                    outputs,
                )
                .unwrap();
                let biased = |row, at: usize| {
                    sum(row, at) + if with_bias { f64::from(bias[at]) } else { 0.0 }
                };
                let expected: Vec<f64> = places()
                    .map(|(row, at)| silu(biased(row, at)) * biased(row, outputs + at))
                    .collect();
                assert_close("gated product", &read(device, &gated), &expected, 1e-3);
            }
        }
    }
}

#[test]
fn pages_are_copied_whole_and_in_part() {
    for mut device in devices() {
        let device = &mut *device;
        let random = &mut Random::new(3);
        // Pages of 6 runs of 80 bytes in the one buffer, of 7 in the other.
        let strides = [480, 560];
        let bytes: Vec<u8> = (0..10 * strides[0]).map(|_| random.bits() as u8).collect();
        let from = Array::of(device, &bytes).unwrap();
        let to = Array::of(device, &vec![1u8; 12 * strides[1]]).unwrap();
        let pairs = [3, 11, 0, 0, 9, 4];
        let device_pairs = Array::of(device, &pairs).unwrap();
        for (runs, run) in [(1, 480), (6, 32), (6, 80)] {
            let runs = Runs {
                strides,
                runs,
                run,
                pitch: 80,
            };
            kernels::copy_pages(
                device,
                Queue::Copy,
                from.all().address(),
                to.all().address(),
                device_pairs.all(),
                &runs,
            )
            .unwrap();
            device.wait(Queue::Copy).unwrap();
            let found = read(device, &to);
            for pair in pairs.chunks(2) {
                for number in 0..runs.runs {
                    let at =
                        |page: u32, stride: usize| page as usize * stride + number * runs.pitch;
                    let expected = &bytes[at(pair[0], strides[0])..][..runs.run];
                    assert_eq!(&found[at(pair[1], strides[1])..][..runs.run], expected);
                }
            }
            assert!(
                found[strides[1]..2 * strides[1]]
                    .iter()
                    .all(|byte| *byte == 1),
                "a page that is no target"
            );
        }
    }
}

#[test]
fn tokens_are_chosen_as_the_host_chooses_them() {
    let ways: Vec<(f32, f32, u32, f32)> = vec![
        (0.0, 1.0, 0, 0.0),
        (1.0, 1.0, 0, 0.0),
        (0.3, 1.0, 0, 0.0),
        (2.0, 0.9, 0, 0.0),
        (1.0, 0.2, 0, 0.0),
        (1.0, 1.0, 1, 0.0),
        (1.5, 1.0, 7, 0.0),
        (1.0, 0.7, 20, 0.0),
        (1.0, 1.0, 0, 0.3),
        (1.2, 0.95, 50, 0.05),
        (1.0, 1.0, 100_000, 0.0),
    ];
    for mut device in devices() {
        let device = &mut *device;
        for vocabulary in [1, 90, 5000] {
            let random = &mut Random::new(vocabulary as u64);
            let mut logits = Vec::new();
            for row in 0..ways.len() {
                // Few distinct values, so that ties are common; some tokens are masked.
                let grain = if row % 2 == 0 { 64.0 } else { 1e6 };
                logits.extend(
                    random
                        .values(vocabulary)
                        .iter()
                        .map(|x| (x * 8.0 * grain).round() / grain),
                );
                if vocabulary > 2 {
                    logits[row * vocabulary + random.below(vocabulary)] = f32::NEG_INFINITY;
                }
            }
            let device_logits = Array::of(device, &logits).unwrap();
            for position in 0..6u32 {
                let samplings: Vec<Sampling> = ways
                    .iter()
                    .map(|&(temperature, top_p, top_k, min_p)| {
                        Sampling::new(temperature, top_p, top_k, 99)
                            .unwrap()
                            .with_min_p(min_p)
                            .unwrap()
                    })
                    .collect();
                let choices: Vec<Choice> = samplings
                    .iter()
                    .map(|sampling| Choice::of(&sampling.draw(position)))
                    .collect();
                let device_choices = Array::of(device, &choices).unwrap();
                let mut chosen = Array::<u32>::new(device, 2 * ways.len()).unwrap();
                kernels::sample_rows(
                    device,
                    device_logits.all(),
                    device_choices.all(),
                    chosen.all_mut(),
                    vocabulary,
                )
                .unwrap();
                let chosen = read(device, &chosen);
                for (row, sampling) in samplings.iter().enumerate() {
                    let expected = sampling
                        .choose(&logits[row * vocabulary..][..vocabulary], position)
                        .unwrap();
                    assert_eq!(
                        chosen[row * 2..][..2],
                        [0, expected],
                        "{sampling:?} at {position} of {vocabulary}"
                    );
                }
            }
        }
        // What is no number is named, and so is what leaves nothing.
        let (nan, none) = (f32::NAN, f32::NEG_INFINITY);
        let logits = [[1.0, nan, f32::INFINITY], [none, none, none]].concat();
        let device_logits = Array::of(device, &logits).unwrap();
        let choice = Choice::of(&Sampling::greedy().draw(0));
        let choices = Array::of(device, &[choice; 2]).unwrap();
        let mut chosen = Array::<u32>::new(device, 4).unwrap();
        kernels::sample_rows(
            device,
            device_logits.all(),
            choices.all(),
            chosen.all_mut(),
            3,
        )
        .unwrap();
        let chosen = read(device, &chosen);
        assert_eq!((chosen[0], chosen[1], chosen[2]), (1, 1, 2));
        assert_eq!(
            Sampling::greedy().choose(&logits[..3], 0),
            Err(SamplingError::NotFinite { token: 1 })
        );
    }
}

#[test]
#[should_panic(expected = "residual has 63 elements, 64 are needed")]
fn a_buffer_that_is_too_short_is_refused() {
    let Some(mut device) = devices().pop() else {
        panic!("residual has 63 elements, 64 are needed (skipped: no device)");
    };
    let device = &mut *device;
    let mut residual = Array::<f32>::new(device, 63).unwrap();
    let weights = Array::<f32>::new(device, 32).unwrap();
    let mut output = Array::<Bf16>::new(device, 64).unwrap();
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
