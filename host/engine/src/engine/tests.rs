//! Tests of the core under random loads on small pools: a request's tokens do not depend on the load.

use super::work::Answers;
use super::*;
use crate::backend::Output;
use fake::{FakeBackend, Fault, VOCABULARY, expected, prompt_rows};
use foreword_ordering::random::Random;
use std::collections::HashMap;

#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../../tests/support/fake.rs"]
mod fake;
mod recovery;
mod requests;
mod tiers;

/// A seeded source of random requests.
struct Seeded(Random);

impl Seeded {
    fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.0.below(limit.into()) as u32
    }

    /// Returns a request whose prompt often begins as others do.
    fn request(&mut self, longest_prompt: u32) -> Request {
        let length = 1 + self.below(longest_prompt);
        let fork = self.below(length + 1);
        let mut prompt: Vec<TokenId> = (0..fork)
            .map(|position| position * 7 % VOCABULARY)
            .collect();
        prompt.extend((fork..length).map(|_| self.below(3)));
        let sampling = match self.below(3) {
            0 => Sampling::greedy(),
            1 => Sampling::new(1.0, 1.0, 0, u64::from(self.below(3))).unwrap(),
            _ => Sampling::new(0.8, 0.9, 8, u64::from(self.below(3))).unwrap(),
        };
        Request {
            prompt,
            max_tokens: 1 + self.below(24),
            sampling,
            stop_tokens: (0..self.below(2)).map(|_| self.below(VOCABULARY)).collect(),
            constraint: None,
            top_logprobs: None,
            prompt_logprobs: [None, None, None, Some(2)][self.below(4) as usize],
            scored_tokens: [None, Some(1 + self.below(40))][self.below(2) as usize],
            cache_salt: ["", "a"][self.below(2) as usize].to_owned(),
            tenant: ["", "b", "c"][self.below(3) as usize].into(),
            ..Request::default()
        }
    }

    /// Returns a request as [`Seeded::request`] does that may be a guess or its target, and may have a deadline.
    fn speculation(&mut self, longest_prompt: u32, now: Instant) -> Request {
        let id = self.below(3);
        let kind = [Kind::Answer, Kind::Prefill][self.below(2) as usize];
        // One of two guesses, which begin alike.
        let tail = self.below(2);
        let prompt = (0..longest_prompt).map(|position| if position < 8 { id } else { tail });
        Request {
            kind,
            speculation: Some(SpeculationId(id.into())),
            prompt: prompt.collect(),
            cache_salt: String::new(),
            deadline: Some(now + Duration::from_millis(u64::from(self.below(60)) * 100)),
            ..self.request(longest_prompt)
        }
    }
}

/// Returns the log-probabilities that a prompt must have, however it is batched, cut or preempted.
fn prompt_logprobs(prompt: &[TokenId], top: u32) -> Vec<Logprobs> {
    let rows = prompt_rows(prompt);
    let scored = rows.iter().zip(&prompt[1..]);
    let logprobs = scored.map(|(row, &token)| Logprobs::checked(row, token, top));
    logprobs.collect::<Result<_, _>>().unwrap()
}

/// A core with the callers of its requests.
struct Load {
    core: Core,
    backend: FakeBackend,
    bell: Arc<AtomicU64>,
    now: Instant,
    callers: HashMap<u32, Caller>,
    accepted: u32,
    failed: u32,
}

struct Caller {
    request: Request,
    generation: Generation,
    /// The expected tokens, and whether a stop token ends them.
    expected: (Vec<TokenId>, bool),
    tokens: Vec<TokenId>,
    started: bool,
    scored: bool,
}

impl Load {
    fn new(backend: FakeBackend, max_running: u32, max_step_tokens: u32) -> Self {
        let config = EngineConfig {
            max_running,
            max_step_tokens,
            ..EngineConfig::default()
        };
        Self::with(backend, &config)
    }

    fn with(backend: FakeBackend, config: &EngineConfig) -> Self {
        let bell = Arc::new(AtomicU64::new(0));
        Self {
            core: Core::new(&backend, config, bell.clone()),
            backend,
            bell,
            now: Instant::now(),
            callers: HashMap::new(),
            accepted: 0,
            failed: 0,
        }
    }

