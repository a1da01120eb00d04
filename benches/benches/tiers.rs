//! The engine's cache without a model: what each eviction policy keeps, as RAGCache's Table 2, and what a look costs.
//!
//! ```text
//! FOREWORD_XQUAD=…/xquad.en.json cargo bench -p foreword-benches -- tiers
//! cargo bench -p foreword-benches -- tiers policies    hit ratios by policy and size of host memory
//! cargo bench -p foreword-benches -- tiers policies XQuAD    on the traces whose names have this in them
//! cargo bench -p foreword-benches -- tiers first       hit ratios when only a prompt's first documents are kept
//! cargo bench -p foreword-benches -- tiers times       a lookup and an open among 100,000 pages
//! ```
//!
//! The real [`PrefixCache`] is driven as the engine drives it, one request after another. A prompt is a system prompt,
//! its documents in retrieval order or ordered by the core's `longest`, and a question; tokens are made up from
//! fingerprints. What is counted: documents whose whole pages were all found, of those asked for (RAGCache §7.4), and
//! tokens of documents found; in device or host memory alike.

use foreword_benches::{Arguments, workloads, xquad};
use foreword_engine::TokenId;
use foreword_engine::cache::{
    CacheConfig, CacheUse, DocumentPath, DocumentSpan, EvictionPolicy, Pages, PrefixCache,
};
use foreword_ordering::policy::{PolicyKind, PolicyOptions};
use foreword_simulation::{Capacity, Replay, Request, Trace, document_tokens};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const PAGE_TOKENS: u32 = 16;
const SYSTEM_TOKENS: u32 = 64;
const QUESTION_TOKENS: u32 = 32;
const REQUESTS: usize = 2_000;
/// Seeds of a generated trace; figures are means.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=4;
/// Device memory, in average prompts.
const DEVICE_PROMPTS: u32 = 8;
/// Sizes of host memory, in average prompts: from the device's size to sixteen times that, as in the paper.
const HOST_PROMPTS: [u32; 5] = [8, 16, 32, 64, 128];

pub(crate) fn bench(arguments: &Arguments) {
    // A word that names no table picks traces.
    let words = arguments.words.iter().map(String::as_str);
    let (tables, traces): (Vec<&str>, Vec<&str>) =
        words.partition(|word| ["policies", "first", "times"].contains(word));
    let wanted = |name: &str| tables.is_empty() || tables.contains(&name);
    if wanted("policies") {
        policies(&traces);
    }
    if wanted("first") {
        first_documents(&traces);
    }
    if wanted("times") {
        times();
    }
}

/// What RAGCache's Figure 3 shows of a 7B model on an A10G, roughly: a step's fixed cost, a cost per token, and
/// attention to what stands before.
fn seconds(cached: u32, new: u32) -> f64 {
    let (cached, new) = (f64::from(cached), f64::from(new));
    0.02 + new * (2.4e-4 + 2.0e-8 * (cached + new / 2.0))
}

/// A trace whose prompts are put together already.
struct Prompts {
    name: String,
    prompts: Vec<Prompt>,
    mean_tokens: f64,
}

struct Prompt {
    tokens: Vec<TokenId>,
    documents: DocumentPath,
}

#[derive(Default)]
struct Hits {
    documents: u64,
    hit_documents: u64,
    tokens: u64,
    hit_tokens: u64,
    seconds: f64,
    requests: u64,
}

fn policies(picked: &[&str]) {
    println!(
        "Share of documents found / of their tokens found / mean seconds of prefill by the cost profile; device memory {DEVICE_PROMPTS} prompts\n"
    );
    for traces in traces() {
        let name = &traces[0].name;
        if !picked.is_empty() && !picked.iter().any(|word| name.contains(word)) {
            continue;
        }
        println!("{name}\n");
        print!("| host memory, prompts |");
        for policy in EvictionPolicy::ALL {
            print!(" {policy} |");
        }
        println!(
            " pgdsf / best other |\n|{}",
            " --- |".repeat(EvictionPolicy::ALL.len() + 2)
        );
        for host_prompts in HOST_PROMPTS {
            print!("| {host_prompts} |");
            let mut shares = Vec::new();
            for policy in EvictionPolicy::ALL {
                let mut hits = Hits::default();
                for trace in &traces {
                    replay(trace, policy, None, host_prompts, &mut hits);
                }
                let share = hits.hit_documents as f64 / hits.documents as f64;
                print!(
                    " {share:.4} / {:.4} / {:.4} |",
                    hits.hit_tokens as f64 / hits.tokens as f64,
                    hits.seconds / hits.requests as f64
                );
                shares.push((policy, share));
            }
            let of = |wanted: &dyn Fn(EvictionPolicy) -> bool| {
                let shares = shares.iter().filter(|(policy, _)| wanted(*policy));
                shares.map(|(_, share)| *share).fold(0.0, f64::max)
            };
            let own = of(&|policy| policy == EvictionPolicy::Pgdsf);
            let best = of(&|policy| policy != EvictionPolicy::Pgdsf);
            println!(" {:.3} |", own / best);
        }
        println!();
    }
}

