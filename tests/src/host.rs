//! The host daemon, `foreword`, serving a model on a free port.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::artifacts::host_binary;
use crate::process::{Process, Watch};

/// A running host; it ends when this is dropped.
#[derive(Debug)]
pub struct Host {
    address: SocketAddr,
    internal: SocketAddr,
    /// Its program, and the arguments behind the address.
    program: PathBuf,
    arguments: Vec<OsString>,
    /// `None` while it is killed.
    process: Option<Process>,
    folder: TempDir,
}

impl Host {
    /// Builds `foreword` in the cargo profile `dev` and serves `model`; `args` are added to the command line.
    pub fn start(model: &Path, args: &[&str]) -> Result<Self> {
        Self::start_binary(&host_binary("dev")?, model, args)
    }

    /// The same with this `foreword`. Returns when the host says where it listens; the error shows the end of its log.
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

    /// Ends it at once, as `kill -9` does.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again, where it listened before.
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

    /// Returns the address that the host listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its probes, metrics and KV feed are.
    pub fn internal(&self) -> SocketAddr {
        self.internal
    }

    /// All that it has said on its standard output.
    pub fn log(&self) -> Result<String> {
        let process = self.process.as_ref().context("it is killed")?;
        process.log()
    }
}

/// The internal listener's address in a line of a server's standard output.
pub(crate) fn internal(line: &str) -> Option<SocketAddr> {
    let (_, address) = line.split_once("KV feed on http://")?;
    address.trim().parse().ok()
}
