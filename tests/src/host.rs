//! The host daemon, `foreword`, serving a model on a free port.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use tempfile::TempDir;

use crate::artifacts::host_binary;
use crate::process::{Process, Watch};

/// A running host; it ends when this is dropped.
#[derive(Debug)]
pub struct Host {
    address: SocketAddr,
    process: Process,
    _folder: TempDir,
}

impl Host {
    /// Builds `foreword` in the cargo profile `dev` and serves `model`; `args` are added to the command line.
    pub fn start(model: &Path, args: &[&str]) -> Result<Self> {
        Self::start_binary(&host_binary("dev")?, model, args)
    }

    /// The same with this `foreword`. Returns when the host says where it listens; the error shows the end of its log.
    pub fn start_binary(binary: &Path, model: &Path, args: &[&str]) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("foreword-host-")
            .tempdir()?;
        let mut command = Command::new(binary);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--model"])
            .arg(model)
            .args(args);
        let mut process = Process::start(command, Watch::Stdout, folder.path())?;
        let address = process.wait_for(|line| {
            let (_, address) = line.split_once("listening on http://")?;
            address.trim().parse().ok()
        })?;
        Ok(Self {
            address,
            process,
            _folder: folder,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All that it has said on its standard output.
    pub fn log(&self) -> Result<String> {
        self.process.log()
    }
}
