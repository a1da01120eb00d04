//! The binary `foreword-gateway`, which `foreword ext-proc` runs: arguments, logging, signals and exit codes.
//!
//! Exit codes: 0 after a graceful stop, 1 for a failure or a stop that cut streams short, 2 for bad arguments, and 128 + n
//! when a second signal n cut the stop short.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, ValueHint};
use foreword_gateway::pool::source::{Name, Source};
use foreword_gateway::pool::{Pool, PoolOptions};
use foreword_gateway::processor::{Bounds, Processor};
use foreword_gateway::server::{Options, Place, Server, Tls};
use foreword_process::{InternalListen, LogFormat, StopSignals, announce, share};
use futures_util::FutureExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

const HELP: &str = "The configuration is the JSON that the filter takes in every gateway; its fields stand in
gateway-config/envoy/README.md, and `foreword check-config` checks it. The file is watched: a change is taken within a second, or
at once after SIGHUP; one that is refused is logged, and the old one goes on.

With --endpoints or --endpoints-dns it is also an endpoint picker of the Gateway API's inference extension: every request gets
a destination, in the header and the metadata x-gateway-destination-endpoint. See gateway-config/inference-extension.

Environment:
  FOREWORD_LOG  Level of the log: warn, say, or foreword_gateway=debug [default: info]";

/// Serve the filter over Envoy's external-processing protocol, for all workers of any number of gateways
#[derive(Parser)]
#[command(name = "foreword ext-proc", version, after_help = HELP)]
struct Arguments {
    /// The filter's configuration, a file with JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: PathBuf,
    /// Where gateways connect to: an address with a port, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9002", value_parser = place)]
    listen: Place,
    /// Address for /metrics, /live and /ready, or `none`
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9003")]
    internal_listen: InternalListen,
    /// A cluster that the configuration names, for retrieval or an engine's feed, and where it is: NAME=HOST:PORT
    #[arg(long, value_name = "NAME=HOST:PORT", value_parser = cluster)]
    cluster: Vec<(String, String)>,
    /// The chain of certificates to show to gateways, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key", value_hint = ValueHint::FilePath)]
    tls_certificate: Option<PathBuf>,
    /// The key of --tls-certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate", value_hint = ValueHint::FilePath)]
    tls_key: Option<PathBuf>,
    /// The authority whose certificates gateways must show, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate", value_hint = ValueHint::FilePath)]
    tls_client_authority: Option<PathBuf>,
    /// Most streams at once: requests that gateways have under way, while their responses are watched
    #[arg(long, value_name = "STREAMS", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_streams: u32,
    /// Most memory for bodies that are held, in MiB; a request beyond it fails as the gateway's `failure_mode_allow` says
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_held_mib: u32,
    /// Most bytes of one message, in MiB: at least what the gateway buffers of a body
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    max_message_mib: u32,
    /// Pick an endpoint of this list for every request: a file in JSON or YAML, which is watched
    #[arg(long, value_name = "FILE", group = "pool", value_hint = ValueHint::FilePath)]
    endpoints: Option<PathBuf>,
    /// Pick an endpoint for every request among the addresses of a name, as that of a headless Service, with each port
    #[arg(long, value_name = "HOST:PORT[,PORT]", group = "pool")]
    endpoints_dns: Option<Name>,
    /// Further endpoints that are named after the picked one, for the gateway's retries
    #[arg(long, requires = "pool", value_name = "ENDPOINTS", default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=7))]
    fallbacks: u8,
    /// The path of the endpoints' metrics, which tell how much they have to do, or `none`
    #[arg(long, requires = "pool", value_name = "PATH", default_value = "/metrics", value_parser = metrics_path)]
    metrics_path: MetricsPath,
    /// Interval at which the endpoints' metrics are read, in milliseconds; after five of them a load is forgotten
    #[arg(long, requires = "pool", value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    scrape_ms: u64,
    /// An endpoint with more requests waiting is saturated: it is picked only while all are
    #[arg(long, requires = "pool", value_name = "REQUESTS", default_value_t = 5)]
    max_waiting: u64,
    /// An endpoint that uses more of its KV cache is saturated
    #[arg(long, requires = "pool", value_name = "SHARE", default_value_t = 0.8, value_parser = share)]
    max_kv_usage: f64,
    /// An objective (`x-gateway-inference-objective`) whose requests are refused with 429 while all endpoints are saturated
    #[arg(long, requires = "pool", value_name = "NAME")]
    sheddable: Vec<String>,
    /// Seconds that streams have after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    grace_s: u64,
    /// Format of the log
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Clone)]
struct MetricsPath(Option<String>);

