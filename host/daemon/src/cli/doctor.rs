//! The arguments of `foreword doctor`.

use super::api_key;
use foreword_tools::doctor::{self, Options};
use std::process::ExitCode;
use std::time::Duration;

pub(crate) const HELP: &str = "What it sends: some 43 requests with 12,000 prompt tokens to the engine, and 16 with 8,000 more through a gateway; where no prompt of
400 tokens is reused, up to 50,000 prompt tokens; never more than 160 requests. Prompts are random words, and answers have one to
three tokens. Nothing is changed, except by --allow-reset.

docs/doctor.md leads from a symptom to a finding, and has every check.
JSON: {\"url\", \"model\", \"requests\", \"prompt_tokens\", \"seconds\", \"findings\": [{\"check\", \"status\", \"detail\", \"remedy\"}]};
status: ok, warn, fail or skipped.

Exit codes: 0 no check failed, 1 the engine does not answer, 2 bad arguments, 3 a check failed.";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The engine: http://localhost:8000, say, or the same with https
    #[arg(value_name = "URL")]
    url: String,
    /// The gateway in front of it
    #[arg(long, value_name = "URL")]
    gateway: Option<String>,
    /// The model to ask [default: the first of /v1/models]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Environment variable that holds the API key
    #[arg(long, value_name = "VAR")]
    api_key_env: Option<String>,
    /// The engine's KV events over ZeroMQ, tcp://HOST:PORT [default: the feed of `foreword serve` or `foreword kv-bridge`, if there
    /// is one]
    #[arg(long, value_name = "ENDPOINT")]
    events: Option<String>,
    /// Where the engine's metrics and our feed are [default: URL, then a thousand ports above it]
    #[arg(long, value_name = "URL")]
    internal: Option<String>,
    /// The gateway's metrics: Envoy's http://HOST:9901/stats/prometheus, or /metrics of `foreword ext-proc`
    #[arg(long, value_name = "URL", requires = "gateway")]
    gateway_metrics: Option<String>,
    /// Empty the engine's cache at the end, to see who notices: every prompt is then computed once more
    #[arg(long)]
    allow_reset: bool,
    /// Seconds that one request may take
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    timeout_s: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn options(self) -> anyhow::Result<Options> {
        let api_key = api_key("--api-key-env", self.api_key_env.as_ref())?;
        Ok(Options {
            url: self.url,
            gateway: self.gateway,
            model: self.model,
            api_key,
            events: self.events,
            internal: self.internal,
            gateway_metrics: self.gateway_metrics,
            allow_reset: self.allow_reset,
            timeout: Duration::from_secs(self.timeout_s),
            json: self.json,
        })
    }
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let examination = arguments
        .options()
        .and_then(|options| doctor::run(&options));
    match examination {
        Ok(examination) if examination.has_failure() => ExitCode::from(3),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => super::failed(&error, 1),
    }
}
