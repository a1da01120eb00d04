//! Tests of what operators do with a running gateway: dry runs, experiments, bypassing, reading its log.

use foreword_ordering::random::Random;
use foreword_tests::artifacts::{host_binary, repository};
use foreword_tests::http::{exchange, post, post_with};
use foreword_tests::{Gateway, GatewayOptions, Host, Upstream};
use serde_json::{Value, json};
use std::process::Command;

use crate::{configured, send, tagged, with_array};

#[test]
fn a_dry_run_reports_what_would_be_done_and_changes_no_byte() {
    let upstream = Upstream::start().unwrap();
    let gateway = configured(&upstream, json!({"mode": "dry-run"}));
    for body in [tagged(&["a", "b", "c"]), with_array(&["a", "b", "c"])] {
        assert!(send(&gateway, &body).report().starts_with("dry-run; "));
    }
    for body in [tagged(&["c", "b", "a"]), with_array(&["c", "b", "a"])] {
        let response = send(&gateway, &body);
        assert_eq!(
            response.report(),
            "dry-run; policy=foresight; documents=3; matched=3; moved=2; dropped=0; hint=1; client_matched=0"
        );
        let last = upstream.last().unwrap();
        assert_eq!(last.text(), body);
        assert_eq!(last.header("x-foreword-path"), None);
    }
    gateway.await_requests(4);
    assert_eq!(gateway.metric("foreword_dry_run_total").unwrap(), Some(4));
    assert_eq!(gateway.metric("foreword_ordered_total").unwrap(), Some(0));
}

#[test]
fn a_request_with_the_bypass_header_goes_on_untouched_and_without_it() {
    let upstream = Upstream::start().unwrap();
    let gateway = configured(&upstream, json!({"bypass_header": "x-foreword-bypass"}));
    let body = with_array(&["a", "b"]);
    let request = post_with(&["x-foreword-bypass: yes"], body.as_bytes());
    let response = exchange(gateway.address(), &request).unwrap();
    assert_eq!(response.report(), "passed; reason=bypass");
    let last = upstream.last().unwrap();
    assert_eq!(last.text(), body);
    assert_eq!(last.header("x-foreword-bypass"), None);
    gateway.await_metric("foreword_passed_bypass_total", 1);
}

#[test]
fn the_arms_of_an_experiment_are_told_in_header_and_counters() {
    let upstream = Upstream::start().unwrap();
    let plugin = json!({"experiment": {"name": "spring", "control_share": 0.5}});
    let gateway = configured(&upstream, plugin);
    // Chats differ in how they begin; each comes twice, in another order.
    let body = |chat: usize, ids: &[&str]| tagged(ids).replace("Why?", &format!("Why {chat}?"));
    let mut controls = 0;
    for chat in 0..40 {
        send(&gateway, &body(chat, &["a", "b", "c"]));
        let second = body(chat, &["a", "b", "c"]);
        let response = send(&gateway, &second);
        let report = response.report().to_owned();
        if report.ends_with("; arm=control") {
            assert!(
                report.starts_with("unchanged; policy=retrieval;"),
                "{report}"
            );
            assert_eq!(upstream.last().unwrap().text(), second);
            controls += 1;
        } else {
            assert!(report.contains("; policy=foresight;"), "{report}");
            assert!(report.ends_with("; arm=ordered"), "{report}");
        }
    }
    assert!((8..=32).contains(&controls), "{controls} of 40");
    gateway.await_requests(80);
    let count = |name: &str| gateway.metric(name).unwrap().unwrap();
    assert_eq!(count("foreword_arm_control_requests_total"), 2 * controls);
    let requests = count("foreword_arm_ordered_requests_total");
    assert_eq!(requests, 80 - 2 * controls);
    let tokens = ["control", "ordered"].map(|arm| {
        let name = format!("foreword_arm_{arm}_document_tokens_total");
        count(&name)
    });
    assert_eq!(
        tokens[0] + tokens[1],
        count("foreword_document_tokens_total")
    );
}

