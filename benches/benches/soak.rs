//! A day of requests in a minute: memory stays flat, no page leaks, every request ends, and no thread remains.
//!
//! ```text
//! cargo bench -p foreword-benches -- soak [--hours N] [--seed N]
//! ```
//!
//! The first part runs the engine on a device with a clock of its own, where a day passes as fast as steps can be
//! planned. It has a request a second from a few busy tenants and many rare ones, speculative requests, callers that
//! leave, deadlines that cannot be kept, and devices that fail or are lost. The second part runs the engine with its
//! threads, on devices that get stuck and are replaced. Every check is an assertion; the table says how much happened.

use foreword_benches::simulated::{self, Costs, Device, House};
use foreword_benches::{Arguments, process_status, resident_bytes};
use foreword_engine::backend::{Backend, BackendError};
use foreword_engine::engine::{
    BackendFactory, Engine, EngineConfig, Event, Failure, Generation, Kind, Request, SpeculationId,
    SubmitError,
};
use foreword_ordering::random::Random;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Most growth of resident memory from the first quarter to the end, which leaves room for the allocator.
const GROWTH_BYTES: u64 = 16 << 20;

pub(crate) fn bench(arguments: &Arguments) {
    let seed = arguments.number("--seed").unwrap_or(1);
    let threads = status("Threads:");
    day(seed, arguments.number("--hours").unwrap_or(24));
    sticking(seed);
    assert_eq!(status("Threads:"), threads, "threads are left");
    println!("Threads before and after: {threads}");
}

/// A request whose caller still listens.
struct Caller {
    generation: Generation,
    /// When the caller leaves, if it does.
    leaves: Option<Duration>,
}

#[derive(Default)]
struct Tally {
    submitted: u64,
    refused: u64,
    left: u64,
    ends: BTreeMap<String, u64>,
}

fn day(seed: u64, hours: u64) {
    let config = EngineConfig {
        max_waiting: 64,
        max_waiting_per_tenant: 16,
        max_step_tokens: 1_024,
        ..EngineConfig::default()
    };
    let mut dice = Random::new(seed ^ 1);
    let mut house = House::with(&config, |clock| {
        Device::new(Costs::MISTRAL_7B_A10G, 32_768, clock).faults(move || match dice.below(4_000) {
            0..4 => Some(BackendError::Device("a bad day".to_owned())),
            4 => Some(BackendError::Lost("a worse one".to_owned())),
            _ => None,
        })
    });
    let mut random = Random::new(seed);
    let mut callers: Vec<Caller> = Vec::new();
    let mut tally = Tally::default();
    let mut memory = Vec::new();
    let begin = Instant::now();
    let mut next = Duration::ZERO;
    for hour in 1..=hours {
        let end = Duration::from_secs(hour * 3600);
        while next < end {
            while next <= house.now() {
                arrive(&mut house, &mut random, &mut callers, &mut tally);
                next += Duration::from_secs_f64(-(1.0 - random.unit()).ln());
            }
            if house.stepper().is_idle() {
                house.sleep_until(next);
            } else {
                house.step();
            }
            listen(&house, &mut callers, &mut tally);
        }
        memory.push(resident_bytes().unwrap_or(0));
    }
    while !house.stepper().is_idle() {
        house.step();
        listen(&house, &mut callers, &mut tally);
    }
    house.stepper().check();
    let stats = house.stepper().stats();
    assert!(callers.is_empty(), "callers are left without an end");
    assert_eq!(
        (stats.cache.in_use, stats.running, stats.waiting),
        (0, 0, 0)
    );
    assert_eq!(stats.finished, tally.submitted);
    let settled = memory[memory.len() / 4];
    let last = memory[memory.len() - 1];
    assert!(last <= settled + GROWTH_BYTES, "memory grew: {memory:?}");
    println!(
        "{hours} h in {:.0} s; seed {seed}\n",
        begin.elapsed().as_secs_f64()
    );
    println!("| what | how much |\n| --- | --- |");
    println!(
        "| requests taken, refused | {}, {} |",
        tally.submitted, tally.refused
    );
    println!("| callers that left | {} |", tally.left);
    for (end, count) in &tally.ends {
        println!("| ended: {end} | {count} |");
    }
    println!("| steps | {} |", stats.steps);
    println!("| preemptions | {} |", stats.preemptions);
    println!("| computed again | {} |", stats.retries);
    println!("| devices lost | {} |", stats.devices_lost);
    println!(
        "| guesses started, joined, superseded | {}, {}, {} |",
        stats.speculations_started, stats.speculations_joined, stats.speculations_superseded
    );
    println!("| pages evicted | {} |", stats.cache.evicted);
    println!("| pages in use at the end | {} |", stats.cache.in_use);
    println!(
        "| resident memory after a quarter, at the end, MiB | {}, {} |\n",
        settled >> 20,
        last >> 20
    );
}

