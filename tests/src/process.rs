//! A child process whose output is watched, and which is killed on drop.
//!
//! One of its two output streams is watched line by line, so that readiness is a condition and not a delay. Both are
//! written to files, whose ends are included in every error.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

/// The stream that shows when the process is ready. The other one is written only to a file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Watch {
    Stdout,
    Stderr,
}

#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    /// Files with standard output and standard error.
    files: [PathBuf; 2],
    /// Index of the watched stream in `files`.
    watched: usize,
}

impl Process {
    /// Starts the command, with its output in the files `stdout.log` and `stderr.log` in `folder`.
    pub(crate) fn start(mut command: Command, watch: Watch, folder: &Path) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let paths = [folder.join("stdout.log"), folder.join("stderr.log")];
        let [stdout, stderr] = paths.each_ref().map(File::create);
        let (mut log, watched) = match watch {
            Watch::Stdout => {
                command.stdout(Stdio::piped()).stderr(stderr?);
                (stdout?, 0)
            }
            Watch::Stderr => {
                command.stdout(stdout?).stderr(Stdio::piped());
                (stderr?, 1)
            }
        };
        let mut child = command
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stream: Box<dyn Read + Send> = match (child.stdout.take(), child.stderr.take()) {
            (Some(stream), _) => Box::new(stream),
            (_, Some(stream)) => Box::new(stream),
            _ => return Err(anyhow!("{name} has no piped stream")),
        };
        // Once no caller waits, the channel fills up, and later lines are only written to the file.
        let (sender, lines) = sync_channel(MAX_WAITING_LINES);
        let reader = std::thread::spawn(move || copy_lines(stream, &mut log, &sender));
        Ok(Self {
            name,
            child,
            lines,
            reader: Some(reader),
            files: paths,
            watched,
        })
    }

    /// Waits for a line from which `wanted` returns a value. Fails if the process ends first.
    pub(crate) fn wait_for<T>(&mut self, wanted: impl Fn(&str) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    if let Some(found) = wanted(&line) {
                        return Ok(found);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self.error(&format!("was not ready within {START_LIMIT:?}")));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self
                        .child
                        .wait()
                        .map_or_else(|error| error.to_string(), |s| s.to_string());
                    return Err(self.error(&format!("ended before it was ready ({status})")));
                }
            }
        }
    }

    /// Waits until the process ends by itself.
    pub(crate) fn wait(&mut self) -> Result<()> {
        let status = self.child.wait()?;
        if !status.success() {
            return Err(self.error(&format!("failed ({status})")));
        }
        Ok(())
    }

    /// Returns an error with the ends of both streams.
    pub(crate) fn error(&self, what: &str) -> anyhow::Error {
        let mut message = format!("{} {what}", self.name);
        for path in &self.files {
            let text = read_lossy(path).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
                message.push_str(&format!("\n{name}: {line}"));
            }
        }
        anyhow!(message)
    }

    /// Returns the whole content of the watched stream.
    pub(crate) fn log(&self) -> Result<String> {
        read_lossy(&self.files[self.watched])
    }

    /// Returns the processor time that the process has used so far, in user and kernel mode, in steps of 10 ms.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        // After the name, which is in parentheses, fields 14 and 15 are utime and stime, in ticks: proc(5).
        let (_, fields) = stat.rsplit_once(')').context("no process name")?;
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.map(str::parse::<u64>).sum::<Result<_, _>>()?;
        // USER_HZ is 100 on every Linux that Envoy is built for.
        Ok(Duration::from_millis(ticks * 10))
    }

    /// Returns the resident memory of the process in bytes.
    pub(crate) fn resident_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let kibibytes = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"))
            .context("no VmRSS")?;
        Ok(kibibytes.trim().parse::<u64>()? * 1024)
    }

    /// Sends the process a signal, given by its name: `TERM`, `HUP`.
    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &id]).status()?;
        anyhow::ensure!(status.success(), "kill -s {name} failed ({status})");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn read_lossy(path: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

/// Copies lines until the stream ends or the log cannot be written; an error ends only the copying.
fn copy_lines(stream: impl Read, log: &mut File, lines: &SyncSender<String>) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    while matches!(stream.read_until(b'\n', &mut line), Ok(1..)) {
        if log.write_all(&line).is_err() {
            return;
        }
        let _ = lines.try_send(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
    }
}

/// Most lines not read yet, far more than any program prints before it is ready (Envoy: about 120).
const MAX_WAITING_LINES: usize = 10_000;
const TAIL_LINES: usize = 15;
/// Time limit for a start, generous for a loaded machine.
const START_LIMIT: Duration = Duration::from_secs(120);
