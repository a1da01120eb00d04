//! Dynamic speculative pipelining in a running server: what of a search its chat still waits for, and what guessing costs
//! where there is no time for it (RAGCache, section 5.3 and table 3).
//!
//! `FOREWORD_XQUAD=FILE [FOREWORD_EMBEDDER=DIR] cargo bench -p foreword-benches -- speculation [k=2] [others=200000 [slice=10]]`
//!
//! Four servers as `foreword serve` starts them, with one model of random weights on the CPU, answer XQuAD's questions
//! from its paragraphs in turns: one that guesses, one that guesses and compares ranks (`--speculation ranks`), one
//! that does not guess (`--max-prefill-batch 0`), and one whose search takes no time at all. The search is that of IVF,
//! stage by stage, drawn out to as long as the table says, as if a large store did it elsewhere. With `others`, the
//! search takes its own time: over that many random vectors besides the paragraphs', visiting all clusters; `slice` is the
//! shortest time in milliseconds between two reports of what was found (`--search-slice-ms`). No prompt is cached but by
//! its own guesses: each chat has a salt of its own, which makes it a tenant as well, or opens with a number of its own.
//!
//! *Not overlapped* is the time to the first token beyond that of the server whose search takes none.

use anyhow::{Context, Result, ensure};
use foreword_benches::{Arguments, embedded, xquad};
use foreword_engine::backend::cpu::Precision;
use foreword_engine::backend::cuda::CudaPrecision;
use foreword_engine::cache::EvictionPolicy;
use foreword_engine::engine::{EngineConfig, PrefillBatch};
use foreword_ordering::random::Random;
use foreword_retrieval::index::{Hit, Kind, Metric, Slot};
use foreword_retrieval::store::Stage;
use foreword_retrieval::{
    Ask, Collection, Document, Editor, Query, ScoredDocument, Spec, Store, StoreError, Tuning,
};
use foreword_server::api::Limits;
use foreword_server::device::{Device, DeviceConfig, KvSize};
use foreword_server::model::Model;
use foreword_server::retrieval::{self, pipeline::Compared};
use foreword_server::serve::{Config, Server};
use foreword_server::tiers::Tiers;
use foreword_tests::artifacts::repository;
use foreword_tests::http::{Client, post};
use serde_json::{Value, json};
use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Documents of a chat, unless `k=` says so.
const K: usize = 5;
/// RAGCache's searches take 0.1 to 0.45 s.
const SEARCHES_MS: [u64; 3] = [100, 200, 400];
const QUESTIONS: usize = 24;
const CLIENTS: usize = 8;
/// Clusters of an index with other vectors.
const CLUSTERS: u32 = 128;
const ROUNDS: usize = 12;

