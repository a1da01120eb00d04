//! Tests `foreword kv-bridge`: the real binary between an engine (scripted, or Foreword's) and a reader of its feed.

use crate::support::client::{JSON, Response, get, send};
use crate::support::engine::{Engine, Event, Form, Hashes, REPEATED, Wire};
use crate::support::process::{CHECKPOINT, Process};
use crate::support::{Options, TestServer, parrot};
use foreword_engine::text::{ChatTemplate, Ending, Tokenizer};
use foreword_ordering::feed::{Batch, Event as PeerUpdate, TenantKey};
use foreword_ordering::{Config, Orderer, Tenant};
use foreword_server::kv::publisher;
use foreword_server::kv::vllm::Encoding;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const SNAPSHOT: &str = "/v1/kv/snapshot";
const EVENTS: &str = "/v1/kv/events";
/// Tokens per block of the scripted engine.
const BLOCK: usize = 16;

fn bridge(engine: &Engine) -> Process {
    bridge_with(engine, &[])
}

fn bridge_with(engine: &Engine, arguments: &[&str]) -> Process {
    let events = format!("tcp://{}", engine.events);
    let replay = engine.replay.map(|replay| format!("tcp://{replay}"));
    let arguments = [&["--topic", "kv-"], arguments].concat();
    bridge_to(
        &events,
        replay.as_deref(),
        Path::new(CHECKPOINT),
        &arguments,
    )
}

/// A bridge that follows these events, for a model called `m` unless the arguments name another.
fn bridge_to(events: &str, replay: Option<&str>, folder: &Path, arguments: &[&str]) -> Process {
    let mut all = vec!["--events", events];
    if let Some(replay) = replay {
        all.extend(["--replay", replay]);
    }
    if !arguments.contains(&"--served-model-name") {
        all.extend(["--served-model-name", "m"]);
    }
    all.extend(arguments);
    Process::start("kv-bridge", folder, &all)
}

/// A request as the gateway forwards it.
struct Request {
    body: String,
    path: String,
    salt: Option<&'static str>,
    /// The prompt's tokens in the engine.
    tokens: Vec<u32>,
    /// Ends of its documents in tokens, in order.
    ends: Vec<u32>,
}

/// A request with four documents, which depend only on the number.
fn request(number: usize, salt: Option<&'static str>) -> Request {
    let documents: Vec<String> = (0..4)
        .map(|at| {
            let text = format!("Part {at} of volume {number} is about a zeppelin. ").repeat(at + 2);
            format!("<document id=\"{number}-{at}\">{text}</document>")
        })
        .collect();
    let content = format!("{}\nWhat is it about?", documents.concat());
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": content}]});
    if let Some(salt) = salt {
        body["cache_salt"] = salt.into();
    }
    let rewritten =
        Orderer::new(Config::default().with_placement(foreword_ordering::policy::Placement::FREE))
            .rewrite(Tenant::named(""), body.to_string().as_bytes())
            .expect("it has documents");
    assert_eq!(rewritten.path.runs[0].documents.len(), 4);
    let folder = Path::new(CHECKPOINT);
    let template = ChatTemplate::load(folder, None).unwrap().unwrap();
    let prompt = template
        .render(&body["messages"], None, None, None, Ending::Answer)
        .unwrap();
    let at: Vec<usize> = documents
        .iter()
        .map(|document| prompt.find(document).unwrap() + document.len())
        .collect();
    let tokenizer = Tokenizer::load(folder).unwrap();
    let (tokens, ends) = tokenizer.encode_counting(&prompt, false, &at).unwrap();
    Request {
        body: body.to_string(),
        path: rewritten.path.to_header().unwrap(),
        salt,
        tokens,
        ends,
    }
}

impl Request {
    /// The event that stores a range of its blocks, numbered from `first` on.
    fn stored(&self, from: usize, to: usize, first: u64) -> Event {
        Event::Stored {
            blocks: (from..to).map(|block| first + block as u64).collect(),
            parent: (from > 0).then(|| first + from as u64 - 1),
            tokens: self.tokens[from * BLOCK..to * BLOCK].to_vec(),
            salt: self.salt,
        }
    }

