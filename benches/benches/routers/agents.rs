//! Chain-of-Agents, as RAGBoost runs it: each of a question's 15 documents is a request of its own to one of 15 agents, each
//! an engine with its own cache, and a manager waits for all of them.
//!
//! Agents take documents by rank (the first agent the best one, and so on), or the gateway chooses an agent for each
//! document, by what the engines' caches hold and what they have yet to do. A request takes some time and more by a rate of
//! prefill. One after another, a question takes as long as its busiest agent and begins when the one before has ended; all
//! at once, all questions together take as long as the agent that is busiest in sum.

use super::simulated::{Engine, FIXED, RATE, decide, orderer, tokens_of};
use foreword_benches::{Arguments, workloads, xquad};
use foreword_ordering::{EngineCandidate, EngineId};
use foreword_simulation::{Capacity, Request, Trace};

const AGENTS: usize = 15;
/// Documents that an agent's cache holds.
const ROOMS: [u64; 3] = [2, 8, 32];
const QUESTIONS: usize = 600;

/// Who chooses the agent for a document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Router {
    Rank,
    Foreword,
}

/// Prints a table with the share of tokens that the agents' caches had, and the questions in a second.
pub(crate) fn compare(arguments: &Arguments) {
    let questions = if arguments.benching { QUESTIONS } else { 20 };
    let mut traces = vec![(
        "Zipf topics",
        workloads::zipf_topics(1, questions, 5_000, AGENTS),
    )];
    match xquad::traces(&[AGENTS]) {
        Ok(found) => traces.extend(found.into_iter().map(|trace| ("XQuAD", trace))),
        Err(reason) => println!("without XQuAD: {reason}"),
    }
    println!("{questions} questions of {AGENTS} documents, {AGENTS} agents");
    println!(
        "| trace | documents in a cache | cached: by rank | Foreword | one cache of all agents' room | times the questions a second: one after another | all at once |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    for (name, trace) in &mut traces {
        trace.truncate(questions);
        for room in ROOMS {
            let rank = run(trace, room, Router::Rank, arguments);
            let ours = run(trace, room, Router::Foreword, arguments);
            println!(
                "| {name} | {room} | {:.1} % | {:.1} % | {:.1} % | {:.2} | {:.2} |",
                100.0 * rank.cached,
                100.0 * ours.cached,
                100.0 * bound(trace, room * AGENTS as u64),
                rank.seconds / ours.seconds,
                rank.busiest / ours.busiest
            );
        }
    }
}

struct Figures {
    /// Share of document tokens.
    cached: f64,
    /// Seconds of all questions, one after another.
    seconds: f64,
    /// Seconds that the busiest agent computes in all.
    busiest: f64,
}

/// The capacity of a cache for so many documents of average length.
fn capacity(trace: &Trace, documents: u64) -> Capacity {
    let tokens: u64 = trace.iter().map(tokens_of).sum();
    let count: usize = trace.iter().map(|request| request.documents.len()).sum();
    Capacity {
        tokens: Some(documents * tokens / count as u64),
        ..Capacity::of_prompts(1, trace)
    }
}

fn single(request: &Request, document: usize) -> Request {
    Request {
        documents: vec![request.documents[document].clone()],
        ..request.clone()
    }
}

fn run(trace: &Trace, room: u64, router: Router, arguments: &Arguments) -> Figures {
    let capacity = capacity(trace, room);
    let mut agents: Vec<Engine> = (0..AGENTS).map(|_| Engine::new(capacity)).collect();
    let mut orderer = orderer(capacity, AGENTS as u64, &arguments.rank("place"));
    let (mut tokens, mut cached, mut seconds) = (0, 0, 0.0);
    let mut busy = [0.0; AGENTS];
    for (turn, request) in trace.iter().enumerate() {
        let mut todo = [0; AGENTS];
        let mut requests = [0; AGENTS];
        for document in 0..request.documents.len() {
            let request = single(request, document);
            let agent = match router {
                Router::Rank => document,
                Router::Foreword => {
                    let agents = (0..AGENTS).map(|at| (at + turn + document) % AGENTS);
                    let choices: Vec<EngineCandidate> = agents
                        .map(|agent| EngineCandidate {
                            engine: EngineId(agent as u16),
                            // A request costs time besides its documents.
                            outstanding: todo[agent] + requests[agent] * (FIXED * RATE) as u64,
                        })
                        .collect();
                    decide(&mut orderer, &choices, &request).engine
                }
            };
            let found = agents[agent]
                .cache
                .serve(request.scope, request.documents.iter());
            let total = tokens_of(&request);
            todo[agent] += total - found;
            requests[agent] += 1;
            cached += found;
            tokens += total;
        }
        let mut longest = 0.0_f64;
        for (busy, (todo, requests)) in busy.iter_mut().zip(todo.into_iter().zip(requests)) {
            let time = todo as f64 / RATE + requests as f64 * FIXED;
            longest = longest.max(time);
            *busy += time;
        }
        seconds += longest;
    }
    Figures {
        cached: cached as f64 / tokens as f64,
        seconds,
        busiest: busy.into_iter().fold(0.0, f64::max),
    }
}

/// Returns the share of tokens that one cache with room for so many documents, each by itself, would have.
fn bound(trace: &Trace, documents: u64) -> f64 {
    let mut cache = Engine::new(capacity(trace, documents)).cache;
    let (mut tokens, mut cached) = (0, 0);
    for request in trace {
        for document in 0..request.documents.len() {
            let request = single(request, document);
            cached += cache.serve(request.scope, request.documents.iter());
            tokens += tokens_of(&request);
        }
    }
    cached as f64 / tokens as f64
}
