//! What location hints for lines of tools' results save in agents' recorded sessions, and what finding them costs.
//!
//! ```text
//! python3 benches/agents/sessions.py mini CLONE > mini.jsonl
//! FOREWORD_SESSIONS=mini.jsonl cargo bench -p foreword-benches -- outputs [--show]
//! ```
//!
//! `--show` prints every result with a hint as it is forwarded.
//!
//! Each answer of a session was a request with all messages before it. Here each is rewritten with `documents.outputs` and
//! without it, one after the other. The recorded model never saw a hint, so the sessions tell nothing of its answers.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use foreword_benches::Arguments;
use foreword_ordering::{Config, Orderer, Tenant};
use serde::Deserialize;
use serde_json::{Value, json};

/// A line of the file.
#[derive(Deserialize)]
struct Session {
    messages: Vec<Value>,
}

#[derive(Default)]
struct Totals {
    requests: u64,
    /// Bytes of all requests' bodies, original and forwarded.
    bodies: [u64; 2],
    /// Bytes of tools' results, each where it is new, original and forwarded.
    results: [u64; 2],
    /// Bytes of the contents of each session's last request, original and forwarded.
    last: [u64; 2],
    hinted: u64,
    time: [Duration; 2],
}

pub(crate) fn bench(arguments: &Arguments) -> Result<()> {
    let Some(path) = std::env::var_os("FOREWORD_SESSIONS").map(PathBuf::from) else {
        println!(
            "skipped: FOREWORD_SESSIONS names no file of sessions (benches/agents/sessions.py)"
        );
        return Ok(());
    };
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let show = arguments.says("--show");
    let mut totals = Totals::default();
    let mut sessions = 0;
    for line in text.lines() {
        let session: Session = serde_json::from_str(line)?;
        play(&session, &mut totals, show)?;
        sessions += 1;
    }
    let saved =
        |[original, forwarded]: [u64; 2]| 100.0 * (1.0 - forwarded as f64 / original as f64);
    println!("sessions {sessions}, requests {}", totals.requests);
    println!(
        "tools' results, new in their request: {:.1} % of the bytes saved",
        saved(totals.results)
    );
    println!(
        "whole last requests of sessions:      {:.1} % of the contents' bytes saved",
        saved(totals.last)
    );
    println!(
        "whole bodies, over all requests:      {:.1} % of the bytes saved",
        saved(totals.bodies)
    );
    println!("results with a hint: {}", totals.hinted);
    let [off, on] = totals
        .time
        .map(|time| time.as_secs_f64() / totals.requests as f64 * 1e6);
    println!(
        "microseconds a request: {off:.0} without, {on:.0} with ({:.2} times)",
        on / off
    );
    Ok(())
}

/// Sends the requests of a session through two orderers.
fn play(session: &Session, totals: &mut Totals, show: bool) -> Result<()> {
    let orderer = |outputs: bool| -> Result<Orderer> {
        let config = json!({"documents": {"outputs": outputs}}).to_string();
        Ok(Orderer::new(Config::from_json(config.as_bytes())?))
    };
    let mut orderers = [orderer(false)?, orderer(true)?];
    let mut before: Vec<Value> = Vec::new();
    for (at, message) in session.messages.iter().enumerate() {
        if message["role"] != "assistant" || at == 0 {
            continue;
        }
        let messages = session.messages.get(..at).unwrap_or_default();
        let body = json!({"model": "m", "messages": messages}).to_string();
        let mut sent = body.clone().into_bytes();
        for (orderer, time) in orderers.iter_mut().zip(&mut totals.time) {
            let start = Instant::now();
            let rewrite = orderer.rewrite(Tenant::default(), body.as_bytes());
            *time += start.elapsed();
            sent = rewrite
                .ok()
                .and_then(|rewrite| rewrite.body)
                .unwrap_or_else(|| body.clone().into_bytes());
        }
        totals.requests += 1;
        totals.bodies[0] += body.len() as u64;
        totals.bodies[1] += sent.len() as u64;
        let sent: Value = serde_json::from_slice(&sent)?;
        let sent = sent["messages"].as_array().context("messages")?;
        ensure!(sent.starts_with(&before), "what was sent must stay");
        let new = sent.iter().zip(messages).skip(before.len());
        for (sent, original) in new.filter(|(_, original)| original["role"] == "tool") {
            totals.results[0] += length(original);
            totals.results[1] += length(sent);
            totals.hinted += u64::from(sent != original);
            if show && sent != original {
                println!(
                    "{}\n{}",
                    "=".repeat(60),
                    sent["content"].as_str().unwrap_or_default()
                );
            }
        }
        before = sent.clone();
    }
    let contents = |messages: &[Value]| messages.iter().map(length).sum::<u64>();
    totals.last[0] += contents(session.messages.get(..before.len()).unwrap_or_default());
    totals.last[1] += contents(&before);
    Ok(())
}

/// The length of a message's content.
fn length(message: &Value) -> u64 {
    message["content"].as_str().map_or(0, str::len) as u64
}
