//! Half an hour of mixed traffic in a minute: nothing is lost, sent twice or altered, and memory stays flat.
//!
//! ```text
//!   8 clients ──► Envoy, 4 workers ──► upstream            every request carries an id; the upstream checks each body
//!      │             ▲ reload, good and bad  ▲ restart     against what the client registered, and counts
//!      │             │ restart, early        │
//!      └─ how it ended ───► ledger ◄─────────┘             at the end: every id, by how it may have ended
//! ```
//!
//! Clients send small and large bodies, whole, in trickles and in chunks. They read answers and streams, leave in
//! mid-body and before the answer, and send what is refused. The upstream answers, streams, hangs up and breaks off.
//! Tenants have salts, so every body is rewritten. `FOREWORD_SOAK_SECONDS` sets the duration (60 by default, of which a
//! third comes before the last restart of Envoy), and `FOREWORD_SOAK_SEED` the seed.

mod ledger;
mod memory;
mod traffic;
mod trap;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use foreword_ordering::random::Random;
use foreword_tests::{Gateway, GatewayOptions, Upstream};
use serde_json::{Value, json};

use ledger::Ledger;
use memory::Memory;
use traffic::{Client, Door};

const CLIENTS: u64 = 8;
const WORKERS: u32 = 4;
/// Tolerated growth between the means of two quarters, for the allocator; a leak of one large body in fifty would show.
const GROWTH_BYTES: u64 = 64 << 20;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is {value:?}, not a number"))
    })
}

/// Returns configurations to apply in turn. All keep every document and every other byte, except for the salt.
fn configurations() -> Vec<Value> {
    [
        json!({"policy": "longest"}),
        json!({"policy": "foresight"}),
        json!({"policy": "sorted", "tree": {"max_nodes": 500}}),
    ]
    .into_iter()
    .map(|ordering| (ordering, json!({})))
    .chain([
        (json!({}), json!({"mode": "dry-run"})),
        (json!({}), json!({"experiment": {"control_share": 0.5}})),
        (json!({}), json!({"agreement": {"entries": 64}})),
    ])
    .map(|(mut ordering, mut plugin)| {
        // A hint's words would be bytes that no client sent.
        ordering["hint"] = json!({"enabled": false});
        ordering["conversation"] = json!({"deduplicate": false, "max_bytes": 1 << 20});
        if ordering["tree"].is_null() {
            ordering["tree"] = json!({"max_nodes": 5_000});
        }
        plugin["ordering"] = ordering;
        plugin["tenant"] = json!({"header": "x-tenant"});
        plugin["salt"] = json!({"key": traffic::KEY});
        plugin["bypass_header"] = json!("x-raw");
        plugin
    })
    .collect()
}

fn start(upstream: &Upstream) -> Gateway {
    let options = GatewayOptions {
        plugin: Some(configurations().swap_remove(0)),
        concurrency: WORKERS,
        reloadable: true,
        ..GatewayOptions::placing_freely(upstream.address())
    };
    Gateway::start(&options).unwrap()
}

/// Asserts that nothing trapped since Envoy was last started.
fn assert_sound(gateway: &Gateway) {
    assert_eq!(gateway.failures().unwrap(), 0);
    let log = gateway.log().unwrap();
    for word in ["panicked", "Uncaught", "Function: proxy_"] {
        assert!(!log.contains(word), "{word} in {log}");
    }
}

#[test]
fn half_an_hour_of_mixed_traffic_loses_repeats_and_alters_nothing() {
    let span = Duration::from_secs(setting("FOREWORD_SOAK_SECONDS", 60));
    let seed = setting("FOREWORD_SOAK_SEED", 1);
    let ledger = Arc::new(Ledger::default());
    let mut upstream = traffic::upstream(&ledger).unwrap();
    let mut gateway = start(&upstream);
    let door = Arc::new(Door::default());
    door.open(gateway.address());
    let stop = Arc::new(AtomicBool::new(false));
    let begun = Instant::now();

    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let mut client = Client::new(number, seed, &door, &ledger);
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    client.act();
                }
            })
        })
        .collect();

    let mut dice = Random::new(seed);
    let configurations = configurations();
    let (mut reloads, mut refused, mut restarts, mut lives) = (0, 0, 0, 1);
    // Memory since Envoy was last started.
    let mut memory = Memory::default();
    let (mut served, mut current) = (0, 0);
    while begun.elapsed() < span {
        // The next event happens after a number of further requests, not after some time.
        served += 40 + dice.below(80);
        ledger.wait(served, begun + span);
        let is_early = begun.elapsed() < span / 3;
        match dice.below(8) {
            0 | 1 => {
                let bad = json!({"ordering": {"tree": {"max_nodes": 0, "max_tokens": refused}}});
                let error = gateway.reload(&bad).unwrap_err().to_string();
                assert!(error.contains("refuses"), "{error}");
                refused += 1;
            }
            2 => {
                upstream.restart().unwrap();
                restarts += 1;
            }
            3 if is_early => {
                assert_sound(&gateway);
                // The clients' connections break; the new Envoy listens on another address.
                door.close();
                drop(gateway);
                gateway = start(&upstream);
                current = 0;
                door.open(gateway.address());
                lives += 1;
            }
            _ => {
                // A different configuration, because Envoy ignores a file that has not changed.
                let others = configurations.len() as u64 - 1;
                current = (current + 1 + dice.below(others) as usize) % configurations.len();
                gateway.reload(&configurations[current]).unwrap();
                reloads += 1;
            }
        }
        if !is_early {
            memory.look(&gateway, begun.elapsed());
        }
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    assert_sound(&gateway);
    drop(upstream);
    let tally = ledger.settle();
    println!(
        "{} requests in {:.0?}: {tally}\n{reloads} reloads, {refused} refused, {restarts} restarts of the upstream, \
         {lives} lives of Envoy\n{memory}",
        ledger.ended(),
        begun.elapsed(),
    );
    let [settled, after] = memory.last_quarters();
    assert!(
        after < settled + GROWTH_BYTES,
        "{settled} bytes grew to {after}: {memory}"
    );
    assert!(
        reloads > 0 && refused > 0 && restarts > 0,
        "too short to say anything"
    );
}
