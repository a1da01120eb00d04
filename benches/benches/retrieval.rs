//! Staged search: how much of the exact answer IVF and HNSW find with their defaults, how early the final answer is
//! found, and the benefit and cost of speculating on it.
//!
//! `[FOREWORD_INDEX=FILE] [FOREWORD_XQUAD=FILE [FOREWORD_EMBEDDER=DIR]] cargo bench -p foreword-benches --
//! retrieval [indexes|large|load]`
//!
//! `indexes` searches the vectors of an index file that `foreword ingest` made, or else XQuAD's sentences and
//! paragraphs with XQuAD's questions, or else a seeded mixture. `large` searches a mixture five times as large. Where
//! there are no questions, some of the vectors serve as questions, each excluded from its own answers. `load` runs the
//! real engine on a device whose steps take as long as a formula says, with the stages that the searches of `indexes`
//! had.

use foreword_benches::simulated::{Costs, House, prompt};
use foreword_benches::{Arguments, embedded, xquad};
use foreword_engine::engine::{
    EngineConfig, Event, Generation, Kind, Request, SpeculationId, Stats,
};
use foreword_ordering::random::Random;
use foreword_retrieval::index::{
    Flat, Hnsw, HnswOptions, Index, Ivf, IvfOptions, Metric, Slot, Vectors,
};
use foreword_retrieval::{Collection, Embedder};
use std::path::Path;
use std::time::{Duration, Instant};

const QUESTIONS: usize = 500;

pub(crate) fn bench(arguments: &Arguments) {
    if arguments.has("large") {
        let vectors = mixture(100_000);
        indexes("a mixture of 200 clusters", &vectors, &themselves(&vectors));
    }
    if !arguments.has("indexes") && !arguments.has("load") {
        return;
    }
    let index = std::env::var_os("FOREWORD_INDEX");
    let collection = index.map(|path| Collection::open(Path::new(&path)).expect("an index file"));
    let (name, made, questions) = match (&collection, xquad::corpus()) {
        (Some(collection), _) => {
            let name = format!("an index by {}", collection.spec().embedder);
            (name, None, themselves(collection.vectors()))
        }
        (None, Ok(corpus)) => {
            let embedder = embedded::embedder();
            let (vectors, questions) = asked(&corpus, &*embedder);
            let name = format!("XQuAD's sentences and paragraphs by {}", embedder.name());
            (name, Some(vectors), questions)
        }
        (None, Err(_)) => {
            let vectors = mixture(20_000);
            let questions = themselves(&vectors);
            (
                "a mixture of 200 clusters".to_owned(),
                Some(vectors),
                questions,
            )
        }
    };
    let vectors = made
        .as_ref()
        .or(collection.as_ref().map(Collection::vectors));
    let vectors = vectors.expect("the one or the other");
    if arguments.has("indexes") {
        indexes(&name, vectors, &questions);
    }
    if arguments.has("load") {
        load(vectors, &questions);
    }
}

/// A question to search for.
struct Question {
    /// The question's vector, prepared for the search.
    vector: Vec<f32>,
    /// The slot of the vector itself, which is excluded from its answers.
    own: Option<Slot>,
}

/// Returns some of the vectors as questions, evenly spread.
fn themselves(vectors: &Vectors) -> Vec<Question> {
    let step = (vectors.len() / QUESTIONS).max(1);
    let slots = (0..vectors.len() as u32).step_by(step).map(Slot);
    let question = |slot| Question {
        vector: vectors.row(slot).to_vec(),
        own: Some(slot),
    };
    slots.map(question).collect()
}

/// Returns XQuAD's paragraphs and their sentences, and its questions.
fn asked(corpus: &xquad::Corpus, embedder: &dyn Embedder) -> (Vectors, Vec<Question>) {
    let sentences = corpus.paragraphs.iter().flat_map(|text| text.split(". "));
    let texts: Vec<&str> = (corpus.paragraphs.iter().map(String::as_str))
        .chain(sentences.filter(|text| text.contains(char::is_alphanumeric)))
        .collect();
    let mut vectors = Vectors::new(embedder.dimensions(), Metric::Cosine);
    for vector in embedded::vectors(embedder, &texts) {
        vectors.push(&vector).expect("an embedding");
    }
    let questions: Vec<&str> = corpus.questions.iter().map(|(text, _)| &**text).collect();
    let question = |vector: Vec<f32>| Question {
        vector: vectors.prepare(&vector).expect("an embedding"),
        own: None,
    };
    let questions = embedded::vectors(embedder, &questions).into_iter();
    let questions = questions.map(question).collect();
    (vectors, questions)
}