    /// The event that stores all its blocks.
    fn all_stored(&self, first: u64) -> Event {
        self.stored(0, self.blocks(), first)
    }

    fn blocks(&self) -> usize {
        self.tokens.len() / BLOCK
    }

    /// The number of documents in its first `blocks` blocks; tokens after the last whole page are ignored.
    fn held(&self, blocks: usize) -> usize {
        let pages = self.ends.iter().map(|end| *end as usize / BLOCK);
        pages.filter(|pages| (1..=blocks).contains(pages)).count()
    }

    async fn copy_to(&self, bridge: SocketAddr) {
        let headers = [JSON[0], ("x-foreword-path", &self.path)];
        let answer = send(bridge, "POST", CHAT, &headers, self.body.as_bytes()).await;
        let answer = answer.read().await;
        assert_eq!((answer.status, &*answer.body), (204, &b""[..]));
    }
}

fn batch(response: &Response) -> Batch {
    assert_eq!(response.status, 200, "{}", response.text());
    Batch::read(&response.body, None).expect("a batch")
}

/// The query that waits for what follows a batch.
fn after(batch: &Batch) -> String {
    let (epoch, next) = (batch.epoch.0, batch.next);
    format!("{EVENTS}?wait_ms=60000&epoch={epoch:016x}&since={next}")
}

/// The resident paths, including their beginnings, with their tenants.
async fn held(address: SocketAddr) -> BTreeSet<(TenantKey, u64, Vec<u64>)> {
    let batch = batch(&get(address, SNAPSHOT).await);
    let mut held = BTreeSet::new();
    for event in batch.events {
        let PeerUpdate::Stored {
            tenant,
            scope,
            path,
        } = event
        else {
            panic!("a snapshot holds what is stored")
        };
        let path: Vec<u64> = path.iter().map(|(document, _)| document.0).collect();
        held.extend((1..=path.len()).map(|count| (tenant, scope.0, path[..count].to_vec())));
    }
    held
}

async fn metric(address: SocketAddr, name: &str) -> u64 {
    let text = get(address, "/metrics").await.text().to_owned();
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().expect("a number"))
}

const TAKEN: &str = "foreword_bridge_batches_total{outcome=\"taken\"}";

async fn forgotten(address: SocketAddr, cause: &str) -> u64 {
    metric(
        address,
        &format!("foreword_bridge_forgotten_total{{cause=\"{cause}\"}}"),
    )
    .await
}

/// Waits for a condition that is polled over HTTP.
async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "waited in vain: {what}"
        );
    }
}

async fn until_ready(bridge: SocketAddr) {
    until("it is ready", async || {
        get(bridge, "/readyz").await.status == 200
    })
    .await;
}

async fn until_held(bridge: SocketAddr, count: usize) {
    until(&format!("{count} documents are held"), async || {
        get(bridge, SNAPSHOT).await.status == 200 && held(bridge).await.len() == count
    })
    .await;
}

/// Waits until the bridge follows the engine over its second connection. Events that the engine repeats are known
/// before.
async fn until_connected_again(bridge: SocketAddr) {
    let name = "foreword_bridge_connections_total";
    until("it is connected again", async || {
        metric(bridge, name).await >= 2
    })
    .await;
    assert_eq!(metric(bridge, name).await, 2);
}

/// Publishes until the bridge receives it.
async fn until_heard(engine: &mut Engine, bridge: SocketAddr) {
    let before = metric(bridge, TAKEN).await;
    let heard = async || metric(bridge, TAKEN).await > before;
    engine.until_heard(heard).await;
    until_ready(bridge).await;
}

/// An engine and a connected bridge.
async fn followed(wire: Wire, repeats: bool) -> (Engine, Process) {
    let mut engine = Engine::start(wire, repeats).await;
    let bridge = bridge(&engine);
    until_heard(&mut engine, bridge.internal).await;
    (engine, bridge)
}

