//! The subcommands, and the exit codes that several of them share.

pub(crate) mod device;
pub(crate) mod ingest;
pub(crate) mod kv_bridge;
pub(crate) mod listener;
pub(crate) mod measure;
pub(crate) mod program;
pub(crate) mod serve;
pub(crate) mod size;

use foreword_tools::BadInput;
use std::path::Path;
use std::process::ExitCode;

pub(crate) const LOG_HELP: &str = "Environment:
  FOREWORD_LOG  Level of the log: warn, say, or foreword=debug [default: info]";

/// Returns the exit code of a tool's result. An error is printed; its code is 2 for [`BadInput`], 1 for others.
pub(crate) fn ended(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| failed(&error, if error.is::<BadInput>() { 2 } else { 1 }))
}

/// Prints an error with its causes, and returns `code` as an exit code.
pub(crate) fn failed(error: &anyhow::Error, code: u8) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(code)
}

/// Returns the name of a folder, even if it is given as `.` or `models/..`; `model` if it has no name.
fn folder_name(folder: &Path) -> String {
    let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    absolute.file_name().map_or_else(
        || "model".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}
