//! `cargo xtask demo`: sends the reader's questions through Envoy, once for each order, and shows what the engine's
//! cache saves.
//!
//! ```text
//! xtask ──HTTP──▶ Envoy + filter ──▶ host (the reader of `examples/reader`, fresh prefix cache)
//!                 policy: retrieval, then foresight; both processes restarted for each
//! ```
//!
//! Each arm sends the same questions with the same retrieved documents, one after another; answers are compared with
//! the right ones. Afterwards some requests are repeated with a cold cache, and the answers must be the same bytes.
//!
//! The reader is too small for time to show. So a second part ([`time`]) sends a bursty trace to a larger model of random
//! weights, in both orders in turns.

mod answers;
mod arm;
mod client;
mod figures;
mod interrupt;
mod plots;
mod replay;
mod report;
mod right;
mod stack;
mod summary;
mod time;
mod trace;

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use self::arm::Arm;
use self::figures::Figures;
use self::interrupt::Interrupt;
use self::replay::Question;
use self::stack::{Serving, Stack};
use crate::build::{self, Built};
use crate::setup;
use crate::workspace::Workspace;

/// What to replay, and how.
#[derive(Args, Clone)]
pub(crate) struct Options {
    /// End after the replay instead of staying up for requests by hand
    #[arg(long)]
    once: bool,
    /// Print one JSON object instead of a table
    #[arg(long, requires = "once")]
    json: bool,
    /// Questions to ask; all of the corpus unless given
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// Retrieved documents per question
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=10))]
    top_k: u8,
    /// Size of the host's KV cache in tokens
    #[arg(long, value_name = "N", default_value_t = DEFAULT_KV_TOKENS)]
    kv_tokens: u32,
    /// Requests of the second part, which shows time: about one a second in each order, for two and a half minutes at
    /// most. 0: leave it out
    #[arg(long, value_name = "N", default_value_t = DEFAULT_TIME_REQUESTS)]
    time_requests: usize,
    /// Cargo profile of the host; `dev` optimises the engine and shares the tests' build
    #[arg(long, default_value = "dev")]
    profile: String,
}

/// The host's own default: room for about fifty of the replay's prompts.
const DEFAULT_KV_TOKENS: u32 = 65_536;

/// Ten bursts of ten.
const DEFAULT_TIME_REQUESTS: usize = 100;

/// Enough for the work to be counted.
const CHECKED_TIME_REQUESTS: usize = 40;

/// The reader: a small model, trained by the scripts beside it.
const READER: &str = "examples/reader";

/// Most prompt tokens to compute in the second part, as a share of those in retrieval order. What time that saves
/// depends on the machine; the work does not.
const MOST_COMPUTED: f64 = 0.75;

/// Least gain of ordering, as a multiple of the reuse in retrieval order.
const LEAST_GAIN: f64 = 1.5;

/// Least share of right answers of each arm. A question cannot be answered if the retriever did not find its documents.
const LEAST_EXACT_MATCH: f64 = 0.8;

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let built = prepare(workspace, options)?;
    let interrupt = Interrupt::install()?;
    let (figures, stack) = replay_both(workspace, options, &built, &interrupt)?;
    if options.json {
        println!("{}", figures.to_json());
        return Ok(());
    }
    print!("{}", figures.to_table());
    println!("report: {}", report::path(workspace).display());
    if options.once {
        return Ok(());
    }
    println!(
        "\nEnvoy listens at {} until Ctrl-C. Ask it one of the questions:\n",
        stack.completions_url()
    );
    println!("  {}\n", curl_line(workspace, options, &stack)?);
    interrupt.wait();
    Ok(())
}

/// Checks that the demo ends by itself with the promised keys, gain and answers; for `cargo xtask test`, which has
/// built everything.
pub(crate) fn check(workspace: &Workspace, built: &Built) -> Result<()> {
    let options = Options {
        once: true,
        json: true,
        requests: None,
        top_k: 5,
        kv_tokens: DEFAULT_KV_TOKENS,
        time_requests: CHECKED_TIME_REQUESTS,
        profile: "dev".into(),
    };
    let (figures, _) = replay_both(workspace, &options, built, &Interrupt::install()?)?;
    let json: serde_json::Value = serde_json::from_str(&figures.to_json())?;
    eprintln!("{json}");
    for key in PROMISED_KEYS {
        ensure!(
            json[key].is_number(),
            "the demo's JSON has no number under {key:?}"
        );
    }
    let gain = figures.gain();
    ensure!(
        gain >= LEAST_GAIN,
        "ordering reuses {gain:.2} times the retrieval order's tokens, less than {LEAST_GAIN}"
    );
    for arm in [Arm::Retrieval, Arm::Ordered] {
        let summary = figures.summary(arm);
        ensure!(
            summary.exact_match() >= LEAST_EXACT_MATCH,
            "in {} order {} of {} answers are right, fewer than {LEAST_EXACT_MATCH}",
            arm.key(),
            summary.right,
            summary.requests
        );
    }
    let computed = figures.time.summary(Arm::Ordered).computed() as f64
        / figures.time.summary(Arm::Retrieval).computed().max(1) as f64;
    ensure!(
        computed <= MOST_COMPUTED,
        "on the bursty trace, ordered prompts leave {computed:.2} of the retrieval order's tokens to compute, more than \
         {MOST_COMPUTED}"
    );
    ensure!(
        figures.answers.checked > 0 && figures.answers.equal == figures.answers.checked,
        "{} of {} sampled answers were the same bytes warm and cold",
        figures.answers.equal,
        figures.answers.checked
    );
    Ok(())
}

