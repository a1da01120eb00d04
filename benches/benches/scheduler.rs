//! The queue in front of the engine: what deciding costs, and what the order is worth.
//!
//! ```text
//! FOREWORD_XQUAD=…/xquad.en.json cargo bench -p foreword-benches -- scheduler
//! cargo bench -p foreword-benches -- scheduler cost      a decision with 32 running, 1,000 waiting, 100,000 nodes
//! cargo bench -p foreword-benches -- scheduler order     time to first token by queue order and cache size
//! cargo bench -p foreword-benches -- scheduler host      the same by size of host memory
//! cargo bench -p foreword-benches -- scheduler policies  time to first token by eviction policy and size of host memory
//! cargo bench -p foreword-benches -- scheduler groups    what is cached under overload, by queue order and window
//! cargo bench -p foreword-benches -- scheduler real      the same on the CPU backend, for once
//! ```
//!
//! `order` and `host` are RAGCache's ablation (section 7.4, figure 21), `policies` its table 2: requests come at random times, a little faster than they can be served.
//! The engine is the real one, on a device with a clock of its own, so its figures are the same on every machine.

use foreword_benches::simulated::{self, Arrival, Costs, Device, House, PAGE_TOKENS, Served};
use foreword_benches::{Arguments, workloads, xquad};
use foreword_engine::backend::cpu::{CpuBackend, CpuConfig, Precision};
use foreword_engine::cache::{CacheConfig, DocumentPath, DocumentSpan, EvictionPolicy};
use foreword_engine::engine::{
    Engine, EngineConfig, Event, Generation, Kind, PrefillBatch, Request, Rule, SubmitError,
};
use foreword_engine::models::{Checkpoint, Element, ModelConfig};
use foreword_ordering::policy::{PolicyKind, PolicyOptions};
use foreword_ordering::random::Random;
use foreword_simulation::{Capacity, Replay, Retrieved, Trace, workload};
use std::sync::Arc;
use std::time::{Duration, Instant};

const WINDOW: Rule = Rule::CachedFirst {
    window: Rule::WINDOW,
};

const GROUPS: Rule = Rule::Grouped {
    window: Rule::WINDOW,
};

pub(crate) fn bench(arguments: &Arguments) {
    if arguments.has("cost") {
        cost();
    }
    if arguments.has("order") {
        order(&DEVICES);
    }
    if arguments.has("host") {
        order(&HOSTS);
    }
    if arguments.has("policies") {
        policies();
    }
    if arguments.has("groups") {
        groups();
    }
    if arguments.has("real") {
        real();
    }
}

/// What a step costs besides the device's part.
fn cost() {
    const NODES: u32 = 100_000;
    const RUNNING: u32 = 32;
    const WAITING: usize = 1_000;
    const STEPS: usize = 2_000;
    println!("Deciding a step: {RUNNING} running, {WAITING} waiting, {NODES} nodes in the tree\n");
    println!("| queue order | tenants | answers of | mean, µs | median | 99th | worst |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for (name, rule) in [
        ("arrival", Rule::Arrival),
        ("cached first", WINDOW),
        ("grouped", GROUPS),
    ] {
        // Long answers: nobody is admitted. Short ones: about one a step.
        for (tenants, answer) in [(1, 100_000), (1, 32), (100, 32)] {
            let config = EngineConfig {
                max_waiting: u32::MAX,
                max_running: RUNNING,
                max_step_tokens: 2_048,
                max_prefill_batch: PrefillBatch::Requests(u32::MAX),
                order: rule,
                ..EngineConfig::default()
            };
            let tokens = (NODES + 60_000) * PAGE_TOKENS;
            let mut house = House::new(Costs::MISTRAL_7B_A10G, tokens, &config);
            // 127 pages a prompt: 10 documents of 200 tokens, nobody else's, and a question.
            let fresh = |number: u64| (0..10).map(move |at| (number * 100 + at, 200));
            let mut number = 0;
            while house.stepper().stats().cache.cached < NODES {
                number += 1;
                let warm: Vec<(u64, u32)> = fresh(number).collect();
                warm_up(&mut house, &request(&warm, 0, number));
            }
            let warm = number;
            let mut random = Random::new(1);
            let mut open: Vec<Generation> = Vec::new();
            let mut times = Vec::with_capacity(STEPS);
            while times.len() < STEPS {
                for _ in house.stepper().stats().waiting as usize..WAITING {
                    // Half of the prompt was computed before.
                    number += 1;
                    let known = fresh(1 + random.below(warm)).take(5);
                    let asked: Vec<(u64, u32)> = known.chain(fresh(number).take(5)).collect();
                    let request = Request {
                        tenant: random.below(tenants).to_string().into(),
                        ..request(&asked, answer, number)
                    };
                    open.push(house.submit(request).expect("there is room"));
                }
                // With an admission a step there is an end a step, too: then one place is always just free.
                let full = house.stepper().stats().running * 8 >= RUNNING * 7;
                let begin = Instant::now();
                house.step();
                let time = begin.elapsed();
                if full {
                    times.push(time);
                }
                open.retain_mut(|generation| !matches!(last(generation), Some(Event::Finished(_))));
            }
            times.sort_unstable();
            let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
            let mean = times.iter().sum::<Duration>() / times.len() as u32;
            let at = |share: usize| microseconds(times[(times.len() - 1) * share / 100]);
            println!(
                "| {name} | {tenants} | {answer} | {:.1} | {:.1} | {:.1} | {:.1} |",
                microseconds(mean),
                at(50),
                at(99),
                at(100)
            );
        }
    }
    println!();
}

