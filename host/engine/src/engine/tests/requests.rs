//! Tests of requests that do more than generate: warming up, superseding, deadlines, fair shares.

use super::*;

/// An engine stepped by hand, whose clock advances by a second a step.
struct House {
    stepper: Stepper,
    now: Instant,
}

impl House {
    fn new(config: EngineConfig) -> Self {
        let backend = FakeBackend::new(200, 4);
        Self {
            stepper: Stepper::new(Box::new(backend), &config),
            now: Instant::now(),
        }
    }

    fn submit(&mut self, request: Request) -> Generation {
        self.stepper.submit(request, self.now).unwrap()
    }

    fn step(&mut self) {
        self.now += Duration::from_secs(1);
        self.stepper.step(self.now);
        self.stepper.check();
    }

    fn drain(&mut self) {
        for _ in 0..10_000 {
            if self.stepper.is_idle() {
                return;
            }
            self.step();
        }
        panic!("no end: {:?}", self.stepper.stats());
    }
}

fn config() -> EngineConfig {
    EngineConfig {
        max_running: 2,
        max_step_tokens: 8,
        ..EngineConfig::default()
    }
}

/// Returns a prompt of `common` tokens that all prompts share, and then tokens `own` up to `length`.
fn prompt(common: u32, own: u32, length: u32) -> Vec<TokenId> {
    let begin = (0..common).map(|position| position % VOCABULARY);
    begin.chain((common..length).map(|_| own)).collect()
}

fn answer(prompt: Vec<TokenId>) -> Request {
    Request {
        prompt,
        max_tokens: 5,
        ..Request::default()
    }
}

fn guess(prompt: Vec<TokenId>, id: u64) -> Request {
    Request {
        kind: Kind::Prefill,
        speculation: Some(SpeculationId(id)),
        prompt,
        ..Request::default()
    }
}

/// Returns the events received so far: tokens found in the cache, tokens generated, and the end.
fn heard(generation: &mut Generation) -> (Option<u32>, Vec<TokenId>, Option<Event>) {
    let (mut cached, mut tokens) = (None, Vec::new());
    while let Ok(event) = generation.events.try_recv() {
        match event {
            Event::Started { cached_tokens } => cached = Some(cached_tokens),
            Event::Token { id: token, .. } => tokens.push(token),
            end => return (cached, tokens, Some(end)),
        }
    }
    (cached, tokens, None)
}

fn greedy(prompt: &[TokenId]) -> Vec<TokenId> {
    expected(prompt, 5, u32::MAX, &Sampling::greedy(), &[]).0
}

#[test]
fn warming_up_yields_no_token_and_leaves_the_prompt_cached() {
    let mut house = House::new(config());
    let tokens = prompt(20, 1, 30);
    let warm = Request {
        kind: Kind::Prefill,
        ..answer(tokens.clone())
    };
    let mut warming = house.submit(warm);
    house.drain();
    let (cached, none, end) = heard(&mut warming);
    assert_eq!((cached, none), (Some(0), vec![]));
    assert!(matches!(
        end,
        Some(Event::Finished(FinishReason::Prefilled))
    ));
    assert_eq!(house.stepper.stats().steps, 4, "30 tokens, 8 a step");
    let mut answered = house.submit(answer(tokens.clone()));
    house.drain();
    let (cached, tokens_heard, _) = heard(&mut answered);
    assert_eq!((cached, tokens_heard), (Some(29), greedy(&tokens)));
}

#[test]
fn a_request_says_whether_it_reads_the_cache_and_whether_it_is_kept() {
    let tokens = prompt(20, 1, 30);
    let caching = |reads, keeps, min_tokens| Request {
        caching: PrefixCaching {
            reads,
            keeps,
            min_tokens,
        },
        ..answer(tokens.clone())
    };
    let mut house = House::new(config());
    let mut ask = |request: Request| {
        let mut generation = house.submit(request);
        house.drain();
        let (cached, answered, _) = heard(&mut generation);
        assert_eq!(answered, greedy(&tokens));
        (cached, house.stepper.stats().cache.cached)
    };
    assert_eq!(ask(caching(true, false, 0)), (Some(0), 0));
    assert_eq!(ask(caching(true, true, 31)), (Some(0), 0), "too short");
    // Of 30 tokens of prompt and 5 of answer, all but the last have KV state.
    assert_eq!(ask(caching(true, true, 30)), (Some(0), 9));
    assert_eq!(ask(caching(false, true, 0)), (Some(0), 9));
    assert_eq!(ask(caching(true, false, 0)), (Some(29), 9));
    assert_eq!(house.stepper.stats().steps, 3 * 8 + 8 + 5);
}

