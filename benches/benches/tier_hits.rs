//! The cost of a hit in each tier beside computing the tokens again, on the CPU backend.
//!
//! ```text
//! cargo bench -p foreword-benches -- tier_hits [--rounds N]
//! ```
//!
//! Each round computes a prompt of 2,048 cached tokens and 16 new ones in four ways:
//!
//! - *none*: all 2,064 tokens are computed, in steps of 512;
//! - *device*: the pages are in the pool, and 16 tokens are computed;
//! - *host*: the step that computes the 16 tokens loads the pages from the host pool;
//! - *disk*: the pages are read from the file, each put into the host pool as it arrives, and then loaded as in *host*.
//!   The file is in the system's page cache, as recently written or read files are; a cold disk adds the time of its
//!   own rate.
//!
//! The logits must be the same bits every time. Times are medians over rounds; ratios are to *none*, in the same round.

use foreword_benches::Arguments;
use foreword_engine::backend::cpu::{CpuBackend, CpuConfig, Precision};
use foreword_engine::backend::{Backend, HostPageId, Load, Output, PageId, Segment, Step, Store};
use foreword_engine::cache::disk::{DiskConfig, DiskStore};
use foreword_engine::cache::{DiskTier, PageHash};
use foreword_engine::models::{Checkpoint, Element, ModelConfig};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// The shape of Qwen2-0.5B without most of its vocabulary: 0.36 billion weights in its layers.
const SHAPE: &str = r#"{"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 16000, "max_position_embeddings": 4096,
    "tie_word_embeddings": true}"#;
const CACHED: u32 = 2048;
const NEW: u32 = 16;
const PAGE_TOKENS: u32 = 16;
const CACHED_PAGES: u32 = CACHED / PAGE_TOKENS;
const STEP: u32 = 512;
const CASES: [&str; 4] = ["none", "device", "host", "disk"];

pub(crate) fn bench(arguments: &Arguments) {
    let rounds: usize = arguments.number("--rounds").unwrap_or(7);
    let folder = std::env::temp_dir().join(format!("foreword-tiers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the file");
    let mut tiers = Tiers::new(&folder.join("pages"));
    let expected = tiers.prompt(0);
    let mut times = vec![Vec::new(); CASES.len()];
    for round in 0..rounds {
        for (case, times) in times.iter_mut().enumerate() {
            let start = Instant::now();
            let logits = tiers.prompt(case);
            times.push(start.elapsed().as_secs_f64());
            assert!(logits == expected, "{} changed the logits", CASES[case]);
        }
        eprint!("\rround {} of {rounds}", round + 1);
    }
    eprintln!();
    let mib =
        f64::from(CACHED_PAGES) * tiers.backend.shape().page_bytes as f64 / f64::from(1 << 20);
    println!(
        "{CACHED} cached tokens ({mib:.0} MiB) and {NEW} new ones, {}, {} threads, {rounds} rounds\n",
        tiers.backend.instruction_set(),
        tiers.backend.threads()
    );
    println!(
        "| cached where | time, ms | of computing it | least | most |\n| --- | --- | --- | --- | --- |"
    );
    for (name, case) in CASES.iter().zip(&times) {
        let mut ratios: Vec<f64> = case.iter().zip(&times[0]).map(|(a, b)| a / b).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        println!(
            "| {name} | {:.1} | {:.4} | {:.4} | {:.4} |",
            median(case) * 1e3,
            median(&ratios),
            ratios[0],
            ratios[ratios.len() - 1]
        );
    }
    drop(tiers);
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}

struct Tiers {
    backend: CpuBackend,
    disk: DiskStore,
    arrivals: Receiver<()>,
}

impl Tiers {
    /// Returns tiers that all hold the prompt.
    fn new(path: &std::path::Path) -> Self {
        let model = ModelConfig::parse(SHAPE).expect("the shape is supported");
        let sizes = CpuConfig {
            precision: Precision::Auto,
            pages: CACHED_PAGES + NEW.div_ceil(PAGE_TOKENS),
            host_pages: CACHED_PAGES,
            page_tokens: PAGE_TOKENS,
            threads: None,
        };
        let checkpoint = Checkpoint::random(model, Element::Bf16, 1);
        let mut backend = CpuBackend::new(&checkpoint, &sizes).expect("the backend is built");
        let disk = DiskConfig {
            capacity: 1 << 30,
            identity: backend.identity(),
            page_bytes: backend.shape().page_bytes,
        };
        let disk = DiskStore::open(path, &disk).expect("the file is made");
        let (arrived, arrivals) = channel();
        disk.on_completion(Box::new(move || {
            // The receiver may have gone.
            let _ = arrived.send(());
        }));
        compute(&mut backend, 0, Vec::new());
        let stores: Vec<Store> = (0..CACHED_PAGES)
            .map(|page| Store {
                from: PageId(page),
                to: HostPageId(page),
            })
            .collect();
        backend.store(&stores).expect("the pages are stored");
        for page in 0..CACHED_PAGES {
            let bytes = backend.host_page(HostPageId(page)).expect("it is there");
            disk.write(hash(page), hash(page.wrapping_sub(1)), bytes);
            disk.flush();
        }
        Self {
            backend,
            disk,
            arrivals,
        }
    }

    /// Returns the last token's logits, with the prompt's pages in tier `case`. For lower tiers, the pool's content is
    /// overwritten.
    fn prompt(&mut self, case: usize) -> Vec<f32> {
        let loads = || {
            let load = |page| Load {
                from: HostPageId(page),
                to: PageId(page),
            };
            (0..CACHED_PAGES).map(load).collect()
        };
        match CASES[case] {
            "none" => compute(&mut self.backend, 0, Vec::new()),
            "device" => compute(&mut self.backend, CACHED, Vec::new()),
            "host" => compute(&mut self.backend, CACHED, loads()),
            _ => {
                (0..CACHED_PAGES).for_each(|page| self.disk.request(hash(page)));
                let mut page = 0;
                while page < CACHED_PAGES {
                    let Some((_, bytes)) = self.disk.completed() else {
                        self.arrivals.recv().expect("the disk answers");
                        continue;
                    };
                    let bytes = bytes.expect("it was written");
                    let to = self.backend.host_page_mut(HostPageId(page));
                    to.expect("it is there").copy_from_slice(&bytes);
                    page += 1;
                }
                compute(&mut self.backend, CACHED, loads())
            }
        }
    }
}

/// Computes the prompt from `start` on.
fn compute(backend: &mut CpuBackend, start: u32, mut loads: Vec<Load>) -> Vec<f32> {
    let end = CACHED + NEW;
    let mut logits = Vec::new();
    for start in (start..end).step_by(STEP as usize) {
        let stop = (start + STEP).min(end);
        let segment = Segment {
            tokens: (start..stop).map(|at| at * 7919 % 16_000).collect(),
            start,
            pages: (0..stop.div_ceil(PAGE_TOKENS)).map(PageId).collect(),
            output: if stop == end {
                Output::Last
            } else {
                Output::None
            },
        };
        let step = Step {
            loads: std::mem::take(&mut loads),
            segments: vec![segment],
        };
        backend
            .run(&step, &mut logits)
            .expect("the step is well-formed");
    }
    logits
}

fn hash(page: u32) -> PageHash {
    PageHash(u128::from(page) << 64 | 1)
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
