//! One exchange at a time, against the scripted host.

mod answers;
mod formats;
mod marks;
mod retrieval;

use super::*;
use crate::tests::{placed_freely, scripted::ScriptedHost};
use foreword_ordering::path::SentPath;

pub(super) const PATH: &str = "/v1/chat/completions";

pub(super) fn plugin(host: &ScriptedHost, json: &str) -> Arc<Plugin> {
    Arc::new(Plugin::load(host, placed_freely(json).as_bytes()).unwrap())
}

pub(super) fn body(ids: &[&str]) -> String {
    let documents: Vec<_> = ids
        .iter()
        .map(|id| format!(r#"{{"id": "{id}", "text": "text of {id}"}}"#))
        .collect();
    format!(
        r#"{{"model": "m", "messages": [{{"role": "user", "content": "why?"}}], "documents": [{}]}}"#,
        documents.join(", ")
    )
}

/// Asserts that the forwarded body has the documents in this order.
fn assert_in_order(host: &ScriptedHost, ids: &[&str]) {
    let sent = String::from_utf8(host.body()).unwrap();
    let places = ids.iter().map(|id| sent.find(&format!("text of {id}")));
    assert!(
        places.is_sorted_by(|left, right| left.unwrap() < right.unwrap()),
        "{sent}"
    );
}

/// Sends one request with a `content-length` and returns its report.
fn send(plugin: &Arc<Plugin>, host: &ScriptedHost, body: &str) -> String {
    host.request("POST", PATH, &[("content-length", &body.len().to_string())]);
    let mut exchange = Exchange::new(Arc::clone(plugin));
    if exchange.on_request_headers(host, body.is_empty()) == Flow::Hold {
        host.receive(body.as_bytes());
        exchange.on_request_body(host, host.body().len(), true);
    }
    exchange.on_response_headers(host);
    exchange.on_done(host);
    host.response_header("x-foreword").unwrap_or_default()
}

#[test]
fn a_second_request_is_held_rewritten_and_reported() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, "");
    send(&plugin, &host, &body(&["a", "b", "c"]));

    let second = body(&["c", "b", "a"]);
    host.request(
        "POST",
        PATH,
        &[("content-length", &second.len().to_string())],
    );
    let mut exchange = Exchange::new(Arc::clone(&plugin));
    assert_eq!(exchange.on_request_headers(&host, false), Flow::Hold);
    host.receive(&second.as_bytes()[..10]);
    assert_eq!(exchange.on_request_body(&host, 10, false), Flow::Hold);
    host.receive(&second.as_bytes()[10..]);
    assert_eq!(
        exchange.on_request_body(&host, second.len(), true),
        Flow::Continue
    );
    exchange.on_response_headers(&host);

    assert_in_order(&host, &["a", "b", "c"]);
    assert_eq!(
        host.header("content-length"),
        Some(host.body().len().to_string())
    );
    let report = host.response_header("x-foreword").unwrap();
    assert!(report.starts_with("ordered; policy="), "{report}");
    assert!(
        report.contains("; documents=3; matched=3; moved=2; dropped=0"),
        "{report}"
    );
    assert_eq!(host.counter("foreword_requests_total"), 2);
    assert_eq!(host.counter("foreword_matched_documents_total"), 3);
    assert_eq!(host.samples("foreword_ordering_microseconds").len(), 2);
}

#[test]
fn released_headers_go_on_without_content_length_and_the_body_follows() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, r#"{"request_headers": "release"}"#);
    for (ids, sent, report) in [
        (["a", "b", "c"], ["a", "b", "c"], "matched=0"),
        (["c", "b", "a"], ["a", "b", "c"], "matched=3"),
    ] {
        let body = body(&ids);
        host.request("POST", PATH, &[("content-length", &body.len().to_string())]);
        let mut exchange = Exchange::new(Arc::clone(&plugin));
        assert_eq!(exchange.on_request_headers(&host, false), Flow::Continue);
        assert_eq!(host.header("content-length"), None);
        host.refuse("set_request_header");
        host.receive(&body.as_bytes()[..10]);
        assert_eq!(exchange.on_request_body(&host, 10, false), Flow::Hold);
        host.receive(&body.as_bytes()[10..]);
        assert_eq!(
            exchange.on_request_body(&host, body.len(), true),
            Flow::Continue
        );
        exchange.on_response_headers(&host);
        assert_in_order(&host, &sent);
        assert!(host.response_header("x-foreword").unwrap().contains(report));
    }
    assert_eq!(
        host.refused_calls(),
        0,
        "headers that had gone on were changed"
    );
}

