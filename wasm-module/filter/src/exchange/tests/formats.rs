//! Exchanges of every API except OpenAI's chat, against the scripted host.

use serde_json::{Value, json};

use super::super::*;
use super::plugin;
use crate::tests::scripted::ScriptedHost;

/// Every API's routes.
const ROUTES: &str = r#"{"routes": ["/v1/responses", "/v1beta/models/{model}:generateContent",
    "/v1beta/models/{model}:streamGenerateContent", "/model/{model}/converse", "/model/{model}/converse-stream"]}"#;

/// Three documents in tags, by their names.
fn tagged(names: &[&str]) -> String {
    let documents = names.iter();
    let documents = documents.map(|name| format!("<doc id='{name}'>text of {name}</doc>"));
    documents.collect::<Vec<_>>().join("\n") + "\nWhy?"
}

/// A path and a body with these documents.
type Api = (&'static str, fn(&[&str]) -> Value);

const RESPONSES: Api = (
    "/v1/responses",
    |names| json!({"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": tagged(names)}]}]}),
);
const GEMINI: Api = (
    "/v1beta/models/m:generateContent",
    |names| json!({"contents": [{"role": "user", "parts": [{"text": tagged(names)}]}]}),
);
const CONVERSE: Api = ("/model/m%3A0/converse", |names| {
    let document = |name: &&str| json!({"document": {"format": "txt", "name": name, "source": {"text": format!("text of {name}")}}});
    let mut content: Vec<Value> = names.iter().map(document).collect();
    content.push(json!({"text": "Why?"}));
    json!({"messages": [{"role": "user", "content": content}]})
});

/// Sends a request and its answer, and returns the report.
fn send(
    plugin: &Arc<Plugin>,
    host: &ScriptedHost,
    path: &str,
    body: &Value,
    answer: &str,
) -> String {
    let body = body.to_string();
    host.request("POST", path, &[("content-length", &body.len().to_string())]);
    let mut exchange = Exchange::new(Arc::clone(plugin));
    assert_eq!(
        exchange.on_request_headers(host, false),
        Flow::Hold,
        "{path}"
    );
    host.receive(body.as_bytes());
    exchange.on_request_body(host, body.len(), true);
    let destination = host.header("x-gateway-destination-endpoint");
    let address = destination.as_deref().and_then(|all| all.split(',').next());
    host.set_property(
        &["upstream", "address"],
        address.unwrap_or_default().as_bytes(),
    );
    host.respond_with("200", None);
    exchange.on_response_headers(host);
    host.stream(answer.as_bytes());
    exchange.on_response_body(host, answer.len(), true);
    exchange.on_done(host);
    host.response_header("x-foreword").unwrap()
}

#[test]
fn every_api_is_ordered_and_its_answers_counts_are_read() {
    let answers = [
        r#"{"id":"resp_1","usage":{"input_tokens":80,"input_tokens_details":{"cached_tokens":64}}}"#,
        r#"{"usageMetadata":{"promptTokenCount":80,"cachedContentTokenCount":64}}"#,
        r#"{"usage":{"inputTokens":16,"cacheReadInputTokens":64,"cacheWriteInputTokens":0}}"#,
    ];
    for ((path, body), answer) in [RESPONSES, GEMINI, CONVERSE].into_iter().zip(answers) {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, ROUTES);
        let first = body(&["a", "b", "c"]);
        send(&plugin, &host, path, &first, answer);
        assert_eq!(host.body(), first.to_string().into_bytes(), "{path}");
        let report = send(&plugin, &host, path, &body(&["c", "b", "a"]), answer);
        assert!(
            report.contains("documents=3; matched=3; moved=2"),
            "{path}: {report}"
        );
        let sent: Value = serde_json::from_slice(&host.body()).unwrap();
        let sent = sent.to_string();
        let places = ["a", "b", "c"].map(|name| sent.find(&format!("text of {name}")).unwrap());
        assert!(places.is_sorted(), "{path}: {sent}");
        assert_eq!(
            host.log_field("prompt_tokens").as_deref(),
            Some("80"),
            "{path}"
        );
        assert_eq!(
            host.log_field("cached_tokens").as_deref(),
            Some("64"),
            "{path}"
        );
        assert_eq!(
            host.counter("foreword_engine_cached_tokens_total"),
            128,
            "{path}"
        );
    }
}

