//! Every way in which a body can arrive: whole, in chunks, late, byte by byte, encoded, absent.

use foreword_tests::http::{Client, exchange, post, post_chunked, post_head, post_with};
use foreword_tests::{Gateway, GatewayOptions, Paths, Shell, Upstream, until};

use crate::{gateway, send, tagged, tagged_texts, without_hint};

#[test]
fn two_megabytes_without_documents_pass_to_the_byte() {
    let upstream = Upstream::start().unwrap();
    let gateway = gateway(&upstream);
    let body = two_megabytes_without_documents();
    assert!(body.len() > 2_000_000);
    let response = send(&gateway, &body);
    assert_eq!(response.report(), "passed; reason=no-documents");
    assert!(
        upstream.last().unwrap().body == body.as_bytes(),
        "the body changed on its way"
    );
}

pub(crate) fn two_megabytes_without_documents() -> String {
    format!(
        r#"{{"messages": [{{"role": "user", "content": "{}"}}]}}"#,
        "é0123456".repeat(222_222)
    )
}

#[test]
fn two_megabytes_of_documents_are_rewritten_to_the_byte() {
    let upstream = Upstream::start().unwrap();
    let gateway = without_hint(&upstream);
    let text = |id: &str| format!("{id} {}", "0123456789".repeat(20_000));
    let documents: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"]
        .map(|id| (id, text(id)))
        .into();
    let reversed: Vec<_> = documents.iter().rev().cloned().collect();
    let first = tagged_texts(&documents);
    assert!(first.len() > 2_000_000);
    send(&gateway, &first);
    let response = send(&gateway, &tagged_texts(&reversed));
    assert!(
        response
            .report()
            .starts_with("ordered; policy=foresight; documents=11; matched=11;")
    );
    assert!(
        upstream.last().unwrap().body == first.as_bytes(),
        "not the bytes of the first request"
    );
}

#[test]
fn a_chunked_body_is_rewritten_whatever_its_chunks() {
    let upstream = Upstream::start().unwrap();
    let gateway = without_hint(&upstream);
    let first = tagged(&["a", "b", "c"]);
    send(&gateway, &first);
    let body = tagged(&["c", "b", "a"]);
    for chunk in [1, 7, 100, 1_000_000] {
        let request = post_chunked(
            &["content-type: application/json"],
            body.as_bytes(),
            chunk,
            &[],
        );
        let response = exchange(gateway.address(), &request).unwrap();
        assert_eq!(response.status, 200);
        assert!(
            response.report().starts_with("ordered;"),
            "{chunk}: {}",
            response.report()
        );
        let last = upstream.last().unwrap();
        assert_eq!(last.text(), first);
        assert_eq!(last.header("content-length"), None);
    }
}

#[test]
fn trailers_end_a_body_like_any_other() {
    let upstream = Upstream::start().unwrap();
    let gateway = without_hint(&upstream);
    let first = tagged(&["a", "b", "c"]);
    send(&gateway, &first);
    let body = tagged(&["c", "b", "a"]);
    let request = post_chunked(&["trailer: x-check"], body.as_bytes(), 50, &["x-check: 1"]);
    let response = exchange(gateway.address(), &request).unwrap();
    assert!(
        response.report().starts_with("ordered;"),
        "{}",
        response.report()
    );
    assert_eq!(upstream.last().unwrap().text(), first);

    let empty = post_chunked(&[], b"", 1, &["x-check: 1"]);
    let response = exchange(gateway.address(), &empty).unwrap();
    assert_eq!(response.report(), "passed; reason=empty-body");
    assert_eq!(upstream.last().unwrap().body, b"");
}

#[test]
fn a_body_that_dribbles_in_is_held_until_it_is_whole() {
    let upstream = Upstream::start().unwrap();
    let gateway = without_hint(&upstream);
    let first = tagged(&["a", "b"]);
    send(&gateway, &first);
    let mut client = Client::connect(gateway.address()).unwrap();
    for byte in post(tagged(&["b", "a"]).as_bytes()) {
        client.send(&[byte]).unwrap();
    }
    assert!(client.response().unwrap().report().starts_with("ordered;"));
    assert_eq!(upstream.last().unwrap().text(), first);
}

#[test]
fn pipelined_requests_are_answered_in_turn() {
    let upstream = Upstream::start().unwrap();
    let gateway = without_hint(&upstream);
    let [first, second] = [tagged(&["a", "b"]), tagged(&["b", "a"])];
    let mut client = Client::connect(gateway.address()).unwrap();
    client
        .send(&[post(first.as_bytes()), post(second.as_bytes())].concat())
        .unwrap();
    assert!(client.response().unwrap().report().contains("matched=0"));
    assert!(client.response().unwrap().report().contains("matched=2"));
    assert_eq!(upstream.last().unwrap().text(), first);
}

