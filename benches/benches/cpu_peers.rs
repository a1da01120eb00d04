//! The CPU backend beside other engines, on the same weights: random ones of 0.36B parameters in the shape of Qwen2, or
//! those of a GGUF file, quantised.
//!
//! ```text
//! python3 -m venv /tmp/peers && /tmp/peers/bin/pip install -r benches/peers/requirements-cpu.txt
//! FOREWORD_PEERS_PYTHON=/tmp/peers/bin/python cargo bench -p foreword-benches -- cpu_peers
//!     [--rounds N] [--threads 1,2] [--weights bf16,f32,FILE.gguf]
//! ```
//!
//! For every kind of weights and thread count, each engine loads the model (the CPU backend twice where it multiplies bf16
//! by bf16, and for a GGUF file: packed, and unpacked). The logits of one prompt are compared, and then the engines alternate: a prompt of 512 tokens, then 16
//! tokens one by one. Peers are processes driven over pipes (`peers/cpu_engines.py`) and take their own times. An
//! engine that is not installed is omitted, and the table says so.
//!
//! *Memory* is what the process's resident memory grew by from before the model was loaded to after the first prompt: the
//! weights, the KV state of 528 tokens (llama.cpp: 1,024), mapped files, and what the engine needs besides. Only the first
//! model of a process has it: later ones reuse memory that the allocator has kept. Paths are from the folder `benches`.
//!
//! The table shows medians of elapsed times, and of the processor time of all threads. A loaded machine disturbs the
//! latter less, but it counts busy waiting as work. A ratio above 1 says that the CPU backend is faster.

use foreword_benches::Arguments;
use foreword_engine::backend::cpu::{CpuBackend, CpuConfig, Precision};
use foreword_engine::backend::{Backend, Output, PageId, Segment, Step};
use foreword_engine::models::{Checkpoint, Element, ModelConfig};
use serde::Deserialize;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const VOCABULARY: u32 = 4_096;
const PROMPT: u32 = 512;
const DECODED: u32 = 16;
const PAGE_TOKENS: u32 = 16;
/// False once this process has loaded a model.
static FIRST: AtomicBool = AtomicBool::new(true);
/// Seed of [`Checkpoint::random`], the same as in `peers/cpu_engines.py`.
const SEED: u64 = 1;

/// Returns the shape of the random weights; its vocabulary serves quantised models too, as the range of tokens.
fn shape() -> serde_json::Value {
    json!({
        "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": VOCABULARY,
        "max_position_embeddings": 1024, "tie_word_embeddings": true, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
    })
}

pub(crate) fn bench(arguments: &Arguments) {
    let rounds: usize = arguments.number("--rounds").unwrap_or(7);
    let threads = arguments.value("--threads").unwrap_or("1,2");
    let weights = arguments.value("--weights").unwrap_or("bf16,f32");
    println!("prompt of {PROMPT}, {DECODED} decoded; medians of {rounds} interleaved rounds");
    println!(
        "bf16, f32: random weights of 0.36B parameters (Qwen2: 24 layers, hidden 896, intermediate 4,864)\n"
    );
    println!(
        "| weights | threads | engine | prompt, tok/s | decode, tok/s | ours / it, prompt | decode | \
         by processor time, prompt | decode | memory, MiB |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut notes = Vec::new();
    for weights in weights.split(',') {
        for threads in threads.split(',') {
            let threads = threads.parse().expect("--threads takes counts");
            compare(weights, threads, rounds, &mut notes);
        }
    }
    println!();
    notes.dedup();
    for note in notes {
        println!("{note}");
    }
}

/// Runs all engines on one kind of weights with one thread count, and prints their rows.
fn compare(weights: &str, threads: u32, rounds: usize, notes: &mut Vec<String>) {
    let weights = Weights::by_name(weights);
    let mut engines = vec![Measured::of(Ours::load(
        &weights,
        threads,
        if weights.is_file() {
            Precision::Packed
        } else {
            Precision::Auto
        },
    ))];
    if weights.is_file() || engines[0].name().contains("bf16 by bf16") {
        engines.push(Measured::of(Ours::load(&weights, threads, Precision::F32)));
    }
    let peers = ["llama.cpp", "torch"];
    for engine in &peers[..if weights.is_file() { 1 } else { 2 }] {
        match Peer::start(engine, &weights, threads) {
            Ok(peer) => engines.push(Measured::of(peer)),
            Err(reason) => notes.push(format!("Left out: {engine}, {reason}.")),
        }
    }

    // All engines must give the same answer before any is timed.
    let answers: Vec<Vec<f32>> = engines.iter_mut().map(Measured::warm_up).collect();
    for (engine, answer) in engines.iter().zip(&answers).skip(1) {
        let error = error(&answers[0], answer);
        notes.push(format!(
            "Logits, {weights}: {} differs from {} by {:.1e} of a standard deviation (root mean square).",
            engine.name(),
            engines[0].name(),
            error
        ));
        // Quantised weights are multiplied by activations of 8 bits.
        let bound = if weights.is_file() { 0.15 } else { 0.05 };
        assert!(error < bound, "engines disagree: {error} of a deviation");
    }
    for round in 0..rounds {
        engines.iter_mut().for_each(Measured::time);
        eprint!(
            "\r{weights}, {threads} threads: round {} of {rounds} ",
            round + 1
        );
    }
    eprintln!();

    let ours = engines[0].medians();
    for engine in &mut engines {
        let it = engine.medians();
        print!(
            "| {weights} | {threads} | {} | {:.0} | {:.1} |",
            engine.name(),
            f64::from(PROMPT) / it[0],
            f64::from(DECODED) / it[1]
        );
        for (ours, it) in ours.iter().zip(&it) {
            print!(" {:.2} |", it / ours);
        }
        match engine.runner.memory() {
            Some(memory) => println!(" {memory:.0} |"),
            None => println!(" |"),
        }
    }
}

/// Returns the root mean square difference, in standard deviations of `a`.
fn error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let count = a.len() as f64;
    let mean = a.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    let variance = a
        .iter()
        .map(|x| (f64::from(*x) - mean).powi(2))
        .sum::<f64>()
        / count;
    let square = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
    (square.sum::<f64>() / count / variance).sqrt()
}

