//! RAGCache++'s workload on a real engine: the time until the first token, by what stands in front of the engine.
//!
//! ```text
//!   none        nothing is reused                       every request under a salt of its own
//!   retrieval   documents in the retriever's order      prefixes match where rankings begin alike
//!   ordered     documents as the gateway orders them where nothing else is configured
//! ```
//!
//! The workload has bursts of ten requests for one region of a corpus, with five documents of 200 tokens each (section
//! 4 of the paper; the trace is the simulation's own, `simulation::workload`). Requests come in groups that are
//! submitted at once; the next group comes when all answers of a group have begun.

use anyhow::{Context, bail};
use foreword_engine::TokenId;
use foreword_engine::engine::{Event, Request, Stepper};
use foreword_ordering::policy::{PolicyKind, PolicyOptions};
use foreword_simulation::workload::{Bursty, bursty};
use foreword_simulation::{Capacity, Replay, Retrieved};
use serde_json::{Value, json};
use std::time::Instant;

/// The parameters of the workload.
pub(super) struct Workload {
    pub(super) queries: usize,
    pub(super) seeds: u64,
    pub(super) overlaps: Vec<f64>,
    /// Numbers of requests submitted at once.
    pub(super) groups: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    None,
    Retrieval,
    Ordered,
}

/// Tokens of the system prompt and of a question.
pub(super) const SYSTEM: u64 = 100;
pub(super) const QUESTION: u64 = 32;

/// Runs every arm for every group size at the first overlap, and for every overlap one request at a time.
pub(super) fn run(engine: &mut Stepper, workload: &Workload) -> anyhow::Result<Value> {
    let first = workload.overlaps.first().copied().unwrap_or(0.6);
    let by_group = workload.groups.iter().map(|group| (first, *group));
    let by_overlap = workload
        .overlaps
        .iter()
        .skip(1)
        .map(|overlap| (*overlap, 1));
    let mut runs = 0;
    let mut results = Vec::new();
    for (overlap, group) in by_group.chain(by_overlap) {
        let mut medians = Vec::new();
        for arm in [Arm::None, Arm::Retrieval, Arm::Ordered] {
            let mut seconds = Vec::new();
            for seed in 0..workload.seeds {
                runs += 1;
                let trace = bursty(
                    seed,
                    workload.queries,
                    Bursty {
                        overlap,
                        ..Bursty::default()
                    },
                );
                let salt = format!("run {runs}");
                seconds.push(median(replay(engine, &trace, arm, group, &salt)?)?);
            }
            medians.push(seconds);
        }
        let mean = |arm: usize| medians[arm].iter().sum::<f64>() / medians[arm].len().max(1) as f64;
        results.push(json!({
            "overlap": overlap,
            "at_once": group,
            "ttft_p50_s": {"none": medians[0], "retrieval": medians[1], "ordered": medians[2]},
            "below_retrieval": 1.0 - mean(2) / mean(1),
            "below_none": 1.0 - mean(2) / mean(0),
        }));
    }
    Ok(json!(results))
}

/// Returns the seconds until each answer's first token.
fn replay(
    engine: &mut Stepper,
    trace: &[foreword_simulation::Request],
    arm: Arm,
    group: usize,
    salt: &str,
) -> anyhow::Result<Vec<f64>> {
    let capacity = Capacity {
        tokens: None,
        page_tokens: 1,
    };
    let mut gateway = Replay::new(PolicyKind::Foresight, &PolicyOptions::default(), capacity);
    let mut seconds = Vec::new();
    for (number, requests) in trace.chunks(group.max(1)).enumerate() {
        let mut waiting = Vec::new();
        for (member, request) in requests.iter().enumerate() {
            let documents: Vec<&Retrieved> = match arm {
                Arm::None | Arm::Retrieval => request.documents.iter().collect(),
                Arm::Ordered => {
                    let order = gateway.decide(request);
                    let ranks = order.iter().map(|rank| usize::from(*rank));
                    ranks
                        .filter_map(|rank| request.documents.get(rank))
                        .collect()
                }
            };
            let cache_salt = match arm {
                Arm::None => format!("{salt}, {number}, {member}"),
                Arm::Retrieval | Arm::Ordered => salt.to_owned(),
            };
            waiting.push(Request {
                prompt: prompt(&documents, (number * group + member) as u64),
                max_tokens: 1,
                cache_salt,
                ..Request::default()
            });
        }
        seconds.extend(first_tokens(engine, waiting)?);
    }
    Ok(seconds)
}

/// Submits requests at once and computes until none is left; returns seconds until each answer's first token.
pub(super) fn first_tokens(
    engine: &mut Stepper,
    requests: Vec<Request>,
) -> anyhow::Result<Vec<f64>> {
    let mut seconds = Vec::new();
    let start = Instant::now();
    let submitted = requests
        .into_iter()
        .map(|request| engine.submit(request, start));
    let mut generations: Vec<_> = submitted
        .collect::<Result<_, _>>()
        .context("the engine is full")?;
    while !engine.is_idle() {
        engine.step(Instant::now());
        for generation in &mut generations {
            while let Some(event) = generation.try_next() {
                match event {
                    Event::Token { .. } => seconds.push(start.elapsed().as_secs_f64()),
                    Event::Failed(failure) => bail!("a request failed: {failure}"),
                    _ => {}
                }
            }
        }
    }
    Ok(seconds)
}

/// Returns a prompt: system text, documents, and a question of its own.
fn prompt(documents: &[&Retrieved], question: u64) -> Vec<TokenId> {
    let mut tokens = text(SYSTEM_TEXT, SYSTEM);
    for document in documents {
        tokens.extend(text(2 + document.fingerprint.0, document.tokens.into()));
    }
    tokens.extend(text(u64::MAX - question, QUESTION));
    tokens
}

/// Number of the system prompt's text; documents have higher ones.
pub(super) const SYSTEM_TEXT: u64 = 1;

/// Returns the tokens of the text with this number.
pub(super) fn text(number: u64, tokens: u64) -> Vec<TokenId> {
    (0..tokens).map(|at| token(number, at)).collect()
}

/// Returns a token of a text: below 128, so that every vocabulary has it.
fn token(text: u64, at: u64) -> TokenId {
    let mixed = (text.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 57) as TokenId
}

pub(super) fn median(mut seconds: Vec<f64>) -> anyhow::Result<f64> {
    seconds.sort_by(f64::total_cmp);
    seconds
        .get(seconds.len() / 2)
        .copied()
        .context("no request was answered")
}
