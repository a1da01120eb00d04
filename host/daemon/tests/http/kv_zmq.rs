//! Tests vLLM's KV events over ZeroMQ, read by Python's pyzmq and msgspec with vLLM's own types (`kv_subscriber.py`).
//! `cargo xtask setup` installs both; without them the tests are skipped, with a message.

use crate::support::{Options, TestServer};
use foreword_engine::cache::{CacheEvent, PageHash, Tier};
use foreword_ordering::feed::TenantKey;
use foreword_server::kv::publisher;
use foreword_server::kv::vllm::Encoding;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A process of Python's pyzmq that subscribes to the host's KV events and prints each as a line.
struct Subscriber {
    lines: Lines<BufReader<ChildStdout>>,
    stdin: ChildStdin,
    _process: Child,
}

/// Returns the folder of pyzmq and msgspec; `None`, with a message, if `cargo xtask setup` has not installed them.
pub(crate) fn modules() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/python");
    let there = folder.join("zmq").is_dir() && folder.join("msgspec").is_dir();
    if !there {
        eprintln!("SKIPPED: pyzmq and msgspec are not in .tools/python; run `cargo xtask setup`");
    }
    there.then_some(folder)
}

impl Subscriber {
    fn start(house: &TestServer, modules: &Path, encoding: &str) -> Self {
        let sockets = house.kv_events().expect("events are published");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http/kv_subscriber.py");
        let mut process = Command::new("python3")
            .arg(script)
            .arg(sockets.address.to_string())
            .arg(sockets.replay.expect("a replay socket").to_string())
            .arg(encoding)
            .env("PYTHONPATH", modules)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("python3 starts");
        let stdout = process.stdout.take().expect("its output");
        Self {
            lines: BufReader::new(stdout).lines(),
            stdin: process.stdin.take().expect("its input"),
            _process: process,
        }
    }

    /// Returns the next message that it received.
    async fn next(&mut self) -> Value {
        let line = tokio::time::timeout(Duration::from_secs(60), self.lines.next_line());
        let line = line.await.expect("a line within a minute").expect("text");
        serde_json::from_str(&line.expect("one more line")).expect("JSON")
    }

    /// Publishes until it receives the first message.
    async fn first(&mut self, house: &TestServer) -> Value {
        loop {
            happen(house, vec![removed(1)]);
            tokio::select! {
                first = self.next() => return first,
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
            }
        }
    }

    async fn replay(&mut self, from: u64) -> Vec<Value> {
        let line = format!("{from}\n");
        self.stdin
            .write_all(line.as_bytes())
            .await
            .expect("it reads");
        let mut batches = Vec::new();
        loop {
            let batch = self.next().await;
            if batch == json!("end") {
                return batches;
            }
            batches.push(batch);
        }
    }
}

fn happen(house: &TestServer, events: Vec<CacheEvent>) {
    let model = house.app().model.get().expect("the model is there");
    model.engine().feed().publish(events);
}

fn removed(hash: u128) -> CacheEvent {
    CacheEvent::Removed {
        hash: PageHash(hash),
        tier: Tier::Device,
    }
}

async fn publish(encoding: Encoding, name: &str) {
    let Some(modules) = modules() else { return };
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let publishing = async |listen, replay| {
        TestServer::with(Options {
            kv_events: Some(publisher::Config {
                listen,
                replay: Some(replay),
                topic: "kv-events".to_owned(),
                encoding,
            }),
            ..Options::default()
        })
        .await
    };
    let house = publishing(local, local).await;
    let mut subscriber = Subscriber::start(&house, &modules, name);

    // A subscription takes effect with a delay: publish until a message arrives.
    let first = subscriber.first(&house).await;
    assert_eq!(first["events"][0]["type"], "BlockRemoved");

    let hash = u128::from(u64::MAX) << 3;
    let stored = |hash, parent: Option<u128>, tokens: [u32; 2]| CacheEvent::Stored {
        hash: PageHash(hash),
        parent: parent.map(PageHash),
        tokens: tokens.into(),
        salt: "secret".into(),
        tier: Tier::Device,
    };
    happen(
        &house,
        vec![stored(5, None, [1, 2]), stored(hash, Some(5), [3, 70_000])],
    );
    let (mut number, told) = loop {
        let batch = subscriber.next().await;
        if batch["events"][0]["type"] == "BlockStored" {
            break (batch["number"].as_u64().unwrap(), batch);
        }
    };
    assert_eq!(
        told["events"],
        json!([{
            "type": "BlockStored",
            "block_hashes": [5, hash as u64],
            "parent_block_hash": null,
            "token_ids": [1, 2, 3, 70_000],
            "block_size": 2,
            "lora_id": null,
            "medium": "GPU",
            "lora_name": null,
            "extra_keys": [[TenantKey::of("secret").to_string()], null],
        }])
    );
    assert_eq!(
        (&told["topic"], &told["rank"]),
        (&json!("kv-events"), &json!(0))
    );

    // All earlier events can be replayed, numbered without a gap.
    let again = subscriber.replay(0).await;
    let numbers: Vec<_> = again
        .iter()
        .filter_map(|batch| batch["number"].as_u64())
        .collect();
    assert_eq!(numbers, (0..=number).collect::<Vec<_>>());
    assert_eq!(again.last(), Some(&told));
    assert!(subscriber.replay(number + 1).await.is_empty());

    // Lost events leave a gap in the numbers, and clear the earlier state.
    happen(&house, vec![CacheEvent::Gap { events: 3 }, removed(9)]);
    let after = subscriber.next().await;
    number += 2;
    assert_eq!(after["number"], number);
    assert_eq!(after["events"][0], json!({"type": "AllBlocksCleared"}));
    assert_eq!(after["events"][1]["block_hashes"], json!([9]));

    // Its sockets reconnect to a restarted host.
    let sockets = house.kv_events().expect("events are published");
    house.server.stop().await;
    let house = publishing(sockets.address, sockets.replay.expect("a replay socket")).await;
    let first = subscriber.first(&house).await;
    assert_eq!(first["events"][0]["block_hashes"], json!([1]));
    let again = subscriber.replay(0).await;
    assert!(again.contains(&first), "{again:?}");
    house.server.stop().await;
}

#[tokio::test]
async fn python_reads_vllms_events_as_maps() {
    publish(Encoding::Map, "map").await;
}

#[tokio::test]
async fn python_reads_vllms_events_as_arrays() {
    publish(Encoding::Array, "array").await;
}
