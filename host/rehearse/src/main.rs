//! The binary `foreword-rehearse`, which `foreword rehearse` runs: arguments and exit codes.
//!
//! Exit codes: 0 no callback failed, 1 an error, such as a refused configuration, 2 bad arguments or a log without
//! requests, 3 a callback failed.

use clap::{CommandFactory, Parser, error::ErrorKind};
use foreword_rehearse::run::{self, Options, Verdict};
use foreword_report::log::BadInput;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = Options::parse();
    let plan = options.plan().unwrap_or_else(|message| {
        Options::command()
            .error(ErrorKind::ValueValidation, message)
            .exit()
    });
    match run::run(&options, &plan) {
        Ok(Verdict::Sound) => ExitCode::SUCCESS,
        Ok(Verdict::Faulty) => ExitCode::from(3),
        Err(error) => {
            eprintln!("error: {error:#}");
            if error.is::<BadInput>() {
                ExitCode::from(2)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}
