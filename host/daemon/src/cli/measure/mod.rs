//! `foreword measure`: measures the parts of an answer on a device, without a server: prefill, decode, cached
//! prefixes, and pages from the host's memory. On a CUDA device it also measures what the device could do at best.
//!
//! Last come RAGCache++'s workload ([`workload`]) and its [`pipelining`], through the whole engine.
//!
//! Every figure is the median of several runs of the backend's own steps. The output is one JSON object.

mod pipelining;
mod workload;

use super::LogFormat;
use super::start_log;
use crate::cli::device;
use anyhow::{Context, ensure};
use clap::CommandFactory;
use clap::error::ErrorKind;
use foreword_engine::TokenId;
use foreword_engine::backend::cuda::{self, Ceilings};
use foreword_engine::backend::{Backend, HostPageId, Load, Output, PageId, Segment, Step, Store};
use foreword_engine::engine::{EngineConfig, Stepper};
use foreword_engine::models::ModelConfig;
use foreword_engine::sampling::Sampling;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use workload::Workload;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of a Hugging Face checkpoint; with --random-weights its config.json is enough
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    #[command(flatten)]
    device: device::Arguments,
    /// Tokens of the prompt whose prefill is measured
    #[arg(long, value_name = "TOKENS", default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(64..))]
    prompt: u32,
    /// Tokens of context for decoding
    #[arg(long, value_name = "TOKENS", default_value_t = 2_048, value_parser = clap::value_parser!(u32).range(16..))]
    context: u32,
    /// Numbers of sequences that decode side by side, with commas between
    #[arg(long, value_name = "SEQUENCES", value_delimiter = ',', default_values_t = [1, 32])]
    batches: Vec<u32>,
    /// Queries of RAGCache++'s workload; 0 for none
    #[arg(long, default_value_t = 200)]
    queries: u32,
    /// Number of runs of the workload, each with a seed of its own
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    seeds: u32,
    /// Shares of documents that a query has in common with the one before, with commas between; the first is also run
    /// with several queries at once
    #[arg(long, value_delimiter = ',', default_values_t = [0.6, 0.0, 0.2, 0.4, 0.8])]
    overlaps: Vec<f64>,
    /// Numbers of queries at once, with commas between
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    groups: Vec<u32>,
    /// Runs per median
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    runs: u32,
}

impl Arguments {
    /// Returns the conflict between arguments, if there is one.
    pub(crate) fn conflict(&self) -> Option<String> {
        self.device.conflict()
    }
}

/// Prints the figures; progress goes to the log.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    if let Some(message) = arguments.conflict() {
        crate::Arguments::command()
            .error(ErrorKind::ValueValidation, message)
            .exit();
    }
    let measured = start_log(LogFormat::Text).and_then(|()| measured(arguments));
    measured.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// Measures, and prints the figures.
fn measured(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let config = ModelConfig::load(&arguments.model)?;
    let (context, prompt) = (arguments.context, arguments.prompt);
    ensure!(
        prompt <= config.max_positions && context < config.max_positions,
        "the model has {} positions: --prompt {prompt} and --context {context} do not fit",
        config.max_positions
    );
    let device = arguments
        .device
        .config(context.next_multiple_of(arguments.device.page_tokens));
    let ceilings = match device.ordinal()? {
        None => None,
        Some(ordinal) => {
            Some(cuda::ceilings(ordinal).context("measuring what the device could do at best")?)
        }
    };
    let opened = device.open(&arguments.model)?;
    let mut bench = Bench {
        backend: opened.backend,
        max_step_tokens: opened.max_step_tokens,
        runs: arguments.runs,
        logits: Vec::new(),
    };
    let prefill = bench.prefill(prompt, &config, ceilings.as_ref())?;
    let mut decode = Vec::new();
    for batch in &arguments.batches {
        decode.push(bench.decode(*batch, context, &config, ceilings.as_ref())?);
    }
    let host = bench.host_tier(context)?;
    let config = EngineConfig {
        max_step_tokens: bench.max_step_tokens,
        max_running: 32,
        ..EngineConfig::default()
    };
    let mut engine = Stepper::new(bench.backend, &config);
    let workload = match arguments.queries {
        0 => Value::Null,
        queries => workload::run(
            &mut engine,
            &Workload {
                queries: queries as usize,
                seeds: arguments.seeds.into(),
                overlaps: arguments.overlaps.clone(),
                groups: arguments
                    .groups
                    .iter()
                    .map(|group| *group as usize)
                    .collect(),
            },
        )?,
    };
    let pipelining = pipelining::run(&mut engine, arguments.runs)?;
    let result = json!({
        "device": opened.machine,
        "ceilings": ceilings.map(|c| json!({"matrix_tflops": c.matrix_flops / 1e12, "copy_tb_s": c.copy_bytes / 1e12})),
        "prefill": prefill,
        "decode": decode,
        "host_tier": host,
        "ragcache": workload,
        "pipelining": pipelining,
    });
    println!("{result:#}");
    Ok(ExitCode::SUCCESS)
}

struct Bench {
    backend: Box<dyn Backend>,
    max_step_tokens: u32,
    runs: u32,
    /// Buffer that is reused for its memory.
    logits: Vec<f32>,
}