fn request(documents: &[(u64, u32)], max_tokens: u32, question: u64) -> Request {
    let mut end = 0;
    let spans = documents.iter().map(|&(fingerprint, tokens)| {
        end += tokens;
        DocumentSpan { fingerprint, end }
    });
    Request {
        documents: Some(DocumentPath {
            scope: 0,
            start: 0,
            documents: spans.collect(),
        }),
        prompt: simulated::prompt(documents.iter().copied(), question),
        max_tokens,
        ..Request::default()
    }
}

fn warm_up(house: &mut House, request: &Request) {
    let warming = Request {
        kind: Kind::Prefill,
        ..request.clone()
    };
    let _generation = house.submit(warming).expect("there is room");
    while !house.stepper().is_idle() {
        house.step();
    }
}

fn last(generation: &mut Generation) -> Option<Event> {
    let mut last = None;
    while let Some(event) = generation.try_next() {
        last = Some(event);
    }
    last
}

const RULES: [(&str, Rule); 4] = [
    ("arrival", Rule::Arrival),
    ("cached first", WINDOW),
    (
        "cached first, exactly",
        Rule::ExactlyCachedFirst {
            window: Rule::WINDOW,
        },
    ),
    ("grouped", GROUPS),
];

/// Requests of a trace.
const REQUESTS: usize = 1_000;
/// Generated tokens of an answer (RAGCache section 7: 6 on average for Natural Questions).
const ANSWER: u32 = 6;
/// How much faster requests come than first come, first served can serve them.
const LOAD: f64 = 1.1;

/// Sizes of an engine's memory for KV state, in tokens.
#[derive(Clone, Copy)]
struct Memory {
    device: u32,
    host: u32,
}

impl Memory {
    /// An engine on a simulated device with this memory.
    fn house(self, config: &EngineConfig) -> House {
        House::with(config, |clock| {
            Device::new(Costs::MISTRAL_7B_A10G, self.device, clock).with_host(self.host)
        })
    }
}

/// Devices without host memory.
const DEVICES: [Memory; 3] = [memory(16_384, 0), memory(65_536, 0), memory(262_144, 0)];

/// RAGCache's test bed: 5 GiB of a 7B model's KV state on an A10G, and 8, 32 and 128 GiB of host memory.
const HOSTS: [Memory; 3] = [
    memory(40_960, 65_536),
    memory(40_960, 262_144),
    memory(40_960, 1_048_576),
];

const fn memory(device: u32, host: u32) -> Memory {
    Memory { device, host }
}

/// The traces by which orders and policies are compared.
fn two_documents() -> Vec<(&'static str, Trace)> {
    let bursty = workload::bursty(
        1,
        REQUESTS,
        workload::Bursty {
            k: 2,
            ..workload::Bursty::default()
        },
    );
    let mut traces = vec![
        (
            "Zipf topics, k = 2",
            workloads::zipf_topics(1, REQUESTS, 1_000, 2),
        ),
        ("bursty, k = 2", bursty),
    ];
    match xquad::traces(&[2]) {
        Ok(found) => traces.extend(found.into_iter().map(|trace| ("XQuAD, top 2", trace))),
        Err(reason) => println!("skipped: XQuAD ({reason})"),
    }
    traces
}

/// Documents have 1,000 tokens; RAGCache's have 3,700 on average.
const LONGER: u32 = 5;