#[test]
fn headers_that_decide_are_released_as_they_came() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, r#"{"request_headers": "release"}"#);
    host.request("POST", PATH, &[("content-length", "4194305")]);
    let mut exchange = Exchange::new(plugin);
    assert_eq!(exchange.on_request_headers(&host, false), Flow::Continue);
    assert_eq!(host.header("content-length").as_deref(), Some("4194305"));
}

#[test]
fn a_chunked_request_gets_no_content_length() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, "");
    send(&plugin, &host, &body(&["a", "b"]));
    host.request("POST", PATH, &[]);
    let mut exchange = Exchange::new(plugin);
    assert_eq!(exchange.on_request_headers(&host, false), Flow::Hold);
    host.receive(body(&["b", "a"]).as_bytes());
    assert_eq!(
        exchange.on_request_body(&host, host.body().len(), true),
        Flow::Continue
    );
    assert_eq!(host.header("content-length"), None);
    assert_in_order(&host, &["a", "b"]);
}

#[test]
fn trailers_complete_the_body() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, "");
    send(&plugin, &host, &body(&["a", "b"]));
    host.request("POST", PATH, &[]);
    let mut exchange = Exchange::new(plugin);
    exchange.on_request_headers(&host, false);
    host.receive(body(&["b", "a"]).as_bytes());
    assert_eq!(
        exchange.on_request_body(&host, host.body().len(), false),
        Flow::Hold
    );
    assert_eq!(exchange.on_request_trailers(&host), Flow::Continue);
    assert_in_order(&host, &["a", "b"]);
}

#[test]
fn requests_that_are_not_ours_are_neither_held_nor_counted() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, "");
    for (method, path) in [
        ("GET", PATH),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/chat/completions/"),
    ] {
        host.request(method, path, &[("x-foreword", "ordered; forged")]);
        let mut exchange = Exchange::new(Arc::clone(&plugin));
        assert_eq!(exchange.on_request_headers(&host, false), Flow::Continue);
        assert_eq!(
            exchange.on_request_body(&host, 9_000_000, true),
            Flow::Continue
        );
        exchange.on_response_headers(&host);
        assert_eq!(host.response_header("x-foreword"), None);
        assert_eq!(
            host.header("x-foreword"),
            None,
            "forged header of {method} {path}"
        );
    }
    assert_eq!(host.counter("foreword_requests_total"), 0);
}

#[test]
fn a_query_does_not_hide_a_route() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, "");
    host.request("POST", "/v1/chat/completions?api-version=1", &[]);
    assert_eq!(
        Exchange::new(plugin).on_request_headers(&host, false),
        Flow::Hold
    );
}

#[test]
fn headers_alone_can_decide_that_a_request_passes() {
    for (header, value, reason) in [
        ("content-type", "text/plain", "not-json"),
        ("content-type", "application/jsonx", "not-json"),
        ("content-encoding", "gzip", "encoded"),
        ("content-length", "4194305", "too-large"),
    ] {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, "");
        host.request("POST", PATH, &[(header, value)]);
        let mut exchange = Exchange::new(plugin);
        assert_eq!(
            exchange.on_request_headers(&host, false),
            Flow::Continue,
            "{reason}"
        );
        exchange.on_response_headers(&host);
        let report = host.response_header("x-foreword").unwrap();
        assert_eq!(report, format!("passed; reason={reason}"));
    }
}

#[test]
fn json_is_recognised_by_its_media_type() {
    for value in [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/vnd.x+json",
    ] {
        assert!(is_json(value.as_bytes()), "{value}");
    }
    for value in [
        "",
        "text/json",
        "application/jsonl",
        "multipart/form-data; x=application/json",
    ] {
        assert!(!is_json(value.as_bytes()), "{value}");
    }
}

#[test]
fn a_body_that_outgrows_the_bound_goes_on_at_once() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, r#"{"max_body_bytes": 100}"#);
    host.request("POST", PATH, &[]);
    let mut exchange = Exchange::new(plugin);
    assert_eq!(exchange.on_request_headers(&host, false), Flow::Hold);
    assert_eq!(exchange.on_request_body(&host, 100, false), Flow::Hold);
    assert_eq!(exchange.on_request_body(&host, 101, false), Flow::Continue);
    assert_eq!(exchange.on_request_body(&host, 5, true), Flow::Continue);
    assert_eq!(host.counter("foreword_passed_too_large_total"), 1);
}

