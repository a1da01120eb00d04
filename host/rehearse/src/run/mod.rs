//! `foreword rehearse`: plays a log through a module, or through two modules to compare them.
//!
//! ```text
//!   LOG… ──lines──▶ play: Proxy ──▶ rows ──┐
//!   LOG… ──lines──▶ play: Proxy ──▶ rows ──┴─▶ figures ──▶ table, JSON, page
//! ```
//!
//! If there are two, each reads the log itself, on its own thread. Only counts and hashes are kept of a request, about
//! 150 bytes.

mod figures;
mod page;
mod play;
mod table;

use crate::limits::Limits;
use crate::module::Module;
use crate::proxy::Setup;
use crate::request::Answer;
use anyhow::Context;
use clap::ValueHint;
use figures::Figures;
use foreword_report::{files, log};
use play::{Played, Tenant};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

const HELP: &str = "Lines of a log, in JSON, as for `foreword explain`:
  a chat body, OpenAI's, Anthropic's or Cohere's; or
  {\"request\": a body, as an object or a string, \"response\": {\"usage\": {…}}, \"tenant\": …, \"engine\": …, \"path\": …}, where
  all but the request may be absent. The tenant goes to the header or claim that the configuration names, the engine to
  the property `upstream.address`, and the usage into the engine's answer.

Exit codes: 0 played and nothing trapped, 1 something failed or a configuration was refused, 2 bad arguments or no
request, 3 played and a callback trapped, looped, wanted too much memory or held a request for ever.
No text of a request is kept or printed.";

/// Play a log of requests through a proxy-wasm module under wasmtime, and tell what it would do
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "foreword rehearse", version, after_help = HELP)]
pub struct Options {
    /// The module, as it ships
    #[arg(value_hint = ValueHint::FilePath)]
    module: PathBuf,
    /// Logs of requests, one JSON object per line; several are read as one, in the order given
    #[arg(required = true, value_name = "LOG", value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// The plugin's configuration; given twice, the second is that of the module of --against
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Vec<PathBuf>,
    /// Another build to compare with, request by request; the same file with another --config compares configurations
    #[arg(long, value_name = "MODULE", value_hint = ValueHint::FilePath)]
    against: Option<PathBuf>,
    /// VMs that share data, to which requests come in turn
    #[arg(long, value_name = "VMS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Instructions of one callback
    #[arg(long, value_name = "INSTRUCTIONS", default_value_t = Limits::default().fuel, value_parser = clap::value_parser!(u64).range(1..))]
    fuel: u64,
    /// Milliseconds of one callback, for a machine on which the instructions take too long
    #[arg(long, value_name = "MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    deadline_ms: u64,
    /// Memory of one VM, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=4096))]
    memory_mib: u64,
    /// Milliseconds between two requests by the module's clock, which is not the machine's
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=86_400_000))]
    interval_ms: u64,
    /// The path of requests whose line does not tell
    #[arg(long, default_value = "/v1/chat/completions")]
    path: String,
    /// A header of every request, in the place of one of that name
    #[arg(long, value_name = "NAME:VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// The header that a line's tenant goes to, where the configuration does not say so in Foreword's words
    #[arg(long, value_name = "NAME")]
    tenant_header: Option<String>,
    /// Let bodies come in pieces of so many bytes
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    piece_bytes: Option<u32>,
    /// What a cluster answers to the module's calls: status 200 and this file, JSON; without it, calls fail
    #[arg(long, value_name = "CLUSTER=FILE", value_parser = answer)]
    answer: Vec<(String, String)>,
    /// A variable of the module's environment, with this value or with that of this process
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Holding headers holds the body too, as in Envoy without `allow_on_headers_stop_iteration`
    #[arg(long)]
    headers_hold_all: bool,
    /// Stop at the first bad line instead of skipping it
    #[arg(long)]
    strict: bool,
    /// Where a report goes, one HTML file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    report: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// The files and settings of a run, derived from its options.
pub struct Plan {
    /// The module to play, with its configuration.
    module: Version,
    /// The version to compare with; `None` for no comparison.
    against: Option<Version>,
    /// Options for running every version; each version sets its own `configuration`.
    setup: Setup,
}

/// A module with its configuration: one of the versions to play.
struct Version {
    /// Path of the `.wasm` file.
    module: PathBuf,
    /// File with the plugin's configuration; `None` for an empty one.
    config: Option<PathBuf>,
}

