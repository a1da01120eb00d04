//! The `foreword` binary: arguments, logging, signals and exit codes. Everything else is the library's.
//!
//! Exit codes: 0 after a graceful stop, 1 when something failed, 2 for bad arguments or an empty trace, 128 + n when a second signal n
//! cut the stop short.

mod caching;
mod computing;
mod evaluating;
mod explaining;
mod ingesting;
mod kv_bridge;
mod listening;
mod measuring;
mod retrieving;
mod scheduling;

use anyhow::{Context, bail};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use foreword::api::Limits;
use foreword::check::{self, Verdict};
use foreword::evaluate;
use foreword::gate::Phase;
use foreword::keys::ApiKeys;
use foreword::kv::publisher;
use foreword::kv::vllm::Encoding;
use foreword::model::Model;
use foreword::replay::{self, EmptyTrace};
use foreword::serve::{Config, Server};
use foreword_engine::engine::{EngineConfig, Health};
use foreword_ordering::policy::PolicyKind;
use foreword_ordering::{Config as OrderingConfig, RawConfig};
use foreword_simulation::Capacity;
use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Foreword's host, which serves a language model and reuses what its prompts have in common, and the gateway's tools.
#[derive(Parser)]
#[command(name = "foreword", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a model over HTTP, OpenAI-compatible
    #[command(after_help = LOG_HELP)]
    Serve(Box<ServeArguments>),
    /// Follow vLLM's KV events and tell gateways which documents it holds
    KvBridge(Box<kv_bridge::Arguments>),
    /// Tell what ordering documents would save on a log of requests, and write a report
    #[command(after_help = REPLAY_HELP)]
    Replay(ReplayArguments),
    /// Tell why the prompts of a log could not begin like earlier ones, and what would mend it
    #[command(after_help = explaining::HELP)]
    Explain(explaining::Arguments),
    /// Ask a model questions with documents in several orders, compare the answers, and write a report
    #[command(after_help = evaluating::HELP)]
    Evaluate(Box<evaluating::Arguments>),
    /// Make an index of a folder's texts, or bring one up to date
    Ingest(ingesting::Arguments),
    /// Measure what a device takes for prefill, decode and cached prefixes, without a server
    Measure(measuring::Arguments),
    /// Tell whether the gateway's filter would take its configuration
    #[command(after_help = CHECK_HELP)]
    CheckConfig(CheckArguments),
}

const LOG_HELP: &str = "Environment:
  FOREWORD_LOG  Level of the log: warn, say, or foreword=debug [default: info]";

