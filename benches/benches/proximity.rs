//! Proximity's study (its section 4.2) over XQuAD: four variants of every question in random order; how many searches a
//! similarity cache saves, and what that costs in answers, by tolerance and capacity.
//!
//! `FOREWORD_XQUAD=…/xquad.en.json [FOREWORD_EMBEDDER=DIR] cargo bench -p foreword-benches -- proximity`
//!
//! Embeddings come from the sentence encoder in the folder named, or from the hashing embedder. The tables are also
//! written as heat maps to `target/proximity.html`, or to the file that `FOREWORD_REPORT` names. The search is exact:
//! XQuAD's 240 paragraphs stand among other vectors, in directions that no question has, so that a search takes as long
//! as one of a corpus of that size.
//!
//! `FOREWORD_SERVED=FILE` times nothing and writes, for a sample of the queries, the documents that they get with 300 and 1,000 entries: one
//! line of JSON each, which `benches/peers/served_answers.py` has a model score.
//!
//! Recall is told in two ways: whether the paragraph that answers the question is among the documents, as a fresh search
//! of that very variant has it, and how many of a fresh search's documents are the same.

use foreword_benches::{Arguments, embedded, xquad};
use foreword_ordering::random::Random;
use foreword_retrieval::Embedder;
use foreword_similarity::{RawSimilarity, SimilarityCache, SimilarityConfig};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Documents that a search returns.
const K: usize = 5;
/// Vectors in the corpus.
const CORPUS: usize = 20_000;
const PREFIXES: [&str; 4] = [
    "Question: ",
    "Please answer this: ",
    "I would like to know: ",
    "Tell me, ",
];
const TOLERANCES: [f32; 8] = [0.0, 0.02, 0.03, 0.04, 0.05, 0.1, 0.2, 0.4];
const CAPACITIES: [u32; 6] = [10, 50, 100, 300, 1_000, 2_000];
const ORDERS: u64 = 3;

/// Queries whose documents are written, and the settings with which they are served.
const SERVED: usize = 300;
const SERVED_TOLERANCES: [f32; 5] = [0.02, 0.05, 0.1, 0.2, 0.4];
const SERVED_CAPACITIES: [u32; 2] = [300, 1_000];

/// One variant of a question.
struct Query {
    text: String,
    embedding: Vec<f32>,
    /// The paragraph that answers it.
    answer: usize,
    /// What a search finds, and how long it takes.
    fresh: Vec<String>,
    search: Duration,
}

/// What a cache of one tolerance and capacity came to.
#[derive(Default)]
struct ProximityOutcome {
    queries: u32,
    hits: u32,
    /// Queries whose documents contain the paragraph that answers them.
    answered: u32,
    /// The fresh documents that the hits held, over all of them.
    recalled: usize,
    latency: Duration,
}