#[tokio::test]
async fn the_feed_tells_which_documents_the_engines_blocks_hold_in_whatever_form_it_tells_them() {
    let request = request(1, None);
    let all = request.blocks();
    assert!(request.held(3) < request.held(all));
    for wire in [
        Wire::TODAY,
        Wire {
            form: Form::Map,
            hashes: Hashes::Bytes,
        },
        Wire {
            form: Form::Array,
            hashes: Hashes::Signed,
        },
        Wire {
            form: Form::Array,
            hashes: Hashes::Unsigned,
        },
    ] {
        let (mut engine, bridge) = followed(wire, false).await;
        // Some blocks are stored before the request arrives, the rest after it.
        engine.publish(&[request.stored(0, 3, 100), Event::Future]);
        request.copy_to(bridge.address).await;
        until_held(bridge.internal, request.held(3)).await;
        engine.publish(&[request.stored(3, all, 100)]);
        until_held(bridge.internal, request.held(all)).await;

        let told = batch(&get(bridge.internal, SNAPSHOT).await);
        assert_eq!((told.reset, &*told.model), (true, "m"), "{wire:?}");
        let PeerUpdate::Stored { path, .. } = &told.events[0] else {
            panic!("{told:?}")
        };
        let fingerprints: Vec<String> = path
            .iter()
            .map(|(document, _)| format!("{:016x}", document.0))
            .collect();
        assert!(request.path.ends_with(&fingerprints.join(",")), "{wire:?}");

        // A waiting reader is notified when the engine drops a block.
        let query = after(&told);
        engine.publish(&[Event::Removed(vec![102])]);
        let news = batch(&get(bridge.internal, &query).await);
        assert!(
            matches!(news.events[0], PeerUpdate::Removed { .. }),
            "{wire:?}: {news:?}"
        );
        until_held(bridge.internal, request.held(2)).await;
        engine.publish(&[Event::Cleared]);
        until_held(bridge.internal, 0).await;
    }
}

#[tokio::test]
async fn a_bridge_that_comes_late_asks_for_what_it_missed() {
    let request = request(1, None);
    let mut engine = Engine::start(Wire::TODAY, true).await;
    engine.lose(&[request.stored(0, 3, 100)]);
    engine.lose(&[request.stored(3, request.blocks(), 100)]);
    let bridge = bridge(&engine);
    until_ready(bridge.internal).await;
    request.copy_to(bridge.address).await;
    until_held(bridge.internal, 4).await;
}

#[tokio::test]
async fn what_is_dropped_of_a_long_answer_is_asked_for_again() {
    let request = request(1, None);
    let mut engine = Engine::start(Wire::TODAY, true).await;
    for block in 0..request.blocks() {
        engine.lose(&[request.stored(block, block + 1, 100)]);
        for _ in 0..REPEATED / 2 {
            engine.lose(&[]);
        }
    }
    let bridge = bridge(&engine);
    until_ready(bridge.internal).await;
    request.copy_to(bridge.address).await;
    until_held(bridge.internal, 4).await;
    assert_eq!(forgotten(bridge.internal, "gap").await, 0);
    assert!(metric(bridge.internal, "foreword_bridge_replays_total").await > 5);
}

#[tokio::test]
async fn a_gap_is_closed_where_the_engine_repeats_what_was_missed() {
    let request = request(1, None);
    let (mut engine, bridge) = followed(Wire::TODAY, true).await;
    request.copy_to(bridge.address).await;
    engine.lose(&[request.stored(0, 3, 100)]);
    engine.publish(&[request.stored(3, request.blocks(), 100)]);
    until_held(bridge.internal, 4).await;
    // A loss that no later batch shows is detected while the engine is silent.
    engine.lose(&[Event::Removed(vec![100])]);
    until_held(bridge.internal, 0).await;
    for cause in ["gap", "restart", "disconnected", "unreadable"] {
        assert_eq!(forgotten(bridge.internal, cause).await, 0, "{cause}");
    }
}

