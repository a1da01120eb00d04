//! Tests that decoding on the CPU backend allocates no memory: what a step needs is kept from the steps before.
//!
//! This is the only test in its binary, because it counts every thread's allocations.

#![allow(unsafe_code, reason = "a global allocator is an unsafe trait")]

use foreword_engine::backend::cpu::{CpuBackend, CpuConfig, Precision};
use foreword_engine::backend::{Backend, Output, PageId, Segment, Step};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn decoding_allocates_nothing_per_token() {
    const STEPS: u32 = 128;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen2");
    let config = CpuConfig {
        host_pages: 0,
        pages: 20,
        page_tokens: 16,
        threads: Some(2),
        precision: Precision::Auto,
    };
    let mut backend = CpuBackend::load(&folder, &config).unwrap();
    let mut logits = Vec::new();
    // Two sequences run side by side, the second on the other half of the pages.
    let segment = |first: u32| Segment {
        tokens: vec![1],
        start: 0,
        pages: (first..first + 10).map(PageId).collect(),
        output: Output::Last,
    };
    let mut step = Step {
        loads: Vec::new(),
        segments: vec![segment(0), segment(10)],
    };
    let mut decode = |position: u32| {
        for segment in &mut step.segments {
            segment.start = position;
            segment.tokens[0] = position % 100;
        }
        backend.run(&step, &mut logits).unwrap();
    };
    (0..8).for_each(&mut decode);
    let before = COUNT.load(Ordering::Relaxed);
    (8..8 + STEPS).for_each(&mut decode);
    let count = COUNT.load(Ordering::Relaxed) - before;
    // The thread pool's queue for calls from outside allocates a new block for every 63 of them.
    let blocks = STEPS as usize / 63 + 1;
    assert!(
        count <= blocks,
        "{count} allocations in {STEPS} steps, {blocks} expected at most"
    );
}
