//! The subcommands, one file each, and code that several of them share: exit codes, the gateway's configuration.

pub(crate) mod batch;
pub(crate) mod check_config;
pub(crate) mod device;
pub(crate) mod doctor;
pub(crate) mod evaluate;
pub(crate) mod explain;
pub(crate) mod index;
pub(crate) mod ingest;
pub(crate) mod kv_bridge;
pub(crate) mod ledger;
pub(crate) mod listener;
pub(crate) mod measure;
pub(crate) mod program;
pub(crate) mod replay;
pub(crate) mod serve;
pub(crate) mod size;

use anyhow::{Context, bail};
use clap::CommandFactory;
use clap::error::ErrorKind;
use foreword_ordering::{Config as OrderingConfig, RawConfig};
use foreword_process::{LogFormat, start_log};
use std::path::Path;
use std::process::ExitCode;

pub(crate) const LOG_HELP: &str = "Environment:
  FOREWORD_LOG  Level of the log: warn, say, or foreword=debug [default: info]";

/// Runs a subcommand that continues until a signal.
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

/// Prints an error with its causes, and returns the exit code.
fn failed(error: &anyhow::Error, code: u8) -> ExitCode {
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

/// Returns the key in the environment variable `name`, which `option` gives.
fn api_key(option: &str, name: Option<&String>) -> anyhow::Result<Option<String>> {
    let Some(name) = name else { return Ok(None) };
    match std::env::var(name) {
        Ok(key) if !key.is_empty() => Ok(Some(key)),
        _ => bail!("{option}: the environment has no {name}"),
    }
}

/// Reads and validates the gateway's configuration of documents in `file`.
fn ordering(file: Option<&Path>) -> anyhow::Result<RawConfig> {
    let Some(file) = file else {
        return Ok(RawConfig::default());
    };
    let context = || {
        format!(
            "cannot read the gateway's configuration in {}",
            file.display()
        )
    };
    let json = std::fs::read(file).with_context(context)?;
    let raw = RawConfig::from_json(&json).with_context(context)?;
    OrderingConfig::try_from(raw.clone()).with_context(context)?;
    Ok(raw)
}

/// Returns the folder's own name, even for `.` or `models/..`.
fn folder_name(folder: &Path) -> String {
    let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    absolute.file_name().map_or_else(
        || "model".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}