pub(crate) fn bench(arguments: &Arguments) -> Result<()> {
    let corpus = match xquad::corpus() {
        Ok(corpus) => corpus,
        Err(reason) => {
            println!("skipped: chats over XQuAD ({reason})");
            return Ok(());
        }
    };
    let (count, rounds) = if arguments.benching {
        (QUESTIONS, ROUNDS)
    } else {
        (2, 1)
    };
    let k = arguments.number("k").unwrap_or(K);
    let others = arguments.number("others").unwrap_or(0);
    let slice = Duration::from_millis(arguments.number("slice").unwrap_or(0));
    let store = Arc::new(Slow::over(&corpus, others, slice)?);
    let instant = Arc::new(Slow::over(&corpus, 0, Duration::ZERO)?);
    let mut questions = questions(&corpus);
    Random::new(3).shuffle(&mut questions);
    let runtime = tokio::runtime::Runtime::new()?;
    let checkpoint = checkpoint()?;
    let house = |store: &Arc<Slow>, max_prefill_batch, compared| {
        let open = House::open(
            checkpoint.path(),
            Arc::clone(store),
            max_prefill_batch,
            compared,
        );
        runtime.block_on(open)
    };
    let houses = [
        house(&store, 4, Compared::Documents)?,
        house(&store, 4, Compared::Ranks)?,
        house(&store, 0, Compared::Documents)?,
        house(&instant, 0, Compared::Documents)?,
    ];

    println!("one chat at a time, {count} questions, {k} documents; means, ms");
    println!(
        "| search | first token with guesses | comparing ranks | without | if the search took no time | not overlapped: with / comparing ranks / without | times shorter: with / comparing ranks |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let searches: &[u64] = if others > 0 { &[0] } else { &SEARCHES_MS };
    for &milliseconds in searches {
        store.takes(Duration::from_millis(milliseconds));
        let mut clients = connect(&houses)?;
        let mut sums = [Duration::ZERO; 4];
        for (number, question) in questions.iter().cycle().take(count + 1).enumerate() {
            for turn in 0..houses.len() {
                let at = (number + turn) % houses.len();
                let first = ask(&mut clients[at], question, k, Tenants::Many)?;
                // The first one of each warms up.
                sums[at] += if number > 0 { first } else { Duration::ZERO };
            }
        }
        let [with, ranks, without, none] = sums.map(|sum| sum.as_secs_f64() * 1e3 / count as f64);
        let search = match milliseconds {
            0 => format!("its own, {:.0}", store.mean_ms()),
            drawn_out => drawn_out.to_string(),
        };
        println!(
            "| {search} ms | {with:.0} | {ranks:.0} | {without:.0} | {none:.0} | {:.0} / {:.0} / {:.0} | {:.1} / {:.1} |",
            with - none,
            ranks - none,
            without - none,
            (without - none) / (with - none).max(1.0),
            (without - none) / (ranks - none).max(1.0)
        );
    }
    println!("\nguesses of that server: {}", houses[0].guesses()?);
    println!("of the one that compares ranks: {}\n", houses[1].guesses()?);
    if others > 0 {
        return Ok(());
    }

    store.takes(Duration::from_millis(SEARCHES_MS[0]));
    for (tenants, named) in [
        (Tenants::Many, "each a tenant's own"),
        (Tenants::One, "all one tenant's"),
    ] {
        println!(
            "\n{CLIENTS} chats at a time, {named}, {rounds} rounds in turns, search {} ms",
            SEARCHES_MS[0]
        );
        println!("| | first token, mean / p95, ms |");
        println!("| --- | --- |");
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..2 * rounds {
            // With and without, then without and with.
            let at = (round / 2 + round) % 2;
            times[at].extend(at_once(houses[2 * at].address, &questions, k, tenants)?);
        }
        let [with, without] = times.map(Waits::of);
        println!("| with guesses | {with} |\n| without | {without} |");
        println!(
            "\nwith guesses over without: {:.2} / {:.2}; guesses of that server so far: {}",
            with.mean / without.mean,
            with.late / without.late,
            houses[0].guesses()?
        );
    }
    Ok(())
}

/// Whose the chats are.
#[derive(Clone, Copy)]
enum Tenants {
    One,
    Many,
}

/// How long first tokens were waited for, in milliseconds.
struct Waits {
    mean: f64,
    /// The 95th percentile.
    late: f64,
}

impl Waits {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        Self {
            mean: milliseconds(times.iter().sum()) / times.len() as f64,
            late: milliseconds(times[times.len() * 95 / 100]),
        }
    }
}

impl Display for Waits {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        write!(to, "{:.0} / {:.0}", self.mean, self.late)
    }
}

fn connect(houses: &[House]) -> Result<Vec<Client>> {
    houses
        .iter()
        .map(|house| Client::connect(house.address))
        .collect()
}

/// A round of chats at a time. The time to each first token.
fn at_once(
    address: SocketAddr,
    questions: &[Vec<f32>],
    k: usize,
    tenants: Tenants,
) -> Result<Vec<Duration>> {
    const EACH: usize = 3;
    std::thread::scope(|scope| {
        let client = |own: Vec<&Vec<f32>>| -> Result<Vec<Duration>> {
            let mut client = Client::connect(address)?;
            own.into_iter()
                .map(|question| ask(&mut client, question, k, tenants))
                .collect()
        };
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let own = questions.iter().skip(number * EACH).take(EACH).collect();
                scope.spawn(move || client(own))
            })
            .collect();
        let mut times = Vec::new();
        for client in clients {
            times.extend(client.join().expect("a client does not panic")?);
        }
        Ok(times)
    })
}

