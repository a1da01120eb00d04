//! Tests of whole models against the CPU backend, whose f32 is the reference: with sequences that are cut, copied,
//! moved to the host pool and back, or decoded together with others.
//!
//! Tolerance: both sides have the same bf16 weights, and this one rounds activations and the KV state to bf16 (2^-9
//! relative). The root mean square of a row's errors may be 2e-2 of the row's own deviation, the bound that was set for
//! logits.

use super::emulated::Emulated;
use super::{devices, is_emulated, standin};
use crate::backend::cpu::{CpuBackend, CpuConfig, Precision};
use crate::backend::cuda::device::Device;
use crate::backend::cuda::{
    CudaBackend, CudaConfig, CudaPrecision, PoolSize, Unavailable, unavailable,
};
use crate::backend::tests::{self, check_the_host_pool, run, segment};
use crate::backend::{
    Backend, BackendError, HostPageId, Output, PageId, Segment, Step, Store, TokenId,
};
use crate::engine::{EngineConfig, Event, Request, Stepper};
use crate::models::{Checkpoint, Element, ModelConfig};
use crate::sampling::Sampling;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

const VOCABULARY: u32 = 96;
const PAGE_TOKENS: u32 = 16;
const TOLERANCE: f64 = 2e-2;

/// Returns checkpoints that cover the families' options, groups of one, three and seven, narrow and wide heads, and
/// weights in bf16 and f32.
pub(super) fn checkpoints() -> Vec<Checkpoint> {
    let models = [
        (
            r#""model_type":"qwen2","hidden_size":56,"num_attention_heads":7,"num_key_value_heads":1,"head_dim":24,
            "intermediate_size":72"#,
            Element::Bf16,
        ),
        (
            r#""model_type":"qwen3","hidden_size":64,"num_attention_heads":6,"num_key_value_heads":2,"head_dim":128,
            "intermediate_size":128,"tie_word_embeddings":true"#,
            Element::F32,
        ),
        (
            r#""model_type":"llama","hidden_size":64,"num_attention_heads":4,"num_key_value_heads":4,"head_dim":64,
            "intermediate_size":200,"attention_bias":true,"mlp_bias":true,
            "rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
            "original_max_position_embeddings":64}"#,
            Element::Bf16,
        ),
    ];
    let checkpoints = models.into_iter().map(|(middle, element)| {
        let json = format!(
            r#"{{{middle},"num_hidden_layers":2,"vocab_size":{VOCABULARY},"max_position_embeddings":2048}}"#
        );
        Checkpoint::random(ModelConfig::parse(&json).unwrap(), element, 7)
    });
    checkpoints.collect()
}

fn tokens(seed: u32, count: usize) -> Vec<TokenId> {
    tests::tokens(VOCABULARY, seed, count)
}

fn reference(checkpoint: &Checkpoint) -> CpuBackend {
    let config = CpuConfig {
        pages: 200,
        host_pages: 0,
        page_tokens: PAGE_TOKENS,
        threads: Some(1),
        precision: Precision::F32,
    };
    CpuBackend::new(checkpoint, &config).unwrap()
}

pub(super) fn config() -> CudaConfig {
    CudaConfig {
        ordinal: 0,
        pages: PoolSize::Pages(200),
        host_pages: 6,
        page_tokens: PAGE_TOKENS,
        // Odd, so that what stands behind a step's rows in a buffer is not aligned by chance.
        max_step_tokens: 701,
        precision: CudaPrecision::Bf16,
    }
}

fn backend(checkpoint: &Checkpoint, device: Box<dyn Device>) -> CudaBackend {
    let mut last = (0, 0);
    let mut progress = |done, total| last = (done, total);
    let backend = CudaBackend::build(checkpoint, &config(), device, &mut progress).unwrap();
    assert!(
        last.0 == last.1 && last.1 > 0,
        "all bytes are told of: {last:?}"
    );
    backend
}

/// Returns the reference's logits of every token.
fn expected(checkpoint: &Checkpoint, tokens: &[TokenId]) -> Vec<f32> {
    let pages = 0..(tokens.len() as u32).div_ceil(PAGE_TOKENS);
    run(
        &mut reference(checkpoint),
        vec![segment(tokens, 0, pages, Output::All)],
    )
}

