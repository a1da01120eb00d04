//! Tests of the plugin's configuration, headers, counters and log, as an operator sees them.

use foreword_ordering::path::SentPath;
use foreword_tests::http::{exchange, post, post_with};
use foreword_tests::{Gateway, GatewayOptions, Upstream};
use serde_json::{Value, json};

use crate::{configured, gateway, send, tagged};

#[test]
fn envoy_refuses_to_start_with_a_wrong_configuration_and_says_which_field() {
    let upstream = Upstream::start().unwrap();
    for (plugin, words) in [
        (
            json!({"max_body_bytes": 0}),
            ["max_body_bytes: 0", "from 1 to 33554432"],
        ),
        (
            json!({"max_body": 1}),
            ["unknown field `max_body`", "expected one of"],
        ),
        (
            json!({"on_failure": "drop"}),
            ["on_failure: \"drop\"", "\"pass\" or \"refuse\""],
        ),
        (json!({"routes": ["v1"]}), ["routes: \"v1\"", "begins with"]),
        (
            json!({"ordering": {"policy": "best"}}),
            ["policy: `best`", "longest"],
        ),
        (
            json!({"ordering": {"tree": {"max_nodes": 0}}}),
            ["tree.max_nodes", "0 is out of range"],
        ),
        (json!([]), ["plugin configuration", "not a JSON object"]),
    ] {
        let options = GatewayOptions {
            plugin: Some(plugin),
            ..GatewayOptions::placing_freely(upstream.address())
        };
        let error = Gateway::start(&options).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{error}\nlacks {word:?}");
        }
    }
}

#[test]
fn an_empty_configuration_gives_the_documented_defaults() {
    let upstream = Upstream::start().unwrap();
    let gateway = configured(&upstream, json!({}));
    assert!(
        send(&gateway, &tagged(&["a"]))
            .report()
            .starts_with("unchanged; policy=foresight;")
    );
    let log = gateway.log().unwrap();
    assert!(
        log.contains(
            "routes=/v1/chat/completions,/v1/messages,/v1/responses max_body_bytes=4194304 mode=order \
             experiment=off tenants=off salts=off"
        ),
        "{log}"
    );
}

#[test]
fn only_the_configured_routes_are_watched() {
    let upstream = Upstream::start().unwrap();
    let gateway = configured(&upstream, json!({"routes": ["/chat"]}));
    let body = tagged(&["a", "b"]);
    assert_eq!(send(&gateway, &body).report(), "");
    for path in ["/chat", "/chat?x=1", "//chat", "/x/../chat"] {
        let request = String::from_utf8(post(body.as_bytes())).unwrap();
        let request = request.replacen("/v1/chat/completions", path, 1);
        let response = exchange(gateway.address(), request.as_bytes()).unwrap();
        assert!(
            response.report().contains("documents=2"),
            "{path}: {}",
            response.report()
        );
    }
}

#[test]
fn a_report_forged_by_client_or_upstream_is_replaced() {
    let upstream = Upstream::scripted(|_, reply| {
        reply.raw(
            b"HTTP/1.1 200 OK\r\nx-foreword: forged by upstream\r\nX-Foreword: twice\r\n\
            content-length: 2\r\nconnection: close\r\n\r\n{}",
        )
    })
    .unwrap();
    let gateway = gateway(&upstream);
    let forged = ["x-foreword: forged by client", "X-Foreword: twice"];
    let response = exchange(
        gateway.address(),
        &post_with(&forged, tagged(&["a"]).as_bytes()),
    )
    .unwrap();
    let reports: Vec<_> = response
        .headers
        .iter()
        .filter(|(name, _)| name == "x-foreword")
        .collect();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(
        response.report().starts_with("unchanged;"),
        "{}",
        response.report()
    );
    assert_eq!(upstream.last().unwrap().header("x-foreword"), None);
}

#[test]
fn the_path_goes_to_the_engine_and_can_be_renamed_and_switched_off() {
    let forged = |ids: &[&str]| {
        let headers = ["x-foreword-path: 1;forged", "x-path: 1;forged"];
        post_with(&headers, tagged(ids).as_bytes())
    };
    for (plugin, name) in [
        (json!({}), Some("x-foreword-path")),
        (json!({"path_header": "X-Path"}), Some("x-path")),
        (json!({"path_header": null}), None),
    ] {
        let upstream = Upstream::start().unwrap();
        let gateway = configured(&upstream, plugin);
        for ids in [&["a", "b"][..], &["b", "a"]] {
            let response = exchange(gateway.address(), &forged(ids)).unwrap();
            assert_eq!(response.status, 200);
        }
        let received = upstream.received();
        let paths = received
            .iter()
            .map(|request| name.and_then(|name| request.header(name)));
        match paths.collect::<Vec<_>>()[..] {
            [Some(first), Some(second)] => {
                assert_eq!(
                    first, second,
                    "the second request was sent in the first one's order"
                );
                assert_eq!(
                    SentPath::from_header(first).unwrap().runs[0]
                        .documents
                        .len(),
                    2
                );
            }
            [None, None] if name.is_none() => {
                assert_eq!(received[0].header("x-foreword-path"), None);
            }
            ref other => panic!("{name:?}: {other:?}"),
        }
    }
}

