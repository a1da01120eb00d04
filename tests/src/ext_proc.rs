//! The filter as an external processor: `foreword-gateway`, which `foreword ext-proc` runs.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::artifacts::ext_proc_binary;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::{self, Client};
use crate::process::{Process, Watch};
use crate::wait::pause;

/// A running external processor, for one or several gateways; it stops when this is dropped.
#[derive(Debug)]
pub struct ExtProc {
    address: SocketAddr,
    internal: SocketAddr,
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, String)>,
    folder: TempDir,
    /// The process; `None` after it was killed.
    process: Mutex<Option<Process>>,
}

/// Returns the program, built once per process.
pub(crate) fn program() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || ext_proc_binary("dev").map_err(|error| format!("{error:#}"));
    BUILT.get_or_init(build).clone().map_err(anyhow::Error::msg)
}

impl ExtProc {
    /// Starts the program on free ports, with the filter's configuration in a file. An error includes the end of its
    /// log.
    pub fn start(
        program: &Path,
        plugin: &Value,
        clusters: &[(String, SocketAddr)],
        environment: &[(&'static str, String)],
    ) -> Result<Arc<Self>> {
        let folder = folder()?;
        let mut arguments = Vec::new();
        for (name, address) in clusters {
            arguments.push("--cluster".into());
            arguments.push(format!("{name}={address}").into());
        }
        Self::begin(program, plugin, folder, arguments, environment)
    }

    /// Starts the program as an endpoint picker over these endpoints, listed in a file that it watches, with further
    /// arguments.
    pub fn picker(
        plugin: &Value,
        endpoints: &[SocketAddr],
        arguments: &[&str],
    ) -> Result<Arc<Self>> {
        let folder = folder()?;
        let file = folder.path().join(ENDPOINTS);
        fs::write(&file, listed(endpoints))?;
        let mut all = vec![OsString::from("--endpoints"), file.into()];
        all.extend(arguments.iter().map(OsString::from));
        Self::begin(&program()?, plugin, folder, all, &[])
    }

    /// Starts the program as an endpoint picker over the addresses of a DNS name, with a port.
    pub fn picker_over_name(plugin: &Value, name: &str) -> Result<Arc<Self>> {
        let arguments = vec!["--endpoints-dns".into(), name.into()];
        Self::begin(&program()?, plugin, folder()?, arguments, &[])
    }

    fn begin(
        program: &Path,
        plugin: &Value,
        folder: TempDir,
        mut arguments: Vec<OsString>,
        environment: &[(&'static str, String)],
    ) -> Result<Arc<Self>> {
        let file = folder.path().join("foreword.json");
        fs::write(&file, plugin.to_string())?;
        arguments.extend(["--config".into(), file.into()]);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut ext_proc = Self {
            address: any,
            internal: any,
            program: program.into(),
            arguments,
            environment: environment.to_vec(),
            folder,
            process: Mutex::new(None),
        };
        let (process, address, internal) = ext_proc.launch()?;
        (ext_proc.address, ext_proc.internal) = (address, internal);
        ext_proc.process = Mutex::new(Some(process));
        Ok(Arc::new(ext_proc))
    }

    fn launch(&self) -> Result<(Process, SocketAddr, SocketAddr)> {
        let mut command = Command::new(&self.program);
        command
            .args(["--listen", &self.address.to_string()])
            .args(["--internal-listen", &self.internal.to_string()])
            .args(&self.arguments)
            .envs(self.environment.iter().cloned());
        let mut process = Process::start(command, Watch::Stdout, self.folder.path())?;
        let address = process.wait_for(|line| {
            let address = line.strip_prefix("listening on ")?;
            address.trim().parse().ok()
        })?;
        let internal = process.wait_for(|line| {
            let address = line.strip_prefix("probes and metrics on http://")?;
            address.trim().parse().ok()
        })?;
        Ok((process, address, internal))
    }

    /// Kills the process, like `kill -9`.
    pub fn kill(&self) {
        *self.process() = None;
    }

    /// Restarts the process on the same addresses, with an empty log.
    pub fn revive(&self) -> Result<()> {
        let (process, ..) = self.launch()?;
        *self.process() = Some(process);
        Ok(())
    }

    /// Sends the process a signal, given by its name: `TERM`, `HUP`.
    pub fn signal(&self, name: &str) -> Result<()> {
        self.of_process(|process| process.signal(name))
    }

    /// Waits until the process ends by itself; an error if it fails.
    pub fn wait(&self) -> Result<()> {
        let process = self.process().take();
        process.context("the processor is killed")?.wait()
    }

    /// Writes a new configuration. Returns when the processor has accepted it, or an error if it refuses it.
    pub fn reload(&self, plugin: &Value) -> Result<()> {
        let counts = ["reloads", "refused_configurations"];
        self.replace("foreword.json", &plugin.to_string(), counts)
    }

    /// Lists other endpoints. Returns when the picker has accepted them.
    pub fn set_endpoints(&self, endpoints: &[SocketAddr]) -> Result<()> {
        self.write_endpoints(&listed(endpoints))
    }

    /// Writes a new list of endpoints as text. Returns when the picker has accepted it, or an error if it refuses it.
    pub fn write_endpoints(&self, text: &str) -> Result<()> {
        let counts = ["endpoint_changes", "refused_endpoint_lists"];
        self.replace(ENDPOINTS, text, counts)
    }

    /// Replaces a file that the processor watches. The last argument names the counters of accepted and of refused
    /// files.
    fn replace(&self, file: &str, text: &str, [taken, refused]: [&str; 2]) -> Result<()> {
        let count = |name: &str| -> Result<u64> {
            let name = format!("foreword_ext_proc_{name}_total");
            Ok(self.metric(&name)?.unwrap_or_default())
        };
        let before = [count(taken)?, count(refused)?];
        let new = self.folder.path().join("new");
        fs::write(&new, text)?;
        fs::rename(&new, self.folder.path().join(file))?;
        let deadline = Instant::now() + http::READ_LIMIT;
        loop {
            ensure!(count(refused)? == before[1], "the processor refuses {file}");
            if count(taken)? > before[0] {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "the processor did not take {file}"
            );
            pause();
        }
    }

    /// Returns the address for gateways.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a page of the internal listener, with its status.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        let mut client = Client::connect(self.internal)?;
        client.send(format!("GET {path} HTTP/1.1\r\nhost: processor\r\n\r\n").as_bytes())?;
        let response = client.response()?;
        Ok((response.status, String::from_utf8(response.body)?))
    }

    /// Returns all metrics in Prometheus' format.
    pub fn metrics(&self) -> Result<String> {
        let (status, text) = self.get("/metrics")?;
        ensure!(status == 200, "/metrics answered {status}");
        Ok(text)
    }

    /// Returns a counter or gauge by its full name; `None` if it does not exist.
    pub fn metric(&self, name: &str) -> Result<Option<u64>> {
        let metrics = self.metrics()?;
        let value = metrics
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.map(str::parse::<u64>);
        value.transpose().with_context(|| name.to_owned())
    }

    /// Returns the process's whole log.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.path().join("stderr.log"))?)
    }

    /// Returns the processor time that the process has used so far.
    pub fn cpu_time(&self) -> Result<Duration> {
        self.of_process(Process::cpu_time)
    }

    /// Returns the resident memory of the process in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.of_process(Process::resident_bytes)
    }

    fn of_process<T>(&self, of: impl FnOnce(&Process) -> Result<T>) -> Result<T> {
        of(self.process().as_ref().context("the processor is killed")?)
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn folder() -> Result<TempDir> {
    Ok(tempfile::Builder::new()
        .prefix("foreword-ext-proc-")
        .tempdir()?)
}

/// Returns a list of endpoints in the picker's format.
fn listed(endpoints: &[SocketAddr]) -> String {
    let endpoints: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
    json!({"endpoints": endpoints}).to_string()
}

/// Name of the file with a picker's endpoints.
const ENDPOINTS: &str = "endpoints.json";
