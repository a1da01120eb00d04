//! Tests of prefill, decode, and placing heads.

use super::{Random, assert_close, devices, is_emulated, put, read, room, wide};
use crate::backend::cuda::device::{Bf16, Device, Queue};
use crate::backend::cuda::kernels::{
    self, Context, HeadWeights, Heads, Item, NO_SLOT, Partials, Places,
};
use half::bf16;
use std::time::Instant;

/// A pool with the keys and values of some sequences, and the sequences as plain arrays.
struct Cache {
    heads: Heads,
    pool: Vec<bf16>,
    /// Page table of each sequence.
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
        // The content of slots that no sequence has reached must not matter.
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

    /// Returns the index at which the key (0) or value (1) of a position begins.
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

    /// Computes attention of a query head to positions `0..seen`.
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

/// Shapes of attention: query heads, key and value heads, head width, tokens in a page.
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
        let on = device.name().to_owned();
        for (number, shape) in SHAPES.into_iter().enumerate() {
            let random = &mut Random::new(number as u64);
            let heads = heads(shape);
            let most = kernels::PREFILL_ROWS / heads.group();
            // Segments by first position and number of tokens; some are cut into several splits, others not.
            let segments = [
                (0, 1, 1),
                (0, most, 1),
                (63, 3.min(most), 1),
                (64, 2, 1),
                (130, most.min(9), 2),
                (200, 5.min(most), 4),
                (420, 3.min(most), 1),
                (600, 2, 2),
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
                        // The output's rows are in another order.
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
            let items = put(device, &words);
            let tables = put(device, &tables);
            let pool = put(device, &cache.pool);
            let on_device = put(device, &queries);
            let mut output = room::<Bf16>(device, rows * heads.queries());
            let mut sums = room::<f32>(device, results as usize * heads.head_dim);
            let mut stats = room::<f32>(device, results as usize * 2);
            let context = Context {
                pool: pool.all(),
                tables: tables.all(),
            };
            let partials = Partials::of(&mut sums, &mut stats);
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
            let tokens_split = put(device, &tokens_split);
            let partials = Partials::of(&mut sums, &mut stats);
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
                        let name = format!(
                            "{on}: {shape:?}, segment {sequence}, token {token}, head {head}"
                        );
                        assert_close(&name, &found[at..at + heads.head_dim], &expected, 6e-3);
                    }
                }
                row += tokens;
            }
        }
    }
}

/// On a real device this also prints how fast each kernel is, for `gpu.sh`.
#[test]
fn the_kernels_of_prefill_agree_on_a_whole_prompt() {
    let mut earlier: Vec<(String, Vec<bf16>)> = Vec::new();
    for mut device in devices() {
        let device = &mut *device;
        let (shape, tokens, runs) = if is_emulated(device) {
            ((7, 1, 128, 16), 150, 0)
        } else {
            ((28, 4, 128, 16), 4096, 20)
        };
        let heads = heads(shape);
        let most = kernels::PREFILL_ROWS / heads.group();
        let random = &mut Random::new(7);
        let cache = Cache::random(random, heads, &[tokens]);
        let queries = random.narrow(tokens * heads.queries());
        // The longest item first, as the planner orders them.
        let items: Vec<u32> = (0..tokens)
            .step_by(most)
            .rev()
            .flat_map(|token| {
                let end = tokens.min(token + most) as u32;
                Item {
                    query: token as u32,
                    output: token as u32,
                    tokens: end - token as u32,
                    position: token as u32,
                    end,
                    splits: 1,
                    ..Item::default()
                }
                .words()
            })
            .collect();
        let items = put(device, &items);
        let tables = put(device, &cache.tables[0]);
        let pool = put(device, &cache.pool);
        let on_device = put(device, &queries);
        let mut output = room::<Bf16>(device, queries.len());
        let (mut sums, mut stats) = (room::<f32>(device, 1), room::<f32>(device, 1));
        let context = Context {
            pool: pool.all(),
            tables: tables.all(),
        };
        let mut attend = |device: &mut dyn Device| {
            kernels::prefill(
                device,
                &heads,
                context,
                items.all(),
                on_device.all(),
                output.all_mut(),
                Partials::of(&mut sums, &mut stats),
            )
            .unwrap();
        };
        attend(device);
        device.wait(Queue::Compute).unwrap();
        if runs > 0 {
            let started = Instant::now();
            (0..runs).for_each(|_| attend(device));
            device.wait(Queue::Compute).unwrap();
            let seconds = started.elapsed().as_secs_f64() / f64::from(runs);
            // A product of queries and keys and one of weights and values, over half the positions on average.
            let operations = 2 * tokens * (tokens + 1) * heads.queries();
            println!(
                "{}: {tokens} tokens, {} heads: {:.3} ms, {:.0} TFLOP/s of attention",
                device.name(),
                heads.heads,
                seconds * 1e3,
                operations as f64 / seconds / 1e12
            );
        }
        let found = read(device, &output);
        for (other, expected) in earlier
            .iter()
            .filter(|(_, other)| other.len() == found.len())
        {
            let name = format!("{} and {other}", device.name());
            assert_close(&name, &found, &wide(expected), 4e-3);
        }
        earlier.push((device.name().to_owned(), found));
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
            // Entries beyond a table's end are not valid pages.
            let mut tables = vec![u32::MAX; stride * lengths.len()];
            for (table, to) in cache.tables.iter().zip(tables.chunks_mut(stride)) {
                to[..table.len()].copy_from_slice(table);
            }
            let queries = random.narrow(lengths.len() * heads.queries());
            let on_device = put(device, &queries);
            let tables = put(device, &tables);
            let pool = put(device, &cache.pool);
            let device_lengths = put(device, &lengths.map(|length| length as u32));
            let untouched = vec![bf16::from_f32(7.0); lengths.len() * heads.queries()];
            let mut output = put(device, &untouched);
            let results = lengths.len() * heads.heads * kernels::MAX_SPLITS as usize;
            let mut sums = room::<f32>(device, results * heads.head_dim);
            let mut stats = room::<f32>(device, results * 2);
            let context = Context {
                pool: pool.all(),
                tables: tables.all(),
            };
            let partials = Partials::of(&mut sums, &mut stats);
            // A grid for sequences of 1,024 tokens serves these too.
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
            let on_device =
                [&bias, &norms[0], &norms[1], &rotary].map(|values| put(device, values));
            let weights = HeadWeights {
                bias: with_extras.then(|| on_device[0].all()),
                norms: with_extras.then(|| [on_device[1].all(), on_device[2].all()]),
                rotary: on_device[3].all(),
                eps: 1e-5,
            };
            let device_positions = put(device, &positions);
            let device_slots = put(device, &slots);
            let places = Places {
                positions: device_positions.all(),
                slots: device_slots.all(),
            };
            let device_sums = put(device, &sums);
            let before = bf16::from_f32(5.0);
            let mut queries = put(device, &vec![before; rows * heads.queries()]);
            let mut pool = put(device, &vec![before; pages * heads.page()]);
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
