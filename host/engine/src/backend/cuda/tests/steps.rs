//! Times steps of a whole model, for `tests/gpu.sh`: one line of JSON for each, printed as soon as it is measured.
//!
//! `FOREWORD_STEPS` names the model's `config.json`; without it the model is small, so that the suite runs this as
//! well. With `FOREWORD_PROFILED` there are few steps, for a profiler that times each kernel.

use super::{devices, is_emulated};
use crate::backend::cuda::ceilings::ceilings;
use crate::backend::cuda::{CudaBackend, CudaConfig, CudaPrecision, PoolSize};
use crate::backend::{Backend, HostPageId, Load, Output, PageId, Segment, Step, Store};
use crate::models::{Checkpoint, Element, ModelConfig};
use crate::sampling::Sampling;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

const PAGE_TOKENS: u32 = 16;

/// The sizes of prompts and batches whose steps are timed.
struct Sizes {
    prompts: &'static [u32],
    batches: &'static [u32],
    /// Tokens before those that are decoded.
    context: u32,
    /// The same for one row among them, and the tokens of a prefix in the host's memory.
    long: u32,
    max_step_tokens: u32,
    runs: usize,
}

const SMALL: Sizes = Sizes {
    prompts: &[64],
    batches: &[1, 5],
    context: 20,
    long: 40,
    max_step_tokens: 64,
    runs: 1,
};

const LARGE: Sizes = Sizes {
    prompts: &[512, 1024, 2048, 4096, 8192, 16384, 32768],
    batches: &[1, 2, 4, 8, 16, 32, 64, 128, 256],
    context: 1024,
    long: 16384,
    max_step_tokens: 8192,
    runs: 7,
};

const PROFILED: Sizes = Sizes {
    prompts: &[4096],
    batches: &[1, 2, 32],
    context: 1024,
    long: 1024,
    max_step_tokens: 8192,
    runs: 1,
};

const TINY: &str = r#"{"model_type":"qwen2","hidden_size":64,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":64,
    "intermediate_size":128,"num_hidden_layers":2,"vocab_size":96,"max_position_embeddings":2048}"#;

#[test]
fn steps_are_timed() {
    let model = match std::env::var_os("FOREWORD_STEPS") {
        Some(path) => ModelConfig::load(Path::new(&path).parent().unwrap()).unwrap(),
        None => ModelConfig::parse(TINY).unwrap(),
    };
    // The last device is the one that a host would open.
    let Some(device) = devices().pop() else {
        return;
    };
    let (emulated, sizes) = match is_emulated(&*device) {
        true => (true, SMALL),
        false if std::env::var_os("FOREWORD_PROFILED").is_some() => (false, PROFILED),
        false => (false, LARGE),
    };
    let context = u64::from(sizes.context + PAGE_TOKENS);
    let tokens = context * u64::from(*sizes.batches.last().unwrap()) + u64::from(2 * sizes.long);
    let tokens = tokens.max(u64::from(*sizes.prompts.last().unwrap()));
    let config = CudaConfig {
        ordinal: 0,
        pages: PoolSize::Pages(tokens.div_ceil(PAGE_TOKENS.into()) as u32),
        host_pages: sizes.long.div_ceil(PAGE_TOKENS),
        page_tokens: PAGE_TOKENS,
        max_step_tokens: sizes.max_step_tokens,
        precision: CudaPrecision::Bf16,
    };
    if !emulated {
        let found = ceilings(0).unwrap();
        tell(json!({
            "step": "ceilings", "device": device.name(), "matrix_tflops": found.matrix_flops / 1e12,
            "copy_tb_s": found.copy_bytes / 1e12, "weight_bytes": model.decode_bytes(0, 0),
        }));
    }
    let started = Instant::now();
    let checkpoint = Checkpoint::random(model.clone(), Element::Bf16, 1);
    let backend = CudaBackend::build(&checkpoint, &config, device, &mut |_, _| {}).unwrap();
    tell(json!({"step": "load", "seconds": started.elapsed().as_secs_f64()}));
    let mut bench = Bench {
        backend,
        runs: sizes.runs,
        max_step_tokens: sizes.max_step_tokens,
    };
    decode(&mut bench, &sizes);
    host_memory(&mut bench, sizes.long / PAGE_TOKENS * PAGE_TOKENS);
    prefill(&mut bench, &sizes, &model);
}

