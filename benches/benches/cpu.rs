//! The CPU backend's rates beside the fastest f32 matrix product of a well-kept crate (`gemm`), on one shape.
//!
//! ```text
//! cargo bench -p foreword-benches -- cpu [--rounds N]
//! ```
//!
//! The cases alternate in every round, so that a noisy machine disturbs all alike; the table shows medians. `gemm`
//! computes the matrix products of all layers and nothing else. The CPU backend computes the whole prompt: products,
//! attention, norms, rotation, gate and one row of logits, but in the last layer only what that row needs. So two
//! ratios are shown:
//!
//! - *time / gemm*: the whole prompt against the products alone, in elapsed time;
//! - *per FLOP*: the same, with each side's time divided by the multiply-adds that it really computes; it must be at
//!   most 2.
//!
//! Weights of bf16 are measured twice: as the backend multiplies them by default, which may be in bf16, and widened to
//! f32, which is comparable with `gemm`'s figures. The comparison with other engines is in `cpu_peers`.

use foreword_benches::Arguments;
use foreword_engine::backend::cpu::{CpuBackend, CpuConfig, Precision};
use foreword_engine::backend::{Backend, Output, PageId, Segment, Step};
use foreword_engine::models::{Checkpoint, Element, ModelConfig};
use std::time::Instant;

const HIDDEN: usize = 768;
const LAYERS: usize = 12;
const INTERMEDIATE: usize = 2048;
const HEADS: usize = 12;
const KV_HEADS: usize = 4;
const HEAD_DIM: usize = HIDDEN / HEADS;
const VOCABULARY: usize = 32_000;
const PROMPT: usize = 512;
const PAGE_TOKENS: u32 = 16;
const DECODE_STEPS: usize = 16;
/// Sequences that decode together in the batched case.
const BATCH: usize = 8;

/// Matrices of a layer, `(inputs, outputs)`, as both sides multiply them.
const PRODUCTS: [(usize, usize); 4] = [
    (HIDDEN, HIDDEN + 2 * KV_HEADS * HEAD_DIM),
    (HIDDEN, HIDDEN),
    (HIDDEN, 2 * INTERMEDIATE),
    (INTERMEDIATE, HIDDEN),
];

pub(crate) fn bench(arguments: &Arguments) {
    let rounds: usize = arguments.number("--rounds").unwrap_or(9);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threads = vec![1, cores.min(2)];
    threads.dedup();

    let mut cases: Vec<Case> = Vec::new();
    let mut names = Vec::new();
    for &threads in &threads {
        for (element, precision, name) in [
            (Element::Bf16, Precision::Auto, "bf16"),
            (Element::Bf16, Precision::F32, "bf16 widened"),
            (Element::F32, Precision::F32, "f32"),
        ] {
            let ours = Ours::new(element, precision, threads);
            names.push(ours.backend.instruction_set());
            cases.push(Case::ours(name, threads, ours));
        }
        cases.push(Case::peer(threads));
    }
    for case in &mut cases {
        case.check();
    }
    let mut reads = vec![Vec::new(); threads.len()];
    let memory = vec![1u64; 32 << 20];
    for round in 0..rounds {
        for (reads, &threads) in reads.iter_mut().zip(&threads) {
            reads.push(seconds(|| read(&memory, threads)));
        }
        for case in &mut cases {
            case.time();
        }
        eprint!("\rround {} of {rounds}", round + 1);
    }
    eprintln!();
    print(&cases, rounds, cores, names[0]);
    for (reads, threads) in reads.iter().zip(&threads) {
        let rate = size_of_val(memory.as_slice()) as f64 / median(reads) / 1e9;
        println!("Reading memory, {threads} threads: {rate:.1} GB/s");
    }
}

