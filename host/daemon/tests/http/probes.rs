//! Tests `/healthz`, `/readyz`, `/metrics`, `/v1/models`.

use crate::chat::say;
use crate::support::client::{get, post};
use crate::support::parrot::{MAX_POSITIONS, Steps};
use crate::support::{MODEL, Options, TestServer, internal, loading, model};
use serde_json::json;

#[tokio::test]
async fn a_server_is_healthy_at_once_and_ready_when_its_model_is_there() {
    let server = loading(Options::default()).await;
    let (address, internal) = (server.address(), internal(&server));
    assert_eq!(get(internal, "/healthz").await.status, 200);
    let ready = get(internal, "/readyz").await;
    assert_eq!(
        (ready.status, ready.json()),
        (503, json!({"status": "loading"}))
    );
    let response = post(address, "/v1/chat/completions", &say("x")).await;
    response.error(503, "loading", None);
    assert_eq!(response.header("retry-after"), Some("1"));
    get(address, "/v1/models").await.error(503, "loading", None);
    assert_eq!(get(internal, "/metrics").await.status, 200);

    server.open(model(&Options::default(), Steps::free()));
    let ready = get(internal, "/readyz").await;
    assert_eq!(
        (ready.status, ready.json()),
        (200, json!({"status": "ready"}))
    );
    assert_eq!(
        post(address, "/v1/chat/completions", &say("x"))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn the_model_is_listed_and_found_by_its_name() {
    let house = TestServer::open().await;
    let listed = get(house.address(), "/v1/models").await.json();
    let model = &listed["data"][0];
    assert_eq!(listed["object"], "list");
    assert_eq!(
        (&model["id"], &model["object"]),
        (&json!(MODEL), &json!("model"))
    );
    assert_eq!(model["max_model_len"], MAX_POSITIONS);
    assert_eq!(
        get(house.address(), &format!("/v1/models/{MODEL}"))
            .await
            .json(),
        *model
    );
}

#[tokio::test]
async fn metrics_follow_what_was_served() {
    let house = TestServer::open().await;
    for _ in 0..2 {
        post(house.address(), "/v1/chat/completions", &say("abc")).await;
    }
    post(house.address(), "/v1/chat/completions", &json!({})).await;
    get(house.address(), "/no/such/path").await;
    house.idle().await;
    let response = get(house.internal(), "/metrics").await;
    assert!(
        response
            .header("content-type")
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    let text = response.text();
    for line in [
        "foreword_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 2",
        "foreword_http_requests_total{route=\"/v1/chat/completions\",status=\"400\"} 1",
        "foreword_http_requests_total{route=\"unmatched\",status=\"404\"} 1",
        "foreword_generations_total{outcome=\"stop\"} 2",
        "foreword_queue_seconds_count 2",
        "foreword_time_to_first_token_seconds_count 2",
        // Three tokens each.
        "foreword_time_between_tokens_seconds_count 4",
        "foreword_request_prompt_tokens_sum 20.0",
        "foreword_request_cached_tokens_sum 9.0",
        "foreword_request_seconds_count 2",
        // <|user|>say(abc)<|assistant|>, twice; the second time all tokens except one are cached.
        "foreword_prompt_tokens_total 20",
        "foreword_cached_tokens_total 9",
        "foreword_generated_tokens_total 6",
        "foreword_pages_in_use 0",
        "foreword_requests_running 0",
        "foreword_evicted_pages_total{cause=\"device_full\"} 0",
        "foreword_hit_tokens_total{tier=\"device\"} 9",
        // The prompt, twice: it has no newline, so it is one piece.
        "foreword_tokenised_before_bytes_total 0",
        "foreword_step_sequences_bucket{le=\"1.0\"} 8",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is missing in\n{text}"
        );
    }
    assert!(text.ends_with("# EOF\n"));
}