/// Documents of a prompt that are kept, in the columns of `first`.
const KEPT: [Option<u32>; 4] = [None, Some(3), Some(2), Some(1)];

/// What is found when only the first documents of a prompt are kept (RAGCache §5.4).
fn first_documents(picked: &[&str]) {
    println!(
        "Share of documents found / mean seconds of prefill by the cost profile, pgdsf; device memory {DEVICE_PROMPTS} prompts\n"
    );
    for traces in traces() {
        let name = &traces[0].name;
        if !picked.is_empty() && !picked.iter().any(|word| name.contains(word)) {
            continue;
        }
        println!(
            "{name}\n\n| host memory, prompts | all kept | 3 | 2 | 1 |\n| --- | --- | --- | --- | --- |"
        );
        for host_prompts in HOST_PROMPTS {
            print!("| {host_prompts} |");
            for kept in KEPT {
                let mut hits = Hits::default();
                for trace in &traces {
                    replay(trace, EvictionPolicy::Pgdsf, kept, host_prompts, &mut hits);
                }
                print!(
                    " {:.4} / {:.4} |",
                    hits.hit_documents as f64 / hits.documents as f64,
                    hits.seconds / hits.requests as f64
                );
            }
            println!();
        }
        println!();
    }
}

/// The traces in both orders, each in as many versions as there are seeds for it.
fn traces() -> Vec<Vec<Prompts>> {
    let mut traces: Vec<(String, Vec<Trace>)> = Vec::new();
    for (documents, k) in [(5_000, 2), (5_000, 5), (5_000, 15)] {
        let seeded = SEEDS.map(|seed| workloads::zipf_topics(seed, REQUESTS, documents, k));
        traces.push((format!("Zipf, k = {k}"), seeded.collect()));
    }
    let depths = [2, 5, 10];
    match xquad::traces(&depths) {
        Ok(found) => {
            let named = depths
                .iter()
                .map(|depth| format!("XQuAD, BM25 top {depth}"));
            traces.extend(named.zip(found.into_iter().map(|trace| vec![trace])));
        }
        Err(reason) => println!("skipped: the XQuAD traces ({reason})\n"),
    }
    let mut prompts = Vec::new();
    for (name, traces) in traces {
        for order in [PolicyKind::Retrieval, PolicyKind::Longest] {
            let name = format!("{name}, {} order", order.name());
            let ordered = traces.iter().map(|trace| Prompts::new(&name, trace, order));
            prompts.push(ordered.collect());
        }
    }
    prompts
}

impl Prompts {
    /// The prompts of a trace in the order that a gateway would choose which remembers 100 prompts.
    fn new(name: &str, trace: &Trace, order: PolicyKind) -> Self {
        let capacity = Capacity::of_prompts(100, trace);
        let mut gateway = Replay::new(order, &PolicyOptions::default(), capacity);
        let prompts = trace.iter().enumerate().map(|(number, request)| {
            let order = gateway.decide(request);
            Prompt::new(number, request, &order)
        });
        let others = f64::from(SYSTEM_TOKENS + QUESTION_TOKENS);
        Self {
            name: name.to_owned(),
            prompts: prompts.collect(),
            mean_tokens: document_tokens(trace) as f64 / trace.len() as f64 + others,
        }
    }
}

impl Prompt {
    fn new(number: usize, request: &Request, order: &[u16]) -> Self {
        let mut tokens = made_up(0, SYSTEM_TOKENS);
        let mut documents = Vec::new();
        for &rank in order {
            let document = &request.documents[usize::from(rank)];
            tokens.extend(made_up(1 + document.fingerprint.0, document.tokens));
            documents.push(DocumentSpan {
                fingerprint: document.fingerprint.0,
                end: tokens.len() as u32,
            });
        }
        tokens.extend(made_up(1 << 40 | number as u64, QUESTION_TOKENS));
        let documents = DocumentPath {
            scope: request.scope.0,
            start: SYSTEM_TOKENS,
            documents,
        };
        Self { tokens, documents }
    }
}

/// Tokens that nothing else has.
fn made_up(seed: u64, count: u32) -> Vec<TokenId> {
    let mut state = seed;
    let mut token = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 32) as TokenId
    };
    (0..count).map(|_| token()).collect()
}

