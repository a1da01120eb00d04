//! Tests of the filter's purpose: later requests open like earlier ones, and nothing else in them changes.

use std::thread;

use foreword_tests::http::{Client, exchange, post, post_with};
use foreword_tests::{Gateway, GatewayOptions, Shell, Upstream};
use serde_json::{Value, json};

use crate::{assert_length, configured, gateway, send, tagged, with_array, without_hint};

#[test]
fn tagged_documents_take_the_order_of_an_earlier_request_and_all_other_bytes_stay() {
    let upstream = Upstream::start().unwrap();
    let gateway = without_hint(&upstream);
    send(&gateway, &tagged(&["a", "b", "c", "d", "e"]));
    let response = send(&gateway, &tagged(&["e", "c", "a", "d", "b"]));
    assert_eq!(response.status, 200);
    assert_eq!(
        response.report(),
        "ordered; policy=foresight; documents=5; matched=5; moved=4; dropped=0; hint=0"
    );
    let last = upstream.last().unwrap();
    assert_eq!(last.text(), tagged(&["a", "b", "c", "d", "e"]));
    assert_length(&upstream);
}

#[test]
fn a_documents_array_is_reordered_and_keeps_its_elements() {
    let upstream = Upstream::start().unwrap();
    let gateway = configured(
        &upstream,
        json!({"ordering": {"documents": {"field": "reorder"}}}),
    );
    send(&gateway, &with_array(&["a", "b", "c"]));
    let second = with_array(&["x", "c", "b", "a"]);
    let response = send(&gateway, &second);
    assert!(
        response
            .report()
            .starts_with("ordered; policy=foresight; documents=4; matched=3;")
    );

    let ids = |body: &Value| -> Vec<String> {
        let documents = body["documents"].as_array().unwrap();
        documents
            .iter()
            .map(|document| document["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let sent: Value = serde_json::from_slice(&upstream.last().unwrap().body).unwrap();
    let came: Value = serde_json::from_str(&second).unwrap();
    assert_eq!(ids(&sent), ["a", "b", "c", "x"]);
    assert_eq!(
        elements(&sent),
        elements(&came),
        "the multiset of documents"
    );
    assert_eq!(sent["model"], came["model"]);
}

/// Returns the documents of an array, in sorted order.
fn elements(body: &Value) -> Vec<String> {
    let mut elements: Vec<_> = body["documents"]
        .as_array()
        .unwrap()
        .iter()
        .map(Value::to_string)
        .collect();
    elements.sort();
    elements
}

#[test]
fn by_default_an_array_is_written_into_the_prompt_and_the_ranking_is_told() {
    let upstream = Upstream::start().unwrap();
    let gateway = gateway(&upstream);
    send(&gateway, &with_array(&["a", "b", "c"]));
    let response = send(&gateway, &with_array(&["c", "b", "a"]));
    assert!(
        response
            .report()
            .ends_with("matched=3; moved=2; dropped=0; hint=1"),
        "{}",
        response.report()
    );

    let sent: Value = serde_json::from_slice(&upstream.last().unwrap().body).unwrap();
    assert!(sent["documents"].is_null());
    let content = sent["messages"][0]["content"].as_str().unwrap();
    let places = ["text of a", "text of b", "text of c", "c>b>a.", "Why?"].map(|part| {
        content
            .find(part)
            .unwrap_or_else(|| panic!("{part:?} is not in {content:?}"))
    });
    assert!(places.is_sorted(), "{content}");
}

#[test]
fn both_requests_of_a_pair_open_with_the_same_bytes() {
    let upstream = Upstream::start().unwrap();
    let gateway = gateway(&upstream);
    send(&gateway, &with_array(&["a", "b", "c", "d"]));
    send(&gateway, &with_array(&["d", "b", "c", "a"]));
    let [first, second] = upstream.received().try_into().unwrap();
    let common = first
        .body
        .iter()
        .zip(&second.body)
        .take_while(|(left, right)| left == right)
        .count();
    let end_of_documents = first.text().find("text of d").unwrap() + "text of d".len();
    assert!(
        common >= end_of_documents,
        "{common} common bytes, the documents end at {end_of_documents}"
    );
}

#[test]
fn odd_but_valid_json_stays_as_it_was_written() {
    let upstream = Upstream::start().unwrap();
    let gateway = without_hint(&upstream);
    let odd = |first: &str, second: &str| {
        format!(
            " \t{{\"seed\":1e400,\"z\":-0.0,\"big\":123456789012345678901234567890,\r\n\"dup\":1,\"dup\":[ ],\
             \"messages\":[{{\"content\":\"\\u003cb\\u003e caf\\u00e9 \\ud83d\\ude00 \\/ {first} & {second} \
             日本\\n?\",\"role\":\"user\",\"name\":null}}],\"model\":\"\\u006d\"}}\n\n  "
        )
    };
    let a = r#"<document id='a'>\u0041 \"x\" é</document>"#;
    let b = r#"<doc title=\"t\">B\\n</doc>"#;
    send(&gateway, &odd(a, b));
    let response = send(&gateway, &odd(b, a));
    assert!(
        response.report().starts_with("ordered;"),
        "{}",
        response.report()
    );
    assert_eq!(upstream.last().unwrap().text(), odd(a, b));
}

#[test]
fn repeated_and_missing_ids_lose_no_document() {
    let upstream = Upstream::start().unwrap();
    let gateway = configured(
        &upstream,
        json!({"ordering": {"documents": {"field": "reorder"}}}),
    );
    let documents = json!([
        {"id": "a", "text": "one"},
        {"id": "a", "text": "two"},
        {"text": "three"},
        "four",
        {"id": "", "content": "five"},
    ]);
    let mut body: Value = serde_json::from_str(&with_array(&[])).unwrap();
    body["documents"] = documents.clone();
    let response = send(&gateway, &body.to_string());
    assert!(
        response.report().contains("; documents=5;"),
        "{}",
        response.report()
    );
    assert!(
        response.report().contains("; dropped=0;"),
        "{}",
        response.report()
    );

    body["documents"].as_array_mut().unwrap().reverse();
    let response = send(&gateway, &body.to_string());
    assert!(
        response.report().contains("; matched=5;"),
        "{}",
        response.report()
    );
    let sent: Value = serde_json::from_slice(&upstream.last().unwrap().body).unwrap();
    assert_eq!(sent["documents"], documents);
}

#[test]
fn a_file_that_an_agent_reads_again_is_referred_to_if_asked_for() {
    let upstream = Upstream::start().unwrap();
    let gateway = configured(
        &upstream,
        json!({"ordering": {"documents": {"outputs": true}}}),
    );
    let lines = (0..20).map(|line| format!("let line_{line:02} = \"é\";\n"));
    let file = format!("// The module about clocks.\n{}", lines.collect::<String>());
    let called = json!({"role": "assistant", "content": "Reading."});
    let read = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": file});
    let mut messages = vec![
        json!({"role": "user", "content": "Why?"}),
        called.clone(),
        read("1"),
    ];
    let mut before = String::new();
    for (id, hints) in [("2", 1), ("3", 2)] {
        messages.extend([called.clone(), read(id)]);
        let body = json!({"model": "m", "messages": messages});
        assert_eq!(send(&gateway, &body.to_string()).status, 200);
        let sent = upstream.last().unwrap().text();
        assert_eq!(sent.matches("let line_05").count(), 1, "{sent}");
        let hint = "Please refer to the lines from [The module about clocks] to";
        assert_eq!(sent.matches(hint).count(), hints, "{sent}");
        // What was sent stays.
        let end = before.rfind(']').unwrap_or_default();
        assert_eq!(sent.get(..end), before.get(..end));
        before = sent;
        assert_length(&upstream);
    }
}

#[test]
fn an_exact_repeat_within_a_request_is_dropped_and_counted() {
    let upstream = Upstream::start().unwrap();
    let gateway = gateway(&upstream);
    let response = send(&gateway, &tagged(&["a", "b", "a"]));
    assert!(
        response.report().contains("; dropped=1;"),
        "{}",
        response.report()
    );
    assert_eq!(
        upstream.last().unwrap().text().matches("text of a").count(),
        1
    );
    gateway.await_metric("foreword_dropped_documents_total", 1);
}

#[test]
fn one_tenants_documents_leave_no_trace_in_anothers_requests() {
    let upstream = Upstream::start().unwrap();
    let gateway = configured(&upstream, json!({"tenant": {"header": "x-tenant"}}));
    let send = |headers: &[&str], ids: &[&str]| {
        let request = post_with(headers, tagged(ids).as_bytes());
        exchange(gateway.address(), &request).unwrap()
    };
    send(&["x-tenant: red"], &["a", "b"]);
    assert!(
        send(&["x-tenant: blue"], &["b", "a"])
            .report()
            .contains("; matched=0; moved=0;")
    );
    assert!(
        send(&["x-tenant: red"], &["b", "a"])
            .report()
            .contains("; matched=2; moved=2;")
    );
    assert_eq!(send(&[], &["b", "a"]).report(), "passed; reason=no-tenant");
    assert_eq!(
        send(&["x-tenant:"], &["b", "a"]).report(),
        "passed; reason=no-tenant"
    );
    let long = format!("x-tenant: {}", "t".repeat(257));
    assert_eq!(
        send(&[&long], &["b", "a"]).report(),
        "passed; reason=bad-tenant"
    );
    assert_eq!(send(&["x-tenant: r\u{e9}d"], &["b", "a"]).status, 200);
}

#[test]
fn one_connection_carries_many_requests() {
    let upstream = echo_marker();
    let gateway = gateway(&upstream);
    let mut client = Client::connect(gateway.address()).unwrap();
    for number in 0..200 {
        let marker = format!("marker-{number}");
        client
            .send(&post(tagged(&["a", &marker, "b"]).as_bytes()))
            .unwrap();
        assert_eq!(client.response().unwrap().body, marker.as_bytes());
    }
    gateway.await_requests(200);
}

#[test]
fn two_workers_serve_many_clients_without_mixing_them_up() {
    let upstream = echo_marker();
    let options = GatewayOptions {
        concurrency: 2,
        ..GatewayOptions::placing_freely(upstream.address())
    };
    let gateway = Gateway::start(&options).unwrap();
    thread::scope(|scope| {
        for client in 0..8 {
            let address = gateway.address();
            scope.spawn(move || {
                let mut connection = Client::connect(address).unwrap();
                for number in 0..50 {
                    let marker = format!("marker-{client}-{number}");
                    let ids = ["a", "b", &marker, "c"];
                    connection.send(&post(tagged(&ids).as_bytes())).unwrap();
                    let response = connection.response().unwrap();
                    assert_eq!(response.body, marker.as_bytes());
                    assert!(
                        response.report().contains("documents=4"),
                        "{}",
                        response.report()
                    );
                }
            });
        }
    });
    gateway.await_requests(400);
    assert_eq!(
        gateway.metric("foreword_documents_total").unwrap(),
        Some(1_600)
    );
}

#[test]
fn workers_of_a_dynamic_module_share_their_trees() {
    let upstream = Upstream::start().unwrap();
    let options = GatewayOptions {
        concurrency: 4,
        // Each Wasm VM has trees of its own, in which a request's match would depend on its connection.
        shell: Shell::Dynamic,
        ..GatewayOptions::placing_freely(upstream.address())
    };
    let gateway = Gateway::start(&options).unwrap();
    send(&gateway, &tagged(&["a", "b", "c"]));
    for _ in 0..32 {
        let response = send(&gateway, &tagged(&["c", "b", "a"]));
        assert!(
            response.report().contains("matched=3"),
            "{}",
            response.report()
        );
    }
}

/// Starts an upstream that answers with the id, beginning with `marker-`, of one of the request's documents.
fn echo_marker() -> Upstream {
    Upstream::scripted(|request, reply| {
        let text = request.text();
        let start = text.find("marker-").unwrap_or(0);
        let marker = text[start..].split(['\\', '"']).next().unwrap_or_default();
        reply.json(200, marker)
    })
    .unwrap()
}
