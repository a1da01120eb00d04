//! The arguments of `foreword explain`.

use clap::ValueHint;
use foreword_simulation::Capacity;
use foreword_tools::explain::{self, NoRequests};
use std::path::PathBuf;
use std::process::ExitCode;

pub(crate) const HELP: &str = "Lines of a log, in JSON:
  a chat body, OpenAI's (chat or Responses), Anthropic's, Cohere's, Gemini's or Bedrock's; or
  {\"docs\": [ids, best first], …}, as for `foreword replay`; or
  {\"request\": a body, as an object or a string, \"response\": {\"usage\": {…}}, \"tenant\": …, \"engine\": …}, where all but
  the request may be absent. `body` says `request`, `upstream` says `engine`; `usage`, or `prompt_tokens` and
  `cached_tokens`, may stand beside the request. What the engine had cached tells evicted from reused.

Exit codes: 0 done, 1 a file cannot be read or written, or a bad line with --strict, 2 bad arguments or no request.
No text of a request is kept or printed: hashes, counts, names of tools and roles, and forms such as 9999-99-99.";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Logs of requests, one JSON object per line; several are read as one, in the order given
    #[arg(required = true, value_name = "LOG", value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Tokens in a page of the engine's cache: a shorter prefix is not reused (vLLM: 16; hybrid models: 528 to 8320)
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    page_tokens: u32,
    /// Tokens that the engine's cache holds, to compute what mending would save; 0: any number
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    cache_tokens: u64,
    /// Recent requests that each request is compared with
    #[arg(long, value_name = "REQUESTS", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    window: u32,
    /// The gateway's current configuration of documents: its plugin configuration, or the `ordering` in it
    #[arg(long, value_name = "FILE")]
    ordering: Option<PathBuf>,
    /// Do not replay the log to compute what mending would save
    #[arg(long)]
    no_gain: bool,
    /// Stop at the first bad line instead of skipping it
    #[arg(long)]
    strict: bool,
    /// File for a report in HTML
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print one JSON object, with a diagnosis for each request, instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand. A log without requests counts as a bad argument, not as a failure.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let options = explain::Options {
        files: arguments.files,
        capacity: Capacity {
            tokens: (arguments.cache_tokens > 0).then_some(arguments.cache_tokens),
            page_tokens: arguments.page_tokens,
        },
        window: arguments.window,
        ordering: arguments.ordering,
        gain: !arguments.no_gain,
        strict: arguments.strict,
        report: arguments.report,
        json: arguments.json,
    };
    match explain::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => super::failed(&error, if error.is::<NoRequests>() { 2 } else { 1 }),
    }
}
