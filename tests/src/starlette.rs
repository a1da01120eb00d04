//! A real Starlette as upstream, and an HTTP/2 client that sends requests without checks. Both are programs in
//! `tests/python/`, which use packages that `cargo xtask setup` installs in `.tools/starlette`.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::artifacts::repository;
use crate::process::{Process, Watch};

/// A running Starlette; it stops when this is dropped.
#[derive(Debug)]
pub struct Starlette {
    address: SocketAddr,
    _process: Process,
    folder: TempDir,
}

/// A request as Starlette's router received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routed {
    /// Name of the function that handled the request; `None` if there was none.
    pub handler: Option<String>,
    /// The method of the request.
    pub method: String,
    /// The path as it arrived, without the query.
    pub raw_path: String,
    /// The body, in Latin-1.
    pub body: String,
}

impl Starlette {
    /// Starts Starlette. Returns `None`, and prints the reason, if `cargo xtask setup` has not installed it.
    pub fn start() -> Result<Option<Self>> {
        let Some(mut command) = python("engine.py") else {
            return Ok(None);
        };
        let folder = tempfile::Builder::new()
            .prefix("foreword-starlette-")
            .tempdir()?;
        command.arg(folder.path().join(RECORD));
        let mut process = Process::start(command, Watch::Stdout, folder.path())?;
        let address = process.wait_for(|line| {
            let (_, address) = line.split_once("listening on ")?;
            address.trim().parse().ok()
        })?;
        Ok(Some(Self {
            address,
            _process: process,
            folder,
        }))
    }

    /// Returns the address that the application listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns all requests received, with or without a handler. A request is listed before it is answered.
    pub fn received(&self) -> Result<Vec<Routed>> {
        let text = fs::read_to_string(self.folder.path().join(RECORD)).unwrap_or_default();
        // The last line may be incomplete.
        let lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        lines
            .map(|line| {
                let line: Value = serde_json::from_str(line)?;
                let text = |name: &str| {
                    let text = line[name].as_str().map(str::to_owned);
                    text.with_context(|| format!("no {name}"))
                };
                Ok(Routed {
                    handler: text("handler").ok(),
                    method: text("method")?,
                    raw_path: text("raw_path")?,
                    body: text("body")?,
                })
            })
            .collect()
    }
}

/// A request: the names and values of its headers, pseudo-headers first, and its body. Only the gateway validates them.
pub type RawRequest = (Vec<(Vec<u8>, Vec<u8>)>, Vec<u8>);

/// Sends requests over HTTP/2, each on its own connection. Returns each status; 0 if there was no response.
pub fn over_http2(address: SocketAddr, requests: &[RawRequest]) -> Result<Vec<u16>> {
    let mut command = python("http2.py").context("Starlette and h2 are not installed")?;
    let mut client = command
        .args([address.ip().to_string(), address.port().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = String::new();
    for (headers, body) in requests {
        let header =
            |(name, value): &(Vec<u8>, Vec<u8>)| Value::from(vec![latin(name), latin(value)]);
        let mut line: Vec<Value> = headers.iter().map(header).collect();
        line.push(latin(body));
        lines += &format!("{}\n", Value::from(line));
    }
    let mut input = client.stdin.take().context("no standard input")?;
    // The program responds while it reads, so another thread writes.
    let writing = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = client.wait_with_output()?;
    ensure!(
        output.status.success(),
        "http2.py failed: {}",
        output.status
    );
    writing.join().ok().context("the writer panicked")??;
    let text = String::from_utf8(output.stdout)?;
    let statuses: Vec<u16> = text.lines().map(str::parse).collect::<Result<_, _>>()?;
    ensure!(
        statuses.len() == requests.len(),
        "{} answers to {} requests",
        statuses.len(),
        requests.len()
    );
    Ok(statuses)
}

fn latin(bytes: &[u8]) -> Value {
    Value::from(bytes.iter().copied().map(char::from).collect::<String>())
}

fn python(script: &str) -> Option<Command> {
    let folder: PathBuf = repository().join(".tools/starlette");
    if !folder.is_dir() {
        eprintln!("SKIPPED: Starlette is not in .tools/starlette; run `cargo xtask setup`");
        return None;
    }
    let mut command = Command::new("python3");
    command
        .arg(repository().join("tests/python").join(script))
        .env("PYTHONPATH", folder)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    Some(command)
}

const RECORD: &str = "record.jsonl";