#[test]
fn without_prefix_caching_every_prompt_is_computed_and_nothing_is_kept() {
    let mut house = House::new(EngineConfig {
        prefix_caching: false,
        ..config()
    });
    let tokens = prompt(20, 1, 30);
    for _ in 0..3 {
        let mut generation = house.submit(answer(tokens.clone()));
        house.drain();
        let (cached, answered, _) = heard(&mut generation);
        assert_eq!((cached, answered), (Some(0), greedy(&tokens)));
    }
    let stats = house.stepper.stats();
    assert_eq!((stats.cache.cached, stats.cached_tokens), (0, 0));
    assert_eq!(stats.steps, 3 * 8);
    // A guess keeps its own progress when it may not use the cache, and the request joins it all the same.
    let _guess = house.submit(guess(tokens.clone(), 7));
    house.step();
    let mut itself = house.submit(Request {
        speculation: Some(SpeculationId(7)),
        ..answer(tokens.clone())
    });
    house.drain();
    let (cached, answered, _) = heard(&mut itself);
    assert_eq!((cached, answered), (Some(8), greedy(&tokens)));
}

#[test]
fn a_guess_that_its_caller_drops_ends_with_the_current_step() {
    let mut house = House::new(config());
    let running = house.submit(guess(prompt(24, 1, 40), 7));
    house.step();
    let waiting = house.submit(guess(prompt(24, 2, 40), 8));
    drop((running, waiting));
    house.step();
    assert!(house.stepper.is_idle());
    let stats = house.stepper.stats();
    assert_eq!((stats.steps, stats.speculations_cancelled), (1, 2));
    assert_eq!(stats.cache.cached, 2, "what was computed stays");
}

#[test]
fn another_guess_supersedes_the_earlier_one_and_keeps_what_they_share() {
    let mut house = House::new(config());
    let mut first = house.submit(guess(prompt(24, 1, 40), 7));
    for _ in 0..4 {
        house.step();
    }
    let mut second = house.submit(guess(prompt(24, 2, 40), 7));
    house.drain();
    assert!(matches!(
        heard(&mut first).2,
        Some(Event::Failed(Failure::Superseded))
    ));
    let (cached, _, end) = heard(&mut second);
    assert_eq!(cached, Some(24));
    assert!(matches!(
        end,
        Some(Event::Finished(FinishReason::Prefilled))
    ));
    let stats = house.stepper.stats();
    assert_eq!(
        (stats.speculations_started, stats.speculations_superseded),
        (2, 1)
    );
}

#[test]
fn the_request_itself_joins_the_guess_and_computes_nothing_twice() {
    let tokens = prompt(24, 1, 40);
    for steps_before in [0, 1, 3] {
        let mut house = House::new(config());
        let mut guessed = house.submit(guess(tokens.clone(), 7));
        for _ in 0..steps_before {
            house.step();
        }
        let mut itself = house.submit(Request {
            speculation: Some(SpeculationId(7)),
            ..answer(tokens.clone())
        });
        house.drain();
        assert!(matches!(
            heard(&mut guessed).2,
            Some(Event::Failed(Failure::Superseded))
        ));
        let (cached, tokens_heard, end) = heard(&mut itself);
        assert_eq!(cached, Some(8 * steps_before));
        assert_eq!(tokens_heard, greedy(&tokens));
        assert!(matches!(end, Some(Event::Finished(FinishReason::Length))));
        let stats = house.stepper.stats();
        assert_eq!(stats.speculations_joined, 1);
        // The prompt has 40 tokens, 8 a step; the first token comes with the last of those steps.
        assert_eq!(stats.steps, 5 + 4);
    }
}

