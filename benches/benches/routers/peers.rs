//! Routers from PyPI as they stand, each before three real hosts of its own, beside the filter's choice of an engine.
//!
//! ```text
//!   3 clients ─▶ Envoy ─▶ sglang-router, vllm-router, smg ─▶ 3 × foreword serve     in the client's order, and in Foreword's
//!   3 clients ─▶ Envoy with engines ─▶ 3 × foreword serve                           Foreword: ordered for the engine it names
//! ```
//!
//! An Envoy stands before every router, so that all have the same hops but one. `vllm-router`'s `kv_aware` follows the hosts'
//! KV events over ZeroMQ.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use foreword_tests::Host;
use foreword_tests::http::exchange;
use tempfile::TempDir;

/// Environment variable that names a Python with the routers' packages.
pub(crate) const PYTHON: &str = "FOREWORD_ROUTERS_PYTHON";

/// A router from PyPI, and how it chooses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The Python module that starts it.
    module: &'static str,
    policy: &'static str,
    /// The engine that a host behind it answers like.
    pub(crate) drop_in: &'static str,
    /// The path that says when it is ready.
    ready: &'static str,
}

pub(crate) const SGLANG: Peer = Peer {
    module: "sglang_router.launch_router",
    policy: "cache_aware",
    drop_in: "sglang",
    ready: "/readiness",
};
pub(crate) const VLLM: Peer = Peer {
    module: "vllm_router.launch_router",
    policy: "cache_aware",
    drop_in: "vllm",
    ready: "/readiness",
};
pub(crate) const VLLM_KV: Peer = Peer {
    policy: "kv_aware",
    ..VLLM
};
pub(crate) const SMG: Peer = Peer {
    module: "smg.launch_router",
    ..SGLANG
};

/// Addresses on which a host publishes its KV events and replays them.
#[derive(Clone, Copy)]
pub(crate) struct EventPorts {
    events: SocketAddr,
    replay: SocketAddr,
}

impl EventPorts {
    pub(crate) fn free() -> Result<Self> {
        let [events, replay] = free_ports()?;
        Ok(Self { events, replay })
    }

    /// Returns the arguments that make a host publish its events there.
    pub(crate) fn arguments(self) -> Vec<String> {
        vec![
            "--kv-events-endpoint".into(),
            format!("tcp://{}", self.events),
            "--kv-events-replay-endpoint".into(),
            format!("tcp://{}", self.replay),
            // vLLM's default.
            "--kv-events-topic".into(),
            String::new(),
        ]
    }
}

/// A router from PyPI that is running; it ends when this is dropped.
pub(crate) struct RunningPeer {
    process: Child,
    pub(crate) address: SocketAddr,
    _folder: TempDir,
}

impl RunningPeer {
    /// Starts a router before these hosts, and waits until it is ready.
    pub(crate) fn start(peer: Peer, hosts: &[Host], events: &[EventPorts]) -> Result<Self> {
        let [address, metrics] = free_ports()?;
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("router.log");
        let output = File::create(&log)?;
        let mut command = Command::new(python()?);
        command
            .args(["-m", peer.module, "--host", "127.0.0.1"])
            .args(["--port", &address.port().to_string()])
            .args(["--prometheus-port", &metrics.port().to_string()])
            .args(["--policy", peer.policy, "--worker-urls"])
            .args(
                hosts
                    .iter()
                    .map(|host| format!("http://{}", host.address())),
            );
        if peer.policy == "kv_aware" {
            for (host, ports) in hosts.iter().zip(events) {
                let url = format!("http://{}", host.address());
                command
                    .arg("--kv-event-source")
                    .arg(format!("{url}=tcp://{}", ports.events))
                    .arg("--kv-event-replay-source")
                    .arg(format!("{url}=tcp://{}", ports.replay));
            }
            command.args(["--kv-event-block-size", "16", "--kv-event-model", "tiny"]);
        }
        let process = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {}", peer.module))?;
        let mut running = Self {
            process,
            address,
            _folder: folder,
        };
        running.wait(peer, &log)?;
        Ok(running)
    }

    fn wait(&mut self, peer: Peer, log: &Path) -> Result<()> {
        let start = Instant::now();
        let request = format!("GET {} HTTP/1.1\r\nhost: router\r\n\r\n", peer.ready);
        let tail = || {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().rev().take(20).collect();
            lines.into_iter().rev().collect::<Vec<_>>().join("\n")
        };
        loop {
            if exchange(self.address, request.as_bytes()).is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            if let Some(status) = self.process.try_wait()? {
                bail!("{} ended ({status}):\n{}", peer.module, tail());
            }
            ensure!(
                start.elapsed() < PATIENCE,
                "{} does not become ready:\n{}",
                peer.module,
                tail()
            );
            sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for RunningPeer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn python() -> Result<PathBuf> {
    let python = std::env::var_os(PYTHON).map(PathBuf::from);
    python.with_context(|| format!("{PYTHON} does not name a Python with the routers"))
}

fn free_ports() -> Result<[SocketAddr; 2]> {
    let listeners = [
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
    ];
    let [one, two] = listeners;
    Ok([one.local_addr()?, two.local_addr()?])
}

/// Longest start of a router, which asks its hosts for their health at intervals.
const PATIENCE: Duration = Duration::from_secs(120);
