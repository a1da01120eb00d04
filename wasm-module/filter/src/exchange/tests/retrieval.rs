//! Exchanges with a search for documents, against the scripted host.

use serde_json::{Value, json};

use super::super::*;
use super::{PATH, plugin};
use crate::tests::scripted::ScriptedHost;

fn retrieving(host: &ScriptedHost, more: &Value) -> Arc<Plugin> {
    let mut all =
        json!({"retrieval": {"cluster": "c", "similarity": {"dimensions": 2, "tolerance": 0.01}}});
    for (name, value) in more.as_object().unwrap() {
        all["retrieval"][name] = value.clone();
    }
    plugin(host, &all.to_string())
}

const CHAT: &str =
    r#"{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Why?"}]}"#;

/// Begins a request and returns its flow.
fn begin(plugin: &Arc<Plugin>, host: &ScriptedHost, body: &str) -> (Exchange, Flow) {
    host.request("POST", PATH, &[("content-length", &body.len().to_string())]);
    let mut exchange = Exchange::new(Arc::clone(plugin));
    assert_eq!(exchange.on_request_headers(host, false), Flow::Hold);
    host.receive(body.as_bytes());
    let flow = exchange.on_request_body(host, body.len(), true);
    (exchange, flow)
}

/// Responds to the last call.
fn answer(exchange: &mut Exchange, host: &ScriptedHost, status: u16, body: &Value) {
    let call = host.asked().len() as u64 - 1;
    exchange.on_answer(host, call, Some(status), Some(body.to_string().as_bytes()));
}

fn vector() -> Value {
    json!({"data": [{"embedding": [1, 0]}]})
}

fn found() -> Value {
    json!({"version": "1", "data": [{"id": "a", "text": "of a"}, {"id": "b", "text": "of b"}]})
}

fn report(mut exchange: Exchange, host: &ScriptedHost) -> String {
    exchange.on_response_headers(host);
    exchange.on_done(host);
    host.response_header("x-foreword").unwrap()
}

#[test]
fn a_chat_waits_for_vector_and_documents_and_goes_on_with_its_length() {
    let host = ScriptedHost::default();
    let plugin = retrieving(&host, &json!({}));
    let (mut exchange, flow) = begin(&plugin, &host, CHAT);
    assert_eq!(flow, Flow::Hold);
    assert_eq!(exchange.on_request_trailers(&host), Flow::Hold);
    answer(&mut exchange, &host, 200, &vector());
    assert!(!host.is_resumed());
    // A response to another call changes nothing.
    exchange.on_answer(&host, 0, Some(200), Some(b"{}"));
    answer(&mut exchange, &host, 200, &found());
    assert!(host.is_resumed());
    let body = host.body();
    assert_eq!(host.header("content-length"), Some(body.len().to_string()));
    assert!(host.header("x-foreword-path").is_some());
    let body = String::from_utf8(body).unwrap();
    assert!(
        body.contains("of a") && body.contains(r"</document>\n\nWhy?"),
        "{body}"
    );
    assert!(
        report(exchange, &host)
            .ends_with("documents=2; matched=0; moved=0; dropped=0; hint=0; retrieval=miss")
    );
    assert_eq!(host.log_field("retrieval").as_deref(), Some("miss"));
    assert!(host.log_field("retrieval_ms").is_some());

    // The next similar one waits only for the vector.
    let (mut exchange, _) = begin(&plugin, &host, CHAT);
    answer(&mut exchange, &host, 200, &vector());
    assert!(host.is_resumed());
    assert!(
        report(exchange, &host).ends_with("matched=2; moved=0; dropped=0; hint=0; retrieval=hit")
    );
    let paths: Vec<String> = host.asked().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["/v1/embeddings", "/v1/retrieve", "/v1/embeddings"]);
}