/// Returns the access log's line for each request.
fn lines(log: &str) -> Vec<Value> {
    log.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn the_shipped_access_log_has_what_was_done_in_fields() {
    let upstream = Upstream::start().unwrap();
    let plugin = json!({"experiment": {"control_share": 0}});
    let gateway = configured(&upstream, plugin);
    send(&gateway, &tagged(&["a", "b"]));
    send(&gateway, &tagged(&["b", "a"]));
    send(&gateway, "{");
    exchange(
        gateway.address(),
        b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n",
    )
    .unwrap();
    let log = gateway.stop().unwrap();
    let lines = lines(&log);
    let field = |at: usize, name: &str| lines[at][name].as_str().map(str::to_owned);
    let is = |at: usize, name: &str, value: &str| {
        assert_eq!(field(at, name).as_deref(), Some(value), "{}", lines[at]);
    };
    is(0, "outcome", "unchanged");
    is(1, "outcome", "ordered");
    is(1, "policy", "foresight");
    is(1, "arm", "ordered");
    is(1, "documents", "2");
    is(1, "matched", "2");
    is(1, "moved", "2");
    assert_eq!(field(1, "document_tokens"), field(1, "matched_tokens"));
    is(1, "client_matched_tokens", "0");
    is(2, "outcome", "passed");
    is(2, "reason", "invalid-json");
    assert!(lines[2]["documents"].is_null(), "{}", lines[2]);
    for name in ["outcome", "reason", "documents"] {
        assert!(lines[3][name].is_null(), "{}", lines[3]);
    }
    // What the second request's order saved is all of its documents.
    let row = ledger(&log);
    assert_eq!(row["requests"], 2, "{row}");
    let saved = row["saved_tokens"].to_string();
    assert_eq!(Some(saved), field(1, "matched_tokens"), "{row}");
}

/// The engine counts what both orders find; the ledger estimates the difference from the log of one of them.
#[test]
fn the_ledger_estimates_what_the_engine_counts() {
    let model = repository().join("host/engine/fixtures/qwen2");
    let mut random = Random::new(5);
    let bodies: Vec<String> = (0..60)
        .map(|at| {
            let mut ids: Vec<u64> = (0..8).collect();
            random.shuffle(&mut ids);
            let documents = ids.iter().take(4).map(|id| {
                let text = format!("What {id} says is long enough to fill some pages. ").repeat(5);
                format!("<document id=\"{id}\">{text}</document>")
            });
            let content = format!("{}\nQuestion {at}: why?", documents.collect::<String>());
            let message = json!({"role": "user", "content": content});
            json!({"model": "tiny", "max_tokens": 1, "messages": [message]}).to_string()
        })
        .collect();
    let [ordered, as_came] = ["foresight", "retrieval"].map(|policy| {
        let host = Host::start(&model, &["--name", "tiny", "--kv-tokens", "32768"]).unwrap();
        let options = GatewayOptions {
            plugin: Some(json!({"ordering": {"policy": policy}})),
            ..GatewayOptions::placing_freely(host.address())
        };
        let gateway = Gateway::start(&options).unwrap();
        for body in &bodies {
            assert_eq!(send(&gateway, body).status, 200);
        }
        ledger(&gateway.stop().unwrap())
    });
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap();
    let prompts = number(&ordered, "prompt_tokens");
    let counted = number(&ordered, "cached_tokens") - number(&as_came, "cached_tokens");
    let estimated = number(&ordered, "saved_tokens");
    assert!(counted > 0.1 * prompts, "{ordered} {as_came}");
    let error = (estimated - counted).abs() / prompts;
    assert!(error < 0.01, "{error}: {ordered} {as_came}");
    assert_eq!(number(&as_came, "saved_tokens"), 0.0);
}

/// Returns the one row of the ledger of an access log.
fn ledger(log: &str) -> Value {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, log).unwrap();
    let mut ledger = Command::new(host_binary("dev").unwrap());
    let ledger = ledger.args(["ledger", "--json"]).arg(file.path());
    let told: Value = serde_json::from_slice(&ledger.output().unwrap().stdout).unwrap();
    told["rows"][0].clone()
}

