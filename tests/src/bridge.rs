//! `foreword kv-bridge`, between an engine's events and the readers of the feed.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::artifacts::host_binary;
use crate::http::{Client, Response};
use crate::process::{Process, Watch};

/// A running bridge; it stops when this is dropped.
#[derive(Debug)]
pub struct Bridge {
    address: SocketAddr,
    internal: SocketAddr,
    _process: Process,
    _folder: TempDir,
}

impl Bridge {
    /// Builds `foreword` in the cargo profile `dev` and starts a bridge for an engine that publishes events at
    /// `events`, repeats them at `replay`, and serves the checkpoint in `model` as `name`. `args` are added to the
    /// command line.
    pub fn start(
        model: &Path,
        name: &str,
        events: SocketAddr,
        replay: SocketAddr,
        args: &[&str],
    ) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("foreword-bridge-")
            .tempdir()?;
        let mut command = Command::new(host_binary("dev")?);
        command
            .args(["kv-bridge", "--listen", "127.0.0.1:0", "--model"])
            .arg(model)
            .args(["--served-model-name", name])
            .args(["--events", &format!("tcp://{events}")])
            .args(["--replay", &format!("tcp://{replay}")])
            .args(args);
        let mut process = Process::start(command, Watch::Stdout, folder.path())?;
        let address = process.wait_for(|line| {
            let (_, address) = line.split_once("listening on http://")?;
            address.trim().parse().ok()
        })?;
        let internal = process.wait_for(crate::host::internal)?;
        Ok(Self {
            address,
            internal,
            _process: process,
            _folder: folder,
        })
    }

    /// Returns the bridge's address for copied requests.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of the bridge's probes, metrics and KV feed.
    pub fn internal(&self) -> SocketAddr {
        self.internal
    }

    /// Sends a `GET` to the internal address.
    pub fn get(&self, path: &str) -> Result<Response> {
        let mut client = Client::connect(self.internal)?;
        client.send(format!("GET {path} HTTP/1.1\r\nhost: bridge\r\n\r\n").as_bytes())?;
        client.response()
    }

    /// Returns a counter or gauge of `/metrics` by its full name with labels; 0 while it is absent.
    pub fn metric(&self, name: &str) -> Result<u64> {
        let response = self.get("/metrics")?;
        ensure!(
            response.status == 200,
            "/metrics answered {}",
            response.status
        );
        let text = String::from_utf8(response.body)?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(Ok(0), |value| {
            value
                .parse()
                .with_context(|| format!("{name} is {value:?}"))
        })
    }
}
