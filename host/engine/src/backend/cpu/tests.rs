//! Tests of the backend's contract on random weights: agreement with a plain model in f64, and the same bits however a
//! sequence is cut into steps, shared between pages, batched or spread over threads.

use super::kernels::pairs::Parts;
use super::*;
use crate::TokenId;
use crate::backend::tests::{self, check_the_host_pool, run};
use crate::backend::{Load, Output, Segment};
use crate::models::{Activation, Element, ModelConfig, Packing, Rope, Tensor};

const VOCABULARY: u32 = 90;
const HOST_PAGES: u32 = 12;

/// Awkward shapes on purpose: widths that are multiples of nothing, and groups of one, two and seven.
fn models() -> Vec<ModelConfig> {
    [
        r#""model_type":"qwen2","hidden_size":70,"num_attention_heads":7,"num_key_value_heads":1,"head_dim":18,
           "intermediate_size":45"#,
        r#""model_type":"qwen3","hidden_size":140,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":136,
           "intermediate_size":131,"tie_word_embeddings":true"#,
        r#""model_type":"llama","hidden_size":64,"num_attention_heads":2,"num_key_value_heads":2,"head_dim":32,
           "intermediate_size":200,"attention_bias":true,"mlp_bias":true"#,
        // Windows that begin in any place of a page, of a span and of an item; the layer behind sees all.
        r#""model_type":"gemma3_text","hidden_size":90,"num_attention_heads":6,"num_key_value_heads":2,"head_dim":30,
           "intermediate_size":77,"query_pre_attn_scalar":20,"sliding_window":53,"sliding_window_pattern":2"#,
    ]
    .into_iter()
    .map(|middle| {
        let json = format!(
            r#"{{{middle},"num_hidden_layers":2,"vocab_size":{VOCABULARY},"max_position_embeddings":400}}"#
        );
        ModelConfig::parse(&json).unwrap()
    })
    .collect()
}

/// A model for each packing, some of whose matrices are too narrow to be packed.
fn packed_models() -> Vec<(ModelConfig, Element)> {
    let narrow = r#""hidden_size":96,"num_attention_heads":3,"num_key_value_heads":1,"head_dim":32,
        "intermediate_size":160,"tie_word_embeddings":true"#;
    let wide = r#""hidden_size":256,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":48,
        "intermediate_size":512,"attention_bias":true"#;
    [
        (Packing::Q4_0, narrow),
        (Packing::Q4_1, wide),
        (Packing::Q5_0, narrow),
        (Packing::Q5_1, wide),
        (Packing::Q8_0, narrow),
        (Packing::Q4K, wide),
        (Packing::Q5K, wide),
        (Packing::Q6K, wide),
    ]
    .into_iter()
    .map(|(packing, sizes)| {
        let json = format!(
            r#"{{"model_type":"llama",{sizes},"num_hidden_layers":2,"vocab_size":{VOCABULARY},"max_position_embeddings":400}}"#
        );
        (ModelConfig::parse(&json).unwrap(), Element::Packed(packing))
    })
    .collect()
}

fn backend(model: &ModelConfig, kernels: Kernels, page_tokens: u32, threads: u32) -> CpuBackend {
    backend_of((model, Element::Bf16), kernels, page_tokens, threads)
}

fn backend_of(
    (model, element): (&ModelConfig, Element),
    kernels: Kernels,
    page_tokens: u32,
    threads: u32,
) -> CpuBackend {
    let config = CpuConfig {
        pages: 1600 / page_tokens,
        host_pages: HOST_PAGES,
        page_tokens,
        threads: Some(threads),
        precision: Precision::Auto,
    };
    let checkpoint = Checkpoint::random(model.clone(), element, 7);
    CpuBackend::build(&checkpoint, &config, kernels).unwrap()
}

fn tokens(seed: u32, count: usize) -> Vec<TokenId> {
    tests::tokens(VOCABULARY, seed, count)
}