/// Reads all of `memory`, to know the limit of a decode step, which reads every weight once.
fn read(memory: &[u64], threads: usize) {
    std::thread::scope(|scope| {
        for part in memory.chunks(memory.len() / threads) {
            scope.spawn(move || {
                let sum = part
                    .iter()
                    .fold(0u64, |sum, value| sum.wrapping_add(*value));
                assert_eq!(sum, part.len() as u64);
            });
        }
    });
}

/// Returns the operations of the layers' products on all rows; a multiply-add counts as two.
fn product_flops(rows: usize) -> f64 {
    (2 * LAYERS * layer_weights() * rows) as f64
}

fn layer_weights() -> usize {
    PRODUCTS
        .iter()
        .map(|(inputs, outputs)| inputs * outputs)
        .sum()
}

/// Returns the operations of a prompt as the backend computes it: in the last layer, queries, keys and values of all
/// rows, and the rest for one row.
fn prompt_flops() -> f64 {
    let (inputs, outputs) = PRODUCTS[0];
    let skipped = 2 * (layer_weights() - inputs * outputs) * (PROMPT - 1);
    let scores: usize = (1..=PROMPT).sum();
    let attention = 4 * HIDDEN * ((LAYERS - 1) * scores + PROMPT);
    let logits = 2 * HIDDEN * VOCABULARY;
    product_flops(PROMPT) - skipped as f64 + (attention + logits) as f64
}

fn print(cases: &[Case], rounds: usize, cores: usize, backend: &str) {
    let parameters = product_flops(1) / 2.0 + (HIDDEN * VOCABULARY) as f64;
    println!(
        "{:.0}M parameters: {LAYERS} layers, hidden {HIDDEN}, intermediate {INTERMEDIATE}, {HEADS} heads, {KV_HEADS} KV heads, \
         vocabulary {VOCABULARY}, tied; pages of {PAGE_TOKENS}",
        parameters / 1e6
    );
    println!("{cores} cores, {backend}; medians of {rounds} interleaved rounds\n");
    println!(
        "| weights | threads | prompt of {PROMPT}, tok/s | GFLOP/s | time / gemm | per FLOP | last 64 after \
         448 cached, ms | decode at {PROMPT}, tok/s | its weights, GB/s | decode, {BATCH} sequences, tok/s |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for case in cases {
        let prompt = median(&case.prompt);
        let peer = cases
            .iter()
            .find(|peer| matches!(peer.work, Work::Peer(_)) && peer.threads == case.threads)
            .map_or(f64::NAN, |peer| median(&peer.prompt));
        let flops = match case.work {
            Work::Ours(_) => prompt_flops(),
            Work::Peer(_) => product_flops(PROMPT),
        };
        print!(
            "| {} | {} | {:.0} | {:.0} | {:.2} | {:.2} |",
            case.name,
            case.threads,
            PROMPT as f64 / prompt,
            flops / prompt / 1e9,
            prompt / peer,
            prompt / flops / (peer / product_flops(PROMPT))
        );
        match &case.work {
            Work::Peer(_) => println!(" | | | |"),
            Work::Ours(ours) => println!(
                " {:.1} | {:.1} | {:.1} | {:.1} |",
                median(&case.rest) * 1e3,
                1.0 / median(&case.decode),
                parameters * ours.element_bytes / median(&case.decode) / 1e9,
                BATCH as f64 / median(&case.batch)
            ),
        }
    }
}

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

struct Case {
    name: String,
    threads: usize,
    work: Work,
    /// Seconds for the prompt, for its last 64 tokens on a cached prefix, per decoded token, and per step of a batch.
    prompt: Vec<f64>,
    rest: Vec<f64>,
    decode: Vec<f64>,
    batch: Vec<f64>,
}

enum Work {
    Ours(Box<Ours>),
    Peer(Peer),
}

impl Case {
    fn new(name: String, threads: usize, work: Work) -> Self {
        Self {
            name,
            threads,
            work,
            prompt: Vec::new(),
            rest: Vec::new(),
            decode: Vec::new(),
            batch: Vec::new(),
        }
    }

