//! Tests a server that is killed under load: what the next one finds in the file of the disk tier (RAGCache, section
//! 6).

use crate::support::client::{get, post};
use crate::support::process::Process;
use foreword_ordering::random::Random;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const PAGE_TOKENS: u64 = 16;

/// Prompts that are sent repeatedly. All begin with the same ten pages, and each has ten of its own.
const PROMPTS: u32 = 6;
const PAGES: u64 = 10 + 10 * PROMPTS as u64;

fn prompt(number: u32) -> Value {
    let shared = (0..160).map(|at| 3 + at * 37 % 4000);
    let own = (0..161).map(|at| 3 + (at * 53 + 7 + 331 * number) % 4000);
    json!(shared.chain(own).collect::<Vec<u32>>())
}

fn body(prompt: &Value) -> Value {
    json!({"prompt": prompt, "temperature": 0, "ignore_eos": true, "max_tokens": 6})
}

/// Returns the number of cached tokens, and the response.
async fn ask(address: SocketAddr, number: u32) -> (u64, Value) {
    let answer = post(address, "/v1/completions", &body(&prompt(number)))
        .await
        .json();
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    (cached.expect("a count"), answer["choices"].clone())
}

fn serve(file: &Path) -> Process {
    let sizes =
        "--kv-tokens 4096 --kv-host-tokens 2048 --kv-disk-mib 64 --kv-profile-s 0 --threads 1";
    let mut arguments: Vec<&str> = sizes.split(' ').collect();
    arguments.extend(["--kv-disk", file.to_str().expect("text")]);
    Process::serve(&arguments)
}

async fn metric(process: &Process, name: &str) -> u64 {
    let text = String::from_utf8(get(process.internal, "/metrics").await.body).expect("text");
    let name = format!("{name} ");
    text.lines()
        .find_map(|line| line.strip_prefix(&name)?.parse().ok())
        .unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Sends new prompts, one after another, until the server is killed.
async fn load(address: SocketAddr, seed: u64) {
    let mut random = Random::new(seed);
    loop {
        let prompt: Vec<u64> = (0..200).map(|_| 3 + random.below(4000)).collect();
        post(address, "/v1/completions", &body(&json!(prompt))).await;
    }
}

#[tokio::test]
async fn a_killed_servers_most_used_pages_are_found_by_the_next_one() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("kv");
    let mut first = serve(&file);
    let mut expected = Vec::new();
    for round in 0..3 {
        for number in 0..PROMPTS {
            let (_, answer) = ask(first.address, number).await;
            if round == 0 {
                expected.push(answer);
            }
        }
    }
    let others = [1, 2].map(|seed| tokio::spawn(load(first.address, seed)));
    let start = Instant::now();
    // All of them are copied while others are served.
    while metric(&first, "foreword_disk_replica_pages").await < PAGES
        || metric(&first, "foreword_disk_written_pages_total").await
            < metric(&first, "foreword_disk_replicated_pages_total").await
    {
        assert!(start.elapsed() < Duration::from_secs(60), "never copied");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(metric(&first, "foreword_disk_replica_bytes").await > 0);
    first.signal("KILL");
    first.exit().await;
    others.iter().for_each(tokio::task::JoinHandle::abort);

    let mut second = serve(&file);
    let mut found = 0;
    for (number, expected) in (0..).zip(&expected) {
        let (cached, answer) = ask(second.address, number).await;
        assert_eq!(&answer, expected, "prompt {number}");
        found += cached;
    }
    // Each prompt finds its own pages and the shared ones.
    let replicated = u64::from(PROMPTS) * 20 * PAGE_TOKENS;
    println!("{found} of {replicated} replicated tokens were found again");
    assert!(
        10 * found >= 9 * replicated,
        "{found} of {replicated} tokens"
    );
    assert_eq!(
        metric(&second, "foreword_disk_damaged_pages_total").await,
        0
    );
    let fetched = metric(&second, "foreword_fetched_pages_total").await;
    assert!(10 * fetched >= 9 * PAGES, "{fetched} of {PAGES} pages");
    second.signal("KILL");
    second.exit().await;

    // Lost writes, as after a power failure: records without their bytes.
    let pages = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    let length = pages.metadata().unwrap().len();
    for at in (length / 100..length).step_by(40_000) {
        pages.write_all_at(&[0xa5; 512], at).unwrap();
    }
    drop(pages);
    let third = serve(&file);
    for (number, expected) in (0..).zip(&expected) {
        let (_, answer) = ask(third.address, number).await;
        assert_eq!(&answer, expected, "prompt {number}");
    }
    assert!(metric(&third, "foreword_disk_damaged_pages_total").await > 0);
}