#[track_caller]
fn assert_agree(name: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{name}: rows");
    for (row, (found, expected)) in found
        .chunks(VOCABULARY as usize)
        .zip(expected.chunks(VOCABULARY as usize))
        .enumerate()
    {
        let mean = expected.iter().copied().map(f64::from).sum::<f64>() / expected.len() as f64;
        let variance: f64 = expected
            .iter()
            .map(|x| (f64::from(*x) - mean).powi(2))
            .sum();
        let error: f64 = found
            .iter()
            .zip(expected)
            .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
            .sum();
        let relative = (error / variance).sqrt();
        assert!(
            relative < TOLERANCE,
            "{name}: row {row} is {relative} of a deviation away"
        );
    }
}

/// Returns rows `range` of logits.
fn rows(logits: &[f32], range: std::ops::Range<usize>) -> &[f32] {
    &logits[range.start * VOCABULARY as usize..range.end * VOCABULARY as usize]
}

#[test]
fn logits_agree_with_the_cpu_however_a_prompt_is_cut() {
    for checkpoint in checkpoints() {
        let prompt = tokens(3, 300);
        let expected = expected(&checkpoint, &prompt);
        for device in devices() {
            let mut machine = backend(&checkpoint, device);
            let pages: Vec<u32> = (40..59).rev().collect();
            let whole = run(
                &mut machine,
                vec![segment(&prompt, 0, pages.clone(), Output::All)],
            );
            assert_agree("whole", &whole, &expected);

            // In chunks, on other pages, in steps with a decoding sequence and one that asks for no logits.
            let (other, other_pages) = (tokens(8, 64), [10, 11, 12, 13]);
            let other_expected = expected_of(&checkpoint, &other);
            let pages: Vec<u32> = (100..119).collect();
            let (mut at, mut other_at) = (0, 0);
            for size in [1, 1, 14, 17, 100, 3, 24, 139, 1] {
                let mut segments = vec![segment(
                    &prompt[at..at + size],
                    at,
                    pages.clone(),
                    Output::All,
                )];
                if size % 2 == 1 {
                    let one = segment(
                        &other[other_at..=other_at],
                        other_at,
                        other_pages,
                        Output::Last,
                    );
                    segments.insert(usize::from(size > 1), one);
                    segments.push(segment(&other[..20], 0, [20, 21], Output::None));
                }
                let logits = run(&mut machine, segments);
                let (before, after) = match (size % 2, size > 1) {
                    (0, _) => (0, 0),
                    (_, false) => (1, 0),
                    (_, true) => (0, 1),
                };
                let own = rows(&logits, before..before + size);
                assert_agree("chunk", own, rows(&expected, at..at + size));
                if before + after > 0 {
                    let row = if before == 1 { 0 } else { size };
                    assert_agree(
                        "beside",
                        rows(&logits, row..row + 1),
                        rows(&other_expected, other_at..other_at + 1),
                    );
                    other_at += 1;
                }
                at += size;
            }
            assert_eq!(at, prompt.len());

            // On a copied prefix that ends within a page.
            machine.copy_slots(PageId(109), PageId(77), 7).unwrap();
            let shared: Vec<u32> = pages[..9]
                .iter()
                .copied()
                .chain([77])
                .chain(150..159)
                .collect();
            let rest = run(
                &mut machine,
                vec![segment(&prompt[151..], 151, shared, Output::Last)],
            );
            assert_agree("copied prefix", &rest, rows(&expected, 299..300));
        }
    }
}

fn expected_of(checkpoint: &Checkpoint, tokens: &[TokenId]) -> Vec<f32> {
    expected(checkpoint, tokens)
}

