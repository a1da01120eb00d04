//! The arguments of `foreword index`.

use foreword_tools::EmptyLog;
use foreword_tools::index::{self, MOST_CONTEXTS};
use std::path::PathBuf;
use std::process::ExitCode;

pub(crate) const HELP: &str = "Lines of a log are those of `foreword replay`. The file that is written is an `ordering` \
    with
the policy `context-index` and its `history`. It holds documents' fingerprints, and no text:
  foreword index requests.jsonl --out ordering.json
  foreword replay --ordering ordering.json later.jsonl

Exit codes: 0 done, 1 a file cannot be read or written, or a bad line with --strict, 2 bad arguments or an empty log.";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Logs of requests, one JSON object per line
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// File for the gateway's `ordering`
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Most contexts to keep, the newest ones; a context of 15 documents takes 244 bytes of configuration
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_CONTEXTS)))]
    contexts: u32,
    /// Stop at the first bad line instead of skipping it
    #[arg(long)]
    strict: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand. A log without requests counts as a bad argument, not as a failure.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let options = index::Options {
        files: arguments.files,
        out: arguments.out,
        contexts: arguments.contexts,
        strict: arguments.strict,
        json: arguments.json,
    };
    match index::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => super::failed(&error, if error.is::<EmptyLog>() { 2 } else { 1 }),
    }
}
