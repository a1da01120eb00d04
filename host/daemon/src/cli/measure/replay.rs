//! Runs RAGCache++'s workload on a real engine, and measures the time to the first token for each arm.
//!
//! ```text
//!   trace ──▶ arm 1: gateway ──▶ prompt ─┐
//!         ──▶ arm 2: gateway ──▶ prompt ─┼─▶ one engine; each arm under a salt of its own
//!         ──▶ …                          ┘
//! ```
//!
//! The arms take turns for each group of requests, and each is first in turn. So other load on the machine affects all
//! arms, and ratios between arms are valid even if times are not. The arms have different salts, so they share no
//! pages, but one pool that is sized for all of them. An arm that computes less also stores less, so an arm's share of
//! the pool is not exact.

use super::arm::Arm;
use super::prompt::{Gateway, body};
use anyhow::{Context, bail};
use foreword_engine::engine::{Event, Request, Stepper};
use foreword_ordering::policy::Place;
use foreword_simulation::Trace;
use foreword_simulation::workload::{self, Bursty, Ranks};
use std::time::Instant;

foreword_ordering::named! {
    /// A kind of generated trace: how its requests draw their documents.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(super) enum Kind {
        /// Bursts of ten requests about one region (RAGCache++, section 4.1).
        Bursty = "bursty",
        /// Places around cities (section 4.7).
        Geospatial = "geospatial",
        /// Each request draws its documents from the whole corpus uniformly.
        Uniform = "uniform",
        /// No two requests have a document in common. All seeds give the same trace.
        Disjoint = "disjoint",
    }
}

/// The workload that every arm gets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    pub(super) kind: Kind,
    /// Fraction (0 to 1) of documents that consecutive requests have in common, in bursty traces.
    pub(super) overlap: f64,
    /// Order of the documents within a request, in bursty and geospatial traces: random for each request, or constant
    /// during a burst.
    pub(super) ranks: Ranks,
    /// Where the gateway puts the retriever's best document.
    pub(super) place: Place,
    /// Number of documents in the corpus of bursty and uniform traces; of no meaning in others, see
    /// [`Self::corpus`].
    pub(super) documents: u64,
    /// Number of documents in a request.
    pub(super) k: usize,
    /// Number of requests submitted together; the next ones follow when all their answers have ended.
    pub(super) at_once: usize,
    /// Number of tokens of an answer.
    pub(super) answer: u32,
    /// Number of requests per seed.
    pub(super) queries: usize,
    /// Number of runs, each with its own seed.
    pub(super) seeds: u64,
    /// Number of tokens of KV state for each arm.
    pub(super) kv_tokens: u64,
}

/// The measurements of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// Seconds that the gateway needed to order the documents.
    pub(super) ordering: f64,
    /// Seconds to make the prompt's tokens from the ordered body.
    pub(super) building: f64,
    /// Seconds in the engine until the first token.
    pub(super) prefill: f64,
    pub(super) prompt_tokens: u32,
    pub(super) cached_tokens: u32,
}

impl Sample {
    /// Returns the seconds until the first token.
    pub(super) fn ttft(&self) -> f64 {
        self.ordering + self.building + self.prefill
    }
}

/// An arm's results: the samples of each seed, and the total seconds that all its requests took.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) arm: Arm,
    pub(super) seeds: Vec<Vec<Sample>>,
    pub(super) seconds: f64,
}

impl Workload {
    /// Returns the number of documents in the corpus; `None` for a kind of trace that determines it itself.
    pub(super) fn corpus(&self) -> Option<u64> {
        matches!(self.kind, Kind::Bursty | Kind::Uniform).then_some(self.documents)
    }