/// The keys that `--json` promises at its top level.
const PROMISED_KEYS: [&str; 14] = [
    "requests",
    "prompt_tokens",
    "retrieval.cached_tokens",
    "ordered.cached_tokens",
    "retrieval.ttft_p50_ms",
    "ordered.ttft_p50_ms",
    "retrieval.exact_match",
    "ordered.exact_match",
    "time.retrieval.ttft_mean_ms",
    "time.retrieval.ttft_p50_ms",
    "time.retrieval.ttft_p95_ms",
    "time.ordered.ttft_mean_ms",
    "time.ordered.ttft_p50_ms",
    "time.ordered.ttft_p95_ms",
];

/// Sets up and builds, before signals are caught, because cargo handles them by itself.
fn prepare(workspace: &Workspace, options: &Options) -> Result<Built> {
    setup::for_demo(workspace)?;
    Ok(Built {
        filter: build::filter(workspace)?,
        host: build::host(workspace, &options.profile)?,
        ext_proc: None,
    })
}

/// Replays both arms and writes the report. Returns the second arm's processes running.
fn replay_both(
    workspace: &Workspace,
    options: &Options,
    built: &Built,
    interrupt: &Interrupt,
) -> Result<(Figures, Stack)> {
    let questions = replay::questions(workspace, usize::from(options.top_k), options.requests)?;

    let mut figures = Figures::new(
        workspace,
        options.top_k,
        options.kv_tokens,
        &options.profile,
    );
    let checkpoint = workspace.root().join(READER);
    ensure!(
        checkpoint.join("config.json").is_file(),
        "the model {READER} is missing; restore it with `git checkout -- {READER}`"
    );
    let serving = Serving {
        checkpoint: &checkpoint,
        arguments: &["--kv-tokens", &options.kv_tokens.to_string()],
    };
    let mut running = None;
    for arm in [Arm::Retrieval, Arm::Ordered] {
        // The first arm's processes end before the second's start, so the arms share nothing, not even the processor.
        drop(running.take());
        interrupt.check()?;
        let stack = Stack::start(arm, built, &serving)?;
        let outcome = replay_arm(&stack, arm, &questions, interrupt, &mut figures);
        // A signal from the terminal ends host and Envoy too; their ends are then not the error to report.
        interrupt.check()?;
        outcome.with_context(|| format!("replaying in {} order", arm.key()))?;
        running = Some(stack);
    }
    let time = time::measure(
        workspace,
        built,
        options.kv_tokens,
        options.time_requests,
        interrupt,
    );
    interrupt.check()?;
    figures.time = time.context("measuring the time on a larger model")?;
    report::write(workspace, &figures)?;
    let Some(stack) = running else {
        bail!("no arm ran")
    };
    Ok((figures, stack))
}

fn replay_arm(
    stack: &Stack,
    arm: Arm,
    questions: &[Question],
    interrupt: &Interrupt,
    figures: &mut Figures,
) -> Result<()> {
    let replayed = replay::replay(stack, arm, questions, interrupt)?;
    figures.answers += answers::compare(stack, &replayed.warm, interrupt)?;
    figures.set(arm, replayed.samples, replayed.said);
    Ok(())
}

/// Returns a command line to paste: the last question, which the cache still holds, with its documents in a file
/// because they are long.
fn curl_line(workspace: &Workspace, options: &Options, stack: &Stack) -> Result<String> {
    let questions = replay::questions(workspace, usize::from(options.top_k), options.requests)?;
    let question = questions.last().context("the corpus has no question")?;
    let file = report::folder(workspace).join("request.json");
    let body = question.body(stack.model())?;
    fs::write(&file, body).with_context(|| format!("writing {}", file.display()))?;
    let url = stack.completions_url();
    Ok(format!(
        "curl -isN {url} -H 'content-type: application/json' -d '@{}'",
        file.display()
    ))
}