/// Time to first token by queue order and size of the cache.
fn order(memories: &[Memory]) {
    println!(
        "Mean time to first token at {LOAD} times the throughput of first come, first served; {REQUESTS} requests\n"
    );
    println!(
        "| trace | device, tokens | host | requests/s | order | mean, s | 99th, s | FCFS / it | cached | overtaken, most |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (name, trace) in two_documents() {
        let requests = requests(trace.iter().map(|asked| &asked.documents[..]), LONGER);
        for &memory in memories {
            let (rate, arrivals) = arrivals(&requests, memory, &saturated(Rule::Arrival), LOAD);
            let mut baseline = None;
            for (order, rule) in RULES {
                let mut house = memory.house(&saturated(rule));
                let (served, stats) = simulated::serve(&mut house, &arrivals);
                let mean = mean(&served);
                let baseline = *baseline.get_or_insert(mean);
                let overtaken = served.iter().map(|one| one.overtaken).max().unwrap_or(0);
                if rule != Rule::Arrival {
                    assert!(overtaken <= Rule::WINDOW, "{overtaken} went before one");
                }
                println!(
                    "| {name} | {} | {} | {rate:.2} | {order} | {mean:.2} | {:.2} | {:.2} | {:.1} % | {overtaken} |",
                    memory.device,
                    memory.host,
                    late(&served),
                    baseline / mean,
                    100.0 * stats.cached_tokens as f64 / stats.prompt_tokens as f64,
                );
            }
        }
    }
    println!();
}

/// Time to first token by eviction policy, at rates below and above what `lru` can serve in order of arrival.
fn policies() {
    println!("Mean time to first token, s, by eviction policy; {REQUESTS} requests\n");
    print!("| trace | host, tokens | load |");
    for policy in EvictionPolicy::ALL {
        print!(" {policy} |");
    }
    println!(" lru / pgdsf | best other / pgdsf |");
    println!("|{}", " --- |".repeat(EvictionPolicy::ALL.len() + 5));
    for (name, trace) in two_documents() {
        let requests = requests(trace.iter().map(|asked| &asked.documents[..]), LONGER);
        for memory in HOSTS {
            for load in [0.8, 1.1] {
                let (_, arrivals) =
                    arrivals(&requests, memory, &evicting(EvictionPolicy::Lru), load);
                print!("| {name} | {} | {load} |", memory.host);
                let means = EvictionPolicy::ALL.map(|policy| {
                    let mut house = memory.house(&evicting(policy));
                    let (served, stats) = simulated::serve(&mut house, &arrivals);
                    let mean = mean(&served);
                    let cached = 100.0 * stats.cached_tokens as f64 / stats.prompt_tokens as f64;
                    print!(" {mean:.2} ({cached:.1} %) |");
                    (policy, mean)
                });
                let least = |wanted: &dyn Fn(EvictionPolicy) -> bool| {
                    let means = means.iter().filter(|(policy, _)| wanted(*policy));
                    means.map(|(_, mean)| *mean).fold(f64::INFINITY, f64::min)
                };
                let own = least(&|policy| policy == EvictionPolicy::Pgdsf);
                println!(
                    " {:.2} | {:.2} |",
                    least(&|policy| policy == EvictionPolicy::Lru) / own,
                    least(&|policy| policy != EvictionPolicy::Pgdsf) / own
                );
            }
        }
    }
    println!();
}

/// Requests in order of arrival, and a policy that knows what the device's steps cost.
fn evicting(policy: EvictionPolicy) -> EngineConfig {
    let prefill = |cached, new| Costs::MISTRAL_7B_A10G.prefill(cached, new);
    EngineConfig {
        cache: CacheConfig {
            policy,
            cost: Some(Arc::new(prefill)),
            ..CacheConfig::default()
        },
        ..saturated(Rule::Arrival)
    }
}

/// The first [`REQUESTS`], with documents that are `longer` times as long.
fn requests<'a>(asked: impl Iterator<Item = &'a [Retrieved]>, longer: u32) -> Vec<Request> {
    (0..)
        .zip(asked.take(REQUESTS))
        .map(|(question, documents)| {
            let documents: Vec<(u64, u32)> = documents
                .iter()
                .map(|document| (document.fingerprint.0, document.tokens * longer))
                .collect();
            request(&documents, ANSWER, question)
        })
        .collect()
}

/// Requests at random times, `load` times as many a second as the engine can serve so configured; and how many these
/// are.
fn arrivals(
    requests: &[Request],
    memory: Memory,
    config: &EngineConfig,
    load: f64,
) -> (f64, Vec<Arrival>) {
    let rate = load * throughput(requests, memory, config);
    let mut random = Random::new(7);
    let mut at = 0.0;
    let arrivals = requests.iter().map(|request| {
        at -= (1.0 - random.unit()).ln() / rate;
        Arrival {
            at: Duration::from_secs_f64(at),
            request: request.clone(),
        }
    });
    (rate, arrivals.collect())
}

