//! Every policy on every trace: what share of document tokens comes from the cache, and what a decision costs.
//!
//! ```text
//! FOREWORD_XQUAD=…/xquad.en.json cargo bench -p foreword-benches -- policies
//! cargo bench -p foreword-benches -- policies memory      bytes per stored node
//! cargo bench -p foreword-benches -- policies reuse       every policy on every trace
//! cargo bench -p foreword-benches -- policies sizes       four policies, in caches of 64 to 512 prompts
//! cargo bench -p foreword-benches -- policies rules       a context index by RAGBoost's own rules
//! cargo bench -p foreword-benches -- policies answers     orders recorded when so many later requests have been ordered
//! cargo bench -p foreword-benches -- policies places      the retriever's best documents kept in a place
//! cargo bench -p foreword-benches -- policies decisions   decision times at 100,000 contexts
//! cargo bench -p foreword-benches -- policies index       building, searching and updating a context index
//! cargo bench -p foreword-benches -- policies history     a context index of an earlier log
//! ```
//!
//! A decision is ordering and remembering: candidates interned, order chosen, policy and tree updated. The engine's
//! model is not timed.

use foreword_benches::{Arguments, workloads, xquad};
use foreword_ordering::document::{Candidate, Fingerprint};
use foreword_ordering::policy::context_index::{ContextIndex, Rules};
use foreword_ordering::policy::{
    Order, Place, Placement, Policy, PolicyKind, PolicyOptions, SentDocuments, Start,
};
use foreword_simulation::{Capacity, Replay, Trace, workload};
use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const REQUESTS: usize = 2_000;
/// Seeds of a generated trace; figures are means, for one trace is noisy by half a percent.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=8;
/// Capacities, in average prompts; 0: unbounded.
const PROMPTS: [u32; 2] = [0, 40];
/// Contexts stored before decisions are timed.
const STORED: usize = 100_000;
const TIMED: usize = 5_000;

pub(crate) fn bench(arguments: &Arguments) {
    if arguments.has("memory") {
        memory();
    }
    if arguments.has("reuse") {
        reuse();
    }
    if arguments.has("sizes") {
        sizes();
    }
    if arguments.has("rules") {
        rules();
    }
    if arguments.has("answers") {
        answers();
    }
    if arguments.has("places") {
        places();
    }
    if arguments.has("decisions") {
        decisions();
    }
    if arguments.has("index") {
        index();
    }
    if arguments.has("history") {
        history();
    }
}

/// The traces, each in as many versions as there are seeds for it.
fn traces(depths: &[usize]) -> Vec<(String, Vec<Trace>)> {
    let seeded = |make: &dyn Fn(u64) -> Trace| SEEDS.map(make).collect::<Vec<_>>();
    let mut traces = Vec::new();
    for ranks in [workload::Ranks::Shuffled, workload::Ranks::Stable] {
        for overlap in [0.0, 0.4, 0.6, 0.8] {
            let shape = workload::Bursty {
                overlap,
                ranks,
                ..workload::Bursty::default()
            };
            let kind = match ranks {
                workload::Ranks::Shuffled => "bursty",
                workload::Ranks::Stable => "bursty, stable ranks,",
            };
            traces.push((
                format!("{kind} {overlap:.1}, k=5"),
                seeded(&|seed| workload::bursty(seed, REQUESTS, shape)),
            ));
        }
    }
    for (name, ranking) in [
        ("geospatial, k=5", workload::Ranks::Shuffled),
        ("geospatial, nearest first", workload::Ranks::Stable),
    ] {
        traces.push((
            name.into(),
            seeded(&|seed| workload::geospatial(seed, REQUESTS, 5, ranking)),
        ));
    }
    traces.push((
        "Zipf topics, k=15".into(),
        seeded(&|seed| workloads::zipf_topics(seed, REQUESTS, 5_000, 15)),
    ));
    traces.push((
        "conversations, k=10".into(),
        seeded(&|seed| workloads::conversations(seed, REQUESTS, 10)),
    ));
    traces.push((
        "no overlap, k=5".into(),
        vec![workload::disjoint(REQUESTS, 5)],
    ));
    match xquad::traces(depths) {
        Ok(found) => traces.extend(
            depths
                .iter()
                .zip(found)
                .map(|(depth, trace)| (format!("XQuAD, BM25 top {depth}"), vec![trace])),
        ),
        Err(reason) => println!("skipped: the XQuAD traces ({reason})\n"),
    }
    traces
}

