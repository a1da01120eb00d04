//! How long it takes until one worker knows what another one did.
//!
//! `cargo bench -p foreword-benches --bench agreement`
//!
//! One Envoy runs with two workers and a connection to each. A request about new documents goes to one worker. Some
//! time later a request with the same documents in reverse order goes to the other worker, which knows of the first if
//! it matches them. A worker reads what it does not know yet before it orders a request, so nothing waits for a tick.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use foreword_tests::http::{Client, post};
use foreword_tests::{Gateway, GatewayOptions, Shell, Upstream};
use serde_json::json;

const REQUESTS: usize = 400;
/// Microseconds between the two requests.
const LATER: [u64; 7] = [0, 50, 100, 200, 400, 800, 1_600];

fn main() -> Result<()> {
    let benching = std::env::args().any(|argument| argument == "--bench");
    let requests = if benching { REQUESTS } else { 4 };
    let upstream = Upstream::forgetful()?;
    let gateway = Gateway::start(&GatewayOptions {
        shell: Shell::Wasm,
        concurrency: 2,
        ..GatewayOptions::new(upstream.address())
    })?;
    let mut clients = [connect(&gateway, 0)?, connect(&gateway, 1)?];
    println!("{requests} pairs of requests, two workers");
    println!("| sent later by | known to the other worker |");
    println!("| ---: | ---: |");
    let mut topic = 0;
    for later in LATER.map(Duration::from_micros) {
        let mut known = 0;
        for number in 0..requests {
            topic += 1;
            // Alternately, so that neither worker is always the first.
            let [first, second] = &mut clients;
            let (first, second) = match number % 2 {
                0 => (first, second),
                _ => (second, first),
            };
            let start = Instant::now();
            first.send(&request(topic, ["a", "b", "c"]))?;
            let message = request(topic, ["c", "b", "a"]);
            while start.elapsed() < later {
                std::hint::spin_loop();
            }
            second.send(&message)?;
            ensure!(first.response()?.report().contains("documents=3"));
            known += u32::from(second.response()?.report().contains("matched=3"));
        }
        println!(
            "| {} µs | {:.1} % |",
            later.as_micros(),
            100.0 * f64::from(known) / requests as f64
        );
    }
    Ok(())
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
