//! Exchanges with a choice of engines and usage in responses, against the scripted host.

use super::super::*;
use super::{PATH, body, plugin};
use crate::tests::scripted::ScriptedHost;

/// A plugin with two engines that cache what they receive.
fn two_engines(host: &ScriptedHost) -> Arc<Plugin> {
    plugin(
        host,
        r#"{"engines": [{"name": "a", "address": "10.0.0.1:80"}, {"name": "b", "address": "10.0.0.2:80"}]}"#,
    )
}

/// Sends a request until it is forwarded, and returns its destination.
fn depart(plugin: &Arc<Plugin>, host: &ScriptedHost, body: &str) -> (Exchange, String) {
    host.request(
        "POST",
        PATH,
        &[("x-gateway-destination-endpoint", "10.6.6.6:80")],
    );
    let mut exchange = Exchange::new(Arc::clone(plugin));
    assert_eq!(exchange.on_request_headers(host, false), Flow::Hold);
    host.receive(body.as_bytes());
    exchange.on_request_body(host, body.len(), true);
    let destinations = host.header("x-gateway-destination-endpoint").unwrap();
    (exchange, destinations)
}

/// The response comes from `address` with that status.
fn arrive(mut exchange: Exchange, host: &ScriptedHost, address: &str, status: &str) {
    host.set_property(&["upstream", "address"], address.as_bytes());
    host.respond_with(status, None);
    exchange.on_response_headers(host);
    exchange.on_done(host);
}

const TO_A: &str = "10.0.0.1:80,10.0.0.2:80";
const TO_B: &str = "10.0.0.2:80,10.0.0.1:80";

