//! Proximity's Figure 3 in its own terms: FIFO eviction, L2 distance, its tolerances and capacities, 131 questions in four
//! variants each (its section 4.2), beside Proximity's own algorithm. In place of the accuracy of a model's answers stands the share of
//! queries whose documents include one that is labelled with the answer.
//!
//! `cargo bench --profile dev --workspace --bench benches -- proximity_grid`
//!
//! Proximity's implementation needs a nightly compiler and is in no registry; [`Proximity`] is its Algorithm 1, literally.
//! Both get the same vectors and searches in the same order. The vectors have length 10, as those of an encoder that
//! does not normalise, so that the tolerances, from 0 to 10, mean something.

use foreword_benches::{Arguments, embedded};
use foreword_ordering::random::Random;
use foreword_retrieval::Embedder;
use foreword_similarity::{Eviction, Metric, RawSimilarity, SimilarityCache, SimilarityConfig};
use foreword_tests::artifacts;
use serde_json::Value;
use std::collections::VecDeque;

/// Documents that a search returns.
const K: usize = 5;
const QUESTIONS: usize = 131;
const LENGTH: f32 = 10.0;
const PREFIXES: [&str; 4] = [
    "Question: ",
    "Please answer this: ",
    "I would like to know: ",
    "Tell me, ",
];
/// The study's tolerances, and three between its last two.
const TOLERANCES: [f32; 9] = [0.0, 0.5, 1.0, 2.0, 5.0, 6.0, 7.0, 8.0, 10.0];
/// Random orders of the queries, as in the study.
const SEEDS: usize = 5;
const CAPACITIES: [usize; 5] = [10, 50, 100, 200, 300];

/// Proximity's Algorithm 1: the nearest key answers if it is near enough; else the database does, and the oldest entry goes
/// if there is no room.
struct Proximity {
    tolerance: f32,
    capacity: usize,
    entries: VecDeque<(Vec<f32>, Vec<String>)>,
}

impl Proximity {
    fn lookup(&self, query: &[f32]) -> Option<&[String]> {
        let mut nearest: Option<(f32, &Vec<String>)> = None;
        for (key, documents) in &self.entries {
            let distance = key.iter().zip(query).map(|(a, b)| (a - b) * (a - b));
            let distance = distance.sum::<f32>().sqrt();
            if nearest.is_none_or(|(least, _)| distance < least) {
                nearest = Some((distance, documents));
            }
        }
        let (distance, documents) = nearest?;
        (distance <= self.tolerance).then_some(documents)
    }

    fn insert(&mut self, query: &[f32], documents: &[String]) {
        if self.entries.len() >= self.capacity {
            self.entries.pop_front();
        }
        self.entries.push_back((query.to_vec(), documents.to_vec()));
    }
}

struct Query {
    question: usize,
    embedding: Vec<f32>,
    /// What a search finds.
    fresh: Vec<String>,
}

/// What one cache came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcome {
    hits: u32,
    found: u32,
}

pub(crate) fn bench(_: &Arguments) {
    let world = artifacts::repository().join("examples/handbook");
    let documents = lines(&world.join("documents.jsonl"));
    let questions: Vec<Value> = (lines(&world.join("questions.jsonl")).into_iter())
        .filter(|question| question["answer"].is_string())
        .take(QUESTIONS)
        .collect();
    let embedder = embedded::embedder();
    let mut queries = queries(&*embedder, &documents, &questions);
    let is_found = |query: &&Query| is_found(&questions, query.question, &query.fresh);
    let fresh = queries.iter().filter(is_found).count() as u32;
    let all = queries.len() as u32;
    println!(
        "{}: {all} queries in {SEEDS} random orders; fresh searches find the answer's document for {:.1} %\n",
        embedder.name(),
        percent(fresh, all)
    );
    println!("hit rate % (least to most) / answer's document found %, means over the orders\n");
    print!("| tolerance |");
    for capacity in CAPACITIES {
        print!(" {capacity} entries |");
    }
    println!("\n|{}", " --- |".repeat(CAPACITIES.len() + 1));
    let mut outcomes = [[[Outcome::default(); SEEDS]; CAPACITIES.len()]; TOLERANCES.len()];
    for seed in 0..SEEDS {
        Random::new(1 + seed as u64).shuffle(&mut queries);
        for (row, tolerance) in outcomes.iter_mut().zip(TOLERANCES) {
            for (cell, capacity) in row.iter_mut().zip(CAPACITIES) {
                cell[seed] = played(&questions, &queries, tolerance, capacity);
            }
        }
    }
    for (row, tolerance) in outcomes.iter().zip(TOLERANCES) {
        print!("| {tolerance} |");
        for cell in row {
            let hits = cell.map(|one| percent(one.hits, all));
            let found = cell.map(|one| percent(one.found, all));
            let mean = |values: &[f64]| values.iter().sum::<f64>() / SEEDS as f64;
            let least = hits.iter().copied().fold(f64::INFINITY, f64::min);
            let most = hits.iter().copied().fold(0.0, f64::max);
            print!(
                " {:.1} ({least:.1} to {most:.1}) / {:.1} |",
                mean(&hits),
                mean(&found)
            );
        }
        println!();
    }
}

