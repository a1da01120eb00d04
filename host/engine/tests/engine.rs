//! Tests of the engine through its handle, on a backend that tracks pages exactly.

#[allow(dead_code, unreachable_pub)]
#[path = "support/fake.rs"]
mod fake;

use fake::{FakeBackend, Fault, VOCABULARY, expected};
use foreword_engine::TokenId;
use foreword_engine::engine::{
    Engine, EngineConfig, Event, FinishReason, Generation, Request, Rule, Stats, SubmitError,
};
use foreword_engine::sampling::Sampling;
use std::sync::mpsc::{Sender, channel};

fn config() -> EngineConfig {
    EngineConfig {
        max_waiting: 64,
        max_waiting_per_tenant: 64,
        order: Rule::Arrival,
        max_step_tokens: 32,
        max_retries: 0,
        ..EngineConfig::default()
    }
}

fn start(backend: FakeBackend) -> Engine {
    Engine::start(Box::new(backend), config())
}

fn prompt(length: u32) -> Vec<TokenId> {
    (0..length)
        .map(|position| position * 5 % VOCABULARY)
        .collect()
}

fn request(prompt: Vec<TokenId>, max_tokens: u32) -> Request {
    let sampling = Sampling::greedy();
    Request {
        prompt,
        max_tokens,
        sampling,
        stop_tokens: Vec::new(),
        constraint: None,
        top_logprobs: None,
        cache_salt: String::new(),
        ..Request::default()
    }
}

/// The events of a generation.
#[derive(Debug, PartialEq, Eq)]
struct RunOutcome {
    cached_tokens: Option<u32>,
    tokens: Vec<TokenId>,
    end: Result<FinishReason, String>,
}

fn listen(mut generation: Generation) -> RunOutcome {
    let mut outcome = RunOutcome {
        cached_tokens: None,
        tokens: Vec::new(),
        end: Err("no end".to_owned()),
    };
    while let Some(event) = generation.blocking_next() {
        match event {
            Event::Started { cached_tokens } => outcome.cached_tokens = Some(cached_tokens),
            Event::Prompt(_) => {}
            Event::Token { id: token, .. } => outcome.tokens.push(token),
            Event::Finished(reason) => outcome.end = Ok(reason),
            Event::Failed(reason) => outcome.end = Err(reason.to_string()),
        }
    }
    outcome
}

fn run(engine: &Engine, request: Request) -> RunOutcome {
    listen(engine.submit(request).unwrap())
}

/// Waits until the counters satisfy `wanted`, which the engine's thread reaches by itself.
fn wait(engine: &Engine, wanted: impl Fn(&Stats) -> bool) -> Stats {
    loop {
        let stats = engine.stats();
        if wanted(&stats) {
            return stats;
        }
        std::thread::yield_now();
    }
}

/// Returns a backend that runs one step for each message, and all steps once the sender is dropped.
fn gated(pages: u32) -> (FakeBackend, Sender<()>) {
    let (sender, receiver) = channel();
    (FakeBackend::new(pages, 4).gate(receiver), sender)
}

#[test]
fn a_warm_answer_is_the_cold_one() {
    let engine = start(FakeBackend::new(64, 4));
    let tokens = expected(&prompt(50), 12, u32::MAX, &Sampling::greedy(), &[]).0;
    for cached_tokens in [0, 49] {
        let outcome = run(&engine, request(prompt(50), 12));
        let end = Ok(FinishReason::Length);
        assert_eq!(
            outcome,
            RunOutcome {
                cached_tokens: Some(cached_tokens),
                tokens: tokens.clone(),
                end
            }
        );
    }
    // The next turn of the conversation also finds the answer, except its last token, which was never computed.
    let turn = [prompt(50), tokens, vec![1, 2, 3]].concat();
    assert_eq!(run(&engine, request(turn, 1)).cached_tokens, Some(61));
}

