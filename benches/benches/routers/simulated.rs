//! Three simulated engines, so that every router meets the same requests at the same times.
//!
//! Each has the model of a prefix cache that the other simulations use and a queue of prefills. Requests come at fixed
//! intervals, such that round-robin in the client's order keeps the engines busy for [`UTILISATION`] of the time. The
//! filter's core decides, with bodies as it gets them; it hears of requests when they are sent and of prefills when they are
//! done, as in the gateway.

use std::collections::HashMap;

use foreword_ordering::document::Fingerprint;
use foreword_ordering::{Config, EngineCandidate, EngineId, Orderer, RewriteOptions, Tenant};
use foreword_simulation::{Capacity, EngineCache, Request, Retrieved, Trace, workload};
use serde_json::json;

use crate::text_prefix::{self, TextPrefix};
use crate::{ENGINES, in_turn};

const REQUESTS: usize = 2_000;
const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;
/// Room in each engine's cache, in average prompts.
const PROMPTS: u32 = 40;
/// Tokens that an engine prefills in a second.
const RATE: f64 = 10_000.0;
const UTILISATION: f64 = 0.8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Router {
    RoundRobin,
    LeastRequest,
    TextPrefix,
    Foreword,
}

/// Prints a table for each trace; a short one unless `benching`.
pub(crate) fn compare(benching: bool) {
    let requests = if benching { REQUESTS } else { 60 };
    let bursty: fn(u64, usize) -> Trace =
        |seed, requests| workload::bursty(seed, requests, workload::Bursty::default());
    let zipf: fn(u64, usize) -> Trace =
        |seed, requests| workload::zipf_topics(seed, requests, 5_000, 15);
    for (name, trace) in [("bursty 0.6, k=5", bursty), ("Zipf topics, k=15", zipf)] {
        println!("{name}: {requests} requests, {ENGINES} engines of {PROMPTS} prompts");
        println!("| router | order | cached | busiest / mean | first token, mean | p99 |");
        println!("| --- | --- | ---: | ---: | ---: | ---: |");
        for (router, label) in [
            (Router::RoundRobin, "round-robin"),
            (Router::LeastRequest, "least request"),
            (Router::TextPrefix, "text prefix"),
            (Router::Foreword, "Foreword"),
        ] {
            for ordered in [false, true] {
                if router == Router::Foreword && !ordered {
                    continue;
                }
                let runs: Vec<Figures> = SEEDS
                    .map(|seed| run(&trace(seed, requests), router, ordered))
                    .collect();
                let mean = |figure: fn(&Figures) -> f64| {
                    runs.iter().map(figure).sum::<f64>() / runs.len() as f64
                };
                println!(
                    "| {label} | {} | {:.1} % | {:.2} | {:.0} ms | {:.0} ms |",
                    if ordered { "Foreword's" } else { "client's" },
                    100.0 * mean(|run| run.cached),
                    mean(|run| run.imbalance),
                    mean(|run| run.mean_ms),
                    mean(|run| run.p99_ms),
                );
            }
        }
        println!();
    }
}

struct Figures {
    /// Share of document tokens.
    cached: f64,
    /// Tokens computed by the busiest engine over the mean.
    imbalance: f64,
    mean_ms: f64,
    p99_ms: f64,
}

struct Engine {
    cache: EngineCache,
    /// When it will have computed all that it was sent.
    free_at: f64,
    /// When each request will have been computed, ascending.
    ends: Vec<f64>,
    computed: u64,
}

