//! Proximity's study (its section 4.2) over XQuAD: four variants of every question in random order; how many searches a
//! similarity cache saves, and what that costs in answers, by tolerance and capacity.
//!
//! `FOREWORD_XQUAD=…/xquad.en.json cargo bench -p foreword-benches --bench proximity`
//!
//! Embeddings come from the hashing embedder. The search is exact: XQuAD's 240 paragraphs stand among other vectors,
//! in directions that no question has, so that a search takes as long as one of a corpus of that size.

use foreword_benches::xquad;
use foreword_ordering::embedding::HashingEmbedder;
use foreword_ordering::random::Random;
use foreword_ordering::similarity::{RawSimilarity, SimilarityCache, SimilarityConfig};
use std::collections::HashSet;
use std::time::{Duration, Instant};

const DIMENSIONS: u32 = 768;
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
const TOLERANCES: [f32; 7] = [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6];
const CAPACITIES: [u32; 6] = [10, 50, 100, 300, 1_000, 2_000];
const ORDERS: u64 = 5;

/// One variant of a question.
struct Query {
    embedding: Vec<f32>,
    /// The paragraph that answers it.
    answer: usize,
    /// What a search finds, and how long it takes.
    fresh: Vec<String>,
    search: Duration,
}

/// What a cache of one tolerance and capacity came to.
#[derive(Default)]
struct Outcome {
    queries: u32,
    hits: u32,
    /// Queries whose documents contain the paragraph that answers them.
    answered: u32,
    /// The fresh documents that the hits held, over all of them.
    recalled: usize,
    latency: Duration,
}

fn main() {
    let corpus = match xquad::corpus() {
        Ok(corpus) => corpus,
        Err(reason) => {
            println!("skipped: the study over XQuAD ({reason})");
            return;
        }
    };
    let queries = queries(&corpus);
    let mut base = Outcome::default();
    for query in &queries {
        base.queries += 1;
        base.latency += query.search;
        base.answered += u32::from(query.holds_answer(&query.fresh));
    }
    println!(
        "{} queries; a search takes {:.0} us among {CORPUS} vectors and finds the answer's paragraph among {K} for {:.1} %\n",
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
    for tolerance in TOLERANCES {
        print!("| {tolerance} |");
        for capacity in CAPACITIES {
            let mut outcome = Outcome::default();
            for seed in 1..=ORDERS {
                outcome.run(&queries, tolerance, capacity, seed);
            }
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
    }
}

impl Outcome {
    /// Asks all `queries` in the order of `seed`, beginning with an empty cache.
    fn run(&mut self, queries: &[Query], tolerance: f32, capacity: u32, seed: u64) {
        let config = RawSimilarity {
            dimensions: DIMENSIONS,
            tolerance: tolerance.into(),
            capacity,
            ttl_ms: None,
            ..RawSimilarity::default()
        };
        let config = SimilarityConfig::try_from(config).expect("the study's configuration");
        let mut cache = SimilarityCache::new(&config);
        let mut order: Vec<&Query> = queries.iter().collect();
        Random::new(seed).shuffle(&mut order);
        for query in order {
            self.queries += 1;
            let start = Instant::now();
            let hit = cache.lookup(&query.embedding, 0).expect("an embedding");
            let found = hit.map(|hit| hit.documents.to_vec());
            self.latency += start.elapsed();
            if let Some(documents) = found {
                self.hits += 1;
                self.answered += u32::from(query.holds_answer(&documents));
                let fresh: HashSet<&str> = query.fresh.iter().map(String::as_str).collect();
                self.recalled += documents.iter().filter(|id| fresh.contains(&***id)).count();
                continue;
            }
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

/// Four variants of every question, each with what a search finds.
fn queries(corpus: &xquad::Corpus) -> Vec<Query> {
    let embedder = HashingEmbedder::new(DIMENSIONS).expect("the study's dimensions");
    let embed = |text: &str| embedder.embed(text).expect("a text with words");
    let mut vectors: Vec<Vec<f32>> = corpus.paragraphs.iter().map(|text| embed(text)).collect();
    let mut random = Random::new(0);
    while vectors.len() < CORPUS {
        // A nonsense of words that nobody asks for.
        let words: Vec<String> = (0..40).map(|_| format!("{:x}", random.bits())).collect();
        vectors.push(embed(&words.join(" ")));
    }
    let variants = corpus.questions.iter().flat_map(|(question, answer)| {
        PREFIXES.map(|prefix| (format!("{prefix}{question}"), *answer))
    });
    variants
        .map(|(text, answer)| {
            let embedding = embed(&text);
            let start = Instant::now();
            let fresh = search(&vectors, &embedding);
            Query {
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