    fn submit(&mut self, request: Request) {
        let (sequence, generation) = request
            .clone()
            .accept(self.core.bounds(), &self.bell)
            .unwrap();
        self.core.enqueue([sequence]);
        let Request {
            prompt,
            max_tokens,
            sampling,
            stop_tokens,
            ..
        } = &request;
        let capacity = self.core.bounds().capacity;
        let expected = match request.kind {
            Kind::Answer => expected(prompt, *max_tokens, capacity, sampling, stop_tokens),
            Kind::Prefill => Default::default(),
        };
        self.callers.insert(
            self.accepted,
            Caller {
                request,
                generation,
                expected,
                tokens: Vec::new(),
                started: false,
                scored: false,
            },
        );
        self.accepted += 1;
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(100);
        let work = self.core.prepare(self.now);
        self.core.check();
        let segments = work.step.segments.iter();
        let scored = segments.filter(|segment| segment.output == Output::All);
        let scored: usize = scored.map(|segment| segment.tokens.len()).sum();
        assert!(scored <= self.core.max_scored_tokens as usize);
        let mut answers = Answers::default();
        let outcome = work.run(&mut self.backend, &mut answers);
        self.core.complete(&work, outcome.map(|()| &mut answers));
        self.core.check();
        self.core.send_events();
        let failed = &mut self.failed;
        self.callers.retain(|_, caller| caller.listen(failed));
    }

    /// Steps until every request has ended, and asserts that no caller and no page is left.
    fn drain(&mut self) -> Stats {
        let mut steps = 0;
        while !self.core.is_idle() {
            self.step();
            steps += 1;
            assert!(steps < 100_000, "no progress: {:?}", self.core.stats());
        }
        assert!(self.callers.is_empty(), "callers were left without an end");
        // Guesses that were held for them are let go.
        self.step();
        let stats = self.core.stats();
        assert_eq!(
            (stats.cache.in_use, stats.running, stats.waiting),
            (0, 0, 0)
        );
        assert_eq!(stats.finished, u64::from(self.accepted));
        stats
    }
}

impl Caller {
    /// Reads the events that have arrived; `false` after the last. Every token must be the expected one.
    fn listen(&mut self, failed: &mut u32) -> bool {
        let (tokens, stopped) = &self.expected;
        while let Ok(event) = self.generation.events.try_recv() {
            match event {
                Event::Started { cached_tokens } => {
                    assert!(
                        !self.started
                            && self.tokens.is_empty()
                            && (cached_tokens as usize) < self.request.prompt.len()
                    );
                    if self.request.prompt_logprobs.is_some() {
                        let rows = self.request.prompt.len() - 1;
                        let last = self
                            .request
                            .scored_tokens
                            .map_or(rows, |last| last as usize);
                        assert!(cached_tokens as usize <= rows.saturating_sub(last));
                    }
                    self.started = true;
                }
                Event::Prompt(found) => {
                    assert!(self.started && self.tokens.is_empty() && !self.scored);
                    self.scored = true;
                    let top = self.request.prompt_logprobs.unwrap();
                    let all = prompt_logprobs(&self.request.prompt, top);
                    let last = (self.request.scored_tokens).map_or(all.len(), |last| last as usize);
                    assert_eq!(found, all[all.len().saturating_sub(last)..]);
                }
                Event::Token { id: token, .. } => {
                    assert!(self.started);
                    assert_eq!(self.scored, self.request.prompt_logprobs.is_some());
                    self.tokens.push(token);
                    assert!(
                        tokens.starts_with(&self.tokens),
                        "{:?} is not {tokens:?}",
                        self.tokens
                    );
                }
                Event::Finished(reason) => {
                    assert_eq!(&self.tokens, tokens);
                    assert_eq!(reason == FinishReason::Stop, *stopped);
                    let prefill = self.request.kind == Kind::Prefill;
                    assert_eq!(reason == FinishReason::Prefilled, prefill);
                    return false;
                }
                Event::Failed(Failure::Superseded) => {
                    assert!(self.request.speculation.is_some());
                    return false;
                }
                Event::Failed(Failure::Expired) => {
                    assert!(self.request.deadline.is_some());
                    return false;
                }
                Event::Failed(reason) => {
                    assert!(
                        matches!(reason, Failure::Device(_) | Failure::Sampling(_)),
                        "{reason}"
                    );
                    *failed += 1;
                    return false;
                }
            }
        }
        true
    }
}

