//! Measures retrieval that runs during the system prompt's prefill (RAGCache++, section 3.6), on a real engine and in
//! elapsed time.
//!
//! ```text
//!   serial      ── retrieval ──▶ system prompt ▶ documents, question ▶ token
//!   pipelined   ── retrieval ──▶ documents, question ▶ token
//!               system prompt ▶
//! ```
//!
//! Retrieval is simulated by waiting. The prompts have the workload's sizes ([`prompt`](super::prompt)) and are
//! uncached at the start, so the saving is that of a cold start or of an evicted system prompt.

use super::figures::median;
use super::prompt::{QUESTION, SYSTEM};
use super::replay::answers;
use anyhow::Context;
use foreword_engine::TokenId;
use foreword_engine::engine::{Kind, Request, Stepper};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Retrieval times of the paper's table 6, in milliseconds.
const RETRIEVAL_MS: [u64; 3] = [20, 50, 100];
/// Tokens of system prompts: the workload's, and as many as with descriptions of tools.
const SYSTEMS: [u64; 2] = [SYSTEM as u64, 1_000];
/// Number of documents in a prompt of the workload.
const DOCUMENTS: u64 = 5;
/// Number of tokens in a document.
const DOCUMENT: u64 = 200;

/// For each system prompt and retrieval time, measures `runs` requests with retrieval before the prefill and `runs`
/// with retrieval during it, in alternation. Returns the median times as JSON.
pub(super) fn run(engine: &mut Stepper, runs: u32) -> anyhow::Result<Value> {
    let mut results = Vec::new();
    for system in SYSTEMS {
        let mut alone = Vec::new();
        for retrieval in RETRIEVAL_MS {
            let (mut serial, mut pipelined) = (Vec::new(), Vec::new());
            for run in 0..runs {
                let chat = |way: &str| Chat {
                    system,
                    retrieval: Duration::from_millis(retrieval),
                    salt: format!("{way}, {system}, {retrieval}, {run}"),
                };
                serial.push(chat("serial").serial(engine)?);
                let (token, warm) = chat("pipelined").pipelined(engine)?;
                pipelined.push(token);
                alone.push(warm);
            }
            let (serial, pipelined) = (median(serial), median(pipelined));
            results.push(json!({
                "system_tokens": system,
                "system_s": median(alone.clone()),
                "retrieval_s": retrieval as f64 / 1e3,
                "serial_s": serial,
                "pipelined_s": pipelined,
                "below_serial": 1.0 - pipelined / serial,
            }));
        }
    }
    Ok(json!(results))
}

/// A question under a new salt, so that nothing of it is cached.
struct Chat {
    system: u64,
    retrieval: Duration,
    salt: String,
}

impl Chat {
    /// Returns the seconds to the first token if the engine starts when retrieval has ended.
    fn serial(&self, engine: &mut Stepper) -> anyhow::Result<f64> {
        let start = Instant::now();
        std::thread::sleep(self.retrieval);
        self.answer(engine, start)
    }

    /// Returns the seconds to the first token if the system prompt is prefilled during retrieval, and the seconds of
    /// that prefill.
    fn pipelined(&self, engine: &mut Stepper) -> anyhow::Result<(f64, f64)> {
        let start = Instant::now();
        let warm_up = Request {
            kind: Kind::Prefill,
            prompt: text(SYSTEM_TEXT, self.system),
            cache_salt: self.salt.clone(),
            ..Request::default()
        };
        answers(engine, vec![warm_up])?;
        let warm = start.elapsed();
        std::thread::sleep(self.retrieval.saturating_sub(warm));
        Ok((self.answer(engine, start)?, warm.as_secs_f64()))
    }

    fn answer(&self, engine: &mut Stepper, start: Instant) -> anyhow::Result<f64> {
        let mut prompt = text(SYSTEM_TEXT, self.system);
        for document in 0..DOCUMENTS {
            prompt.extend(text(SYSTEM_TEXT + 1 + document, DOCUMENT));
        }
        prompt.extend(text(u64::MAX, QUESTION as u64));
        let request = Request {
            prompt,
            max_tokens: 1,
            cache_salt: self.salt.clone(),
            ..Request::default()
        };
        let asked = start.elapsed().as_secs_f64();
        let answered = answers(engine, vec![request])?;
        Ok(asked + answered.first().context("no token came")?.first_token)
    }
}

/// Number of the system prompt's text; documents have the numbers after it.
const SYSTEM_TEXT: u64 = 1;

/// Returns `tokens` tokens of the text with this number.
fn text(number: u64, tokens: u64) -> Vec<TokenId> {
    (0..tokens).map(|at| token(number, at)).collect()
}

/// Returns the token at a position of a text, below 128, so that every vocabulary has it.
fn token(text: u64, at: u64) -> TokenId {
    let mixed = (text.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 57) as TokenId
}
