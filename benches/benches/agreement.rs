//! How long it takes until one worker knows what another one did, of its own Envoy or of another.
//!
//! `cargo bench -p foreword-benches -- agreement [workers|gateways]`
//!
//! A request about new documents goes to one worker. Some time later a request with the same documents in reverse order goes
//! to the other worker, which knows of the first if it matches them. Workers of one Envoy read what they do not know yet
//! before they order a request, so nothing waits for a tick. Envoys tell each other through the server of an engine's feed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use foreword_benches::Arguments;
use foreword_tests::artifacts::repository;
use foreword_tests::http::{Client, post};
use foreword_tests::{Gateway, GatewayOptions, Host, Shell, Upstream};
use serde_json::{Value, json};

const REQUESTS: usize = 400;
/// Microseconds between two requests to workers of one Envoy.
const LATER: [u64; 7] = [0, 50, 100, 200, 400, 800, 1_600];
/// Microseconds between two requests to two Envoys.
const LATER_ELSEWHERE: [u64; 8] = [0, 1_000, 2_000, 3_000, 4_000, 6_000, 10_000, 20_000];
/// The last part of the time between, which is not slept through.
const SPIN: Duration = Duration::from_micros(800);

pub(crate) fn bench(arguments: &Arguments) -> Result<()> {
    let requests = if arguments.benching { REQUESTS } else { 4 };
    if arguments.has("workers") {
        compare_workers(requests)?;
    }
    if arguments.has("gateways") {
        compare_gateways(requests)?;
    }
    Ok(())
}

fn compare_workers(requests: usize) -> Result<()> {
    let upstream = Upstream::forgetful()?;
    let gateway = Gateway::start(&GatewayOptions {
        shell: Shell::Wasm,
        concurrency: 2,
        ..GatewayOptions::new(upstream.address())
    })?;
    let mut clients = [connect(&gateway, 0)?, connect(&gateway, 1)?];
    println!("{requests} pairs of requests, two workers");
    compare(&mut clients, requests, &LATER)
}

fn compare_gateways(requests: usize) -> Result<()> {
    let upstream = Upstream::forgetful()?;
    let model = repository().join("host/engine/fixtures/qwen2");
    // It serves the feed, and gets no request.
    let host = Host::start(&model, &["--name", "m", "--kv-tokens", "2560"])?;
    let engine = |name: &str, feed: Value| json!({"name": name, "address": upstream.address().to_string(), "feed": feed});
    let engines = [engine("a", json!({"cluster": "feed-a"}))];
    let addresses = [upstream.address(); 3];
    let gateway = || {
        Gateway::start(&GatewayOptions {
            shell: Shell::Wasm,
            concurrency: 2,
            engines: Some(addresses),
            feeds: Some([host.internal(); 3]),
            plugin: Some(json!({"engines": engines})),
            ..GatewayOptions::new(upstream.address())
        })
    };
    let gateways = [gateway()?, gateway()?];
    let mut clients = [
        Client::connect(gateways[0].address())?,
        Client::connect(gateways[1].address())?,
    ];
    // Gateways tell each other nothing before they know that somebody listens.
    let mut known = 0;
    for at in 0.. {
        ensure!(at < 100, "the gateways never heard of each other");
        std::thread::sleep(Duration::from_millis(50));
        let topic = usize::MAX - at;
        known = if pair(&mut clients, topic, Duration::from_millis(20))? {
            known + 1
        } else {
            0
        };
        clients.reverse();
        if known == 4 {
            break;
        }
    }
    println!("{requests} pairs of requests, two Envoys of two workers");
    compare(&mut clients, requests, &LATER_ELSEWHERE)
}

/// Prints how often the second client's worker knew of the first's request, by the time between their requests.
fn compare(clients: &mut [Client; 2], requests: usize, later: &[u64]) -> Result<()> {
    println!("| sent later by | known to the other |");
    println!("| ---: | ---: |");
    let mut topic = 0;
    for later in later.iter().copied().map(Duration::from_micros) {
        let mut known = 0;
        for _ in 0..requests {
            topic += 1;
            known += u32::from(pair(clients, topic, later)?);
            // Alternately, so that neither worker is always the first.
            clients.reverse();
        }
        println!(
            "| {} µs | {:.1} % |",
            later.as_micros(),
            100.0 * f64::from(known) / requests as f64
        );
    }
    Ok(())
}

/// Sends a request to the first, and its documents in reverse order to the second; returns whether the second knew them.
fn pair(clients: &mut [Client; 2], topic: usize, later: Duration) -> Result<bool> {
    let [first, second] = clients;
    let start = Instant::now();
    first.send(&request(topic, ["a", "b", "c"]))?;
    let message = request(topic, ["c", "b", "a"]);
    std::thread::sleep(later.saturating_sub(SPIN));
    while start.elapsed() < later {
        std::hint::spin_loop();
    }
    second.send(&message)?;
    ensure!(first.response()?.report().contains("documents=3"));
    Ok(second.response()?.report().contains("matched=3"))
}

/// Returns a connection that this worker has accepted.
fn connect(gateway: &Gateway, worker: usize) -> Result<Client> {
    let count = || -> Result<u64> {
        let name = format!("worker_{worker}.downstream_cx_total: ");
        let stats = gateway.admin_get("/stats?filter=listener.*worker_.*downstream_cx_total")?;
        let mut lines = stats.lines().filter(|line| !line.contains("admin"));
        let value = lines.find_map(|line| line.split_once(name.as_str()));
        Ok(value.context("no such worker")?.1.parse()?)
    };
    for _ in 0..100 {
        let before = count()?;
        let mut client = Client::connect(gateway.address())?;
        // A connection belongs to a worker once the worker has answered on it.
        client.send(&post(b"{}"))?;
        client.response()?;
        if count()? > before {
            return Ok(client);
        }
    }
    anyhow::bail!("worker {worker} gets no connections")
}

fn request(topic: usize, names: [&str; 3]) -> Vec<u8> {
    let documents = names
        .map(|name| format!("<document id=\"{name}\">What {topic} says of {name}.</document>"));
    let content = format!("{}\nWhy?", documents.concat());
    let body = json!({"model": "m", "messages": [{"role": "user", "content": content}]});
    post(body.to_string().as_bytes())
}