    fn ours(element: &str, threads: usize, ours: Ours) -> Self {
        Self::new(
            format!("ours, {element}"),
            threads,
            Work::Ours(Box::new(ours)),
        )
    }

    fn peer(threads: usize) -> Self {
        Self::new("gemm, f32".into(), threads, Work::Peer(Peer::new(threads)))
    }

    /// Checks answers and warms up.
    fn check(&mut self) {
        match &mut self.work {
            Work::Ours(ours) => ours.check(),
            Work::Peer(peer) => peer.check(),
        }
    }

    fn time(&mut self) {
        match &mut self.work {
            Work::Ours(ours) => {
                self.prompt.push(seconds(|| ours.prompt(0..PROMPT)));
                self.rest.push(seconds(|| ours.prompt(PROMPT - 64..PROMPT)));
                let decode = seconds(|| (0..DECODE_STEPS).for_each(|step| ours.decode(step, 1)));
                self.decode.push(decode / DECODE_STEPS as f64);
                let batch = seconds(|| (0..DECODE_STEPS).for_each(|step| ours.decode(step, BATCH)));
                self.batch.push(batch / DECODE_STEPS as f64);
            }
            Work::Peer(peer) => self.prompt.push(seconds(|| peer.prompt())),
        }
    }
}

struct Ours {
    backend: CpuBackend,
    element_bytes: f64,
    prompt: Vec<u32>,
    logits: Vec<f32>,
}

impl Ours {
    fn new(element: Element, precision: Precision, threads: usize) -> Self {
        let json = format!(
            r#"{{"model_type": "llama", "hidden_size": {HIDDEN}, "num_hidden_layers": {LAYERS}, "num_attention_heads": {HEADS},
            "num_key_value_heads": {KV_HEADS}, "intermediate_size": {INTERMEDIATE}, "vocab_size": {VOCABULARY},
            "max_position_embeddings": 1024, "tie_word_embeddings": true}}"#
        );
        let config = ModelConfig::parse(&json).expect("the shape is supported");
        let sizes = CpuConfig {
            pages: (BATCH * Self::PAGES) as u32,
            host_pages: 0,
            page_tokens: PAGE_TOKENS,
            threads: Some(threads as u32),
            precision,
        };
        Self {
            backend: CpuBackend::new(&Checkpoint::random(config, element, 1), &sizes)
                .expect("the backend is built"),
            element_bytes: if element == Element::F32 { 4.0 } else { 2.0 },
            prompt: (0..PROMPT as u32)
                .map(|i| i * 7919 % VOCABULARY as u32)
                .collect(),
            logits: Vec::new(),
        }
    }

    /// Pages of a sequence.
    const PAGES: usize = (PROMPT + DECODE_STEPS).div_ceil(PAGE_TOKENS as usize);

    fn segment(&self, tokens: &[u32], start: usize, sequence: usize) -> Segment {
        let first = (sequence * Self::PAGES) as u32;
        Segment {
            tokens: tokens.to_vec(),
            start: start as u32,
            pages: (first..first + Self::PAGES as u32).map(PageId).collect(),
            output: Output::Last,
        }
    }

    fn run(&mut self, segments: Vec<Segment>) {
        let step = Step {
            segments,
            ..Step::default()
        };
        self.backend
            .run(&step, &mut self.logits)
            .expect("the step is well-formed");
    }

    fn prompt(&mut self, range: std::ops::Range<usize>) {
        let segment = self.segment(&self.prompt[range.clone()], range.start, 0);
        self.run(vec![segment]);
    }

    /// Decodes one more token for each of `sequences`.
    fn decode(&mut self, step: usize, sequences: usize) {
        let segments =
            (0..sequences).map(|sequence| self.segment(&[step as u32], PROMPT + step, sequence));
        self.run(segments.collect());
    }

    /// Checks that the logits are the same at once and on a cached prefix. Fills every sequence's pages.
    fn check(&mut self) {
        for sequence in (0..BATCH).rev() {
            self.run(vec![self.segment(&self.prompt, 0, sequence)]);
        }
        let whole = self.logits.clone();
        assert_eq!(whole.len(), VOCABULARY);
        assert!(whole.iter().all(|logit| logit.is_finite()));
        self.prompt(PROMPT - 64..PROMPT);
        assert!(whole == self.logits, "a cached prefix changed the logits");
    }
}