#[test]
fn a_request_whose_guess_is_computed_has_its_first_token_without_a_step() {
    let tokens = prompt(24, 1, 40);
    let mut house = House::new(config());
    let mut guessed = house.submit(guess(tokens.clone(), 7));
    house.drain();
    assert_eq!(house.stepper.stats().steps, 5);
    // What is held is no obstacle for others.
    let other = prompt(8, 3, 20);
    let mut theirs = house.submit(answer(other.clone()));
    house.drain();
    assert_eq!(heard(&mut theirs).1, greedy(&other));
    let before = house.stepper.stats().steps;
    let mut itself = house.submit(Request {
        speculation: Some(SpeculationId(7)),
        ..answer(tokens.clone())
    });
    house.drain();
    assert!(matches!(
        heard(&mut guessed).2,
        Some(Event::Finished(FinishReason::Prefilled))
    ));
    let (cached, tokens_heard, end) = heard(&mut itself);
    assert_eq!((cached, tokens_heard), (Some(39), greedy(&tokens)));
    assert!(matches!(end, Some(Event::Finished(FinishReason::Length))));
    let stats = house.stepper.stats();
    assert_eq!((stats.speculations_joined, stats.steps), (1, before + 4));
    assert_eq!(stats.cache.in_use, 0);
}

#[test]
fn a_request_joins_a_computed_guess_only_where_a_slot_is_free() {
    let mut house = House::new(EngineConfig {
        max_running: 1,
        ..config()
    });
    let tokens = prompt(24, 1, 40);
    let _guessed = house.submit(guess(tokens.clone(), 7));
    house.drain();
    let other = prompt(8, 3, 20);
    let mut theirs = house.submit(answer(other.clone()));
    house.step();
    let mut itself = house.submit(Request {
        speculation: Some(SpeculationId(7)),
        ..answer(tokens.clone())
    });
    house.drain();
    assert_eq!(heard(&mut theirs).1, greedy(&other));
    assert_eq!(heard(&mut itself).1, greedy(&tokens));
    assert_eq!(house.stepper.stats().speculations_joined, 0);
}

#[test]
fn a_running_answer_takes_the_pages_of_computed_guesses() {
    let mut house = House::new(config());
    let pages = house.stepper.stats().cache.pages;
    let tokens = prompt(0, 1, (pages - 8) * 4);
    let _guessed = house.submit(guess(tokens, 7));
    house.drain();
    let short = prompt(0, 2, 20);
    let mut generation = house.submit(Request {
        max_tokens: 60,
        ..answer(short.clone())
    });
    for _ in 0..100 {
        house.step();
    }
    assert!(house.stepper.is_idle(), "{:?}", house.stepper.stats());
    assert_eq!(heard(&mut generation).1.len(), 60);
}

