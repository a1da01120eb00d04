//! Three simulated engines, so that every router meets the same requests at the same times.
//!
//! ```text
//!   round-robin, least request, text prefix      choose by what the client sent; ordered or not for the chosen engine
//!   text prefix behind the gateway               chooses by what one tree for all engines made of the request
//!   Foreword                                     orders for each engine and chooses where the request costs least
//! ```
//!
//! Each engine has the model of a prefix cache that the other simulations use and a queue of prefills. Requests come at
//! random times, such that round-robin in the client's order would keep the engines busy for a share of the time, or from
//! clients of which each waits for its answer. The filter's core decides, with bodies as it gets them; it hears of requests
//! when they are sent and of prefills when they are done, as in the gateway.

use std::collections::{HashMap, VecDeque};

use foreword_benches::{Arguments, workloads, xquad};
use foreword_ordering::document::Fingerprint;
use foreword_ordering::random::Random;
use foreword_ordering::{
    Config, EngineCandidate, EngineId, Orderer, Rewrite, RewriteOptions, Tenant,
};
use foreword_simulation::{Capacity, EngineCache, Request, Retrieved, Trace, workload};
use serde_json::{Value, json};

use super::text_prefix::{self, TextPrefix};
use super::{ENGINES, in_turn};

const REQUESTS: usize = 1_000;
const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;
/// Room in each engine's cache, in average prompts.
pub(crate) const PROMPTS: u32 = 40;
/// Tokens that an engine prefills in a second.
pub(crate) const RATE: f64 = 10_000.0;
/// Seconds that an engine takes for a request besides its documents: the question, the hint, the step itself.
pub(crate) const FIXED: f64 = 0.008;
/// Seconds between the first token of an answer and the next request of a client that waited for it.
const ANSWER: f64 = 0.02;

/// Who chooses the engine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Router {
    RoundRobin,
    LeastRequest,
    TextPrefix,
    Foreword,
}

/// Who orders the documents, and from what.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ordering {
    /// Documents keep the client's order.
    Client,
    /// The order for the chosen engine, from a tree of what that engine holds.
    Engine,
    /// The order from one tree for all engines; then the router chooses by what it makes of the request.
    Before,
}

const ROWS: [(Router, Ordering, &str); 7] = [
    (Router::RoundRobin, Ordering::Client, "round-robin"),
    (Router::RoundRobin, Ordering::Engine, "round-robin"),
    (Router::LeastRequest, Ordering::Engine, "least request"),
    (Router::TextPrefix, Ordering::Client, "text prefix"),
    (Router::TextPrefix, Ordering::Engine, "text prefix"),
    (
        Router::TextPrefix,
        Ordering::Before,
        "text prefix behind the gateway",
    ),
    (Router::Foreword, Ordering::Engine, "**Foreword**"),
];

/// The rule by which requests arrive.
#[derive(Clone, Copy)]
enum Load {
    /// At random times; round-robin in the client's order without any reuse would keep the engines busy for this share.
    Share(f64),
    /// From so many clients, each of which waits for its answer.
    Clients(usize),
}

pub(crate) type Generator = Box<dyn Fn(u64, usize) -> Trace>;

/// The traces of all comparisons, by seed and number of requests: generated ones, and XQuAD's where it is there.
pub(crate) fn traces() -> Vec<(&'static str, Generator)> {
    let mut traces: Vec<(&'static str, Generator)> = vec![
        (
            "bursty 0.6, k = 5",
            Box::new(|seed, requests| {
                workload::bursty(seed, requests, workload::Bursty::default())
            }),
        ),
        (
            "geospatial, k = 5",
            Box::new(|seed, requests| {
                workload::geospatial(seed, requests, 5, workload::Ranks::Shuffled)
            }),
        ),
        (
            "Zipf topics, k = 15",
            Box::new(|seed, requests| workloads::zipf_topics(seed, requests, 5_000, 15)),
        ),
    ];
    match xquad::traces(&[5, 8]) {
        Ok(ranked) => {
            for (name, trace) in ["XQuAD, k = 5", "XQuAD, k = 8"].into_iter().zip(ranked) {
                traces.push((
                    name,
                    Box::new(move |seed, requests| {
                        // Another part of the questions for each seed, and the beginning again after the end.
                        let first = seed as usize * 400;
                        let trace = trace.iter().cycle().skip(first).take(requests);
                        trace.cloned().collect()
                    }),
                ));
            }
        }
        Err(reason) => println!("without XQuAD: {reason}"),
    }
    traces
}

