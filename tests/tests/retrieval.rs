//! Tests of retrieval with all parts real: Envoy, the filter, the host as engine, retriever and embedder, and an index
//! made by `foreword ingest`.

use std::path::{Path, PathBuf};
use std::process::Command;

use foreword_tests::http::{Response, exchange, post};
use foreword_tests::{Gateway, GatewayOptions, Host, artifacts, under_traffic, until};
use serde_json::{Value, json};
use tempfile::TempDir;

fn model() -> PathBuf {
    artifacts::repository().join("host/engine/fixtures/qwen2")
}

/// Returns an index of a few short texts.
fn index(folder: &TempDir) -> PathBuf {
    let texts = folder.path().join("texts");
    std::fs::create_dir(&texts).unwrap();
    for (name, text) in [
        (
            "coffee",
            "The coffee machine \"Ångström\" on the second floor\nis cleaned on Fridays: a \\ and a tab\t.",
        ),
        (
            "garage",
            "The garage closes at ten in the evening; ask the porter for a key.",
        ),
        (
            "visa",
            "A visa takes three weeks; the embassy wants two photographs.",
        ),
        (
            "leave",
            "Parental leave is announced seven weeks ahead, in writing.",
        ),
    ] {
        std::fs::write(texts.join(format!("{name}.txt")), text).unwrap();
    }
    let index = folder.path().join("corpus.index");
    let done = Command::new(artifacts::host_binary("dev").unwrap())
        .args(["ingest", "--index"])
        .args([&index, &texts])
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    index
}

fn host(index: Option<&Path>) -> Host {
    let mut args = vec!["--name", "tiny", "--kv-tokens", "8192"];
    if let Some(index) = index {
        args.extend(["--index", index.to_str().unwrap()]);
    }
    Host::start(&model(), &args).unwrap()
}

fn chat(question: &str) -> String {
    json!({"model": "tiny", "max_tokens": 1, "messages": [
        {"role": "system", "content": "Answer from the documents. ".repeat(8)},
        {"role": "user", "content": question}]})
    .to_string()
}

fn ask(gateway: &Gateway, question: &str) -> Response {
    let response = exchange(gateway.address(), &post(chat(question).as_bytes())).unwrap();
    let body = String::from_utf8_lossy(&response.body);
    assert_eq!(response.status, 200, "{body}");
    response
}