#[test]
fn faults_of_the_client_are_refused_only_where_configured() {
    let long = format!("[{}]", " ".repeat(200));
    for (body, reason, status) in [
        ("{]", "invalid-json", 400),
        (long.as_str(), "too-large", 413),
    ] {
        let host = ScriptedHost::default();
        let pass = plugin(&host, r#"{"max_body_bytes": 100}"#);
        assert_eq!(send(&pass, &host, body), format!("passed; reason={reason}"));
        assert_eq!(host.local_response(), None);

        let refuse = plugin(&host, r#"{"max_body_bytes": 100, "on_failure": "refuse"}"#);
        assert_eq!(
            send(&refuse, &host, body),
            format!("refused; reason={reason}")
        );
        let (answered, error) = host.local_response().unwrap();
        assert_eq!(answered, status);
        let error: serde_json::Value = serde_json::from_slice(&error).unwrap();
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert_eq!(error["error"]["code"], reason);
    }
}

#[test]
fn a_request_without_documents_passes_even_where_faults_are_refused() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, r#"{"on_failure": "refuse"}"#);
    let body = r#"{"messages": [{"role": "user", "content": "hello"}]}"#;
    assert_eq!(send(&plugin, &host, body), "passed; reason=no-documents");
    assert_eq!(send(&plugin, &host, ""), "passed; reason=empty-body");
}

#[test]
fn a_refused_request_stays_held() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, r#"{"max_body_bytes": 10, "on_failure": "refuse"}"#);
    host.request("POST", PATH, &[]);
    let mut exchange = Exchange::new(plugin);
    exchange.on_request_headers(&host, false);
    assert_eq!(exchange.on_request_body(&host, 11, false), Flow::Hold);
    assert_eq!(exchange.on_request_body(&host, 20, true), Flow::Hold);
    assert_eq!(host.counter("foreword_refused_total"), 1);
}

#[test]
fn tenants_do_not_see_each_others_documents() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, r#"{"tenant": {"header": "x-tenant"}}"#);
    let send = |tenant: Option<&str>, ids: &[&str]| {
        let body = body(ids);
        let headers: Vec<_> = tenant.iter().map(|tenant| ("x-tenant", *tenant)).collect();
        host.request("POST", PATH, &headers);
        let mut exchange = Exchange::new(Arc::clone(&plugin));
        if exchange.on_request_headers(&host, false) == Flow::Hold {
            host.receive(body.as_bytes());
            exchange.on_request_body(&host, body.len(), true);
        }
        exchange.on_response_headers(&host);
        host.response_header("x-foreword").unwrap()
    };
    send(Some("one"), &["a", "b"]);
    assert!(send(Some("two"), &["b", "a"]).contains("matched=0"));
    assert!(send(Some("one"), &["b", "a"]).contains("matched=2"));
    assert_eq!(send(None, &["b", "a"]), "passed; reason=no-tenant");
    assert_eq!(
        send(Some(&"x".repeat(257)), &["b", "a"]),
        "passed; reason=bad-tenant"
    );
}

#[test]
fn the_engine_is_told_the_path_and_a_client_cannot_tell_one() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, "");
    send(&plugin, &host, &body(&["a", "b"]));
    let first = host.header("x-foreword-path").unwrap();
    let path = SentPath::from_header(&first).unwrap();
    assert_eq!(path.runs.len(), 1);
    assert_eq!(path.runs[0].documents.len(), 2);

    // The same two in the other order are replayed, with a third one after them.
    send(&plugin, &host, &body(&["c", "b", "a"]));
    let second = host.header("x-foreword-path").unwrap();
    assert!(second.starts_with(&first), "{second}");

    for (json, method, sent) in [
        ("", "GET", ""),
        (
            "",
            "POST",
            r#"{"messages": [{"role": "user", "content": "hello"}]}"#,
        ),
        (r#"{"path_header": null}"#, "POST", &body(&["a"])),
    ] {
        let plugin = self::plugin(&host, json);
        host.request(method, PATH, &[("x-foreword-path", "1;forged")]);
        let mut exchange = Exchange::new(plugin);
        if exchange.on_request_headers(&host, sent.is_empty()) == Flow::Hold {
            host.receive(sent.as_bytes());
            exchange.on_request_body(&host, sent.len(), true);
        }
        assert_eq!(host.header("x-foreword-path"), None, "{method} {sent}");
    }
}

#[test]
fn a_proxy_that_refuses_a_call_lets_the_request_go_untouched() {
    let original = body(&["b", "a"]);
    for (call, json) in [
        ("request_header", ""),
        ("request_body", ""),
        ("replace_request_body", ""),
        ("set_request_header", ""),
        // The path is the first header written, `content-length` the second.
        ("set_request_header", r#"{"path_header": null}"#),
    ] {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, json);
        send(&plugin, &host, &body(&["a", "b"]));
        host.request(
            "POST",
            PATH,
            &[("content-length", &original.len().to_string())],
        );
        host.refuse(call);
        let mut exchange = Exchange::new(plugin);
        if exchange.on_request_headers(&host, false) == Flow::Hold {
            host.receive(original.as_bytes());
            assert_eq!(
                exchange.on_request_body(&host, original.len(), true),
                Flow::Continue
            );
            assert_eq!(host.body(), original.as_bytes(), "{call}");
            assert_eq!(
                host.header("content-length"),
                Some(original.len().to_string())
            );
            assert_eq!(host.header("x-foreword-path"), None, "{call}");
        }
        exchange.on_response_headers(&host);
        assert_eq!(
            host.response_header("x-foreword").unwrap(),
            "passed; reason=host-error",
            "{call}"
        );
    }
}

