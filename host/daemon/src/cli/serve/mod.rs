//! `foreword serve`: its arguments and its main function.

mod batches;
mod cache;
mod retrieval;
mod scheduling;
mod store;

use super::device;
use super::folder_name;
use super::listener;
use anyhow::{Context, bail};
use clap::CommandFactory;
use clap::error::ErrorKind;
use foreword_engine::engine::{EngineConfig, Health};
use foreword_process::{LogFormat, StopSignals, address};
use foreword_server::api::Limits;
use foreword_server::api::drop_in::DropIn;
use foreword_server::gate::Phase;
use foreword_server::keys::ApiKeys;
use foreword_server::kv::publisher;
use foreword_server::kv::vllm::Encoding;
use foreword_server::model::Model;
use foreword_server::serve::{Config, Server};
use foreword_tools::options::{one_of, ordering};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of a Hugging Face checkpoint (config.json, tokenizer.json, safetensors), or a GGUF file
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// File with a chat template (Jinja), as vLLM's option of that name [default: the checkpoint's]
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Name under which the model is served [default: the folder's name]
    #[arg(long)]
    name: Option<String>,
    /// Address to listen on for clients; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000", value_parser = address)]
    listen: SocketAddr,
    #[command(flatten, next_help_heading = CONNECTIONS)]
    listener: listener::Arguments,
    /// Form of the log on standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(flatten, next_help_heading = "Computing")]
    device: device::Arguments,
    /// Most requests that wait; more are refused with 429
    #[arg(help_heading = QUEUE, long, value_name = "REQUESTS", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_waiting: u32,
    /// Most requests computed side by side
    #[arg(help_heading = QUEUE, long, value_name = "REQUESTS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    max_running: u32,
    #[command(flatten, next_help_heading = QUEUE)]
    scheduling: scheduling::Arguments,
    #[command(flatten, next_help_heading = "KV state beyond the pool")]
    cache: cache::Arguments,
    /// The gateway's configuration of documents, if it has one: the `ordering` of its plugin configuration, in JSON.
    /// Documents that the host finds (`retrieval`) are ordered by it too
    #[arg(help_heading = DOCUMENTS, long, value_name = "FILE")]
    ordering: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Responses that are kept")]
    store: store::Arguments,
    #[command(flatten, next_help_heading = "Batches")]
    batches: batches::Arguments,
    #[command(flatten, next_help_heading = DOCUMENTS)]
    retrieval: retrieval::Arguments,
    /// Largest body of a request, in bytes; larger ones are refused with 413
    #[arg(help_heading = LIMITS, long, value_name = "BYTES", default_value_t = 8 << 20, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    max_body_bytes: u64,
    /// Seconds that a request may take, from its arrival to the end of its answer
    #[arg(help_heading = LIMITS, long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    request_timeout_s: u64,
    /// Seconds for running requests to finish after SIGTERM or SIGINT
    #[arg(help_heading = LIMITS, long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    grace_s: u64,
    /// Memory for the tokens of texts that were tokenised before, in MiB; 0 for none
    #[arg(help_heading = LIMITS, long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    token_cache_mib: u32,
    /// File with accepted API keys, one per line; without it no key is required
    #[arg(help_heading = KEYS, long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// File with keys for /v1/kv, one per line, each with places of its own, since it shows what all tenants' caches
    /// hold [default: the API keys, unless the feed has a key]
    #[arg(help_heading = KEYS, long, value_name = "FILE")]
    kv_key_file: Option<PathBuf>,
    /// Collector of OpenTelemetry spans, such as http://localhost:4318; without it there are no spans
    #[arg(help_heading = LIMITS, long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Engine in whose words routers are answered where engines differ: `owned_by` of /v1/models, and /get_load
    #[arg(help_heading = EVENTS, long, value_name = "ENGINE", value_parser = one_of(DropIn::ALL.map(|engine| (engine.name(), "", engine))), default_value = "vllm")]
    drop_in: DropIn,
    /// Address for vLLM's KV events over ZeroMQ, such as tcp://127.0.0.1:5557, without a key: whoever reaches it can read
    /// prompts as token ids
    #[arg(help_heading = EVENTS, long, value_name = "ENDPOINT", value_parser = endpoint)]
    kv_events_endpoint: Option<SocketAddr>,
    /// Address where subscribers get KV events that they missed
    #[arg(help_heading = EVENTS, long, value_name = "ENDPOINT", value_parser = endpoint, requires = "kv_events_endpoint")]
    kv_events_replay_endpoint: Option<SocketAddr>,
    /// First frame of every message of KV events
    #[arg(help_heading = EVENTS, long, value_name = "TOPIC", default_value = "kv-events")]
    kv_events_topic: String,
    /// Encoding of KV events: vLLM's since 2026, or its earlier one
    #[arg(help_heading = EVENTS, long, value_parser = one_of(ENCODINGS), default_value = "map")]
    kv_events_encoding: Encoding,
}