#[test]
fn sequences_that_decode_side_by_side_agree_with_the_cpu_recorded_or_not() {
    for checkpoint in checkpoints() {
        // Lengths on both sides of a bucket and of the 256 positions of a split.
        let lengths = [3, 254, 30, 600, 17];
        let sequences: Vec<Vec<TokenId>> = lengths
            .iter()
            .map(|length| tokens(*length as u32, length + 8))
            .collect();
        let expected: Vec<Vec<f32>> = sequences
            .iter()
            .map(|sequence| expected_of(&checkpoint, sequence))
            .collect();
        for device in devices() {
            let mut machine = backend(&checkpoint, device);
            let pages: Vec<Vec<u32>> = (0..5).map(|i| (i * 40..i * 40 + 39).collect()).collect();
            for (i, length) in lengths.into_iter().enumerate() {
                run(
                    &mut machine,
                    vec![segment(
                        &sequences[i][..length],
                        0,
                        pages[i].clone(),
                        Output::None,
                    )],
                );
            }
            // Buckets recur with different numbers of rows, and after more recordings than may be kept.
            let mut next = lengths;
            for (step, running) in [5, 5, 4, 4, 3, 3, 5, 5].into_iter().enumerate() {
                let segments = (0..running).map(|i| {
                    let at = next[i];
                    segment(&sequences[i][at..=at], at, pages[i].clone(), Output::Last)
                });
                let logits = run(&mut machine, segments.collect());
                for (row, at) in next[..running].iter_mut().enumerate() {
                    let (i, at) = (row, std::mem::replace(at, *at + 1));
                    let name = format!("step {step}, sequence {i}");
                    assert_agree(
                        &name,
                        rows(&logits, row..row + 1),
                        rows(&expected[i], at..at + 1),
                    );
                }
            }
        }
    }
}

#[test]
fn pages_that_went_through_the_host_pool_and_through_bytes_are_the_pages_they_were() {
    for checkpoint in checkpoints() {
        let prompt = tokens(1, 60);
        let expected = expected(&checkpoint, &prompt);
        for device in devices() {
            let mut machine = backend(&checkpoint, device);
            check_the_host_pool(&mut machine, &prompt, |name, logits, range| {
                assert_agree(name, logits, rows(&expected, range));
            });
        }
    }
}

#[test]
fn what_cannot_be_computed_is_refused_with_value_and_limit() {
    let checkpoint = &checkpoints()[0];
    for device in devices() {
        let mut machine = backend(checkpoint, device);
        let mut refused = |segment: Segment| match machine.run(
            &Step {
                segments: vec![segment],
                ..Step::default()
            },
            &mut Vec::new(),
        ) {
            Err(BackendError::Malformed(reason)) => reason,
            other => panic!("{other:?}"),
        };
        let reason = refused(segment(&tokens(1, 702), 0, 0..44, Output::None));
        assert_eq!(
            reason,
            "the step has 702 tokens, this backend was made for 701"
        );
        let reason = refused(segment(&[VOCABULARY], 0, [0], Output::None));
        assert!(
            reason.contains("token 96 is not below the vocabulary's 96"),
            "{reason}"
        );
        assert!(machine.copy_slots(PageId(1), PageId(1), 3).is_err());
        assert!(machine.host_page(HostPageId(6)).is_err());
        assert!(
            machine
                .store(&[Store {
                    from: PageId(0),
                    to: HostPageId(6)
                }])
                .is_err()
        );
    }
    let refused = |change: &str, config: CudaConfig| {
        let json = format!(
            r#"{{"model_type":"llama","hidden_size":64,"num_attention_heads":4,"intermediate_size":64,"vocab_size":96,
            "num_hidden_layers":1,"max_position_embeddings":64{change}}}"#
        );
        let checkpoint = Checkpoint::random(ModelConfig::parse(&json).unwrap(), Element::Bf16, 1);
        super::super::check(checkpoint.config(), &config)
            .unwrap_err()
            .to_string()
    };
    for (change, config, expected) in [
        (
            r#","head_dim":136"#,
            config(),
            "head_dim is 136, supported on CUDA: multiples of 8 up to 128",
        ),
        (r#","head_dim":20"#, config(), "head_dim is 20"),
        (
            "",
            CudaConfig {
                page_tokens: 48,
                ..config()
            },
            "page_tokens is 48, supported on CUDA: 16, 32, 64, 128, 256",
        ),
        (
            "",
            CudaConfig {
                max_step_tokens: 0,
                ..config()
            },
            "max_step_tokens is 0",
        ),
        (
            "",
            CudaConfig {
                pages: PoolSize::Fraction(1.5),
                ..config()
            },
            "1.5, supported: above 0 and below 1",
        ),
        (
            "",
            CudaConfig {
                pages: PoolSize::Pages(0),
                ..config()
            },
            "pages is 0",
        ),
    ] {
        let reason = refused(change, config);
        assert!(
            reason.contains(expected),
            "{reason:?} does not say {expected:?}"
        );
    }
}

