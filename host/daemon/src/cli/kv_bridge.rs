//! `foreword kv-bridge`: its arguments and its main function.

use super::{LOG_HELP, folder_name, listener};
use anyhow::Context;
use foreword_process::{LogFormat, StopSignals, address};
use foreword_server::bridge::{Bridge, Config, Limits, subscription};
use foreword_server::keys::ApiKeys;
use foreword_tools::options::ordering;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = LOG_HELP)]
pub(crate) struct Arguments {
    /// Address of the engine's KV events: vLLM's `endpoint` in --kv-events-config
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint)]
    events: String,
    /// Address for repeated events: vLLM's `replay_endpoint`; without it, a lost connection loses everything that was
    /// known
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint)]
    replay: Option<String>,
    /// Topics to subscribe to, by their beginning [default: all]
    #[arg(
        long,
        value_name = "TOPIC",
        default_value = "",
        hide_default_value = true
    )]
    topic: String,
    /// Folder of the engine's checkpoint; its tokenizer and chat template are read, but no weights
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// File with the chat template, if the engine was started with one [default: the checkpoint's]
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Names under which the engine serves the model; the first one is the gateways' [default: the folder's name]
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    served_model_name: Vec<String>,
    /// Address to listen on for copies of requests; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8001", value_parser = address)]
    listen: SocketAddr,
    #[command(flatten)]
    listener: listener::Arguments,
    /// File with accepted API keys, one per line, as the engine's clients send them; without it no key is required
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// File with keys for /v1/kv, one per line, each with places of its own, since it shows what all tenants' caches
    /// hold [default: the API keys, unless the feed has a key]
    #[arg(long, value_name = "FILE")]
    kv_key_file: Option<PathBuf>,
    /// The gateway's configuration of documents, if it has one: the `ordering` of its plugin configuration, in JSON
    #[arg(long, value_name = "FILE")]
    ordering: Option<PathBuf>,
    /// Largest body of a request, in bytes; larger ones are refused with 413
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    max_body_bytes: u64,
    /// Most requests that wait to be tokenised; more are refused with 429
    #[arg(long, value_name = "REQUESTS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_waiting: u32,
    /// Memory for the tokens of texts that were tokenised before, in MiB; 0 for none
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    token_cache_mib: u32,
    /// Most blocks of the engine to remember, a few hundred bytes each; beyond it, everything is forgotten
    #[arg(long, value_name = "BLOCKS", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    max_blocks: u32,
    /// Most prompts to remember until the engine has their blocks; beyond it the oldest are forgotten
    #[arg(long, value_name = "PROMPTS", default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_prompts: u32,
    /// Most tokens of these prompts, 4 bytes each
    #[arg(long, value_name = "TOKENS", default_value_t = 16_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    max_prompt_tokens: u32,
    /// Seconds for the requests in progress to be read to their end after SIGTERM or SIGINT
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    grace_s: u64,
    /// Form of the log on standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

/// Runs the bridge until a signal.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let mut signals = StopSignals::new().context("cannot listen to signals")?;
    let bridge = Bridge::start(config(arguments)?).await?;
    listener::announce(bridge.address(), bridge.internal_address());
    signals.next().await;
    tokio::select! {
        () = bridge.stop() => Ok(ExitCode::SUCCESS),
        number = signals.next() => Ok(ExitCode::from(128 + number)),
    }
}

fn config(arguments: Arguments) -> anyhow::Result<Config> {
    let keys = |file: Option<PathBuf>| file.as_deref().map(ApiKeys::load).transpose();
    let mut names = arguments.served_model_name;
    if names.is_empty() {
        names.push(folder_name(&arguments.model));
    }
    Ok(Config {
        listen: arguments.listen,
        internal: arguments.listener.internal(arguments.listen)?,
        connections: arguments.listener.bounds(arguments.max_body_bytes),
        feed_key: arguments.listener.feed_key()?,
        body_time: arguments.listener.body_time(),
        engine: subscription::Config {
            events: arguments.events,
            replay: arguments.replay,
            topic: arguments.topic,
        },
        names,
        ordering: ordering(arguments.ordering.as_deref())?.try_into()?,
        model: arguments.model,
        chat_template: arguments.chat_template,
        keys: keys(arguments.api_key_file)?,
        kv_keys: keys(arguments.kv_key_file)?,
        max_body_bytes: arguments.max_body_bytes,
        max_waiting: arguments.max_waiting,
        token_cache_bytes: (arguments.token_cache_mib as usize) << 20,
        limits: Limits {
            blocks: arguments.max_blocks as usize,
            prompts: arguments.max_prompts as usize,
            prompt_tokens: arguments.max_prompt_tokens as usize,
        },
        grace: Duration::from_secs(arguments.grace_s),
    })
}

/// Parses `tcp://HOST:PORT`, ZeroMQ's form of an address to connect to.
fn endpoint(text: &str) -> Result<String, String> {
    let valid = text
        .strip_prefix("tcp://")
        .and_then(|address| address.rsplit_once(':'))
        .filter(|(host, _)| !host.is_empty() && *host != "*")
        .and_then(|(_, port)| port.parse::<u16>().ok())
        .is_some_and(|port| port > 0);
    if valid {
        Ok(text.to_owned())
    } else {
        Err("it must be tcp://HOST:PORT, where the engine listens".to_owned())
    }
}