/// Reuse where the retriever's best documents keep a place, unbounded / 40 prompts, and the unbounded share of `free`'s.
fn places() {
    let places = [
        (Place::Free, 0),
        (Place::Auto, 1),
        (Place::Last, 1),
        (Place::Last, 2),
        (Place::First, 1),
        (Place::Ends, 2),
        (Place::Ends, 4),
    ];
    for kind in [PolicyKind::Longest, PolicyKind::Foresight] {
        println!(
            "{}: share of document tokens reused by place, unbounded / 40 prompts (of `free`)\n",
            kind.name()
        );
        print!("| trace | retrieval |");
        for (place, documents) in places {
            print!(" {} {documents} |", place.name());
        }
        println!("\n|{}", " --- |".repeat(places.len() + 2));
        for (name, traces) in traces(&[3, 5, 8, 10, 12, 15]) {
            let shares = |kind: PolicyKind, placement| {
                let options = PolicyOptions {
                    placement,
                    ..PolicyOptions::default()
                };
                PROMPTS.map(|prompts| share(&traces, kind, &options, prompts))
            };
            let [unbounded, tight] = shares(PolicyKind::Retrieval, Placement::FREE);
            print!("| {name} | {unbounded:.3} / {tight:.3} |");
            let mut free = None;
            for (place, documents) in places {
                let [unbounded, tight] = shares(kind, Placement { place, documents });
                let free = *free.get_or_insert(unbounded);
                print!(" {unbounded:.3} / {tight:.3} ({:.2}) |", unbounded / free);
            }
            println!();
        }
        println!();
    }
}

/// Share of document tokens reused, the mean over traces, in a cache of so many average prompts; 0: unbounded.
fn share(traces: &[Trace], kind: PolicyKind, options: &PolicyOptions, prompts: u32) -> f64 {
    mean(traces, |trace| {
        let capacity = match prompts {
            0 => Capacity::UNBOUNDED,
            prompts => Capacity::of_prompts(prompts, trace),
        };
        workloads::replay(trace, kind, options, capacity).share()
    })
}

fn mean(traces: &[Trace], of: impl Fn(&Trace) -> f64) -> f64 {
    traces.iter().map(of).sum::<f64>() / traces.len() as f64
}

/// Prints a row for each trace, with the shares that `shares` returns for the policy or rules of each column.
fn table<T: Copy, const N: usize>(columns: &[(&str, T)], shares: impl Fn(&[Trace], T) -> [f64; N]) {
    print!("| trace |");
    for (name, _) in columns {
        print!(" {name} |");
    }
    println!("\n|{}", " --- |".repeat(columns.len() + 1));
    for (name, traces) in traces(&[5, 15]) {
        print!("| {name} |");
        for &(_, column) in columns {
            let shares = shares(&traces, column).map(|share| format!("{share:.3}"));
            print!(" {} |", shares.join(", "));
        }
        println!();
    }
    println!();
}

fn named(kind: PolicyKind) -> (&'static str, PolicyKind) {
    (kind.name(), kind)
}

/// Reuse by size of the cache, placed freely (RAGBoost's caches hold 64 to 512 contexts).
fn sizes() {
    const SIZES: [u32; 4] = [64, 128, 256, 512];
    println!("Share of document tokens reused, in caches of {SIZES:?} prompts\n");
    let kinds = [
        PolicyKind::Retrieval,
        PolicyKind::ContextIndex,
        PolicyKind::Longest,
        PolicyKind::Foresight,
    ];
    let options = PolicyOptions::default();
    table(&kinds.map(named), |traces, kind| {
        SIZES.map(|prompts| share(traces, kind, &options, prompts))
    });
}

