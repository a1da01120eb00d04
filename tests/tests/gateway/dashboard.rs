//! Tests that the Grafana dashboard queries only metrics that Envoy exports.

use std::collections::BTreeSet;

use foreword_tests::http::exchange;
use foreword_tests::{Shell, Upstream, artifacts};
use serde_json::{Value, json};

use crate::{configured, send, tagged};

/// Returns the names of metrics in a query: words that a label matcher or a range follows.
fn names(query: &str) -> BTreeSet<String> {
    let word = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let mut names = BTreeSet::new();
    let mut rest = query;
    while let Some(start) = rest.find(word) {
        let end = rest[start..].find(|character| !word(character));
        let end = end.map_or(rest.len(), |end| start + end);
        if rest[end..].starts_with('{') {
            names.insert(rest[start..end].to_owned());
        }
        rest = &rest[end..];
    }
    names
}

#[test]
fn every_metric_that_the_dashboard_asks_for_is_told() {
    let upstream = Upstream::start().unwrap();
    let plugin = json!({"experiment": {"control_share": 0.5}, "bypass_header": "x-raw"});
    let gateway = configured(&upstream, plugin);
    // Envoy exports a histogram, and a counter of its own, only once it has counted something.
    send(&gateway, &tagged(&["a", "b"]));
    exchange(gateway.address(), b"GET / HTTP/1.1\r\nhost: g\r\n\r\n").unwrap();
    let stats = gateway.prometheus().unwrap();
    let told: BTreeSet<&str> = stats
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        // Renamed as in the scrape configuration in the dashboard's README.
        .map(|name| {
            name.strip_prefix("envoy_dynamicmodulescustom_")
                .unwrap_or(name)
        })
        .collect();

    let path = artifacts::repository().join("gateway-config/grafana/gateway.json");
    let dashboard: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut asked = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{}", panel["title"]);
        for target in targets {
            let found = names(target["expr"].as_str().unwrap());
            assert!(!found.is_empty(), "{target}");
            asked.extend(found);
        }
    }
    if Shell::chosen() != Shell::Wasm {
        // This gateway has no VM.
        assert!(asked.remove("envoy_wasm_foreword_vm_reload_success"));
    }
    let of_ext_proc = |name: &str| name.starts_with("foreword_ext_proc_");
    if !Shell::chosen().is_ext_proc() {
        // Nor has it a processor, which has its own panel.
        assert!(asked.iter().any(|name| of_ext_proc(name)));
        asked.retain(|name| !of_ext_proc(name));
    }
    let missing: Vec<_> = asked
        .iter()
        .filter(|name| !told.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?} in\n{stats}");
    assert!(asked.len() > 30, "{asked:?}");
    // Conversely, a counter of the filter's that no panel shows is one that nobody looks at.
    let unseen: Vec<_> = told
        .iter()
        .filter(|name| name.starts_with("foreword_") && name.ends_with("_total"))
        .filter(|name| !name.contains("_passed_") && !asked.contains(**name))
        .collect();
    assert!(unseen.is_empty(), "{unseen:?}");
}