/// Prints a table for each trace and load; short ones unless the bench is to measure.
pub(crate) fn compare(arguments: &Arguments) {
    let requests = if arguments.benching { REQUESTS } else { 60 };
    let rank = arguments.rank("place");
    for (name, trace) in &traces() {
        for (load, label) in [
            (Load::Share(0.4), "40 % load"),
            (Load::Share(0.8), "80 % load"),
            (Load::Clients(3), "3 clients"),
            (Load::Clients(9), "9 clients"),
        ] {
            println!(
                "{name}, {label}: {requests} requests, {ENGINES} engines of {PROMPTS} prompts"
            );
            println!(
                "| router | order | cached | busiest / mean | first token, mean | p95 | p99 |"
            );
            println!("| --- | --- | ---: | ---: | ---: | ---: | ---: |");
            for (router, ordering, label) in ROWS {
                let runs: Vec<Figures> = SEEDS
                    .map(|seed| run(&trace(seed, requests), router, ordering, &rank, load, seed))
                    .collect();
                let mean = |figure: fn(&Figures) -> f64| {
                    runs.iter().map(figure).sum::<f64>() / runs.len() as f64
                };
                println!(
                    "| {label} | {} | {:.1} % | {:.2} | {:.0} ms | {:.0} ms | {:.0} ms |",
                    match ordering {
                        Ordering::Client => "client's",
                        Ordering::Engine | Ordering::Before => "Foreword's",
                    },
                    100.0 * mean(|run| run.cached),
                    mean(|run| run.imbalance),
                    mean(|run| run.mean_ms),
                    mean(|run| run.p95_ms),
                    mean(|run| run.p99_ms),
                );
            }
            println!();
        }
    }
}

struct Figures {
    /// Share of document tokens.
    cached: f64,
    /// Tokens computed by the busiest engine over the mean.
    imbalance: f64,
    mean_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
}

pub(crate) struct Engine {
    pub(crate) cache: EngineCache,
    /// When it will have computed all that it was sent.
    pub(crate) free_at: f64,
    /// When each request that waits will have been computed, and its uncached tokens.
    waiting: VecDeque<(f64, u64)>,
    computed: u64,
}

impl Engine {
    pub(crate) fn new(capacity: Capacity) -> Self {
        Self {
            cache: EngineCache::new(capacity),
            free_at: 0.0,
            waiting: VecDeque::new(),
            computed: 0,
        }
    }

    fn forget_computed(&mut self, now: f64) {
        while self.waiting.front().is_some_and(|(end, _)| *end <= now) {
            self.waiting.pop_front();
        }
    }

    /// Uncached tokens of the requests that have no answer yet, which is what a gateway knows.
    fn outstanding(&self) -> u64 {
        self.waiting.iter().map(|(_, tokens)| tokens).sum()
    }
}

/// The times at which requests come.
struct Arrivals {
    load: Load,
    /// Mean seconds between two requests of a [`Load::Share`].
    interval: f64,
    now: f64,
    /// When each of the clients of [`Load::Clients`] sends its next request.
    clients: Vec<f64>,
    random: Random,
}

impl Arrivals {
    fn new(load: Load, trace: &Trace, seed: u64) -> Self {
        let tokens: u64 = trace.iter().map(tokens_of).sum();
        let service = tokens as f64 / trace.len() as f64 / RATE + FIXED;
        let (share, clients) = match load {
            Load::Share(share) => (share, 0),
            Load::Clients(clients) => (1.0, clients),
        };
        Self {
            load,
            interval: service / ENGINES as f64 / share,
            now: 0.0,
            clients: vec![0.0; clients],
            random: Random::new(seed),
        }
    }

    /// When the next request comes, and from which client.
    fn next(&mut self) -> (f64, usize) {
        match self.load {
            Load::Share(_) => {
                self.now -= self.interval * (1.0 - self.random.unit()).ln();
                (self.now, 0)
            }
            Load::Clients(_) => {
                let clients = self.clients.iter().copied().zip(0..);
                clients.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
            }
        }
    }

    fn answered(&mut self, client: usize, at: f64) {
        if let Some(client) = self.clients.get_mut(client) {
            *client = at + ANSWER;
        }
    }
}