/// Plays the queries through Proximity's algorithm and through ours, which must come to the same.
fn played(questions: &[Value], queries: &[Query], tolerance: f32, capacity: usize) -> Outcome {
    let mut theirs = Proximity {
        tolerance,
        capacity,
        entries: VecDeque::new(),
    };
    let mut ours = ours(tolerance, capacity, queries[0].embedding.len());
    let mut found = [Outcome::default(), Outcome::default()];
    for query in queries {
        let hit = theirs.lookup(&query.embedding).map(<[String]>::to_vec);
        if hit.is_none() {
            theirs.insert(&query.embedding, &query.fresh);
        }
        found[0].take(questions, query, hit);

        let hit = ours.lookup(&query.embedding, 0).expect("an embedding");
        let hit = hit.map(|hit| hit.documents.iter().map(ToString::to_string).collect());
        if hit.is_none() {
            let inserted = ours.insert(&query.embedding, &query.fresh, None, 0);
            inserted.expect("an embedding and its documents");
        }
        found[1].take(questions, query, hit);
    }
    assert_eq!(
        found[0], found[1],
        "Proximity's algorithm and ours differ at {tolerance} and {capacity} entries"
    );
    found[0]
}

impl Outcome {
    fn take(&mut self, questions: &[Value], query: &Query, hit: Option<Vec<String>>) {
        self.hits += u32::from(hit.is_some());
        let documents = hit.as_ref().unwrap_or(&query.fresh);
        self.found += u32::from(is_found(questions, query.question, documents));
    }
}

fn ours(tolerance: f32, capacity: usize, dimensions: usize) -> SimilarityCache {
    let config = RawSimilarity {
        dimensions: dimensions as u32,
        metric: Metric::L2,
        tolerance: tolerance.into(),
        capacity: capacity as u32,
        eviction: Eviction::Fifo,
        ttl_ms: None,
        ..RawSimilarity::default()
    };
    SimilarityCache::new(&SimilarityConfig::try_from(config).expect("the study's configuration"))
}

/// Returns whether one of the documents is labelled as holding the question's answer.
fn is_found(questions: &[Value], question: usize, ids: &[String]) -> bool {
    let labels = questions[question]["documents"].as_array();
    let mut labels = labels.into_iter().flatten().map(text);
    labels.any(|label| ids.contains(&label))
}

/// Four variants of every question, each with the documents nearest to it.
fn queries(embedder: &dyn Embedder, documents: &[Value], questions: &[Value]) -> Vec<Query> {
    let of = |document: &Value| format!("{} {}", text(&document["title"]), text(&document["text"]));
    let texts: Vec<String> = documents.iter().map(of).collect();
    let vectors = embedded::vectors(embedder, &texts);
    let variants: Vec<(usize, String)> = (questions.iter().enumerate())
        .flat_map(|(at, question)| {
            let question = text(&question["question"]);
            PREFIXES.map(|prefix| (at, format!("{prefix}{question}")))
        })
        .collect();
    let asked: Vec<&String> = variants.iter().map(|(_, words)| words).collect();
    let embeddings = embedded::vectors(embedder, &asked);
    let queries = embeddings.into_iter().zip(&variants);
    queries
        .map(|(embedding, (question, _))| {
            let product =
                |vector: &[f32]| -> f32 { vector.iter().zip(&embedding).map(|(a, b)| a * b).sum() };
            let mut best: Vec<usize> = (0..documents.len()).collect();
            best.sort_by(|a, b| product(&vectors[*b]).total_cmp(&product(&vectors[*a])));
            let best = best.into_iter().take(K);
            Query {
                question: *question,
                fresh: best.map(|at| text(&documents[at]["id"])).collect(),
                embedding: embedding.iter().map(|value| value * LENGTH).collect(),
            }
        })
        .collect()
}

fn lines(path: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("the handbook");
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("lines of JSON")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn percent(part: u32, whole: u32) -> f64 {
    100.0 * f64::from(part) / f64::from(whole)
}