/// Returns a segment that asks for all logits of these tokens.
fn segment(tokens: &[TokenId], start: usize, pages: &[u32]) -> Segment {
    tests::segment(tokens, start, pages.iter().copied(), Output::All)
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Multiplies `a` by each row of `matrix` and adds `bias`.
fn linear(a: &[f64], matrix: &Tensor<'_>, bias: Option<&Tensor<'_>>) -> Vec<f64> {
    let weights = matrix.to_f32();
    let mut out: Vec<f64> = weights
        .chunks_exact(matrix.columns)
        .map(|row| row.iter().zip(a).map(|(w, a)| f64::from(*w) * a).sum())
        .collect();
    if let Some(bias) = bias {
        out.iter_mut()
            .zip(bias.to_f32())
            .for_each(|(out, bias)| *out += f64::from(bias));
    }
    out
}

fn normed(x: &[f64], weights: &Tensor<'_>, eps: f32) -> Vec<f64> {
    let square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (square + f64::from(eps)).sqrt();
    x.iter()
        .zip(weights.to_f32())
        .map(|(x, w)| x * scale * f64::from(w))
        .collect()
}

fn rotated(head: &mut [f64], rope: &Rope, position: usize) {
    let half = head.len() / 2;
    for i in 0..half {
        let (sine, cosine) = (position as f64 * rope.frequencies[i]).sin_cos();
        let (a, b) = (head[i], head[i + half]);
        (head[i], head[i + half]) = (a * cosine - b * sine, b * cosine + a * sine);
    }
}

fn activated(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            x / 2.0 * (1.0 + inner.tanh())
        }
    }
}

/// Computes the model as its papers write it, in f64, one token after another.
fn plain_logits(checkpoint: &Checkpoint, tokens: &[TokenId]) -> Vec<f64> {
    let c = checkpoint.config();
    let embedding = checkpoint.embedding().unwrap();
    let table = embedding.to_f32();
    let layers: Vec<_> = (0..c.layers)
        .map(|i| checkpoint.layer(i).unwrap())
        .collect();
    let mut cache = vec![(Vec::new(), Vec::new()); c.layers];
    let mut logits = Vec::new();
    for (position, token) in tokens.iter().enumerate() {
        let row = &table[*token as usize * c.hidden..][..c.hidden];
        let scale = c.embedding_scale(embedding.element).unwrap_or(1.0);
        let mut x: Vec<f64> = row
            .iter()
            .map(|value| f64::from(*value) * f64::from(scale))
            .collect();
        for (index, (layer, (keys, values))) in layers.iter().zip(&mut cache).enumerate() {
            let sliding = c.sliding(index);
            let rope = sliding.map_or(&c.rope, |sliding| &sliding.rope);
            let unseen = sliding.map_or(0, |sliding| (position + 1).saturating_sub(sliding.window));
            let add = |x: &mut [f64], out: Vec<f64>, part: usize| {
                let norms = layer.post_norms.as_ref();
                let out = match norms.map(|norms| &norms[part]) {
                    Some(norm) => normed(&out, norm, c.norm_eps),
                    None => out,
                };
                x.iter_mut().zip(out).for_each(|(x, out)| *x += out);
            };
            let input = normed(&x, &layer.input_norm, c.norm_eps);
            let bias = |i: usize| layer.qkv_bias.as_ref().map(|bias| &bias[i]);
            let prepare = |kind: usize| {
                let mut all = linear(&input, &layer.qkv[kind], bias(kind));
                for head in all.chunks_exact_mut(c.head_dim) {
                    if let Some(norm) = &layer.qk_norm {
                        head.copy_from_slice(&normed(head, &norm[kind], c.norm_eps));
                    }
                    rotated(head, rope, position);
                }
                all
            };
            let queries = prepare(0);
            keys.push(prepare(1));
            values.push(linear(&input, &layer.qkv[2], bias(2)));
            let mut attended = Vec::new();
            for (head, query) in queries.chunks_exact(c.head_dim).enumerate() {
                let columns = head / c.group() * c.head_dim..(head / c.group() + 1) * c.head_dim;
                let scores: Vec<f64> = keys[unseen..]
                    .iter()
                    .map(|key: &Vec<f64>| {
                        let dot: f64 = key[columns.clone()]
                            .iter()
                            .zip(query)
                            .map(|(a, b)| a * b)
                            .sum();
                        (dot / f64::from(c.query_scalar).sqrt()).exp()
                    })
                    .collect();
                let total: f64 = scores.iter().sum();
                attended.extend(columns.map(|column| {
                    let sum: f64 = scores
                        .iter()
                        .zip(&values[unseen..])
                        .map(|(s, v): (_, &Vec<f64>)| s * v[column])
                        .sum();
                    sum / total
                }));
            }
            let out = linear(&attended, &layer.output, layer.output_bias.as_ref());
            add(&mut x, out, 0);
            let input = normed(&x, &layer.mlp_norm, c.norm_eps);
            let bias = |i: usize| layer.gate_up_bias.as_ref().map(|bias| &bias[i]);
            let gate = linear(&input, &layer.gate_up[0], bias(0));
            let up = linear(&input, &layer.gate_up[1], bias(1));
            let inner: Vec<f64> = gate
                .iter()
                .zip(up)
                .map(|(g, u)| activated(*g, c.activation) * u)
                .collect();
            let out = linear(&inner, &layer.down, layer.down_bias.as_ref());
            add(&mut x, out, 1);
        }
        let x = normed(&x, &checkpoint.final_norm().unwrap(), c.norm_eps);
        logits.extend(linear(
            &x,
            checkpoint.head().unwrap().as_ref().unwrap_or(&embedding),
            None,
        ));
    }
    logits
}