#[tokio::test]
async fn a_gap_that_cannot_be_closed_leaves_nothing_known_but_what_follows() {
    let (first, second) = (request(1, None), request(2, None));
    for repeats in [false, true] {
        let (mut engine, bridge) = followed(Wire::TODAY, repeats).await;
        first.copy_to(bridge.address).await;
        engine.publish(&[first.all_stored(100)]);
        until_held(bridge.internal, 4).await;
        let epoch = batch(&get(bridge.internal, SNAPSHOT).await).epoch;

        engine.lose(&[Event::Removed(vec![100])]);
        // Its replay buffer no longer has the missed events.
        engine.forget();
        engine.publish(&[second.all_stored(200)]);
        until_held(bridge.internal, 0).await;
        second.copy_to(bridge.address).await;
        until_held(bridge.internal, 4).await;
        assert_ne!(batch(&get(bridge.internal, SNAPSHOT).await).epoch, epoch);
        let causes = [("gap", !repeats), ("restart", repeats)];
        for (cause, expected) in causes {
            let found = forgotten(bridge.internal, cause).await > 0;
            assert_eq!(found, expected, "{cause}, repeats: {repeats}");
        }
    }
}

#[tokio::test]
async fn an_engine_that_was_restarted_holds_nothing_of_before() {
    let (first, second) = (request(1, None), request(2, None));
    for (repeats, more) in [(false, 0), (true, 0), (true, 50)] {
        let (mut engine, bridge) = followed(Wire::TODAY, repeats).await;
        first.copy_to(bridge.address).await;
        engine.publish(&[first.all_stored(100)]);
        until_held(bridge.internal, 4).await;

        let mut engine = engine.restart().await;
        // Sequence numbers that continue as if nothing had happened do not deceive it.
        for _ in 0..more * u64::from(repeats) {
            engine.lose(&[]);
        }
        let blocks = second.all_stored(200);
        if repeats {
            engine.publish(std::slice::from_ref(&blocks));
        }
        until_held(bridge.internal, 0).await;
        if !repeats {
            until_heard(&mut engine, bridge.internal).await;
            engine.publish(&[blocks]);
        }
        second.copy_to(bridge.address).await;
        until_held(bridge.internal, 4).await;
        until_connected_again(bridge.internal).await;
    }
}

#[tokio::test]
async fn a_lost_connection_loses_nothing_where_the_engine_repeats() {
    let request = request(1, None);
    let (mut engine, bridge) = followed(Wire::TODAY, true).await;
    request.copy_to(bridge.address).await;
    engine.publish(&[request.stored(0, 3, 100)]);
    until_held(bridge.internal, request.held(3)).await;
    let mut engine = engine.disconnect().await;
    engine.lose(&[request.stored(3, request.blocks(), 100)]);
    until_held(bridge.internal, 4).await;
    until_connected_again(bridge.internal).await;
    assert_eq!(forgotten(bridge.internal, "restart").await, 0);
}

#[tokio::test]
async fn a_batch_that_cannot_be_read_may_have_said_anything() {
    let request = request(1, None);
    let (mut engine, bridge) = followed(Wire::TODAY, true).await;
    request.copy_to(bridge.address).await;
    engine.publish(&[request.all_stored(100)]);
    until_held(bridge.internal, 4).await;
    engine.publish_garbage();
    until_held(bridge.internal, 0).await;
    assert_eq!(forgotten(bridge.internal, "unreadable").await, 1);
    // It continues with the next one.
    let request = self::request(2, None);
    request.copy_to(bridge.address).await;
    engine.publish(&[request.all_stored(200)]);
    until_held(bridge.internal, 4).await;
}

