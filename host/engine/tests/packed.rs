//! Compares products with packed weights (`Precision::Packed`) with those with weights unpacked to bf16
//! (`Precision::F32`) on a real model: logits, log-probability of English text, speed and memory.
//!
//! ```text
//! FOREWORD_GGUF=FILE cargo test --release -p foreword-engine --test packed -- --ignored --nocapture
//! ```

#[path = "support/machine.rs"]
mod machine;

use foreword_engine::backend::cpu::{CpuBackend, Precision};
use foreword_engine::backend::{Backend, Output, PageId};
use foreword_engine::text::Tokenizer;
use machine::{PAGE_TOKENS, best, load, run};
use std::path::Path;
use std::time::Instant;

const TOKENS: usize = 2000;
const CHUNK: usize = 500;
const DECODED: usize = 32;
const ROUNDS: usize = 7;
const NAMES: [&str; 2] = ["unpacked", "packed"];

/// Returns the process's anonymous memory in MiB.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon"));
    let number = line
        .and_then(|line| line.split_whitespace().nth(1))
        .unwrap();
    number.parse::<f64>().unwrap() / 1024.0
}

/// Returns the process's processor time in seconds.
fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_whitespace();
    let ticks = fields
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<f64>().unwrap());
    ticks.sum::<f64>() / 100.0
}

/// Returns the log-probability of `token`.
fn log_probability(row: &[f32], token: u32) -> f64 {
    let most = row.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
    f64::from(row[token as usize] - most) - sum.ln()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the text of the handbook's documents.
fn text() -> String {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/handbook/documents.jsonl");
    let lines = std::fs::read_to_string(path).unwrap();
    let documents = lines.lines().map(|line| {
        let document: serde_json::Value = serde_json::from_str(line).unwrap();
        format!("{}\n\n", document["text"].as_str().unwrap())
    });
    documents.collect()
}

fn pages(tokens: usize) -> Vec<PageId> {
    (0..tokens.div_ceil(PAGE_TOKENS as usize) as u32)
        .map(PageId)
        .collect()
}

/// Returns tokens a second of a prompt of [`CHUNK`] tokens and of decoding behind it, and the same of processor time.
fn speed(backend: &mut CpuBackend, tokens: &[u32]) -> [f64; 4] {
    let pages = pages(CHUNK + DECODED);
    let (start, used) = (Instant::now(), processor_time());
    let mut row = run(backend, &tokens[..CHUNK], 0, &pages, Output::Last);
    let prompt = [start.elapsed().as_secs_f64(), processor_time() - used];
    let (start, used) = (Instant::now(), processor_time());
    for at in CHUNK..CHUNK + DECODED {
        row = run(backend, &[best(&row)], at, &pages, Output::Last);
    }
    let decode = [start.elapsed().as_secs_f64(), processor_time() - used];
    let rate = |tokens: usize, seconds: f64| tokens as f64 / seconds;
    [
        rate(CHUNK, prompt[0]),
        rate(DECODED, decode[0]),
        rate(CHUNK, prompt[1]),
        rate(DECODED, decode[1]),
    ]
}

#[test]
#[ignore = "prints a table; needs a GGUF file in FOREWORD_GGUF"]
fn packed_beside_unpacked() {
    let file = std::env::var("FOREWORD_GGUF").expect("FOREWORD_GGUF names a GGUF file");
    let file = Path::new(&file);
    let tokens = Tokenizer::load(file)
        .unwrap()
        .encode(&text(), true)
        .unwrap();
    let mut backends = [Precision::F32, Precision::Packed].map(|precision| {
        let before = resident();
        let mut backend = load(file, 2, precision).unwrap();
        run(&mut backend, &tokens[..16], 0, &pages(16), Output::Last);
        let pool = backend.shape().page_bytes * backend.shape().pages as usize;
        let pool = pool as f64 / f64::from(1 << 20);
        println!(
            "{:.0} MiB beside a KV pool of {pool:.0}",
            resident() - before - pool
        );
        backend
    });

    let (mut worst, mut squares, mut same) = (0.0_f32, [0.0; 2], 0);
    let mut sums = [0.0; 2];
    let width = backends[0].shape().vocabulary as usize;
    for start in (0..TOKENS).step_by(CHUNK) {
        let chunk = &tokens[start..start + CHUNK];
        let rows = backends
            .each_mut()
            .map(|backend| run(backend, chunk, start, &pages(TOKENS), Output::All));
        let [one, other] = rows.each_ref().map(|rows| rows.chunks_exact(width));
        for (at, (one, other)) in one.zip(other).enumerate() {
            let next = tokens[start + at + 1];
            sums[0] += log_probability(one, next);
            sums[1] += log_probability(other, next);
            same += usize::from(best(one) == best(other));
            let mean = one.iter().sum::<f32>() / width as f32;
            for (one, other) in one.iter().zip(other) {
                worst = worst.max((one - other).abs());
                squares[0] += f64::from(one - other).powi(2);
                squares[1] += f64::from(one - mean).powi(2);
            }
        }
    }
    let count = TOKENS as f64;
    println!("largest difference of a logit: {worst}");
    println!(
        "root mean square, of a deviation: {}",
        (squares[0] / squares[1]).sqrt()
    );
    println!("same first token: {}", same as f64 / count);
    println!("nats a token: {} {}", -sums[0] / count, -sums[1] / count);

    let mut speeds = [(); 8].map(|()| Vec::new());
    for _ in 0..ROUNDS {
        for (number, backend) in backends.iter_mut().enumerate() {
            for (kind, speed) in speed(backend, &tokens).into_iter().enumerate() {
                speeds[number * 4 + kind].push(speed);
            }
        }
    }
    let medians = speeds.map(median);
    for (name, [prompt, decode, prompt_used, decode_used]) in
        NAMES.iter().zip(medians.as_chunks().0)
    {
        println!(
            "{name}: {prompt:.0} tokens/s of a prompt, {decode:.1} decoding; by processor time {prompt_used:.0}, \
             {decode_used:.1}"
        );
    }
}
