//! The `foreword-rehearse` binary, which `foreword rehearse` runs: arguments and exit codes. Everything else is the library's.
//!
//! Exit codes: 0 played and nothing trapped, 1 something failed or a configuration was refused, 2 bad arguments or no request,
//! 3 played and something trapped.

use clap::{CommandFactory, Parser, ValueHint, error::ErrorKind};
use foreword_rehearse::run::{self, NoRequests, Options, Verdict, Version};
use foreword_rehearse::{CallAnswer, Limits, Setup};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
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
#[derive(Parser)]
#[command(name = "foreword rehearse", version, after_help = HELP)]
struct Arguments {
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

fn main() -> ExitCode {
    let options = match options(Arguments::parse()) {
        Ok(options) => options,
        Err(message) => Arguments::command()
            .error(ErrorKind::ValueValidation, message)
            .exit(),
    };
    match run::run(&options) {
        Ok(Verdict::Sound) => ExitCode::SUCCESS,
        Ok(Verdict::Faulty) => ExitCode::from(3),
        Err(error) => {
            eprintln!("error: {error:#}");
            if error.is::<NoRequests>() {
                ExitCode::from(2)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

fn options(arguments: Arguments) -> Result<Options, String> {
    let mut configs = arguments.config.into_iter();
    let (config, old) = (configs.next(), configs.next());
    if configs.next().is_some() {
        return Err("--config: there are two modules at most, so two configurations".to_owned());
    }
    if old.is_some() && arguments.against.is_none() {
        return Err(
            "--config: the second is for the module of --against, which is absent".to_owned(),
        );
    }
    let mut answers = BTreeMap::new();
    for (cluster, file) in arguments.answer {
        let body = std::fs::read(&file).map_err(|error| format!("--answer: {file}: {error}"))?;
        answers.insert(cluster, CallAnswer::json(body));
    }
    let variable = |text: String| match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => match std::env::var(&text) {
            Ok(value) => Ok((text, value)),
            Err(error) => Err(format!("--env: {text}: {error}")),
        },
    };
    let environment: Result<Vec<_>, String> = arguments.env.into_iter().map(variable).collect();
    Ok(Options {
        against: arguments.against.map(|module| Version {
            module,
            config: old.or_else(|| config.clone()),
        }),
        module: Version {
            module: arguments.module,
            config,
        },
        files: arguments.files,
        limits: Limits {
            fuel: arguments.fuel,
            deadline: Duration::from_millis(arguments.deadline_ms),
            memory_bytes: arguments.memory_mib << 20,
        },
        setup: Setup {
            configuration: Vec::new(),
            environment: environment?,
            answers,
            workers: arguments.workers as usize,
            interval: Duration::from_millis(arguments.interval_ms),
            headers_hold_all: arguments.headers_hold_all,
        },
        path: arguments.path,
        headers: arguments.header,
        tenant_header: arguments
            .tenant_header
            .map(|name| name.to_ascii_lowercase()),
        piece_bytes: arguments.piece_bytes.map(|bytes| bytes as usize),
        strict: arguments.strict,
        report: arguments.report,
        json: arguments.json,
    })
}

/// Parses a header; its name may begin with a colon, as in `:path`.
fn header(text: &str) -> Result<(String, String), String> {
    let start = usize::from(text.starts_with(':'));
    let (name, value) = text
        .get(start..)
        .and_then(|rest| rest.split_once(':'))
        .ok_or("there is no `:` behind the name")?;
    let name = format!("{}{name}", &text[..start]);
    Ok((name.to_ascii_lowercase(), value.trim_start().to_owned()))
}

fn answer(text: &str) -> Result<(String, String), String> {
    let (cluster, file) = text.split_once('=').ok_or("there is no `=` in it")?;
    Ok((cluster.to_owned(), file.to_owned()))
}