/// The time from the question to the first event of its answer.
fn ask(client: &mut Client, question: &[f32], k: usize, tenants: Tenants) -> Result<Duration> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let salt = match tenants {
        Tenants::One => "all".to_owned(),
        Tenants::Many => number.to_string(),
    };
    let body = json!({
        "stream": true, "max_tokens": 8, "cache_salt": salt,
        "messages": [
            {"role": "system", "content": format!("{number}: answer from the documents.")},
            {"role": "user", "content": "What do they say of it?"}],
        "retrieval": {"embedding": question, "words": false, "k": k, "on_failure": "fail"},
    });
    let request = post(body.to_string().as_bytes());
    let start = Instant::now();
    client.send(&request)?;
    let head = client.head()?;
    let first = client.piece(&head)?;
    let elapsed = start.elapsed();
    let shown = String::from_utf8_lossy(first.as_deref().unwrap_or_default());
    ensure!(
        head.header("x-foreword-retrieved") == Some(&*k.to_string()),
        "{}: {shown}",
        head.status
    );
    while client.piece(&head)?.is_some() {}
    Ok(elapsed)
}

/// A server of the host, with the address that it listens on.
struct House {
    server: Server,
    address: SocketAddr,
}

impl House {
    async fn open(
        model: &Path,
        store: Arc<Slow>,
        max_prefill_batch: u32,
        compared: Compared,
    ) -> Result<Self> {
        let device = DeviceConfig {
            device: Device::Cpu,
            kv: None,
            kv_memory_fraction: 0.9,
            kv_host: KvSize::Tokens(0),
            page_tokens: 16,
            max_step_tokens: None,
            threads: None,
            precision: Precision::Auto,
            cuda_precision: CudaPrecision::Bf16,
            random_weights: Some(1),
        };
        let tiers = Tiers {
            policy: EvictionPolicy::Lru,
            max_documents: None,
            host_replica_share: 0.0,
            disk: None,
            profile: None,
            profile_budget: Duration::ZERO,
        };
        let engine = EngineConfig {
            max_prefill_batch: PrefillBatch::Requests(max_prefill_batch),
            ..EngineConfig::default()
        };
        let model = Model::load(model, None, "m".to_owned(), &device, &tiers, engine)?;
        let server = Server::bind(Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            internal: None,
            connections: foreword_server::connections::Bounds::default(),
            feed_key: None,
            keys: None,
            otlp_endpoint: None,
            limits: Limits {
                max_body_bytes: 1 << 20,
                body_time: Duration::from_secs(60),
                request_timeout: Duration::from_secs(600),
            },
            store: None,
            batches: None,
            drop_in: foreword_server::api::drop_in::DropIn::default(),
            kv_keys: None,
            ordering: foreword_ordering::Config::default(),
            retrieval: retrieval::Config {
                store: Some(store),
                compared,
                ..retrieval::Config::default()
            },
            kv_events: None,
            max_inside: 64,
            grace: Duration::ZERO,
        })
        .await?;
        server.open(model);
        Ok(Self {
            address: server.address(),
            server,
        })
    }

    fn guesses(&self) -> Result<String> {
        let model = self
            .server
            .app()
            .model
            .get()
            .context("it was opened with one")?;
        let stats = model.engine().stats();
        Ok(format!(
            "{} started, {} refused, {} superseded, {} joined while computed",
            stats.speculations_started,
            stats.speculations_refused,
            stats.speculations_superseded,
            stats.speculations_joined
        ))
    }
}

/// The fixture's tokenizer and template, and a shape whose prompts take as long as a search.
fn checkpoint() -> Result<TempDir> {
    const LAYERS: usize = 6;
    let fixture = repository().join("host/engine/fixtures/qwen2");
    let folder = tempfile::tempdir()?;
    for name in [
        "chat_template.jinja",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        std::fs::copy(fixture.join(name), folder.path().join(name)).context(name)?;
    }
    let mut config: Value = serde_json::from_slice(&std::fs::read(fixture.join("config.json"))?)?;
    config["num_hidden_layers"] = json!(LAYERS);
    config["layer_types"] = json!(vec!["full_attention"; LAYERS]);
    config["intermediate_size"] = json!(1_024);
    std::fs::write(folder.path().join("config.json"), config.to_string())?;
    Ok(folder)
}

/// The vectors of XQuAD's questions.
fn questions(corpus: &xquad::Corpus) -> Vec<Vec<f32>> {
    let texts: Vec<&str> = corpus.questions.iter().map(|(text, _)| &**text).collect();
    embedded::vectors(&*embedded::embedder(), &texts)
}

