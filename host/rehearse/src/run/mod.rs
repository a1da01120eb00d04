//! `foreword rehearse`: plays a log through a module, or through two for comparison.
//!
//! ```text
//!   LOG… ──lines──▶ play: Proxy ──▶ rows ──┐
//!   LOG… ──lines──▶ play: Proxy ──▶ rows ──┴─▶ figures ──▶ table, JSON, page
//! ```
//!
//! Each of the two reads the log itself, on its own thread. Only counts and hashes of a request are kept, some 150
//! bytes.

mod figures;
mod page;
mod play;
mod table;

use crate::limits::Limits;
use crate::module::Module;
use crate::proxy::Setup;
use anyhow::{Context, Result};
use figures::Figures;
use play::{Played, Tenant};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The module to play, with its configuration.
    pub module: Version,
    /// The version to compare with, if any.
    pub against: Option<Version>,
    /// Logs, read one after the other.
    pub files: Vec<PathBuf>,
    /// The module's limits.
    pub limits: Limits,
    /// How a proxy runs the module; each version has its own configuration.
    pub setup: Setup,
    /// The path of requests whose line has none.
    pub path: String,
    /// Headers added to every request.
    pub headers: Vec<(String, String)>,
    /// The header for a line's tenant; `None` for the one that the configuration names.
    pub tenant_header: Option<String>,
    /// Size of the pieces in which bodies arrive; `None` if they arrive whole.
    pub piece_bytes: Option<usize>,
    /// Whether the first bad line ends the run.
    pub strict: bool,
    /// File for the HTML report.
    pub report: Option<PathBuf>,
    /// Whether standard output is JSON instead of a table.
    pub json: bool,
}

/// A module and its configuration.
#[derive(Clone, Debug)]
pub struct Version {
    /// Path of the `.wasm` file.
    pub module: PathBuf,
    /// File with the plugin's configuration; `None` for an empty one.
    pub config: Option<PathBuf>,
}

/// The files contain no request with a body.
#[derive(Debug, thiserror::Error)]
#[error("no line of {files} is a request with a body ({lines} lines read, {bad} of them bad)")]
pub struct NoRequests {
    files: String,
    lines: u64,
    bad: u64,
}

/// Whether all callbacks succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All callbacks succeeded.
    Sound,
    /// At least one callback failed.
    Faulty,
}

/// Plays the logs, prints the results to standard output and writes the report.
///
/// # Errors
/// Returns an error if a file cannot be read or written, if a module cannot be run or refuses its configuration, for a
/// bad line when strict, or [`NoRequests`].
pub fn run(options: &Options) -> Result<Verdict> {
    let new = || play(options, &options.module, true);
    let (played, against) = match &options.against {
        None => (new()?, None),
        Some(version) => std::thread::scope(|scope| {
            let old = scope.spawn(|| play(options, version, false));
            let new = new();
            let old = old
                .join()
                .map_err(|_| anyhow::anyhow!("a thread ended before its work"))?;
            let old = old.with_context(|| format!("against {}", version.module.display()))?;
            Ok::<_, anyhow::Error>((new?, Some(old)))
        })?,
    };
    played.counts.tell();
    if played.rows.is_empty() {
        return Err(NoRequests {
            files: names(&options.files),
            lines: played.counts.lines,
            bad: played.counts.bad,
        }
        .into());
    }
    let verdict = if played.faults() == 0 {
        Verdict::Sound
    } else {
        Verdict::Faulty
    };
    let figures = Figures::new(options, played, against);
    if let Some(path) = &options.report {
        std::fs::write(path, page::page(&figures))
            .with_context(|| format!("cannot write the report {}", path.display()))?;
        eprintln!("report: {}", path.display());
    }
    let printed = if options.json {
        format!("{:#}\n", figures.to_json())
    } else {
        figures.to_table()
    };
    let mut out = std::io::stdout().lock();
    let written = out.write_all(printed.as_bytes()).and_then(|()| out.flush());
    written.context("cannot write to standard output")?;
    Ok(verdict)
}

fn play(options: &Options, version: &Version, is_told: bool) -> Result<Played> {
    let file = &version.module;
    let module = Module::read(file, options.limits).with_context(|| file.display().to_string())?;
    let configuration = match &version.config {
        Some(file) => configuration(file)?,
        None => Vec::new(),
    };
    let tenant = match &options.tenant_header {
        Some(header) => Tenant::Header(header.clone()),
        None => Tenant::of(&configuration),
    };
    let setup = Setup {
        configuration,
        ..options.setup.clone()
    };
    play::play(options, &module, setup, &tenant, is_told)
}

fn configuration(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("cannot read the configuration {}", file.display()))
}

fn names(files: &[PathBuf]) -> String {
    let names = files.iter().map(|file| file.display().to_string());
    names.collect::<Vec<_>>().join(", ")
}
