//! The parts of a process that the servers `foreword` and `foreword-gateway` share: log, stop signals, announced
//! addresses, limits on connections, and metrics.

pub mod connections;
pub mod metrics;

use std::io::Write;
use std::net::SocketAddr;
use std::panic;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{CommandFactory, ValueEnum};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Format of the log on standard error.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// Plain text, a line for each event.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts the log, runs `mode` until it ends, and returns its exit code. An error of `mode` is printed, with the exit
/// code 1; an invalid `FOREWORD_LOG` is reported as a usage error of the command `C`.
pub fn run<C: CommandFactory>(
    log: LogFormat,
    mode: impl Future<Output = anyhow::Result<ExitCode>>,
) -> ExitCode {
    if let Err(error) = start_log(log) {
        C::command()
            .error(ErrorKind::ValueValidation, format!("FOREWORD_LOG: {error}"))
            .exit();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start threads");
    let ended = runtime.and_then(|runtime| {
        let ended = runtime.block_on(mode);
        // The runtime does not wait for blocking work, such as a model that is being loaded.
        runtime.shutdown_background();
        ended
    });
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// Starts the log on standard error, at the level in `FOREWORD_LOG` (default `info`). Of a panic only the source
/// location is logged, because its message may quote a request.
///
/// # Errors
/// Returns an error when `FOREWORD_LOG` is not a valid log filter.
pub fn start_log(format: LogFormat) -> anyhow::Result<()> {
    let wanted = std::env::var("FOREWORD_LOG").unwrap_or_else(|_| "info".to_owned());
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(wanted)?)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().init(),
    }
    panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        tracing::error!("foreword panicked at {}", place.unwrap_or_default());
    }));
    Ok(())
}

/// Prints `listening on PLACE` to standard output, and on a second line the internal listener's routes and address.
/// Both lines are written at once, for a parent process that waits for them. A closed standard output is only logged.
pub fn announce(place: &str, internal: Option<(&str, SocketAddr)>) {
    let mut lines = format!("listening on {place}\n");
    if let Some((serves, address)) = internal {
        lines.push_str(&format!("{serves} on http://{address}\n"));
    }
    let mut out = std::io::stdout();
    let written = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
    if let Err(error) = written {
        tracing::warn!(%error, "nobody reads standard output");
    }
}

/// Binds a listener at `address`, and returns it with its real address. `whom` describes its clients in errors.
///
/// # Errors
/// Returns an error that names `address` and `whom` if binding fails.
pub async fn listen(address: SocketAddr, whom: &str) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} for {whom}"))?;
    let address = listener.local_addr().context("cannot tell the port")?;
    Ok((listener, address))
}

/// Parses an address to listen on.
///
/// # Errors
/// Returns a description of the expected form.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let words =
        "it must be an IP address with a port: 127.0.0.1:8000, or 0.0.0.0:8000 for every interface";
    text.parse().map_err(|_| words.to_owned())
}

/// Parses a share from 0 to 1.
///
/// # Errors
/// Returns a description of the expected form.
pub fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok();
    let share = share.filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "it must be a number from 0 to 1".to_owned())
}

/// The argument `--internal-listen`: an address, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InternalListen(pub Option<SocketAddr>);

impl FromStr for InternalListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let address = address(text).map_err(|words| format!("{words}; or none"))?;
        Ok(Self(Some(address)))
    }
}

/// The signals that stop a server.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Starts to listen for the signals.
    ///
    /// # Errors
    /// Returns an error if the system refuses to deliver a signal.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal and returns its number.
    pub async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.terminate.recv() => 15,
            _ = self.interrupt.recv() => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_internal_listener_has_an_address_or_is_switched_off() {
        let address = "[::1]:9003".parse().unwrap();
        assert_eq!("[::1]:9003".parse(), Ok(InternalListen(Some(address))));
        assert_eq!("none".parse(), Ok(InternalListen(None)));
        for text in ["", "None", "9003", "localhost:9003", "127.0.0.1"] {
            let words = text.parse::<InternalListen>().unwrap_err();
            assert!(words.ends_with("; or none"), "{text}: {words}");
        }
    }
}
