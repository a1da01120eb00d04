//! Checks that every metric in the Grafana dashboard exists in `/metrics`.

use crate::batches;
use crate::chat::say;
use crate::support::client::{get, post};
use crate::support::{Options, TestServer};
use serde_json::Value;
use std::collections::BTreeSet;
use tempfile::TempDir;

const DASHBOARD: &str = include_str!("../../../../gateway-config/grafana/foreword.json");

/// The names in a query that begin with `foreword_`.
fn names(query: &str) -> BTreeSet<&str> {
    let word = |character: char| character.is_ascii_alphanumeric() || character == '_';
    query
        .split(|character| !word(character))
        .filter(|name| name.starts_with("foreword_"))
        .collect()
}

#[tokio::test]
async fn every_metric_that_the_dashboard_asks_for_is_told() {
    let folder = TempDir::new().unwrap();
    let house = TestServer::with(Options {
        batches: Some(batches::config(folder.path())),
        ..Options::default()
    })
    .await;
    post(house.address(), "/v1/chat/completions", &say("abc")).await;
    house.idle().await;
    let metrics = get(house.internal(), "/metrics").await;
    let told: BTreeSet<&str> = metrics
        .text()
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut asked = BTreeSet::new();
    for panel in panels {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{}", panel["title"]);
        for target in targets {
            let found = names(target["expr"].as_str().unwrap());
            assert!(!found.is_empty(), "{target}");
            asked.extend(found);
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        asked.extend(names(variable["query"].as_str().unwrap()));
    }
    let missing: Vec<_> = asked.difference(&told).collect();
    assert!(missing.is_empty(), "{missing:?} in\n{}", metrics.text());
    assert!(asked.len() > 15, "{asked:?}");
}
