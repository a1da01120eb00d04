//! Proximity's Figure 3 in its own terms: FIFO eviction, L2 distance, its tolerances and capacities, 131 questions in four
//! variants each (its section 4.2), and accuracy by the answers of a model, beside Proximity's own algorithm.
//!
//! `cargo bench --profile dev --workspace --bench proximity_grid`, after `cargo build --workspace` (the host serves the
//! reader of `examples/reader`).
//!
//! Proximity's implementation needs a nightly compiler and is in no registry; [`Proximity`] is its Algorithm 1, literally.
//! Both get the same vectors and searches in the same order. The vectors have length 10, as those of an encoder that
//! does not normalise, so that the tolerances, from 0 to 10, mean something. The reader is asked the question without
//! its variant's words, which it has not learnt; each question with each list of documents is asked once.

use foreword_benches::embedded;
use foreword_ordering::random::Random;
use foreword_retrieval::Embedder;
use foreword_similarity::{Eviction, Metric, RawSimilarity, SimilarityCache, SimilarityConfig};
use foreword_tests::http::{exchange, post};
use foreword_tests::{Host, artifacts};
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};

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
const CAPACITIES: [usize; 5] = [10, 50, 100, 200, 300];
const SYSTEM: &str = "Answer the question from the documents, with the answer alone and in as few words as possible.";

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
    right: u32,
}

fn main() {
    let world = artifacts::repository().join("examples/reader/world");
    let documents = lines(&world.join("documents.jsonl"));
    let questions: Vec<Value> = (lines(&world.join("questions.jsonl")).into_iter())
        .filter(|question| question["answer"].is_string())
        .take(QUESTIONS)
        .collect();
    let embedder = embedded::embedder();
    let mut queries = queries(&*embedder, &documents, &questions);
    Random::new(1).shuffle(&mut queries);
    let model = artifacts::repository().join("examples/reader");
    let host = Host::start(&model, &["--name", "reader"]).expect("the host is built");
    let mut reader = Reader {
        host,
        documents: (documents.iter())
            .map(|document| (text(&document["id"]), document.clone()))
            .collect(),
        answers: HashMap::new(),
    };
    let mut fresh = 0;
    for query in &queries {
        fresh += u32::from(reader.is_right(&questions, query.question, &query.fresh));
    }
    let all = queries.len() as u32;
    println!(
        "{}: {all} queries; with fresh searches {:.1} % of the answers are right\n",
        embedder.name(),
        percent(fresh, all)
    );
    println!("hit rate % / right answers %, Proximity; ours\n");
    print!("| tolerance |");
    for capacity in CAPACITIES {
        print!(" {capacity} entries |");
    }
    println!("\n|{}", " --- |".repeat(CAPACITIES.len() + 1));
    for tolerance in TOLERANCES {
        print!("| {tolerance} |");
        for capacity in CAPACITIES {
            let mut theirs = Proximity {
                tolerance,
                capacity,
                entries: VecDeque::new(),
            };
            let mut ours = ours(tolerance, capacity, queries[0].embedding.len());
            let mut found = [Outcome::default(), Outcome::default()];
            for query in &queries {
                let hit = theirs.lookup(&query.embedding).map(<[String]>::to_vec);
                if hit.is_none() {
                    theirs.insert(&query.embedding, &query.fresh);
                }
                found[0].take(&mut reader, &questions, query, hit);

                let hit = ours.lookup(&query.embedding, 0).expect("an embedding");
                let hit = hit.map(|hit| hit.documents.iter().map(ToString::to_string).collect());
                if hit.is_none() {
                    let inserted = ours.insert(&query.embedding, &query.fresh, None, 0);
                    inserted.expect("an embedding and its documents");
                }
                found[1].take(&mut reader, &questions, query, hit);
            }
            assert_eq!(
                found[0], found[1],
                "Proximity's algorithm and ours differ at {tolerance} and {capacity} entries"
            );
            let shown = found.map(|one| {
                format!(
                    "{:.1} / {:.1}",
                    percent(one.hits, all),
                    percent(one.right, all)
                )
            });
            print!(" {} |", shown.join("; "));
        }
        println!();
    }
    println!("\n{} prompts were answered", reader.answers.len());
}

impl Outcome {
    fn take(
        &mut self,
        reader: &mut Reader,
        questions: &[Value],
        query: &Query,
        hit: Option<Vec<String>>,
    ) {
        self.hits += u32::from(hit.is_some());
        let documents = hit.as_ref().unwrap_or(&query.fresh);
        self.right += u32::from(reader.is_right(questions, query.question, documents));
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

/// The model that answers.
struct Reader {
    host: Host,
    documents: HashMap<String, Value>,
    /// Whether an answer was right, by question and documents.
    answers: HashMap<(usize, Vec<String>), bool>,
}

impl Reader {
    fn is_right(&mut self, questions: &[Value], question: usize, ids: &[String]) -> bool {
        let key = (question, ids.to_vec());
        if let Some(right) = self.answers.get(&key) {
            return *right;
        }
        let mut content = String::new();
        for id in ids {
            let document = &self.documents[id];
            let (title, words) = (text(&document["title"]), text(&document["text"]));
            content.push_str(&format!(
                "<document id=\"{id}\">\n{title}\n\n{words}\n</document>\n"
            ));
        }
        content.push('\n');
        content.push_str(&text(&questions[question]["question"]));
        let body = json!({
            "model": "reader", "temperature": 0, "max_tokens": 24,
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}],
        });
        let request = post(body.to_string().as_bytes());
        // A loaded machine may keep the host from answering in time.
        let mut attempts = (0..20).map(|_| exchange(self.host.address(), &request));
        let response = attempts.find_map(Result::ok).expect("the host answers");
        let answer: Value = serde_json::from_slice(&response.body).expect("an answer");
        let answer = text(&answer["choices"][0]["message"]["content"]);
        let right = plain(&answer) == plain(&text(&questions[question]["answer"]));
        self.answers.insert(key, right);
        right
    }
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
    let text = std::fs::read_to_string(path).expect("the reader's world");
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("lines of JSON")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// An answer without case, punctuation and articles.
fn plain(text: &str) -> String {
    let text = text.to_lowercase();
    let words = text.split(|c: char| !c.is_alphanumeric());
    let words = words.filter(|word| !word.is_empty() && !matches!(*word, "a" | "an" | "the"));
    words.collect::<Vec<_>>().join(" ")
}

fn percent(part: u32, whole: u32) -> f64 {
    100.0 * f64::from(part) / f64::from(whole)
}