/// The weights that all engines get.
enum Weights {
    Random(Element),
    /// Path of a GGUF file.
    File(String),
}

impl Weights {
    fn by_name(name: &str) -> Self {
        match name {
            "bf16" => Self::Random(Element::Bf16),
            "f32" => Self::Random(Element::F32),
            file if file.ends_with(".gguf") => Self::File(file.to_owned()),
            other => panic!("--weights takes bf16, f32 and names of GGUF files, not {other}"),
        }
    }

    fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }
}

impl std::fmt::Display for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Random(Element::Bf16) => "bf16",
            Self::Random(_) => "f32",
            Self::File(path) => path.rsplit('/').next().unwrap_or_default(),
        })
    }
}

/// Elapsed seconds and seconds of processor time.
type Times = [f64; 2];

trait Runner {
    fn name(&self) -> &str;
    /// Computes `tokens` after the first `start` of the sequence, and the last token's logits.
    fn run(&mut self, tokens: &[u32], start: u32) -> Times;
    fn logits(&mut self) -> Vec<f32>;
    /// Returns the MiB of resident memory that the model has added since before it was loaded; `None` if the process had
    /// loaded others before.
    fn memory(&mut self) -> Option<f64>;
}

struct Measured {
    runner: Box<dyn Runner>,
    prompt: Vec<Times>,
    decode: Vec<Times>,
}

impl Measured {
    fn of(runner: impl Runner + 'static) -> Self {
        Self {
            runner: Box::new(runner),
            prompt: Vec::new(),
            decode: Vec::new(),
        }
    }

    fn name(&self) -> &str {
        self.runner.name()
    }

    fn prompt() -> Vec<u32> {
        (0..PROMPT).map(|i| i * 7919 % VOCABULARY).collect()
    }

    fn warm_up(&mut self) -> Vec<f32> {
        self.runner.run(&Self::prompt(), 0);
        self.runner.run(&[1], PROMPT);
        self.runner.run(&Self::prompt(), 0);
        self.runner.logits()
    }

    fn time(&mut self) {
        self.prompt.push(self.runner.run(&Self::prompt(), 0));
        let mut decode = [0.0; 2];
        for token in 0..DECODED {
            let times = self.runner.run(&[token], PROMPT + token);
            decode = [decode[0] + times[0], decode[1] + times[1]];
        }
        self.decode.push(decode);
    }