fn decode(bench: &mut Bench, sizes: &Sizes) {
    let Sizes { context, long, .. } = *sizes;
    let each = (context + 1).div_ceil(PAGE_TOKENS);
    let first = (long + 1).div_ceil(PAGE_TOKENS);
    bench.prefill(0, long, 0);
    for row in 0..*sizes.batches.last().unwrap() {
        bench.prefill(0, context, first + row * each);
    }
    let greedy = Output::Token(Sampling::greedy().draw(0));
    let sampled = Output::Token(Sampling::new(0.8, 0.95, 40, 1).unwrap().draw(0));
    for &rows in sizes.batches {
        for how in ["greedy", "sampled", "logprobs", "long"] {
            let segments = (0..rows).map(|row| {
                let is_long = how == "long" && row == 0;
                let (start, page) = match is_long {
                    true => (long, 0),
                    false => (context, first + row * each),
                };
                let output = match how {
                    "sampled" => sampled,
                    "logprobs" if row == 0 => Output::Last,
                    _ => greedy,
                };
                segment(start, 1, page, output)
            });
            let seconds = bench.time(&Step {
                segments: segments.collect(),
                ..Step::default()
            });
            tell(json!({
                "step": "decode", "how": how, "rows": rows, "context": context, "long": long, "seconds": seconds,
                "tokens_per_s": f64::from(rows) / seconds,
            }));
        }
    }
}

/// Measures both directions between the device and the host's memory, and a question after a prefix from there.
fn host_memory(bench: &mut Bench, tokens: u32) {
    let pages = 0..tokens / PAGE_TOKENS;
    let bytes = pages.len() * bench.backend.shape().page_bytes;
    let stores: Vec<Store> = pages
        .clone()
        .map(|page| Store {
            from: PageId(page),
            to: HostPageId(page),
        })
        .collect();
    let loads: Vec<Load> = pages
        .map(|page| Load {
            from: HostPageId(page),
            to: PageId(page),
        })
        .collect();
    let store = bench.median(|bench| {
        bench.backend.store(&stores).unwrap();
        // Waits until the last page has landed.
        bench.backend.host_page(stores.last().unwrap().to).unwrap();
    });
    let segments = vec![segment(tokens, 1, 0, Output::Last)];
    let resident = bench.time(&Step {
        segments: segments.clone(),
        ..Step::default()
    });
    let loaded = bench.time(&Step { loads, segments });
    let computed = bench.median(|bench| bench.prefill(0, tokens, 0));
    tell(json!({
        "step": "host", "tokens": tokens, "bytes": bytes, "store_s": store, "question_s": resident,
        "question_with_loads_s": loaded, "computed_s": computed,
    }));
}

/// Measures prompts, cold, with three quarters in the cache, and with all but a question of 32 tokens in the cache.
fn prefill(bench: &mut Bench, sizes: &Sizes, model: &ModelConfig) {
    for &tokens in sizes.prompts {
        for cached in [0, tokens / 4 * 3, tokens - 32] {
            let seconds = bench.median(|bench| bench.prefill(cached, tokens - cached, 0));
            // Behind its keys and values, the last layer is computed for the last row alone.
            let (new, heads) = (tokens - cached, model.heads + 2 * model.kv_heads);
            let others = ModelConfig {
                layers: model.layers - 1,
                ..model.clone()
            };
            let projected = 2 * model.hidden * heads * model.head_dim * new as usize;
            let flops = others.flops(cached.into(), new.into(), 1) + projected as f64;
            tell(json!({
                "step": "prefill", "tokens": tokens, "cached": cached, "seconds": seconds, "tflops": flops / seconds / 1e12,
            }));
        }
    }
}

struct Bench {
    backend: CudaBackend,
    runs: usize,
    max_step_tokens: u32,
}

impl Bench {
    /// Computes tokens from `start` on, on pages from `page` on, in the largest steps.
    fn prefill(&mut self, start: u32, tokens: u32, page: u32) {
        let end = start + tokens;
        for at in (start..end).step_by(self.max_step_tokens as usize) {
            let share = self.max_step_tokens.min(end - at);
            self.run(&Step {
                segments: vec![segment(at, share, page, Output::Last)],
                ..Step::default()
            });
        }
    }

    fn run(&mut self, step: &Step) {
        self.backend.run(step, &mut Vec::new()).unwrap();
        self.backend.drawn();
    }

    /// Returns the median time of a step.
    fn time(&mut self, step: &Step) -> f64 {
        self.median(|bench| bench.run(step))
    }

    /// Returns the median time, after two runs that do not count: the second one may be recorded.
    fn median(&mut self, mut work: impl FnMut(&mut Self)) -> f64 {
        let mut seconds: Vec<f64> = (0..self.runs + 2)
            .map(|_| {
                let start = Instant::now();
                work(self);
                start.elapsed().as_secs_f64()
            })
            .collect();
        let seconds = &mut seconds[2..];
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    }
}

fn segment(start: u32, tokens: u32, page: u32, output: Output) -> Segment {
    let pages = (start + tokens).div_ceil(PAGE_TOKENS);
    Segment {
        // Few enough for every vocabulary.
        tokens: (start..start + tokens).map(|at| at * 7 % 89).collect(),
        start,
        pages: (page..page + pages).map(PageId).collect(),
        output,
    }
}

/// Prints a line, at once even where the output is a file.
fn tell(line: Value) {
    use std::io::Write as _;
    println!("{line}");
    std::io::stdout().flush().unwrap();
}