#[test]
fn step_sizes_are_counted_by_powers_of_two() {
    let mut sizes = super::StepSizes::default();
    for sequences in [1, 2, 3, 4, 5, 1 << 20] {
        sizes.add(sequences);
    }
    let mut counts = [0; 14];
    counts[..4].copy_from_slice(&[1, 1, 2, 1]);
    counts[13] = 1;
    assert_eq!((sizes.counts, sizes.sequences), (counts, 15 + (1 << 20)));
}

#[test]
fn tokens_depend_on_the_request_alone() {
    let (mut preempted, mut retried, mut evicted, mut cached) = (0, 0, 0, 0);
    let (mut joined, mut superseded, mut expired) = (0, 0, 0);
    for seed in 0..120 {
        let mut random = Seeded::new(seed);
        let page_tokens = [1, 3, 4][random.below(3) as usize];
        let pages = 40 / page_tokens + random.below(12);
        let max_step_tokens = [1, 5, 64][random.below(3) as usize];
        let mut backend = FakeBackend::new(pages, page_tokens).max_positions(60);
        if random.below(4) == 0 {
            let (mut dice, mut copies) = (Seeded::new(3000 + seed), Seeded::new(4000 + seed));
            backend = backend
                .copy_faults(move || copies.below(6) == 0)
                .faults(move |_| match dice.below(24) {
                    0 => Fault::Device,
                    1 => Fault::Lost,
                    _ => Fault::None,
                });
        }
        let config = EngineConfig {
            max_running: [1, 3, 8][random.below(3) as usize],
            max_step_tokens,
            max_retries: u32::MAX,
            order: [
                Rule::Arrival,
                Rule::Grouped { window: 2 },
                Rule::CachedFirst { window: 2 },
                Rule::ExactlyCachedFirst { window: 2 },
            ][random.below(4) as usize],
            ..EngineConfig::default()
        };
        let mut load = Load::with(backend, &config);
        load.core.max_scored_tokens = 1 + random.below(9);
        for _ in 0..150 {
            match random.below(10) {
                0..=1 => load.submit(random.request(30)),
                2 => load.submit(random.speculation(30, load.now)),
                3 if !load.callers.is_empty() => {
                    let mut keys: Vec<u32> = load.callers.keys().copied().collect();
                    keys.sort_unstable();
                    load.callers
                        .remove(&keys[random.below(keys.len() as u32) as usize]);
                }
                4 if random.below(10) == 0 => {
                    load.core.clear_cache();
                    load.core.check();
                }
                _ => load.step(),
            }
        }
        let stats = load.drain();
        assert_eq!(load.failed, 0);
        preempted += stats.preemptions;
        retried += stats.retries;
        joined += stats.speculations_joined;
        superseded += stats.speculations_superseded;
        expired += stats.expired;
        evicted += stats.cache.evicted;
        cached += stats.cached_tokens;
    }
    assert!(
        preempted > 100 && retried > 100 && evicted > 1000 && cached > 1000,
        "{preempted} {retried} {evicted} {cached}: too tame a load"
    );
    assert!(
        joined > 10 && superseded > 100 && expired > 100,
        "{joined} {superseded} {expired}: too tame a load"
    );
}

#[test]
fn repeated_faults_end_the_requests_of_their_steps_and_harm_no_other() {
    let mut failed = 0;
    for seed in 0..60 {
        let mut random = Seeded::new(1000 + seed);
        let mut dice = Seeded::new(2000 + seed);
        let backend = FakeBackend::new(30, 4).faults(move |_| match dice.below(24) {
            0 => Fault::Device,
            1 => Fault::NotNumbers,
            _ => Fault::None,
        });
        let config = EngineConfig {
            max_running: 4,
            max_step_tokens: 16,
            max_retries: 1,
            ..EngineConfig::default()
        };
        let mut load = Load::with(backend, &config);
        for _ in 0..60 {
            if random.below(3) == 0 {
                load.submit(random.request(30));
            }
            load.step();
        }
        load.drain();
        failed += load.failed;
    }
    assert!(failed > 100, "{failed}: too few faults");
}