    /// Returns medians of elapsed time for prompt and decode, then of processor time for both.
    fn medians(&self) -> [f64; 4] {
        let median = |times: &[Times], kind: usize| {
            let mut times: Vec<f64> = times.iter().map(|times| times[kind]).collect();
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        [
            median(&self.prompt, 0),
            median(&self.decode, 0),
            median(&self.prompt, 1),
            median(&self.decode, 1),
        ]
    }
}

struct Ours {
    name: String,
    backend: CpuBackend,
    memory: Option<f64>,
    step: Step,
    logits: Vec<f32>,
}

impl Ours {
    fn load(weights: &Weights, threads: u32, precision: Precision) -> Self {
        let before = resident();
        let sizes = CpuConfig {
            host_pages: 0,
            pages: (PROMPT + DECODED).div_ceil(PAGE_TOKENS),
            page_tokens: PAGE_TOKENS,
            threads: Some(threads),
            precision,
        };
        let backend = match weights {
            Weights::Random(element) => {
                let config = ModelConfig::parse(&shape().to_string());
                let config = config.expect("the shape is supported");
                CpuBackend::new(&Checkpoint::random(config, *element, SEED), &sizes)
            }
            Weights::File(path) => CpuBackend::load(Path::new(path), &sizes),
        };
        let backend = backend.expect("the backend is built");
        let mut ours = Self {
            name: format!(
                "foreword, {}{}",
                backend.instruction_set(),
                if weights.is_file() && precision == Precision::F32 {
                    ", unpacked"
                } else {
                    ""
                }
            ),
            backend,
            memory: None,
            step: Step {
                loads: Vec::new(),
                segments: vec![Segment {
                    tokens: Vec::new(),
                    start: 0,
                    pages: (0..sizes.pages).map(PageId).collect(),
                    output: Output::Last,
                }],
            },
            logits: Vec::new(),
        };
        ours.run(&Measured::prompt(), 0);
        ours.memory = FIRST
            .swap(false, Ordering::Relaxed)
            .then(|| resident() - before);
        ours
    }
}

impl Runner for Ours {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&mut self, tokens: &[u32], start: u32) -> Times {
        let segment = &mut self.step.segments[0];
        segment.tokens.clear();
        segment.tokens.extend_from_slice(tokens);
        segment.start = start;
        let (begin, used) = (Instant::now(), processor_seconds());
        self.backend
            .run(&self.step, &mut self.logits)
            .expect("the step is well-formed");
        [begin.elapsed().as_secs_f64(), processor_seconds() - used]
    }

    fn logits(&mut self) -> Vec<f32> {
        self.logits.clone()
    }

    fn memory(&mut self) -> Option<f64> {
        self.memory
    }
}

/// Returns this process's resident memory in MiB; 0 where there is no `/proc`.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kibibytes.unwrap_or_default() / 1024.0
}

/// Returns this process's processor time so far, from the scheduler's nanoseconds for each thread; 0 where there is no
/// `/proc`.
fn processor_seconds() -> f64 {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return 0.0;
    };
    let nanoseconds = threads.flatten().filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    nanoseconds.sum::<f64>() / 1e9
}

/// Another engine, in a process of its own.
struct Peer {
    name: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

#[derive(Deserialize)]
struct Ready {
    name: String,
}

#[derive(Deserialize)]
struct Timed {
    seconds: f64,
    cpu_seconds: f64,
}

#[derive(Deserialize)]
struct Logits {
    logits: Vec<f32>,
}

#[derive(Deserialize)]
struct Memory {
    memory: f64,
}

impl Peer {
    /// Exit code of the script when the engine is not installed.
    const ABSENT: i32 = 3;

    fn start(engine: &str, weights: &Weights, threads: u32) -> Result<Self, String> {
        let python =
            std::env::var("FOREWORD_PEERS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/cpu_engines.py");
        let folder = std::env::temp_dir().join("foreword-cpu-peers");
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let mut child = Command::new(&python)
            .arg(script)
            .args([engine, &weights.to_string(), &threads.to_string()])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{python} does not start: {error}"))?;
        let mut peer = Self {
            name: String::new(),
            input: child.stdin.take().expect("a pipe"),
            output: BufReader::new(child.stdout.take().expect("a pipe")),
            child,
        };
        let model = match weights {
            Weights::Random(_) => shape(),
            Weights::File(path) => json!({"file": path}),
        };
        match peer.ask::<Ready>(&model) {
            Some(ready) => peer.name = ready.name,
            None => match peer.child.wait().map_err(|error| error.to_string())?.code() {
                Some(Self::ABSENT) => return Err("it is not installed".into()),
                code => panic!("{engine} fails with exit code {code:?}"),
            },
        }
        Ok(peer)
    }

    /// Sends a question and returns the answer, or `None` when the process has ended.
    fn ask<T: for<'a> Deserialize<'a>>(&mut self, question: &serde_json::Value) -> Option<T> {
        writeln!(self.input, "{question}").ok()?;
        self.input.flush().ok()?;
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(serde_json::from_str(&line).expect("the script's answer")),
        }
    }
}

impl Runner for Peer {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&mut self, tokens: &[u32], start: u32) -> Times {
        let timed: Timed = self
            .ask(&json!({"tokens": tokens, "start": start}))
            .expect("the peer lives");
        [timed.seconds, timed.cpu_seconds]
    }

    fn logits(&mut self) -> Vec<f32> {
        let answer: Logits = self.ask(&json!({"logits": true})).expect("the peer lives");
        answer.logits
    }

    fn memory(&mut self) -> Option<f64> {
        let answer: Memory = self.ask(&json!({"memory": true})).expect("the peer lives");
        Some(answer.memory)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