#[test]
fn a_pool_takes_its_part_of_the_memory_that_is_left() {
    let checkpoint = &checkpoints()[0];
    for device in devices() {
        if !is_emulated(&*device) || standin::is_loaded() {
            continue;
        }
        let config = CudaConfig {
            pages: PoolSize::Fraction(0.5),
            ..config()
        };
        let machine = CudaBackend::build(checkpoint, &config, device, &mut |_, _| {}).unwrap();
        // The emulator has 64 MiB left.
        assert_eq!(
            machine.shape().pages as usize,
            (32 << 20) / machine.shape().page_bytes
        );
    }
}

#[test]
fn without_a_device_the_reason_is_told() {
    match unavailable(0) {
        None => eprintln!("SKIPPED: there is a device"),
        Some(Unavailable { reason, .. }) => {
            assert!(!reason.is_empty());
            let error = CudaBackend::new(&checkpoints()[0], &config(), &mut |_, _| {})
                .err()
                .unwrap();
            assert_eq!(error.to_string(), reason);
        }
    }
}

#[test]
fn tokens_are_chosen_beside_logits_as_the_host_would_choose_them() {
    let checkpoint = &checkpoints()[0];
    let prompts: Vec<Vec<TokenId>> = (0..4)
        .map(|seed| tokens(seed, 20 + seed as usize))
        .collect();
    for device in devices() {
        let mut machine = backend(checkpoint, device);
        let sampling = Sampling::new(0.8, 0.9, 30, 4).unwrap();
        // Prompts first and then, twice, single tokens; the second sequence asks for its logits.
        for round in 0..3 {
            let ask = |machine: &mut CudaBackend, drawing: bool| {
                let segments = prompts.iter().zip(0..).map(|(prompt, i)| {
                    let draw = Output::Token(sampling.draw(round + i));
                    let output = if drawing && i != 1 {
                        draw
                    } else {
                        Output::Last
                    };
                    let pages = i * 4..i * 4 + 4;
                    match round {
                        0 => segment(prompt, 0, pages, output),
                        _ => segment(
                            &[round * 7 + i],
                            prompt.len() + round as usize - 1,
                            pages,
                            output,
                        ),
                    }
                });
                run(machine, segments.collect())
            };
            let all = ask(&mut machine, false);
            assert!(machine.drawn().is_empty());
            let some = ask(&mut machine, true);
            assert_eq!(some, rows(&all, 1..2), "the logits that were asked for");
            let chosen: Vec<TokenId> = machine.drawn().into_iter().map(Result::unwrap).collect();
            let expected = [0, 2, 3].map(|i: u32| {
                sampling
                    .choose(rows(&all, i as usize..i as usize + 1), round + i)
                    .unwrap()
            });
            assert_eq!(chosen, expected);
        }
    }
}

#[test]
fn only_rows_that_the_host_asks_for_are_copied() {
    let Some(device) = Emulated::new(false) else {
        return;
    };
    let copied = device.copied.clone();
    let mut machine = backend(&checkpoints()[0], Box::new(device));
    let greedy = Output::Token(Sampling::greedy().draw(0));
    let row = u64::from(VOCABULARY) * 4;
    // Kind and token of a row that is sampled.
    let chosen = 8;
    for (outputs, expected) in [
        ([greedy; 4], 4 * chosen),
        ([greedy, Output::Last, greedy, greedy], row + 4 * chosen),
        (
            [Output::Last, greedy, greedy, Output::Last],
            2 * row + 4 * chosen,
        ),
        ([Output::Last; 4], 4 * row),
        // Every token of the second prompt, and no other.
        (
            [greedy, Output::All, Output::None, greedy],
            5 * row + 7 * chosen,
        ),
    ] {
        let prompt = matches!(outputs[1], Output::All);
        let count = if prompt { 5 } else { 1 };
        let segments = outputs.into_iter().zip(0..).map(|(output, i)| {
            let pages = [i];
            segment(&tokens(i, count), 0, pages, output)
        });
        let before = copied.read.load(Relaxed);
        let logits = run(&mut machine, segments.collect());
        assert_eq!(copied.read.load(Relaxed) - before, expected, "{outputs:?}");
        let rows = outputs.iter().map(|output| match output {
            Output::Last => 1,
            Output::All => count,
            Output::Token(_) | Output::None => 0,
        });
        assert_eq!(logits.len(), rows.sum::<usize>() * VOCABULARY as usize);
    }
}