fn run(trace: &Trace, router: Router, ordered: bool) -> Figures {
    let capacity = Capacity::of_prompts(PROMPTS, trace);
    let mut engines: Vec<Engine> = (0..ENGINES)
        .map(|_| Engine {
            cache: EngineCache::new(capacity),
            free_at: 0.0,
            ends: Vec::new(),
            computed: 0,
        })
        .collect();
    let mut orderer = orderer(capacity);
    let mut texts = TextPrefix::default();
    let tokens: u64 = trace.iter().map(tokens_of).sum();
    let interval = tokens as f64 / trace.len() as f64 / RATE / ENGINES as f64 / UTILISATION;
    let mut waits = Vec::with_capacity(trace.len());
    let mut cached = 0;
    for (at, request) in trace.iter().enumerate() {
        let now = at as f64 * interval;
        let chosen = match router {
            Router::RoundRobin => Some(at % ENGINES),
            Router::LeastRequest => Some(text_prefix::shortest(&queues(&engines, now), at)),
            Router::TextPrefix => {
                Some(texts.choose(&chain(&request.documents), &queues(&engines, now), at))
            }
            Router::Foreword => None,
        };
        let choices: Vec<EngineCandidate> = in_turn(at)
            .filter(|engine| chosen.is_none_or(|chosen| chosen == *engine))
            .map(|engine| EngineCandidate {
                engine: EngineId(engine as u16),
                outstanding: ((engines[engine].free_at - now).max(0.0) * RATE) as u64,
            })
            .collect();
        let (engine, sent) = if ordered {
            decide(&mut orderer, &choices, request)
        } else {
            (usize::from(choices[0].engine.0), request.documents.clone())
        };
        texts.sent(engine, &chain(&sent));
        let engine = &mut engines[engine];
        let found = engine.cache.serve(request.scope, sent.iter());
        let todo = tokens_of(request) - found;
        cached += found;
        engine.computed += todo;
        engine.free_at = engine.free_at.max(now) + todo as f64 / RATE;
        engine.ends.push(engine.free_at);
        waits.push((engine.free_at - now) * 1_000.0);
    }
    waits.sort_by(f64::total_cmp);
    let computed = engines.iter().map(|engine| engine.computed);
    let busiest = computed.clone().max().unwrap_or_default() as f64;
    let mean = computed.sum::<u64>() as f64 / ENGINES as f64;
    Figures {
        cached: cached as f64 / tokens as f64,
        imbalance: busiest / mean,
        mean_ms: waits.iter().sum::<f64>() / waits.len() as f64,
        p99_ms: waits[waits.len() * 99 / 100],
    }
}

fn orderer(capacity: Capacity) -> Orderer {
    let config = json!({
        "policy": "longest",
        "hint": {"enabled": false},
        "tree": {"max_tokens": capacity.tokens.unwrap_or(0)},
        // The same question may come again, and is no chat.
        "conversation": {"max_entries": 0},
    });
    Orderer::new(Config::from_json(config.to_string().as_bytes()).unwrap())
}

/// What the core makes of the request: the engine, and the documents in the order sent.
fn decide(
    orderer: &mut Orderer,
    choices: &[EngineCandidate],
    request: &Request,
) -> (usize, Vec<Retrieved>) {
    let documents = request.documents.iter().map(text);
    let content = documents.collect::<String>();
    let body = json!({"model": "m", "messages": [{"role": "user", "content": content}]});
    let options = RewriteOptions {
        choices,
        ..RewriteOptions::default()
    };
    let body = body.to_string();
    let rewrite = orderer.rewrite_on(&options, Tenant::default(), body.as_bytes());
    let rewrite = rewrite.unwrap();
    let listed = foreword_ordering::documents_of(body.as_bytes(), &Config::default()).unwrap();
    let found = listed[0].documents.iter().map(|found| found.fingerprint);
    let known: HashMap<Fingerprint, &Retrieved> = found.zip(&request.documents).collect();
    let sent = rewrite.path.runs[0].documents.iter();
    let sent = sent.map(|document| known[document].clone()).collect();
    (usize::from(rewrite.record.engine().0), sent)
}

/// A document of as many estimated tokens as it counts in the engine's model.
fn text(document: &Retrieved) -> String {
    let id = &document.label;
    let bytes = document.tokens as usize * 4 - format!("<doc id=\\\"{id}\\\"></doc>").len();
    let words = format!("{id} says this. ").repeat(bytes / 8);
    format!("<doc id=\"{id}\">{}</doc>", &words[..bytes])
}

fn tokens_of(request: &Request) -> u64 {
    let documents = request.documents.iter();
    documents.map(|document| u64::from(document.tokens)).sum()
}

/// Requests that each engine has yet to compute.
fn queues(engines: &[Engine], now: f64) -> [usize; ENGINES] {
    std::array::from_fn(|engine| {
        let ends = &engines[engine].ends;
        ends.len() - ends.partition_point(|end| *end <= now)
    })
}

/// A block is a document here, as all begin at the same places.
fn chain(documents: &[Retrieved]) -> Vec<u64> {
    text_prefix::chain(documents.iter().map(|document| document.label.as_bytes()))
}