/// Sends one request with these headers and returns its report.
fn send_with(
    plugin: &Arc<Plugin>,
    host: &ScriptedHost,
    headers: &[(&str, &str)],
    body: &[u8],
) -> String {
    host.request("POST", PATH, headers);
    send_begun(plugin, host, body)
}

/// Like `send_with`, for a request that the host already has.
fn send_begun(plugin: &Arc<Plugin>, host: &ScriptedHost, body: &[u8]) -> String {
    let mut exchange = Exchange::new(Arc::clone(plugin));
    if exchange.on_request_headers(host, body.is_empty()) == Flow::Hold
        && host.local_response().is_none()
    {
        host.receive(body);
        exchange.on_request_body(host, body.len(), true);
    }
    exchange.on_response_headers(host);
    exchange.on_done(host);
    host.response_header("x-foreword").unwrap_or_default()
}

const SALTED: &str = r#"{"tenant": {"header": "x-tenant"}, "salt": {"key_env": "SCRIPTED_KEY"}}"#;

/// The forwarded salt.
fn salt(host: &ScriptedHost) -> String {
    let sent: serde_json::Value = serde_json::from_slice(&host.body()).unwrap();
    sent["cache_salt"].as_str().unwrap().to_owned()
}

#[test]
fn every_readable_request_goes_on_with_its_tenants_salt_and_no_other() {
    let host = ScriptedHost::default();
    let plugin = plugin(
        &host,
        &SALTED.replacen('{', r#"{"bypass_header": "x-raw", "#, 1),
    );
    let salt_of = |tenant: &str, headers: &[(&str, &str)], body: &str| {
        let mut headers = headers.to_vec();
        headers.push(("x-tenant", tenant));
        send_with(&plugin, &host, &headers, body.as_bytes());
        salt(&host)
    };
    let with_documents = body(&["a", "b"]);
    let red = salt_of("red", &[], &with_documents);
    assert_ne!(red, salt_of("blue", &[], &with_documents));
    let forged = with_documents.replacen('{', r#"{"cache_salt": "blue's", "#, 1);
    let many: Vec<_> = (0..600).map(|id| id.to_string()).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    for body in [
        forged.as_str(),
        "{}",
        r#"{"cache_salt": null, "messages": []}"#,
        r#"{"messages": [{"role": "user", "content": "hello"}]}"#,
        r#"{"messages": [], "documents": ["a"]}"#,
        r#"{"messages": [{"role": "user", "content": "x"}], "documents": [7]}"#,
        &self::body(&many),
    ] {
        assert_eq!(salt_of("red", &[], body), red, "{body}");
        let sent = String::from_utf8(host.body()).unwrap();
        assert_eq!(sent.matches("cache_salt").count(), 1, "{sent}");
    }
    assert_eq!(salt_of("red", &[("x-raw", "1")], &forged), red);
    assert_eq!(
        host.response_header("x-foreword").unwrap(),
        "passed; reason=bypass"
    );
    assert_eq!(host.header("x-raw"), None);
}

#[test]
fn with_salts_a_body_that_cannot_be_read_goes_no_further() {
    let host = ScriptedHost::default();
    let plugin = plugin(
        &host,
        &SALTED.replacen('{', r#"{"max_body_bytes": 100, "#, 1),
    );
    let tenant = ("x-tenant", "red");
    let long = format!("{{{}}}", " ".repeat(200));
    for (headers, body, status, reason) in [
        (vec![], "{}", 403, "no-tenant"),
        (vec![("x-tenant", "a\tb")], "{}", 403, "bad-tenant"),
        (vec![("x-tenant", "red,blue")], "{}", 403, "several-tenants"),
        (vec![("x-tenant", "red\nred")], "{}", 403, "several-tenants"),
        (
            vec![tenant],
            r#"{"messages": [], "kv_transfer_params": {"remote_engine_id": "x"}}"#,
            400,
            "cache-field",
        ),
        (
            vec![tenant],
            r#"{"session_id": "blue's"}"#,
            400,
            "cache-field",
        ),
        (
            vec![tenant, ("content-type", "text/plain")],
            "{}",
            415,
            "not-json",
        ),
        (
            vec![tenant, ("content-encoding", "gzip")],
            "{}",
            415,
            "encoded",
        ),
        (
            vec![tenant, ("content-length", "101")],
            "{}",
            413,
            "too-large",
        ),
        (vec![tenant], long.as_str(), 413, "too-large"),
        (vec![tenant], "{", 400, "invalid-json"),
        (
            vec![tenant],
            r#"{"cache_salt": 1, "cache_salt": 2}"#,
            400,
            "invalid-json",
        ),
    ] {
        assert_eq!(
            send_with(&plugin, &host, &headers, body.as_bytes()),
            format!("refused; reason={reason}")
        );
        assert_eq!(host.local_response().unwrap().0, status, "{reason}");
    }
    assert_eq!(
        send_with(&plugin, &host, &[tenant], b""),
        "passed; reason=empty-body"
    );
}

#[test]
fn with_salts_a_proxy_that_refuses_a_call_stops_the_request() {
    for call in ["request_header", "request_body", "replace_request_body"] {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, SALTED);
        host.refuse(call);
        let body = body(&["a", "b"]);
        let report = send_with(&plugin, &host, &[("x-tenant", "red")], body.as_bytes());
        assert_eq!(report, "refused; reason=host-error", "{call}");
        assert_eq!(host.local_response().unwrap().0, 500, "{call}");
        host.refuse("respond");
        host.request("POST", PATH, &[("x-tenant", "red")]);
        let mut exchange = Exchange::new(plugin);
        assert_eq!(exchange.on_request_headers(&host, false), Flow::Hold);
        host.receive(body.as_bytes());
        assert_eq!(
            exchange.on_request_body(&host, body.len(), true),
            Flow::Hold,
            "{call}"
        );
    }
}

/// Sends only headers, by method and path, and returns the flow and the status of a local response.
fn headers_alone(
    plugin: &Arc<Plugin>,
    host: &ScriptedHost,
    request: (&str, &str, &[(&str, &str)]),
    end_of_stream: bool,
) -> (Flow, Option<u16>) {
    let (method, path, headers) = request;
    host.request(method, path, headers);
    let mut exchange = Exchange::new(Arc::clone(plugin));
    let flow = exchange.on_request_headers(host, end_of_stream);
    (flow, host.local_response().map(|(status, _)| status))
}

#[test]
fn with_salts_what_is_not_exactly_a_listed_path_goes_no_further_whatever_on_failure_says() {
    let spellings = [
        "/v1/chat/completions%0A",
        "/v1/chat/completions%0a",
        "/v1/chat/completions\n",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/./chat/completions",
        "/v1/../v1/chat/completions",
        "/v1/%2e/chat/completions",
        "/v1/chat%2Fcompletions",
        "/v1/chat/completion%73",
        "/v1/chat/completion%2573",
        "/v1/chat\\completions",
        "/v1/chat/completions;a=b",
        "/v1/chat/completions%00",
        "/v1/chat/completions%09",
        "/v1/chat/completions%3F",
        "/v1/chat/completions#x",
        "/v1/chat/Completions",
        "/v1/ch\u{e0}t/completions",
        "v1/chat/completions",
        "http://gateway/v1/chat/completions",
        "/v1/completions",
        "/v1/responses/",
        "/v1/responses/resp_1",
        "/v1/responses/resp_1/cancel",
        "/v1/embeddings",
        "/v1/kv/snapshot",
        "/metrics",
        "/v1/models/",
        "/v1/models%0A",
        "/",
        "*",
        "",
    ];
    for on_failure in ["pass", "refuse"] {
        let host = ScriptedHost::default();
        let on_failure = format!(r#"{{"on_failure": "{on_failure}", "bypass_header": "x-raw", "#);
        let plugin = plugin(&host, &SALTED.replacen('{', &on_failure, 1));
        let headers = [("x-tenant", "red"), ("x-raw", "1")];
        for path in spellings {
            for method in ["POST", "GET", "OPTIONS"] {
                for end_of_stream in [false, true] {
                    let request = (method, path, &headers[..]);
                    let refused = headers_alone(&plugin, &host, request, end_of_stream);
                    assert_eq!(refused, (Flow::Hold, Some(404)), "{method} {path:?}");
                }
            }
        }
        let refused = 6 * u64::try_from(spellings.len()).unwrap();
        assert_eq!(host.counter("foreword_unlisted_requests_total"), refused);
        assert_eq!(host.counter("foreword_refused_total"), refused);
    }
}

#[test]
fn with_salts_a_route_without_salts_in_an_engine_is_refused_in_its_dialect() {
    let answer = |engines: &str| {
        let host = ScriptedHost::default();
        let engines = format!(r#"{{"engines": {engines}, "#);
        let plugin = plugin(&host, &SALTED.replacen('{', &engines, 1));
        let headers = [("x-tenant", "red")];
        let (flow, _) = headers_alone(&plugin, &host, ("POST", "/v1/messages", &headers), false);
        (
            flow,
            host.local_response(),
            host.counter("foreword_unlisted_requests_total"),
        )
    };
    let keeps = r#"{"name": "a", "address": "10.0.0.1:1", "salts": ["/v1/messages"]}"#;
    let others = r#"{"name": "b", "address": "10.0.0.2:1"}"#;
    assert_eq!(answer(&format!("[{keeps}]")), (Flow::Hold, None, 0));
    for engines in [format!("[{others}]"), format!("[{keeps}, {others}]")] {
        let (flow, refused, count) = answer(&engines);
        let (status, body) = refused.unwrap();
        assert_eq!((flow, status, count), (Flow::Hold, 403, 1));
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["type"], "permission_error", "{body}");
        assert_eq!(body["type"], "error", "{body}");
    }
}

#[test]
fn several_tenants_are_refused_without_salts_too() {
    for value in ["red\nblue", "red,blue", "red,"] {
        let host = ScriptedHost::default();
        let plugin = plugin(
            &host,
            r#"{"tenant": {"header": "x-tenant"}, "on_failure": "pass"}"#,
        );
        let request = ("POST", PATH, &[("x-tenant", value)][..]);
        let refused = headers_alone(&plugin, &host, request, false);
        assert_eq!(refused, (Flow::Hold, Some(403)), "{value}");
        assert_eq!(host.counter("foreword_refused_total"), 1);
    }
}

#[test]
fn with_salts_a_refused_path_stays_refused_while_its_body_arrives() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, SALTED);
    host.request("POST", "/v1/messages%0A", &[("x-tenant", "red")]);
    let mut exchange = Exchange::new(plugin);
    assert_eq!(exchange.on_request_headers(&host, false), Flow::Hold);
    host.receive(b"{}");
    assert_eq!(exchange.on_request_body(&host, 2, false), Flow::Hold);
    assert_eq!(exchange.on_request_trailers(&host), Flow::Hold);
    exchange.on_response_headers(&host);
    assert_eq!(
        host.response_header("x-foreword").unwrap(),
        "refused; reason=unlisted-path"
    );
    let (_, error) = host.local_response().unwrap();
    let error: serde_json::Value = serde_json::from_slice(&error).unwrap();
    assert_eq!(error["error"]["type"], "not_found_error");
    assert!(!error.to_string().contains("%0A"), "{error}");
}

#[test]
fn with_salts_a_listed_path_goes_on_with_its_methods_and_without_a_body_that_nobody_reads() {
    let host = ScriptedHost::default();
    let plugin = plugin(
        &host,
        r#"{"tenant": {"header": "x-tenant"},
            "salt": {"key_env": "SCRIPTED_KEY", "open_paths": ["/v1/models", "/ping"]}}"#,
    );
    let tenant = ("x-tenant", "red");
    let json = ("content-type", "application/json");
    let websocket = ("upgrade", "websocket");
    let overridden = ("x-http-method-override", "POST");
    let gone_on = (Flow::Continue, None);
    let refused = |status| (Flow::Hold, Some(status));
    for (method, path, headers, end_of_stream, expected) in [
        ("GET", "/v1/models", &[][..], true, gone_on),
        ("HEAD", "/v1/models", &[], true, gone_on),
        ("GET", "/ping?x=%0A", &[], true, gone_on),
        ("OPTIONS", "/v1/models", &[], true, gone_on),
        ("OPTIONS", PATH, &[], true, gone_on),
        ("GET", "/v1/models", &[overridden], true, gone_on),
        // A default path that the configured list replaces.
        ("GET", "/health", &[], true, refused(404)),
        ("GET", "/v1/models", &[], false, refused(400)),
        ("OPTIONS", PATH, &[], false, refused(400)),
        ("POST", "/v1/models", &[tenant, json], false, refused(405)),
        ("GET", PATH, &[tenant, overridden], true, refused(405)),
        ("PUT", PATH, &[tenant, json], false, refused(405)),
        ("CONNECT", PATH, &[tenant], false, refused(405)),
        ("GET", "/ping", &[websocket], true, refused(400)),
        ("GET", "/ping", &[websocket], false, refused(400)),
        ("POST", PATH, &[tenant, websocket], false, refused(400)),
        // Routes: the request is held, or refused by its headers.
        ("POST", PATH, &[tenant, json], false, (Flow::Hold, None)),
        ("POST", "/v1/messages?%0A#", &[tenant], false, refused(403)),
        ("POST", PATH, &[json], false, refused(403)),
    ] {
        let flow = headers_alone(&plugin, &host, (method, path, headers), end_of_stream);
        assert_eq!(flow, expected, "{method} {path} {headers:?}");
    }
}

