//! Tests the requests of routers to an engine, when a host replaces vLLM or SGLang.

use crate::chat::say;
use crate::support::client::{get, post, send};
use crate::support::parrot::{MAX_POSITIONS, Steps};
use crate::support::{MODEL, Options, TestServer, internal, loading, model};
use foreword_server::api::drop_in::DropIn;
use foreword_server::keys::ApiKeys;
use serde_json::{Value, json};
use std::net::SocketAddr;

const OPEN: [&str; 3] = ["/health", "/health_generate", "/ping"];
const TOLD: [&str; 7] = [
    "/server_info",
    "/get_server_info",
    "/model_info",
    "/get_model_info",
    "/load",
    "/get_load",
    "/v1/loads?include=core,disagg,queues,memory",
];

async fn with_key(address: SocketAddr, method: &str, path: &str, key: &str) -> u16 {
    let key = format!("Bearer {key}");
    let headers = [("authorization", key.as_str())];
    let reply = send(address, method, path, &headers, b"").await;
    reply.read().await.status
}

#[tokio::test]
async fn routers_find_a_host_healthy_when_its_model_is_there() {
    let server = loading(Options::default()).await;
    let addresses = [server.address(), internal(&server)];
    for address in addresses {
        for path in OPEN {
            assert_eq!(get(address, path).await.status, 503, "{path}");
        }
        for path in TOLD {
            get(address, path).await.error(503, "loading", None);
        }
        assert_eq!(get(address, "/version").await.status, 200);
    }
    server.open(model(&Options::default(), Steps::free()));
    for address in addresses {
        for path in OPEN.iter().chain(&TOLD) {
            assert_eq!(get(address, path).await.status, 200, "{path}");
        }
        let asleep = get(address, "/is_sleeping").await.json();
        assert_eq!(asleep, json!({"is_sleeping": false}));
    }
}

#[tokio::test]
async fn a_host_tells_pages_positions_and_load_as_the_engine_that_it_stands_in_for() {
    for (drop_in, name) in [(DropIn::Vllm, "vllm"), (DropIn::Sglang, "sglang")] {
        let house = TestServer::with(Options {
            drop_in,
            ..Options::default()
        })
        .await;
        let address = house.address();
        let model = get(address, "/v1/models").await.json()["data"][0].take();
        assert_eq!(
            (&model["owned_by"], &model["root"], &model["max_model_len"]),
            (&json!(name), &json!(MODEL), &json!(MAX_POSITIONS))
        );
        let info = get(address, "/server_info?config_format=json").await.json();
        assert_eq!(info["vllm_config"]["cache_config"]["block_size"], 16);
        assert_eq!(info["served_model_name"], MODEL);
        house.steps.hold(0);
        let answers: Vec<_> = (0..3)
            .map(|_| {
                tokio::spawn(
                    async move { post(address, "/v1/chat/completions", &say("abc")).await },
                )
            })
            .collect();
        crate::support::until("three requests are inside", || {
            let stats = house.stats();
            stats.running + stats.waiting == 3
        })
        .await;
        let load = get(address, "/get_load").await.json();
        match drop_in {
            DropIn::Vllm => assert_eq!(load, json!({"load": 3})),
            DropIn::Sglang => assert_eq!(
                (&load[0]["num_reqs"], load[0]["num_tokens"].is_u64()),
                (&json!(3), true)
            ),
        }
        let loads = get(address, "/v1/loads").await.json();
        assert_eq!(loads["aggregate"]["total_reqs"], 3);
        assert_eq!(
            get(address, "/load").await.json(),
            json!({"server_load": 3})
        );
        house.steps.release();
        for answer in answers {
            assert_eq!(answer.await.unwrap().status, 200);
        }
    }
}

#[tokio::test]
async fn the_cache_is_emptied_by_operators_alone() {
    let operators = ApiKeys::of([b"operator".as_slice()]);
    let tenants = ApiKeys::of([b"tenant".as_slice()]);
    let both = TestServer::with(Options {
        keys: Some(tenants.clone()),
        kv_keys: Some(operators),
        ..Options::default()
    })
    .await;
    for address in [both.address(), both.internal()] {
        for path in ["/reset_prefix_cache", "/flush_cache"] {
            assert_eq!(with_key(address, "POST", path, "tenant").await, 401);
            assert_eq!(with_key(address, "POST", path, "operator").await, 200);
        }
    }
    // If there is one kind of key, it is the operator's; on the clients' listener, the load requires it.
    let one = TestServer::with(Options {
        keys: Some(tenants),
        ..Options::default()
    })
    .await;
    assert_eq!(get(one.address(), "/get_load").await.status, 401);
    assert_eq!(
        with_key(one.address(), "GET", "/get_load", "tenant").await,
        200
    );
    assert_eq!(get(one.internal(), "/get_load").await.status, 200);
    assert_eq!(get(one.address(), "/health").await.status, 200);
    assert_eq!(
        with_key(one.address(), "POST", "/flush_cache", "tenant").await,
        200
    );
    // Without keys, clients cannot reset the cache.
    let none = TestServer::open().await;
    let body = say(&"word ".repeat(40));
    let cached = async || {
        let answer = post(none.address(), "/v1/chat/completions", &body)
            .await
            .json();
        none.idle().await;
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
    };
    assert_eq!(cached().await, Some(0));
    let refused = send(none.address(), "POST", "/flush_cache", &[], b"").await;
    refused
        .read()
        .await
        .error(403, "operators_key_required", None);
    assert!(cached().await > Some(0));
    let emptied = send(none.internal(), "POST", "/reset_prefix_cache", &[], b"").await;
    let emptied: Value = emptied.read().await.json();
    assert!(emptied["freed_pages"].as_u64() > Some(0), "{emptied}");
    assert_eq!(cached().await, Some(0));
}

#[tokio::test]
async fn vllms_gauges_stand_beside_our_metrics() {
    let house = TestServer::open().await;
    post(house.address(), "/v1/chat/completions", &say("abc")).await;
    house.idle().await;
    let metrics = get(house.internal(), "/metrics").await;
    let text = metrics.text();
    let pages = house.stats().cache.pages;
    for line in [
        "vllm:num_requests_running{model_name=\"aviary/parrot\",engine=\"0\"} 0.0".to_owned(),
        "vllm:num_requests_waiting{model_name=\"aviary/parrot\",engine=\"0\"} 0.0".to_owned(),
        "vllm:kv_cache_usage_perc{model_name=\"aviary/parrot\",engine=\"0\"} 0.0".to_owned(),
        format!(
            "vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"{pages}\",enable_prefix_caching=\"True\",engine=\"0\"}} 1"
        ),
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is missing in\n{text}"
        );
    }
    assert!(text.contains("\nforeword_requests_running 0\n"));
}
