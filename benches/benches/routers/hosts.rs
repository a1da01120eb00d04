//! Three real hosts behind real Envoy, for each router three of its own.
//!
//! ```text
//!   3 clients ─▶ Envoy, 2 workers ─▶ 3 × foreword serve      round-robin, least request: Envoy's own
//!      └─ by turns the same requests to every router          text prefix: the client names the engine to Envoy
//!                                                             Foreword: the filter orders and names it, with the feeds
//! ```
//!
//! With [`compare_gateways`], one, two and four Envoys with the filter stand before their hosts, and get requests by turns.
//! With [`peers`], routers from PyPI stand between Envoy and their hosts instead.
//!
//! The fixture that is served has an MLP so narrow that attention takes two thirds of a long prompt's arithmetic: a cached beginning,
//! over which attention is cheap, saves less time there than in real models. `wide` serves the same shape with an MLP of
//! [`WIDE_MLP`] and random weights instead.
//!
//! The routers get the same requests in turns of [`CLIENTS`] at once, so that whatever else the machine does hits all
//! alike. Reuse and load are the hosts' own counters, times are the clients'.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use foreword_benches::Arguments;
use foreword_simulation::{Request, Retrieved, workload};
use foreword_tests::artifacts::{host_binary, repository};
use foreword_tests::http::{Client, exchange, post, post_with};
use foreword_tests::{Fallback, Gateway, GatewayOptions, Host};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::ENGINES;
use super::peers::{self, EventPorts, Peer, RunningPeer};
use super::simulated::{self, Generator};
use super::text_prefix::{self, TextPrefix};

const CLIENTS: usize = 3;
/// Requests of a turn where gateways are compared: clients send one after another, so what is sent while others are
/// computed is most of it.
const BURST: usize = 60;

/// What the hosts hold, and how long documents are.
#[derive(Clone, Copy)]
struct Scale {
    requests: usize,
    /// Room in each host's cache, in tokens.
    kv_tokens: u32,
    /// Sentences of each document, of nine tokens each.
    sentences: usize,
}

/// Prompts of about 360 tokens, of which each engine holds a small part of what is asked for.
const SMALL: Scale = Scale {
    requests: 600,
    kv_tokens: 14_336,
    sentences: 8,
};

/// Documents of some 200 tokens; each engine holds some 40 prompts of eight.
const LARGE: Scale = Scale {
    requests: 900,
    kv_tokens: 60_000,
    sentences: 22,
};

impl Scale {
    /// Returns [`LARGE`], or [`SMALL`] if the command line says `small`, with its `requests=…` where there are some.
    fn asked_for(arguments: &Arguments) -> Self {
        let is_small = arguments.says("small");
        let scale = if is_small { SMALL } else { LARGE };
        let requests = arguments.number("requests").unwrap_or(scale.requests);
        Self { requests, ..scale }
    }
}

/// Width of the MLP of the wide model, with which attention takes an eighth of the arithmetic of 1,800 tokens.
const WIDE_MLP: u32 = 4_096;

/// The checkpoint that the hosts serve.
enum Model {
    Fixture(PathBuf),
    /// A shape without weights, made for this run.
    Wide(TempDir),
}

impl Model {
    /// Returns the fixture, or a wide model if the command line says `wide`.
    fn asked_for(arguments: &Arguments) -> Result<Self> {
        let fixture = repository().join("host/engine/fixtures/qwen2");
        if !arguments.says("wide") {
            return Ok(Self::Fixture(fixture));
        }
        let made = tempfile::tempdir()?;
        for name in [
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
        ] {
            std::fs::copy(fixture.join(name), made.path().join(name)).context(name)?;
        }
        let config = std::fs::read(fixture.join("config.json"))?;
        let mut config: Value = serde_json::from_slice(&config)?;
        config["intermediate_size"] = json!(WIDE_MLP);
        std::fs::write(made.path().join("config.json"), config.to_string())?;
        Ok(Self::Wide(made))
    }

    fn folder(&self) -> &Path {
        match self {
            Self::Fixture(folder) => folder,
            Self::Wide(made) => made.path(),
        }
    }