/// Returns points around 200 centres, each as far from its centre as centres are from each other.
fn mixture(count: usize) -> Vectors {
    const DIMENSIONS: usize = 384;
    /// Number of directions in which points differ, because texts use only few of their embedding's.
    const INNER: usize = 24;
    let mut random = Random::new(11);
    let mut normals = |count: usize| -> Vec<f32> {
        let mut normal = || (0..6).map(|_| random.unit() as f32).sum::<f32>() - 3.0;
        (0..count).map(|_| normal()).collect()
    };
    let axes: Vec<Vec<f32>> = (0..INNER).map(|_| normals(DIMENSIONS)).collect();
    let centres: Vec<Vec<f32>> = (0..200).map(|_| normals(INNER)).collect();
    let mut vectors = Vectors::new(DIMENSIONS as u32, Metric::Cosine);
    for at in 0..count {
        let offset = normals(INNER);
        let inner = centres[at % centres.len()]
            .iter()
            .zip(offset)
            .map(|(a, b)| a + b);
        let mut point = vec![0.0; DIMENSIONS];
        for (inner, axis) in inner.zip(&axes) {
            for (value, axis) in point.iter_mut().zip(axis) {
                *value += inner * axis;
            }
        }
        vectors.push(&point).expect("a point");
    }
    vectors
}

/// The record of one staged search.
struct Search {
    /// The best slots after every stage.
    stages: Vec<Vec<Slot>>,
    /// Time at which each stage ended.
    ends: Vec<Duration>,
}

impl Search {
    fn of(index: &dyn Index, vectors: &Vectors, question: &Question, k: usize) -> Self {
        let keep = |slot: Slot| Some(slot) != question.own;
        let start = Instant::now();
        let mut search = index.search(vectors, &question.vector, k, &keep);
        let mut this = Self {
            stages: Vec::new(),
            ends: Vec::new(),
        };
        while search.advance() {
            this.ends.push(start.elapsed());
            this.stages
                .push(search.top().iter().map(|hit| hit.slot).collect());
        }
        this
    }

    /// Returns the first stage after which the answer no longer changes, counted from 0.
    fn settled(&self) -> usize {
        let last = self.stages.last();
        let changed = self.stages.iter().rposition(|stage| Some(stage) != last);
        changed.map_or(0, |stage| stage + 1)
    }

    fn settled_share(&self) -> f64 {
        (self.settled() + 1) as f64 / self.stages.len() as f64
    }
}

