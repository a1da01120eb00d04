//! Filter and host together: what the gateway chose is what the host says it holds.

use foreword_ordering::feed::{Batch, Event, Follower};
use foreword_ordering::path::Run;
use foreword_ordering::{Config, Orderer, Tenant};
use foreword_tests::http::{exchange, post};
use foreword_tests::{Gateway, GatewayOptions, Host, artifacts};
use serde_json::json;
use std::net::SocketAddr;

fn get(address: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: host\r\n\r\n");
    let response = exchange(address, request.as_bytes()).unwrap();
    let body = String::from_utf8(response.body).unwrap();
    assert_eq!(response.status, 200, "{path}: {body}");
    body
}

fn question(ids: &[&str]) -> String {
    let documents = ids.iter().map(|id| {
        let words = format!("What {id} says is long enough to fill some pages. ").repeat(6);
        format!("<document id=\"{id}\">{words}</document>")
    });
    let documents: Vec<_> = documents.collect();
    json!({
        "model": "tiny",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": format!("{}\nWhy?", documents.join("\n"))}],
    })
    .to_string()
}

#[test]
fn the_hosts_feed_shows_the_paths_that_the_gateway_chose() {
    let model = artifacts::repository().join("host/engine/fixtures/qwen2");
    let host = Host::start(&model, &["--name", "tiny", "--kv-tokens", "8192"]).unwrap();
    let gateway = Gateway::start(&GatewayOptions::placing_freely(host.address())).unwrap();

    let mut follower = Follower::default();
    let read = |follower: &mut Follower| -> Batch {
        let path = format!("/v1/kv/events?{}", follower.query());
        let batch = Batch::read(get(host.internal(), &path).as_bytes(), None).unwrap();
        follower.follow(&batch).for_each(drop);
        batch
    };
    assert_eq!(read(&mut follower).events, []);

    // The same core decides alike beside the gateway.
    let free = Config::default().with_placement(foreword_ordering::policy::Placement::FREE);
    let mut orderer = Orderer::new(free);
    for ids in [&["a", "b", "c"][..], &["d", "c", "a", "b"]] {
        let body = question(ids);
        let response = exchange(gateway.address(), &post(body.as_bytes())).unwrap();
        assert_eq!(
            response.status,
            200,
            "{}",
            String::from_utf8_lossy(&response.body)
        );
        let chosen = orderer
            .rewrite(Tenant::default(), body.as_bytes())
            .unwrap()
            .path;

        let news = read(&mut follower);
        assert!(!news.reset);
        let stored: Vec<Run> = news
            .events
            .iter()
            .map(|event| match event {
                Event::Stored {
                    tenant,
                    scope,
                    path,
                } => {
                    assert_eq!(tenant.to_string(), "");
                    assert!(path.iter().all(|(_, tokens)| *tokens > 30), "{path:?}");
                    let documents = path.iter().map(|(document, _)| *document).collect();
                    Run {
                        scope: *scope,
                        documents,
                    }
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(stored, chosen.runs, "{ids:?}");
    }

    let snapshot = get(host.internal(), "/v1/kv/snapshot");
    let snapshot = Batch::read(snapshot.as_bytes(), None).unwrap();
    let [Event::Stored { path, .. }] = &snapshot.events[..] else {
        panic!("one path that begins with the other: {snapshot:?}")
    };
    assert_eq!(path.len(), 4);
    assert_eq!((snapshot.reset, &*snapshot.model), (true, "tiny"));
    assert!(snapshot.pages.device > 10, "{:?}", snapshot.pages);
    let metrics = get(host.internal(), "/metrics");
    assert!(
        metrics.contains("foreword_document_paths_total{outcome=\"placed\"} 2"),
        "{metrics}"
    );
}
