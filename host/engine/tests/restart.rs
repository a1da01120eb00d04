//! Tests of a real model on an engine that stops and starts again: it continues from the disk tier with the same
//! answer, and from nothing where the file cannot be trusted.

use foreword_engine::backend::Backend;
use foreword_engine::backend::cpu::{CpuBackend, CpuConfig, Precision};
use foreword_engine::cache::CacheConfig;
use foreword_engine::cache::disk::{DiskConfig, DiskStore, Origin};
use foreword_engine::engine::{Engine, EngineConfig, Event, Request};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PROMPT: u32 = 100;

fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(family)
}

struct Run {
    origin: Origin,
    cached: u32,
    answer: Vec<u32>,
}

/// Runs an engine with a file at `path` from start to shutdown, for one greedy answer.
fn run(family: &str, path: &Path) -> Run {
    let sizes = CpuConfig {
        precision: Precision::Auto,
        pages: 32,
        host_pages: 16,
        page_tokens: 16,
        threads: Some(2),
    };
    let backend = CpuBackend::load(&fixture(family), &sizes).unwrap();
    let disk = DiskConfig {
        // Records of so few slots take one block, after the header's block.
        capacity: 24 * (backend.shape().page_bytes as u64 + 4096),
        identity: backend.identity(),
        page_bytes: backend.shape().page_bytes,
    };
    let disk = Arc::new(DiskStore::open(path, &disk).unwrap());
    let origin = disk.origin().clone();
    let config = EngineConfig {
        cache: CacheConfig {
            identity: backend.identity() as u64,
            disk: Some(disk),
            ..CacheConfig::default()
        },
        ..EngineConfig::default()
    };
    let engine = Engine::start(Box::new(backend), config);
    let request = Request {
        prompt: (0..PROMPT).map(|at| at * 37 % 2000).collect(),
        max_tokens: 12,
        ..Request::default()
    };
    let mut generation = engine.submit(request).unwrap();
    let (mut cached, mut answer) = (0, Vec::new());
    while let Some(event) = generation.blocking_next() {
        match event {
            Event::Started { cached_tokens } => cached = cached_tokens,
            Event::Token { id: token, .. } => answer.push(token),
            Event::Prompt(_) | Event::Finished(_) => {}
            Event::Failed(failure) => panic!("{failure}"),
        }
    }
    engine.shutdown();
    Run {
        origin,
        cached,
        answer,
    }
}

#[test]
fn an_answer_after_a_restart_is_the_same_and_its_prompt_comes_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pages");
    let cold = run("qwen2", &path);
    assert_eq!((cold.origin, cold.cached), (Origin::Created, 0));
    assert_eq!(cold.answer.len(), 12);
    let warm = run("qwen2", &path);
    // All full pages of the prompt.
    assert_eq!(warm.cached, PROMPT / 16 * 16);
    assert_eq!(warm.answer, cold.answer);
    assert!(matches!(warm.origin, Origin::Restored(pages) if pages >= PROMPT / 16));
}

#[test]
fn a_damaged_page_is_computed_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pages");
    let cold = run("qwen3", &path);
    // Flips a bit of every page, after header and records.
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let length = file.metadata().unwrap().len();
    let mut byte = [0];
    for at in (8192..length).step_by(4096) {
        file.read_exact_at(&mut byte, at).unwrap();
        byte[0] ^= 0x10;
        file.write_all_at(&byte, at).unwrap();
    }
    let warm = run("qwen3", &path);
    assert!(matches!(warm.origin, Origin::Restored(_)));
    assert_eq!(warm.cached, 0);
    assert_eq!(warm.answer, cold.answer);
}

#[test]
fn another_models_pages_are_discarded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pages");
    let cold = run("llama", &folder.path().join("others"));
    run("qwen2", &path);
    let other = run("llama", &path);
    assert!(
        matches!(other.origin, Origin::Discarded(_)),
        "{:?}",
        other.origin
    );
    assert_eq!((other.cached, other.answer), (0, cold.answer));
}
