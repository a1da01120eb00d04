//! A batch planned by us and by ContextPilot's offline mode: what share of document tokens comes from the cache, and
//! what the plan costs.
//!
//! ```text
//! python3 -m venv /tmp/peers && /tmp/peers/bin/pip install -r benches/peers/requirements.txt
//! FOREWORD_PEERS_PYTHON=/tmp/peers/bin/python cargo bench -p foreword-benches -- batch
//! cargo bench -p foreword-benches -- batch scale        only ours, on growing batches
//! cargo bench -p foreword-benches -- batch ladder       in arrival order, ordered, and ordered and scheduled
//! ```
//!
//! Both are given the same traces, checked to have planned every request once with the documents that it had, and
//! evaluated by the same model of an engine's cache. Without a Python that has ContextPilot (`python3` unless
//! `FOREWORD_PEERS_PYTHON` says another) its rows are skipped, and the table says so. Times are of one run, planning
//! only; ContextPilot's excludes starting and importing.

use foreword_benches::{Arguments, workloads, xquad};
use foreword_ordering::document::Fingerprint;
use foreword_ordering::policy::context_index::{ContextIndex, Rules};
use foreword_ordering::policy::{Order, Place, Placement, PolicyKind, PolicyOptions};
use foreword_simulation::{
    Capacity, EngineCache, Planned, Request, Trace, batch, batch_placed, document_tokens, workload,
};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const REQUESTS: usize = 2_000;
/// The bounded cache, in average prompts.
const PROMPTS: u32 = 100;
/// The placement of a filter without configuration: `rank.place` is `auto`, for one document.
const AS_SHIPPED: Placement = Placement {
    place: Place::Auto,
    documents: 1,
};
/// Our time is the least of so many runs; a plan takes milliseconds.
const RUNS: u32 = 5;

pub(crate) fn bench(arguments: &Arguments) {
    if arguments.says("scale") {
        growing();
    } else if arguments.says("ladder") {
        ladder();
    } else {
        compared();
    }
}

fn traces(seed: u64, requests: usize) -> Vec<(&'static str, Trace)> {
    let shape = workload::Bursty::default();
    vec![
        ("bursty, k=5", workload::bursty(seed, requests, shape)),
        (
            "Zipf topics, k=15",
            workloads::zipf_topics(seed, requests, 5_000, 15),
        ),
        (
            "geospatial, k=5",
            workload::geospatial(seed, requests, 5, workload::Ranks::Shuffled),
        ),
        (
            "conversations, k=10",
            workloads::conversations(seed, requests, 10),
        ),
    ]
}