fn cached(response: &Response) -> u64 {
    let usage = &response.json().unwrap()["usage"];
    usage["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap()
}

#[test]
fn the_shipped_configuration_finds_caches_and_reuses() {
    let folder = TempDir::new().unwrap();
    let host = host(Some(&index(&folder)));
    let port = format!("port_value: {} ", host.address().port());
    let replacements = [
        ("port_value: 8000 ", port),
        // A loaded machine may take its time.
        ("\"timeout_ms\": 1000", "\"timeout_ms\": 60000".to_owned()),
    ];
    let gateway = Gateway::recipe("gateway-config/envoy/retrieval.yaml", &replacements).unwrap();
    let first = ask(&gateway, "When is the coffee machine cleaned?");
    assert!(
        first.report().contains("documents=4;"),
        "{}",
        first.report()
    );
    assert!(
        first.report().ends_with("retrieval=miss"),
        "{}",
        first.report()
    );
    gateway.await_metric("foreword_retrieval_warm_ups_total", 1);
    // Nearly the same words find the same documents, which the engine has cached.
    // The host identifies them by the same names, whatever has to be escaped in them.
    let body = json!({"query": "When is the coffee machine cleaned?", "k": 4, "order": true});
    let request = String::from_utf8(post(body.to_string().as_bytes())).unwrap();
    let request = request.replace("/v1/chat/completions", "/v1/retrieve");
    let ordered = exchange(host.address(), request.as_bytes()).unwrap();
    assert_eq!(ordered.json().unwrap()["matched"], 4);
    let second = ask(&gateway, "When is the coffee machine cleaned");
    assert!(
        second.report().contains("matched=4;") && second.report().ends_with("retrieval=hit"),
        "{}",
        second.report()
    );
    let prompt = second.json().unwrap()["usage"]["prompt_tokens"]
        .as_u64()
        .unwrap();
    assert!(
        10 * cached(&second) > 7 * prompt,
        "{} of {prompt}",
        cached(&second)
    );
    let third = ask(&gateway, "Which papers does the embassy want for a visa?");
    assert!(
        third.report().ends_with("retrieval=miss"),
        "{}",
        third.report()
    );
    for (name, count) in [("hits", 1), ("misses", 2), ("failed_warm_ups", 0)] {
        gateway.await_metric(&format!("foreword_retrieval_{name}_total"), count);
    }
    assert!(cached(&third) > 0);
}

#[test]
fn killing_retriever_embedder_or_engines_host_loses_no_chat_that_could_be_served() {
    let folder = TempDir::new().unwrap();
    let index = index(&folder);
    let engine = host(None);
    let mut peers = [host(Some(&index)), host(None)];
    let retrieval = json!({"cluster": "retriever", "timeout_ms": 60_000, "embedding": {"cluster": "embedder"},
        "similarity": {"dimensions": 768, "tolerance": 0, "capacity": 2}});
    let gateway = Gateway::start(&GatewayOptions {
        clusters: vec![
            ("retriever", peers[0].address()),
            ("embedder", peers[1].address()),
        ],
        plugin: Some(json!({"retrieval": retrieval})),
        concurrency: 2,
        ..GatewayOptions::placing_freely(engine.address())
    })
    .unwrap();
    let question = |sender, round| {
        chat(&format!(
            "Where is the key number {sender} {round} of the garage?"
        ))
    };
    under_traffic(gateway.address(), 2, question, |more| {
        for peer in &mut peers {
            more(4);
            peer.kill();
            more(8);
            peer.revive().unwrap();
        }
        more(4);
    });
    until("both are found again", || {
        ask(&gateway, "Who has the key?")
            .report()
            .ends_with("retrieval=miss")
    });
    for name in ["failed_unreachable", "misses"] {
        let name = format!("foreword_retrieval_{name}_total");
        until(&name, || gateway.metric(&name).unwrap() > Some(0));
    }
    assert_eq!(gateway.failures().unwrap(), 0);
}

#[test]
fn a_host_that_comes_back_is_engine_and_retriever_again() {
    let folder = TempDir::new().unwrap();
    let mut host = host(Some(&index(&folder)));
    let gateway = Gateway::start(&GatewayOptions {
        clusters: vec![("host", host.address())],
        plugin: Some(json!({"retrieval": {"cluster": "host", "timeout_ms": 60_000}})),
        ..GatewayOptions::placing_freely(host.address())
    })
    .unwrap();
    assert!(
        ask(&gateway, "Where is the key?")
            .report()
            .ends_with("retrieval=miss")
    );
    host.kill();
    let down = exchange(
        gateway.address(),
        &post(chat("Where is the key?").as_bytes()),
    )
    .unwrap();
    assert_eq!(down.status, 503);
    assert!(
        down.report().ends_with("retrieval=unreachable"),
        "{}",
        down.report()
    );
    host.revive().unwrap();
    until("it is found again", || {
        let response = exchange(
            gateway.address(),
            &post(chat("Where is the key?").as_bytes()),
        )
        .unwrap();
        response.status == 200 && response.report().ends_with("retrieval=miss")
    });
}

#[test]
fn a_host_without_an_index_answers_without_documents() {
    // The host has no index: the chat is answered, and the report says why it has no documents.
    let host = host(None);
    let gateway = Gateway::start(&GatewayOptions {
        clusters: vec![("host", host.address())],
        plugin: Some(json!({"retrieval": {"cluster": "host", "timeout_ms": 60_000}})),
        ..GatewayOptions::placing_freely(host.address())
    })
    .unwrap();
    let response = ask(&gateway, "Where is the key?");
    assert_eq!(
        response.report(),
        "passed; reason=no-documents; retrieval=status"
    );
    let body: Value = response.json().unwrap();
    assert!(body["choices"][0]["message"]["content"].is_string());
}