#[test]
fn a_405_names_the_methods_that_the_path_is_served_with() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, SALTED);
    for (path, allowed) in [(PATH, "POST, OPTIONS"), ("/health", "GET, HEAD, OPTIONS")] {
        headers_alone(&plugin, &host, ("DELETE", path, &[]), true);
        assert_eq!(host.local_header("allow").as_deref(), Some(allowed));
        let (status, error) = host.local_response().unwrap();
        let error: serde_json::Value = serde_json::from_slice(&error).unwrap();
        assert_eq!(
            (status, &error["error"]["code"]),
            (405, &"unlisted-method".into())
        );
        assert!(
            error["error"]["message"]
                .as_str()
                .unwrap()
                .contains(allowed)
        );
    }
}

#[test]
fn without_salts_a_path_that_is_not_listed_goes_on_unread() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, r#"{"tenant": {"header": "x-tenant"}}"#);
    for path in ["/v1/chat/completions%0A", "/v1/completions", "/metrics"] {
        let flow = headers_alone(&plugin, &host, ("POST", path, &[]), false);
        assert_eq!(flow, (Flow::Continue, None), "{path}");
    }
    assert_eq!(host.counter("foreword_requests_total"), 0);
}

#[test]
fn a_claim_names_the_tenant_and_a_header_does_not() {
    let host = ScriptedHost::default();
    let plugin = plugin(
        &host,
        r#"{"tenant": {"claim": ["org", "id"], "payload": "jwt"}}"#,
    );
    let path = ["envoy.filters.http.jwt_authn", "jwt", "org", "id"];
    let send = |claim: Option<&[u8]>, ids: &[&str]| {
        host.request("POST", PATH, &[("org", "red"), ("x-tenant", "red")]);
        if let Some(claim) = claim {
            host.set_metadata(&path, claim);
        }
        send_begun(&plugin, &host, body(ids).as_bytes())
    };
    send(Some(b"red"), &["a", "b"]);
    assert!(send(Some(b"blue"), &["b", "a"]).contains("matched=0"));
    assert!(send(Some(b"red"), &["b", "a"]).contains("matched=2"));
    assert_eq!(send(None, &["a"]), "passed; reason=no-tenant");
    // A number, as Envoy encodes it.
    let number = 42.0_f64.to_le_bytes();
    assert_eq!(send(Some(&number), &["a"]), "passed; reason=bad-tenant");
    assert_eq!(send(Some(b"\xff"), &["a"]), "passed; reason=bad-tenant");
}

