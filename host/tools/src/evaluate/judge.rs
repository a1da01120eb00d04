//! A judge: a model at any endpoint that says whether an answer says what a right answer says.
//!
//! ```text
//!   answers ──▶ question, right answers, answer ──▶ judge ──▶ "yes" or "no" ──▶ judgements.jsonl
//! ```
//!
//! Words alone are a poor measure of long answers (MT-RAG is judged by a model). The judge does not know the arm, nor the
//! documents. Answers with the same words to the same question are judged once, so arms that answer alike are judged
//! alike. Judgements are kept in the run's folder: another run of the same command asks for none twice, and a finished
//! run may be judged later, also by another judge.

use super::client::{Client, chat_url};
use super::data::{Case, Turn};
use super::journal::Record;
use anyhow::{Context, Result, anyhow, bail};
use foreword_ordering::document::Fingerprint;
use fxhash::FxHashMap;
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The options of a judge.
#[derive(Clone, Debug)]
pub struct JudgeOptions {
    /// URL of its endpoint: its root, its `/v1` or its chat route.
    pub endpoint: String,
    /// Name of its model.
    pub model: String,
    /// Bearer token for its endpoint.
    pub api_key: Option<String>,
}

/// A line of `judgements.jsonl`.
#[derive(Serialize, Deserialize)]
struct Judgement {
    /// A hash of the judge's model and of what it was asked.
    of: String,
    /// `None`: its reply was neither yes nor no.
    right: Option<bool>,
}

/// Returns the judgement of every record whose turn has right answers in words.
///
/// # Errors
/// Returns an error if the judge does not answer, or the file cannot be used. What was judged until then is kept.
pub(super) fn judge(
    options: &JudgeOptions,
    client: &Client,
    folder: &Path,
    cases: &[Case],
    records: &mut [Record],
    concurrency: usize,
    bar: &ProgressBar,
) -> Result<()> {
    let url = chat_url(&options.endpoint).map_err(|wrong| anyhow!("--judge: {wrong}"))?;
    let (file, mut known) = open(&folder.join("judgements.jsonl"))?;
    let by_id: FxHashMap<&str, &Case> = cases.iter().map(|case| (&*case.id, case)).collect();
    let mut keys = Vec::with_capacity(records.len());
    let mut open: Vec<(String, Vec<u8>)> = Vec::new();
    for record in &*records {
        let turn = by_id
            .get(record.case.as_str())
            .and_then(|case| case.turns.get(record.turn));
        let judged = turn.filter(|turn| !turn.answers.is_empty() && turn.choices.is_empty());
        keys.push(judged.map(|turn| {
            let body = body(&options.model, turn, &record.answer);
            let key = format!("{:016x}", Fingerprint::of(&[&body]).0);
            if !known.contains_key(&key) {
                known.insert(key.clone(), None);
                open.push((key.clone(), body));
            }
            key
        }));
    }
    bar.set_length(open.len() as u64);
    let work = Mutex::new(Work {
        open,
        file,
        known,
        unclear: 0,
        stop: None,
    });
    std::thread::scope(|scope| {
        for _ in 0..concurrency.max(1) {
            scope.spawn(|| ask(&work, client, &url, bar));
        }
    });
    let work = work.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = work.stop {
        return Err(error);
    }
    if work.unclear > 0 {
        eprintln!(
            "warning: {} replies of the judge were neither yes nor no; those answers do not count",
            work.unclear
        );
    }
    for (record, key) in records.iter_mut().zip(keys) {
        record.judged = key.and_then(|key| work.known.get(&key).copied().flatten());
    }
    Ok(())
}

/// What the judge's workers share.
struct Work {
    open: Vec<(String, Vec<u8>)>,
    file: File,
    known: FxHashMap<String, Option<bool>>,
    unclear: u64,
    stop: Option<anyhow::Error>,
}

fn ask(work: &Mutex<Work>, client: &Client, url: &str, bar: &ProgressBar) {
    let lock = || work.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let next = {
            let mut locked = lock();
            if locked.stop.is_some() {
                None
            } else {
                locked.open.pop()
            }
        };
        let Some((key, body)) = next else { return };
        let judged = client
            .ask(url, &body)
            .map(|answer| verdict(&answer.streamed.text));
        let mut locked = lock();
        let kept = judged.map_err(|fault| anyhow!(fault).context("the judge does not answer; its judgements are kept, and the same command goes on from there"));
        let kept = kept.and_then(|right| {
            let line = serde_json::to_string(&Judgement {
                of: key.clone(),
                right,
            })? + "\n";
            locked
                .file
                .write_all(line.as_bytes())
                .context("cannot write judgements.jsonl")?;
            Ok(right)
        });
        match kept {
            Ok(right) => {
                locked.unclear += u64::from(right.is_none());
                locked.known.insert(key, right);
                bar.inc(1);
            }
            Err(error) => {
                locked.stop.get_or_insert(error);
            }
        }
    }
}

/// Opens the file, whose last line may be torn, and returns what was judged before.
fn open(path: &Path) -> Result<(File, FxHashMap<String, Option<bool>>)> {
    let failed = || format!("cannot use {}", path.display());
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    let mut file = options.open(path).with_context(failed)?;
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(failed)?;
    let whole = text.rfind('\n').map_or(0, |at| at + 1);
    if whole < text.len() {
        file.set_len(whole as u64).with_context(failed)?;
        file.seek(std::io::SeekFrom::End(0)).with_context(failed)?;
    }
    let mut known = FxHashMap::default();
    for (line, number) in text.get(..whole).unwrap_or_default().lines().zip(1..) {
        let Ok(judgement) = serde_json::from_str::<Judgement>(line) else {
            bail!("{}:{number} is damaged", path.display());
        };
        known.insert(judgement.of, judgement.right);
    }
    Ok((file, known))
}

/// Returns the request that asks about an answer.
fn body(model: &str, turn: &Turn, answer: &str) -> Vec<u8> {
    let answer = answer
        .rsplit_once("</think>")
        .map_or(answer, |(_, answer)| answer);
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

/// Returns what the first word of a reply says, thoughts left out.
fn verdict(reply: &str) -> Option<bool> {
    let reply = reply
        .rsplit_once("</think>")
        .map_or(reply, |(_, reply)| reply);
    let word = reply
        .split(|c: char| !c.is_alphabetic())
        .find(|word| !word.is_empty())?;
    match word.to_lowercase().as_str() {
        "yes" | "correct" | "right" | "true" => Some(true),
        "no" | "incorrect" | "wrong" | "false" => Some(false),
        _ => None,
    }
}

/// Most tokens of a reply: room for a model that thinks first.
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

    #[test]
    fn a_torn_line_is_dropped_and_damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("judgements.jsonl");
        let line = "{\"of\":\"01\",\"right\":true}\n";
        std::fs::write(&path, format!("{line}{{\"of\"")).unwrap();
        let (_, known) = open(&path).unwrap();
        assert_eq!(known.get("01"), Some(&Some(true)));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), line);
        std::fs::write(&path, "x\n").unwrap();
        assert!(
            open(&path)
                .unwrap_err()
                .to_string()
                .contains("judgements.jsonl:1 is damaged")
        );
    }
}
