//! Tests of devices that are lost or stuck.

use super::*;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};

/// A clock that is set by hand.
#[derive(Clone)]
struct Hands(Arc<Mutex<Instant>>);

impl Hands {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    fn clock(&self) -> Clock {
        let hands = self.clone();
        Arc::new(move || *hands.0.lock().unwrap())
    }

    fn forward(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

const PATIENCE: Duration = Duration::from_secs(3600);

fn config() -> EngineConfig {
    EngineConfig {
        max_running: 2,
        max_step_tokens: 16,
        watchdog: Some(PATIENCE),
        ..EngineConfig::default()
    }
}

/// Returns a device that computes this many steps and then blocks until the sender is dropped.
fn sticking(steps: u32) -> (FakeBackend, Sender<()>) {
    let (sender, receiver) = channel();
    for _ in 0..steps {
        sender.send(()).unwrap();
    }
    (FakeBackend::new(64, 4).gate(receiver), sender)
}

/// Returns a request with two pages that all requests have in common, and two tokens of its own.
fn request(first: TokenId) -> Request {
    let prompt = (0..10).map(|position| if position < 8 { position } else { first });
    Request {
        prompt: prompt.collect(),
        max_tokens: 12,
        ..Request::default()
    }
}

/// Returns all tokens and the last event of a generation.
fn listen(mut generation: Generation) -> (Vec<TokenId>, Event) {
    let mut tokens = Vec::new();
    loop {
        match generation.blocking_next().unwrap() {
            Event::Started { .. } => {}
            Event::Token { id: token, .. } => tokens.push(token),
            end => return (tokens, end),
        }
    }
}

fn expect_whole(generation: Generation, request: &Request) {
    let (tokens, end) = listen(generation);
    let whole = expected(&request.prompt, 12, u32::MAX, &Sampling::greedy(), &[]).0;
    assert_eq!(tokens, whole);
    assert!(matches!(end, Event::Finished(FinishReason::Length)));
}

/// Advances the clock until `acted` says that the watchdog has acted.
fn wait_for(hands: &Hands, acted: impl Fn() -> bool) {
    while !acted() {
        hands.forward(2 * PATIENCE);
        std::thread::yield_now();
    }
}

#[test]
fn a_stuck_device_is_replaced_and_no_request_notices() {
    // The device is stuck in the first prompt, within a prompt's chunks, or within the answers.
    for steps in [0, 1, 5] {
        let (device, gate) = sticking(steps);
        let (alive, given_up) = channel::<()>();
        let device = device.faults(move |_| {
            let _ = &alive;
            Fault::None
        });
        let made = Arc::new(AtomicBool::new(false));
        let (fresh, fresh_gate) = sticking(0);
        let mut fresh = Some(fresh);
        let factory: BackendFactory = {
            let made = made.clone();
            Box::new(move || {
                made.store(true, Ordering::SeqCst);
                let fresh = fresh.take().ok_or("there was only one")?;
                Ok(Box::new(fresh))
            })
        };
        let hands = Hands::new();
        let engine = Engine::launch(Box::new(device), Some(factory), &config(), hands.clock());
        let requests: Vec<Request> = (0..5).map(request).collect();
        let generations: Vec<Generation> = requests
            .iter()
            .map(|request| engine.submit(request.clone()).unwrap())
            .collect();
        while engine.stats().steps < u64::from(steps) {
            std::thread::yield_now();
        }
        wait_for(&hands, || made.load(Ordering::SeqCst));
        // The old device returns while the new one computes, and its outcome is ignored.
        drop(gate);
        assert!(given_up.recv().is_err(), "its thread ends and drops it");
        drop(fresh_gate);
        for (generation, request) in generations.into_iter().zip(&requests) {
            expect_whole(generation, request);
        }
        let stats = engine.stats();
        assert_eq!((stats.finished, stats.devices_lost), (5, 1));
        assert_eq!((stats.cache.in_use, stats.running), (0, 0));
        assert_eq!(engine.health(), Health::Good);
        assert_eq!(engine.stats().generated_tokens, 60);
        engine.shutdown();
    }
}

#[test]
fn without_another_device_everything_fails_and_says_so() {
    let (device, _gate) = sticking(2);
    let hands = Hands::new();
    let engine = Engine::launch(Box::new(device), None, &config(), hands.clock());
    let generations: Vec<Generation> = (0..4)
        .map(|first| engine.submit(request(first)).unwrap())
        .collect();
    while engine.stats().steps < 2 {
        std::thread::yield_now();
    }
    wait_for(&hands, || engine.health() != Health::Good);
    for generation in generations {
        let (_, end) = listen(generation);
        assert!(
            matches!(&end, Event::Failed(Failure::Stuck { patience }) if *patience == PATIENCE),
            "{end:?}"
        );
    }
    engine.shutdown();
    let Health::Ended { reason } = engine.health() else {
        panic!("{:?}", engine.health());
    };
    assert!(
        reason.contains("3600 s") && reason.contains("no other"),
        "{reason}"
    );
    assert!(matches!(
        engine.submit(request(0)),
        Err(SubmitError::Stopped)
    ));
}

#[test]
fn a_device_of_another_size_is_refused() {
    let (device, _gate) = sticking(0);
    let hands = Hands::new();
    let factory: BackendFactory = Box::new(|| Ok(Box::new(FakeBackend::new(32, 4))));
    let engine = Engine::launch(Box::new(device), Some(factory), &config(), hands.clock());
    let generation = engine.submit(request(0)).unwrap();
    wait_for(&hands, || matches!(engine.health(), Health::Ended { .. }));
    assert!(matches!(
        listen(generation).1,
        Event::Failed(Failure::Stuck { .. })
    ));
}

#[test]
fn devices_that_stick_one_after_another_end_the_engine() {
    let hands = Hands::new();
    let gates = Arc::new(Mutex::new(Vec::new()));
    let factory: BackendFactory = {
        let gates = gates.clone();
        Box::new(move || {
            let (device, gate) = sticking(0);
            gates.lock().unwrap().push(gate);
            Ok(Box::new(device))
        })
    };
    let (device, _gate) = sticking(0);
    let config = EngineConfig {
        max_retries: u32::MAX,
        ..config()
    };
    let engine = Engine::launch(Box::new(device), Some(factory), &config, hands.clock());
    let generation = engine.submit(request(0)).unwrap();
    wait_for(&hands, || matches!(engine.health(), Health::Ended { .. }));
    assert!(matches!(
        listen(generation).1,
        Event::Failed(Failure::Stuck { .. })
    ));
    assert_eq!(gates.lock().unwrap().len(), 3);
}

#[test]
fn devices_that_are_lost_one_after_another_end_the_engine() {
    let hands = Hands::new();
    let lost = || FakeBackend::new(64, 4).faults(|_| Fault::Lost);
    let made = Arc::new(Mutex::new(0));
    let factory: BackendFactory = {
        let made = made.clone();
        Box::new(move || {
            *made.lock().unwrap() += 1;
            Ok(Box::new(lost()))
        })
    };
    let config = EngineConfig {
        max_retries: u32::MAX,
        ..config()
    };
    let engine = Engine::launch(Box::new(lost()), Some(factory), &config, hands.clock());
    let generation = engine.submit(request(0)).unwrap();
    wait_for(&hands, || matches!(engine.health(), Health::Ended { .. }));
    assert!(matches!(
        listen(generation).1,
        Event::Failed(Failure::Device(_))
    ));
    assert_eq!(*made.lock().unwrap(), 3);
    assert_eq!(engine.stats().steps, 0);
}

#[test]
fn a_lost_device_costs_recomputation_and_changes_no_answer() {
    for lost_at in [1, 2, 6, 9] {
        let mut steps = 0;
        let backend = FakeBackend::new(64, 4).faults(move |_| {
            steps += 1;
            if steps == lost_at {
                Fault::Lost
            } else {
                Fault::None
            }
        });
        let mut stepper = Stepper::new(Box::new(backend), &config());
        let now = Instant::now();
        let requests: Vec<Request> = (0..4).map(request).collect();
        let generations: Vec<Generation> = requests
            .iter()
            .map(|request| stepper.submit(request.clone(), now).unwrap())
            .collect();
        while !stepper.is_idle() {
            stepper.step(now);
            stepper.check();
        }
        for (generation, request) in generations.into_iter().zip(&requests) {
            expect_whole(generation, request);
        }
        let stats = stepper.stats();
        assert_eq!((stats.devices_lost, stats.cache.in_use), (1, 0));
        assert!(stats.retries >= 1);
    }
}

/// Returns a device that computes `steps` steps and is lost from then on.
fn mortal(steps: u32) -> FakeBackend {
    let mut left = steps;
    FakeBackend::new(64, 4).faults(move |_| {
        if left == 0 {
            return Fault::Lost;
        }
        left -= 1;
        Fault::None
    })
}

#[test]
fn a_device_that_is_lost_for_good_is_replaced_and_no_request_notices() {
    for watchdog in [None, Some(PATIENCE)] {
        let mut lives = [3, 0, 5].into_iter();
        let made = Arc::new(Mutex::new(0));
        let factory: BackendFactory = {
            let made = made.clone();
            Box::new(move || {
                *made.lock().unwrap() += 1;
                Ok(Box::new(mortal(lives.next().unwrap_or(u32::MAX))))
            })
        };
        let config = EngineConfig {
            watchdog,
            max_retries: u32::MAX,
            ..config()
        };
        let engine = Engine::launch(
            Box::new(mortal(2)),
            Some(factory),
            &config,
            Hands::new().clock(),
        );
        let requests: Vec<Request> = (0..4).map(request).collect();
        let generations: Vec<Generation> = requests
            .iter()
            .map(|request| engine.submit(request.clone()).unwrap())
            .collect();
        for (generation, request) in generations.into_iter().zip(&requests) {
            expect_whole(generation, request);
        }
        assert_eq!(*made.lock().unwrap(), 4);
        assert_eq!(engine.health(), Health::Good);
        engine.shutdown();
    }
}

#[test]
fn a_device_that_is_lost_for_good_ends_an_engine_that_has_no_other() {
    let engine = Engine::start(Box::new(mortal(3)), config());
    // The last requests may be submitted too late.
    let generations: Vec<Generation> = (0..4)
        .filter_map(|first| engine.submit(request(first)).ok())
        .collect();
    assert!(!generations.is_empty());
    for generation in generations {
        let (_, end) = listen(generation);
        assert!(matches!(&end, Event::Failed(Failure::Device(_))), "{end:?}");
    }
    engine.shutdown();
    let Health::Ended { reason } = engine.health() else {
        panic!("{:?}", engine.health());
    };
    assert!(
        reason.contains("device lost") && reason.contains("no other"),
        "{reason}"
    );
}