#[test]
fn without_log_fields_the_access_log_has_none() {
    let upstream = Upstream::start().unwrap();
    let gateway = configured(&upstream, json!({"log_fields": false}));
    send(&gateway, &tagged(&["a"]));
    let lines = lines(&gateway.stop().unwrap());
    assert!(lines[0]["outcome"].is_null(), "{}", lines[0]);
}

/// Everything that Envoy can be made to log about its Wasm VMs, with every kind of request.
#[test]
fn the_most_talkative_log_holds_nothing_of_documents_questions_tenants_or_salts() {
    let upstream = Upstream::start().unwrap();
    let key = "5a17c0de".repeat(8);
    let options = GatewayOptions {
        plugin: Some(json!({
            "tenant": {"header": "x-tenant"},
            "salt": {"key_env": "FOREWORD_SALT_KEY"},
            "bypass_header": "x-raw",
            "max_body_bytes": 100_000,
        })),
        environment: vec![("FOREWORD_SALT_KEY", key.clone())],
        verbose: true,
        ..GatewayOptions::placing_freely(upstream.address())
    };
    let gateway = Gateway::start(&options).unwrap();
    let secret = "swordfish";
    let mut salts = Vec::new();
    for body in [
        tagged(&[secret, "b"]),
        tagged(&["b", secret]),
        with_array(&[secret]),
        format!("{{\"{secret}"),
        format!(
            "{{\"messages\": [], \"documents\": [\"{}\"]}}",
            secret.repeat(20_000)
        ),
    ] {
        let tenant = format!("x-tenant: {secret}");
        for headers in [
            vec![tenant.as_str()],
            vec![tenant.as_str(), "x-raw: 1"],
            vec![],
        ] {
            let response = exchange(gateway.address(), &post_with(&headers, body.as_bytes()));
            let response = response.unwrap();
            let said = format!(
                "{:?} {:?}",
                response.headers,
                String::from_utf8_lossy(&response.body)
            );
            assert!(!said.contains(secret) || response.status == 200, "{said}");
        }
    }
    for request in upstream.received() {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        salts.push(body["cache_salt"].as_str().unwrap().to_owned());
    }
    assert!(salts.len() > 3);
    gateway.await_requests(15);
    let stats = gateway.admin_get("/stats").unwrap();
    let dump = gateway.admin_get("/config_dump").unwrap();
    let log = gateway.log().unwrap();
    assert!(
        log.contains("event=loaded"),
        "the filter's own lines are there"
    );
    let access_log = gateway.stop().unwrap();
    for text in [log, access_log, stats, dump] {
        for word in [secret, key.as_str(), salts[0].as_str()] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }
}

#[test]
fn two_filters_in_one_chain_keep_out_of_each_others_way() {
    let upstream = Upstream::start().unwrap();
    let gateway = configured(&upstream, json!({}));
    let yaml = gateway.filter_yaml().unwrap();
    drop(gateway);
    let options = GatewayOptions {
        filters_before: Some(yaml),
        ..GatewayOptions::placing_freely(upstream.address())
    };
    let gateway = Gateway::start(&options).unwrap();
    for _ in 0..3 {
        let response = exchange(gateway.address(), &post(tagged(&["a", "b"]).as_bytes()));
        assert_eq!(response.unwrap().status, 200);
    }
    assert_eq!(gateway.failures().unwrap(), 0);
    let lines = lines(&gateway.stop().unwrap());
    assert!(
        lines.iter().all(|line| line["outcome"] == "unchanged"),
        "{lines:?}"
    );
}