/// Headings in the help.
const QUEUE: &str = "Queue";

const DOCUMENTS: &str = "Finding and ordering documents";

const LIMITS: &str = "Limits and traces";

const KEYS: &str = "Keys";

const CONNECTIONS: &str = "The internal listener, and connections";

const EVENTS: &str = "In other engines' words";

const ENCODINGS: [(&str, &str, Encoding); 2] =
    [("map", "", Encoding::Map), ("array", "", Encoding::Array)];

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    if let Some(message) = arguments.device.conflict() {
        crate::Arguments::command()
            .error(ErrorKind::ValueValidation, message)
            .exit();
    }
    if let Some(message) = arguments.cache.conflict(arguments.device.page_tokens) {
        crate::Arguments::command()
            .error(ErrorKind::ArgumentConflict, message)
            .exit();
    }
    foreword_process::run::<crate::Arguments>(arguments.log_format, serve(arguments))
}

async fn serve(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let mut signals = StopSignals::new().context("cannot listen to signals")?;
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
    listener::announce(address, server.internal_address());
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

fn server_config(arguments: &Arguments) -> anyhow::Result<Config> {
    let ordering = ordering(arguments.ordering.as_deref())?;
    let keys = |file: &Option<PathBuf>| file.as_deref().map(ApiKeys::load).transpose();
    Ok(Config {
        listen: arguments.listen,
        internal: arguments.listener.internal(arguments.listen)?,
        connections: arguments.listener.bounds(arguments.max_body_bytes),
        feed_key: arguments.listener.feed_key()?,
        keys: keys(&arguments.api_key_file)?,
        otlp_endpoint: arguments.otlp_endpoint.clone(),
        limits: Limits {
            max_body_bytes: arguments.max_body_bytes,
            body_time: arguments.listener.body_time(),
            request_timeout: Duration::from_secs(arguments.request_timeout_s),
        },
        store: arguments.store.bounds(),
        batches: arguments.batches.config(ordering.clone()),
        drop_in: arguments.drop_in,
        kv_keys: keys(&arguments.kv_key_file)?,
        retrieval: arguments.retrieval.config(ordering.clone())?,
        ordering: ordering.try_into()?,
        kv_events: arguments
            .kv_events_endpoint
            .map(|listen| publisher::Config {
                listen,
                replay: arguments.kv_events_replay_endpoint,
                topic: arguments.kv_events_topic.clone(),
                encoding: arguments.kv_events_encoding,
            }),
        max_inside: arguments.max_waiting + arguments.max_running,
        grace: Duration::from_secs(arguments.grace_s),
    })
}

fn load(arguments: &Arguments) -> anyhow::Result<Model> {
    let folder = &arguments.model;
    let name = arguments
        .name
        .clone()
        .unwrap_or_else(|| folder_name(folder));
    let device = arguments.device.config(arguments.cache.host_size());
    let engine = EngineConfig {
        max_waiting: arguments.max_waiting,
        max_running: arguments.max_running,
        ..arguments.scheduling.config()
    };
    let template = arguments.chat_template.as_deref();
    let tiers = arguments.cache.tiers();
    let model = Model::load(folder, template, name, &device, &tiers, engine)?;
    Ok(model.with_token_cache((arguments.token_cache_mib as usize) << 20))
}

/// Parses `tcp://ADDRESS:PORT`, ZeroMQ's form of an address to listen on; `*` means every interface.
fn endpoint(text: &str) -> Result<SocketAddr, String> {
    let address = text.strip_prefix("tcp://").unwrap_or(text);
    let address = match address.strip_prefix("*:") {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address.to_owned(),
    };
    address.parse().map_err(|_| {
        "it must be tcp://ADDRESS:PORT with an IP address, as tcp://127.0.0.1:5557 is".to_owned()
    })
}