    /// Returns the trace for a seed.
    fn trace(&self, seed: u64) -> Trace {
        match self.kind {
            Kind::Bursty => {
                let shape = Bursty {
                    documents: self.documents,
                    overlap: self.overlap,
                    k: self.k,
                    ranks: self.ranks,
                };
                workload::bursty(seed, self.queries, shape)
            }
            Kind::Geospatial => workload::geospatial(seed, self.queries, self.k, self.ranks),
            Kind::Uniform => workload::uniform(seed, self.queries, self.documents, self.k),
            Kind::Disjoint => workload::disjoint(self.queries, self.k),
        }
    }
}
/// Runs the workload under every arm. `name` distinguishes its salts from other workloads'. `done` is called after
/// every request.
pub(super) fn run(
    engine: &mut Stepper,
    name: &str,
    workload: &Workload,
    arms: &[Arm],
    mut done: impl FnMut(),
) -> anyhow::Result<Vec<Outcome>> {
    let outcome = |arm: &Arm| Outcome {
        arm: *arm,
        seeds: Vec::new(),
        seconds: 0.0,
    };
    let mut outcomes: Vec<Outcome> = arms.iter().map(outcome).collect();
    for seed in 0..workload.seeds {
        let mut gateways = Vec::new();
        for outcome in &mut outcomes {
            outcome.seeds.push(Vec::with_capacity(workload.queries));
            gateways.push(Gateway::new(
                outcome.arm,
                workload.place,
                workload.kv_tokens,
            )?);
        }
        let trace = workload.trace(seed);
        let mut number = 0;
        for (turn, requests) in trace.chunks(workload.at_once.max(1)).enumerate() {
            let bodies: Vec<Vec<u8>> = (number..)
                .zip(requests)
                .map(|(at, request)| body(request, at))
                .collect();
            for at in 0..arms.len() {
                let at = (at + turn) % arms.len();
                let (outcome, gateway) = (&mut outcomes[at], &mut gateways[at]);
                let salt = format!("{name}, {seed}, {}", outcome.arm.name());
                let sent = group(
                    engine,
                    gateway,
                    &bodies,
                    |member| match outcome.arm {
                        Arm::NoCache => format!("{salt}, {}", number + member),
                        Arm::Gateway { .. } => salt.clone(),
                    },
                    workload.answer,
                )?;
                outcome.seconds += sent.1;
                if let Some(samples) = outcome.seeds.last_mut() {
                    samples.extend(sent.0);
                }
                bodies.iter().for_each(|_| done());
            }
            number += requests.len() as u64;
        }
    }
    Ok(outcomes)
}

/// Orders a group of requests and submits them together. Returns their samples, and the seconds until the last answer
/// ended.
fn group(
    engine: &mut Stepper,
    gateway: &mut Gateway,
    bodies: &[Vec<u8>],
    salt: impl Fn(u64) -> String,
    answer: u32,
) -> anyhow::Result<(Vec<Sample>, f64)> {
    let start = Instant::now();
    let mut prompts = Vec::with_capacity(bodies.len());
    let mut requests = Vec::with_capacity(bodies.len());
    for (body, member) in bodies.iter().zip(0..) {
        let prompt = gateway.prompt(body)?;
        requests.push(Request {
            prompt: prompt.tokens.clone(),
            max_tokens: answer,
            cache_salt: salt(member),
            ..Request::default()
        });
        prompts.push(prompt);
    }
    let answers = answers(engine, requests)?;
    let seconds = start.elapsed().as_secs_f64();
    let samples = prompts.iter().zip(answers).map(|(prompt, answer)| {
        gateway.learn(prompt, answer.cached_tokens);
        Sample {
            ordering: prompt.ordering.as_secs_f64(),
            building: prompt.building.as_secs_f64(),
            prefill: answer.first_token,
            prompt_tokens: prompt.tokens.len() as u32,
            cached_tokens: answer.cached_tokens,
        }
    });
    Ok((samples.collect(), seconds))
}

/// An answer: seconds from its submission to its first token, and the number of cached prompt tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answered {
    pub(super) first_token: f64,
    pub(super) cached_tokens: u32,
}

/// Submits requests together, and runs the engine until all have ended. An answer without a token has 0 in all fields.
pub(super) fn answers(
    engine: &mut Stepper,
    requests: Vec<Request>,
) -> anyhow::Result<Vec<Answered>> {
    let start = Instant::now();
    let submitted = requests
        .into_iter()
        .map(|request| engine.submit(request, start));
    let mut generations: Vec<_> = submitted
        .collect::<Result<_, _>>()
        .context("the engine is full")?;
    let mut answers: Vec<Option<Answered>> = vec![None; generations.len()];
    let mut cached: Vec<u32> = vec![0; generations.len()];
    while !engine.is_idle() {
        engine.step(Instant::now());
        for (at, generation) in generations.iter_mut().enumerate() {
            while let Some(event) = generation.try_next() {
                match event {
                    Event::Started { cached_tokens } => cached[at] = cached_tokens,
                    Event::Token { .. } if answers[at].is_none() => {
                        answers[at] = Some(Answered {
                            first_token: start.elapsed().as_secs_f64(),
                            cached_tokens: cached[at],
                        });
                    }
                    Event::Failed(failure) => bail!("a request failed: {failure}"),
                    _ => {}
                }
            }
        }
    }
    // A prefill without an answer has no token.
    Ok(answers.into_iter().map(Option::unwrap_or_default).collect())
}