fn cache(
    policy: EvictionPolicy,
    max_documents: Option<u32>,
    device: u32,
    host: u32,
) -> PrefixCache {
    let pages = Pages {
        device,
        host,
        tokens: PAGE_TOKENS,
    };
    let config = CacheConfig {
        policy,
        max_documents,
        cost: Some(Arc::new(seconds)),
        ..CacheConfig::default()
    };
    PrefixCache::new(pages, &config)
}

fn replay(
    trace: &Prompts,
    policy: EvictionPolicy,
    max_documents: Option<u32>,
    host_prompts: u32,
    hits: &mut Hits,
) {
    let pages = |prompts: u32| {
        (f64::from(prompts) * trace.mean_tokens / f64::from(PAGE_TOKENS)).ceil() as u32
    };
    let mut cache = cache(
        policy,
        max_documents,
        pages(DEVICE_PROMPTS),
        pages(host_prompts),
    );
    for prompt in &trace.prompts {
        let found = serve(&mut cache, prompt);
        let total = prompt.tokens.len() as u32;
        hits.seconds += seconds(found, total - found);
        hits.requests += 1;
        let mut start = prompt.documents.start;
        for document in &prompt.documents.documents {
            let whole = document.end - document.end % PAGE_TOKENS;
            hits.documents += 1;
            hits.hit_documents += u64::from(found >= whole);
            hits.tokens += u64::from(document.end - start);
            hits.hit_tokens += u64::from(found.clamp(start, document.end) - start);
            start = document.end;
        }
    }
}

/// Serves a prompt from start to end; the tokens that were found.
fn serve(cache: &mut PrefixCache, prompt: &Prompt) -> u32 {
    let tokens = &prompt.tokens;
    let opening = cache.open(
        &"".into(),
        tokens,
        Some(&prompt.documents),
        CacheUse::default(),
    );
    let opening = opening.expect("a prompt has room on the device");
    let copied = opening.copy.map_or(0, |copy| copy.tokens);
    cache.take_transfers();
    cache.landed();
    cache.take_events();
    cache.close(opening.lease, tokens, tokens.len() as u32);
    opening.cached_tokens + copied
}

/// Looks into a full cache.
fn times() {
    const NODES: u32 = 100_000;
    const PROMPT: u32 = 4_096;
    const TIMED: usize = 2_000;
    let mut cache = cache(EvictionPolicy::Pgdsf, None, NODES / 2, NODES);
    // Prompts of four documents of 64 pages, which share their beginnings.
    let prompt = |number: u64| {
        let parts = [number % 5, number % 35, number % 385, number];
        let documents = parts.iter().zip(1..).map(|(part, depth)| {
            let seed = depth << 32 | part;
            made_up(seed, PROMPT / 4)
        });
        let tokens = documents.flatten().collect();
        let documents = DocumentPath::default();
        Prompt { tokens, documents }
    };
    let mut number = 0;
    while cache.stats().cached < NODES / 2 - 256 || cache.stats().host_cached < NODES - 64 {
        serve(&mut cache, &prompt(number));
        number += 1;
    }
    let stats = cache.stats();
    println!(
        "A prompt of {PROMPT} tokens among {} pages on the device and {} in host memory, {number} prompts seen\n",
        stats.cached, stats.host_cached
    );
    println!("| | p50 us | p99 us |\n| --- | --- | --- |");
    let salt: Arc<str> = "".into();
    let mut table: [(&str, Vec<f64>); 4] = [
        ("lookup", Vec::new()),
        ("is_current", Vec::new()),
        ("open, with evictions", Vec::new()),
        ("close", Vec::new()),
    ];
    for number in number..number + TIMED as u64 {
        let prompt = prompt(number).tokens;
        let sighting = cache.remember_lookup(&salt, &prompt);
        let mut times = Vec::new();
        let mut start = Instant::now();
        let mut lap = || {
            times.push(start.elapsed().as_secs_f64() * 1e6);
            start = Instant::now();
        };
        black_box(cache.lookup(&salt, &prompt));
        lap();
        black_box(cache.is_current(&sighting));
        lap();
        let opening = cache.open(&salt, &prompt, None, CacheUse::default());
        lap();
        let lease = opening.expect("a prompt has room on the device").lease;
        cache.take_transfers();
        cache.landed();
        cache.take_events();
        lap();
        cache.close(lease, &prompt, PROMPT);
        lap();
        times.remove(3);
        for ((_, all), time) in table.iter_mut().zip(times) {
            all.push(time);
        }
    }
    for (name, mut times) in table {
        times.sort_by(f64::total_cmp);
        let (half, most) = (times[TIMED / 2], times[TIMED * 99 / 100]);
        println!("| {name} | {half:.1} | {most:.1} |");
    }
    println!();
}
