//! The demo's second part: how much sooner the first token comes, on a model that is large enough to tell.
//!
//! ```text
//!   bursty trace ──┬──▶ Envoy + filter, policy retrieval ──▶ host, shape of 0.1B, random weights
//!   request by     │                                          (both hosts run; one works at a time)
//!   request        └──▶ Envoy + filter, policy foresight ──▶ host, the same weights
//! ```
//!
//! The reader has 4 million parameters, so that a prompt of it is computed in less time than everything around it takes.
//! The shape in `examples/shapes/0.1b` takes about a second for a prompt. It knows nothing, so its answers are one token
//! long and are not looked at.
//!
//! Both orders are sent in turns, request by request, and take turns in going first, so that whatever else the machine
//! does falls on both alike.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use super::arm::Arm;
use super::client::{Answer, Client};
use super::interrupt::Interrupt;
use super::replay::{Question, Sample, warm_up};
use super::stack::{Serving, Stack};
use super::summary::Summary;
use super::trace;
use crate::build::Built;
use crate::workspace::Workspace;

/// The requests of both orders; the two at one place are the same request.
#[derive(Default)]
pub(super) struct Times {
    pub(super) retrieval: Vec<Sample>,
    pub(super) ordered: Vec<Sample>,
}

impl Times {
    /// Returns the requests of one order.
    pub(super) fn samples(&self, arm: Arm) -> &[Sample] {
        match arm {
            Arm::Retrieval => &self.retrieval,
            Arm::Ordered => &self.ordered,
        }
    }

    /// Returns the sums and quantiles of one order.
    pub(super) fn summary(&self, arm: Arm) -> Summary {
        Summary::of(self.samples(arm))
    }

    /// Returns the share of requests whose first token came sooner in the better order.
    pub(super) fn sooner(&self) -> f64 {
        let pairs = self.retrieval.iter().zip(&self.ordered);
        let sooner = pairs.filter(|(retrieval, ordered)| ordered.ttft < retrieval.ttft);
        sooner.count() as f64 / self.ordered.len().max(1) as f64
    }
}

/// The shape that is served, and what lends it a tokenizer: any will do, since nobody reads the answers.
const SHAPE: &str = "examples/shapes/0.1b";
const TOKENIZER: &str = "examples/reader";

/// Time after which no further request is sent, so that the part ends within three minutes on a slow machine too.
const LONGEST: Duration = Duration::from_secs(150);

/// Sends `requests` of the bursty trace in both orders.
pub(super) fn measure(
    workspace: &Workspace,
    built: &Built,
    kv_tokens: u32,
    requests: usize,
    interrupt: &Interrupt,
) -> Result<Times> {
    let mut times = Times::default();
    if requests == 0 {
        return Ok(times);
    }
    let questions = trace::bursty(workspace, requests)?;
    let folder = shape(workspace)?;
    let serving = Serving {
        checkpoint: folder.path(),
        arguments: &[
            "--random-weights",
            "1",
            "--device",
            "cpu",
            "--kv-tokens",
            &kv_tokens.to_string(),
        ],
    };
    let started = Instant::now();
    let mut orders = Vec::new();
    for arm in [Arm::Retrieval, Arm::Ordered] {
        interrupt.check()?;
        let stack = Stack::start(arm, built, &serving)?;
        let client = Client::new(stack.completions_url());
        warm_up(&client, stack.model())?;
        orders.push((arm, stack, client));
    }
    let progress = ProgressBar::new(questions.len() as u64)
        .with_style(ProgressStyle::with_template(
            "{prefix:>9} {wide_bar} {pos}/{len} {msg}",
        )?)
        .with_prefix("time");
    for (at, question) in questions.iter().enumerate() {
        if started.elapsed() > LONGEST {
            break;
        }
        let mut answered = [None, None];
        for turn in 0..orders.len() {
            interrupt.check()?;
            let place = (turn + at) % orders.len();
            let (_, stack, client) = &orders[place];
            answered[place] = Some(ask(client, question, stack.model())?);
        }
        for ((arm, ..), sample) in orders.iter().zip(answered) {
            let samples = match arm {
                Arm::Retrieval => &mut times.retrieval,
                Arm::Ordered => &mut times.ordered,
            };
            samples.extend(sample);
        }
        let mean = |arm| times.summary(arm).ttft_mean_ms;
        progress.set_message(format!(
            "{:.0} ms in retrieval order, {:.0} ordered",
            mean(Arm::Retrieval),
            mean(Arm::Ordered)
        ));
        progress.inc(1);
    }
    progress.finish();
    Ok(times)
}

fn ask(client: &Client, question: &Question, model: &str) -> Result<Sample> {
    let Answer {
        ttft,
        total,
        prompt_tokens,
        cached_tokens,
        ..
    } = client.ask(&question.body(model)?)?;
    Ok(Sample {
        prompt_tokens,
        cached_tokens,
        ttft,
        total,
        is_right: false,
    })
}

/// Returns a folder that can be served: the shape's `config.json` beside a tokenizer and a chat template.
fn shape(workspace: &Workspace) -> Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new()
        .prefix("foreword-shape-")
        .tempdir()?;
    let files = [
        (SHAPE, "config.json"),
        (TOKENIZER, "tokenizer.json"),
        (TOKENIZER, "tokenizer_config.json"),
        (TOKENIZER, "chat_template.jinja"),
    ];
    for (from, name) in files {
        let from = workspace.root().join(from).join(name);
        fs::copy(&from, folder.path().join(name))
            .with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(folder)
}