fn run(
    trace: &Trace,
    router: Router,
    ordering: Ordering,
    rank: &Value,
    load: Load,
    seed: u64,
) -> Figures {
    let capacity = Capacity::of_prompts(PROMPTS, trace);
    let mut engines: Vec<Engine> = (0..ENGINES).map(|_| Engine::new(capacity)).collect();
    let trees = if ordering == Ordering::Before {
        ENGINES
    } else {
        1
    };
    let mut orderer = orderer(capacity, trees as u64, rank);
    let mut texts = TextPrefix::default();
    let tokens: u64 = trace.iter().map(tokens_of).sum();
    let mut arrivals = Arrivals::new(load, trace, seed);
    let mut waits = Vec::with_capacity(trace.len());
    let mut cached = 0;
    for (at, request) in trace.iter().enumerate() {
        let (now, client) = arrivals.next();
        for engine in &mut engines {
            engine.forget_computed(now);
        }
        let queues = std::array::from_fn(|engine| engines[engine].waiting.len());
        let before = (ordering == Ordering::Before)
            .then(|| decide(&mut orderer, &[EngineCandidate::default()], request).sent);
        let seen = before.as_ref().unwrap_or(&request.documents);
        let chosen = match router {
            Router::RoundRobin => Some(at % ENGINES),
            Router::LeastRequest => Some(text_prefix::shortest(&queues, at)),
            Router::TextPrefix => Some(texts.choose(&chain(seen), &queues, at)),
            Router::Foreword => None,
        };
        let choices: Vec<EngineCandidate> = in_turn(at)
            .filter(|engine| chosen.is_none_or(|chosen| chosen == *engine))
            .map(|engine| EngineCandidate {
                engine: EngineId(engine as u16),
                outstanding: engines[engine].outstanding(),
            })
            .collect();
        let (engine, sent) = match ordering {
            Ordering::Client => (usize::from(choices[0].engine.0), request.documents.clone()),
            Ordering::Engine => {
                let decision = decide(&mut orderer, &choices, request);
                (decision.engine, decision.sent)
            }
            Ordering::Before => (usize::from(choices[0].engine.0), seen.clone()),
        };
        texts.sent(engine, &chain(&sent));
        let engine = &mut engines[engine];
        let found = engine.cache.serve(request.scope, sent.iter());
        let todo = tokens_of(request) - found;
        cached += found;
        engine.computed += todo;
        engine.free_at = engine.free_at.max(now) + todo as f64 / RATE + FIXED;
        engine.waiting.push_back((engine.free_at, todo));
        arrivals.answered(client, engine.free_at);
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
        p95_ms: waits[waits.len() * 95 / 100],
        p99_ms: waits[waits.len() * 99 / 100],
    }
}

/// An orderer whose trees know as much as so many engines hold, with this `rank`.
pub(crate) fn orderer(capacity: Capacity, engines: u64, rank: &Value) -> Orderer {
    let config = json!({
        "rank": rank,
        "hint": {"enabled": false},
        "tree": {"max_tokens": capacity.tokens.unwrap_or(0) * engines},
        // The same question may come again, and is no chat.
        "conversation": {"max_entries": 0},
    });
    Orderer::new(Config::from_json(config.to_string().as_bytes()).unwrap())
}

/// What the core makes of a request.
pub(crate) struct Decision {
    pub(crate) engine: usize,
    /// The documents in the order sent.
    pub(crate) sent: Vec<Retrieved>,
    pub(crate) rewrite: Rewrite,
}

/// Lets the core order the request and choose its engine.
pub(crate) fn decide(
    orderer: &mut Orderer,
    choices: &[EngineCandidate],
    request: &Request,
) -> Decision {
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
    Decision {
        engine: usize::from(rewrite.record.engine().0),
        sent: sent.map(|document| known[document].clone()).collect(),
        rewrite,
    }
}

/// A document of as many estimated tokens as it counts in the engine's model.
fn text(document: &Retrieved) -> String {
    let id = &document.label;
    let bytes = document.tokens as usize * 4 - format!("<doc id=\\\"{id}\\\"></doc>").len();
    let words = format!("{id} says this. ").repeat(bytes / 8);
    format!("<doc id=\"{id}\">{}</doc>", &words[..bytes])
}

pub(crate) fn tokens_of(request: &Request) -> u64 {
    let documents = request.documents.iter();
    documents.map(|document| u64::from(document.tokens)).sum()
}

/// A block is a document here, as all begin at the same places.
fn chain(documents: &[Retrieved]) -> Vec<u64> {
    text_prefix::chain(documents.iter().map(|document| document.label.as_bytes()))
}
