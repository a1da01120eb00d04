//! Three real hosts behind real Envoy, for each router three of its own.
//!
//! ```text
//!   3 clients ─▶ Envoy, 2 workers ─▶ 3 × foreword serve      round-robin, least request: Envoy's own
//!      └─ by turns the same requests to every router          text prefix: the client names the engine to Envoy
//!                                                             Foreword: the filter orders and names it, with the feeds
//! ```
//!
//! The routers get the same requests in turns of [`CLIENTS`] at once, so that whatever else the machine does hits all
//! alike. Reuse and load are the hosts' own counters, times are the clients'.

use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use foreword_simulation::{Request, Retrieved, workload};
use foreword_tests::artifacts::{host_binary, repository};
use foreword_tests::http::{Client, exchange, post, post_with};
use foreword_tests::{Fallback, Gateway, GatewayOptions, Host};
use serde_json::{Value, json};

use crate::ENGINES;
use crate::text_prefix::{self, TextPrefix};

const CLIENTS: usize = 3;
const REQUESTS: usize = 600;
/// Room in each host's cache, in prompts of about 360 tokens: each engine holds a small part of what is asked for.
const KV_TOKENS: &str = "14336";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Router {
    RoundRobin,
    LeastRequest,
    TextPrefix,
    Foreword,
}

/// A router with its engines, and what its clients have seen.
struct Variant {
    name: &'static str,
    router: Router,
    hosts: Vec<Host>,
    gateway: Gateway,
    texts: TextPrefix,
    /// Seconds to the first event of each answer.
    times: Vec<f64>,
}

