//! `foreword batch` over a million lines: memory at most, a kill in the middle, and whether a line is asked twice.
//!
//! ```text
//! cargo bench --profile dev --workspace --bench benches -- batch_lines [LINES] [input]
//! ```
//!
//! ```text
//!   batch.jsonl ──▶ foreword batch ──▶ an endpoint that answers at once, and counts each line
//!                     │  killed (SIGKILL) after a third of the answers, and started again
//!                     ▼
//!                   out.jsonl: each line once; of those that stood in it at the kill none was asked again
//! ```
//!
//! `input` asks in the file's order instead of the plan's. `FOREWORD_HOST` names another binary than the one of the dev
//! profile. Memory is the process's highest resident set (`VmHWM`), looked at ten times a second.

use anyhow::{Context, Result, bail, ensure};
use foreword_benches::Arguments;
use foreword_ordering::random::Random;
use foreword_tests::artifacts;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Documents of a line, of [`TOPICS`] topics with [`OF_TOPIC`] documents each.
const DOCUMENTS: usize = 10;
const TOPICS: u64 = 5_000;
const OF_TOPIC: u64 = 40;
const WORKERS: usize = 8;

pub(crate) fn bench(arguments: &Arguments) -> Result<()> {
    let mut order = "plan";
    let mut lines = 1_000_000;
    for word in &arguments.words {
        match word.as_str() {
            "input" => order = "input",
            number => lines = number.parse().context("the number of lines")?,
        }
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("batch.jsonl");
    write(&file, lines)?;
    let bytes = file.metadata()?.len();
    println!("{lines} lines of {DOCUMENTS} documents, {} MB", bytes >> 20);

    let endpoint = Endpoint::start(lines)?;
    let first = run(folder.path(), endpoint.address, order, |_| {
        endpoint.asked() >= lines as u64 / 3
    })?;
    ensure!(first.is_killed, "the run ended before it was killed");
    println!(
        "killed after {:.0} s, {} lines asked: at most {} MB resident",
        first.seconds,
        endpoint.asked(),
        first.memory >> 20
    );
    let kept = answered(&folder.path().join("out.jsonl"), lines)?;
    let before = endpoint.asked();
    let again = run(folder.path(), endpoint.address, order, |_| false)?;
    ensure!(again.is_success, "the resumed run failed");
    let asked = endpoint.asked() - before;
    println!(
        "resumed: {} lines were answered, {asked} asked in {:.0} s ({:.0} a second): at most {} MB resident",
        kept.iter().filter(|is_kept| **is_kept).count(),
        again.seconds,
        asked as f64 / again.seconds,
        again.memory >> 20
    );
    let whole = answered(&folder.path().join("out.jsonl"), lines)?;
    ensure!(
        whole.iter().all(|is_answered| *is_answered),
        "a line has no answer"
    );
    let mut twice = 0;
    for (line, count) in endpoint.counts.iter().enumerate() {
        let count = count.load(Ordering::Relaxed);
        ensure!(count > 0, "line {line} was not asked");
        ensure!(count == 1 || !kept[line], "line {line} was asked again");
        twice += u32::from(count > 1);
    }
    ensure!(
        twice as usize <= WORKERS,
        "{twice} lines were asked twice, more than were in flight"
    );
    println!(
        "each line has one answer; no answered line was asked again; {twice} in flight at the kill were"
    );
    Ok(())
}

/// Writes a batch: each line about a topic, of which few are frequent.
fn write(path: &Path, lines: usize) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut random = Random::new(1);
    let words = "Words of a paragraph that a retriever found, long enough to be worth its place. ";
    for line in 0..lines {
        let popularity = random.unit().powi(3);
        let topic = (popularity * TOPICS as f64) as u64;
        let mut numbers: Vec<u64> = (0..OF_TOPIC).collect();
        random.shuffle(&mut numbers);
        write!(
            file,
            r#"{{"custom_id":"{line}","method":"POST","url":"/v1/chat/completions","body":{{"model":"m","user":"line {line}.","messages":[{{"role":"user","content":"What of {line}?"}}],"documents":["#
        )?;
        for (at, number) in numbers.iter().take(DOCUMENTS).enumerate() {
            let document = topic * OF_TOPIC + number;
            let comma = if at > 0 { "," } else { "" };
            write!(
                file,
                r#"{comma}{{"id":"d{document}","text":"{document}. {words}"}}"#
            )?;
        }
        file.write_all(b"]}}\n")?;
    }
    file.flush()?;
    Ok(())
}