    /// Returns what a host's command line says of its weights.
    fn arguments(&self) -> &'static [&'static str] {
        match self {
            Self::Fixture(_) => &[],
            Self::Wide(_) => &["--random-weights", "1"],
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Router {
    RoundRobin,
    LeastRequest,
    TextPrefix,
    Foreword,
    /// As many gateways that name the engine, before the same hosts.
    Gateways(u8, Hears),
    /// A router from PyPI, between Envoy and the hosts.
    Peer(Peer),
}

/// How gateways hear of each other's requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hears {
    Nothing,
    /// What engines report when prompts are computed.
    Feeds,
    /// That, and what the gateways tell each other.
    Records,
}

/// A router with its engines, and what its clients have seen.
struct Variant {
    name: &'static str,
    router: Router,
    hosts: Vec<Host>,
    /// The gateways, which get requests by turns.
    gateways: Vec<Gateway>,
    /// A router between Envoy and the hosts.
    _peer: Option<RunningPeer>,
    texts: TextPrefix,
    scale: Scale,
    /// Seconds to the first event of each answer.
    times: Vec<f64>,
    /// The processor time of gateways and hosts before the first request.
    before: [Duration; 2],
}

/// Prints the table that compares Envoy's routers and the filter's choice.
pub(crate) fn compare(arguments: &Arguments) -> Result<()> {
    let trace = workload::bursty(1, SMALL.requests, workload::Bursty::default());
    let arms = [
        ("round-robin", Router::RoundRobin, false),
        ("round-robin, Foreword's order", Router::RoundRobin, true),
        ("least request", Router::LeastRequest, false),
        ("text prefix", Router::TextPrefix, false),
        ("Foreword", Router::Foreword, true),
    ];
    let name = "bursty 0.6, k = 5";
    run(arguments, name, &trace, SMALL, CLIENTS, &arms)
}

/// Prints a table for two traces that compares several gateways with one, with and without what they tell each other.
pub(crate) fn compare_gateways(arguments: &Arguments) -> Result<()> {
    let gateways = Router::Gateways;
    let arms = [
        ("one", gateways(1, Hears::Feeds), true),
        ("two, alone", gateways(2, Hears::Nothing), true),
        ("two, feeds", gateways(2, Hears::Feeds), true),
        ("two, records", gateways(2, Hears::Records), true),
        ("four, alone", gateways(4, Hears::Nothing), true),
        ("four, feeds", gateways(4, Hears::Feeds), true),
        ("four, records", gateways(4, Hears::Records), true),
    ];
    let scale = Scale::asked_for(arguments);
    let requests = scale.requests;
    for (name, trace) in asked_for(arguments) {
        if name.contains("k = 8") || name.contains("bursty") {
            run(arguments, name, &trace(1, requests), scale, BURST, &arms)?;
        }
    }
    Ok(())
}

/// Prints a table for each trace that compares routers from PyPI with the filter's choice, if they are there.
pub(crate) fn compare_peers(arguments: &Arguments) -> Result<()> {
    if std::env::var_os(peers::PYTHON).is_none() {
        println!(
            "SKIPPED: {} does not name a Python with the routers",
            peers::PYTHON
        );
        return Ok(());
    }
    let arms = [
        ("round-robin", Router::RoundRobin, false),
        (
            "sglang-router, cache_aware",
            Router::Peer(peers::SGLANG),
            false,
        ),
        ("vllm-router, cache_aware", Router::Peer(peers::VLLM), false),
        ("vllm-router, kv_aware", Router::Peer(peers::VLLM_KV), false),
        ("smg, cache_aware", Router::Peer(peers::SMG), false),
        (
            "sglang-router, Foreword's order",
            Router::Peer(peers::SGLANG),
            true,
        ),
        (
            "vllm-router, Foreword's order",
            Router::Peer(peers::VLLM),
            true,
        ),
        (
            "vllm-router, kv_aware, Foreword's order",
            Router::Peer(peers::VLLM_KV),
            true,
        ),
        ("smg, Foreword's order", Router::Peer(peers::SMG), true),
        ("**Foreword**", Router::Foreword, true),
    ];
    let scale = Scale::asked_for(arguments);
    let requests = scale.requests;
    for (name, trace) in asked_for(arguments) {
        run(arguments, name, &trace(1, requests), scale, CLIENTS, &arms)?;
    }
    Ok(())
}

/// The traces, or with `k=…` on the command line those of so many documents.
fn asked_for(arguments: &Arguments) -> impl Iterator<Item = (&'static str, Generator)> {
    let only: Option<u32> = arguments.number("k");
    let traces = simulated::traces().into_iter();
    traces.filter(move |(name, _)| only.is_none_or(|only| name.ends_with(&format!("k = {only}"))))
}

/// Sends a trace to all routers in turns of so many requests, and prints their table.
fn run(
    arguments: &Arguments,
    name: &str,
    trace: &[Request],
    scale: Scale,
    per_turn: usize,
    arms: &[(&'static str, Router, bool)],
) -> Result<()> {
    let model = Model::asked_for(arguments)?;
    let arms = arms.iter();
    let rank = arguments.rank("place");
    let variants = arms.map(|&(name, router, ordered)| {
        Variant::start(name, router, ordered, scale, &model, &rank)
    });
    let mut variants: Vec<Variant> = variants.collect::<Result<_>>()?;
    for variant in &mut variants {
        variant.before = variant.cpu_times()?;
    }
    for (turn, requests) in trace.chunks(per_turn).enumerate() {
        for at in 0..variants.len() {
            let index = (at + turn) % variants.len();
            variants[index].ask(requests, turn)?;
        }
    }
    println!(
        "\n{} requests ({name}), {ENGINES} hosts of {} KV tokens, {CLIENTS} at once, in turns of {per_turn}",
        trace.len(),
        scale.kv_tokens
    );
    println!(
        "| router | prompt tokens | cached | busiest / mean | first token, mean | p95 | mean, of the first's | processor, gateways | hosts |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let base = mean(&variants[0].times);
    for variant in &mut variants {
        let counts = variant.hosts.iter().map(counts);
        let counts: Vec<(f64, f64)> = counts.collect::<Result<_>>()?;
        let prompt: f64 = counts.iter().map(|(prompt, _)| prompt).sum();
        let cached: f64 = counts.iter().map(|(_, cached)| cached).sum();
        let computed = counts.iter().map(|(prompt, cached)| prompt - cached);
        let busiest = computed.fold(0.0, f64::max);
        let time = mean(&variant.times);
        variant.times.sort_by(f64::total_cmp);
        let [gateways, hosts] = variant
            .cpu_times()?
            .map(|time| time.as_secs_f64() * 1_000.0);
        let [gateways_before, hosts_before] =
            variant.before.map(|time| time.as_secs_f64() * 1_000.0);
        let requests = trace.len() as f64;
        println!(
            "| {} | {prompt} | {:.1} % | {:.2} | {:.0} ms | {:.0} ms | {:.2} | {:.1} ms | {:.1} ms |",
            variant.name,
            100.0 * cached / prompt,
            busiest * ENGINES as f64 / (prompt - cached),
            1_000.0 * time,
            1_000.0 * variant.times[variant.times.len() * 95 / 100],
            time / base,
            (gateways - gateways_before) / requests,
            (hosts - hosts_before) / requests,
        );
    }
    Ok(())
}

impl Variant {
    fn start(
        name: &'static str,
        router: Router,
        ordered: bool,
        scale: Scale,
        model: &Model,
        rank: &Value,
    ) -> Result<Self> {
        let binary = host_binary("release")?;
        let events: Vec<EventPorts> = (0..ENGINES)
            .map(|_| EventPorts::free())
            .collect::<Result<_>>()?;
        // Gateways tell each other nothing without the feed's key.
        let key = "5a".repeat(32);
        let key_file = tempfile::NamedTempFile::new()?;
        std::fs::write(key_file.path(), &key)?;
        let hosts = events.iter().map(|events| {
            let kv_tokens = scale.kv_tokens.to_string();
            let mut arguments: Vec<String> = ["--name", "tiny", "--kv-tokens", &kv_tokens]
                .map(Into::into)
                .into();
            arguments.extend(model.arguments().iter().map(|&argument| argument.into()));
            if let Router::Peer(peer) = router {
                arguments.extend(["--drop-in".into(), peer.drop_in.into()]);
                arguments.extend(events.arguments());
            }
            let file = key_file.path().display().to_string();
            arguments.extend(["--feed-key-file".into(), file]);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            Host::start_binary(&binary, model.folder(), &arguments)
        });
        let hosts: Vec<Host> = hosts.collect::<Result<_>>().context(name)?;
        let addresses: [SocketAddr; ENGINES] = std::array::from_fn(|at| hosts[at].address());
        let (count, hears) = match router {
            Router::Gateways(count, hears) => (count, hears),
            _ => (1, Hears::Feeds),
        };
        let engines: Vec<Value> = ["a", "b", "c"]
            .into_iter()
            .zip(addresses)
            .map(|(name, address)| {
                let feed = json!({"cluster": format!("feed-{name}"), "key": key});
                let feed = (hears != Hears::Nothing).then_some(feed);
                json!({"name": name, "address": address.to_string(), "feed": feed})
            })
            .collect();
        let agreement = json!({"gateways": hears == Hears::Records});
        let ordering = json!({"rank": rank});
        let plugin = match (ordered, router) {
            (false, _) => None,
            (true, Router::Foreword | Router::Gateways(..)) => {
                Some(json!({"ordering": ordering, "engines": engines, "agreement": agreement}))
            }
            (true, _) => Some(json!({"ordering": ordering})),
        };
        let peer = match router {
            Router::Peer(peer) => Some(RunningPeer::start(peer, &hosts, &events).context(name)?),
            _ => None,
        };
        let behind = peer.is_none();
        let options = GatewayOptions {
            engines: behind.then_some(addresses),
            feeds: behind.then(|| std::array::from_fn(|at| hosts[at].internal())),
            rate_limit: false,
            fallback: match router {
                Router::RoundRobin => Fallback::RoundRobin,
                _ => Fallback::LeastRequest,
            },
            plugin,
            // Two cores have no use for more workers.
            concurrency: if count == 1 { 2 } else { 1 },
            ..GatewayOptions::new(peer.as_ref().map_or(addresses[0], |peer| peer.address))
        };
        Ok(Self {
            name,
            router,
            gateways: (0..count)
                .map(|_| Gateway::start(&options).context(name))
                .collect::<Result<_>>()?,
            _peer: peer,
            hosts,
            texts: TextPrefix::default(),
            scale,
            times: Vec::new(),
            before: [Duration::ZERO; 2],
        })
    }

    /// The processor time that gateways and hosts have used so far.
    fn cpu_times(&self) -> Result<[Duration; 2]> {
        let gateways = self.gateways.iter().map(Gateway::cpu_time);
        let hosts = self.hosts.iter().map(Host::cpu_time);
        Ok([gateways.sum::<Result<_>>()?, hosts.sum::<Result<_>>()?])
    }

    /// Sends requests, [`CLIENTS`] at once and each on a connection of its own, and waits for all.
    fn ask(&mut self, requests: &[Request], turn: usize) -> Result<()> {
        let mut queues = [0; ENGINES];
        let messages: Vec<Vec<u8>> = requests
            .iter()
            .map(|request| {
                let text = |document: &Retrieved| text(document, self.scale.sentences);
                let body = body(request, text).to_string();
                if self.router != Router::TextPrefix {
                    return post(body.as_bytes());
                }
                let texts: Vec<String> = request.documents.iter().map(&text).collect();
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
        let (next, first) = (AtomicUsize::new(0), self.times.len());
        let gateways: Vec<SocketAddr> = self.gateways.iter().map(Gateway::address).collect();
        let client = || -> Result<Vec<f64>> {
            let mut times = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(message) = messages.get(at) else {
                    return Ok(times);
                };
                let gateway = gateways[(first + at) % gateways.len()];
                times.push(first_event(gateway, message)?);
            }
        };
        let times: Vec<Result<Vec<f64>>> = thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
            let times = clients.into_iter().map(thread::ScopedJoinHandle::join);
            times.map(|time| time.expect("a client panicked")).collect()
        });
        for time in times {
            self.times.extend(time.context(self.name)?);
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

fn body(request: &Request, text: impl Fn(&Retrieved) -> String) -> Value {
    let documents: String = request.documents.iter().map(text).collect();
    let content = format!("{documents}Why?");
    json!({
        "model": "tiny",
        "max_tokens": 1,
        "stream": true,
        "messages": [{"role": "user", "content": content}],
    })
}

/// A document of so many sentences, of about nine tokens each.
fn text(document: &Retrieved, sentences: usize) -> String {
    let id = &document.label;
    let words = format!("What {id} says of it. ").repeat(sentences);
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