#[test]
fn logits_agree_with_a_plain_model_in_f64() {
    let plain = models().into_iter().map(|model| (model, Element::Bf16));
    for (model, element) in plain.chain(packed_models()) {
        let checkpoint = Checkpoint::random(model.clone(), element, 7);
        let prompt = tokens(1, 150);
        let expected = plain_logits(&checkpoint, &prompt);
        let mean = expected.iter().sum::<f64>() / expected.len() as f64;
        let deviation = (expected.iter().map(|x| (x - mean).powi(2)).sum::<f64>()
            / expected.len() as f64)
            .sqrt();
        let is_packed = matches!(element, Element::Packed(_));
        // Weights that are unpacked to bf16 are not those of the plain model.
        let same = |kernels: &Kernels| !is_packed || kernels.keeps_packed();
        for kernels in Kernels::available().into_iter().filter(same) {
            let got = run(
                &mut backend_of((&model, element), kernels, 32, 1),
                vec![segment(&prompt, 0, &[0, 1, 2, 3, 4])],
            );
            assert_eq!(got.len(), expected.len());
            // The largest error below would ignore a NaN.
            assert!(got.iter().all(|x| x.is_finite()), "{kernels:?}");
            let worst = got
                .iter()
                .zip(&expected)
                .map(|(a, b)| (f64::from(*a) - b).abs())
                .fold(0.0, f64::max);
            let tolerance = match (kernels.pairs(), kernels.attention()) {
                // Activations are rounded to 8 bits.
                _ if is_packed => 5e-2,
                (None, None | Some((_, Parts::Two))) => 1e-4,
                _ => 2e-2,
            };
            assert!(
                worst < tolerance * deviation,
                "{kernels:?}: {worst} of a deviation of {deviation}"
            );
        }
    }
}

#[test]
fn chunks_pages_companions_and_threads_do_not_change_a_bit() {
    let plain = models().into_iter().map(|model| (model, Element::Bf16));
    for (model, element) in plain.chain(packed_models()) {
        let case = (&model, element);
        for kernels in Kernels::available() {
            let prompt = tokens(3, 300);
            let pages: Vec<u32> = (0..19).rev().collect();
            let row = VOCABULARY as usize;
            let whole = run(
                &mut backend_of(case, kernels, 16, 1),
                vec![segment(&prompt, 0, &pages)],
            );

            // One thread or three, and pages of 16 or 80 tokens.
            let threaded = run(
                &mut backend_of(case, kernels, 16, 3),
                vec![segment(&prompt, 0, &pages)],
            );
            assert!(same_bits(&whole, &threaded), "{kernels:?}: threads");
            let paged = run(
                &mut backend_of(case, kernels, 80, 1),
                vec![segment(&prompt, 0, &[5, 2, 9, 0])],
            );
            assert!(same_bits(&whole, &paged), "{kernels:?}: page size");

            // In chunks, on pages full of NaN, in steps with other sequences at other positions.
            let mut machine = backend_of(case, kernels, 16, 2);
            for layer in machine.pool.layers_mut() {
                layer.write(
                    &(0..100).collect::<Vec<u32>>(),
                    |page| PageId(*page),
                    |_, piece| piece.fill(u32::MAX),
                );
            }
            let other = tokens(8, 64);
            let other_pages = [40, 41, 42, 43];
            let mut pieces = Vec::new();
            let (mut at, mut other_at) = (0, 0);
            for size in [1, 1, 14, 17, 100, 3, 24, 139, 1] {
                let mut segments = vec![segment(&prompt[at..at + size], at, &pages)];
                let length = (size % 11).min(other.len() - other_at);
                if length > 0 {
                    let companion =
                        segment(&other[other_at..other_at + length], other_at, &other_pages);
                    segments.insert(size % 2, companion);
                    other_at += length;
                }
                let logits = run(&mut machine, segments);
                let before = if length > 0 && size % 2 == 0 {
                    length * row
                } else {
                    0
                };
                pieces.extend_from_slice(&logits[before..before + size * row]);
                at += size;
            }
            assert_eq!(at, prompt.len());
            assert!(same_bits(&whole, &pieces), "{kernels:?}: chunks");

            // On a copied prefix that ends within a page: full pages are shared, and the last one is copied.
            machine.copy_slots(PageId(pages[9]), PageId(77), 7).unwrap();
            let shared: Vec<u32> = pages[..9]
                .iter()
                .copied()
                .chain([77])
                .chain(50..59)
                .collect();
            let rest = run(&mut machine, vec![segment(&prompt[151..], 151, &shared)]);
            assert!(
                same_bits(&whole[151 * row..], &rest),
                "{kernels:?}: copied prefix"
            );
        }
    }
}