#[test]
fn the_report_header_can_be_renamed_and_switched_off() {
    let upstream = Upstream::start().unwrap();
    let renamed = configured(&upstream, json!({"report_header": "X-Prompt-Order"}));
    let response = send(&renamed, &tagged(&["a"]));
    assert!(
        response
            .header("x-prompt-order")
            .unwrap()
            .starts_with("unchanged;")
    );
    assert_eq!(response.header("x-foreword"), None);

    let silent = configured(&upstream, json!({"report_header": null}));
    let response = send(&silent, &tagged(&["a"]));
    assert_eq!(response.status, 200);
    assert_eq!(response.header("x-foreword"), None);
}

#[test]
fn every_request_is_counted_once_by_what_became_of_it() {
    let upstream = Upstream::start().unwrap();
    let gateway = gateway(&upstream);
    let none = r#"{"messages": [{"role": "user", "content": "hello"}]}"#;
    for body in [
        &tagged(&["a", "b"]),
        &tagged(&["b", "a"]),
        &tagged(&["a", "b"]),
        none,
        "{",
        "",
    ] {
        assert_eq!(send(&gateway, body).status, 200);
    }
    gateway.await_requests(6);
    let count = |name: &str| {
        let name = format!("foreword_{name}_total");
        gateway
            .metric(&name)
            .unwrap()
            .unwrap_or_else(|| panic!("{name} is not in /stats"))
    };
    assert_eq!(count("ordered"), 1);
    assert_eq!(count("unchanged"), 2);
    assert_eq!(count("passed_no_documents"), 1);
    assert_eq!(count("passed_invalid_json"), 1);
    assert_eq!(count("passed_empty_body"), 1);
    assert_eq!(count("refused"), 0);
    assert_eq!(count("documents"), 6);
    assert_eq!(count("matched_documents"), 4);
    assert!(count("matched_tokens") > 0 && count("matched_tokens") < count("document_tokens"));

    let prometheus = gateway.prometheus().unwrap();
    assert!(
        prometheus.contains("foreword_requests_total"),
        "{prometheus}"
    );
    assert!(
        prometheus.contains("foreword_ordering_microseconds_bucket"),
        "{prometheus}"
    );
}

#[test]
fn neither_log_nor_stats_nor_headers_hold_a_word_of_the_request() {
    let upstream = Upstream::start().unwrap();
    let gateway = configured(&upstream, json!({"on_failure": "refuse"}));
    let secret = "swordfish";
    let mut answers = String::new();
    for body in [
        tagged(&[secret]),
        format!("{{\"{secret}"),
        format!("{{\"messages\": \"{secret}\"}}"),
    ] {
        let response = send(&gateway, &body);
        answers += &format!(
            "{:?} {}",
            response.headers,
            String::from_utf8_lossy(&response.body)
        );
    }
    gateway.await_requests(3);
    let stats = gateway.admin_get("/stats").unwrap();
    let log = gateway.log().unwrap();
    let access_log = gateway.stop().unwrap();
    assert!(
        access_log.contains(r#""outcome":"unchanged""#),
        "{access_log}"
    );
    assert!(
        access_log.contains(r#""reason":"invalid-json""#),
        "{access_log}"
    );
    for text in [answers, stats, log, access_log] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[test]
fn without_the_filter_the_same_envoy_passes_everything() {
    let upstream = Upstream::start().unwrap();
    let options = GatewayOptions {
        plugin: None,
        ..GatewayOptions::placing_freely(upstream.address())
    };
    let gateway = Gateway::start(&options).unwrap();
    send(&gateway, &tagged(&["a", "b"]));
    let body = tagged(&["b", "a"]);
    let response = send(&gateway, &body);
    assert_eq!(response.header("x-foreword"), None);
    assert_eq!(upstream.last().unwrap().text(), body);
    assert_eq!(gateway.metric("foreword_requests_total").unwrap(), None);
}

#[test]
fn the_shipped_configuration_states_the_defaults() {
    let path = foreword_tests::artifacts::repository().join("gateway-config/envoy/envoy.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, value) = text.split_once("value: |\n").unwrap();
    let (value, _) = value.split_once("          # Foreword: end.").unwrap();
    let shipped: Value = serde_json::from_str(value).unwrap();
    let upstream = Upstream::start().unwrap();
    let [shipped, default] =
        [shipped, json!({})].map(|plugin| configured(&upstream, plugin).log().unwrap());
    let watching = |log: &str| {
        log.lines()
            .find_map(|line| Some(line.split_once("event=loaded")?.1.to_owned()))
    };
    assert!(watching(&shipped).is_some());
    assert_eq!(watching(&shipped), watching(&default));
}
