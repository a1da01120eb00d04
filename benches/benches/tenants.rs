//! Whether the time that the filter takes for one tenant reveals anything about another.
//!
//! ```text
//! cargo bench -p foreword-benches -- tenants
//! ```
//!
//! Two orderers answer the same requests of tenant B: in one, B is alone; in the other, A has sent 10,000 paths over
//! the same documents. Rounds alternate, in random order within each pair, and each pair gives one ratio of times. If A
//! left a trace in B's time, the ratios would lean to one side. A sign test says how unlikely the observed ratios are
//! without any lean. The second row shows what a leak would look like: both are one tenant, as with tenants switched
//! off.

use std::time::Instant;

use foreword_benches::Arguments;
use foreword_ordering::random::Random;
use foreword_ordering::{Config, Orderer, Tenant};

const PATHS: usize = 10_000;
const ROUNDS: usize = 41;
const REQUESTS: usize = 200;

pub(crate) fn bench(_: &Arguments) {
    let bodies: Vec<String> = trace(2, REQUESTS);
    let of_a = trace(1, PATHS);
    println!("{REQUESTS} requests of B a round, {ROUNDS} pairs of rounds, {PATHS} paths of A\n");
    println!(
        "| beside B | microseconds a request, median, alone | beside A | ratio, median | quarter to three quarters | p of the sign test |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for (name, a) in [("A, another tenant", "a"), ("A, the same tenant", "b")] {
        let mut random = Random::new(3);
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            // Both rounds begin from the same state, which is rebuilt and not timed.
            let time = |with_a: bool| {
                let mut orderer = Orderer::new(Config::default());
                if with_a {
                    send(&mut orderer, a, &of_a);
                }
                let started = Instant::now();
                send(&mut orderer, "b", &bodies);
                started.elapsed().as_secs_f64() * 1e6 / REQUESTS as f64
            };
            let first = random.below(2) == 0;
            let times = [time(first), time(!first)];
            beside.push(times[usize::from(!first)]);
            alone.push(times[usize::from(first)]);
        }
        let mut ratios: Vec<f64> = beside
            .iter()
            .zip(&alone)
            .map(|(beside, alone)| beside / alone)
            .collect();
        let p = sign_test(&ratios);
        ratios.sort_by(f64::total_cmp);
        println!(
            "| {name} | {:.2} | {:.2} | {:.3} | {:.3} to {:.3} | {p:.2e} |",
            median(&mut alone),
            median(&mut beside),
            ratios[ROUNDS / 2],
            ratios[ROUNDS / 4],
            ratios[ROUNDS * 3 / 4],
        );
    }
}

/// Returns requests for 15 documents each out of 2,000.
fn trace(seed: u64, requests: usize) -> Vec<String> {
    let mut random = Random::new(seed);
    let mut body = || {
        let mut documents: Vec<u64> = (0..15).map(|_| random.below(2_000)).collect();
        documents.dedup();
        let documents = documents.iter();
        let documents: String = documents
            .map(|document| {
                format!(
                    "<doc id=\\\"{document}\\\">{}</doc>",
                    format!("Words of {document}. ").repeat(8)
                )
            })
            .collect();
        format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"{documents}\"}}]}}")
    };
    (0..requests).map(|_| body()).collect()
}

fn send(orderer: &mut Orderer, tenant: &str, bodies: &[String]) {
    for body in bodies {
        let sent = orderer.rewrite(Tenant::named(tenant), body.as_bytes());
        assert!(sent.is_ok_and(|sent| sent.report.documents > 0));
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Returns the probability of a split above and below 1 at least as uneven as this one, if either side is as likely
/// (two-sided).
fn sign_test(ratios: &[f64]) -> f64 {
    let n = ratios.len();
    let above = ratios.iter().filter(|ratio| **ratio > 1.0).count();
    let fewer = above.min(n - above);
    let mut chance = 0.5_f64.powi(n as i32);
    let mut sum = 0.0;
    for k in 0..=fewer {
        sum += chance;
        chance *= (n - k) as f64 / (k + 1) as f64;
    }
    (2.0 * sum).min(1.0)
}