#[test]
fn only_wanted_logits_are_returned_in_segment_order() {
    let model = &models()[0];
    let mut machine = backend(model, Kernels::available()[0], 16, 1);
    let row = VOCABULARY as usize;
    let (a, b, c) = (tokens(1, 5), tokens(2, 3), tokens(3, 4));
    let all = run(
        &mut machine,
        vec![
            segment(&a, 0, &[0]),
            segment(&b, 0, &[1]),
            segment(&c, 0, &[2]),
        ],
    );
    let mut segments = vec![
        segment(&a, 0, &[0]),
        segment(&b, 0, &[1]),
        segment(&c, 0, &[2]),
    ];
    segments[0].output = Output::Last;
    segments[1].output = Output::None;
    let some = run(&mut machine, segments);
    assert_eq!(some.len(), 5 * row);
    assert!(same_bits(&some[..row], &all[4 * row..5 * row]));
    assert!(same_bits(&some[row..], &all[8 * row..]));
    assert!(run(&mut machine, Vec::new()).is_empty());
}

/// Runs a step that has loads but no segments.
fn load(backend: &mut CpuBackend, loads: &[(u32, u32)]) -> Result<(), BackendError> {
    let loads = loads.iter().map(|&(from, to)| Load {
        from: HostPageId(from),
        to: PageId(to),
    });
    let step = Step {
        loads: loads.collect(),
        ..Step::default()
    };
    backend.run(&step, &mut Vec::new())
}

fn store(backend: &mut CpuBackend, stores: &[(u32, u32)]) -> Result<(), BackendError> {
    let stores: Vec<_> = stores
        .iter()
        .map(|&(from, to)| Store {
            from: PageId(from),
            to: HostPageId(to),
        })
        .collect();
    backend.store(&stores)
}

#[test]
fn a_page_that_went_through_the_host_pool_and_through_bytes_is_the_page_it_was() {
    for model in &models() {
        for threads in [1, 3] {
            let mut machine = backend(model, Kernels::available()[0], 16, threads);
            let prompt = tokens(1, 60);
            let expected = run(&mut machine, vec![segment(&prompt, 0, &[0, 1, 2, 3])]);
            check_the_host_pool(&mut machine, &prompt, |name, logits, range| {
                let row = VOCABULARY as usize;
                let expected = &expected[range.start * row..range.end * row];
                assert!(
                    same_bits(logits, expected),
                    "{name}, {threads} threads, {range:?}"
                );
            });
        }
    }
}