fn indexes(name: &str, vectors: &Vectors, questions: &[Question]) {
    println!(
        "{} vectors of {} dimensions: {name}; {} questions\n",
        vectors.len(),
        vectors.dimensions(),
        questions.len()
    );
    let ivf = Ivf::build(vectors, IvfOptions::for_count(vectors.len()));
    let start = Instant::now();
    let hnsw = Hnsw::build(vectors, HnswOptions::default());
    println!("HNSW built in {:.1} s\n", start.elapsed().as_secs_f64());
    // RAGCache's search ratios: the share of the clusters that a search visits.
    let ratios = [
        ("IVF, an eighth", 8),
        ("IVF, a quarter", 4),
        ("IVF, half", 2),
        ("IVF, every cluster", 1),
    ];
    let ratios = ratios.map(|(name, part)| {
        let options = IvfOptions::for_count(vectors.len());
        let probes = options.clusters.div_ceil(part);
        (name, Ivf::build(vectors, IvfOptions { probes, ..options }))
    });
    println!(
        "| index | k | recall | µs | stages | final in the first 13 % | settled after, mean share of stages | not overlapped: without / with speculation |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut rows: Vec<(&str, &dyn Index)> =
        vec![("IVF, defaults", &ivf), ("HNSW, defaults", &hnsw)];
    rows.extend(
        ratios
            .iter()
            .map(|(name, index)| (*name, index as &dyn Index)),
    );
    rows.push(("flat", &Flat));
    for (name, index) in rows {
        for k in [2, 5, 10] {
            let (mut found, mut early, mut stages, mut shares) = (0, 0, 0, 0.0);
            let (mut whole, mut waited) = (Duration::ZERO, Duration::ZERO);
            for question in questions {
                let keep = |slot: Slot| Some(slot) != question.own;
                let mut exact = Flat.search(vectors, &question.vector, k, &keep);
                while exact.advance() {}
                let exact: Vec<Slot> = exact.top().iter().map(|hit| hit.slot).collect();
                // The quickest of three searches, because others use the machine too.
                let searches = (0..3).map(|_| Search::of(index, vectors, question, k));
                let search = searches
                    .min_by_key(|search| search.ends.last().copied())
                    .expect("three");
                let last = search.stages.last().expect("a stage");
                found += last.iter().filter(|slot| exact.contains(slot)).count();
                early += usize::from(search.settled_share() <= 0.13);
                shares += search.settled_share();
                stages += search.stages.len();
                whole += *search.ends.last().expect("a stage");
                waited += search.ends[search.settled()];
            }
            let count = questions.len() as f64;
            println!(
                "| {name} | {k} | {:.3} | {:.0} | {:.0} | {:.0} % | {:.0} % | {:.1} |",
                found as f64 / (count * k as f64),
                whole.as_secs_f64() * 1e6 / count,
                stages as f64 / count,
                100.0 * early as f64 / count,
                100.0 * shares / count,
                whole.as_secs_f64() / waited.as_secs_f64(),
            );
        }
    }
    println!();
}

/// Duration of a search in `load`; RAGCache's take 0.1 to 0.45 s.
const SEARCH: Duration = Duration::from_millis(300);
const K: usize = 4;
const DOCUMENT_TOKENS: u32 = 512;
const REQUESTS: usize = 400;

/// An event in `load`.
enum What {
    Guess(Vec<Slot>),
    Chat(Vec<Slot>),
}

/// Measures the time to the first token at several rates of arrival, with and without speculation.
fn load(vectors: &Vectors, questions: &[Question]) {
    let ivf = Ivf::build(vectors, IvfOptions::for_count(vectors.len()));
    let searches: Vec<Search> = questions
        .iter()
        .map(|question| Search::of(&ivf, vectors, question, K))
        .collect();
    println!(
        "{K} documents of {DOCUMENT_TOKENS} tokens, a search of {} ms, Mistral 7B on an A10G by formula",
        SEARCH.as_millis()
    );
    println!(
        "| requests/s | TTFT without, mean / p95, s | with | ratio of means | guesses started, refused, joined, ended for others, per request |"
    );
    println!("| --- | --- | --- | --- | --- |");
    for rate in [0.1, 0.5, 1.0, 1.5, 2.0, 3.0] {
        let (without, _) = serve(&searches, rate, false);
        let (with, stats) = serve(&searches, rate, true);
        let share = |count: u64| count as f64 / REQUESTS as f64;
        println!(
            "| {rate} | {:.3} / {:.3} | {:.3} / {:.3} | {:.2} | {:.2}, {:.2}, {:.2}, {:.2} |",
            mean(&without),
            tail(&without),
            mean(&with),
            tail(&with),
            mean(&with) / mean(&without),
            share(stats.speculations_started),
            share(stats.speculations_refused),
            share(stats.speculations_joined),
            share(stats.speculations_superseded + stats.speculations_cancelled),
        );
    }
}

fn serve(searches: &[Search], rate: f64, speculates: bool) -> (Vec<f64>, Stats) {
    let config = EngineConfig {
        max_waiting: 100_000,
        max_step_tokens: 2_048,
        ..EngineConfig::default()
    };
    let mut house = House::new(Costs::MISTRAL_7B_A10G, 200_000, &config);
    let mut random = Random::new(5);
    let mut events: Vec<(Duration, usize, What)> = Vec::new();
    let mut arrivals = Vec::new();
    let mut time = 0.0;
    for number in 0..REQUESTS {
        time -= (1.0 - random.unit()).ln() / rate;
        let arrival = Duration::from_secs_f64(time);
        arrivals.push(arrival);
        let search = &searches[number % searches.len()];
        let mut before: &[Slot] = &[];
        for (at, stage) in search.stages.iter().enumerate() {
            let share = (at + 1) as f64 / search.stages.len() as f64;
            let when = arrival + SEARCH.mul_f64(share);
            if speculates && stage.len() == K && *stage != before {
                events.push((when, number, What::Guess(stage.clone())));
            }
            before = stage;
        }
        events.push((arrival + SEARCH, number, What::Chat(before.to_vec())));
    }
    events.sort_by_key(|(when, _, _)| *when);
    let mut first_tokens = vec![0.0; REQUESTS];
    let mut guesses: Vec<Option<Generation>> = (0..REQUESTS).map(|_| None).collect();
    let mut open: Vec<(usize, Generation)> = Vec::new();
    let mut events = events.into_iter().peekable();
    loop {
        while let Some((_, number, what)) = events.next_if(|(when, _, _)| *when <= house.now()) {
            let (kind, documents) = match what {
                What::Guess(documents) => {
                    // Its documents have changed: it ends, whether or not this one is taken.
                    guesses[number] = None;
                    (Kind::Prefill, documents)
                }
                What::Chat(documents) => (Kind::Answer, documents),
            };
            let documents = documents
                .iter()
                .map(|slot| (u64::from(slot.0), DOCUMENT_TOKENS));
            let generation = house.submit(Request {
                kind,
                prompt: prompt(documents, number as u64),
                max_tokens: 32,
                speculation: speculates.then_some(SpeculationId(number as u64)),
                ..Request::default()
            });
            match (kind, generation) {
                (Kind::Prefill, generation) => {
                    if let Ok(generation) = generation {
                        guesses[number] = Some(generation);
                    }
                }
                (Kind::Answer, generation) => open.push((number, generation.expect("room"))),
            }
        }
        if house.stepper().is_idle() {
            match events.peek() {
                Some((when, _, _)) => house.sleep_until(*when),
                None => break,
            }
            continue;
        }
        house.step();
        let now = house.now();
        open.retain_mut(|(number, generation)| {
            while let Some(event) = generation.try_next() {
                match event {
                    Event::Token { .. } if first_tokens[*number] == 0.0 => {
                        first_tokens[*number] = (now - arrivals[*number]).as_secs_f64();
                    }
                    Event::Finished(_) => return false,
                    Event::Failed(failure) => panic!("{failure}"),
                    _ => {}
                }
            }
            true
        });
    }
    (first_tokens, house.stepper().stats())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn tail(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() * 95 / 100]
}