fn place(text: &str) -> Result<Place, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Place::Unix(path.into()));
    }
    let words = "it must be an IP address with a port, as 127.0.0.1:9002 is, or unix: and a path";
    text.parse().map(Place::Tcp).map_err(|_| words.to_owned())
}

fn metrics_path(text: &str) -> Result<MetricsPath, String> {
    let is_path = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic());
    match text {
        "none" => Ok(MetricsPath(None)),
        path if is_path => Ok(MetricsPath(Some(path.to_owned()))),
        _ => Err("it must be a path, as /metrics is, or none".to_owned()),
    }
}

fn cluster(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=');
    let is_address = |address: &str| {
        let parts = address.rsplit_once(':');
        parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<NonZeroU16>().is_ok())
    };
    match parts {
        Some((name, address)) if !name.is_empty() && is_address(address) => {
            Ok((name.to_owned(), address.to_owned()))
        }
        _ => Err("it must be a name and an address, as retriever=127.0.0.1:8000 is".to_owned()),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    foreword_process::run::<Arguments>(arguments.log_format, run(arguments))
}

/// Serves until a stop signal, and then until all streams or the grace period end, or a second signal comes.
async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let bounds = Bounds {
        streams: arguments.max_streams as usize,
        held_bytes: (arguments.max_held_mib as usize) << 20,
        message_bytes: (arguments.max_message_mib as usize) << 20,
    };
    let read = |path: PathBuf| {
        std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let tls = match (arguments.tls_certificate, arguments.tls_key) {
        (Some(certificate), Some(key)) => Some(Tls {
            certificate: read(certificate)?,
            key: read(key)?,
            client_authority: arguments.tls_client_authority.map(read).transpose()?,
        }),
        _ => None,
    };
    let clusters: BTreeMap<_, _> = arguments.cluster.into_iter().collect();
    let file = arguments.endpoints.map(Source::File);
    let source = file.or(arguments.endpoints_dns.map(Source::Dns));
    let pool = source.map(|source| {
        Pool::new(PoolOptions {
            source,
            fallbacks: arguments.fallbacks.into(),
            metrics_path: arguments.metrics_path.0,
            scrape_interval: Duration::from_millis(arguments.scrape_ms),
            max_waiting: arguments.max_waiting,
            max_kv_usage: arguments.max_kv_usage,
            sheddable: arguments.sheddable,
        })
    });
    let processor = Processor::load(&arguments.config, clusters, pool, bounds)?;
    processor.find_endpoints().await?;
    let mut signals = StopSignals::new()?;
    let hang_up = signal(SignalKind::hangup())?;
    let options = Options {
        listen: arguments.listen,
        tls,
        internal: arguments.internal_listen.0,
        grace: Duration::from_secs(arguments.grace_s),
    };
    let server = Server::bind(std::sync::Arc::clone(&processor), options).await?;
    let internal = server.internal();
    let internal = internal.map(|address| ("probes and metrics", address));
    announce(&server.place().to_string(), internal);
    let watching = tokio::spawn(processor.watch(hang_up));
    let (stop, stopping) = oneshot::channel::<()>();
    let second_signal = async move {
        signals.next().await;
        tracing::info!("draining");
        let _ = stop.send(());
        signals.next().await
    };
    let has_drained = tokio::select! {
        has_drained = server.serve(stopping.map(drop)) => has_drained,
        number = second_signal => return Ok(ExitCode::from(128 + number)),
    };
    watching.abort();
    if has_drained? {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("error: the grace is over, and streams were cut short");
    Ok(ExitCode::FAILURE)
}