const REPLAY_HELP: &str = "Lines of a log, in JSON:
  an OpenAI chat body with documents, in `documents` or in tags, as the gateway finds them; or
  {\"query_id\": …, \"docs\": [ids, best first], \"tokens\": [of each document] or one number for each, or absent}; or
  {\"request\": either of these, \"tenant\": …, \"engine\": …}: see `foreword explain --help`

Exit codes: 0 done, 1 a file cannot be read or written, or a bad line with --strict, 2 bad arguments or an empty trace.
An unbounded cache takes up to 300 bytes of memory for every document of every request.";

const CHECK_HELP: &str = "Every error is told, with path, value and limit. A key in the environment is not looked for.

Exit codes: 0 the filter takes every configuration, 1 it refuses one, 2 a file cannot be read or holds none.";

#[derive(clap::Args)]
struct CheckArguments {
    /// The plugin's JSON, or what holds it: Envoy's configuration, Istio's or Envoy Gateway's resources, a ConfigMap
    /// with one of them; `-`: standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

#[derive(clap::Args)]
struct ReplayArguments {
    /// Logs of requests, one JSON object per line; several make one trace, in the order given
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Document tokens that the engine's cache holds; 0: any number
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    cache_tokens: u64,
    /// Tokens in a page of the cache: matches are cut to whole pages; 1: exact
    #[arg(long, value_name = "TOKENS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    page_tokens: u32,
    /// Policies to compare, with commas between: retrieval, random, sorted, recency, greedy, context-index, longest,
    /// foresight [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = policy)]
    policies: Vec<PolicyKind>,
    /// Also plan every N requests together, as an offline batch: order of documents and of requests
    #[arg(long, value_name = "N")]
    batch: Option<NonZeroU32>,
    /// Tokens of a document whose line does not tell
    #[arg(long, value_name = "TOKENS", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    document_tokens: u32,
    /// The gateway's configuration of documents: its plugin configuration, or the `ordering` in it, in JSON. Bodies are
    /// stabilised as its `head` and `conversation` say, `report` counting as `apply` [default: every part that is safe]
    #[arg(long, value_name = "FILE")]
    ordering: Option<PathBuf>,
    /// Seed of the random policy and of samples
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Stop at the first bad line instead of skipping it
    #[arg(long)]
    strict: bool,
    /// Where the report goes, one HTML file
    #[arg(long, value_name = "FILE", default_value = "replay-report.html")]
    report: PathBuf,
    /// Write no report
    #[arg(long, conflicts_with = "report")]
    no_report: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct ServeArguments {
    /// Folder of a Hugging Face checkpoint (config.json, tokenizer.json, safetensors)
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Name under which the model is served [default: the folder's name]
    #[arg(long)]
    name: Option<String>,
    /// Address to listen on for clients; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000", value_parser = address)]
    listen: SocketAddr,
    #[command(flatten, next_help_heading = CONNECTIONS)]
    listening: listening::Arguments,
    /// Form of the log on standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(flatten, next_help_heading = "Computing")]
    computing: computing::Arguments,
    /// Requests that may wait; more are refused with 429
    #[arg(help_heading = QUEUE, long, value_name = "REQUESTS", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_waiting: u32,
    /// Requests computed side by side
    #[arg(help_heading = QUEUE, long, value_name = "REQUESTS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    max_running: u32,
    #[command(flatten, next_help_heading = QUEUE)]
    scheduling: scheduling::Arguments,
    #[command(flatten, next_help_heading = "KV state beyond the pool")]
    caching: caching::Arguments,
    /// The gateway's configuration of documents, if it has one: its plugin configuration's `ordering`, in JSON. Documents
    /// that are found here (`retrieval`) are ordered by it too
    #[arg(help_heading = DOCUMENTS, long, value_name = "FILE")]
    ordering: Option<PathBuf>,
    #[command(flatten, next_help_heading = DOCUMENTS)]
    retrieving: retrieving::Arguments,
    /// Bytes of a request's body; larger ones are refused with 413
    #[arg(help_heading = LIMITS, long, value_name = "BYTES", default_value_t = 8 << 20, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    max_body_bytes: u64,
    /// Seconds that a request may take, from its arrival to the end of its answer
    #[arg(help_heading = LIMITS, long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    request_timeout_s: u64,
    /// Seconds that running requests get to finish after SIGTERM or SIGINT
    #[arg(help_heading = LIMITS, long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    grace_s: u64,
    /// Memory for the tokens of texts that were tokenised before, in MiB; 0: none
    #[arg(help_heading = LIMITS, long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    token_cache_mib: u32,
    /// File with accepted API keys, one per line; without it nobody is asked for a key
    #[arg(help_heading = KEYS, long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// File with keys for /v1/kv, one per line, each with places of its own: it tells what all tenants' caches hold
    /// [default: the API keys, unless the feed has a key]
    #[arg(help_heading = KEYS, long, value_name = "FILE")]
    kv_key_file: Option<PathBuf>,
    /// Collector of OpenTelemetry spans, http://localhost:4318, say; without it none are made
    #[arg(help_heading = LIMITS, long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Address for vLLM's KV events over ZeroMQ, tcp://*:5557, say; whoever connects reads prompts as token ids
    #[arg(help_heading = EVENTS, long, value_name = "ENDPOINT", value_parser = endpoint)]
    kv_events_endpoint: Option<SocketAddr>,
    /// Address where KV events that a subscriber missed are repeated
    #[arg(help_heading = EVENTS, long, value_name = "ENDPOINT", value_parser = endpoint, requires = "kv_events_endpoint")]
    kv_events_replay_endpoint: Option<SocketAddr>,
    /// First frame of every message of KV events
    #[arg(help_heading = EVENTS, long, value_name = "TOPIC", default_value = "kv-events")]
    kv_events_topic: String,
    /// How KV events are written: as vLLM does since 2026, or as it did before
    #[arg(help_heading = EVENTS, long, value_enum, default_value_t = KvEncoding::Map)]
    kv_events_encoding: KvEncoding,
}

/// Headings in the help.
const QUEUE: &str = "Queue";
const DOCUMENTS: &str = "Finding and ordering documents";
const LIMITS: &str = "Limits and traces";
const KEYS: &str = "Keys";
const CONNECTIONS: &str = "The internal listener, and connections";
const EVENTS: &str = "KV events in vLLM's words";

#[derive(Clone, Copy, ValueEnum)]
enum KvEncoding {
    Map,
    Array,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Serve(arguments) => start(*arguments),
        Command::KvBridge(arguments) => run(arguments.log_format, kv_bridge::run(*arguments)),
        Command::Replay(arguments) => replay(arguments),
        Command::Explain(arguments) => explaining::run(arguments),
        Command::Evaluate(arguments) => evaluate(*arguments),
        Command::Ingest(arguments) => ingesting::run(&arguments),
        Command::Measure(arguments) => measure(&arguments),
        Command::CheckConfig(arguments) => check(&arguments),
    }
}

/// Prints figures; what is told on the way goes to the log.
fn measure(arguments: &measuring::Arguments) -> ExitCode {
    if let Some(message) = arguments.conflict() {
        Arguments::command()
            .error(ErrorKind::ValueValidation, message)
            .exit();
    }
    let measured = start_log(LogFormat::Text).and_then(|()| measuring::run(arguments));
    measured.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// A trace without requests is a wrong argument more than a failure.
fn replay(arguments: ReplayArguments) -> ExitCode {
    let mut policies = arguments.policies;
    if policies.is_empty() {
        policies = PolicyKind::ALL.to_vec();
    }
    let options = replay::Options {
        files: arguments.files,
        capacity: Capacity {
            tokens: (arguments.cache_tokens > 0).then_some(arguments.cache_tokens),
            page_tokens: arguments.page_tokens,
        },
        policies,
        batch: arguments.batch,
        seed: arguments.seed,
        document_tokens: arguments.document_tokens,
        strict: arguments.strict,
        ordering: arguments.ordering,
        report: (!arguments.no_report).then_some(arguments.report),
        json: arguments.json,
    };
    match replay::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            if error.is::<EmptyTrace>() {
                ExitCode::from(2)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

fn evaluate(arguments: evaluating::Arguments) -> ExitCode {
    match arguments
        .options()
        .and_then(|options| evaluate::run(&options))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn check(arguments: &CheckArguments) -> ExitCode {
    match check::run(&arguments.files) {
        Ok(Verdict::Accepted) => ExitCode::SUCCESS,
        Ok(Verdict::Refused) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn policy(name: &str) -> Result<PolicyKind, String> {
    let names = PolicyKind::ALL.map(PolicyKind::name).join(", ");
    PolicyKind::by_name(name).ok_or(format!("it must be one of {names}"))
}

fn start(arguments: ServeArguments) -> ExitCode {
    if let Some(message) = arguments.computing.conflict() {
        Arguments::command()
            .error(ErrorKind::ValueValidation, message)
            .exit();
    }
    if let Some(message) = arguments.caching.conflict(arguments.computing.page_tokens) {
        Arguments::command()
            .error(ErrorKind::ArgumentConflict, message)
            .exit();
    }
    run(arguments.log_format, serve(arguments))
}

/// Runs a mode that goes on until a signal ends it.
fn run(log: LogFormat, mode: impl Future<Output = anyhow::Result<ExitCode>>) -> ExitCode {
    if let Err(error) = start_log(log) {
        Arguments::command()
            .error(ErrorKind::ValueValidation, format!("FOREWORD_LOG: {error}"))
            .exit();
    }
    match block_on(mode) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn block_on(mode: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let code = runtime.block_on(mode);
    // A model that is still being loaded is not waited for.
    runtime.shutdown_background();
    code
}

async fn serve(arguments: ServeArguments) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new().context("cannot listen to signals")?;
    let server = Server::bind(server_config(&arguments)?).await?;
    let address = server.address();
    tracing::info!(%address, "loading the model");
    let loading = tokio::task::spawn_blocking(move || load(&arguments));
    let model = tokio::select! {
        model = loading => model.context("loading the model panicked")??,
        _ = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    tracing::info!(model = model.name(), %address, "serving");
    server.open(model);
    announce(address, server.internal_address());
    tokio::select! {
        _ = signals.next() => {}
        () = server.app().gate.reached(Phase::Stopping) => {
            let health = server.app().model.get().map(|model| model.engine().health());
            match health {
                Some(Health::Ended { reason }) => bail!("the engine has ended by itself: {reason}"),
                _ => bail!("the engine has ended by itself"),
            }
        }
    }
    tokio::select! {
        () = server.stop() => Ok(ExitCode::SUCCESS),
        number = signals.next() => Ok(ExitCode::from(128 + number)),
    }
}

fn server_config(arguments: &ServeArguments) -> anyhow::Result<Config> {
    let ordering = ordering(arguments.ordering.as_deref())?;
    Ok(Config {
        listen: arguments.listen,
        internal: arguments.listening.internal(arguments.listen)?,
        connections: arguments.listening.bounds(arguments.max_body_bytes),
        feed_key: arguments.listening.feed_key()?,
        keys: arguments
            .api_key_file
            .as_deref()
            .map(ApiKeys::load)
            .transpose()?,
        otlp_endpoint: arguments.otlp_endpoint.clone(),
        limits: Limits {
            max_body_bytes: arguments.max_body_bytes,
            body_time: arguments.listening.body_time(),
            request_timeout: Duration::from_secs(arguments.request_timeout_s),
        },
        kv_keys: arguments
            .kv_key_file
            .as_deref()
            .map(ApiKeys::load)
            .transpose()?,
        retrieval: arguments.retrieving.config(ordering.clone())?,
        ordering: ordering.try_into()?,
        kv_events: arguments
            .kv_events_endpoint
            .map(|listen| publisher::Config {
                listen,
                replay: arguments.kv_events_replay_endpoint,
                topic: arguments.kv_events_topic.clone(),
                encoding: match arguments.kv_events_encoding {
                    KvEncoding::Map => Encoding::Map,
                    KvEncoding::Array => Encoding::Array,
                },
            }),
        max_inside: arguments.max_waiting + arguments.max_running,
        grace: Duration::from_secs(arguments.grace_s),
    })
}

/// How the gateway finds and orders documents, as written in `file`, and valid.
fn ordering(file: Option<&Path>) -> anyhow::Result<RawConfig> {
    let Some(file) = file else {
        return Ok(RawConfig::default());
    };
    let context = || {
        format!(
            "cannot read the gateway's configuration in {}",
            file.display()
        )
    };
    let json = std::fs::read(file).with_context(context)?;
    let raw = RawConfig::from_json(&json).with_context(context)?;
    OrderingConfig::try_from(raw.clone()).with_context(context)?;
    Ok(raw)
}

fn load(arguments: &ServeArguments) -> anyhow::Result<Model> {
    let folder = &arguments.model;
    let name = arguments
        .name
        .clone()
        .unwrap_or_else(|| folder_name(folder));
    let device = arguments.computing.config(arguments.caching.kv_host_tokens);
    let engine = EngineConfig {
        max_waiting: arguments.max_waiting,
        max_running: arguments.max_running,
        ..arguments.scheduling.config()
    };
    let model = Model::load(folder, name, &device, &arguments.caching.tiers(), engine)?;
    Ok(model.with_token_cache((arguments.token_cache_mib as usize) << 20))
}

/// The folder's own name, also where it was given as `.` or `models/..`.
fn folder_name(folder: &Path) -> String {
    let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    absolute.file_name().map_or_else(
        || "model".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// What is said on standard output: whoever started us waits for it, and finds both lines at once. A closed output is no
/// reason not to serve.
fn announce(address: SocketAddr, internal: Option<SocketAddr>) {
    let mut lines = format!("listening on http://{address}\n");
    if let Some(internal) = internal {
        lines.push_str(&format!(
            "probes, metrics and KV feed on http://{internal}\n"
        ));
    }
    let mut out = std::io::stdout();
    let written = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
    if let Err(error) = written {
        tracing::warn!(%error, "nobody reads standard output");
    }
}

fn start_log(format: LogFormat) -> anyhow::Result<()> {
    let wanted = std::env::var("FOREWORD_LOG").unwrap_or_else(|_| "info".to_owned());
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(wanted)?)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

/// An address to listen on.
fn address(text: &str) -> Result<SocketAddr, String> {
    let words =
        "it must be an IP address with a port: 127.0.0.1:8000, or 0.0.0.0:8000 for every interface";
    text.parse().map_err(|_| words.to_owned())
}

/// `tcp://HOST:PORT`, as ZeroMQ writes addresses to listen on; `*` is every interface.
fn endpoint(text: &str) -> Result<SocketAddr, String> {
    let address = text.strip_prefix("tcp://").unwrap_or(text);
    let address = match address.strip_prefix("*:") {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address.to_owned(),
    };
    address.parse().map_err(|_| {
        "it must be tcp://ADDRESS:PORT with an IP address or * for every interface".to_owned()
    })
}

/// The signals that stop a server.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The next one's number.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.terminate.recv() => 15,
            _ = self.interrupt.recv() => 2,
        }
    }
}