#[tokio::test]
async fn a_tenants_blocks_are_told_as_its_own() {
    let (mut engine, bridge) = followed(Wire::TODAY, false).await;
    let [nobody, crimson, azure] =
        [None, Some("crimson"), Some("azure")].map(|salt| request(1, salt));
    // One tenant's blocks, and the same text without a salt.
    engine.publish(&[crimson.all_stored(100)]);
    for request in [&nobody, &azure, &crimson] {
        request.copy_to(bridge.address).await;
    }
    until_held(bridge.internal, 4).await;
    let is_crimson =
        |(tenant, _, _): &(TenantKey, u64, Vec<u64>)| *tenant == TenantKey::of("crimson");
    assert!(held(bridge.internal).await.iter().all(is_crimson));
    engine.publish(&[nobody.all_stored(200)]);
    until_held(bridge.internal, 8).await;

    let of = async |tenant: TenantKey| {
        let path = format!("{SNAPSHOT}?tenant={tenant}");
        batch(&get(bridge.internal, &path).await).events.len()
    };
    assert_eq!(of(TenantKey::of("crimson")).await, 1);
    assert_eq!(of(TenantKey::of("azure")).await, 0);
    assert!(
        !get(bridge.internal, SNAPSHOT)
            .await
            .text()
            .contains("crimson")
    );
}

#[tokio::test]
async fn a_copy_is_answered_at_once_and_counted_whatever_it_is() {
    let engine = Engine::start(Wire::TODAY, false).await;
    let bridge = bridge_with(&engine, &["--served-model-name", "m", "alias"]);
    let good = request(1, None);
    let with_model = |model: &str| {
        let mut body: Value = serde_json::from_str(&good.body).unwrap();
        body["model"] = model.into();
        body.to_string()
    };
    let (alias, lora) = (with_model("alias"), with_model("lora"));
    let path = Some(&*good.path);
    for (route, body, path, outcome) in [
        (CHAT, &*good.body, path, "followed"),
        (CHAT, &*alias, path, "followed"),
        (CHAT, &*good.body, None, "no_documents"),
        (CHAT, &*good.body, Some("2;what?"), "no_documents"),
        (CHAT, &*lora, path, "other_model"),
        (CHAT, "{\"messages\": 3}", path, "unreadable"),
        ("/v1/embeddings", "{}", None, "no_documents"),
    ] {
        let name = format!("foreword_bridge_copies_total{{outcome=\"{outcome}\"}}");
        let before = metric(bridge.internal, &name).await;
        let mut headers = JSON.to_vec();
        headers.extend(path.map(|path| ("x-foreword-path", path)));
        let answer = send(bridge.address, "POST", route, &headers, body.as_bytes()).await;
        assert_eq!(answer.read().await.status, 204, "{outcome}");
        until(outcome, async || {
            metric(bridge.internal, &name).await == before + 1
        })
        .await;
    }
    let placed = "foreword_document_paths_total{outcome=\"placed\"}";
    assert_eq!(metric(bridge.internal, placed).await, 2);
    let headers = [JSON[0], ("x-foreword-path", &good.path)];
    let large = vec![b' '; (8 << 20) + 1];
    let answer = send(bridge.address, "POST", CHAT, &headers, &large).await;
    answer.read().await.error(413, "body_too_large", None);
}