/// An endpoint that answers at once.
struct Endpoint {
    address: SocketAddr,
    /// How often each line was asked.
    counts: Arc<[AtomicU8]>,
    asked: Arc<AtomicU64>,
}

impl Endpoint {
    fn start(lines: usize) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let endpoint = Self {
            address: listener.local_addr()?,
            counts: (0..lines).map(|_| AtomicU8::new(0)).collect(),
            asked: Arc::default(),
        };
        let (counts, asked) = (Arc::clone(&endpoint.counts), Arc::clone(&endpoint.asked));
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (counts, asked) = (Arc::clone(&counts), Arc::clone(&asked));
                // A connection that ends, by the kill say, ends its thread.
                std::thread::spawn(move || serve(connection, &counts, &asked));
            }
        });
        Ok(endpoint)
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

fn serve(connection: TcpStream, counts: &[AtomicU8], asked: &AtomicU64) -> Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut writer = connection;
    let body = r#"{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"So."},"finish_reason":"stop"}],"usage":{"prompt_tokens":300,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":100}}}"#;
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut line = String::new();
    let mut request = Vec::new();
    loop {
        let mut length = 0;
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let Some((name, value)) = line.trim_end().split_once(':') else {
                if line.trim_end().is_empty() {
                    break;
                }
                continue;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse()?;
            }
        }
        request.resize(length, 0);
        reader.read_exact(&mut request)?;
        let text = std::str::from_utf8(&request)?;
        let (_, rest) = text.split_once(r#""user":"line "#).context("a line")?;
        let (number, _) = rest.split_once('.').context("a line's number")?;
        let number: usize = number.parse()?;
        counts
            .get(number)
            .context("a line of the batch")?
            .fetch_add(1, Ordering::Relaxed);
        asked.fetch_add(1, Ordering::Relaxed);
        writer.write_all(answer.as_bytes())?;
    }
}

/// What a run of `foreword batch` came to.
struct Run {
    seconds: f64,
    /// Bytes resident at most.
    memory: u64,
    is_killed: bool,
    is_success: bool,
}

/// Runs `foreword batch` until it ends, or until it is to be killed.
fn run(
    folder: &Path,
    endpoint: SocketAddr,
    order: &str,
    ends: impl Fn(&Child) -> bool,
) -> Result<Run> {
    let started = Instant::now();
    let mut child = Command::new(artifacts::host_binary("dev")?)
        .args(["batch", "batch.jsonl", "--out", "out.jsonl", "--json"])
        .args(["--endpoint", &format!("http://{endpoint}")])
        .args(["--order", order, "--concurrency", &WORKERS.to_string()])
        .current_dir(folder)
        .stdout(Stdio::inherit())
        .spawn()?;
    let mut run = Run {
        seconds: 0.0,
        memory: 0,
        is_killed: false,
        is_success: false,
    };
    loop {
        if let Ok(highest) = highest(&child) {
            run.memory = highest;
        }
        if let Some(status) = child.try_wait()? {
            run.is_success = status.success() && !run.is_killed;
            run.seconds = started.elapsed().as_secs_f64();
            return Ok(run);
        }
        if !run.is_killed && ends(&child) {
            run.is_killed = true;
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns the bytes that a process had resident at most.
fn highest(child: &Child) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: u64 = kib.context("no VmHWM")?.trim().parse()?;
    Ok(kib << 10)
}

/// Returns which lines have a whole answer in the output.
fn answered(out: &Path, lines: usize) -> Result<Vec<bool>> {
    let mut answered = vec![false; lines];
    for line in BufReader::new(File::open(out)?).split(b'\n') {
        let line = line?;
        let text = std::str::from_utf8(&line)?;
        let Some((_, rest)) = text.split_once(r#""custom_id":""#) else {
            continue;
        };
        let Some((number, _)) = rest.split_once('"').filter(|_| text.ends_with('}')) else {
            continue;
        };
        let place = answered
            .get_mut(number.parse::<usize>()?)
            .context("an answer to no line")?;
        if std::mem::replace(place, true) {
            bail!("line {number} is answered twice");
        }
    }
    Ok(answered)
}