#[test]
fn a_client_that_expects_100_continue_gets_it_and_is_served() {
    let upstream = Upstream::start().unwrap();
    let gateway = without_hint(&upstream);
    let first = tagged(&["a", "b"]);
    send(&gateway, &first);
    let body = tagged(&["b", "a"]);
    let length = format!("content-length: {}", body.len());
    let mut head = post_head(&[
        "content-type: application/json",
        "expect: 100-continue",
        &length,
    ]);
    head.extend(b"\r\n");
    let mut client = Client::connect(gateway.address()).unwrap();
    client.send(&head).unwrap();
    assert_eq!(client.head().unwrap().status, 100);
    client.send(body.as_bytes()).unwrap();
    assert!(client.response().unwrap().report().starts_with("ordered;"));
    assert_eq!(upstream.last().unwrap().text(), first);
}

#[test]
fn http_1_0_is_refused_by_envoy_itself() {
    let upstream = Upstream::start().unwrap();
    let gateway = gateway(&upstream);
    let request = b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}";
    match exchange(gateway.address(), request) {
        Ok(response) => assert_eq!(response.status, 426),
        Err(error) => {
            // Envoy closes the connection at once, and its answer still waits for the processor.
            assert!(Shell::chosen().is_ext_proc(), "{error:?}");
            println!("an external processor: closed without an answer");
        }
    }
    assert!(upstream.received().is_empty());
}

/// Header lines and bodies that are let through, and why; `documents` is a body with documents.
pub(crate) fn unreadable(documents: &str) -> Vec<(Vec<&'static str>, Vec<u8>, &'static str)> {
    const GZIP: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xae\x05\x00\x43\xbf\xa6\xa3";
    let json = "content-type: application/json";
    let cases: [(Vec<&'static str>, &[u8], &'static str); 9] = [
        (vec![json, "content-encoding: gzip"], GZIP, "encoded"),
        (
            vec!["content-type: text/plain"],
            documents.as_bytes(),
            "not-json",
        ),
        (vec![json], b"", "empty-body"),
        (vec![json], br#"{"messages": ["#, "invalid-json"),
        (
            vec![json],
            b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}",
            "invalid-utf8",
        ),
        (vec![json], b"   ", "invalid-json"),
        (vec![json], b"[]", "invalid-json"),
        (
            vec![json],
            br#"{"messages": [{"role": "user", "content": "hello"}]}"#,
            "no-documents",
        ),
        (
            vec![json],
            br#"{"messages": [{"role": "user", "content": "Why?"}], "documents": [{"id": 1}]}"#,
            "malformed-document",
        ),
    ];
    cases
        .into_iter()
        .map(|(headers, body, reason)| (headers, body.to_vec(), reason))
        .collect()
}

#[test]
fn what_is_not_a_readable_body_passes_to_the_byte() {
    let upstream = Upstream::start().unwrap();
    let gateway = gateway(&upstream);
    for (headers, body, reason) in unreadable(&tagged(&["a", "b"])) {
        let response = exchange(gateway.address(), &post_with(&headers, &body)).unwrap();
        assert_eq!(response.status, 200, "{reason}");
        assert_eq!(response.report(), format!("passed; reason={reason}"));
        assert_eq!(upstream.last().unwrap().body, body, "{reason}");
        let counter = format!("foreword_passed_{}_total", reason.replace('-', "_"));
        until(&counter, || gateway.metric(&counter).unwrap() > Some(0));
    }
}

#[test]
fn an_identity_encoding_and_json_with_a_charset_are_read() {
    let upstream = Upstream::start().unwrap();
    let gateway = gateway(&upstream);
    for headers in [
        [
            "content-type: application/json; charset=utf-8",
            "content-encoding: identity",
        ],
        ["content-type: Application/JSON", "accept: */*"],
    ] {
        let response = exchange(
            gateway.address(),
            &post_with(&headers, tagged(&["a"]).as_bytes()),
        )
        .unwrap();
        assert!(
            response.report().contains("documents=1"),
            "{}",
            response.report()
        );
    }
}

#[test]
fn other_methods_and_paths_are_left_alone() {
    let upstream = Upstream::start().unwrap();
    let options = GatewayOptions {
        paths: Paths::All,
        ..GatewayOptions::placing_freely(upstream.address())
    };
    let gateway = Gateway::start(&options).unwrap();
    let body = tagged(&["a", "b"]);
    for line in [
        "GET /v1/chat/completions",
        "PUT /v1/chat/completions",
        "POST /v1/completions",
        "POST /",
    ] {
        let request = format!(
            "{line} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let response = exchange(gateway.address(), request.as_bytes()).unwrap();
        assert_eq!(response.status, 200);
        assert_eq!(response.header("x-foreword"), None, "{line}");
        assert_eq!(upstream.last().unwrap().text(), body);
    }
    // The only one that is counted.
    send(&gateway, &body);
    gateway.await_requests(1);
}