/// Reuse of `context-index` by its rules: as shipped, and with each rule as RAGBoost has it or allows it.
fn rules() {
    let shipped = Rules::default();
    let weighing = |position_weight| Rules {
        position_weight,
        ..shipped
    };
    let (stops_at_ties, sorts) = (true, true);
    let all = [
        ("shipped", shipped),
        ("α 0", weighing(0)),
        ("α .001", weighing(1)),
        ("α .01", weighing(10)),
        ("α .1", weighing(100)),
        (
            "ends at ties",
            Rules {
                stops_at_ties,
                ..shipped
            },
        ),
        ("sorted", Rules { sorts, ..shipped }),
        (
            "both",
            Rules {
                stops_at_ties,
                sorts,
                ..shipped
            },
        ),
    ];
    println!(
        "Share of document tokens that `context-index` reuses, unbounded, and in a cache of 40 prompts\n"
    );
    table(&all, |traces, context_index| {
        let options = PolicyOptions {
            context_index,
            ..PolicyOptions::default()
        };
        PROMPTS.map(|prompts| share(traces, PolicyKind::ContextIndex, &options, prompts))
    });
}

/// Reuse where an order is recorded when the request is sent (0), as in the gateway, and where it is recorded once it has
/// been answered, as RAGCache++ does, with so many requests under way.
fn answers() {
    const UNDER_WAY: [usize; 5] = [0, 1, 4, 16, 64];
    println!(
        "Share of document tokens reused, recorded after {UNDER_WAY:?} later requests; caches unbounded\n"
    );
    let kinds = [
        PolicyKind::Greedy,
        PolicyKind::Longest,
        PolicyKind::Foresight,
    ];
    table(&kinds.map(named), |traces, kind| {
        UNDER_WAY.map(|under_way| mean(traces, |trace| recorded_late(trace, kind, under_way)))
    });
}

fn recorded_late(trace: &Trace, kind: PolicyKind, under_way: usize) -> f64 {
    let mut replay = Replay::new(kind, &PolicyOptions::default(), Capacity::UNBOUNDED);
    let mut open = VecDeque::new();
    for request in trace {
        let order = replay.order(request);
        replay.serve(request, &order);
        open.push_back((request, order));
        if open.len() > under_way
            && let Some((answered, order)) = open.pop_front()
        {
            replay.record(answered, &order);
        }
    }
    replay.reuse().share()
}

/// Reuse and mean decision time, every policy on every trace at every capacity.
fn reuse() {
    println!("Share of document tokens reused, unbounded / 40 prompts (mean decision, us)\n");
    print!("| trace | upper bound |");
    for kind in PolicyKind::ALL {
        print!(" {} |", kind.name());
    }
    println!(" foresight over longest |");
    println!("|{}", " --- |".repeat(PolicyKind::ALL.len() + 3));
    for (name, traces) in traces(&[5, 10, 15]) {
        let count = traces.len() as f64;
        let bound: f64 = traces
            .iter()
            .map(|trace| workloads::upper_bound(trace).share())
            .sum();
        print!("| {name} | {:.3} |", bound / count);
        let mut shares = Vec::new();
        for kind in PolicyKind::ALL {
            let mut found = [0.0; PROMPTS.len()];
            let mut time = Duration::ZERO;
            let mut decisions = 0;
            for trace in &traces {
                for (found, prompts) in found.iter_mut().zip(PROMPTS) {
                    let capacity = match prompts {
                        0 => Capacity::UNBOUNDED,
                        prompts => Capacity::of_prompts(prompts, trace),
                    };
                    let (share, spent) = timed_replay(trace, kind, capacity);
                    *found += share / count;
                    time += spent;
                    decisions += trace.len();
                }
            }
            let mean = time.as_secs_f64() * 1e6 / f64::from(u32::try_from(decisions).unwrap_or(1));
            print!(" {:.3} / {:.3} ({mean:.1}) |", found[0], found[1]);
            shares.push((kind, found));
        }
        let of = |wanted| {
            let found = shares.iter().find(|(kind, _)| *kind == wanted);
            found.map_or([0.0; PROMPTS.len()], |(_, found)| *found)
        };
        let (foresight, longest) = (of(PolicyKind::Foresight), of(PolicyKind::Longest));
        if longest[0] > 0.0 {
            println!(
                " {:.3} / {:.3} |",
                foresight[0] / longest[0],
                foresight[1] / longest[1]
            );
        } else {
            println!(" - |");
        }
    }
    println!();
}