pub(crate) fn bench(_: &Arguments) {
    let corpus = match xquad::corpus() {
        Ok(corpus) => corpus,
        Err(reason) => {
            println!("skipped: the study over XQuAD ({reason})");
            return;
        }
    };
    let embedder = embedded::embedder();
    if let Ok(path) = std::env::var("FOREWORD_SERVED") {
        // Nothing is timed: the paragraphs alone are searched.
        let queries = queries(&corpus, &*embedder, corpus.paragraphs.len());
        let written = std::fs::write(&path, served(&queries));
        written.expect("FOREWORD_SERVED names a file that can be written");
        println!("documents of {SERVED} queries: {path}");
        return;
    }
    let queries = queries(&corpus, &*embedder, CORPUS);
    let mut base = ProximityOutcome::default();
    for query in &queries {
        base.queries += 1;
        base.latency += query.search;
        base.answered += u32::from(query.holds_answer(&query.fresh));
    }
    println!(
        "{}: {} queries; a search takes {:.0} us among {CORPUS} vectors and finds the answer's paragraph among {K} for {:.1} %\n",
        embedder.name(),
        queries.len(),
        base.mean_latency_us(),
        base.answered_percent()
    );
    println!(
        "hit rate % / mean latency, % of the search's / answers lost, points / recall@{K} of hits, %\n"
    );
    print!("| tolerance |");
    for capacity in CAPACITIES {
        print!(" {capacity} entries |");
    }
    println!("\n|{}", " --- |".repeat(CAPACITIES.len() + 1));
    let mut grid = Vec::new();
    for tolerance in TOLERANCES {
        print!("| {tolerance} |");
        let mut row = Vec::new();
        for capacity in CAPACITIES {
            let mut outcome = ProximityOutcome::default();
            for seed in 1..=ORDERS {
                outcome.run(&queries, tolerance, capacity, seed, &mut |_, _| {});
            }
            row.push(Cell {
                hits: percent(outcome.hits, outcome.queries),
                latency: 100.0 * outcome.mean_latency_us() / base.mean_latency_us(),
                lost: base.answered_percent() - outcome.answered_percent(),
                recall: 100.0
                    * (outcome.recalled + K * (outcome.queries - outcome.hits) as usize) as f64
                    / (K * outcome.queries as usize) as f64,
            });
            print!(
                " {:.1} / {:.1} / {:.1} / {} |",
                percent(outcome.hits, outcome.queries),
                100.0 * outcome.mean_latency_us() / base.mean_latency_us(),
                // Adding 0 makes a negative zero positive.
                (10.0 * (base.answered_percent() - outcome.answered_percent())).round() / 10.0
                    + 0.0,
                match outcome.hits {
                    0 => "-".into(),
                    hits => format!(
                        "{:.1}",
                        100.0 * outcome.recalled as f64 / (f64::from(hits) * K as f64)
                    ),
                }
            );
        }
        println!();
        grid.push(row);
    }
    best(&grid, "answers lost", |cell| cell.lost);
    best(&grid, "documents that a fresh search has not", |cell| {
        100.0 - cell.recall
    });
    let path = std::env::var("FOREWORD_REPORT").unwrap_or_else(|_| {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../target/proximity.html").to_owned()
    });
    let written = std::fs::write(&path, report(embedder.name(), &grid));
    match written {
        Ok(()) => println!("\nheat maps: {path}"),
        Err(error) => println!("\nno heat maps: {path}: {error}"),
    }
}

