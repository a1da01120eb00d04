//! The similarity cache inside real Envoy: one lookup among 300 questions of 768 components, as the filter itself
//! measures it (`foreword_retrieval_lookup_microseconds`).
//!
//! `cargo bench -p foreword-benches -- lookup`
//!
//! | vectors | a question finds | a lookup reads |
//! | --- | --- | --- |
//! | anywhere | itself, or nothing | a sixth of most rows: distances show early |
//! | worst | itself, or nothing | every component of every row: all differ only in their last 128 |

use anyhow::{Context, Result, ensure};
use foreword_benches::Arguments;
use foreword_ordering::random::Random;
use foreword_tests::http::{Client, post};
use foreword_tests::{Gateway, GatewayOptions, Shell, Upstream};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const ENTRIES: usize = 300;
const DIMENSIONS: usize = 768;
const LOOKUPS: usize = 2_000;
const HISTOGRAM: &str = "foreword_retrieval_lookup_microseconds";
/// Longest median lookup, as a bucket's bound.
const BOUND_US: f64 = 100.0;

pub(crate) fn bench(arguments: &Arguments) -> Result<()> {
    let lookups = if arguments.benching { LOOKUPS } else { 10 };
    println!(
        "look-ups of {ENTRIES} x {DIMENSIONS} in Envoy's V8, share done within so many microseconds"
    );
    println!("| vectors, questions | 10 | 25 | 50 | 100 | 250 |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut holds = true;
    for (name, first) in [("anywhere", 0), ("worst", DIMENSIONS - 128)] {
        let mut random = Random::new(1);
        let mut keys: Vec<Vec<f64>> = (0..2 * ENTRIES)
            .map(|_| vector(&mut random, first))
            .collect();
        let far = keys.split_off(ENTRIES);
        for (asked, hits) in [("known", true), ("unknown", false)] {
            let shares = measured(&keys, if hits { &keys } else { &far }, hits, lookups)?;
            let shown: Vec<String> = shares
                .iter()
                .map(|(_, share)| format!("{share:.1} %"))
                .collect();
            println!("| {name}, {asked} | {} |", shown.join(" | "));
            let within = shares.iter().find(|(bound, _)| *bound == BOUND_US);
            holds &= within.is_some_and(|(_, share)| *share >= 50.0);
        }
    }
    println!("must hold: the median is under {BOUND_US} microseconds");
    arguments.require(holds)
}

/// Returns a vector of random components from `first` on, zero before.
fn vector(random: &mut Random, first: usize) -> Vec<f64> {
    let component = |at| if at < first { 0.0 } else { random.unit() - 0.5 };
    (0..DIMENSIONS).map(component).collect()
}

/// Fills a cache with `keys` and looks up `asked` in rotation. Returns the share of lookups, in per cent, by bound.
fn measured(
    keys: &[Vec<f64>],
    asked: &[Vec<f64>],
    hits: bool,
    lookups: usize,
) -> Result<Vec<(f64, f64)>> {
    // Results of questions are cached, and none of a client's vector. So the embedder knows the keys, by their places.
    let known = keys.to_vec();
    let retriever = Upstream::scripted_forgetful(move |request, reply| {
        let asked: Value = serde_json::from_slice(&request.body)?;
        let place = asked["input"]
            .as_str()
            .map(str::parse::<usize>)
            .transpose()?;
        let answer = match place {
            Some(place) => json!({"data": [{"embedding": known.get(place)}]}),
            None => json!({"version": "1", "data": [{"id": "a", "text": "It is."}]}),
        };
        reply.json(200, &answer.to_string())
    })?;
    let engine = Upstream::scripted_forgetful(|_, reply| reply.json(200, "{}"))?;
    let similarity =
        json!({"dimensions": DIMENSIONS, "tolerance": 0.05, "capacity": ENTRIES, "ttl_ms": null});
    let gateway = Gateway::start(&GatewayOptions {
        clusters: vec![("retriever", retriever.address())],
        plugin: Some(
            json!({"retrieval": {"cluster": "retriever", "timeout_ms": 20_000, "similarity": similarity}}),
        ),
        shell: Shell::Wasm,
        ..GatewayOptions::new(engine.address())
    })?;
    let mut client = Client::connect(gateway.address())?;
    let mut ask = |vector: Option<&[f64]>, question: &str, outcome: &str| -> Result<()> {
        let chat = json!({"model": "m", "messages": [{"role": "user", "content": question}],
            "retrieval": {"embedding": vector}});
        client.send(&post(chat.to_string().as_bytes()))?;
        let response = client.response()?;
        let report = response.report();
        ensure!(report.ends_with(outcome), "{report}, not {outcome}");
        Ok(())
    };
    for place in 0..keys.len() {
        ask(None, &place.to_string(), "retrieval=miss")?;
    }
    let before = buckets(&gateway, keys.len())?;
    let outcome = if hits {
        "retrieval=hit"
    } else {
        "retrieval=miss"
    };
    for vector in asked.iter().cycle().take(lookups) {
        ask(Some(vector.as_slice()), "What is it?", outcome)?;
    }
    let after = buckets(&gateway, keys.len() + lookups)?;
    let share = |(before, after): (&(f64, u64), &(f64, u64))| {
        (
            before.0,
            100.0 * (after.1 - before.1) as f64 / lookups as f64,
        )
    };
    let shares = before.iter().zip(&after).map(share);
    Ok(shares
        .filter(|(bound, _)| (10.0..=250.0).contains(bound))
        .collect())
}

/// Returns how many lookups took at most each bound, once Envoy has counted `all` of them, which it does every few
/// seconds.
fn buckets(gateway: &Gateway, all: usize) -> Result<Vec<(f64, u64)>> {
    let start = Instant::now();
    loop {
        let found = read(gateway)?;
        if found.last().is_some_and(|(_, count)| *count >= all as u64) {
            return Ok(found);
        }
        ensure!(
            start.elapsed() < Duration::from_secs(60),
            "Envoy counts no look-ups: {found:?}"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn read(gateway: &Gateway) -> Result<Vec<(f64, u64)>> {
    let stats = gateway.admin_get("/stats/prometheus")?;
    let lines = stats.lines().filter_map(|line| {
        let (name, rest) = line.split_once('{')?;
        name.ends_with(&format!("{HISTOGRAM}_bucket"))
            .then_some(rest)
    });
    lines
        .map(|line| {
            let (_, rest) = line
                .split_once("le=\"")
                .context("a bucket without a bound")?;
            let (bound, rest) = rest.split_once('"').context("a bound without an end")?;
            let count = rest.rsplit(' ').next().unwrap_or_default();
            let bound = bound.replace("+Inf", "inf").parse()?;
            Ok((bound, count.trim().parse()?))
        })
        .collect()
}