impl Bench {
    /// Measures prefill: cold, with three quarters of the prompt cached, and with everything but a question of 32
    /// tokens cached.
    fn prefill(
        &mut self,
        tokens: u32,
        config: &ModelConfig,
        ceilings: Option<&Ceilings>,
    ) -> anyhow::Result<Value> {
        let cold = self.time(|bench| bench.compute(0, tokens, 0))?;
        let rate = config.flops(0, u64::from(tokens), 1) / cold;
        let mut cached = Vec::new();
        for start in [tokens / 4 * 3, tokens - 32] {
            let seconds = self.time(|bench| bench.compute(start, tokens - start, 0))?;
            cached.push(json!({
                "cached_tokens": start, "new_tokens": tokens - start, "seconds": seconds, "of_cold": seconds / cold,
            }));
        }
        Ok(json!({
            "tokens": tokens,
            "seconds": cold,
            "tokens_per_s": f64::from(tokens) / cold,
            "tflops": rate / 1e12,
            "of_matrix_rate": ceilings.map(|ceilings| rate / ceilings.matrix_flops),
            "cached": cached,
        }))
    }

    /// Measures decoding of several sequences, each with its own context.
    fn decode(
        &mut self,
        batch: u32,
        context: u32,
        config: &ModelConfig,
        ceilings: Option<&Ceilings>,
    ) -> anyhow::Result<Value> {
        let pages = (context + 1).div_ceil(self.backend.page_tokens());
        if u64::from(pages) * u64::from(batch) > u64::from(self.backend.pages()) {
            return Ok(
                json!({"batch": batch, "skipped": "the pool has no room for so many sequences"}),
            );
        }
        for sequence in 0..batch {
            self.compute(0, context, sequence * pages)?;
        }
        let draws = self.backend.draws();
        let seconds = self.time(|bench| {
            let segments = (0..batch).map(|sequence| Segment {
                tokens: vec![token(sequence)],
                start: context,
                pages: (sequence * pages..(sequence + 1) * pages)
                    .map(PageId)
                    .collect(),
                output: if draws {
                    Output::Token(Sampling::greedy().draw(0))
                } else {
                    Output::Last
                },
            });
            bench.step(Step {
                segments: segments.collect(),
                ..Step::default()
            })
        })?;
        // Every weight is read once, and every sequence's keys and values.
        let bytes = config.decode_bytes(u64::from(batch), u64::from(context));
        Ok(json!({
            "batch": batch,
            "context": context,
            "seconds": seconds,
            "tokens_per_s": f64::from(batch) / seconds,
            "weight_bound_share": ceilings.map(|c| config.decode_bytes(0, 0) as f64 / c.copy_bytes / seconds),
            "byte_bound_share": ceilings.map(|c| bytes as f64 / c.copy_bytes / seconds),
        }))
    }

    /// Measures loading a prefix from the host's memory, against computing it.
    fn host_tier(&mut self, context: u32) -> anyhow::Result<Value> {
        let page_tokens = self.backend.page_tokens();
        let (context, question) = (context / page_tokens * page_tokens, 32);
        let pages = context / page_tokens;
        if self.backend.host_pages() < pages {
            return Ok(json!({"skipped": "there is no host pool"}));
        }
        self.compute(0, context, 0)?;
        let stores: Vec<Store> = (0..pages)
            .map(|page| Store {
                from: PageId(page),
                to: HostPageId(page),
            })
            .collect();
        self.backend.store(&stores)?;
        let computed = self.time(|bench| bench.compute(0, context, 0))?;
        let resident = self.time(|bench| bench.question(context, question, Vec::new()))?;
        let loads: Vec<Load> = (0..pages)
            .map(|page| Load {
                from: HostPageId(page),
                to: PageId(page),
            })
            .collect();
        let loaded = self.time(|bench| bench.question(context, question, loads.clone()))?;
        Ok(json!({
            "tokens": context,
            "computed_s": computed,
            "question_s": resident,
            "question_with_loads_s": loaded,
            "loads_of_computing": (loaded - resident) / computed,
        }))
    }

    fn question(&mut self, start: u32, tokens: u32, loads: Vec<Load>) -> anyhow::Result<()> {
        let step = Step {
            segments: vec![self.segment(start, tokens, 0, Output::Last)],
            loads,
        };
        self.step(step)
    }

    /// Computes tokens from `start` on, in the largest steps that the backend accepts, on pages from `page` on.
    fn compute(&mut self, start: u32, tokens: u32, page: u32) -> anyhow::Result<()> {
        let end = start + tokens;
        let mut at = start;
        while at < end {
            let share = self.max_step_tokens.min(end - at);
            let output = if at + share == end {
                Output::Last
            } else {
                Output::None
            };
            let segments = vec![self.segment(at, share, page, output)];
            self.step(Step {
                segments,
                ..Step::default()
            })?;
            at += share;
        }
        Ok(())
    }

    fn segment(&self, start: u32, tokens: u32, page: u32, output: Output) -> Segment {
        let pages = (start + tokens).div_ceil(self.backend.page_tokens());
        Segment {
            tokens: (start..start + tokens).map(token).collect(),
            start,
            pages: (page..page + pages).map(PageId).collect(),
            output,
        }
    }

    fn step(&mut self, step: Step) -> anyhow::Result<()> {
        self.backend.run(&step, &mut self.logits)?;
        Ok(())
    }

    /// Returns the median, after two runs that do not count: the backend may record the second one.
    fn time(
        &mut self,
        mut work: impl FnMut(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<f64> {
        let mut seconds = Vec::new();
        for run in 0..self.runs + 2 {
            let start = Instant::now();
            work(self)?;
            if run >= 2 {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        seconds.sort_by(f64::total_cmp);
        Ok(seconds[seconds.len() / 2])
    }
}

/// Returns a token for a position. There are few of them, so that every vocabulary has them.
fn token(position: u32) -> TokenId {
    position.wrapping_mul(2_654_435_761) >> 25
}
