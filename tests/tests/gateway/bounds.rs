//! Tests of bodies beyond the bounds: they pass whole, or are refused with the value and the limit.

use foreword_ordering::random::Random;
use foreword_tests::http::{Client, exchange, post, post_chunked, post_with};
use foreword_tests::{Gateway, Shell, Upstream};
use serde_json::json;

use crate::{configured, gateway, send, tagged, tagged_texts, with_array};

#[test]
fn a_body_over_the_bound_passes_to_the_byte_with_a_length_and_in_chunks() {
    let upstream = Upstream::start().unwrap();
    let gateway = gateway(&upstream);
    let mut passed = 0;
    // Over the filter's 4 MiB, and over Envoy's 8 MiB too.
    for megabytes in [5, 20] {
        let body = big(megabytes << 20);
        for request in [
            post(&body),
            post_chunked(&["content-type: application/json"], &body, 100_000, &[]),
        ] {
            let has_length = request.windows(15).any(|it| it == b"content-length:");
            if Shell::chosen() == Shell::ExtProc && megabytes > 8 && !has_length {
                println!("an external processor: Envoy buffers 8 MiB and answers 413 beyond");
                let mut client = Client::connect(gateway.address()).unwrap();
                // Envoy answers and closes before it has read the rest.
                let _ = client.send(&request);
                assert_eq!(client.response().unwrap().status, 413);
                continue;
            }
            passed += 1;
            let response = exchange(gateway.address(), &request).unwrap();
            assert_eq!(response.status, 200, "{megabytes} MiB");
            assert_eq!(response.report(), "passed; reason=too-large");
            assert!(
                upstream.last().unwrap().body == body,
                "{megabytes} MiB: the body changed on its way"
            );
        }
    }
    assert!(passed >= 3);
    gateway.await_metric("foreword_passed_too_large_total", passed);
}

#[test]
fn a_body_at_the_bound_is_read_and_one_byte_more_is_not() {
    let upstream = Upstream::start().unwrap();
    let body = tagged(&["a", "b"]);
    let gateway = configured(&upstream, json!({"max_body_bytes": body.len()}));
    assert!(send(&gateway, &body).report().starts_with("unchanged;"));
    let longer = format!("{body} ");
    assert_eq!(send(&gateway, &longer).report(), "passed; reason=too-large");
    let chunked = post_chunked(&[], longer.as_bytes(), 10, &[]);
    let response = exchange(gateway.address(), &chunked).unwrap();
    assert_eq!(response.report(), "passed; reason=too-large");
    assert_eq!(upstream.last().unwrap().text(), longer);
}

#[test]
fn ten_thousand_documents_pass_to_the_byte() {
    let upstream = Upstream::start().unwrap();
    let gateway = gateway(&upstream);
    let body = ten_thousand();
    let response = send(&gateway, &body);
    assert_eq!(response.report(), "passed; reason=too-many-documents");
    assert_eq!(upstream.last().unwrap().text(), body);
}

#[test]
fn deeply_nested_json_neither_traps_nor_hangs() {
    let upstream = Upstream::start().unwrap();
    let gateway = gateway(&upstream);
    let nested = format!(
        r#"{{"messages": {}{}}}"#,
        "[".repeat(500_000),
        "]".repeat(500_000)
    );
    let extra = format!(
        r#"{{"messages": [], "x": {}{}}}"#,
        r#"{"a":"#.repeat(100_000),
        "1}".to_owned() + &"}".repeat(99_999)
    );
    for body in [nested, extra] {
        assert_eq!(send(&gateway, &body).status, 200);
        assert!(upstream.last().unwrap().body == body.as_bytes());
    }
    assert_alive(&gateway);
}

#[test]
fn damaged_bodies_cost_nothing_but_their_own_ordering() {
    let upstream = Upstream::start().unwrap();
    let gateway = gateway(&upstream);
    let mut client = Client::connect(gateway.address()).unwrap();
    let mut random = Random::new(0x5eed);
    let mut below = |limit: usize| random.below(limit as u64) as usize;
    let (mut ordered, mut passed) = (0, 0);
    for round in 0..1_500 {
        let sound = if round % 2 == 0 {
            tagged(&["c", "a", "b"])
        } else {
            with_array(&["b", "c", "a"])
        };
        let mut body = sound.into_bytes();
        for _ in 0..=below(2) {
            let at = below(body.len());
            match below(4) {
                0 => body[at] = b"\"\\{}[]<>/,:0"[below(12)],
                1 => body[at] ^= 1 << below(8),
                2 => drop(body.remove(at)),
                _ => body.truncate(at.max(1)),
            }
        }
        client.send(&post(&body)).unwrap();
        let response = client.response().unwrap();
        assert_eq!(response.status, 200);
        let sent = upstream.last().unwrap().body;
        if response.report().starts_with("passed;") {
            passed += 1;
            assert_eq!(sent, body, "{}", response.report());
        } else {
            ordered += 1;
            assert_eq!(
                is_json(&sent),
                is_json(&body),
                "{}",
                String::from_utf8_lossy(&sent)
            );
        }
    }
    assert!(
        ordered > 100 && passed > 100,
        "{ordered} ordered, {passed} passed"
    );
    assert_alive(&gateway);
}

fn is_json(body: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(body).is_ok()
}

