//! ADR-011's four scenarios against its targets, and its two kinds of cache compared.
//!
//! ```text
//! cargo bench -p foreword-benches -- scenarios
//! cargo bench -p foreword-benches -- scenarios targets    hits and evictions of the engine's own cache
//! cargo bench -p foreword-benches -- scenarios kinds      hits and work of hash and tree
//! cargo bench -p foreword-benches -- scenarios memory     bytes of a page in the engine's cache, without KV state
//! ```
//!
//! Hits and work are counted, so they are the same on every machine. `targets` is the real engine on a simulated
//! device, with requests that arrive together where the scenario has them arrive together. `kinds` serves the same
//! prompts one after the other from models of three caches, of the same number of pages.

use anyhow::Result;
use foreword_benches::scenarios::{
    Blocks, Cache, Radix, Scenario, WholeSequences, batches, chat, mixed, rag,
};
use foreword_benches::simulated::{Arrival, Costs, House, PAGE_TOKENS, prompt, serve};
use foreword_benches::{Arguments, resident_bytes};
use foreword_engine::engine::{EngineConfig, Request};
use foreword_ordering::policy::PolicyKind;

/// The host's default pool on a CPU.
const POOL_TOKENS: u32 = 65_536;

pub(crate) fn bench(arguments: &Arguments) -> Result<()> {
    // Before the others: memory that they free would be used again.
    if arguments.has("memory") {
        memory(if arguments.benching { 1 << 18 } else { 1 << 10 });
    }
    let scenarios = scenarios(if arguments.benching { 1 } else { 20 });
    let mut holds = true;
    if arguments.has("targets") {
        holds &= targets(&scenarios);
    }
    if arguments.has("kinds") {
        kinds(&scenarios);
    }
    // At a small scale the first requests, which cannot hit, weigh too much.
    arguments.require(holds)
}

fn scenarios(parts: usize) -> Vec<(Scenario, bool)> {
    let corpus = 100;
    vec![
        (chat(200 / parts), true),
        (rag(1_000 / parts, corpus, PolicyKind::Retrieval), false),
        (rag(1_000 / parts, corpus, PolicyKind::Foresight), true),
        (batches(50 / parts as u32, 100, 1), true),
        (batches(50 / parts as u32, 100, 50), false),
        (mixed(2_000 / parts, 10, PolicyKind::Retrieval), false),
        (mixed(2_000 / parts, 10, PolicyKind::Foresight), true),
        // No cache can hit more than 80 % of these.
        (mixed(2_000 / parts, 20, PolicyKind::Foresight), false),
    ]
}

/// Prints the hits of the engine's cache; returns whether those of ordered documents meet the targets.
fn targets(scenarios: &[(Scenario, bool)]) -> bool {
    println!(
        "The engine's cache, a pool of {POOL_TOKENS} tokens; a request hits if a page of its prompt is found\n"
    );
    println!(
        "| scenario | ADR-011 | hits | that could hit | tokens found | of those that could be found | pages evicted of those computed |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let mut holds = true;
    for (scenario, counts) in scenarios {
        let found = scenario.serve(POOL_TOKENS, &EngineConfig::default());
        let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        println!(
            "| {} | {:.0} % | {:.2} % ({} of {}) | {} | {:.1} % | {:.1} % | {:.1} % |",
            scenario.name,
            100.0 * scenario.target,
            share(found.hits, found.requests),
            found.hits,
            found.requests,
            found.possible,
            share(found.found_tokens, found.tokens),
            share(found.found_tokens, found.possible_tokens),
            share(found.evicted_pages, found.computed_pages),
        );
        holds &= found.meets(scenario.target) || !counts;
    }
    println!();
    holds
}

fn kinds(scenarios: &[(Scenario, bool)]) {
    let pages = (POOL_TOKENS / PAGE_TOKENS) as usize;
    println!(
        "Models of three caches of {pages} pages, one request after the other; work of a lookup, means\n"
    );
    println!(
        "| scenario | cache | hits | of the tokens that could be found | tokens hashed | index probes | tokens compared |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for (scenario, _) in scenarios {
        let caches: [(&str, Box<dyn Cache>); 3] = [
            (
                "hash of whole sequences",
                Box::new(WholeSequences::new(pages)),
            ),
            ("hashes of blocks", Box::new(Blocks::new(pages))),
            ("radix tree", Box::new(Radix::new(pages))),
        ];
        for (name, mut cache) in caches {
            let (found, work) = scenario.look(&mut *cache);
            let mean = |sum: u64| sum as f64 / found.requests.max(1) as f64;
            println!(
                "| {} | {name} | {:.1} % | {:.1} % | {:.0} | {:.1} | {:.0} |",
                scenario.name,
                100.0 * found.hit_share(),
                100.0 * found.found_tokens as f64 / found.possible_tokens.max(1) as f64,
                mean(work.hashed_tokens),
                mean(work.probes),
                mean(work.compared_tokens),
            );
        }
    }
    println!();
}

/// Prints the memory that the engine's tree takes for a cached page, after serving prompts of 64 pages of documents and a
/// question to an engine of so many pages.
fn memory(pages: u32) {
    const PROMPT_PAGES: u32 = 64;
    let before = resident_bytes();
    let tokens = pages * PAGE_TOKENS;
    let mut house = House::new(Costs::MISTRAL_7B_A10G, tokens, &EngineConfig::default());
    for number in 0..u64::from(pages / PROMPT_PAGES) {
        let arrival = Arrival {
            at: house.now(),
            request: Request {
                prompt: prompt([(number, PROMPT_PAGES * PAGE_TOKENS)], number),
                max_tokens: 1,
                ..Request::default()
            },
        };
        let _served = serve(&mut house, &[arrival]);
    }
    let cached = u64::from(house.stepper().stats().cache.cached);
    match resident_bytes().zip(before) {
        Some((after, before)) => println!(
            "Memory: {} bytes for each of {cached} cached pages of {PAGE_TOKENS} tokens\n",
            after.saturating_sub(before) / cached.max(1)
        ),
        None => println!("skipped: memory (this system has no /proc/self/status)\n"),
    }
}