fn timed_replay(trace: &Trace, kind: PolicyKind, capacity: Capacity) -> (f64, Duration) {
    let mut replay = Replay::new(kind, &PolicyOptions::default(), capacity);
    let mut time = Duration::ZERO;
    for request in trace {
        let start = Instant::now();
        let order = black_box(replay.decide(request));
        time += start.elapsed();
        replay.serve(request, &order);
    }
    (replay.reuse().share(), time)
}

/// The second half of each trace, from an empty cache: `context-index` that begins with nothing, or with the newest
/// contexts of the first half, beside the policies that look at the tree.
fn history() {
    println!("Share reused in a trace's second half, unbounded / 40 prompts\n");
    println!("| trace | context-index | forgetting | with history | both | longest | foresight |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for (name, traces) in traces(&[5, 10, 15]) {
        let count = traces.len() as f64;
        let mut found = [[0.0; PROMPTS.len()]; 6];
        for trace in &traces {
            let (past, now) = trace.split_at(trace.len() / 2);
            let now = now.to_vec();
            let contexts: Vec<Vec<Fingerprint>> = past
                .iter()
                .map(|request| request.documents.iter().map(|d| d.fingerprint).collect())
                .collect();
            let past = Arc::new(ContextIndex::build(&contexts, Rules::default()).0);
            let options = PolicyOptions::default();
            let forgetting = PolicyOptions {
                forget_evicted: true,
                ..options
            };
            for (at, prompts) in PROMPTS.into_iter().enumerate() {
                let capacity = match prompts {
                    0 => Capacity::UNBOUNDED,
                    prompts => Capacity::of_prompts(prompts, &now),
                };
                let with = |options| ContextIndex::of(options).with_history(Arc::clone(&past));
                let policies: [Box<dyn Policy>; 6] = [
                    PolicyKind::ContextIndex.build(&options),
                    PolicyKind::ContextIndex.build(&forgetting),
                    Box::new(with(&options)),
                    Box::new(with(&forgetting)),
                    PolicyKind::Longest.build(&options),
                    PolicyKind::Foresight.build(&options),
                ];
                for (found, policy) in found.iter_mut().zip(policies) {
                    let mut replay = Replay::of(policy, capacity);
                    for request in &now {
                        let order = replay.decide(request);
                        replay.serve(request, &order);
                    }
                    found[at] += replay.reuse().share() / count;
                }
            }
        }
        print!("| {name} |");
        for [unbounded, bounded] in found {
            print!(" {unbounded:.3} / {bounded:.3} |");
        }
        println!();
    }
    println!();
}

/// Decision times with many contexts stored.
fn decisions() {
    println!("Decisions at {STORED} stored contexts\n");
    println!("| k | documents | policy | p50 us | p99 us | max us | nodes |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for (k, documents) in [(5, 100_000), (15, 100_000), (20, 100_000), (20, 5_000)] {
        let trace = workloads::zipf_topics(1, STORED + TIMED, documents, k);
        let (stored, asked) = trace.split_at(STORED);
        for kind in PolicyKind::ALL {
            let mut replay = Replay::new(kind, &PolicyOptions::default(), Capacity::UNBOUNDED);
            for request in stored {
                replay.decide(request);
            }
            let nodes = replay.nodes();
            let mut times: Vec<f64> = asked
                .iter()
                .map(|request| {
                    let start = Instant::now();
                    black_box(replay.decide(request));
                    start.elapsed().as_secs_f64() * 1e6
                })
                .collect();
            times.sort_by(f64::total_cmp);
            println!(
                "| {k} | {documents} | {} | {:.1} | {:.1} | {:.0} | {nodes} |",
                kind.name(),
                times[TIMED / 2],
                times[TIMED * 99 / 100],
                times[TIMED - 1],
            );
        }
    }
    println!();
}