#[test]
fn a_proxy_without_metadata_refuses_to_read_claims_from_it() {
    let host = ScriptedHost::default();
    host.refuse("metadata");
    let json = r#"{"tenant": {"claim": "sub", "payload": "jwt"}}"#;
    let error = Plugin::load(&host, json.as_bytes()).err().unwrap();
    assert!(error.to_string().contains("claim_to_headers"), "{error}");
}

#[test]
fn a_salt_key_that_the_environment_does_not_have_is_an_error() {
    let json = SALTED.replace("SCRIPTED_KEY", "NO_SUCH");
    let error = Plugin::load(&ScriptedHost::default(), json.as_bytes());
    let error = error.err().unwrap().to_string();
    assert!(
        error.contains("salt.key_env") && error.contains("64 to 256"),
        "{error}"
    );
}

#[test]
fn a_request_with_the_bypass_header_is_not_read() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, r#"{"bypass_header": "X-Raw"}"#);
    host.request("POST", PATH, &[("x-raw", "")]);
    let mut exchange = Exchange::new(Arc::clone(&plugin));
    assert_eq!(exchange.on_request_headers(&host, false), Flow::Continue);
    assert_eq!(host.header("x-raw"), None);
    exchange.on_response_headers(&host);
    assert_eq!(
        host.response_header("x-foreword").unwrap(),
        "passed; reason=bypass"
    );
    assert_eq!(host.counter("foreword_passed_bypass_total"), 1);
    assert_eq!(host.counter("foreword_requests_total"), 1);
}

