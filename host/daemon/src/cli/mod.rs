//! The subcommands, and what several of them share: exit codes, and runs until a signal.

pub(crate) mod device;
pub(crate) mod ingest;
pub(crate) mod kv_bridge;
pub(crate) mod listener;
pub(crate) mod measure;
pub(crate) mod program;
pub(crate) mod serve;
pub(crate) mod size;

use anyhow::Context;
use clap::CommandFactory;
use clap::error::ErrorKind;
use foreword_process::{LogFormat, start_log};
use foreword_tools::BadInput;
use std::path::Path;
use std::process::ExitCode;

pub(crate) const LOG_HELP: &str = "Environment:
  FOREWORD_LOG  Level of the log: warn, say, or foreword=debug [default: info]";

/// Starts the log and runs a subcommand that ends with a signal. Returns its exit code.
pub(crate) fn until_signal(
    log: LogFormat,
    mode: impl Future<Output = anyhow::Result<ExitCode>>,
) -> ExitCode {
    if let Err(error) = start_log(log) {
        crate::Arguments::command()
            .error(ErrorKind::ValueValidation, format!("FOREWORD_LOG: {error}"))
            .exit();
    }
    match block_on(mode) {
        Ok(code) => code,
        Err(error) => failed(&error, 1),
    }
}

/// Returns the exit code of a tool's result. An error is printed; its code is 2 for [`BadInput`], 1 for others.
pub(crate) fn ended(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| failed(&error, if error.is::<BadInput>() { 2 } else { 1 }))
}

/// Prints an error with its causes, and returns `code` as an exit code.
pub(crate) fn failed(error: &anyhow::Error, code: u8) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(code)
}

fn block_on(mode: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let code = runtime.block_on(mode);
    // The runtime does not wait for a model that is being loaded.
    runtime.shutdown_background();
    code
}

/// Returns the name of a folder, even if it is given as `.` or `models/..`; `model` if it has no name.
fn folder_name(folder: &Path) -> String {
    let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    absolute.file_name().map_or_else(
        || "model".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}
