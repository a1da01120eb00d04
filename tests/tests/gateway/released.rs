//! Tests of `request_headers: release`: an Envoy that cannot hold headers back, as Istio's and Envoy Gateway's
//! resources configure it, and every Envoy before 1.35.

use foreword_tests::http::{Client, post};
use foreword_tests::{Gateway, GatewayOptions, Upstream};
use serde_json::json;

use crate::{send, tagged, tagged_texts};

/// Returns a gateway without `allow_on_headers_stop_iteration`, with the filter's hints off.
fn releasing(upstream: &Upstream, on_failure: &str) -> Gateway {
    let options = GatewayOptions {
        plugin: Some(json!({
            "request_headers": "release",
            "on_failure": on_failure,
            "ordering": {"hint": {"enabled": false}},
        })),
        headers_may_wait: false,
        ..GatewayOptions::placing_freely(upstream.address())
    };
    Gateway::start(&options).unwrap()
}

#[test]
fn documents_are_ordered_and_the_body_goes_on_in_chunks() {
    let upstream = Upstream::start().unwrap();
    let gateway = releasing(&upstream, "pass");
    let first = tagged(&["a", "b", "c"]);
    send(&gateway, &first);
    let response = send(&gateway, &tagged(&["c", "b", "a"]));
    assert_eq!(response.status, 200);
    assert!(response.report().starts_with("ordered;"));
    let last = upstream.last().unwrap();
    assert_eq!(last.text(), first);
    assert_eq!(last.header("content-length"), None);
    assert_eq!(last.header("transfer-encoding"), Some("chunked"));
}

#[test]
fn one_connection_carries_request_after_request() {
    let upstream = Upstream::start().unwrap();
    let gateway = releasing(&upstream, "pass");
    let mut client = Client::connect(gateway.address()).unwrap();
    for ids in [["a", "b"], ["b", "a"], ["a", "b"]] {
        client.send(&post(tagged(&ids).as_bytes())).unwrap();
        assert_eq!(client.response().unwrap().status, 200);
        assert_eq!(upstream.last().unwrap().text(), tagged(&["a", "b"]));
    }
}

#[test]
fn two_megabytes_are_rewritten_to_the_byte() {
    let upstream = Upstream::start().unwrap();
    let gateway = releasing(&upstream, "pass");
    let documents: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"]
        .map(|id| (id, format!("{id} {}", "0123456789".repeat(20_000))))
        .into();
    let reversed: Vec<_> = documents.iter().rev().cloned().collect();
    let first = tagged_texts(&documents);
    send(&gateway, &first);
    send(&gateway, &tagged_texts(&reversed));
    assert!(
        upstream.last().unwrap().body == first.as_bytes(),
        "not the bytes of the first request"
    );
}

#[test]
fn what_cannot_be_ordered_passes_or_is_refused_as_configured() {
    let upstream = Upstream::start().unwrap();
    let gateway = releasing(&upstream, "pass");
    assert_eq!(send(&gateway, "{]").report(), "passed; reason=invalid-json");
    assert_eq!(upstream.last().unwrap().text(), "{]");

    let gateway = releasing(&upstream, "refuse");
    let response = send(&gateway, "{]");
    assert_eq!(response.status, 400);
    assert_eq!(response.report(), "refused; reason=invalid-json");
}