/// Prints the table that compares the routers.
pub(crate) fn compare() -> Result<()> {
    let trace = workload::bursty(1, REQUESTS, workload::Bursty::default());
    let mut variants = [
        Variant::start("round-robin", Router::RoundRobin, false)?,
        Variant::start("round-robin, Foreword's order", Router::RoundRobin, true)?,
        Variant::start("least request", Router::LeastRequest, false)?,
        Variant::start("text prefix", Router::TextPrefix, false)?,
        Variant::start("Foreword", Router::Foreword, true)?,
    ];
    for (turn, requests) in trace.chunks(CLIENTS).enumerate() {
        for at in 0..variants.len() {
            let index = (at + turn) % variants.len();
            variants[index].ask(requests, turn)?;
        }
    }
    println!(
        "{REQUESTS} requests (bursty 0.6, k = 5), {ENGINES} hosts, {CLIENTS} at once, in turns"
    );
    println!(
        "| router | prompt tokens | cached | busiest / mean | first token, mean | of round-robin's |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    let base = mean(&variants[0].times);
    for variant in &variants {
        let counts = variant.hosts.iter().map(counts);
        let counts: Vec<(f64, f64)> = counts.collect::<Result<_>>()?;
        let prompt: f64 = counts.iter().map(|(prompt, _)| prompt).sum();
        let cached: f64 = counts.iter().map(|(_, cached)| cached).sum();
        let computed = counts.iter().map(|(prompt, cached)| prompt - cached);
        let busiest = computed.fold(0.0, f64::max);
        let time = mean(&variant.times);
        println!(
            "| {} | {prompt} | {:.1} % | {:.2} | {:.0} ms | {:.2} |",
            variant.name,
            100.0 * cached / prompt,
            busiest * ENGINES as f64 / (prompt - cached),
            1_000.0 * time,
            time / base,
        );
    }
    Ok(())
}

impl Variant {
    fn start(name: &'static str, router: Router, ordered: bool) -> Result<Self> {
        let model = repository().join("host/engine/fixtures/qwen2");
        let args = ["--name", "tiny", "--kv-tokens", KV_TOKENS];
        let binary = host_binary("release")?;
        let hosts = (0..ENGINES).map(|_| Host::start_binary(&binary, &model, &args));
        let hosts: Vec<Host> = hosts.collect::<Result<_>>().context(name)?;
        let addresses: [SocketAddr; ENGINES] = std::array::from_fn(|at| hosts[at].address());
        let engines: Vec<Value> = ["a", "b", "c"]
            .into_iter()
            .zip(addresses)
            .map(|(name, address)| {
                let feed = json!({"cluster": format!("feed-{name}")});
                json!({"name": name, "address": address.to_string(), "feed": feed})
            })
            .collect();
        let plugin = match (ordered, router) {
            (false, _) => None,
            (true, Router::Foreword) => Some(json!({"engines": engines})),
            (true, _) => Some(json!({})),
        };
        let options = GatewayOptions {
            engines: Some(addresses),
            feeds: Some(std::array::from_fn(|at| hosts[at].internal())),
            fallback: match router {
                Router::RoundRobin => Fallback::RoundRobin,
                _ => Fallback::LeastRequest,
            },
            plugin,
            concurrency: 2,
            ..GatewayOptions::new(addresses[0])
        };
        Ok(Self {
            name,
            router,
            gateway: Gateway::start(&options).context(name)?,
            hosts,
            texts: TextPrefix::default(),
            times: Vec::new(),
        })
    }

    /// Sends some requests at once, each on a connection of its own, and waits for all.
    fn ask(&mut self, requests: &[Request], turn: usize) -> Result<()> {
        let mut queues = [0; ENGINES];
        let messages: Vec<Vec<u8>> = requests
            .iter()
            .map(|request| {
                let body = body(request).to_string();
                if self.router != Router::TextPrefix {
                    return post(body.as_bytes());
                }
                let texts: Vec<String> = request.documents.iter().map(text).collect();
                let blocks = text_prefix::chain(texts.iter().map(String::as_bytes));
                let engine = self.texts.choose(&blocks, &queues, turn);
                self.texts.sent(engine, &blocks);
                queues[engine] += 1;
                let address = self.hosts[engine].address();
                let header = format!("x-gateway-destination-endpoint: {address}");
                post_with(
                    &["content-type: application/json", &header],
                    body.as_bytes(),
                )
            })
            .collect();
        let address = self.gateway.address();
        let times: Vec<Result<f64>> = thread::scope(|scope| {
            let clients = messages
                .iter()
                .map(|message| scope.spawn(move || first_event(address, message)));
            let clients: Vec<_> = clients.collect();
            let times = clients.into_iter().map(thread::ScopedJoinHandle::join);
            times.map(|time| time.expect("a client panicked")).collect()
        });
        for time in times {
            self.times.push(time.context(self.name)?);
        }
        Ok(())
    }
}

/// Seconds until an answer begins.
fn first_event(address: SocketAddr, message: &[u8]) -> Result<f64> {
    let mut client = Client::connect(address)?;
    let start = Instant::now();
    client.send(message)?;
    let head = client.head()?;
    let first = client.piece(&head)?;
    let elapsed = start.elapsed().as_secs_f64();
    ensure!(
        head.status == 200 && first.is_some(),
        "status {}",
        head.status
    );
    while client.piece(&head)?.is_some() {}
    Ok(elapsed)
}

fn body(request: &Request) -> Value {
    let documents: String = request.documents.iter().map(text).collect();
    let content = format!("{documents}Why?");
    json!({
        "model": "tiny",
        "max_tokens": 1,
        "stream": true,
        "messages": [{"role": "user", "content": content}],
    })
}

/// Some 70 tokens of the tiny model's.
fn text(document: &Retrieved) -> String {
    let id = &document.label;
    let words = format!("What {id} says of it. ").repeat(8);
    format!("<document id=\"{id}\">{words}</document>\n")
}

/// Prompt tokens and cached ones, by the host.
fn counts(host: &Host) -> Result<(f64, f64)> {
    let request = b"GET /metrics HTTP/1.1\r\nhost: host\r\n\r\n";
    let text = String::from_utf8(exchange(host.internal(), request)?.body)?;
    let count = |name: &str| -> Result<f64> {
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.with_context(|| format!("no {name}"))?.parse()?)
    };
    Ok((
        count("foreword_prompt_tokens_total")?,
        count("foreword_cached_tokens_total")?,
    ))
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len() as f64
}
