//! The arguments of `foreword batch`.

use super::{api_key, ordering};
use foreword_tools::batch::{self, BatchOrder, NoBatch, Options};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

pub(crate) const HELP: &str = "Lines of FILE, in OpenAI's batch format, each custom_id once:
  {\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {…}}
  url: /v1/chat/completions, /v1/completions, /v1/embeddings or /v1/responses
Lines of OUT, in the order of their answers, readable by its owner alone:
  {\"id\": …, \"custom_id\": \"1\", \"response\": {\"status_code\": 200, \"request_id\": …, \"body\": {…}}, \"error\": null}

A run that was stopped goes on with the same command: what OUT answers is not asked again.
To compare: --order input with the policy \"retrieval\" in --ordering leaves requests and documents as they stand.
An endpoint behind Foreword's filter orders documents again: name the engine itself.

Exit codes: 0 every request was served, 1 the run failed (what was answered is kept), 2 bad arguments or wrong lines,
3 every request has an answer, and some were refused or failed.";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Requests, one JSON object per line
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// OpenAI-compatible endpoint: http://localhost:8000, say, or the same with https
    #[arg(long, value_name = "URL", required_unless_present = "check")]
    endpoint: Option<String>,
    /// File for the answers
    #[arg(long, value_name = "OUT", required_unless_present = "check")]
    out: Option<PathBuf>,
    /// Order of the requests: as planned, those that share documents together; or as in FILE, where --ordering's policy
    /// orders documents as a gateway would
    #[arg(long, value_enum, default_value_t = Order::Plan)]
    order: Order,
    /// The gateway's configuration: its plugin configuration's `ordering`, in JSON. A plan takes the place of its
    /// policy; nothing is pinned, since requests are independent
    #[arg(long, value_name = "FILE")]
    ordering: Option<PathBuf>,
    /// Requests in flight at once
    #[arg(long, value_name = "C", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    concurrency: u16,
    /// Most requests a second [default: any number]
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// Environment variable that holds the API key
    #[arg(long, value_name = "VAR")]
    api_key_env: Option<String>,
    /// Seconds that one attempt may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout_s: u64,
    /// Further attempts after the first, on 408, 425, 429, 5xx and broken connections
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=100))]
    retries: u32,
    /// Milliseconds before the second attempt; doubled each time, up to 30 s. A Retry-After holds back all requests,
    /// up to 10 minutes
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(0..=30_000))]
    backoff_ms: u64,
    /// Ask again what an earlier run could not get served: its lines are removed from OUT first
    #[arg(long)]
    retry_failed: bool,
    /// Only read FILE and name its wrong lines
    #[arg(long)]
    check: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Order {
    Plan,
    Input,
}

impl Arguments {
    fn options(self) -> anyhow::Result<Options> {
        let api_key = api_key("--api-key-env", self.api_key_env.as_ref())?;
        Ok(Options {
            file: self.file,
            endpoint: self.endpoint.unwrap_or_default(),
            out: self.out.unwrap_or_default(),
            order: match self.order {
                Order::Plan => BatchOrder::Plan,
                Order::Input => BatchOrder::Input,
            },
            ordering: ordering(self.ordering.as_deref())?,
            concurrency: self.concurrency.into(),
            rate: self.rate,
            api_key,
            timeout: Duration::from_secs(self.timeout_s),
            retries: self.retries,
            backoff: Duration::from_millis(self.backoff_ms),
            retry_failed: self.retry_failed,
            check: self.check,
            json: self.json,
        })
    }
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let summary = arguments.options().and_then(|options| batch::run(&options));
    match summary {
        Ok(summary) if summary.failed > 0 => ExitCode::from(3),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => super::failed(&error, if error.is::<NoBatch>() { 2 } else { 1 }),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok();
    rate.filter(|rate| (0.001..=100_000.0).contains(rate))
        .ok_or("it must be a number from 0.001 to 100000".to_owned())
}