impl Options {
    /// Returns the plan of a run, and reads the files with scripted answers.
    ///
    /// # Errors
    /// Returns a message if the options are unsuitable.
    pub fn plan(&self) -> Result<Plan, String> {
        let (config, old) = match &*self.config {
            [] => (None, None),
            [config] => (Some(config), None),
            [config, old] => (Some(config), Some(old)),
            _ => {
                return Err(
                    "--config: there are two modules at most, so two configurations".into(),
                );
            }
        };
        if old.is_some() && self.against.is_none() {
            let wrong = "--config: the second is for the module of --against, which is absent";
            return Err(wrong.to_owned());
        }
        let mut answers = BTreeMap::new();
        for (cluster, file) in &self.answer {
            let body = std::fs::read(file).map_err(|error| format!("--answer: {file}: {error}"))?;
            answers.insert(cluster.clone(), Answer::json(body));
        }
        let variable = |text: &String| match text.split_once('=') {
            Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
            None => (std::env::var(text).map(|value| (text.clone(), value)))
                .map_err(|error| format!("--env: {text}: {error}")),
        };
        let environment: Result<Vec<_>, String> = self.env.iter().map(variable).collect();
        Ok(Plan {
            module: Version {
                module: self.module.clone(),
                config: config.cloned(),
            },
            against: self.against.clone().map(|module| Version {
                module,
                config: old.or(config).cloned(),
            }),
            setup: Setup {
                configuration: Vec::new(),
                environment: environment?,
                answers,
                workers: self.workers as usize,
                interval: Duration::from_millis(self.interval_ms),
                headers_hold_all: self.headers_hold_all,
            },
        })
    }

    fn limits(&self) -> Limits {
        Limits {
            fuel: self.fuel,
            deadline: Duration::from_millis(self.deadline_ms),
            memory_bytes: self.memory_mib << 20,
        }
    }
}

/// Parses a header, `NAME:VALUE`; the name may begin with a colon, as `:path` does.
fn header(text: &str) -> Result<(String, String), String> {
    let start = usize::from(text.starts_with(':'));
    let parts = text.get(start..).and_then(|rest| rest.split_once(':'));
    let (name, value) = parts.ok_or("there is no `:` behind the name")?;
    let name = format!("{}{name}", &text[..start]);
    Ok((name.to_ascii_lowercase(), value.trim_start().to_owned()))
}

fn answer(text: &str) -> Result<(String, String), String> {
    let (cluster, file) = text.split_once('=').ok_or("there is no `=` in it")?;
    Ok((cluster.to_owned(), file.to_owned()))
}

/// The result of a run: whether all callbacks of the module to play succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All callbacks succeeded.
    Sound,
    /// At least one callback failed.
    Faulty,
}

/// Plays the logs, prints the results to standard output, and writes the report if requested.
///
/// # Errors
/// Returns an error if a file cannot be read or written, if a module cannot be run or refuses its configuration, for a
/// bad line with `--strict`, and [`BadInput`](log::BadInput) if no line has a body.
pub fn run(options: &Options, plan: &Plan) -> anyhow::Result<Verdict> {
    let new = || play(options, plan, &plan.module, true);
    let (played, against) = match &plan.against {
        None => (new()?, None),
        Some(version) => std::thread::scope(|scope| {
            let old = scope.spawn(|| play(options, plan, version, false));
            let new = new();
            let old = old.join().ok().context("a thread ended before its work")?;
            let old = old.with_context(|| format!("against {}", version.module.display()))?;
            Ok::<_, anyhow::Error>((new?, Some(old)))
        })?,
    };
    played.tell();
    if played.rows.is_empty() {
        let files = log::names(&options.files);
        let why = format!("no line of {files} is a request with a body");
        return Err(played.counts.empty(&why).into());
    }
    let verdict = match played.faults() {
        0 => Verdict::Sound,
        _ => Verdict::Faulty,
    };
    let figures = Figures::new(options, plan, played, against);
    if let Some(path) = &options.report {
        files::write_report(path, &page::page(&figures))?;
    }
    let to_json = || format!("{:#}", figures.to_json());
    files::show(options.json, to_json, || figures.to_table())?;
    Ok(verdict)
}

fn play(
    options: &Options,
    plan: &Plan,
    version: &Version,
    is_told: bool,
) -> anyhow::Result<Played> {
    let file = &version.module;
    let module =
        Module::read(file, options.limits()).with_context(|| file.display().to_string())?;
    let configuration = match &version.config {
        Some(file) => std::fs::read(file)
            .with_context(|| format!("cannot read the configuration {}", file.display()))?,
        None => Vec::new(),
    };
    let tenant = match &options.tenant_header {
        Some(header) => Tenant::Header(header.to_ascii_lowercase()),
        None => Tenant::of(&configuration),
    };
    let setup = Setup {
        configuration,
        ..plan.setup.clone()
    };
    play::play(options, &module, setup, &tenant, is_told)
}