#[test]
fn many_at_once_answer_as_one_by_one() {
    let engine = start(FakeBackend::new(60, 4));
    let requests: Vec<Request> = (0..24)
        .map(|index| {
            let mut request = request(
                [prompt(index % 7 * 4), vec![index % VOCABULARY]].concat(),
                5 + index % 9,
            );
            request.sampling = Sampling::new((index % 2) as f32, 0.9, 0, u64::from(index)).unwrap();
            request
        })
        .collect();
    let generations: Vec<Generation> = requests
        .iter()
        .map(|request| engine.submit(request.clone()).unwrap())
        .collect();
    for (request, generation) in requests.iter().zip(generations) {
        let tokens = expected(
            &request.prompt,
            request.max_tokens,
            u32::MAX,
            &request.sampling,
            &[],
        )
        .0;
        assert_eq!(listen(generation).tokens, tokens);
    }
    let stats = engine.stats();
    assert_eq!(
        (
            stats.finished,
            stats.cache.in_use,
            stats.running,
            stats.waiting
        ),
        (24, 0, 0, 0)
    );
    assert_eq!(
        stats.generated_tokens,
        requests
            .iter()
            .map(|request| u64::from(request.max_tokens))
            .sum::<u64>()
    );
}

#[test]
fn tenants_do_not_share() {
    let engine = start(FakeBackend::new(64, 4));
    let salted = |salt: &str| Request {
        cache_salt: salt.to_owned(),
        ..request(prompt(30), 1)
    };
    assert_eq!(run(&engine, salted("a")).cached_tokens, Some(0));
    assert_eq!(run(&engine, salted("b")).cached_tokens, Some(0));
    assert_eq!(run(&engine, salted("a")).cached_tokens, Some(29));
}

#[test]
fn a_stop_token_ends_the_answer_unreported() {
    let engine = start(FakeBackend::new(64, 4));
    let tokens = expected(&prompt(9), 20, u32::MAX, &Sampling::greedy(), &[]).0;
    let stop = tokens[7];
    let first = tokens.iter().position(|token| *token == stop).unwrap();
    let outcome = run(
        &engine,
        Request {
            stop_tokens: vec![stop],
            ..request(prompt(9), 20)
        },
    );
    assert_eq!(
        (outcome.tokens, outcome.end),
        (tokens[..first].to_vec(), Ok(FinishReason::Stop))
    );
}

#[test]
fn an_answer_ends_where_the_model_or_the_pool_does() {
    for backend in [
        FakeBackend::new(64, 4).max_positions(20),
        FakeBackend::new(5, 4),
    ] {
        let engine = start(backend);
        let outcome = run(&engine, request(prompt(15), 100));
        assert_eq!(
            (outcome.tokens.len(), outcome.end),
            (5, Ok(FinishReason::Length))
        );
        let error = engine.submit(request(prompt(20), 1)).err().unwrap();
        assert!(
            matches!(
                error,
                SubmitError::TooLong {
                    tokens: 20,
                    limit: 19
                }
            ),
            "{error}"
        );
        assert_eq!(run(&engine, request(prompt(19), 1)).tokens.len(), 1);
    }
}

#[test]
fn requests_that_cannot_be_are_refused_by_name() {
    let engine = start(FakeBackend::new(8, 4));
    for (request, word) in [
        (request(vec![], 1), "prompt is empty"),
        (request(vec![1], 0), "max_tokens is 0"),
        (
            request(vec![1, VOCABULARY], 1),
            "token 24, not below the vocabulary of 24",
        ),
        (
            Request {
                cache_salt: "x".repeat(1025),
                ..request(vec![1], 1)
            },
            "1025 bytes",
        ),
    ] {
        let error = engine.submit(request).err().unwrap();
        assert!(
            matches!(&error, SubmitError::Invalid(reason) if reason.contains(word)),
            "{error}"
        );
    }
    assert_eq!(engine.stats().finished, 0);
}

#[test]
fn the_queue_is_bounded() {
    let (backend, gate) = gated(64);
    let config = EngineConfig {
        max_waiting: 2,
        max_running: 1,
        ..config()
    };
    let engine = Engine::start(Box::new(backend), config);
    let running = engine.submit(request(prompt(3), 1)).unwrap();
    wait(&engine, |stats| stats.running == 1);
    let waiting = [1, 2].map(|length| engine.submit(request(prompt(length), 1)).unwrap());
    let error = engine.submit(request(prompt(4), 1)).err().unwrap();
    assert!(
        matches!(error, SubmitError::QueueFull { limit: 2, .. }),
        "{error}"
    );
    assert_eq!(engine.stats().waiting, 2);
    // A waiting request whose caller has gone makes room.
    let [cancelled, waiting] = waiting;
    drop(cancelled);
    gate.send(()).unwrap();
    assert_eq!(listen(running).tokens.len(), 1);
    wait(&engine, |stats| stats.waiting == 0);
    let late = engine.submit(request(prompt(4), 1)).unwrap();
    drop(gate);
    assert_eq!(
        (listen(waiting).tokens.len(), listen(late).tokens.len()),
        (1, 1)
    );
    assert_eq!(engine.stats().finished, 4);
}

