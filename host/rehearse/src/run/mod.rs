//! `foreword rehearse`: a log played through a module, and through another one beside it.
//!
//! ```text
//!   LOG… ──lines──▶ play: Proxy ──▶ rows ──┐
//!   LOG… ──lines──▶ play: Proxy ──▶ rows ──┴─▶ figures ──▶ table, JSON, page
//! ```
//!
//! The log is read anew by each of the two, on a thread of its own. Of a request nothing is kept but counts and hashes,
//! some 150 bytes.

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

/// What to rehearse, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The module that is played, with its configuration.
    pub module: Version,
    /// What it is compared with.
    pub against: Option<Version>,
    /// Logs, one behind the other.
    pub files: Vec<PathBuf>,
    /// What a module may use.
    pub limits: Limits,
    /// How a proxy runs it; each version has its own configuration.
    pub setup: Setup,
    /// The path of a request whose line does not tell.
    pub path: String,
    /// Headers of every request.
    pub headers: Vec<(String, String)>,
    /// The header that the tenant of a line goes to; `None`: as the configuration says.
    pub tenant_header: Option<String>,
    /// Bytes of the pieces that bodies come in; `None`: whole.
    pub piece_bytes: Option<usize>,
    /// Whether the first bad line ends it.
    pub strict: bool,
    /// The file that the HTML report is written to.
    pub report: Option<PathBuf>,
    /// Whether standard output gets JSON instead of a table.
    pub json: bool,
}

/// A module and its configuration.
#[derive(Clone, Debug)]
pub struct Version {
    /// Path of the `.wasm` file.
    pub module: PathBuf,
    /// The plugin's configuration; `None`: an empty one.
    pub config: Option<PathBuf>,
}

/// The files hold no request with a body.
#[derive(Debug, thiserror::Error)]
#[error("no line of {files} is a request with a body ({lines} lines read, {bad} of them bad)")]
pub struct NoRequests {
    files: String,
    lines: u64,
    bad: u64,
}

/// Whether the module came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Each callback ended as it should.
    Sound,
    /// At least one did not.
    Faulty,
}

/// Plays, prints what was found to standard output and writes the report.
///
/// # Errors
/// A file cannot be read or written; a module cannot be run or refuses its configuration; a bad line, when strict;
/// [`NoRequests`].
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
