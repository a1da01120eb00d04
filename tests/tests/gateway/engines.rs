//! Tests of three engines behind one gateway, by `engines.yaml`: requests go where their documents are held, and none
//! is lost when an engine is.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use foreword_tests::http::{Client, Response, exchange, post_with};
use foreword_tests::{Gateway, GatewayOptions, Upstream};
use serde_json::{Value, json};

use crate::tagged_texts;

/// An engine that answers with its name, until it is told to fail.
struct Engine {
    upstream: Upstream,
    /// How it fails: 0 to answer, 1 to close the connection, otherwise the status to send.
    fails: Arc<AtomicU32>,
}

fn engine(name: &'static str) -> Engine {
    let fails = Arc::new(AtomicU32::new(0));
    let fault = Arc::clone(&fails);
    let upstream = Upstream::scripted(move |request, reply| {
        if request.line.contains("/v1/kv/") {
            return reply.json(404, "{}");
        }
        match fault.load(SeqCst) {
            0 => reply.json(200, &json!({"engine": name}).to_string()),
            1 => anyhow::bail!("killed"),
            status => reply.json(u16::try_from(status)?, "{}"),
        }
    });
    Engine {
        upstream: upstream.unwrap(),
        fails,
    }
}

fn gateway(addresses: [SocketAddr; 3], concurrency: u32) -> Gateway {
    let engines: Vec<Value> = (["a", "b", "c"].iter().zip(addresses))
        .map(|(name, address)| json!({"name": name, "address": address.to_string()}))
        .collect();
    let options = GatewayOptions {
        engines: Some(addresses),
        plugin: Some(json!({"engines": engines})),
        concurrency,
        ..GatewayOptions::placing_freely(addresses[0])
    };
    Gateway::start(&options).unwrap()
}

/// Returns a request about a topic, with documents of some hundred tokens.
fn topic(topic: usize) -> String {
    let documents = [0, 1, 2].map(|document| format!("{topic}-{document}"));
    let documents = documents
        .each_ref()
        .map(|id| (id.as_str(), format!("What {id} says of it. ").repeat(20)));
    tagged_texts(&documents)
}

fn request(body: &str) -> Vec<u8> {
    // A choice by the client is ignored.
    post_with(
        &["x-gateway-destination-endpoint: 127.0.0.1:9"],
        body.as_bytes(),
    )
}

fn ask(gateway: &Gateway, body: &str) -> Response {
    let response = exchange(gateway.address(), &request(body)).unwrap();
    assert_eq!(
        response.status,
        200,
        "{}",
        String::from_utf8_lossy(&response.body)
    );
    response
}

fn served_by(response: &Response) -> String {
    let body: Value = serde_json::from_slice(&response.body).unwrap();
    body["engine"].as_str().unwrap().to_owned()
}

#[test]
fn each_topic_stays_with_one_engine_and_every_engine_has_topics() {
    let engines = ["a", "b", "c"].map(engine);
    let gateway = gateway(
        engines.each_ref().map(|engine| engine.upstream.address()),
        2,
    );
    let homes: Vec<String> = (0..12)
        .map(|number| served_by(&ask(&gateway, &topic(number))))
        .collect();
    for name in ["a", "b", "c"] {
        assert!(homes.iter().any(|home| home == name), "{homes:?}");
    }
    for _ in 0..2 {
        for (number, home) in homes.iter().enumerate() {
            let response = ask(&gateway, &topic(number));
            assert_eq!(&served_by(&response), home, "topic {number}");
            assert!(
                response.report().contains("matched=3"),
                "{}",
                response.report()
            );
        }
    }
    // Requests without documents, and those that the filter ignores, go to one of the engines too.
    ask(
        &gateway,
        r#"{"messages": [{"role": "user", "content": "hello"}]}"#,
    );
    ask(&gateway, "");
    for engine in &engines {
        let forged = |request: &foreword_tests::Received| {
            request.header("x-gateway-destination-endpoint") == Some("127.0.0.1:9")
        };
        assert!(!engine.upstream.received().iter().any(forged));
    }
}

#[test]
fn no_request_is_lost_when_an_engine_is_killed_in_mid_traffic() {
    let engines = ["a", "b", "c"].map(engine);
    let gateway = gateway(
        engines.each_ref().map(|engine| engine.upstream.address()),
        2,
    );
    let asked = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for sender in 0..4 {
            let (address, asked, engines) = (gateway.address(), &asked, &engines);
            scope.spawn(move || {
                let mut client = Client::connect(address).unwrap();
                for round in 0..60 {
                    // In the middle, one engine dies and returns; then another one is too busy.
                    match asked.fetch_add(1, SeqCst) {
                        60 => engines[0].fails.store(1, SeqCst),
                        120 => engines[0].fails.store(0, SeqCst),
                        150 => engines[1].fails.store(503, SeqCst),
                        _ => {}
                    }
                    client
                        .send(&request(&topic((sender * 7 + round) % 12)))
                        .unwrap();
                    let response = client.response().unwrap();
                    assert_eq!(response.status, 200, "{}", response.report());
                }
            });
        }
    });
    assert_eq!(asked.load(SeqCst), 240);
    // A failing engine is avoided, not tried with every request.
    let failing = engines[1].upstream.received();
    let before = failing.len();
    for number in 0..12 {
        assert_ne!(served_by(&ask(&gateway, &topic(number))), "b");
    }
    assert!(engines[1].upstream.received().len() <= before + 2);
}

#[test]
fn an_engine_that_was_never_there_is_passed_over() {
    let absent = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let [b, c] = ["b", "c"].map(engine);
    let gateway = gateway([absent, b.upstream.address(), c.upstream.address()], 1);
    for round in 0..3 {
        for number in 0..8 {
            let response = ask(&gateway, &topic(number));
            assert_ne!(served_by(&response), "a");
            if round > 0 {
                assert!(
                    response.report().contains("matched=3"),
                    "{}",
                    response.report()
                );
            }
        }
    }
}

#[test]
fn when_no_engine_answers_the_client_is_told() {
    let absent = [(); 3].map(|()| {
        TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
    });
    let gateway = gateway(absent, 1);
    for _ in 0..3 {
        let response = exchange(gateway.address(), &request(&topic(1))).unwrap();
        assert_eq!(response.status, 503);
        let body: Value = serde_json::from_slice(&response.body).unwrap();
        assert_eq!(body["error"]["code"], "engine_unavailable");
    }
}

#[test]
fn the_shipped_configuration_starts_as_it_stands() {
    let path = foreword_tests::artifacts::repository().join("gateway-config/envoy/engines.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, value) = text.split_once("value: |\n").unwrap();
    let (value, _) = value.split_once("          # Foreword: end.").unwrap();
    let plugin: Value = serde_json::from_str(value).unwrap();
    let here = ["127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:8003"];
    for (engine, address) in plugin["engines"].as_array().unwrap().iter().zip(here) {
        assert_eq!(engine["address"], address);
    }
    let options = GatewayOptions {
        engines: Some(here.map(|address| address.parse().unwrap())),
        plugin: Some(plugin),
        ..GatewayOptions::placing_freely(here[0].parse().unwrap())
    };
    Gateway::start(&options).unwrap();
}
