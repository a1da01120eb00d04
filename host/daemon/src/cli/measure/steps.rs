//! Measures the parts of an answer on a device: prefill, decode, cached prefixes, and loading pages from host memory.
//! Each figure is the median of several runs of the backend's own steps.

use super::Arguments;
use anyhow::ensure;
use foreword_engine::TokenId;
use foreword_engine::backend::cuda::Ceilings;
use foreword_engine::backend::{
    Backend, BackendShape, HostPageId, Load, Output, PageId, Segment, Step, Store,
};
use foreword_engine::models::ModelConfig;
use foreword_engine::sampling::Sampling;
use serde_json::{Value, json};
use std::time::Instant;

/// The figures of a device's steps, as JSON.
pub(super) struct Steps {
    pub(super) prefill: Value,
    pub(super) decode: Vec<Value>,
    pub(super) host_tier: Value,
}

/// Measures all figures on a backend. `max_step_tokens` is the maximum number of tokens in a step.
pub(super) fn run(
    backend: Box<dyn Backend>,
    max_step_tokens: u32,
    arguments: &Arguments,
    config: &ModelConfig,
    ceilings: Option<&Ceilings>,
) -> anyhow::Result<Steps> {
    let (prompt, context) = (arguments.prompt, arguments.context);
    ensure!(
        prompt <= config.max_positions && context < config.max_positions,
        "the model has {} positions: --prompt {prompt} and --context {context} do not fit",
        config.max_positions
    );
    let mut bench = Bench {
        backend,
        max_step_tokens,
        runs: arguments.runs,
        logits: Vec::new(),
    };
    let prefill = bench.prefill(prompt, config, ceilings)?;
    let decode = (arguments.batches.iter())
        .map(|batch| bench.decode(*batch, context, config, ceilings))
        .collect::<Result<_, _>>()?;
    let host_tier = bench.host_tier(context)?;
    Ok(Steps {
        prefill,
        decode,
        host_tier,
    })
}

struct Bench {
    backend: Box<dyn Backend>,
    max_step_tokens: u32,
    runs: u32,
    /// Buffer for logits, used by all steps.
    logits: Vec<f32>,
}

impl Bench {
    /// Measures prefill of `tokens` tokens: cold, with three quarters cached, and with all but 32 cached.
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

    /// Measures decoding of `batch` sequences, each with `context` tokens.
    fn decode(
        &mut self,
        batch: u32,
        context: u32,
        config: &ModelConfig,
        ceilings: Option<&Ceilings>,
    ) -> anyhow::Result<Value> {
        let shape = self.backend.shape();
        let pages = (context + 1).div_ceil(shape.page_tokens);
        if u64::from(pages) * u64::from(batch) > u64::from(shape.pages) {
            return Ok(
                json!({"batch": batch, "skipped": "the pool has no room for so many sequences"}),
            );
        }
        for sequence in 0..batch {
            self.compute(0, context, sequence * pages)?;
        }
        let seconds = self.time(|bench| {
            let segments = (0..batch).map(|sequence| Segment {
                tokens: vec![token(sequence)],
                start: context,
                pages: (sequence * pages..(sequence + 1) * pages)
                    .map(PageId)
                    .collect(),
                output: if shape.draws {
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
        // A step reads every weight once, and every sequence's keys and values.
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

    /// Measures loading a prefix from host memory, compared with computing it.
    fn host_tier(&mut self, context: u32) -> anyhow::Result<Value> {
        let BackendShape {
            page_tokens,
            host_pages,
            ..
        } = self.backend.shape();
        let (context, question) = (context / page_tokens * page_tokens, 32);
        let pages = context / page_tokens;
        if host_pages < pages {
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

    /// Computes `tokens` tokens from position `start` on, in steps of at most `max_step_tokens`. Their pages start at
    /// `page`.
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
        let pages = (start + tokens).div_ceil(self.backend.shape().page_tokens);
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

    /// Returns the median seconds of `work`, after two runs that do not count: the backend may record the second one.
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

/// Returns a token for a position, below 128, so that it is in every vocabulary.
fn token(position: u32) -> TokenId {
    position.wrapping_mul(2_654_435_761) >> 25
}