#[test]
fn a_pool_of_one_sequence_serves_many_by_turns() {
    // Every answer needs more pages than at its admission, and any two exceed the pool.
    let mut load = Load::new(FakeBackend::new(8, 4), 8, 64);
    for first in 0..6 {
        let prompt = (0..8)
            .map(|position| (first + position) % VOCABULARY)
            .collect();
        let sampling = Sampling::greedy();
        let request = Request {
            prompt,
            max_tokens: 20,
            sampling,
            stop_tokens: vec![],
            constraint: None,
            top_logprobs: None,
            cache_salt: String::new(),
            ..Request::default()
        };
        load.submit(request);
    }
    let stats = load.drain();
    assert!(stats.preemptions > 0);
    assert_eq!((stats.generated_tokens, load.failed), (120, 0));
    assert_eq!(
        (stats.lookups, stats.prompt_tokens),
        (6, 48),
        "resuming counts no prompt twice"
    );
}

#[test]
fn a_prompt_as_large_as_the_pool_allows_runs_to_the_end_of_it() {
    let mut load = Load::new(FakeBackend::new(5, 4), 8, 7);
    let prompt: Vec<TokenId> = (0..19).map(|position| position % VOCABULARY).collect();
    for _ in 0..2 {
        let sampling = Sampling::greedy();
        let prompt = prompt.clone();
        load.submit(Request {
            prompt,
            max_tokens: 9,
            sampling,
            stop_tokens: vec![],
            constraint: None,
            top_logprobs: None,
            cache_salt: String::new(),
            ..Request::default()
        });
        assert_eq!(load.drain().cache.pages, 5);
    }
    assert_eq!(load.core.stats().generated_tokens, 2);
}

#[test]
fn a_step_takes_more_tokens_while_nobody_waits_for_one() {
    let config = EngineConfig {
        max_step_tokens: 8,
        max_prefill_step_tokens: Some(32),
        ..EngineConfig::default()
    };
    let request = |first: u32, kind| Request {
        prompt: (first..first + 30)
            .map(|token| token % VOCABULARY)
            .collect(),
        max_tokens: 5,
        kind,
        sampling: Sampling::greedy(),
        ..Request::default()
    };
    let steps = |load: &mut Load| {
        let before = load.core.stats().steps;
        load.drain();
        load.core.stats().steps - before
    };
    let mut load = Load::with(FakeBackend::new(100, 4), &config);
    load.submit(request(0, Kind::Answer));
    assert_eq!(steps(&mut load), 1 + 4, "the prompt in one step");

    // In a step with an answer or a speculation, a prompt is computed eight tokens at a time.
    load.submit(request(1, Kind::Answer));
    load.step();
    load.submit(request(2, Kind::Answer));
    load.step();
    assert_eq!(load.core.stats().running, 2);
    assert_eq!(steps(&mut load), 4 + 4, "seven tokens of the prompt a step");
    load.submit(request(3, Kind::Prefill));
    assert_eq!(steps(&mut load), 4);
}

#[test]
fn a_long_prompt_does_not_stall_the_answers_beside_it() {
    let mut load = Load::new(FakeBackend::new(200, 4), 8, 8);
    let request = |length: u32, max_tokens| Request {
        prompt: (0..length).map(|position| position % VOCABULARY).collect(),
        max_tokens,
        sampling: Sampling::greedy(),
        stop_tokens: vec![],
        constraint: None,
        top_logprobs: None,
        cache_salt: length.to_string(),
        ..Request::default()
    };
    load.submit(request(4, 50));
    load.step();
    load.submit(request(280, 1));
    for tokens in 2..30 {
        load.step();
        assert_eq!(
            load.callers[&0].tokens.len(),
            tokens,
            "a token in every step"
        );
    }
    load.drain();
}
