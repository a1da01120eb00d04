//! A CPU backend without an engine: a segment of one sequence in, its logits out.

use foreword_engine::backend::cpu::{CpuBackend, CpuConfig, Precision};
use foreword_engine::backend::{Backend, Output, PageId, Segment, Step};
use foreword_engine::models::CheckpointError;
use std::path::Path;

pub(crate) const PAGE_TOKENS: u32 = 16;

/// Pages in the backend's pool.
pub(crate) const POOL: u32 = 200;

pub(crate) fn load(
    folder: &Path,
    threads: u32,
    precision: Precision,
) -> Result<CpuBackend, CheckpointError> {
    let config = CpuConfig {
        pages: POOL,
        host_pages: 0,
        page_tokens: PAGE_TOKENS,
        threads: Some(threads),
        precision,
    };
    CpuBackend::load(folder, &config)
}

pub(crate) fn run(
    backend: &mut CpuBackend,
    tokens: &[u32],
    start: usize,
    pages: &[PageId],
    output: Output,
) -> Vec<f32> {
    let segment = Segment {
        tokens: tokens.to_vec(),
        start: start as u32,
        pages: pages.to_vec(),
        output,
    };
    let step = Step {
        segments: vec![segment],
        ..Step::default()
    };
    let mut logits = Vec::new();
    backend.run(&step, &mut logits).unwrap();
    logits
}

/// Returns the most likely token.
pub(crate) fn best(row: &[f32]) -> u32 {
    (0..row.len())
        .max_by(|&a, &b| row[a].total_cmp(&row[b]))
        .unwrap() as u32
}
