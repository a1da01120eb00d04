//! Several gateways before the same engines: how much of one gateway's reuse is left where each sees a part of the requests.
//!
//! ```text
//!   requests by turns ─▶ gateway 1 … G, an orderer each ─▶ engine 1 … E, a queue and a cache each
//!                            ▲            │                        │
//!                            └─ records ──┴──── feed: stored ◀─────┘      each told to all gateways after its delay
//! ```
//!
//! A gateway knows its own requests and their load at once. It learns what other gateways sent from the engines' feeds, when the
//! prompt is computed. Alternatively it learns that from the other gateways' records, as the workers of one gateway do; then it
//! also knows the load of the other gateways' requests.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foreword_benches::Arguments;
use foreword_ordering::feed::{Event, TenantKey};
use foreword_ordering::random::Random;
use foreword_ordering::{EngineCandidate, EngineId, Orderer, PeerUpdate, Residency};
use foreword_simulation::{Capacity, Trace};
use serde_json::Value;

use super::simulated::{
    Decision, Engine, FIXED, PROMPTS, RATE, decide, orderer, tokens_of, traces,
};

const GATEWAYS: [usize; 5] = [1, 2, 4, 8, 16];
const FLEETS: [usize; 4] = [4, 16, 64, 256];
/// Requests for each engine, so that every cache is full for half of the run.
const REQUESTS_PER_ENGINE: usize = 100;
/// Share of the time that the engines would be busy if nothing were reused.
const LOAD: f64 = 0.6;
/// Seconds until a gateway has read an engine's event: a poll of the feed, as measured (`agreement`, `residency`).
const FEED_DELAY: f64 = 0.05;
/// Seconds until a gateway has another one's record or load: what was measured on one machine (`agreement -- gateways`),
/// and ways within a data centre.
const RECORD_DELAY: f64 = 0.005;

/// How gateways hear of requests that others sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hears {
    Nothing,
    Feeds,
    Records,
}

/// Prints a table for each trace and size of fleet.
pub(crate) fn compare(arguments: &Arguments) {
    let rank = arguments.rank("place");
    let (fleets, per_engine): (&[usize], usize) = if arguments.benching {
        (&FLEETS, REQUESTS_PER_ENGINE)
    } else {
        (&FLEETS[..1], 10)
    };
    for (name, trace) in traces()
        .iter()
        .filter(|(name, _)| name.contains("k = 8") || name.contains("bursty"))
    {
        let only: Option<usize> = arguments.number("engines");
        for &engines in fleets
            .iter()
            .filter(|engines| only.is_none_or(|only| only == **engines))
        {
            let trace = trace(1, engines * per_engine);
            println!(
                "\n{name}, {engines} engines, {} requests at {:.0} % load: document tokens cached / mean time to the first token",
                trace.len(),
                LOAD * 100.0
            );
            println!("| gateways | by turns, each alone | with feeds | with feeds and records |");
            println!("| ---: | ---: | ---: | ---: |");
            for gateways in GATEWAYS {
                let [alone, feeds, records] =
                    [Hears::Nothing, Hears::Feeds, Hears::Records].map(|hears| {
                        let (cached, mean_ms) = run(&trace, gateways, engines, hears, &rank);
                        format!("{:.1} % / {mean_ms:.0} ms", cached * 100.0)
                    });
                println!("| {gateways} | {alone} | {feeds} | {records} |");
            }
        }
    }
}

/// An update on its way to the gateways, ordered by when it arrives.
struct Message {
    at: f64,
    number: usize,
    /// The gateway that knows it already.
    from: Option<usize>,
    update: PeerUpdate,
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Message {}
impl PartialOrd for Message {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Message {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at
            .total_cmp(&other.at)
            .then(self.number.cmp(&other.number))
    }
}

/// The share of document tokens that was cached, and the mean time to the first token in milliseconds.
fn run(trace: &Trace, gateways: usize, count: usize, hears: Hears, rank: &Value) -> (f64, f64) {
    let capacity = Capacity::of_prompts(PROMPTS, trace);
    let mut engines: Vec<Engine> = (0..count).map(|_| Engine::new(capacity)).collect();
    let mut orderers: Vec<Orderer> = (0..gateways).map(|_| orderer(capacity, 1, rank)).collect();
    // By gateway and engine: between which times it counts a request, and the request's uncached tokens.
    let mut loads = vec![vec![Vec::<(f64, f64, u64)>::new(); count]; gateways];
    let mut messages: BinaryHeap<Reverse<Message>> = BinaryHeap::new();
    let tokens: u64 = trace.iter().map(tokens_of).sum();
    let service = tokens as f64 / trace.len() as f64 / RATE + FIXED;
    let interval = service / count as f64 / LOAD;
    let mut random = Random::new(1);
    let (mut now, mut cached, mut waited) = (0.0, 0, 0.0);
    for (number, request) in trace.iter().enumerate() {
        now -= interval * (1.0 - random.unit()).ln();
        while messages
            .peek()
            .is_some_and(|Reverse(message)| message.at <= now)
        {
            let Some(Reverse(message)) = messages.pop() else {
                break;
            };
            for (gateway, orderer) in orderers.iter_mut().enumerate() {
                if message.from != Some(gateway) {
                    orderer.learn(&message.update);
                }
            }
        }
        let gateway = number % gateways;
        let choices: Vec<EngineCandidate> = (0..count)
            .map(|at| (at + number) % count)
            .map(|engine| {
                let load = &mut loads[gateway][engine];
                load.retain(|(_, end, _)| *end > now);
                let known = load.iter().filter(|(start, _, _)| *start <= now);
                EngineCandidate {
                    engine: EngineId(engine as u16),
                    outstanding: known.map(|(_, _, tokens)| tokens).sum(),
                }
            })
            .collect();
        let Decision {
            engine: at,
            sent,
            rewrite,
        } = decide(&mut orderers[gateway], &choices, request);
        let engine = &mut engines[at];
        let found = engine.cache.serve(request.scope, sent.iter());
        let todo = tokens_of(request) - found;
        cached += found;
        engine.free_at = engine.free_at.max(now) + todo as f64 / RATE + FIXED;
        waited += engine.free_at - now;
        for (other, loads) in loads.iter_mut().enumerate() {
            if other == gateway {
                loads[at].push((now, engine.free_at, todo));
            } else if hears == Hears::Records {
                loads[at].push((now + RECORD_DELAY, engine.free_at + RECORD_DELAY, todo));
            }
        }
        let run = &rewrite.path.runs[0];
        let documents = run.documents.iter().zip(&sent);
        let stored = Event::Stored {
            tenant: TenantKey::default(),
            scope: run.scope,
            path: documents
                .map(|(document, sent)| (*document, sent.tokens))
                .collect(),
        };
        if hears != Hears::Nothing {
            messages.push(Reverse(Message {
                at: engine.free_at + FEED_DELAY,
                number,
                from: None,
                update: PeerUpdate::Residency(Residency {
                    engine: EngineId(at as u16),
                    model: "m".into(),
                    events: vec![stored],
                }),
            }));
        }
        if hears == Hears::Records {
            messages.push(Reverse(Message {
                at: now + RECORD_DELAY,
                number,
                from: Some(gateway),
                update: PeerUpdate::Remote((&rewrite.record).into()),
            }));
        }
    }
    (
        cached as f64 / tokens as f64,
        waited / trace.len() as f64 * 1_000.0,
    )
}
