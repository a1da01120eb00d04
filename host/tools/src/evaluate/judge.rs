//! A judge: a model at any endpoint that decides whether an answer means the same as a right answer.
//!
//! ```text
//!   answers ──▶ question, right answers, answer ──▶ judge ──▶ "yes" or "no" ──▶ judgements.jsonl
//! ```
//!
//! Common words are a poor measure for long answers (MT-RAG uses a model as judge). The judge sees neither the arm (way
//! to ask) nor the documents. Equal answers to a question are judged once, so arms that answer alike are judged alike.
//! Judgements are stored in the run's folder: the same command never requests one twice, and a finished run can be
//! judged later, also by another judge.

use super::data::{Case, Turn};
use super::journal::Record;
use super::kept::{self, ResultFile};
use super::score::without_thinking;
use crate::client::Client;
use anyhow::{Result, anyhow};
use fxhash::FxHashMap;
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The judge's judgement of an answer, a line of `judgements.jsonl`.
#[derive(Clone, Serialize, Deserialize)]
struct Judgement {
    /// True if the judge finds the answer right; `None` if the judge's reply was neither yes nor no.
    right: Option<bool>,
}

/// Asks the judge (a model at `url`) about the answer of each record whose turn has right answers in words, not
/// choices, and stores the judgement in the record. Judgements that `judgements.jsonl` in `folder` already contains are
/// not requested again.
///
/// # Errors
/// Returns an error if the judge does not answer, or the file of judgements cannot be used. Earlier judgements stay in
/// the file.
#[allow(
    clippy::too_many_arguments,
    reason = "one call, from the one place that has all of them"
)]
pub(super) fn judge(
    url: &str,
    model: &str,
    client: &Client,
    folder: &Path,
    cases: &[Case],
    records: &mut [Record],
    concurrency: usize,
    bar: &ProgressBar,
) -> Result<()> {
    let mut kept = ResultFile::<Judgement>::open(&folder.join("judgements.jsonl"))?;
    let by_id: FxHashMap<&str, &Case> = cases.iter().map(|case| (&*case.id, case)).collect();
    let mut keys = Vec::with_capacity(records.len());
    let mut open: Vec<(String, Vec<u8>)> = Vec::new();
    for record in &*records {
        let case = by_id.get(record.case.as_str());
        let turn = case.and_then(|case| case.turns.get(record.turn));
        let judged = turn.filter(|turn| !turn.answers.is_empty() && turn.choices.is_empty());
        keys.push(judged.map(|turn| {
            let body = body(model, turn, &record.answer);
            let key = kept::key(&body);
            open.push((key.clone(), body));
            key
        }));
    }
    let unclear = AtomicU64::new(0);
    kept.ask(open, concurrency, bar, |body| {
        let answer = client.ask(url, body).map_err(|fault| {
            anyhow!(fault).context("the judge does not answer; its judgements are kept, and the same command goes on from there")
        })?;
        let right = verdict(&answer.read.text);
        unclear.fetch_add(u64::from(right.is_none()), Ordering::Relaxed);
        Ok(Some(Judgement { right }))
    })?;
    let unclear = unclear.into_inner();
    if unclear > 0 {
        eprintln!(
            "warning: {unclear} replies of the judge were neither yes nor no; those answers do not count"
        );
    }
    for (record, key) in records.iter_mut().zip(keys) {
        record.judged = key.and_then(|key| kept.get(&key)?.right);
    }
    Ok(())
}

/// Returns the body of the request that asks the judge about an answer.
fn body(model: &str, turn: &Turn, answer: &str) -> Vec<u8> {
    let answer = without_thinking(answer);
    let right = turn.answers.join("\n- ");
    let asked = format!(
        "Question: {}\n\nRight answers:\n- {right}\n\nGiven answer: {}\n\nDoes the given answer say what one of the \
         right answers says, and nothing that contradicts it? Reply with one word: yes or no.",
        turn.question,
        answer.trim()
    );
    let body = json!({
        "model": model,
        "messages": [
            {"role": "system", "content": "You judge whether answers are right. You reply with one word: yes or no."},
            {"role": "user", "content": asked},
        ],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    body.to_string().into_bytes()
}

/// Returns true if the judge's reply means yes and false if it means no, by its first word after any thinking; `None`
/// if it is neither.
fn verdict(reply: &str) -> Option<bool> {
    let mut words = without_thinking(reply).split(|c: char| !c.is_alphabetic());
    let word = words.find(|word| !word.is_empty())?;
    match word.to_lowercase().as_str() {
        "yes" | "correct" | "right" | "true" => Some(true),
        "no" | "incorrect" | "wrong" | "false" => Some(false),
        _ => None,
    }
}

/// Maximum number of tokens of one reply of the judge, including the model's thinking.
const MAX_TOKENS: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_of_a_reply_counts() {
        for (reply, right) in [
            ("Yes.", Some(true)),
            ("**No**, since", Some(false)),
            ("<think>no?</think> yes", Some(true)),
            ("Incorrect", Some(false)),
            ("Maybe", None),
            ("", None),
        ] {
            assert_eq!(verdict(reply), right, "{reply}");
        }
    }
}
