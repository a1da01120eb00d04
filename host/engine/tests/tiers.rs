//! Tests of a real model over three tiers too small for its prompts: the same greedy answers as with nothing cached.

use foreword_engine::TokenId;
use foreword_engine::backend::Backend;
use foreword_engine::backend::cpu::{CpuBackend, CpuConfig, Precision};
use foreword_engine::cache::disk::{DiskConfig, DiskStore};
use foreword_engine::cache::{CacheConfig, EvictionPolicy};
use foreword_engine::engine::{Engine, EngineConfig, Event, Generation, Request};
use foreword_ordering::random::Random;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PAGE_TOKENS: u32 = 16;
const ANSWER_TOKENS: u32 = 6;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen2")
}

fn backend(pages: u32, host_pages: u32) -> CpuBackend {
    let config = CpuConfig {
        precision: Precision::Auto,
        pages,
        host_pages,
        page_tokens: PAGE_TOKENS,
        threads: Some(1),
    };
    CpuBackend::load(&fixture(), &config).unwrap()
}

/// Returns a system prompt, two or three of five documents, and a question.
fn prompt(number: u32, vocabulary: u32) -> Vec<TokenId> {
    let mut random = Random::new(number.into());
    let part = |seed: u32, tokens: u32| {
        let mut random = Random::new(u64::from(seed) << 20);
        (0..tokens)
            .map(|_| random.below(vocabulary.into()) as TokenId)
            .collect::<Vec<_>>()
    };
    let mut tokens = part(1, 20);
    for _ in 0..2 + random.below(2) {
        let document = random.below(5) as u32;
        tokens.extend(part(10 + document, 18 + 5 * document));
    }
    tokens.extend(part(100 + number, 7));
    tokens
}

fn submit(engine: &Engine, prompt: Vec<TokenId>) -> Generation {
    let request = Request {
        prompt,
        max_tokens: ANSWER_TOKENS,
        ..Request::default()
    };
    engine.submit(request).unwrap()
}

fn listen(mut generation: Generation) -> Vec<TokenId> {
    let mut tokens = Vec::new();
    while let Some(event) = generation.blocking_next() {
        match event {
            Event::Token { id: token, .. } => tokens.push(token),
            Event::Failed(failure) => panic!("{failure}"),
            _ => {}
        }
    }
    tokens
}

#[test]
fn answers_are_the_same_cold_warm_evicted_promoted_and_after_a_restart() {
    const PROMPTS: u32 = 12;
    let cold = backend(60, 0);
    let vocabulary = cold.shape().vocabulary;
    let engine = Engine::start(Box::new(cold), EngineConfig::default());
    let expected: Vec<Vec<TokenId>> = (0..PROMPTS)
        .map(|number| {
            engine.clear_cache();
            listen(submit(&engine, prompt(number, vocabulary)))
        })
        .collect();
    let stats = engine.stats();
    assert_eq!((stats.cached_tokens, stats.cache.in_use), (0, 0));
    engine.shutdown();

    for (policy, seed) in EvictionPolicy::ALL.into_iter().zip(1..) {
        let folder = tempfile::tempdir().unwrap();
        let mut from_disk = Vec::new();
        // The second engine begins with what the first one left on disk.
        for life in 0..2 {
            let backend = backend(14, 10);
            let disk = DiskConfig {
                capacity: 8 << 20,
                identity: 1,
                page_bytes: backend.shape().page_bytes,
            };
            let disk = DiskStore::open(&folder.path().join("pages"), &disk).unwrap();
            let config = EngineConfig {
                max_running: 3,
                max_step_tokens: 40,
                cache: CacheConfig {
                    policy,
                    replicated_share: 0.2,
                    disk: Some(Arc::new(disk)),
                    ..CacheConfig::default()
                },
                ..EngineConfig::default()
            };
            let engine = Engine::start(Box::new(backend), config);
            let mut random = Random::new(seed + 10 * life);
            for _ in 0..20 {
                let numbers: Vec<u32> = (0..1 + random.below(4))
                    .map(|_| random.below(PROMPTS.into()) as u32)
                    .collect();
                let started: Vec<Generation> = numbers
                    .iter()
                    .map(|&number| submit(&engine, prompt(number, vocabulary)))
                    .collect();
                for (number, generation) in numbers.into_iter().zip(started) {
                    let answer = listen(generation);
                    assert_eq!(
                        answer, expected[number as usize],
                        "{policy}, prompt {number}"
                    );
                }
            }
            let stats = engine.stats();
            assert_eq!(stats.cache.in_use, 0);
            assert!(
                stats.host_tokens > 0 && stats.cache.evicted > 0,
                "{stats:?}"
            );
            from_disk.push(stats.cache.fetched);
            engine.shutdown();
        }
        assert!(
            from_disk.iter().all(|&pages| pages > 0),
            "{policy}: {from_disk:?}"
        );
    }
}
