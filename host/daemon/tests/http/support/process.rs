//! Runs the binary in its own process.

use super::until;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

/// A listening mode of the binary; killed on drop.
pub(crate) struct Process {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// Reads the log, so that the process does not block on a full pipe.
    log: Option<JoinHandle<String>>,
    pub(crate) address: SocketAddr,
    /// Address of its probes, metrics and KV feed.
    pub(crate) internal: SocketAddr,
}

/// A small real model.
pub(crate) const CHECKPOINT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../engine/fixtures/qwen2");

impl Process {
    /// Starts `foreword serve` with [`CHECKPOINT`].
    pub(crate) fn serve(arguments: &[&str]) -> Self {
        Self::start("serve", Path::new(CHECKPOINT), arguments)
    }

    /// Starts `foreword serve` with [`CHECKPOINT`], for a user whose cache folder is `cache`.
    pub(crate) fn serve_with_cache(cache: &Path, arguments: &[&str]) -> Self {
        let mut binary = Command::new(env!("CARGO_BIN_EXE_foreword"));
        binary.env("XDG_CACHE_HOME", cache);
        Self::run(binary, "serve", Path::new(CHECKPOINT), arguments)
    }

    /// Starts a mode of the binary. Returns when its standard output says that it listens.
    pub(crate) fn start(mode: &str, model: &Path, arguments: &[&str]) -> Self {
        let mut binary = Command::new(env!("CARGO_BIN_EXE_foreword"));
        binary.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
        Self::run(binary, mode, model, arguments)
    }

    /// Starts `foreword serve` with [`CHECKPOINT`] and at most `files` open files.
    pub(crate) fn serve_with_files(files: u32, arguments: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        let limited = format!("ulimit -n {files}; exec \"$0\" \"$@\"");
        shell.args(["-c", &limited, env!("CARGO_BIN_EXE_foreword")]);
        Self::run(shell, "serve", Path::new(CHECKPOINT), arguments)
    }

    fn run(mut command: Command, mode: &str, model: &Path, arguments: &[&str]) -> Self {
        let mut child = command
            .args([mode, "--listen", "127.0.0.1:0", "--log-format", "json"])
            .arg("--model")
            .arg(model)
            .args(arguments)
            .env("FOREWORD_LOG", "trace")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut stderr = child.stderr.take().expect("its log");
        let log = std::thread::spawn(move || {
            let mut log = String::new();
            stderr.read_to_string(&mut log).expect("text");
            log
        });
        let mut stdout = BufReader::new(child.stdout.take().expect("its output"));
        let [address, internal] = [
            "listening on http://",
            "probes, metrics and KV feed on http://",
        ]
        .map(|words| {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            let address = line.trim_end().strip_prefix(words);
            let address = address.and_then(|address| address.parse().ok());
            address.unwrap_or_else(|| panic!("an address, got {line:?}"))
        });
        Self {
            child,
            stdout,
            log: Some(log),
            address,
            internal,
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &id]).status();
        assert!(status.unwrap().success());
    }

    pub(crate) async fn exit(&mut self) -> ExitStatus {
        let mut status = None;
        until("it exits", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }

    /// Returns its output after the first two lines, and its log. Call it once, after the process has ended.
    pub(crate) fn output(&mut self) -> (String, String) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        let log = self.log.take().expect("asked for once");
        (rest, log.join().expect("the log is read"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has usually ended; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