#[test]
fn malformed_loads_and_stores_move_nothing() {
    let model = &models()[0];
    let mut machine = backend(model, Kernels::available()[0], 16, 1);
    let prompt = tokens(1, 20);
    let first = run(&mut machine, vec![segment(&prompt, 0, &[0, 1])]);
    let says = |outcome: Result<(), BackendError>, expected: &str| match outcome {
        Err(BackendError::Malformed(reason)) => {
            assert!(
                reason.contains(expected),
                "{reason:?} does not say {expected:?}"
            );
        }
        other => panic!("{other:?} instead of {expected:?}"),
    };
    for (loads, expected) in [
        (
            [(1, 0), (12, 2)],
            "host page 12 is not below the host pool's 12",
        ),
        ([(1, 0), (2, 100)], "page 100 is not below the pool's 100"),
        ([(1, 0), (2, 0)], "page 0 is loaded to twice"),
    ] {
        says(load(&mut machine, &loads), expected);
    }
    for (stores, expected) in [
        (
            [(0, 1), (0, 12)],
            "host page 12 is not below the host pool's 12",
        ),
        ([(0, 1), (100, 2)], "page 100 is not below the pool's 100"),
        ([(0, 1), (1, 1)], "host page 1 is stored to twice"),
    ] {
        says(store(&mut machine, &stores), expected);
    }
    let page = HostPageId(12);
    says(machine.host_page(page).map(|_| ()), "host page 12");
    says(machine.host_page_mut(page).map(|_| ()), "host page 12");
    let untouched = machine.host_page(HostPageId(1)).unwrap();
    assert!(untouched.iter().all(|byte| *byte == 0));
    let last = run(&mut machine, vec![segment(&prompt[19..], 19, &[0, 1])]);
    assert!(same_bits(&first[19 * VOCABULARY as usize..], &last));
}

#[test]
fn malformed_calls_compute_nothing() {
    let model = &models()[0];
    let mut machine = backend(model, Kernels::available()[0], 16, 1);
    let prompt = tokens(1, 20);
    let first = run(&mut machine, vec![segment(&prompt, 0, &[0, 1])]);
    let mut logits = vec![1.0];
    let bad = Step {
        segments: vec![
            segment(&prompt, 0, &[0, 1]),
            segment(&[VOCABULARY], 0, &[2]),
        ],
        ..Step::default()
    };
    assert!(matches!(
        machine.run(&bad, &mut logits),
        Err(BackendError::Malformed(_))
    ));
    assert!(logits.is_empty());
    for (from, to, tokens) in [(0, 100, 1), (100, 0, 1), (0, 1, 17), (3, 3, 1)] {
        let error = machine.copy_slots(PageId(from), PageId(to), tokens);
        assert!(
            matches!(error, Err(BackendError::Malformed(_))),
            "{from} {to} {tokens}"
        );
    }
    assert!(same_bits(
        &first,
        &run(&mut machine, vec![segment(&prompt, 0, &[0, 1])])
    ));
}

#[test]
fn unusable_sizes_are_refused() {
    let checkpoint = Checkpoint::random(models().remove(0), Element::F32, 1);
    for (pages, host_pages, page_tokens, threads, expected) in [
        (4, 0, 8, Some(1), "page_tokens is 8"),
        (4, 0, 0, Some(1), "page_tokens is 0"),
        (0, 0, 16, Some(1), "pages is 0"),
        (u32::MAX, 0, 16, Some(1), "pages is 4294967295"),
        (4, 0, 16, Some(0), "threads is 0"),
    ] {
        let config = CpuConfig {
            pages,
            host_pages,
            page_tokens,
            threads,
            precision: Precision::Auto,
        };
        let error = CpuBackend::new(&checkpoint, &config)
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains(expected),
            "{error:?} does not say {expected:?}"
        );
    }
}

#[test]
fn an_identity_changes_with_model_weights_and_page_size_and_with_nothing_else() {
    let identity = |model: &ModelConfig, seed, page_tokens, threads| {
        let config = CpuConfig {
            pages: threads * 7,
            host_pages: threads,
            page_tokens,
            threads: Some(threads),
            precision: Precision::F32,
        };
        let checkpoint = Checkpoint::random(model.clone(), Element::F32, seed);
        let backend = CpuBackend::build(&checkpoint, &config, Kernels::available()[0]);
        backend.unwrap().identity()
    };
    let models = models();
    let first = identity(&models[0], 1, 16, 1);
    assert_eq!(first, identity(&models[0], 1, 16, 2));
    let others = [
        identity(&models[1], 1, 16, 1),
        identity(&models[0], 2, 16, 1),
        identity(&models[0], 1, 32, 1),
    ];
    assert!(others.iter().all(|other| *other != first));
}

#[test]
fn an_identity_tells_packed_weights_from_unpacked_ones() {
    let (model, element) = packed_models().remove(0);
    let kernels = |precision| Kernels::detect(precision).unwrap().0;
    let [packed, wide] = [Precision::Packed, Precision::F32].map(|precision| {
        let backend = backend_of((&model, element), kernels(precision), 16, 1);
        assert_eq!(backend.model.is_packed(), precision == Precision::Packed);
        backend.identity()
    });
    assert_ne!(packed, wide);
}