#[test]
fn a_dropped_generation_is_cancelled_and_its_pages_come_back() {
    let (backend, gate) = gated(64);
    let engine = start(backend);
    let mut generation = engine.submit(request(prompt(10), 1000)).unwrap();
    for _ in 0..3 {
        gate.send(()).unwrap();
    }
    assert!(matches!(
        generation.blocking_next(),
        Some(Event::Started { cached_tokens: 0 })
    ));
    assert!(matches!(
        generation.blocking_next(),
        Some(Event::Token { .. })
    ));
    drop(generation);
    drop(gate);
    let stats = wait(&engine, |stats| stats.finished == 1);
    assert_eq!((stats.cache.in_use, stats.running), (0, 0));
    assert!(stats.generated_tokens < 10);
    assert_eq!(
        run(&engine, request(prompt(10), 1)).cached_tokens,
        Some(9),
        "what was computed stays cached"
    );
}

#[test]
fn a_reader_that_never_reads_stalls_nobody() {
    let engine = start(FakeBackend::new(600, 4));
    let unread = engine.submit(request(prompt(10), 2000)).unwrap();
    for _ in 0..20 {
        assert_eq!(run(&engine, request(prompt(11), 50)).tokens.len(), 50);
    }
    wait(&engine, |stats| stats.finished == 21);
    assert_eq!(listen(unread).tokens.len(), 2000);
}

#[test]
fn a_failing_device_fails_the_step_and_no_more() {
    for (fault, word) in [
        (Fault::Device, "out of luck"),
        (Fault::Panic, "out of patience"),
        (Fault::NotNumbers, "not a number"),
    ] {
        let mut steps = 0;
        let engine = start(FakeBackend::new(64, 4).faults(move |_| {
            steps += 1;
            if steps == 5 { fault } else { Fault::None }
        }));
        let outcome = run(&engine, request(prompt(10), 20));
        assert_eq!(
            outcome.tokens,
            expected(&prompt(10), 4, u32::MAX, &Sampling::greedy(), &[]).0
        );
        assert!(outcome.end.unwrap_err().contains(word));
        let stats = engine.stats();
        assert_eq!((stats.cache.in_use, stats.finished), (0, 1));
        // The engine continues, and what the failed step left behind is not served.
        let outcome = run(&engine, request(prompt(10), 20));
        assert_eq!(
            outcome.tokens,
            expected(&prompt(10), 20, u32::MAX, &Sampling::greedy(), &[]).0
        );
        assert!(outcome.cached_tokens <= Some(9));
    }
}

#[test]
fn a_failing_device_delays_answers_and_changes_none() {
    for fault in [Fault::Device, Fault::Panic] {
        let mut steps = 0;
        let backend = FakeBackend::new(64, 4).faults(move |_| {
            steps += 1;
            // The device fails in the prompt, and among the answer's tokens.
            if steps == 1 || steps == 5 {
                fault
            } else {
                Fault::None
            }
        });
        let config = EngineConfig {
            max_retries: 2,
            ..config()
        };
        let engine = Engine::start(Box::new(backend), config);
        let outcome = run(&engine, request(prompt(10), 20));
        assert_eq!(
            outcome.tokens,
            expected(&prompt(10), 20, u32::MAX, &Sampling::greedy(), &[]).0
        );
        assert_eq!(outcome.end, Ok(FinishReason::Length));
        let stats = engine.stats();
        assert_eq!((stats.retries, stats.cache.in_use), (2, 0));
    }
}

#[test]
fn a_failure_spares_what_was_not_in_the_step() {
    // A step has one token, so of two sequences only the older one is in it.
    let mut armed = true;
    let backend = FakeBackend::new(64, 4).faults(move |step| {
        let fault = armed && step.segments[0].start > 12;
        armed &= !fault;
        if fault { Fault::Device } else { Fault::None }
    });
    let engine = Engine::start(
        Box::new(backend),
        EngineConfig {
            max_step_tokens: 1,
            ..config()
        },
    );
    let first = engine.submit(request(prompt(10), 20)).unwrap();
    let second = engine.submit(request(vec![3, 1], 5)).unwrap();
    assert!(listen(first).end.is_err());
    assert_eq!(
        listen(second).tokens,
        expected(&[3, 1], 5, u32::MAX, &Sampling::greedy(), &[]).0
    );
}