#[test]
fn page_tables_are_sent_where_they_have_changed() {
    let Some(device) = Emulated::new(false) else {
        return;
    };
    let copied = device.copied.clone();
    let mut machine = backend(&checkpoints()[0], Box::new(device));
    // 40 sequences share all pages except their last, in tables of 128 pages: 5,120 words, and 200 others.
    let mut step = |start: usize, last: u32| {
        let segments = (0..40).map(|i| {
            let own = if i == 39 { last } else { 100 + i };
            segment(&[i], start, (0..64).chain([own]), Output::Last)
        });
        let before = copied.written.load(Relaxed);
        run(&mut machine, segments.collect());
        let mut found = vec![0; machine.plan.words.len()];
        let words = &machine.scratch.words;
        words.read(&mut *machine.device, 0, &mut found).unwrap();
        assert_eq!(
            found, machine.plan.words,
            "the words of the step at {start}"
        );
        (copied.written.load(Relaxed) - before) / 4
    };
    assert_eq!(step(1024, 139), 5320, "everything");
    // Tokens, positions, slots and lengths are in the first piece, the last table in the second.
    assert_eq!(step(1025, 139), 4096, "the piece that changes in each step");
    assert_eq!(step(1026, 140), 5320, "the last table too");
    assert_eq!(step(1026, 140), 0, "nothing");
}

#[test]
fn an_engine_on_this_backend_answers_and_lets_go_of_its_pages() {
    let checkpoint = &checkpoints()[2];
    for device in devices() {
        let emulated = is_emulated(&*device);
        let machine = backend(checkpoint, device);
        let mut engine = Stepper::new(Box::new(machine), &EngineConfig::default());
        let now = Instant::now();
        let mut ask = |request: Request| {
            let mut generation = engine.submit(request, now).unwrap();
            let (mut answer, mut logprobs) = (Vec::new(), Vec::new());
            while !engine.is_idle() {
                engine.step(now);
                engine.check();
                while let Some(event) = generation.try_next() {
                    match event {
                        Event::Prompt(found) => logprobs = found,
                        Event::Token { id, logprobs: of } => {
                            answer.push(id);
                            logprobs.extend(of.map(|of| *of));
                        }
                        _ => {}
                    }
                }
            }
            (answer, logprobs)
        };
        // One row of logits is copied to the host and one is not; on an empty cache and on cached pages.
        let prompt = tokens(5, 100);
        let request = |top_logprobs| Request {
            prompt: prompt.clone(),
            max_tokens: 9,
            top_logprobs,
            ..Request::default()
        };
        let (cold, generated) = ask(request(Some(5)));
        let (warm, none) = ask(request(None));
        assert_eq!((cold.len(), warm.len(), none.len()), (9, 9, 0));
        // A real device rounds differently for another number of rows: where the answers part, both tokens nearly tie.
        if let Some(at) = (0..9).find(|&at| cold[at] != warm[at]) {
            assert!(!emulated, "{cold:?} {warm:?}");
            let top = &generated[at].top;
            let other = top.iter().find(|(token, _)| *token == warm[at]);
            let behind = other.map(|(_, logprob)| generated[at].chosen - logprob);
            assert!(
                behind.is_some_and(|behind| behind < 0.02),
                "{at}: {warm:?}, {:?}",
                generated[at]
            );
        }
        // The answer as a part of the prompt is as likely as it was when it was generated.
        let (_, forced) = ask(Request {
            prompt: [prompt.clone(), cold].concat(),
            prompt_logprobs: Some(0),
            max_tokens: 0,
            ..Request::default()
        });
        assert_eq!(forced.len(), prompt.len() + 9 - 1);
        for (forced, generated) in forced[prompt.len() - 1..].iter().zip(&generated) {
            let error = (forced.chosen - generated.chosen).abs();
            assert!(error < 0.02, "{forced:?} {generated:?}");
        }
        let stats = engine.stats();
        assert_eq!(
            (stats.cache.in_use, stats.full_hits + stats.partial_hits),
            (0, 1)
        );
    }
}