#[tokio::test]
async fn the_feed_waits_for_the_engine_and_asks_for_its_keys() {
    let engine = Engine::start(Wire::TODAY, false).await;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "clients").unwrap();
    let mut kv_file = tempfile::NamedTempFile::new().unwrap();
    writeln!(kv_file, "gateways").unwrap();
    let path = |file: &tempfile::NamedTempFile| file.path().to_str().unwrap().to_owned();
    let (file, kv_file) = (path(&file), path(&kv_file));
    let address = engine.events;
    let events = format!("tcp://{address}");
    // No engine listens there yet.
    drop(engine);
    let keys = ["--api-key-file", &file, "--kv-key-file", &kv_file];
    let bridge = bridge_to(&events, None, Path::new(CHECKPOINT), &keys);
    let read = async |key: &str| {
        let key = format!("Bearer {key}");
        let headers = [("authorization", &*key)];
        send(bridge.internal, "GET", SNAPSHOT, &headers, b"")
            .await
            .read()
            .await
    };
    read("gateways").await.error(503, "loading", None);
    assert_eq!(get(bridge.internal, "/readyz").await.status, 503);
    assert_eq!(get(bridge.internal, "/healthz").await.status, 200);

    let _engine = Engine::at(Wire::TODAY, address).await;
    until_ready(bridge.internal).await;
    assert_eq!(read("gateways").await.status, 200);
    read("clients").await.error(401, "invalid_api_key", None);
    let copy = send(bridge.address, "POST", CHAT, &JSON, b"{}")
        .await
        .read()
        .await;
    copy.error(401, "invalid_api_key", None);
    let headers = [JSON[0], ("authorization", "Bearer clients")];
    let copy = send(bridge.address, "POST", CHAT, &headers, b"{}").await;
    assert_eq!(copy.read().await.status, 204);
}

#[tokio::test]
async fn a_signal_ends_it_while_a_reader_waits_and_its_log_holds_no_text() {
    let request = request(1, Some("of-a-tenant"));
    let (mut engine, mut bridge) = followed(Wire::TODAY, false).await;
    request.copy_to(bridge.address).await;
    engine.publish(&[request.all_stored(100)]);
    until_held(bridge.internal, 4).await;
    let told = batch(&get(bridge.internal, SNAPSHOT).await);
    let query = after(&told);
    let address = bridge.internal;
    let waiting = tokio::spawn(async move { get(address, &query).await });
    let readers = "foreword_http_requests_total{route=\"/v1/kv/events\",status=\"200\"}";
    assert_eq!(metric(address, readers).await, 0);
    bridge.signal("TERM");
    assert_eq!(bridge.exit().await.code(), Some(0));
    assert_eq!(batch(&waiting.await.unwrap()).events, []);
    let (rest, log) = bridge.output();
    assert_eq!(rest, "", "two lines on standard output");
    for text in ["zeppelin", "of-a-tenant", "What is it about"] {
        assert!(!log.contains(text), "{text:?} is in the log:\n{log}");
    }
}

/// A publisher with Python's ZeroMQ and msgpack, which vLLM uses.
struct Publisher {
    process: std::process::Child,
    stdin: std::process::ChildStdin,
    /// Ports for events and for replay.
    ports: Vec<String>,
}

impl Publisher {
    fn start(modules: &Path, arguments: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http/kv_publisher.py");
        let mut process = std::process::Command::new("python3")
            .arg(script)
            .args(arguments)
            .env("PYTHONPATH", modules)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let stdin = process.stdin.take().unwrap();
        let mut ports = String::new();
        std::io::BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut ports)
            .unwrap();
        let ports: Vec<String> = ports.split_whitespace().map(str::to_owned).collect();
        assert_eq!(ports.len(), 2, "two ports, got {ports:?}");
        Self {
            process,
            stdin,
            ports,
        }
    }

    /// Publishes a batch. With the prefix `-`, the batch is only stored for replay.
    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    fn end(mut self) {
        drop(self.stdin);
        assert!(self.process.wait().unwrap().success());
    }
}