#[test]
fn an_answer_of_one_token_ends_although_nothing_is_left_to_compute() {
    let backend = Box::new(FakeBackend::new(200, 4));
    let engine = Engine::start(backend, config());
    let tokens = prompt(24, 1, 40);
    let mut guessed = engine.submit(guess(tokens.clone(), 7)).unwrap();
    while !matches!(guessed.blocking_next(), Some(Event::Finished(_))) {}
    let mut itself = engine
        .submit(Request {
            max_tokens: 1,
            speculation: Some(SpeculationId(7)),
            ..answer(tokens.clone())
        })
        .unwrap();
    let mut answered = Vec::new();
    while let Some(event) = itself.blocking_next() {
        if let Event::Token { id, .. } = event {
            answered.push(id);
        }
    }
    assert_eq!(answered, greedy(&tokens)[..1]);
    // The pages of a guess whose caller has gone are released although nothing else happens.
    let gone = engine.submit(guess(prompt(24, 2, 40), 8)).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while engine.stats().finished < 3 || engine.stats().cache.in_use == 0 {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    drop(gone);
    while engine.stats().cache.in_use > 0 {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
}

#[test]
fn a_computed_guess_ends_with_its_caller_and_gives_way_to_who_needs_its_pages() {
    let tokens = prompt(24, 1, 40);
    let mut house = House::new(config());
    let guessed = house.submit(guess(tokens.clone(), 7));
    house.drain();
    assert!(house.stepper.stats().cache.in_use > 0);
    drop(guessed);
    house.step();
    assert_eq!(house.stepper.stats().cache.in_use, 0);

    let _guessed = house.submit(guess(tokens.clone(), 8));
    house.drain();
    let pages = house.stepper.stats().cache.pages;
    let long = prompt(0, 2, (pages - 2) * 4);
    let mut generation = house.submit(answer(long.clone()));
    house.drain();
    assert_eq!(heard(&mut generation).1, greedy(&long));
    // Its own request computes what is no longer there.
    let mut itself = house.submit(Request {
        speculation: Some(SpeculationId(8)),
        ..answer(tokens.clone())
    });
    house.drain();
    assert_eq!(heard(&mut itself).1, greedy(&tokens));
    assert_eq!(house.stepper.stats().speculations_joined, 0);
}

#[test]
fn a_guess_that_was_wrong_costs_the_request_nothing_but_the_step() {
    let mut house = House::new(config());
    let _wrong = house.submit(guess(prompt(8, 1, 40), 7));
    house.step();
    let right = prompt(8, 2, 40);
    let mut itself = house.submit(Request {
        speculation: Some(SpeculationId(7)),
        ..answer(right.clone())
    });
    house.step();
    assert_eq!(house.stepper.stats().running, 1, "the wrong one has left");
    house.drain();
    let (cached, tokens, _) = heard(&mut itself);
    assert_eq!((cached, tokens), (Some(8), greedy(&right)));
}

#[test]
fn ids_are_a_tenants_own() {
    let mut house = House::new(config());
    let mut theirs = house.submit(guess(prompt(24, 1, 40), 7));
    house.step();
    let salted = Request {
        cache_salt: "a".to_owned(),
        ..guess(prompt(24, 2, 40), 7)
    };
    let _mine = house.submit(salted);
    house.drain();
    assert!(matches!(
        heard(&mut theirs).2,
        Some(Event::Finished(FinishReason::Prefilled))
    ));
}

#[test]
fn a_request_ends_when_its_time_is_over_waiting_or_running() {
    let mut house = House::new(EngineConfig {
        max_running: 1,
        ..config()
    });
    let until = |house: &House, seconds| Some(house.now + Duration::from_secs(seconds));
    let running = Request {
        max_tokens: 100,
        deadline: until(&house, 10),
        ..answer(prompt(8, 1, 8))
    };
    let waiting = Request {
        deadline: until(&house, 5),
        ..answer(prompt(8, 2, 12))
    };
    let patient = Request {
        deadline: until(&house, 1000),
        ..answer(prompt(8, 3, 12))
    };
    let expected = greedy(&patient.prompt);
    let mut running = house.submit(running);
    let [mut waiting, mut patient] = [waiting, patient].map(|request| house.submit(request));
    for _ in 0..5 {
        house.step();
    }
    let expired = |event| matches!(event, Some(Event::Failed(Failure::Expired)));
    assert!(expired(heard(&mut waiting).2));
    house.drain();
    let (_, tokens, end) = heard(&mut running);
    assert!(expired(end) && tokens.len() == 9, "a token a second");
    assert_eq!(heard(&mut patient).1, expected);
    assert_eq!(house.stepper.stats().expired, 2);
}

/// Returns a tenant's request with a prompt of 8 tokens `own`.
fn of(tenant: &str, own: u32) -> Request {
    Request {
        tenant: tenant.into(),
        ..answer(prompt(0, own, 8))
    }
}

#[test]
fn a_flood_of_one_tenant_does_not_hold_up_another() {
    let mut house = House::new(EngineConfig {
        max_running: 1,
        ..config()
    });
    let mut flood: Vec<Generation> = (0..20).map(|own| house.submit(of("flood", own))).collect();
    house.step();
    let mut other = house.submit(of("other", 21));
    let mut started = 0;
    while heard(&mut other).0.is_none() {
        house.step();
        let of_the_flood = flood.iter_mut();
        started += of_the_flood
            .filter_map(|generation| heard(generation).0)
            .count();
    }
    assert!(started <= 2, "{started} of the flood went first");
}

#[test]
fn a_bounded_tenant_leaves_places_to_others() {
    let mut house = House::new(EngineConfig {
        max_running: 4,
        max_running_per_tenant: 2,
        max_step_tokens: 64,
        ..config()
    });
    let mut flood: Vec<Generation> = (0..4).map(|own| house.submit(of("flood", own))).collect();
    house.step();
    assert_eq!(house.stepper.stats().running, 2);
    let mut other = house.submit(of("other", 21));
    house.step();
    assert!(heard(&mut other).0.is_some());
    house.drain();
    assert!(flood.iter_mut().all(|one| heard(one).2.is_some()));
}

#[test]
fn the_queue_prefers_what_is_cached() {
    let mut house = House::new(EngineConfig {
        max_running: 1,
        ..config()
    });
    let mut warm = house.submit(answer(prompt(16, 1, 16)));
    house.drain();
    assert!(heard(&mut warm).2.is_some());
    let mut cold = house.submit(answer(prompt(0, 9, 20)));
    let mut hit = house.submit(answer(prompt(16, 2, 20)));
    house.step();
    assert!(heard(&mut hit).0 >= Some(16));
    assert_eq!(heard(&mut cold).0, None);
    house.drain();
}

/// Returns the log-probabilities of a prompt, the tokens after it and the end, if received.
fn scored(generation: &mut Generation) -> (Option<Vec<Logprobs>>, Vec<TokenId>, Option<Event>) {
    let (mut found, mut tokens) = (None, Vec::new());
    while let Ok(event) = generation.events.try_recv() {
        match event {
            Event::Started { cached_tokens } => assert_eq!(cached_tokens, 0),
            Event::Prompt(logprobs) => found = Some(logprobs),
            Event::Token { id: token, .. } => tokens.push(token),
            end => return (found, tokens, Some(end)),
        }
    }
    (found, tokens, None)
}

#[test]
fn a_prompts_logprobs_are_the_same_cached_or_not_and_the_answer_too() {
    let mut house = House::new(config());
    let tokens = prompt(20, 1, 30);
    let score = Request {
        prompt_logprobs: Some(3),
        ..answer(tokens.clone())
    };
    for _ in 0..2 {
        let mut generation = house.submit(score.clone());
        house.drain();
        let (found, answer, end) = scored(&mut generation);
        assert_eq!(found.unwrap(), prompt_logprobs(&tokens, 3));
        assert_eq!(answer, greedy(&tokens));
        assert!(matches!(end, Some(Event::Finished(FinishReason::Length))));
    }
    // Its pages are reused by others.
    let mut other = house.submit(answer(tokens.clone()));
    house.drain();
    assert_eq!(heard(&mut other).0, Some(29));
}

#[test]
fn a_prompt_may_be_scored_without_an_answer() {
    let mut house = House::new(config());
    for length in [1, 2, 8, 9, 30] {
        let tokens = prompt(20.min(length), 1, length);
        let mut generation = house.submit(Request {
            prompt_logprobs: Some(0),
            max_tokens: 0,
            ..answer(tokens.clone())
        });
        house.drain();
        let (found, none, end) = scored(&mut generation);
        assert_eq!(found.unwrap(), prompt_logprobs(&tokens, 0));
        assert!(none.is_empty());
        assert!(matches!(end, Some(Event::Finished(FinishReason::Length))));
    }
    let unscored = Request {
        max_tokens: 0,
        ..answer(prompt(5, 1, 5))
    };
    assert!(house.stepper.submit(unscored, house.now).is_err());
}

#[test]
fn a_guess_is_not_joined_by_a_request_that_scores_its_prompt() {
    let mut house = House::new(config());
    let tokens = prompt(20, 1, 30);
    let _guess = house.submit(guess(tokens.clone(), 7));
    house.step();
    let mut generation = house.submit(Request {
        prompt_logprobs: Some(0),
        speculation: Some(SpeculationId(7)),
        ..answer(tokens.clone())
    });
    house.drain();
    let (found, ..) = scored(&mut generation);
    assert_eq!(found.unwrap(), prompt_logprobs(&tokens, 0));
}

#[test]
fn a_step_yields_a_bounded_number_of_logits() {
    use super::super::prompt_scores::max_scored_tokens;
    assert_eq!(max_scored_tokens(49_152), 170);
    assert_eq!(max_scored_tokens(u32::MAX), 1, "every step gets on");
}
