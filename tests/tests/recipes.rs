//! The recipe for a fleet of vLLMs, in real Envoy: two engines, each with a bridge that gets copies of all requests. Our
//! own host stands in for vLLM: it publishes the same events, and knows itself what documents its cache holds.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};

use foreword_ordering::feed::{Batch, Event};
use foreword_tests::http::{exchange, post};
use foreword_tests::{Bridge, Gateway, Host, artifacts, until};
use serde_json::json;

/// An engine with its bridge.
struct Engine {
    host: Host,
    bridge: Bridge,
}

impl Engine {
    fn start() -> Self {
        let model = artifacts::repository().join("host/engine/fixtures/qwen2");
        // Taken by number, since the host does not say which ones it was given.
        let [events, replay] = [free(), free()];
        let host = Host::start(
            &model,
            &[
                "--name",
                "tiny",
                "--kv-tokens",
                "8192",
                "--kv-events-endpoint",
                &format!("tcp://{events}"),
                "--kv-events-replay-endpoint",
                &format!("tcp://{replay}"),
            ],
        )
        .unwrap();
        let bridge = Bridge::start(&model, "tiny", events, replay, &[]).unwrap();
        Self { host, bridge }
    }

    /// Whether the bridge says what the engine says of itself.
    fn agrees(&self) -> bool {
        held(self.bridge.internal()) == held(self.host.internal())
    }
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// The paths that a feed says are held; `None` before it has anything to say.
fn held(address: SocketAddr) -> Option<BTreeSet<(u64, Vec<u64>)>> {
    let request = b"GET /v1/kv/snapshot HTTP/1.1\r\nhost: feed\r\n\r\n";
    let response = exchange(address, request).unwrap();
    if response.status == 503 {
        return None;
    }
    let batch = Batch::read(&response.body, None).unwrap();
    let mut held = BTreeSet::new();
    for event in batch.events {
        let Event::Stored { scope, path, .. } = event else {
            panic!("a snapshot holds what is stored")
        };
        let path: Vec<u64> = path.iter().map(|(document, _)| document.0).collect();
        held.extend((1..=path.len()).map(|count| (scope.0, path[..count].to_vec())));
    }
    Some(held)
}

fn question(ids: &[u32]) -> String {
    let documents = ids.iter().map(|id| {
        let words = format!("What {id} says is long enough to fill some pages. ").repeat(6);
        format!("<document id=\"{id}\">{words}</document>")
    });
    let content = format!("{}\nWhy?", documents.collect::<Vec<_>>().join("\n"));
    json!({"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": content}]})
        .to_string()
}

#[test]
fn each_bridge_of_the_recipe_for_vllm_says_what_its_engine_holds() {
    let engines = [Engine::start(), Engine::start()];
    for engine in &engines {
        let bridge = engine.bridge.internal();
        until("the bridge follows", || held(bridge).is_some());
    }
    let port = |address: SocketAddr| format!("port_value: {} ", address.port());
    let named = |address: SocketAddr| format!("\"{address}\"");
    let replacements = [
        ("\"127.0.0.1:8000\"", named(engines[0].host.address())),
        ("\"127.0.0.1:8001\"", named(engines[1].host.address())),
        ("port_value: 8000 ", port(engines[0].host.address())),
        ("port_value: 8001 ", port(engines[1].host.address())),
        ("port_value: 8100 ", port(engines[0].bridge.address())),
        ("port_value: 8101 ", port(engines[1].bridge.address())),
        ("port_value: 9100 ", port(engines[0].bridge.internal())),
        ("port_value: 9101 ", port(engines[1].bridge.internal())),
        // Our host tells clients' port nothing of how it is but that it answers.
        (
            "http_health_check: { path: /health ",
            "http_health_check: { path: /v1/models ".to_owned(),
        ),
    ];
    let gateway = Gateway::recipe("gateway-config/vllm/envoy.yaml", &replacements).unwrap();
    // The filter has read both feeds.
    let told = || {
        gateway
            .metric("foreword_feed_events_total")
            .unwrap()
            .unwrap_or(0)
    };
    // The first batch of each, of an empty cache, is one event.
    until("the filter follows both bridges", || told() >= 2);
    let requests = 12;
    for number in 0..requests {
        let ids = [number % 4, 4 + number % 3, 7 + number % 2];
        let response = exchange(gateway.address(), &post(question(&ids).as_bytes())).unwrap();
        let body = String::from_utf8_lossy(&response.body);
        assert_eq!(response.status, 200, "{body}");
    }
    let mut all = BTreeSet::new();
    for engine in &engines {
        // Every bridge saw every request, and knows its own engine's from the others.
        let copies = "foreword_bridge_copies_total{outcome=\"followed\"}";
        until("all copies were read", || {
            engine.bridge.metric(copies).unwrap() == u64::from(requests)
        });
        until("the bridge agrees with its engine", || engine.agrees());
        all.extend(held(engine.bridge.internal()).unwrap());
    }
    assert!(all.len() >= 12, "{all:?}");
    // What is asked again goes to where it is held.
    let response = exchange(gateway.address(), &post(question(&[0, 4, 7]).as_bytes())).unwrap();
    assert!(
        response.report().contains("matched=3;"),
        "{}",
        response.report()
    );
    let usage = &response.json().unwrap()["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap();
    assert!(
        10 * cached > 8 * usage["prompt_tokens"].as_u64().unwrap(),
        "{usage}"
    );
}