/// The layers' matrix products by `gemm`, with each weight matrix in the layout that is faster.
struct Peer {
    parallelism: gemm::Parallelism,
    input: Vec<f32>,
    output: Vec<f32>,
    /// Weights by layer and product.
    weights: Vec<Vec<f32>>,
    /// Whether weights are `[outputs, inputs]` instead of `[inputs, outputs]`.
    transposed: bool,
}

impl Peer {
    fn new(threads: usize) -> Self {
        let value = |i: usize| (i * 7919 % 1009) as f32 / 504.5 - 1.0;
        let products = (0..LAYERS).flat_map(|_| PRODUCTS);
        Self {
            parallelism: match threads {
                1 => gemm::Parallelism::None,
                _ => gemm::Parallelism::Rayon(threads),
            },
            input: (0..PROMPT * INTERMEDIATE).map(value).collect(),
            output: vec![0.0; PROMPT * 2 * INTERMEDIATE],
            weights: products
                .map(|(inputs, outputs)| (0..inputs * outputs).map(value).collect())
                .collect(),
            transposed: false,
        }
    }

    fn prompt(&mut self) {
        for number in 0..self.weights.len() {
            self.multiply(number);
        }
    }

    /// Computes `output[512, outputs] = input[512, inputs] · weights`, all row-major.
    #[allow(unsafe_code, reason = "the peer's interface takes pointers")]
    fn multiply(&mut self, number: usize) {
        let (inputs, outputs) = PRODUCTS[number % PRODUCTS.len()];
        let weights = &self.weights[number];
        assert!(weights.len() == inputs * outputs);
        assert!(self.input.len() >= PROMPT * inputs && self.output.len() >= PROMPT * outputs);
        let (column, row) = if self.transposed {
            (inputs, 1)
        } else {
            (1, outputs)
        };
        // SAFETY: the three matrices have the shapes and strides given, as asserted.
        unsafe {
            gemm::gemm(
                PROMPT,
                outputs,
                inputs,
                self.output.as_mut_ptr(),
                1,
                outputs as isize,
                false,
                self.input.as_ptr(),
                1,
                inputs as isize,
                weights.as_ptr(),
                column as isize,
                row as isize,
                0.0,
                1.0,
                false,
                false,
                false,
                self.parallelism,
            );
        }
    }

    /// Checks a few outputs and keeps the faster layout.
    fn check(&mut self) {
        let mut times = [0.0; 2];
        for (transposed, time) in [false, true].into_iter().zip(&mut times) {
            self.transposed = transposed;
            for (number, (inputs, outputs)) in PRODUCTS.into_iter().enumerate() {
                self.multiply(number);
                for (row, column) in [(0, 0), (511, outputs - 1), (100, 200)] {
                    let weight = |i: usize| match transposed {
                        true => self.weights[number][column * inputs + i],
                        false => self.weights[number][i * outputs + column],
                    };
                    let input = &self.input[row * inputs..][..inputs];
                    let terms = input
                        .iter()
                        .enumerate()
                        .map(|(i, a)| f64::from(*a) * f64::from(weight(i)));
                    let error = f64::from(self.output[row * outputs + column]) - terms.sum::<f64>();
                    assert!(error.abs() < 1e-2, "gemm is off by {error}");
                }
            }
            *time = seconds(|| self.prompt()).min(seconds(|| self.prompt()));
        }
        self.transposed = times[1] < times[0];
    }
}