/// Memory of a knowledge tree and of what `foresight` has learnt. It is the growth of the process, so it holds only
/// for what runs first: later on, freed memory is used again and growth says too little.
fn memory() {
    let trace = workloads::zipf_topics(1, STORED, 100_000, 5);
    let before = foreword_benches::resident_bytes();
    let mut replay = Replay::new(
        PolicyKind::Foresight,
        &PolicyOptions::default(),
        Capacity::UNBOUNDED,
    );
    for request in &trace {
        replay.decide(request);
    }
    match foreword_benches::resident_bytes().zip(before) {
        Some((after, before)) => println!(
            "Memory: {} bytes per node (foresight, k=5, {STORED} contexts, {} nodes)\n",
            after.saturating_sub(before) / replay.nodes() as u64,
            replay.nodes()
        ),
        None => println!("skipped: memory (this system has no /proc/self/status)\n"),
    }
}

/// Clustering a context index, and growing one by one request after another: the time of a search and of an update.
fn index() {
    println!("Context index of contexts of 15 documents\n");
    println!("| contexts | built, s | one by one: a search, us | an update, us |");
    println!("| --- | --- | --- | --- |");
    for contexts in [128, 2_000, 12_000, 100_000] {
        let trace = workloads::zipf_topics(1, contexts + 1_000, 5_000, 15);
        let (stored, asked) = trace.split_at(contexts);
        let lists: Vec<Vec<Fingerprint>> = stored
            .iter()
            .map(|request| request.documents.iter().map(|d| d.fingerprint).collect())
            .collect();
        let start = Instant::now();
        let (index, _) = ContextIndex::build(&lists, Rules::default());
        let built = start.elapsed().as_secs_f64();
        drop(index);

        let times = Arc::default();
        let timed = TimedIndex {
            index: ContextIndex::new(u32::MAX),
            times: Arc::clone(&times),
        };
        let mut replay = Replay::of(Box::new(timed), Capacity::UNBOUNDED);
        for request in stored {
            replay.decide(request);
        }
        times.lock().unwrap().fill(Duration::ZERO);
        for request in asked {
            replay.decide(request);
        }
        let [search, update] = times
            .lock()
            .unwrap()
            .map(|time| time.as_secs_f64() * 1e6 / asked.len() as f64);
        println!("| {contexts} | {built:.2} | {search:.1} | {update:.1} |");
    }
    println!();
}

/// A context index that sums the time of its searches and of its updates.
struct TimedIndex {
    index: ContextIndex,
    times: Arc<Mutex<[Duration; 2]>>,
}

impl TimedIndex {
    fn timed<T>(&mut self, which: usize, work: impl FnOnce(&mut ContextIndex) -> T) -> T {
        let start = Instant::now();
        let result = work(&mut self.index);
        self.times.lock().unwrap()[which] += start.elapsed();
        result
    }
}

impl Policy for TimedIndex {
    fn order(&mut self, candidates: &[Candidate<'_>], start: Start<'_>) -> Order {
        self.timed(0, |index| index.order(candidates, start))
    }

    fn remember(&mut self, ranked: &[Fingerprint], order: &[u16]) {
        self.timed(1, |index| index.remember(ranked, order));
    }

    fn sent(&mut self, runs: &[SentDocuments<'_>]) {
        self.timed(1, |index| index.sent(runs));
    }
}