/// What is cached when requests that the gateway has ordered come three times as fast as they can be served, by queue
/// order and window: RAGBoost's scheduling (section 5.2, figure 7).
fn groups() {
    const K: u32 = 5;
    const OVERLOAD: f64 = 3.0;
    println!(
        "Cached tokens at {OVERLOAD} times the throughput of first come, first served; {REQUESTS} ordered requests, k = {K}\n"
    );
    println!(
        "| trace | cache, prompts | order | window | cached | mean, s | 99th, s | overtaken, most |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut traces = vec![(
        "Zipf topics",
        workloads::zipf_topics(1, REQUESTS, 1_000, K as usize),
    )];
    match xquad::traces(&[K as usize]) {
        Ok(found) => traces.extend(found.into_iter().map(|trace| ("XQuAD", trace))),
        Err(reason) => println!("skipped: XQuAD ({reason})"),
    }
    for (name, trace) in &traces {
        for prompts in [10, 40] {
            let capacity = Capacity::of_prompts(prompts, trace);
            let mut gateway =
                Replay::new(PolicyKind::Foresight, &PolicyOptions::default(), capacity);
            let ordered: Vec<Vec<Retrieved>> = trace
                .iter()
                .map(|asked| {
                    let order = gateway.decide(asked);
                    let documents = order
                        .iter()
                        .filter_map(|&rank| asked.documents.get(usize::from(rank)));
                    documents.cloned().collect()
                })
                .collect();
            let requests = requests(ordered.iter().map(Vec::as_slice), 1);
            let cache = prompts * K * 200;
            let fcfs = saturated(Rule::Arrival);
            let (_, arrivals) = arrivals(&requests, memory(cache, 0), &fcfs, OVERLOAD);
            println!(
                "| {name} | {prompts} | any order, any cache | | {:.1} % at most | | | |",
                100.0 * most_cached(&requests)
            );
            for (order, window, rule) in [
                ("cached first", 32, Rule::CachedFirst { window: 32 }),
                ("cached first", 512, Rule::CachedFirst { window: 512 }),
                ("grouped", 32, Rule::Grouped { window: 32 }),
                ("cached first", 256, Rule::CachedFirst { window: 256 }),
                ("grouped", 128, Rule::Grouped { window: 128 }),
                ("grouped", 256, Rule::Grouped { window: 256 }),
                ("grouped", 512, Rule::Grouped { window: 512 }),
                ("grouped", u32::MAX, Rule::Grouped { window: u32::MAX }),
            ] {
                let mut house = House::new(Costs::MISTRAL_7B_A10G, cache, &saturated(rule));
                let (served, stats) = simulated::serve(&mut house, &arrivals);
                let overtaken = served.iter().map(|one| one.overtaken).max().unwrap_or(0);
                assert!(overtaken <= window, "{overtaken} went before one");
                println!(
                    "| {name} | {prompts} | {order} | {window} | {:.1} % | {:.2} | {:.2} | {overtaken} |",
                    100.0 * stats.cached_tokens as f64 / stats.prompt_tokens as f64,
                    mean(&served),
                    late(&served),
                );
            }
        }
    }
    println!();
}

/// The share of prompt tokens that no order of requests can pass: each distinct beginning is computed once, as when
/// they go one by one and nothing is evicted. An order that walks the tree of prompts branch by branch reaches it with
/// a cache of one prompt.
fn most_cached(requests: &[Request]) -> f64 {
    let tokens: usize = requests.iter().map(|request| request.prompt.len()).sum();
    let alone = EngineConfig {
        max_running: 1,
        ..saturated(Rule::Arrival)
    };
    let room = u32::try_from(tokens + 1_000 * PAGE_TOKENS as usize).expect("a trace's tokens");
    let mut house = House::new(Costs::MISTRAL_7B_A10G, room, &alone);
    let all: Vec<Arrival> = (requests.iter().cloned())
        .map(|request| Arrival {
            at: Duration::ZERO,
            request,
        })
        .collect();
    let (_, stats) = simulated::serve(&mut house, &all);
    stats.cached_tokens as f64 / stats.prompt_tokens as f64
}