#[test]
fn requests_go_to_the_engine_that_holds_their_documents_and_new_ones_to_the_idle_one() {
    let host = ScriptedHost::default();
    let plugin = two_engines(&host);
    let (first, to) = depart(&plugin, &host, &body(&["a", "b"]));
    let (engine, other) = if to == TO_A {
        (TO_A, TO_B)
    } else {
        (TO_B, TO_A)
    };
    assert_eq!(to, engine);
    let (second, to) = depart(&plugin, &host, &body(&["c", "d"]));
    assert_eq!(to, other);
    // Also without documents.
    let (third, to) = depart(&plugin, &host, r#"{"messages": []}"#);
    assert!([TO_A, TO_B].contains(&&*to), "{to}");
    for (exchange, to) in [(first, engine), (second, other), (third, &*to)] {
        let (address, _) = to.split_once(',').unwrap();
        arrive(exchange, &host, address, "200");
    }
    for (ids, to) in [
        (["b", "a"], engine),
        (["d", "c"], other),
        (["b", "a"], engine),
    ] {
        let (exchange, went) = depart(&plugin, &host, &body(&ids));
        assert_eq!(went, to);
        let (address, _) = to.split_once(',').unwrap();
        arrive(exchange, &host, address, "200");
    }
}

#[test]
fn an_engine_that_fails_is_avoided_until_it_is_tried_again() {
    let host = ScriptedHost::default();
    let plugin = two_engines(&host);
    for failure in ["503", "502", "504"] {
        host.set_time(1_000_000);
        host.shared().retain(|key, _| !key.contains("/engine/"));
        let plugin = two_engines(&host);
        let (exchange, to) = depart(&plugin, &host, &body(&["a", "b"]));
        arrive(exchange, &host, "", failure);
        for _ in 0..4 {
            let (exchange, went) = depart(&plugin, &host, &body(&["b", "a"]));
            assert_ne!(went, to, "{failure}");
            let (address, _) = went.split_once(',').unwrap();
            arrive(exchange, &host, address, "200");
        }
    }
    drop(plugin);
}

#[test]
fn documents_of_a_refused_request_are_not_counted_as_held() {
    for status in ["400", "429", "500"] {
        for address in ["", "10.0.0.1:80", "10.0.0.2:80"] {
            let host = ScriptedHost::default();
            let plugin = two_engines(&host);
            let (exchange, _) = depart(&plugin, &host, &body(&["a", "b"]));
            arrive(exchange, &host, address, status);
            depart(&plugin, &host, &body(&["b", "a"]));
            let matched = host.counter("foreword_matched_documents_total");
            assert_eq!(matched, 0, "{status} from {address}");
        }
    }
}

#[test]
fn an_engine_that_served_instead_of_another_holds_the_documents_now() {
    let host = ScriptedHost::default();
    let plugin = two_engines(&host);
    host.set_time(1_000_000);
    let (exchange, to) = depart(&plugin, &host, &body(&["a", "b"]));
    let other = if to == TO_A {
        "10.0.0.2:80"
    } else {
        "10.0.0.1:80"
    };
    arrive(exchange, &host, other, "200");
    // The failed engine is out; when it is back, the documents are on the other one.
    for time in [1_000_100, 1_040_000, 1_080_000] {
        host.set_time(time);
        let (exchange, went) = depart(&plugin, &host, &body(&["b", "a"]));
        assert!(went.starts_with(other), "{went} at {time}");
        assert!(host.counter("foreword_matched_documents_total") >= 2);
        arrive(exchange, &host, other, "200");
    }
}

#[test]
fn a_client_that_leaves_says_nothing_of_the_engine_and_takes_its_load_along() {
    let host = ScriptedHost::default();
    let plugin = two_engines(&host);
    let choices = |plugin: &Plugin| plugin.engines().choices(&host, 0, 0);
    let (mut exchange, _) = depart(&plugin, &host, &body(&["a", "b"]));
    assert!(choices(&plugin).iter().any(|choice| choice.outstanding > 0));
    exchange.on_done(&host);
    exchange.on_done(&host);
    let choices = choices(&plugin);
    assert_eq!(choices.len(), 2);
    assert!(choices.iter().all(|choice| choice.outstanding == 0));
}

/// The router's 404, or a 403 of another filter, comes from no engine.
#[test]
fn an_answer_that_no_engine_gave_makes_none_healthy() {
    for (address, status, is_back) in [
        ("", "404", false),
        ("", "200", true),
        ("10.0.0.1:80", "404", true),
    ] {
        let host = ScriptedHost::default();
        let plugin = two_engines(&host);
        host.set_time(1_000_000);
        let (exchange, to) = depart(&plugin, &host, &body(&["a", "b"]));
        let engine = to.split(',').next().unwrap();
        arrive(exchange, &host, "", "503");
        // Its pause is over, and this request probes it.
        host.set_time(1_001_500);
        let (exchange, again) = depart(&plugin, &host, &body(&["a", "b"]));
        let address = address.replace("10.0.0.1:80", engine);
        if !again.starts_with(engine) {
            continue;
        }
        arrive(exchange, &host, &address, status);
        let choices = plugin.engines().choices(&host, 1_001_600, 0);
        assert_eq!(choices.len() == 2, is_back, "{address} {status}");
    }
}

#[test]
fn with_one_engine_no_destination_is_named_and_a_clients_own_is_left_alone() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, "");
    let (_, to) = depart(&plugin, &host, &body(&["a"]));
    assert_eq!(to, "10.6.6.6:80");
}

/// Sends documents, with a response that reports the cached tokens of a prompt of 1,000; returns the match expected before.
fn say(plugin: &Arc<Plugin>, host: &ScriptedHost, ids: &[&str], usage: &str) -> u64 {
    let before = host.counter("foreword_matched_documents_total");
    let words = "Words that make it long. ".repeat(30);
    let body = body(ids).replace("text of ", &format!("{words}text of "));
    let (mut exchange, _) = depart(plugin, host, &body);
    host.respond_with("200", None);
    exchange.on_response_headers(host);
    let answer = format!("{{\"choices\": [], {usage}}}");
    for (at, chunk) in answer.as_bytes().chunks(16).enumerate() {
        host.stream(chunk);
        exchange.on_response_body(host, chunk.len(), (at + 1) * 16 >= answer.len());
    }
    exchange.on_done(host);
    host.counter("foreword_matched_documents_total") - before
}

const NOTHING_CACHED: &str =
    r#""usage": {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 0}}"#;

