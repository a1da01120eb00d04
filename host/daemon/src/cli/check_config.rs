//! The arguments of `foreword check-config`.

use foreword_tools::check;
use foreword_tools::check::Verdict;
use std::path::PathBuf;
use std::process::ExitCode;

pub(crate) const HELP: &str = "Every error is told, with path, value and limit. A key in the environment is not looked for.

Exit codes: 0 the filter takes every configuration, 1 it refuses one, 2 a file cannot be read or holds none.";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// File with the plugin's JSON, or with what contains it: Envoy's configuration, Istio's or Envoy Gateway's
    /// resources, a ConfigMap; `-`: standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Accept a gateway that lets requests past Foreword while it is away, beside a configuration with salts; the files of both
    /// are given together
    #[arg(long)]
    accept_fail_open: bool,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match check::run(&arguments.files, arguments.accept_fail_open) {
        Ok(Verdict::Accepted) => ExitCode::SUCCESS,
        Ok(Verdict::Refused) => ExitCode::FAILURE,
        Err(error) => super::failed(&error, 2),
    }
}