/// A staged search of XQuAD's paragraphs whose duration is set by [`Slow::takes`], in equal parts for its stages; with
/// duration 0 it takes its own time.
struct Slow {
    collection: Collection,
    /// Shortest time between two reports of what was found.
    slice: Duration,
    nanoseconds: AtomicU64,
    /// The searches, and the nanoseconds that they took.
    done: [AtomicU64; 2],
}

impl Slow {
    /// Returns a search over XQuAD's paragraphs and as many `others`, all of whose clusters are visited.
    fn over(corpus: &xquad::Corpus, others: usize, slice: Duration) -> Result<Self> {
        let embedder = embedded::embedder();
        let spec = Spec {
            dimensions: embedder.dimensions(),
            metric: Metric::Cosine,
            kind: Kind::Ivf,
            embedder: embedder.name().to_owned(),
            tuning: match others {
                0 => Tuning::default(),
                _ => Tuning {
                    clusters: Some(CLUSTERS),
                    probes: Some(CLUSTERS),
                    ..Tuning::default()
                },
            },
        };
        let mut editor = Editor::new(Collection::new(spec))?;
        let vectors = embedded::vectors(&*embedder, &corpus.paragraphs);
        for (number, (text, vector)) in corpus.paragraphs.iter().zip(vectors).enumerate() {
            let document = Document {
                id: number.to_string(),
                text: text.clone(),
                ..Document::default()
            };
            editor.put(&document, &vector)?;
        }
        let mut random = Random::new(5);
        for number in 0..others {
            let vector: Vec<f32> = (0..embedder.dimensions())
                .map(|_| random.unit() as f32 - 0.5)
                .collect();
            let document = Document {
                id: format!("other-{number}"),
                text: "Nothing.".to_owned(),
                ..Document::default()
            };
            editor.put(&document, &vector)?;
        }
        Ok(Self {
            collection: editor.finish()?,
            slice,
            nanoseconds: AtomicU64::new(0),
            done: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    fn mean_ms(&self) -> f64 {
        let [count, nanoseconds] = [0, 1].map(|at: usize| self.done[at].load(Ordering::Relaxed));
        nanoseconds as f64 / 1e6 / count.max(1) as f64
    }

    fn takes(&self, time: Duration) {
        self.nanoseconds
            .store(time.as_nanos() as u64, Ordering::Relaxed);
    }

    fn found(&self, hits: &[Hit]) -> Result<Vec<ScoredDocument>, StoreError> {
        let found = self.collection.found(hits);
        found.map_err(|error| StoreError::Unavailable(error.to_string()))
    }
}

impl Store for Slow {
    fn search(&self, ask: &Ask, stage: &mut Stage<'_>) -> Result<Vec<ScoredDocument>, StoreError> {
        let query = Query {
            vector: &ask.vector,
            words: ask.words.as_deref(),
            k: ask.k,
            filters: &ask.filters,
            caller: None,
            slice: self.slice,
        };
        let search = |stage: &mut dyn FnMut(&[Hit]) -> ControlFlow<()>| {
            let hits = self.collection.search(&query, stage);
            hits.map_err(|error| StoreError::Refused(error.to_string()))
        };
        let all = Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed));
        let mut stages = 0_u32;
        if !all.is_zero() {
            search(&mut |_| {
                stages += 1;
                ControlFlow::Continue(())
            })?;
        }
        let (start, mut number) = (Instant::now(), 0);
        let mut before: Vec<Slot> = Vec::new();
        let mut failed = None;
        let hits = search(&mut |hits| {
            number += 1;
            std::thread::sleep((all * number / stages.max(1)).saturating_sub(start.elapsed()));
            let slots: Vec<Slot> = hits.iter().map(|hit| hit.slot).collect();
            if slots == before {
                return ControlFlow::Continue(());
            }
            before = slots;
            match self.found(hits) {
                Ok(found) => stage(&found),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        self.done[0].fetch_add(1, Ordering::Relaxed);
        self.done[1].fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        failed.map_or_else(|| self.found(&hits), Err)
    }

    fn version(&self) -> Result<String, StoreError> {
        Ok("1".to_owned())
    }

    fn embedder(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}