/// A sample of the queries as lines of JSON: the question, and the paragraphs that a fresh search and each setting give
/// it, by number.
fn served(queries: &[Query]) -> String {
    let mut sample: Vec<usize> = (0..queries.len()).collect();
    Random::new(7).shuffle(&mut sample);
    sample.truncate(SERVED);
    let mut lines: Vec<Value> = (sample.iter())
        .map(|&at| json!({"query": queries[at].text, "fresh": queries[at].fresh, "served": {}}))
        .collect();
    for tolerance in SERVED_TOLERANCES {
        for capacity in SERVED_CAPACITIES {
            let mut all = vec![Vec::new(); queries.len()];
            let mut keep = |query: usize, documents: Vec<String>| all[query] = documents;
            ProximityOutcome::default().run(queries, tolerance, capacity, 1, &mut keep);
            for (line, &at) in lines.iter_mut().zip(&sample) {
                line["served"][format!("tolerance {tolerance}, {capacity} entries")] =
                    json!(all[at]);
            }
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// What a setting comes to, for a cell of each heat map.
#[derive(Clone, Copy)]
struct Cell {
    /// Per cent of the queries.
    hits: f64,
    /// Per cent of the search's.
    latency: f64,
    /// Points of the answers that a fresh search finds.
    lost: f64,
    /// Per cent of the documents that fresh searches find, over all queries.
    recall: f64,
}

/// Says where least time is taken at less than two points `lost`.
fn best(grid: &[Vec<Cell>], what: &str, lost: fn(&Cell) -> f64) {
    let cells = grid.iter().zip(TOLERANCES).flat_map(|(row, tolerance)| {
        row.iter()
            .zip(CAPACITIES)
            .map(move |cell| (tolerance, cell))
    });
    let few = cells.filter(|(_, (cell, _))| lost(cell) < 2.0);
    let best = few.min_by(|(_, (a, _)), (_, (b, _))| a.latency.total_cmp(&b.latency));
    if let Some((tolerance, (cell, capacity))) = best {
        println!(
            "\nunder two points of {what}: tolerance {tolerance}, {capacity} entries take {:.1} % less time and lose {:.1}",
            100.0 - cell.latency,
            lost(cell)
        );
    }
}

/// Heat maps of four figures, as one HTML page.
fn report(embedder: &str, grid: &[Vec<Cell>]) -> String {
    /// What it is called, its value, and how good that is, from 0 to 1.
    type Figure = (&'static str, fn(&Cell) -> f64, fn(&Cell) -> f64);
    let figures: [Figure; 4] = [
        ("Hit rate, %", |cell| cell.hits, |cell| cell.hits / 100.0),
        (
            "Mean retrieval latency, % of the search's",
            |cell| cell.latency,
            |cell| 1.0 - cell.latency / 100.0,
        ),
        (
            "Answers lost, points",
            |cell| cell.lost,
            |cell| 1.0 - cell.lost / 20.0,
        ),
        (
            "Recall of the documents, %",
            |cell| cell.recall,
            |cell| (cell.recall - 40.0) / 60.0,
        ),
    ];
    let mut page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Searches saved</title>\
         <style>body{{font:15px/1.5 system-ui,sans-serif;margin:2em;color:#222}}h1{{font-size:1.4em}}\
         figure{{display:inline-block;margin:1em 2em 1em 0}}text{{font:13px system-ui,sans-serif}}</style>\
         <h1>Searches saved by a similarity cache, {embedder}</h1>\
         <p>XQuAD's questions with four prefixes each, by tolerance (down) and entries (across). Darker is better.</p>"
    );
    for (name, figure, goodness) in figures {
        let (cell, left, top) = (74, 50, 26);
        let (width, height) = (left + cell * CAPACITIES.len(), top + 34 * TOLERANCES.len());
        let _ = write!(
            page,
            "<figure><figcaption>{name}</figcaption><svg width={width} height={height}>"
        );
        for (at, capacity) in CAPACITIES.iter().enumerate() {
            let x = left + cell * at + cell / 2;
            let _ = write!(
                page,
                "<text x={x} y=17 text-anchor=middle>{capacity}</text>"
            );
        }
        for (down, (tolerance, row)) in TOLERANCES.iter().zip(grid).enumerate() {
            let y = top + 34 * down;
            let _ = write!(page, "<text x=8 y={}>{tolerance}</text>", y + 21);
            for (at, values) in row.iter().enumerate() {
                // Adding 0 makes a negative zero positive.
                let shown = (10.0 * figure(values)).round() / 10.0 + 0.0;
                let share = goodness(values).clamp(0.0, 1.0);
                let lightness = 96.0 - 58.0 * share;
                let ink = if share > 0.55 { "#fff" } else { "#222" };
                let x = left + cell * at;
                let _ = write!(
                    page,
                    "<rect x={x} y={y} width={} height=32 fill=\"hsl(205 60% {lightness:.0}%)\"/>\
                     <text x={} y={} text-anchor=middle fill=\"{ink}\">{shown:.1}</text>",
                    cell - 2,
                    x + cell / 2 - 1,
                    y + 21
                );
            }
        }
        page.push_str("</svg></figure>");
    }
    page.push_str("</html>");
    page
}

impl ProximityOutcome {
    /// Asks all `queries` in the order of `seed`, beginning with an empty cache. Tells `served` the number of each and
    /// the documents that it gets.
    fn run(
        &mut self,
        queries: &[Query],
        tolerance: f32,
        capacity: u32,
        seed: u64,
        served: &mut dyn FnMut(usize, Vec<String>),
    ) {
        let config = RawSimilarity {
            dimensions: u32::try_from(queries[0].embedding.len()).expect("an embedding"),
            tolerance: tolerance.into(),
            capacity,
            ttl_ms: None,
            ..RawSimilarity::default()
        };
        let config = SimilarityConfig::try_from(config).expect("the study's configuration");
        let mut cache = SimilarityCache::new(&config);
        let mut order: Vec<usize> = (0..queries.len()).collect();
        Random::new(seed).shuffle(&mut order);
        for at in order {
            let query = &queries[at];
            self.queries += 1;
            let start = Instant::now();
            let hit = cache.lookup(&query.embedding, 0).expect("an embedding");
            let found = hit.map(|hit| hit.documents.to_vec());
            self.latency += start.elapsed();
            if let Some(documents) = found {
                self.hits += 1;
                served(at, documents.iter().map(ToString::to_string).collect());
                self.answered += u32::from(query.holds_answer(&documents));
                let fresh: HashSet<&str> = query.fresh.iter().map(String::as_str).collect();
                self.recalled += documents.iter().filter(|id| fresh.contains(&***id)).count();
                continue;
            }
            served(at, query.fresh.clone());
            self.answered += u32::from(query.holds_answer(&query.fresh));
            let start = Instant::now();
            cache
                .insert(&query.embedding, &query.fresh, None, 0)
                .expect("an embedding and its documents");
            self.latency += query.search + start.elapsed();
        }
    }

    fn mean_latency_us(&self) -> f64 {
        self.latency.as_secs_f64() * 1e6 / f64::from(self.queries)
    }

    fn answered_percent(&self) -> f64 {
        percent(self.answered, self.queries)
    }
}

impl Query {
    fn holds_answer<S: AsRef<str>>(&self, documents: &[S]) -> bool {
        let answer = self.answer.to_string();
        documents.iter().any(|id| id.as_ref() == answer)
    }
}

/// Four variants of every question, each with what a search among so many vectors finds.
fn queries(corpus: &xquad::Corpus, embedder: &dyn Embedder, vectors_in_all: usize) -> Vec<Query> {
    let mut vectors = embedded::vectors(embedder, &corpus.paragraphs);
    let mut random = Random::new(0);
    while vectors.len() < vectors_in_all {
        // In a direction that no question has: nothing but time.
        let mut vector: Vec<f32> = vectors[0]
            .iter()
            .map(|_| random.unit() as f32 - 0.5)
            .collect();
        let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
        vector.iter_mut().for_each(|value| *value /= length);
        vectors.push(vector);
    }
    let variants = corpus.questions.iter().flat_map(|(question, answer)| {
        PREFIXES.map(|prefix| (format!("{prefix}{question}"), *answer))
    });
    let (texts, answers): (Vec<String>, Vec<usize>) = variants.unzip();
    let embeddings = embedded::vectors(embedder, &texts);
    (embeddings.into_iter().zip(answers).zip(texts))
        .map(|((embedding, answer), text)| {
            let start = Instant::now();
            let fresh = search(&vectors, &embedding);
            Query {
                text,
                search: start.elapsed(),
                embedding,
                answer,
                fresh,
            }
        })
        .collect()
}

/// The best [`K`] of `vectors` by inner product, by number; among equals the earlier one.
fn search(vectors: &[Vec<f32>], asked: &[f32]) -> Vec<String> {
    let mut scored: Vec<(f32, usize)> = vectors
        .iter()
        .map(|vector| vector.chunks_exact(16).zip(asked.chunks_exact(16)))
        .map(|chunks| {
            let mut sums = [0.0; 16];
            for (a, b) in chunks {
                for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
                    *sum += a * b;
                }
            }
            sums.iter().sum()
        })
        .zip(0..)
        .collect();
    let best = |a: &(f32, usize), b: &(f32, usize)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    scored.select_nth_unstable_by(K, best);
    scored.truncate(K);
    scored.sort_unstable_by(best);
    scored.iter().map(|(_, at)| at.to_string()).collect()
}

fn percent(part: u32, whole: u32) -> f64 {
    100.0 * f64::from(part) / f64::from(whole)
}
