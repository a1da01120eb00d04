//! The host daemon, `foreword`, serving a model on a free port.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::artifacts::host_binary;
use crate::process::{Process, Watch};

/// A running host; it stops when this is dropped.
#[derive(Debug)]
pub struct Host {
    address: SocketAddr,
    internal: SocketAddr,
    /// The path of `foreword`, and the arguments after the address.
    program: PathBuf,
    arguments: Vec<OsString>,
    /// The process; `None` after it was killed.
    process: Option<Process>,
    folder: TempDir,
}

impl Host {
    /// Builds `foreword` in the cargo profile `dev` and serves `model`; `args` are added to the command line.
    pub fn start(model: &Path, args: &[&str]) -> Result<Self> {
        Self::start_binary(&host_binary("dev")?, model, args)
    }

    /// Starts the `foreword` at `binary` instead of building one. Returns when the host prints its address. An error
    /// includes the end of its log.
    pub fn start_binary(binary: &Path, model: &Path, args: &[&str]) -> Result<Self> {
        let mut arguments = vec![OsString::from("--model"), model.into()];
        arguments.extend(args.iter().map(OsString::from));
        let mut host = Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            internal: SocketAddr::from(([127, 0, 0, 1], 0)),
            program: binary.to_owned(),
            arguments,
            process: None,
            folder: tempfile::Builder::new()
                .prefix("foreword-host-")
                .tempdir()?,
        };
        host.revive()?;
        Ok(host)
    }

    /// Kills the host, like `kill -9`.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Restarts the host on the same address.
    pub fn revive(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["serve", "--listen", &self.address.to_string()]);
        command.args(["--internal-listen", &self.internal.to_string()]);
        command.args(&self.arguments);
        let mut process = Process::start(command, Watch::Stdout, self.folder.path())?;
        self.address = process.wait_for(|line| {
            let (_, address) = line.split_once("listening on http://")?;
            address.trim().parse().ok()
        })?;
        self.internal = process.wait_for(internal)?;
        self.process = Some(process);
        Ok(())
    }

    /// Returns the host's address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of the host's probes, metrics and KV feed.
    pub fn internal(&self) -> SocketAddr {
        self.internal
    }

    /// Returns the processor time that the host has used so far, in user and kernel mode, in steps of 10 ms.
    pub fn cpu_time(&self) -> Result<Duration> {
        let process = self.process.as_ref().context("it is killed")?;
        process.cpu_time()
    }

    /// Returns the host's whole standard output.
    pub fn log(&self) -> Result<String> {
        let process = self.process.as_ref().context("it is killed")?;
        process.log()
    }
}

/// Returns the internal listener's address in a line of a server's standard output.
pub(crate) fn internal(line: &str) -> Option<SocketAddr> {
    let (_, address) = line.split_once("KV feed on http://")?;
    address.trim().parse().ok()
}