#[test]
fn a_dry_run_reports_and_sends_the_body_as_it_came() {
    let host = ScriptedHost::default();
    let plugin = plugin(
        &host,
        r#"{"mode": "dry-run", "experiment": {"control_share": 1}}"#,
    );
    send(&plugin, &host, &body(&["a", "b", "c"]));
    let second = body(&["c", "b", "a"]);
    assert_eq!(
        send(&plugin, &host, &second),
        "dry-run; policy=foresight; documents=3; matched=3; moved=2; dropped=0; hint=1; client_matched=0"
    );
    assert_eq!(host.body(), second.as_bytes());
    assert_eq!(host.header("x-foreword-path"), None);
    assert_eq!(
        host.header("content-length"),
        Some(second.len().to_string())
    );
    assert_eq!(host.counter("foreword_dry_run_total"), 2);
}

#[test]
fn a_dry_run_with_salts_writes_the_salt_alone() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, &SALTED.replacen('{', r#"{"mode": "dry-run", "#, 1));
    let came = body(&["a", "b"]);
    send_with(&plugin, &host, &[("x-tenant", "red")], came.as_bytes());
    let field = format!("\"cache_salt\":\"{}\",", salt(&host));
    let sent = String::from_utf8(host.body()).unwrap();
    assert_eq!(sent.replacen(&field, "", 1), came);
}