#[test]
fn a_retriever_of_another_metric_is_told_of_once() {
    let host = ScriptedHost::default();
    let plugin = retrieving(&host, &json!({}));
    // Each question is far from the others, so that none is answered from the cache.
    for (metric, question, warnings) in [
        ("cosine", [1, 0], 0),
        ("of its own", [0, 1], 0),
        ("l2", [-1, 0], 1),
        ("l2", [0, -1], 1),
    ] {
        let (mut exchange, _) = begin(&plugin, &host, CHAT);
        let vector = json!({"data": [{"embedding": question}]});
        answer(&mut exchange, &host, 200, &vector);
        let mut found = found();
        found["metric"] = metric.into();
        answer(&mut exchange, &host, 200, &found);
        let warned = host.log_text().matches("compares by l2").count();
        assert_eq!(warned, warnings, "{metric}");
    }
}

#[test]
fn a_clients_vector_finds_documents_and_keeps_none_for_others() {
    let host = ScriptedHost::default();
    let plugin = retrieving(&host, &json!({}));
    let theirs = CHAT.replacen('{', r#"{"retrieval": {"embedding": [1, 0]}, "#, 1);
    let (mut exchange, _) = begin(&plugin, &host, &theirs);
    answer(&mut exchange, &host, 200, &found());
    assert!(report(exchange, &host).ends_with("retrieval=miss"));
    // Another client's question with that vector is searched for. Its result serves the first client too.
    let (mut exchange, _) = begin(&plugin, &host, CHAT);
    answer(&mut exchange, &host, 200, &vector());
    assert_eq!(host.asked().last().unwrap().0, "/v1/retrieve");
    answer(&mut exchange, &host, 200, &found());
    assert!(report(exchange, &host).ends_with("retrieval=miss"));
    let (exchange, _) = begin(&plugin, &host, &theirs);
    assert!(report(exchange, &host).ends_with("retrieval=hit"));
}

#[test]
fn without_a_cache_the_retriever_is_asked_at_once() {
    let host = ScriptedHost::default();
    let plugin = retrieving(&host, &json!({"similarity": null}));
    let (mut exchange, _) = begin(&plugin, &host, CHAT);
    assert_eq!(host.asked()[0].0, "/v1/retrieve");
    answer(&mut exchange, &host, 200, &found());
    assert!(report(exchange, &host).ends_with("retrieval=miss"));
}

#[test]
fn a_chat_that_brings_documents_is_read_once_and_ordered_at_once() {
    let own = r#"<document id=\"a\">1</document> <document id=\"b\">2</document> Why?"#;
    let own = CHAT.replace("Why?", own);
    let told = own.replacen('{', r#"{"retrieval": {"k": 2}, "#, 1);
    let repeated = own.replacen('{', r#"{"retrieval": 1, "retrieval": 2, "#, 1);
    for (body, sent, said) in [
        (&own, &own, "unchanged; policy=foresight; documents=2"),
        // The `retrieval` field is not forwarded.
        (&told, &own, "unchanged; policy=foresight; documents=2"),
        (&repeated, &repeated, "passed; reason=invalid-json"),
    ] {
        let host = ScriptedHost::default();
        let plugin = retrieving(&host, &json!({}));
        let (exchange, flow) = begin(&plugin, &host, body);
        assert_eq!(flow, Flow::Continue);
        assert_eq!(host.body(), sent.as_bytes());
        assert_eq!(host.body_reads(), 1);
        assert!(host.asked().is_empty());
        let report = report(exchange, &host);
        assert!(report.starts_with(said), "{report}");
        assert!(!report.contains("retrieval="), "{report}");
    }
}

#[test]
fn an_answer_that_is_late_for_its_request_is_nobodys() {
    let host = ScriptedHost::default();
    let plugin = retrieving(&host, &json!({}));
    let (mut exchange, _) = begin(&plugin, &host, CHAT);
    exchange.on_done(&host);
    answer(&mut exchange, &host, 200, &vector());
    assert!(!host.is_resumed() && host.asked().len() == 1);
    assert_eq!(host.counter("foreword_retrieval_searches_total"), 1);
}

#[test]
fn a_proxy_that_refuses_a_call_costs_the_documents_alone() {
    for (call, word) in [("ask", "unreachable"), ("resume", "miss")] {
        let host = ScriptedHost::default();
        let plugin = retrieving(&host, &json!({"similarity": null}));
        host.refuse(call);
        let (mut exchange, flow) = begin(&plugin, &host, CHAT);
        match call {
            "ask" => assert_eq!(flow, Flow::Continue),
            _ => answer(&mut exchange, &host, 200, &found()),
        }
        assert!(
            report(exchange, &host).ends_with(&format!("retrieval={word}")),
            "{call}"
        );
    }
}

#[test]
fn an_error_is_the_clients_where_the_operator_wants_it() {
    let host = ScriptedHost::default();
    let plugin = retrieving(&host, &json!({"on_failure": "fail"}));
    let (mut exchange, _) = begin(&plugin, &host, CHAT);
    answer(&mut exchange, &host, 504, &json!({}));
    assert_eq!(host.local_response().unwrap().0, 504);
    assert!(!host.is_resumed());
    assert_eq!(
        report(exchange, &host),
        "refused; reason=retrieval; retrieval=timeout"
    );
}

#[test]
fn nothing_is_looked_for_in_a_dry_run_or_for_a_chat_that_is_bypassed() {
    let host = ScriptedHost::default();
    let retrieval = json!({"cluster": "c"});
    for more in [
        json!({"mode": "dry-run"}),
        json!({"bypass_header": "x-raw"}),
    ] {
        let mut all = json!({"retrieval": retrieval});
        for (name, value) in more.as_object().unwrap() {
            all[name] = value.clone();
        }
        let plugin = plugin(&host, &all.to_string());
        host.request("POST", PATH, &[("x-raw", "1")]);
        let mut exchange = Exchange::new(plugin);
        if exchange.on_request_headers(&host, false) == Flow::Hold {
            host.receive(CHAT.as_bytes());
            assert_eq!(
                exchange.on_request_body(&host, CHAT.len(), true),
                Flow::Continue
            );
        }
    }
    assert!(host.asked().is_empty());
}

#[test]
fn with_salts_the_chat_and_its_warm_up_have_the_tenants_own() {
    let host = ScriptedHost::default();
    let plugin = plugin(
        &host,
        r#"{"tenant": {"header": "x-tenant"}, "salt": {"key_env": "SCRIPTED_KEY"},
            "retrieval": {"cluster": "c", "warm_up": {}}}"#,
    );
    host.request("POST", PATH, &[("x-tenant", "red")]);
    let mut exchange = Exchange::new(plugin);
    exchange.on_request_headers(&host, false);
    let body = CHAT.replacen(
        '{',
        r#"{"cache_salt": "blue's", "retrieval": {"k": 2}, "#,
        1,
    );
    host.receive(body.as_bytes());
    assert_eq!(
        exchange.on_request_body(&host, body.len(), true),
        Flow::Hold
    );
    let [(_, search), (path, warm_up)] = &host.asked()[..] else {
        panic!("two calls")
    };
    let search: Value = serde_json::from_slice(search).unwrap();
    assert_eq!(search, json!({"query": "Why?", "k": 2}));
    assert_eq!(path, "/v1/prefill");
    let warm_up: Value = serde_json::from_slice(warm_up).unwrap();
    exchange.on_answer(&host, 0, Some(500), None);
    let sent: Value = serde_json::from_slice(&host.body()).unwrap();
    assert_eq!(sent["cache_salt"], warm_up["cache_salt"]);
    assert!(sent["cache_salt"].as_str().unwrap().len() == 64 && sent.get("retrieval").is_none());
}

#[test]
fn nothing_of_a_question_or_a_document_is_logged() {
    let host = ScriptedHost::default();
    let plugin = retrieving(&host, &json!({"token": "swordfish"}));
    for (status, body) in [
        (200, json!({"data": [{"text": "swordfish"}]})),
        (500, json!("swordfish")),
    ] {
        let (mut exchange, _) = begin(&plugin, &host, &CHAT.replace("Why", "swordfish"));
        answer(&mut exchange, &host, 200, &vector());
        answer(&mut exchange, &host, status, &body);
    }
    host.refuse("ask");
    begin(&plugin, &host, &CHAT.replace("Why", "swordfish"));
    assert!(
        !host.log_text().contains("swordfish"),
        "{}",
        host.log_text()
    );
    assert!(host.log_text().contains("retrieval=on"));
}
