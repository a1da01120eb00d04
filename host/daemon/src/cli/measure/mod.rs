//! `foreword measure`: measures on a device, without a server, how long answers take and what ordering saves.
//!
//! ```text
//!   steps        prefill, decode, cached prefixes, pages from the host's memory; on CUDA the device's own ceilings too
//!   orders       RAGCache++'s workload under every arm: time to the first token, tokens saved, cost of ordering
//!   sweeps       the same under a few arms: overlap, requests at once, k, KV pool, kinds of traces
//!   throughput   answers of 50 tokens, one after another and eight at once
//!   pipelining   retrieval during the system prompt's prefill
//! ```
//!
//! Each part is a module. All except the first use the whole engine: cache, scheduler and backend. The command prints a
//! table or one JSON object, and writes an HTML report with distributions.

mod arm;
mod figures;
mod pipelining;
mod plots;
mod prompt;
mod replay;
mod report;
mod results;
mod steps;

use crate::cli::device;
use anyhow::Context;
use arm::Arm;
use clap::error::ErrorKind;
use clap::{CommandFactory, ValueEnum};
use foreword_engine::backend::cuda;
use foreword_engine::engine::{EngineConfig, Stepper};
use foreword_engine::models::ModelConfig;
use foreword_ordering::policy::Place;
use foreword_process::{LogFormat, share, start_log};
use foreword_report::progress;
use foreword_server::device::KvSize;
use foreword_simulation::workload::Ranks;
use foreword_tools::options::one_of;
use indicatif::ProgressBar;
use replay::{Kind, Workload};
use results::{Experiment, Results, Setting};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of a Hugging Face checkpoint; with --random-weights its config.json is enough
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    #[command(flatten)]
    device: device::Arguments,
    /// Parts to measure, with commas between [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    parts: Vec<Part>,
    /// Tokens of the prompt whose prefill is measured
    #[arg(long, value_name = "TOKENS", default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(64..))]
    prompt: u32,
    /// Tokens of context for decoding
    #[arg(long, value_name = "TOKENS", default_value_t = 2_048, value_parser = clap::value_parser!(u32).range(16..))]
    context: u32,
    /// Numbers of sequences that decode side by side, with commas between
    #[arg(long, value_name = "SEQUENCES", value_delimiter = ',', default_values_t = [1, 32])]
    batches: Vec<u32>,
    /// Runs per median, of steps and of pipelining
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    runs: u32,
    /// Queries of the workload for each seed
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(2..))]
    queries: u32,
    /// Number of runs of the workload, each with a seed of its own
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    seeds: u32,
    /// Arms to compare, with commas between: none, retrieval, random, sorted, recency, greedy, longest, foresight; all but
    /// the first two also with +hint [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = Arm::by_name)]
    arms: Vec<Arm>,
    /// Trace of all parts; a sweep goes over all traces too
    #[arg(long, value_parser = one_of(Kind::ALL.map(|kind| (kind.name(), "", kind))), default_value = "bursty")]
    kind: Kind,
    /// Share of documents that a query has in common with the one before, in bursty traces
    #[arg(long, default_value_t = 0.6, value_parser = share)]
    overlap: f64,
    /// Order in which a query's documents come, in bursty and geospatial traces: drawn anew for each query, or documents
    /// in common first
    #[arg(long, value_parser = one_of(Ranks::ALL.map(|ranks| (ranks.name(), "", ranks))), default_value = "shuffled")]
    ranks: Ranks,
    /// Where the gateway puts the retriever's best document; auto as shipped
    #[arg(long, value_parser = one_of(Place::ALL.map(|place| (place.name(), "", place))), default_value = "auto")]
    place: Place,
    /// Documents in a query, at most 15
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=15))]
    k: u32,
    /// Documents in the corpus of bursty and uniform traces; bursts draw from regions of 10, or of 2k if k is above 10
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(30..=100_000))]
    documents: u32,
    /// Tokens of KV state for each arm; all arms share one pool [default: what the device's pool gives each]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1_024..), conflicts_with = "kv_tokens")]
    arm_kv_tokens: Option<u32>,
    /// Queries of each run of a sweep, whose arms are none, retrieval, greedy and foresight+hint
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..))]
    sweep_queries: u32,
    /// Seeds of each run of a sweep
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    sweep_seeds: u32,
    /// Sweeps to run, with commas between [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    sweeps: Vec<Sweep>,
    /// Sweep: shares of documents in common, with commas between
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 0.2, 0.4, 0.6, 0.8], value_parser = share)]
    overlaps: Vec<f64>,
    /// Sweep: numbers of queries at once, with commas between
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8], value_parser = clap::value_parser!(u32).range(1..=64))]
    groups: Vec<u32>,
    /// Sweep: numbers of documents in a query, with commas between; above 10 from larger regions, see --documents
    #[arg(long, value_delimiter = ',', default_values_t = [3, 5, 8], value_parser = clap::value_parser!(u32).range(1..=15))]
    ks: Vec<u32>,
    /// Sweep: tokens of KV state for each arm, with commas between
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_values_t = [4_096, 8_192, 16_384],
          value_parser = clap::value_parser!(u32).range(2_048..))]
    pools: Vec<u32>,
    /// Answers of the throughput's part, for each arm and way
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    answers: u32,
    /// File for the report in HTML
    #[arg(long, value_name = "FILE", default_value = "measure-report.html")]
    report: PathBuf,
    /// Write no report
    #[arg(long, conflicts_with = "report")]
    no_report: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Steps,
    Orders,
    Sweeps,
    Throughput,
    Pipelining,
}