#[test]
fn an_arm_is_told_in_header_counters_and_log() {
    let host = ScriptedHost::default();
    let plugin = plugin(
        &host,
        r#"{"experiment": {"name": "x", "control_share": 1}}"#,
    );
    let report = send(&plugin, &host, &body(&["a", "b"]));
    assert_eq!(
        report,
        "ordered; policy=retrieval; documents=2; matched=0; moved=0; dropped=0; hint=0; arm=control"
    );
    assert_eq!(host.counter("foreword_arm_control_requests_total"), 1);
    assert_eq!(host.counter("foreword_arm_ordered_requests_total"), 0);
    assert_eq!(host.log_field("arm").as_deref(), Some("control"));
    assert_eq!(host.log_field("outcome").as_deref(), Some("ordered"));
    assert_eq!(host.log_field("documents").as_deref(), Some("2"));
}

/// Each call into the proxy costs a VM about a microsecond. Counters are not included: see [`crate::metric_buffer`].
#[test]
fn a_client_waits_for_so_many_calls_into_the_proxy() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, "");
    send(&plugin, &host, &body(&["a", "b"]));
    let second = body(&["b", "a"]);
    let length = second.len().to_string();
    host.request("POST", PATH, &[("content-length", &length)]);
    host.calls_made();
    let calls = |expected: &[(&str, u32)]| {
        let mut made = host.calls_made();
        made.retain(|name, _| !["add", "record"].contains(name));
        assert_eq!(made.into_iter().collect::<Vec<_>>(), expected);
    };
    let mut exchange = Exchange::new(plugin);
    exchange.on_request_headers(&host, false);
    calls(&[("request_header", 7)]);
    host.receive(second.as_bytes());
    exchange.on_request_body(&host, second.len(), true);
    calls(&[
        ("now", 2),
        ("replace_request_body", 1),
        ("request_body", 1),
        ("set_request_header", 2),
        ("set_shared_data", 2),
        ("shared_data", 1),
    ]);
    host.respond_with("200", None);
    exchange.on_response_headers(&host);
    calls(&[("response_header", 1), ("set_response_header", 1)]);
    let answer = br#"{"usage": {"prompt_tokens": 10}}"#;
    host.stream(answer);
    exchange.on_response_body(&host, answer.len(), true);
    calls(&[("response_body", 1)]);
    exchange.on_done(&host);
    calls(&[("set_log_fields", 1)]);
}

#[test]
fn an_encoded_path_is_the_path_that_an_engine_decodes() {
    for (path, is_ours) in [
        ("/v1/chat%2Fcompletions", true),
        ("/v1/chat%2fcompletion%73?x=1", true),
        ("/%76%31/chat/completions", true),
        ("/v1/chat/completions%", false),
        ("/v1/chat/completions%00", false),
        ("/v1/chat%252Fcompletions", false),
        ("/v1/chat/completion", false),
        ("/v1/chat/completions/", false),
    ] {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, "");
        host.request("POST", path, &[]);
        let flow = Exchange::new(plugin).on_request_headers(&host, false);
        assert_eq!(flow == Flow::Hold, is_ours, "{path}");
    }
}

#[test]
fn nothing_of_a_request_is_logged() {
    let host = ScriptedHost::default();
    let key = "5a17".repeat(16);
    let json = SALTED.replace(
        "\"key_env\": \"SCRIPTED_KEY\"",
        &format!("\"key\": \"{key}\""),
    );
    let plugin = plugin(&host, &json);
    let secret = "swordfish";
    for call in ["", "set_log_fields", "replace_request_body", "respond"] {
        host.refuse(call);
        let body = body(&[secret]);
        for body in [body.as_str(), "{swordfish"] {
            send_with(&plugin, &host, &[("x-tenant", secret)], body.as_bytes());
        }
    }
    let log = host.log_text();
    assert!(
        log.contains("event=loaded") && log.contains("salts=on"),
        "{log}"
    );
    assert!(!log.contains(secret) && !log.contains("5a17"), "{log}");
}
