//! The arguments of `foreword ledger`.

use clap::ValueHint;
use foreword_tools::EmptyLog;
use foreword_tools::ledger::{self, Options};
use std::path::PathBuf;
use std::process::ExitCode;

pub(crate) const HELP: &str = "Lines of a log: the gateway's access log as JSON, with Foreword's fields (`outcome`, `matched_tokens`,
`client_matched_tokens`, `estimated_tokens`, `arm`, `prompt_tokens`, `cached_tokens`), as gateway-config/envoy/envoy.yaml
writes it. Lines without `outcome` are skipped.

Saved tokens: with an experiment, the cached share of its ordered arm less the control arm's (`by` says `control`);
otherwise what the sent order found less what the clients' own order would have found (`estimate`).

Exit codes: 0 done, 1 a file cannot be read, 2 bad arguments or no request.";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Access logs, one JSON object per line; several are read as one
    #[arg(required = true, value_name = "LOG", value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Fields of the log by which requests are grouped, such as tenant,model; beyond 1,000 groups requests are counted
    /// together
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    by: Vec<String>,
    /// File with prices, as for `foreword replay`, to tell what was saved in money
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    prices: Option<PathBuf>,
    /// Field with the model's name, by which prices are found; group by it where there are several models
    #[arg(long, value_name = "FIELD", default_value = "model")]
    model_field: String,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand. A log without requests counts as a bad argument, not as a failure.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let options = Options {
        files: arguments.files,
        by: arguments.by,
        prices: arguments.prices,
        model_field: arguments.model_field,
        json: arguments.json,
    };
    match ledger::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => super::failed(&error, if error.is::<EmptyLog>() { 2 } else { 1 }),
    }
}