/// Ours and the peer's, side by side.
fn compared() {
    println!("Share of document tokens reused, batches of {REQUESTS} requests\n");
    println!("| trace | seed | plan | unbounded | {PROMPTS} prompts | seconds |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut skipped = None;
    for seed in 1..=2 {
        for (name, trace) in traces(seed, REQUESTS) {
            let arrival: Vec<Planned> = (0..trace.len())
                .zip(&trace)
                .map(|(request, asked)| Planned {
                    request,
                    order: (0..asked.documents.len() as u16).collect(),
                })
                .collect();
            row(&trace, name, seed, "none", &arrival, None);
            let (plan, ours) = timed(&trace);
            row(&trace, name, seed, "foreword", &plan, Some(ours));
            if skipped.is_some() {
                continue;
            }
            match contextpilot(&trace) {
                Ok((version, plan, theirs)) => {
                    let label = format!("contextpilot {version}");
                    row(&trace, name, seed, &label, &plan, Some(theirs));
                    let times = theirs.as_secs_f64() / ours.as_secs_f64();
                    println!("| {name} | {seed} | times faster | | | {times:.0} |");
                }
                Err(reason) => skipped = Some(reason),
            }
        }
    }
    if let Some(reason) = skipped {
        println!("\nskipped: ContextPilot ({reason})");
    }
}

/// Ours alone, on batches that ContextPilot takes minutes or more for.
fn growing() {
    println!("Share of document tokens reused\n");
    println!("| trace | requests | unbounded | {PROMPTS} prompts | seconds |");
    println!("| --- | --- | --- | --- | --- |");
    for requests in [2_000, 8_000, 32_000, 100_000] {
        for (name, trace) in traces(1, requests) {
            let (plan, time) = timed(&trace);
            let [unbounded, bounded] = reuse(&trace, &plan);
            let seconds = time.as_secs_f64();
            println!("| {name} | {requests} | {unbounded:.3} | {bounded:.3} | {seconds:.3} |");
        }
    }
}

/// What each step adds: documents ordered in each request as it comes, and requests scheduled too. Documents are placed
/// freely, and as shipped.
fn ladder() {
    println!("Share of document tokens reused, unbounded / {PROMPTS} prompts\n");
    println!(
        "| trace | placed | arrival | ordered | ordered and scheduled | by RAGBoost's rules |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut all: Vec<(String, Trace)> = traces(1, REQUESTS)
        .into_iter()
        .map(|(name, trace)| (name.to_owned(), trace))
        .collect();
    const DEPTHS: [usize; 2] = [5, 10];
    match xquad::traces(&DEPTHS) {
        Ok(found) => all.extend(
            DEPTHS
                .iter()
                .zip(found)
                .map(|(k, trace)| (format!("XQuAD, BM25 top {k}"), trace)),
        ),
        Err(reason) => println!("skipped: the XQuAD traces ({reason})\n"),
    }
    for (name, trace) in all {
        let capacities = [Capacity::UNBOUNDED, Capacity::of_prompts(PROMPTS, &trace)];
        for placement in [Placement::FREE, AS_SHIPPED] {
            let options = PolicyOptions {
                placement,
                ..PolicyOptions::default()
            };
            let replayed = |kind: PolicyKind| {
                capacities
                    .map(|capacity| workloads::replay(&trace, kind, &options, capacity).share())
            };
            let [arrival, ordered] = [PolicyKind::Retrieval, PolicyKind::Foresight].map(replayed);
            let scheduled = reuse(&trace, &batch_placed(&trace, placement));
            let place = placement.place.name();
            print!("| {name} | {place} |");
            for [unbounded, bounded] in [arrival, ordered, scheduled] {
                print!(" {unbounded:.3} / {bounded:.3} |");
            }
            match placement {
                Placement::FREE => {
                    let [unbounded, bounded] = reuse(&trace, &ragboost(&trace));
                    println!(" {unbounded:.3} / {bounded:.3} |");
                }
                _ => println!(" |"),
            }
        }
    }
}

/// The batch as RAGBoost's sections 4 and 5 plan it: a context index of all requests, whose paths order the documents;
/// requests in groups by the first element of their path, within a group the longest path first (section 5.2).
fn ragboost(trace: &Trace) -> Vec<Planned> {
    let contexts = trace.iter().map(|request| {
        let documents = request.documents.iter();
        documents.map(|document| document.fingerprint).collect()
    });
    let contexts: Vec<Vec<Fingerprint>> = contexts.collect();
    let rules = Rules {
        sorts: true,
        ..Rules::default()
    };
    let (index, leaves) = ContextIndex::build(&contexts, rules);
    let mut groups = HashMap::new();
    let mut planned: Vec<_> = (leaves.iter().zip(&contexts).enumerate())
        .map(|(request, (&leaf, context))| {
            let path = index.path(leaf);
            let first = path.len().checked_sub(2).map(|at| path[at]);
            let next = groups.len();
            let group = *groups.entry(first).or_insert(next);
            let rank = |document| context.iter().position(|other| other == document);
            let order = index.context(leaf);
            let order = order.iter().filter_map(rank).map(|rank| rank as u16);
            let planned = Planned {
                request,
                order: order.collect(),
            };
            ((group, Reverse(path.len())), planned)
        })
        .collect();
    planned.sort_by_key(|(key, _)| *key);
    planned.into_iter().map(|(_, planned)| planned).collect()
}

fn row(
    trace: &Trace,
    name: &str,
    seed: u64,
    plan: &str,
    planned: &[Planned],
    time: Option<Duration>,
) {
    let [unbounded, bounded] = reuse(trace, planned);
    let seconds = time.map_or("-".into(), |time| format!("{:.4}", time.as_secs_f64()));
    println!("| {name} | {seed} | {plan} | {unbounded:.3} | {bounded:.3} | {seconds} |");
}

fn timed(trace: &Trace) -> (Vec<Planned>, Duration) {
    let mut least = Duration::MAX;
    let mut plan = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        plan = black_box(batch(trace));
        least = least.min(start.elapsed());
        // What takes seconds is not timed again.
        if least > Duration::from_secs(1) {
            break;
        }
    }
    (plan, least)
}

/// The shares that a cache without bounds and a small one reuse, after a check that the plan is one.
fn reuse(trace: &Trace, plan: &[Planned]) -> [f64; 2] {
    let mut requests: Vec<usize> = plan.iter().map(|planned| planned.request).collect();
    requests.sort_unstable();
    assert!(
        requests.into_iter().eq(0..trace.len()),
        "a request was lost or planned twice"
    );
    let capacities = [Capacity::UNBOUNDED, Capacity::of_prompts(PROMPTS, trace)];
    capacities.map(|capacity| {
        let mut cache = EngineCache::new(capacity);
        let mut reused = 0;
        for planned in plan {
            let request = &trace[planned.request];
            let mut ranks = planned.order.to_vec();
            ranks.sort_unstable();
            assert!(
                ranks
                    .into_iter()
                    .map(usize::from)
                    .eq(0..request.documents.len()),
                "request {}: a document was lost or planned twice",
                planned.request
            );
            let path = planned
                .order
                .iter()
                .map(|&rank| &request.documents[usize::from(rank)]);
            reused += cache.serve(request.scope, path);
        }
        reused as f64 / document_tokens(trace) as f64
    })
}

#[derive(Serialize)]
struct Asked {
    documents: Vec<u64>,
}

#[derive(Deserialize)]
struct Answered {
    request: usize,
    documents: Vec<u64>,
}

#[derive(Deserialize)]
struct Ran {
    version: String,
    seconds: f64,
}

/// ContextPilot's version, plan and time.
fn contextpilot(trace: &Trace) -> Result<(String, Vec<Planned>, Duration), Box<dyn Error>> {
    let python = std::env::var("FOREWORD_PEERS_PYTHON").unwrap_or_else(|_| "python3".into());
    let folder = Folder::new()?;
    let (asked, answered) = (folder.0.join("trace.jsonl"), folder.0.join("plan.jsonl"));
    let mut lines = String::new();
    for request in trace {
        let documents = request
            .documents
            .iter()
            .map(|document| document.fingerprint.0);
        let line = Asked {
            documents: documents.collect(),
        };
        lines.push_str(&serde_json::to_string(&line)?);
        lines.push('\n');
    }
    fs::write(&asked, lines)?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/contextpilot_offline.py");
    let output = Command::new(&python)
        .args([&script, &asked, &answered])
        .output()
        .map_err(|error| format!("{python}: {error}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().last().unwrap_or("no reason given");
        return Err(format!("{python}: {last}").into());
    }
    let printed = String::from_utf8(output.stdout)?;
    let ran: Ran = serde_json::from_str(printed.lines().last().unwrap_or_default())?;
    let plan = fs::read_to_string(&answered)?
        .lines()
        .map(|line| {
            let Answered { request, documents } = serde_json::from_str(line)?;
            let asked = trace
                .get(request)
                .ok_or("it names a request that there is not")?;
            let order = ranks(asked, &documents).ok_or("it names a document that there is not")?;
            Ok(Planned { request, order })
        })
        .collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    Ok((ran.version, plan, Duration::from_secs_f64(ran.seconds)))
}

fn ranks(request: &Request, documents: &[u64]) -> Option<Order> {
    let ranks: HashMap<u64, u16> = request
        .documents
        .iter()
        .map(|document| document.fingerprint.0)
        .zip(0..)
        .collect();
    documents
        .iter()
        .map(|document| ranks.get(document).copied())
        .collect()
}

/// A folder of this process's own, removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("foreword-batch-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover in the system's temporary folder does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