/// RAGCache's batches of 4; room for everybody.
fn saturated(order: Rule) -> EngineConfig {
    EngineConfig {
        max_waiting: u32::MAX,
        max_running: 4,
        max_step_tokens: 2_048,
        order,
        ..EngineConfig::default()
    }
}

/// Requests a second when all come at once.
fn throughput(requests: &[Request], memory: Memory, config: &EngineConfig) -> f64 {
    let all: Vec<Arrival> = requests
        .iter()
        .map(|request| Arrival {
            at: Duration::ZERO,
            request: request.clone(),
        })
        .collect();
    let mut house = memory.house(config);
    let _ = simulated::serve(&mut house, &all);
    requests.len() as f64 / house.now().as_secs_f64()
}

fn mean(served: &[Served]) -> f64 {
    let total: Duration = served.iter().map(|one| one.first_token).sum();
    total.as_secs_f64() / served.len() as f64
}

fn late(served: &[Served]) -> f64 {
    let mut times: Vec<Duration> = served.iter().map(|one| one.first_token).collect();
    times.sort_unstable();
    times[(times.len() - 1) * 99 / 100].as_secs_f64()
}

/// The same on the CPU, by the clock on the wall: a small random model, all requests as fast as they come.
fn real() {
    const CACHE: u32 = 4_096;
    const COUNT: usize = 160;
    let trace = workloads::zipf_topics(1, COUNT, 200, 2);
    let requests: Vec<Request> = (0..)
        .zip(&trace)
        .map(|(question, asked)| {
            let documents = asked.documents.iter();
            let documents: Vec<(u64, u32)> = documents
                .map(|document| (document.fingerprint.0, document.tokens))
                .collect();
            request(&documents, ANSWER, question)
        })
        .collect();
    let throughput = {
        let begin = Instant::now();
        let _ = on_cpu(Rule::Arrival, &requests, CACHE, f64::INFINITY);
        COUNT as f64 / begin.elapsed().as_secs_f64()
    };
    let rate = LOAD * throughput;
    println!(
        "On the CPU: {COUNT} requests over Zipf topics, {rate:.1} a second, cache of {CACHE} tokens\n"
    );
    println!("| order | mean, s | 99th, s | FCFS / it | cached |");
    println!("| --- | --- | --- | --- | --- |");
    let mut baseline = None;
    for (order, rule) in RULES {
        let (served, cached) = on_cpu(rule, &requests, CACHE, rate);
        let mean = mean(&served);
        let baseline = *baseline.get_or_insert(mean);
        println!(
            "| {order} | {mean:.2} | {:.2} | {:.2} | {:.1} % |",
            late(&served),
            baseline / mean,
            100.0 * cached
        );
    }
}

/// Serves on an engine of its own; with the share of prompt tokens that were cached.
fn on_cpu(rule: Rule, requests: &[Request], cache: u32, rate: f64) -> (Vec<Served>, f64) {
    let config = ModelConfig::parse(SMALL).expect("the shape is valid");
    let sizes = CpuConfig {
        precision: Precision::Auto,
        pages: cache / PAGE_TOKENS,
        host_pages: 0,
        page_tokens: PAGE_TOKENS,
        threads: None,
    };
    let backend = CpuBackend::new(&Checkpoint::random(config, Element::F32, 1), &sizes)
        .expect("the sizes are valid");
    let engine = Engine::start(Box::new(backend), saturated(rule));
    let begin = Instant::now();
    let mut random = Random::new(7);
    let mut at = 0.0;
    let listeners: Vec<_> = requests
        .iter()
        .map(|request| {
            at -= (1.0 - random.unit()).ln() / rate;
            let due = begin + Duration::from_secs_f64(at);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let arrival = Instant::now();
            let generation = engine.submit(request.clone());
            let mut generation = generation.unwrap_or_else(|error: SubmitError| panic!("{error}"));
            std::thread::spawn(move || {
                let mut served = Served::default();
                while let Some(event) = generation.blocking_next() {
                    match event {
                        Event::Token { .. } if served.first_token.is_zero() => {
                            served.first_token = arrival.elapsed();
                        }
                        Event::Failed(failure) => panic!("{failure}"),
                        _ => {}
                    }
                }
                served
            })
        })
        .collect();
    let served = listeners
        .into_iter()
        .map(|listener| listener.join().expect("no request fails"))
        .collect();
    let stats = engine.stats();
    (
        served,
        stats.cached_tokens as f64 / stats.prompt_tokens as f64,
    )
}

/// A model of 5 million parameters.
const SMALL: &str = r#"{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 768, "vocab_size": 256, "max_position_embeddings": 4096,
    "tie_word_embeddings": true}"#;