#[test]
fn what_yields_no_numbers_is_not_served_again() {
    // The first of the prompt's three chunks is corrupt, and its page is cached before the last chunk shows it.
    let mut steps = 0;
    let backend = FakeBackend::new(64, 4).faults(move |_| {
        steps += 1;
        if steps == 1 {
            Fault::NotNumbers
        } else {
            Fault::None
        }
    });
    let config = EngineConfig {
        max_step_tokens: 4,
        ..config()
    };
    let engine = Engine::start(Box::new(backend), config);
    assert!(
        run(&engine, request(prompt(10), 3))
            .end
            .unwrap_err()
            .contains("not a number")
    );
    let outcome = run(&engine, request(prompt(10), 3));
    assert_eq!(
        (outcome.cached_tokens, outcome.end),
        (Some(0), Ok(FinishReason::Length))
    );
}

#[test]
fn clearing_forgets_every_prefix() {
    let engine = start(FakeBackend::new(64, 4));
    run(&engine, request(prompt(10), 3));
    assert_eq!(engine.stats().cache.cached, 3);
    assert_eq!(engine.clear_cache(), 3);
    let stats = engine.stats();
    assert_eq!(
        (stats.cache.cached, stats.cache.in_use, stats.cache.evicted),
        (0, 0, 0)
    );
    assert_eq!(run(&engine, request(prompt(10), 3)).cached_tokens, Some(0));
}

#[test]
fn the_counters_tell_how_prompts_were_found() {
    let engine = start(FakeBackend::new(64, 4));
    for length in [20, 20, 30] {
        run(&engine, request(prompt(length), 2));
    }
    let stats = engine.stats();
    assert_eq!(
        (stats.lookups, stats.full_hits, stats.partial_hits),
        (3, 1, 1)
    );
    assert_eq!(
        (
            stats.prompt_tokens,
            stats.cached_tokens,
            stats.generated_tokens
        ),
        (70, 19 + 20, 6)
    );
    assert_eq!(
        (stats.finished, stats.cache.pages, stats.preemptions),
        (3, 64, 0)
    );
    assert_eq!(
        stats.steps, 6,
        "the answer's first token comes with the prompt"
    );
}

#[test]
fn shutdown_finishes_what_was_taken_in() {
    let (backend, gate) = gated(64);
    let engine = Engine::start(
        Box::new(backend),
        EngineConfig {
            max_running: 1,
            ..config()
        },
    );
    let generations = [3, 4, 5].map(|length| engine.submit(request(prompt(length), 3)).unwrap());
    let stopping = std::thread::spawn({
        let engine = engine.clone();
        move || engine.shutdown()
    });
    // Until the engine stops it accepts requests; nobody waits for these.
    while !matches!(
        engine.submit(request(prompt(2), 1)),
        Err(SubmitError::Stopped)
    ) {}
    drop(gate);
    for generation in generations {
        assert_eq!(listen(generation).tokens.len(), 3);
    }
    stopping.join().unwrap();
    engine.shutdown();
    assert_eq!((engine.clear_cache(), engine.stats().cache.in_use), (0, 0));
}

#[test]
fn the_last_handle_takes_the_thread_with_it() {
    let (alive, ended) = channel::<()>();
    let engine = start(FakeBackend::new(64, 4).faults(move |_| {
        let _ = &alive;
        Fault::None
    }));
    let generation = engine.submit(request(prompt(3), 5)).unwrap();
    drop(engine);
    assert_eq!(
        listen(generation).tokens.len(),
        5,
        "what was taken in is finished"
    );
    assert!(ended.recv().is_err(), "the backend was dropped");
}

#[tokio::test]
async fn events_can_be_awaited() {
    let engine = start(FakeBackend::new(64, 4));
    let mut generation = engine.submit(request(prompt(3), 2)).unwrap();
    assert!(matches!(
        generation.next().await,
        Some(Event::Started { .. })
    ));
    assert!(matches!(generation.next().await, Some(Event::Token { .. })));
    assert!(matches!(generation.next().await, Some(Event::Token { .. })));
    assert!(matches!(
        generation.next().await,
        Some(Event::Finished(FinishReason::Length))
    ));
    assert!(generation.next().await.is_none());
}