/// Submits one arrival: an answer, possibly with guesses before it.
fn arrive(house: &mut House, random: &mut Random, callers: &mut Vec<Caller>, tally: &mut Tally) {
    let tenant = match random.below(4) {
        // One in four comes from a tenant that is hardly ever seen again.
        0 => format!("rare {}", random.below(1 << 40)),
        _ => format!("busy {}", random.below(4)),
    };
    let documents = |random: &mut Random| -> Vec<(u64, u32)> {
        let topic = random.below(10) * random.below(10);
        (0..3)
            .map(|_| (topic * 10 + random.below(10), 200))
            .collect()
    };
    let question = random.bits();
    let speculation = (random.below(4) == 0).then(|| SpeculationId(random.bits()));
    let mut guesses = Vec::new();
    if speculation.is_some() {
        guesses = (0..1 + random.below(3))
            .map(|_| documents(random))
            .collect();
    }
    // The last guess is right.
    let asked = guesses.last().cloned().unwrap_or_else(|| documents(random));
    let now = house.now();
    let request = Request {
        tenant: tenant.as_str().into(),
        cache_salt: if random.below(20) == 0 {
            tenant
        } else {
            String::new()
        },
        prompt: simulated::prompt(asked, question),
        max_tokens: 1 + random.below(60) as u32,
        speculation,
        deadline: (random.below(3) == 0)
            .then(|| house.instant(now + Duration::from_secs(random.below(20)))),
        ..Request::default()
    };
    let guesses = guesses.into_iter().map(|documents| Request {
        kind: Kind::Prefill,
        prompt: simulated::prompt(documents, question),
        deadline: None,
        ..request.clone()
    });
    for request in guesses.chain([request.clone()]) {
        match house.submit(request) {
            Ok(generation) => {
                tally.submitted += 1;
                let leaves = (random.below(10) == 0)
                    .then(|| now + Duration::from_millis(random.below(5_000)));
                callers.push(Caller { generation, leaves });
            }
            Err(
                SubmitError::QueueFull { .. }
                | SubmitError::TenantQueueFull { .. }
                | SubmitError::Busy { .. },
            ) => tally.refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
}

fn listen(house: &House, callers: &mut Vec<Caller>, tally: &mut Tally) {
    let now = house.now();
    callers.retain_mut(|caller| {
        while let Some(event) = caller.generation.try_next() {
            let end = match event {
                Event::Started { .. } | Event::Prompt(_) | Event::Token { .. } => continue,
                Event::Finished(reason) => format!("{reason:?}").to_lowercase(),
                Event::Failed(Failure::Device(_)) => "the device failed again".to_owned(),
                Event::Failed(failure @ (Failure::Expired | Failure::Superseded)) => {
                    failure.to_string()
                }
                Event::Failed(failure) => panic!("{failure}"),
            };
            *tally.ends.entry(end).or_default() += 1;
            return false;
        }
        let stays = caller.leaves.is_none_or(|leaves| now < leaves);
        tally.left += u64::from(!stays);
        stays
    });
}

/// Runs the engine's own thread and its watchdog, on devices that each get stuck after a few hundred steps.
fn sticking(seed: u64) {
    const REQUESTS: u64 = 2_000;
    let held: Arc<Mutex<Vec<Sender<()>>>> = Arc::default();
    let mut dice = Random::new(seed ^ 2);
    let mut device = {
        let held = held.clone();
        move || {
            let (gate, closed): (Sender<()>, Receiver<()>) = channel();
            held.lock().expect("nobody panics").push(gate);
            let mut steps = 200 + dice.below(200);
            Device::new(Costs::MISTRAL_7B_A10G, 32_768, Arc::default()).faults(move || {
                steps = steps.saturating_sub(1);
                if steps == 0 {
                    // Blocks until the sender is dropped.
                    let _ = closed.recv();
                }
                None
            })
        }
    };
    let first = Box::new(device());
    let factory: BackendFactory = Box::new(move || Ok(Box::new(device()) as Box<dyn Backend>));
    let config = EngineConfig {
        watchdog: Some(Duration::from_millis(200)),
        max_retries: u32::MAX,
        ..EngineConfig::default()
    };
    let engine = Engine::guarded(first, factory, config);
    let mut random = Random::new(seed);
    let mut open = Vec::new();
    for request in 0..REQUESTS {
        let asked = (0..2).map(|_| (random.below(30), 200));
        let prompt = simulated::prompt(asked, request);
        let answer = Request {
            prompt,
            max_tokens: 16,
            ..Request::default()
        };
        open.push(engine.submit(answer).expect("there is room"));
        if open.len() == 64 {
            open.drain(..).for_each(finish);
        }
    }
    open.drain(..).for_each(finish);
    engine.shutdown();
    let stats = engine.stats();
    assert_eq!(stats.cache.in_use, 0);
    assert!(
        stats.devices_lost > 10,
        "{} devices stuck",
        stats.devices_lost
    );
    // The stuck devices may return now, and their threads end.
    held.lock().expect("nobody panics").clear();
    drop(engine);
    let begin = Instant::now();
    while status("Threads:") > 1 && begin.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
    println!(
        "Devices that stuck and were replaced: {}; {REQUESTS} of {REQUESTS} requests answered",
        stats.devices_lost
    );
}

fn finish(mut generation: Generation) {
    let mut tokens = 0;
    loop {
        match generation.blocking_next() {
            Some(Event::Token { .. }) => tokens += 1,
            Some(Event::Started { .. }) => {}
            Some(Event::Finished(_)) => break assert_eq!(tokens, 16),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns a number of `/proc/self/status`; 0 where there is none.
fn status(name: &str) -> u64 {
    process_status(name).unwrap_or(0)
}