/// A parameter of the workload that a sweep of the measurement varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sweep {
    Overlap,
    AtOnce,
    K,
    Trace,
    Pool,
}

impl Arguments {
    /// Returns a description of conflicting arguments; `None` if there are none.
    pub(crate) fn conflict(&self) -> Option<String> {
        self.device.conflict()
    }

    fn measures(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }

    /// Returns the values of this sweep, which are `all`, or none if it is not run.
    fn values<'a, T>(&self, sweep: Sweep, all: &'a [T]) -> &'a [T] {
        let is_run = self.sweeps.is_empty() || self.sweeps.contains(&sweep);
        if self.measures(Part::Sweeps) && is_run {
            all
        } else {
            &[]
        }
    }

    /// Returns the arms to compare, always with retrieval order, the baseline.
    fn arms(&self) -> Vec<Arm> {
        if self.arms.is_empty() {
            return Arm::all();
        }
        let all = Arm::all().into_iter();
        all.filter(|arm| *arm == Arm::RETRIEVAL || self.arms.contains(arm))
            .collect()
    }
}

/// Measures, prints the results and writes the report. Progress goes to standard error.
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

fn measured(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let config = ModelConfig::load(&arguments.model)?;
    let device = arguments.device.config(KvSize::Tokens(0));
    let ceilings = match device.suited(device.ordinal()?, &config)? {
        Some(ordinal) if arguments.measures(Part::Steps) => {
            Some(cuda::ceilings(ordinal).context("measuring what the device could do at best")?)
        }
        _ => None,
    };
    let mut results = Results::new(Setting {
        model: super::folder_name(&arguments.model),
        kind: arguments.kind,
        queries: arguments.queries,
        seeds: arguments.seeds,
        overlap: arguments.overlap,
        ranks: arguments.ranks,
        place: arguments.place,
        k: arguments.k,
        documents: arguments.documents,
    });
    if arguments.measures(Part::Steps) {
        let context = arguments.context;
        let device = arguments.device.config(KvSize::Tokens(
            context.next_multiple_of(arguments.device.page_tokens),
        ));
        let opened = device.open(&arguments.model)?;
        let steps = steps::run(
            opened.backend,
            opened.max_prefill_step_tokens,
            arguments,
            &config,
            ceilings.as_ref(),
        )?;
        results.device = opened.machine;
        results.ceilings = ceilings;
        results.steps = Some(steps);
    }
    let arms = arguments.arms();
    let parts = &arguments.parts;
    if parts.is_empty() || parts.iter().any(|part| *part != Part::Steps) {
        let few = arguments.measures(Part::Sweeps) || arguments.measures(Part::Throughput);
        let most = match (arguments.measures(Part::Orders), few) {
            (true, false) => arms.len(),
            (true, true) => arms.len().max(Arm::FEW.len()),
            (false, _) => Arm::FEW.len(),
        };
        let (mut engine, kv_tokens) = open(arguments, arguments.arm_kv_tokens, most, &mut results)?;
        let bar = progress::bar("measure", requests(arguments, arms.len()))?;
        through_engine(arguments, &mut engine, kv_tokens, &arms, &mut results, &bar)?;
        // A pool's size is fixed, and there is memory for one engine only.
        drop(engine);
        for pool in arguments.values(Sweep::Pool, &arguments.pools) {
            let (mut engine, kv_tokens) =
                open(arguments, Some(*pool), Arm::FEW.len(), &mut results)?;
            let workload = sweep(arguments, kv_tokens);
            let experiment =
                Experiment::sweep("pool", f64::from(*pool), &mut engine, workload, &bar)?;
            results.sweeps.push(experiment);
        }
        bar.finish_and_clear();
    }
    if !arguments.no_report {
        let page = report::page(&results)?;
        std::fs::write(&arguments.report, page)
            .with_context(|| format!("cannot write {}", arguments.report.display()))?;
    }
    if arguments.json {
        println!("{:#}", results.to_json());
    } else {
        print!("{}", results.to_table());
        if !arguments.no_report {
            println!("report: {}", arguments.report.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures the parts that share one engine.
fn through_engine(
    arguments: &Arguments,
    engine: &mut Stepper,
    kv_tokens: u64,
    arms: &[Arm],
    results: &mut Results,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    if arguments.measures(Part::Orders) {
        let workload = Workload {
            queries: arguments.queries as usize,
            seeds: arguments.seeds.into(),
            ..sweep(arguments, kv_tokens)
        };
        results.orders = Some(Experiment::run("orders", 0.0, engine, workload, arms, bar)?);
    }
    if arguments.measures(Part::Sweeps) {
        let base = sweep(arguments, kv_tokens);
        let mut run = |name, value: f64, workload| -> anyhow::Result<()> {
            let experiment = Experiment::sweep(name, value, engine, workload, bar)?;
            results.sweeps.push(experiment);
            Ok(())
        };
        for &overlap in arguments.values(Sweep::Overlap, &arguments.overlaps) {
            run("overlap", overlap, Workload { overlap, ..base })?;
        }
        for &group in arguments.values(Sweep::AtOnce, &arguments.groups) {
            let at_once = group as usize;
            run("at once", group.into(), Workload { at_once, ..base })?;
        }
        for &documents in arguments.values(Sweep::K, &arguments.ks) {
            let k = documents as usize;
            run("k", documents.into(), Workload { k, ..base })?;
        }
        for (&kind, number) in arguments
            .values(Sweep::Trace, &Kind::ALL)
            .iter()
            .zip(0_u8..)
        {
            run("trace", number.into(), Workload { kind, ..base })?;
        }
    }
    if arguments.measures(Part::Throughput) {
        for (at_once, value) in [(1, 1.0), (8, 8.0)] {
            let workload = Workload {
                at_once,
                answer: ANSWER_TOKENS,
                queries: arguments.answers as usize,
                seeds: 1,
                ..sweep(arguments, kv_tokens)
            };
            let experiment = Experiment::sweep("throughput", value, engine, workload, bar)?;
            results.throughput.push(experiment);
        }
    }
    if arguments.measures(Part::Pipelining) {
        results.pipelining = Some(pipelining::run(engine, arguments.runs)?);
    }
    Ok(())
}

/// Tokens of an answer when throughput is measured (RAGCache++, table 4).
const ANSWER_TOKENS: u32 = 50;

/// Returns the workload of the sweeps, from which the other workloads differ only in the fields that they vary.
fn sweep(arguments: &Arguments, kv_tokens: u64) -> Workload {
    Workload {
        kind: arguments.kind,
        overlap: arguments.overlap,
        ranks: arguments.ranks,
        place: arguments.place,
        k: arguments.k as usize,
        documents: arguments.documents.into(),
        at_once: 1,
        answer: 1,
        queries: arguments.sweep_queries as usize,
        seeds: arguments.sweep_seeds.into(),
        kv_tokens,
    }
}

/// Returns the number of requests in all selected parts, for the progress bar.
fn requests(arguments: &Arguments, arms: usize) -> usize {
    let mut requests = 0;
    if arguments.measures(Part::Orders) {
        requests += arguments.queries as usize * arguments.seeds as usize * arms;
    }
    let runs = arguments.values(Sweep::Overlap, &arguments.overlaps).len()
        + arguments.values(Sweep::AtOnce, &arguments.groups).len()
        + arguments.values(Sweep::K, &arguments.ks).len()
        + arguments.values(Sweep::Trace, &Kind::ALL).len()
        + arguments.values(Sweep::Pool, &arguments.pools).len();
    requests +=
        runs * arguments.sweep_queries as usize * arguments.sweep_seeds as usize * Arm::FEW.len();
    if arguments.measures(Part::Throughput) {
        requests += 2 * arguments.answers as usize * Arm::FEW.len();
    }
    requests
}

/// Opens an engine whose pool of KV state `arms` arms share, and returns with it the pool's tokens for each arm.
fn open(
    arguments: &Arguments,
    arm_tokens: Option<u32>,
    arms: usize,
    results: &mut Results,
) -> anyhow::Result<(Stepper, u64)> {
    let mut device = arguments.device.config(KvSize::Tokens(0));
    let arms = u32::try_from(arms.max(1))?;
    if let Some(tokens) = arm_tokens {
        device.kv = Some(KvSize::Tokens(tokens.saturating_mul(arms)));
    }
    let opened = device.open(&arguments.model)?;
    let pool = opened.backend.shape().kv_tokens();
    let config = EngineConfig {
        max_step_tokens: opened.max_step_tokens,
        max_prefill_step_tokens: Some(opened.max_prefill_step_tokens),
        max_running: 32,
        ..EngineConfig::default()
    };
    results.device = opened.machine;
    Ok((
        Stepper::new(opened.backend, &config),
        pool / u64::from(arms),
    ))
}
