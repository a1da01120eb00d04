//! All benches, in one program so that there is one to link: `cargo bench -p foreword-benches -- NAME [WORDS…]`. A bench's
//! own file says which words it takes. Without a name, the benches are listed. A new one is a module with a function
//! `bench`, and a line of `BENCHES`.

mod agreement;
mod batch;
mod batch_lines;
mod boundaries;
mod clients;
mod cpu;
mod cpu_peers;
mod gateway;
mod latency;
mod lookup;
mod ordering;
mod outputs;
mod policies;
mod proximity;
mod proximity_grid;
mod retrieval;
mod routers;
mod scenarios;
mod scheduler;
mod shells;
mod similarity;
mod soak;
mod speculation;
mod tenants;
mod tier_hits;
mod tiers;
mod tokens;
mod tool_lists;
mod vllm;

use std::process::{ExitCode, Termination};

use criterion::{BenchmarkFilter, Criterion};
use foreword_benches::Arguments;

struct Bench {
    name: &'static str,
    measures: &'static str,
    run: fn(&Arguments) -> ExitCode,
}

/// Makes a bench of each module's name and what it measures.
macro_rules! benches {
    ($($name:ident: $measures:literal,)*) => {
        [$(Bench {
            name: stringify!($name),
            measures: $measures,
            run: |arguments| Termination::report($name::bench(arguments)),
        }),*]
    };
}

const BENCHES: &[Bench] = &benches![
    agreement: "how long until another worker or Envoy knows what one did",
    batch: "a batch planned by us and by ContextPilot: reuse, and the plan's time",
    batch_lines: "foreword batch over a million lines, killed in the middle",
    boundaries: "what prompts cost where caches match only up to marked boundaries",
    clients: "what chats cost whose clients send contexts with the newest question alone",
    cpu: "the CPU backend beside the gemm crate's f32 product",
    cpu_peers: "the CPU backend beside other engines, on the same weights",
    gateway: "requests a second of Envoy with the filter and without it",
    latency: "the time that the filter adds to one request",
    lookup: "a look-up among 300 questions inside Envoy",
    ordering: "one decision against 10,000 stored paths, and one body of 16 KB",
    outputs: "what location hints for tools' results save in agents' sessions",
    policies: "every policy on every trace: reuse, decision time, memory",
    proximity: "searches that a similarity cache saves, and what that costs in answers",
    proximity_grid: "Proximity's Figure 3 in its own terms, beside its algorithm",
    retrieval: "recall and stages of IVF and HNSW, and time to first token under load",
    routers: "three engines behind one gateway: which router reuses most",
    scenarios: "ADR-011's four scenarios against its targets, and its two kinds of cache",
    scheduler: "what deciding a step costs, and time to first token by queue order",
    shells: "what each shell of the filter adds to a request",
    similarity: "a look-up among 300 questions by a scan, and among 100,000 by buckets",
    soak: "a day of requests in a minute: memory, pages, threads",
    speculation: "how long a chat waits for its search, with speculation and without",
    tenants: "whether the time for one tenant reveals another's documents",
    tier_hits: "a hit in each tier of the cache beside computing the tokens again",
    tiers: "what each eviction policy keeps in device and host memory",
    tokens: "tokenising seen documents from a cache, against the whole text",
    tool_lists: "reuse behind real lists of tools that change from request to request",
    vllm: "reuse in a real vLLM; `cargo xtask vllm` installs it",
];

fn main() -> ExitCode {
    let arguments = Arguments::of(std::env::args().skip(1));
    let lines = BENCHES
        .iter()
        .map(|bench| format!("\n{:<16}{}", bench.name, bench.measures));
    let list: String = lines.collect();
    let Some(name) = &arguments.name else {
        println!("cargo bench -p foreword-benches -- NAME [WORDS…]\n{list}");
        return ExitCode::SUCCESS;
    };
    match BENCHES.iter().find(|bench| bench.name == name) {
        Some(bench) => (bench.run)(&arguments),
        None => {
            eprintln!("there is no bench {name}; there are:\n{list}");
            ExitCode::FAILURE
        }
    }
}

/// Returns criterion, which reads the arguments itself: without `--bench`, it runs everything once. It would filter by
/// the first word, the bench's name.
fn criterion() -> Criterion {
    let criterion = Criterion::default().configure_from_args();
    criterion.with_benchmark_filter(BenchmarkFilter::AcceptAll)
}