#[test]
fn models_that_paths_name_share_nothing() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, ROUTES);
    let (_, body) = GEMINI;
    let body = body(&["a", "b"]);
    for (path, matched) in [
        ("/v1beta/models/x:generateContent", 0),
        ("/v1beta/models/y:generateContent", 0),
        ("/v1beta/models/x:streamGenerateContent?alt=sse", 2),
        ("/v1beta/models/%79:generateContent", 2),
    ] {
        let report = send(&plugin, &host, path, &body, "");
        assert!(
            report.contains(&format!("matched={matched};")),
            "{path}: {report}"
        );
    }
    let long = format!("/v1beta/models/{}:generateContent", "m".repeat(513));
    let report = send(&plugin, &host, &long, &body, "");
    assert_eq!(report, "passed; reason=long-model-name");
}

#[test]
fn a_refusal_is_told_in_the_words_of_its_api() {
    for (path, words) in [
        ("/v1/responses", r#""code":"invalid-json""#),
        (
            "/v1beta/models/m:generateContent",
            r#""status":"INVALID_ARGUMENT""#,
        ),
        (
            "/model/m/converse-stream",
            r#""__type":"ValidationException""#,
        ),
    ] {
        let host = ScriptedHost::default();
        let refusing = ROUTES.replacen('{', r#"{"on_failure": "refuse", "#, 1);
        let plugin = plugin(&host, &refusing);
        host.request("POST", path, &[]);
        let mut exchange = Exchange::new(plugin);
        exchange.on_request_headers(&host, false);
        host.receive(b"{");
        assert_eq!(exchange.on_request_body(&host, 1, true), Flow::Hold);
        let (status, error) = host.local_response().unwrap();
        let error = String::from_utf8(error).unwrap();
        assert_eq!(status, 400);
        assert!(error.contains(words), "{path}: {error}");
    }
}

#[test]
fn a_response_that_is_continued_goes_to_the_engine_that_keeps_it() {
    let host = ScriptedHost::default();
    let engines = r#"{"tenant": {"header": "x-tenant"}, "engines": [{"name": "a", "address": "10.0.0.1:80"}, {"name": "b", "address": "10.0.0.2:80"}]}"#;
    let workers = [plugin(&host, engines), plugin(&host, engines)];
    let ask = |worker: usize, tenant: &str, body: Value, answer: &str| {
        let body = body.to_string();
        host.request("POST", "/v1/responses", &[("x-tenant", tenant)]);
        let mut exchange = Exchange::new(Arc::clone(&workers[worker]));
        assert_eq!(exchange.on_request_headers(&host, false), Flow::Hold);
        host.receive(body.as_bytes());
        exchange.on_request_body(&host, body.len(), true);
        let to = host.header("x-gateway-destination-endpoint").unwrap();
        let (to, _) = to.split_once(',').unwrap();
        host.set_property(&["upstream", "address"], to.as_bytes());
        host.respond_with("200", None);
        exchange.on_response_headers(&host);
        host.stream(answer.as_bytes());
        exchange.on_response_body(&host, answer.len(), true);
        exchange.on_done(&host);
        to.to_owned()
    };
    // Also without documents.
    for number in 0..8 {
        let id = format!("resp_{number}");
        let answer = json!({"id": id, "usage": {"input_tokens": 9}}).to_string();
        let kept = ask(number % 2, "red", json!({"input": "Why?"}), &answer);
        for worker in [0, 1, 0] {
            let next = json!({"input": "And?", "previous_response_id": id});
            assert_eq!(ask(worker, "red", next, "{}"), kept, "{id}");
            let documents =
                json!({"input": "<doc>a</doc><doc>b</doc>", "previous_response_id": id});
            assert_eq!(ask(worker, "red", documents, "{}"), kept, "{id}");
        }
    }
    // A response of another tenant, or an unknown one, does not restrict the choice.
    for (tenant, id) in [("blue", "resp_0"), ("red", "resp_99")] {
        let next = || json!({"input": "And?", "previous_response_id": id});
        let mut to: Vec<String> = (0..4).map(|_| ask(0, tenant, next(), "{}")).collect();
        to.sort();
        to.dedup();
        assert_eq!(to.len(), 2, "{tenant} {id}");
    }
}