#[tokio::test]
async fn what_vllms_own_libraries_publish_is_followed() {
    let Some(modules) = crate::kv_zmq::modules() else {
        return;
    };
    let request = request(1, Some("mine"));
    for (form, hashes) in [("map", "bytes"), ("map", "int"), ("array", "int")] {
        let mut engine = Publisher::start(&modules, &[form, hashes]);
        let [events, replay] = [0, 1].map(|at| format!("tcp://127.0.0.1:{}", engine.ports[at]));
        let bridge = bridge_to(&events, Some(&replay), Path::new(CHECKPOINT), &[]);
        let stored = |from: usize, to: usize| {
            let hash = |block: usize| (1_u64 << 63) + block as u64;
            let event = json!([["BlockStored", {
                "block_hashes": (from..to).map(hash).collect::<Vec<_>>(),
                "parent_block_hash": (from > 0).then(|| hash(from - 1)),
                "token_ids": &request.tokens[from * BLOCK..to * BLOCK],
                "block_size": BLOCK,
                "extra_keys": (from..to).map(|block| (block == 0).then_some(["mine"])).collect::<Vec<_>>(),
            }]]);
            event.to_string()
        };
        until_ready(bridge.internal).await;
        // One batch is sent, the other only available for replay.
        engine.tell(&stored(0, 3));
        engine.tell(&format!("-{}", stored(3, request.blocks())));
        request.copy_to(bridge.address).await;
        until_held(bridge.internal, 4).await;
        // The engine is killed and replaced by another.
        engine.process.kill().unwrap();
        engine.process.wait().unwrap();
        let [publish, replay] = [0, 1].map(|at| &*engine.ports[at]);
        let mut engine = Publisher::start(&modules, &[form, hashes, publish, replay]);
        engine.tell(&format!("-{}", stored(0, 3)));
        until_held(bridge.internal, 0).await;
        until_connected_again(bridge.internal).await;
        request.copy_to(bridge.address).await;
        engine.tell(&stored(3, request.blocks()));
        until_held(bridge.internal, 4).await;
        engine.tell(&json!([["AllBlocksCleared", {}]]).to_string());
        until_held(bridge.internal, 0).await;
        engine.end();
    }
}

/// Foreword's engine publishes vLLM's events and its own feed; the bridge must agree with the feed.
#[tokio::test]
async fn the_bridge_behind_our_own_engine_tells_what_the_engine_tells() {
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let house = TestServer::with(Options {
        kv_events: Some(publisher::Config {
            listen: local,
            replay: Some(local),
            topic: "kv-events".to_owned(),
            encoding: Encoding::Map,
        }),
        name: "m".to_owned(),
        ..Options::default()
    })
    .await;
    let sockets = house.kv_events().expect("events are published");
    let events = format!("tcp://{}", sockets.address);
    let replay = format!("tcp://{}", sockets.replay.expect("a replay socket"));
    let folder = tempfile::TempDir::new().unwrap();
    parrot::write_checkpoint(folder.path(), Some(parrot::TEMPLATE));
    let bridge = bridge_to(&events, Some(&replay), folder.path(), &[]);
    until_ready(bridge.internal).await;
    let mut orderer =
        Orderer::new(Config::default().with_placement(foreword_ordering::policy::Placement::FREE));
    let block = |id: usize| format!("<doc id={id}>{}</doc>", format!("text of {id} ").repeat(4));
    for (ids, salt) in [
        (&[0, 1, 2][..], None),
        (&[0, 1, 3], None),
        (&[0, 1, 2], Some("mine")),
        (&[4, 2], Some("mine")),
    ] {
        let blocks: String = ids.iter().map(|id| block(*id)).collect();
        let content = format!("{blocks} say(yes)");
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": content}]});
        if let Some(salt) = salt {
            body["cache_salt"] = salt.into();
        }
        let body = body.to_string();
        let rewrite = orderer.rewrite(Tenant::named(salt.unwrap_or_default()), body.as_bytes());
        let rewrite = rewrite.unwrap();
        let body = rewrite.body.unwrap_or(body.into_bytes());
        let header = rewrite.path.to_header().unwrap();
        let headers = [JSON[0], ("x-foreword-path", &*header)];
        for (address, status) in [(house.address(), 200), (bridge.address, 204)] {
            let answer = send(address, "POST", CHAT, &headers, &body).await;
            assert_eq!(answer.read().await.status, status);
        }
    }
    let own = held(house.internal()).await;
    assert!(own.len() > 5, "{own:?}");
    until("both say the same", async || {
        held(bridge.internal).await == own
    })
    .await;
    let model = house.app().model.get().expect("the model is there");
    assert!(model.engine().clear_cache() > 0);
    until_held(bridge.internal, 0).await;
}