#[test]
fn an_answer_that_counts_less_than_was_believed_corrects_it() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, "");
    assert_eq!(say(&plugin, &host, &["a", "b"], NOTHING_CACHED), 0);
    assert_eq!(say(&plugin, &host, &["a", "c"], NOTHING_CACHED), 1);
    assert_eq!(host.counter("foreword_corrections_total"), 1);
    // So [a b] is not resident.
    assert_eq!(say(&plugin, &host, &["b", "a"], NOTHING_CACHED), 1);
    assert_eq!(host.counter("foreword_engine_prompt_tokens_total"), 3_000);
    assert_eq!(host.counter("foreword_engine_cached_tokens_total"), 0);
    assert_eq!(host.samples("foreword_engine_cached_percent"), [0, 0, 0]);
    assert_eq!(host.log_field("prompt_tokens").as_deref(), Some("1000"));
    assert_eq!(host.log_field("cached_tokens").as_deref(), Some("0"));
}

#[test]
fn what_engines_say_is_counted_by_arm() {
    let usage =
        r#""usage": {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 640}}"#;
    let host = ScriptedHost::default();
    let plugin = plugin(&host, r#"{"experiment": {"control_share": 1}}"#);
    say(&plugin, &host, &["a", "b"], usage);
    let count = |arm: &str, what: &str| {
        host.counter(&format!("foreword_arm_{arm}_engine_{what}_tokens_total"))
    };
    assert_eq!(
        (count("control", "prompt"), count("control", "cached")),
        (1_000, 640)
    );
    assert_eq!(
        (count("ordered", "prompt"), count("ordered", "cached")),
        (0, 0)
    );
}

#[test]
fn an_engine_that_never_counts_corrects_nothing_and_one_that_did_means_none() {
    let silent = r#""usage": {"prompt_tokens": 1000}"#;
    let host = ScriptedHost::default();
    let plugin = plugin(&host, "");
    say(&plugin, &host, &["a", "b"], silent);
    say(&plugin, &host, &["a", "b"], silent);
    assert_eq!(host.counter("foreword_corrections_total"), 0);
    let full =
        r#""usage": {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 990}}"#;
    say(&plugin, &host, &["a", "b"], full);
    assert_eq!(host.counter("foreword_corrections_total"), 0);
    assert_eq!(host.samples("foreword_engine_cached_percent"), [99]);
    // Another API of the engine, which has not reported the number.
    say(
        &plugin,
        &host,
        &["a", "b"],
        r#""usage": {"input_tokens": 1000}"#,
    );
    assert_eq!(host.counter("foreword_corrections_total"), 0);
    assert_eq!(host.log_field("cached_tokens"), None);
    say(&plugin, &host, &["a", "b"], silent);
    assert_eq!(host.counter("foreword_corrections_total"), 1);
    assert_eq!(host.samples("foreword_engine_cached_percent"), [99, 0]);
    assert_eq!(host.log_field("cached_tokens").as_deref(), Some("0"));
}

#[test]
fn answers_that_say_nothing_readable_are_let_be() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, "");
    let (mut exchange, _) = depart(&plugin, &host, &body(&["a"]));
    host.respond_with("200", Some(("content-encoding", "gzip")));
    exchange.on_response_headers(&host);
    host.stream(b"\x1f\x8b\x08\x00");
    exchange.on_response_body(&host, 4, true);
    let (mut exchange, _) = depart(&plugin, &host, &body(&["a"]));
    host.respond_with("500", None);
    exchange.on_response_headers(&host);
    host.refuse("response_body");
    exchange.on_response_body(&host, 10, true);
    assert_eq!(host.refused_calls(), 0);
    // A refused call only loses the count.
    let (mut exchange, _) = depart(&plugin, &host, &body(&["a"]));
    host.respond_with("200", None);
    exchange.on_response_headers(&host);
    exchange.on_response_body(&host, 10, false);
    exchange.on_response_body(&host, 10, true);
    assert_eq!(host.refused_calls(), 1);
    assert_eq!(host.counter("foreword_engine_prompt_tokens_total"), 0);
}