#[test]
fn headers_that_are_not_utf_8_do_not_trap() {
    let upstream = Upstream::start().unwrap();
    let gateway = configured(&upstream, json!({"tenant": {"header": "x-tenant"}}));
    let request = post_with(
        &["x-tenant: MARK", "x-foreword: MARK"],
        tagged(&["a", "b"]).as_bytes(),
    );
    let bad: Vec<u8> = split_join(&request, b"MARK", b"r\xe9\xff");
    assert_eq!(
        exchange(gateway.address(), &bad).unwrap().report(),
        "passed; reason=bad-tenant"
    );
    let request = post_with(
        &["x-tenant: red", "content-type: MARK"],
        tagged(&["a", "b"]).as_bytes(),
    );
    let bad = split_join(&request, b"MARK", b"application/\xff");
    assert_eq!(
        exchange(gateway.address(), &bad).unwrap().report(),
        "passed; reason=not-json"
    );
    assert_eq!(gateway.failures().unwrap(), 0);
}

/// Returns `text` with every `from` replaced by `to`.
fn split_join(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.windows(from.len()).position(|window| window == from) {
        out.extend(&rest[..at]);
        out.extend(to);
        rest = &rest[at + from.len()..];
    }
    out.extend(rest);
    out
}

#[test]
fn where_faults_are_refused_the_error_names_value_and_limit() {
    let upstream = Upstream::start().unwrap();
    let gateway = configured(
        &upstream,
        json!({"on_failure": "refuse", "max_body_bytes": 1_000_000}),
    );
    let large = big(1_000_001);
    let json = ["content-type: application/json"];
    for (request, status, code, words) in [
        (post(&large), 413, "too-large", vec!["1000001", "1000000"]),
        (
            post_chunked(&json, &large, 50_000, &[]),
            413,
            "too-large",
            vec!["1000000"],
        ),
        (post(b"{\"messages\""), 400, "invalid-json", vec!["line 1"]),
        (
            post(b"{\"messages\": [\xff]}"),
            400,
            "invalid-utf8",
            vec!["offset 14"],
        ),
        (
            post(ten_thousand().as_bytes()),
            400,
            "too-many-documents",
            vec!["10000", "512"],
        ),
    ] {
        let mut client = Client::connect(gateway.address()).unwrap();
        // Envoy may answer and close before it has read the rest of a refused body.
        let _ = client.send(&request);
        let response = client.response().unwrap();
        assert_eq!(response.status, status, "{code}");
        assert_eq!(response.header("content-type"), Some("application/json"));
        assert_eq!(response.report(), format!("refused; reason={code}"));
        let error = &response.json().unwrap()["error"];
        assert_eq!(error["code"], code);
        assert_eq!(error["type"], "invalid_request_error");
        for word in words {
            assert!(
                error["message"].as_str().unwrap().contains(word),
                "{error} lacks {word}"
            );
        }
    }
    assert!(
        upstream.received().is_empty(),
        "a refused request reached the upstream"
    );
    gateway.await_metric("foreword_refused_total", 5);

    let plain = r#"{"messages": [{"role": "user", "content": "hello"}]}"#;
    assert_eq!(
        send(&gateway, plain).report(),
        "passed; reason=no-documents"
    );
    assert_alive(&gateway);
}

#[test]
fn memory_settles_however_many_large_bodies_come() {
    let upstream = Upstream::forgetful().unwrap();
    let gateway = gateway(&upstream);
    let mut client = Client::connect(gateway.address()).unwrap();
    let mut send = |number: usize| {
        let documents = [number.to_string(), "x".to_owned(), "y".to_owned()]
            .map(|id| (id.clone(), format!("{id}{}", "0123456789".repeat(130_000))));
        let documents: Vec<_> = documents
            .iter()
            .map(|(id, text)| (id.as_str(), text.clone()))
            .collect();
        client
            .send(&post(tagged_texts(&documents).as_bytes()))
            .unwrap();
        let response = client.response().unwrap();
        assert!(
            response.report().contains("documents=3"),
            "{}",
            response.report()
        );
    };
    (0..10).for_each(&mut send);
    let settled = gateway.resident_bytes().unwrap();
    (10..60).for_each(&mut send);
    let after = gateway.resident_bytes().unwrap();
    println!(
        "resident: {} MB after 10 bodies of 3.9 MB, {} MB after 60",
        settled / 1_000_000,
        after / 1_000_000
    );
    // Fifty more bodies are 195 MB: a leak of even a quarter of them would show.
    assert!(
        after < settled + 48_000_000,
        "{settled} bytes grew to {after}"
    );
}

/// Asserts that no VM was lost, and that a request is still ordered.
fn assert_alive(gateway: &Gateway) {
    assert!(
        send(gateway, &tagged(&["a", "b"]))
            .report()
            .contains("documents=2")
    );
    assert_eq!(gateway.failures().unwrap(), 0);
    let log = gateway.log().unwrap();
    assert!(
        !log.contains("panicked") && !log.contains("Uncaught"),
        "{log}"
    );
}

fn big(bytes: usize) -> Vec<u8> {
    let body = tagged(&["a", "b"]);
    let mut padded = vec![b' '; bytes - body.len()];
    // Different bytes at different places, so that a lost or doubled chunk shows.
    for (index, byte) in padded.iter_mut().enumerate() {
        *byte = b" \t\r\n"[(index / 1_021 + index / 65_537) % 4];
    }
    padded.extend(body.bytes());
    padded
}

fn ten_thousand() -> String {
    let ids: Vec<_> = (0..10_000).map(|id| format!("d{id}")).collect();
    tagged(&ids.iter().map(String::as_str).collect::<Vec<_>>())
}
