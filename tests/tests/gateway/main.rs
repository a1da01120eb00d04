//! The filter in real Envoy, from the outside: bytes in, bytes out, headers, `/stats` and the log.
//!
//! Each test starts an Envoy of its own with the built module. What the core decides is tested in the core; here
//! it is proven that Envoy, the shell and the core together keep their promises for every shape of request.

mod answers;
mod bodies;
mod bounds;
mod bursts;
mod configuration;
mod dashboard;
mod engines;
mod failures;
mod formats;
mod operations;
mod ordering;
mod pages;
mod paths;
mod rehearsal;
mod released;
mod retrieval;
mod streams;
mod tenants;
mod workers;

use foreword_tests::http::{Response, exchange, post};
use foreword_tests::{Gateway, GatewayOptions, Shell, Upstream};
use serde_json::{Value, json};

/// A gateway with the filter's defaults.
fn gateway(upstream: &Upstream) -> Gateway {
    Gateway::start(&GatewayOptions::placing_freely(upstream.address())).unwrap()
}

/// A gateway with a plugin configuration.
fn configured(upstream: &Upstream, plugin: Value) -> Gateway {
    let options = GatewayOptions {
        plugin: Some(plugin),
        ..GatewayOptions::placing_freely(upstream.address())
    };
    Gateway::start(&options).unwrap()
}

/// A gateway that moves documents and writes no hint, so that what it sends can be foretold to the byte.
fn without_hint(upstream: &Upstream) -> Gateway {
    configured(upstream, json!({"ordering": {"hint": {"enabled": false}}}))
}

/// Asserts that the last request states its body's length. A gateway that streams bodies both ways states none and sends
/// chunks, since nobody would check it.
fn assert_length(upstream: &Upstream) {
    let last = upstream.last().unwrap();
    let stated = last.header("content-length").map(str::to_owned);
    match Shell::chosen() {
        Shell::ExtProcDuplex => {
            assert_eq!(stated, None);
            assert_eq!(last.header("transfer-encoding"), Some("chunked"));
        }
        _ => assert_eq!(stated, Some(last.body.len().to_string())),
    }
}

/// Sends one body on a connection of its own.
fn send(gateway: &Gateway, body: &str) -> Response {
    exchange(gateway.address(), &post(body.as_bytes())).unwrap()
}

/// A chat request whose user message holds tagged documents before the question.
fn tagged(ids: &[&str]) -> String {
    let documents = ids.iter().map(|id| (*id, format!("text of {id}")));
    tagged_texts(&documents.collect::<Vec<_>>())
}

/// The same with texts of one's own, which must need no escapes in JSON.
fn tagged_texts(documents: &[(&str, String)]) -> String {
    let spans: Vec<_> = documents
        .iter()
        .map(|(id, text)| format!(r#"<document id=\"{id}\">{text}</document>"#))
        .collect();
    format!(
        r#"{{"model": "m", "messages": [{{"role": "system", "content": "Be brief."}}, {{"role": "user", "content": "{}\nWhy?"}}]}}"#,
        spans.join("\\n")
    )
}

/// A chat request with a `documents` array.
fn with_array(ids: &[&str]) -> String {
    let documents: Vec<_> = ids
        .iter()
        .map(|id| json!({"id": id, "text": format!("text of {id}")}))
        .collect();
    json!({
        "model": "m",
        "messages": [{"role": "user", "content": "Why?"}],
        "documents": documents,
    })
    .to_string()
}
