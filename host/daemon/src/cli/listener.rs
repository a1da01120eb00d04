//! The arguments for a server's listeners and for the limits of their connections.

use anyhow::{Context, bail};
use foreword_ordering::feed::FeedKey;
use foreword_process::InternalListen;
use foreword_server::connections::{Bounds, within_open_files};
use foreword_server::serve::{CONNECTIONS_OF_A_READER, INTERNAL_CONNECTIONS};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
#[group(id = "listening")]
pub(crate) struct Arguments {
    /// Address of the internal listener, for probes, metrics and the KV feed, or `none` [default: 127.0.0.1, a
    /// thousand ports above --listen's]
    #[arg(long, value_name = "ADDRESS")]
    internal_listen: Option<InternalListen>,
    /// Most connections of clients; beyond it, those that have waited longest without a request are closed. It is
    /// lower if the process may not open so many files
    #[arg(long, value_name = "CONNECTIONS", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_connections: u32,
    /// Most connections from one address (IPv6: one /64 network); loopback has no bound. 0: any number
    #[arg(long, value_name = "CONNECTIONS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    max_connections_per_address: u32,
    /// Seconds for a request's head to arrive
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    header_timeout_s: u64,
    /// Seconds between two requests of a connection; choose more than a gateway keeps its own, which is an hour in
    /// Envoy
    #[arg(long, value_name = "SECONDS", default_value_t = 3_660, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    idle_timeout_s: u64,
    /// Seconds for a request's body to arrive
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    body_timeout_s: u64,
    /// Least bytes per second, over ten seconds, that a client must send of a body, or take of an answer; 0: any
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(0..=1 << 30))]
    min_rate: u32,
    /// Memory for bodies that have not arrived in full, in MiB, at least --max-body-bytes; when it is full, the one
    /// that has been arriving longest is closed
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    arriving_mib: u32,
    /// File with the key that seals the KV feed, 64 to 256 hexadecimal digits, as gateways have it
    /// (`engines[].feed.key`) [default: FOREWORD_FEED_KEY; without either, the feed is served on loopback alone]
    #[arg(long, value_name = "FILE")]
    feed_key_file: Option<PathBuf>,
}

impl Arguments {
    /// Returns the address of the internal listener; `None` if there must be none. The default is on loopback, 1,000
    /// ports above `listen`, so several servers on one machine have different ones.
    pub(crate) fn internal(&self, listen: SocketAddr) -> anyhow::Result<Option<SocketAddr>> {
        let port = match (self.internal_listen, listen.port()) {
            (Some(InternalListen(address)), _) => return Ok(address),
            (None, 0) => 0,
            (None, port) => match port.checked_add(PORTS_ABOVE) {
                Some(port) => port,
                None => {
                    bail!("there is no port {PORTS_ABOVE} above {port}: give --internal-listen")
                }
            },
        };
        Ok(Some((Ipv4Addr::LOCALHOST, port).into()))
    }

    /// Returns the limits of clients' connections. Raises the process's limit of open files as needed.
    pub(crate) fn bounds(&self, max_body_bytes: u64) -> Bounds {
        let connections = within_open_files(self.max_connections, FILES);
        if connections < self.max_connections {
            tracing::warn!(
                wanted = self.max_connections,
                connections,
                "fewer connections, since the process may open no more files (ulimit -n)"
            );
        }
        Bounds {
            connections,
            per_address: self.max_connections_per_address,
            head_time: Duration::from_secs(self.header_timeout_s),
            idle_time: Duration::from_secs(self.idle_timeout_s),
            rate: self.min_rate,
            body_bytes: (u64::from(self.arriving_mib) << 20).max(max_body_bytes),
            ..Bounds::default()
        }
    }

    pub(crate) fn body_time(&self) -> Duration {
        Duration::from_secs(self.body_timeout_s)
    }

    /// Returns the key that seals the KV feed, from its file or the environment; `None` if there is neither.
    pub(crate) fn feed_key(&self) -> anyhow::Result<Option<FeedKey>> {
        const EXPECTED: &str = "64 to 256 hexadecimal digits (try `openssl rand -hex 32`)";
        if let Some(file) = &self.feed_key_file {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read the feed's key in {}", file.display()))?;
            return FeedKey::from_hex(text.trim())
                .map(Some)
                .with_context(|| format!("{} is not {EXPECTED}", file.display()));
        }
        match std::env::var(KEY_VARIABLE) {
            Ok(text) if !text.trim().is_empty() => FeedKey::from_hex(text.trim())
                .map(Some)
                .with_context(|| format!("{KEY_VARIABLE} is not {EXPECTED}")),
            Ok(_) | Err(std::env::VarError::NotPresent) => Ok(None),
            Err(error) => bail!("{KEY_VARIABLE}: {error}"),
        }
    }
}

/// Prints a server's addresses on standard output.
pub(crate) fn announce(address: SocketAddr, internal: Option<SocketAddr>) {
    let internal = internal.map(|internal| ("probes, metrics and KV feed", internal));
    foreword_process::announce(&format!("http://{address}"), internal);
}

const PORTS_ABOVE: u16 = 1000;
const KEY_VARIABLE: &str = "FOREWORD_FEED_KEY";
/// Number of files that the process may have open besides clients' connections: internal connections, of probes and of
/// 64 gateways; ZeroMQ's, for events and for those asked again; three files of each of 64 batches; and the model, the
/// index, the log.
const FILES: u32 = INTERNAL_CONNECTIONS + 64 * CONNECTIONS_OF_A_READER + 2 * 256 + 3 * 64 + 128;
