//! Tests server-sent events: their bytes, their order, and what ends them.

use crate::chat::say;
use crate::support::client::begin;
use crate::support::{Options, TestServer, until};
use serde_json::{Value, json};
use std::time::Duration;

const PATH: &str = "/v1/chat/completions";

pub(crate) fn streaming(text: &str) -> Value {
    let mut body = say(text);
    body["stream"] = true.into();
    body
}

pub(crate) fn forever() -> Value {
    json!({"messages": [{"role": "user", "content": "forever"}], "stream": true})
}

/// All text of a chat stream's events.
fn text_of(events: &[String]) -> String {
    let delta = |event: &String| {
        let chunk: Value = serde_json::from_str(event).ok()?;
        Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned())
    };
    events.iter().filter_map(delta).collect()
}

#[tokio::test]
async fn the_events_are_openais() {
    let house = TestServer::open().await;
    let reply = begin(house.address(), PATH, &streaming("hé")).await;
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (200, Some("text/event-stream"))
    );
    let events = reply.events().await;
    let chunks: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    for chunk in &chunks {
        assert_eq!(chunk["id"], chunks[0]["id"]);
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert!(chunk.get("usage").is_none(), "nobody asked for it");
    }
    let choices: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]).collect();
    let choice = |delta: Value, reason: Value| json!({"delta": delta, "index": 0, "logprobs": null, "finish_reason": reason});
    let expected = [
        choice(json!({"role": "assistant", "content": ""}), Value::Null),
        choice(json!({"content": "h"}), Value::Null),
        // Two tokens make one character.
        choice(json!({"content": "é"}), Value::Null),
        choice(json!({}), json!("stop")),
    ];
    assert_eq!(choices, expected.iter().collect::<Vec<_>>());
    assert_eq!(events.last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn usage_comes_last_when_asked_for() {
    let house = TestServer::open().await;
    let mut body = streaming("ab");
    body["stream_options"] = json!({"include_usage": true});
    let events = begin(house.address(), PATH, &body).await.events().await;
    let chunks: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let (last, others) = chunks.split_last().unwrap();
    assert!(
        others
            .iter()
            .all(|chunk| chunk.get("usage") == Some(&Value::Null))
    );
    assert_eq!(last["choices"], json!([]));
    let expected = json!({
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 0},
    });
    assert_eq!(last["usage"], expected);
}

#[tokio::test]
async fn each_token_is_sent_before_the_next_is_computed() {
    let house = TestServer::open().await;
    house.steps.hold(1); // the prompt and the first token
    let mut reply = begin(house.address(), PATH, &streaming("xyz")).await;
    assert_eq!(
        reply.event_json().await["choices"][0]["delta"]["role"],
        "assistant"
    );
    assert_eq!(
        reply.event_json().await["choices"][0]["delta"]["content"],
        "x"
    );
    house.steps.release();
    assert_eq!(text_of(&reply.events().await), "yz");
}

#[tokio::test]
async fn a_stop_string_is_found_across_events_and_never_shown() {
    let house = TestServer::open().await;
    let mut body = streaming("one STO two STOP three");
    body["stop"] = "STOP".into();
    let events = begin(house.address(), PATH, &body).await.events().await;
    assert_eq!(text_of(&events), "one STO two ");
    assert!(events[events.len() - 2].contains(r#""finish_reason":"stop""#));
    house.idle().await;
}

#[tokio::test]
async fn text_held_back_for_a_stop_string_is_shown_at_the_end() {
    let house = TestServer::open().await;
    let mut body = streaming("one STO");
    body["stop"] = "STOP".into();
    let events = begin(house.address(), PATH, &body).await.events().await;
    assert_eq!(text_of(&events), "one STO");
}

#[tokio::test]
async fn a_stream_that_is_left_is_cancelled() {
    let house = TestServer::open().await;
    house.steps.hold(3);
    let mut reply = begin(house.address(), PATH, &forever()).await;
    reply.event().await.expect("a first event");
    drop(reply);
    until("the server notices", || house.app().gate.inside() == 0).await;
    house.steps.release();
    house.idle().await;
    assert_eq!(house.ended("cancelled"), 1);
    assert!(house.stats().generated_tokens <= 4, "{:?}", house.stats());
}

#[tokio::test]
async fn a_client_that_leaves_before_its_whole_answer_cancels_it() {
    let house = TestServer::open().await;
    house.steps.hold(1);
    let mut body = forever();
    body["stream"] = false.into();
    let address = house.address();
    let waiting = tokio::spawn(async move { begin(address, PATH, &body).await.status });
    until("it runs", || house.stats().running == 1).await;
    waiting.abort();
    until("the server notices", || house.app().gate.inside() == 0).await;
    house.steps.release();
    house.idle().await;
    assert_eq!(house.ended("cancelled"), 1);
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_is_never_computed() {
    let house = TestServer::with(Options {
        max_running: 1,
        ..Options::default()
    })
    .await;
    house.steps.hold(0);
    let first = begin(house.address(), PATH, &streaming("first")).await;
    until("it runs", || house.stats().running == 1).await;
    let second = begin(house.address(), PATH, &forever()).await;
    until("it waits", || house.stats().waiting == 1).await;
    drop(second);
    until("the server notices", || house.app().gate.inside() == 1).await;
    house.steps.release();
    assert_eq!(text_of(&first.events().await), "first");
    house.idle().await;
    let stats = house.stats();
    assert_eq!((stats.generated_tokens, stats.lookups), (5, 1), "{stats:?}");
    assert_eq!((house.ended("stop"), house.ended("cancelled")), (1, 1));
}

#[tokio::test]
async fn a_stream_over_its_time_ends_with_an_error_and_no_done() {
    let house = TestServer::with(Options {
        request_timeout: Duration::from_millis(300),
        ..Options::default()
    })
    .await;
    house.steps.hold(2);
    let events = begin(house.address(), PATH, &forever())
        .await
        .events()
        .await;
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "request_timeout", "{last}");
    assert_eq!(house.app().gate.inside(), 0);
    house.steps.release();
    house.idle().await;
    assert_eq!(house.ended("timed_out"), 1);
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_its_place_only_until_its_time_is_over() {
    let house = TestServer::with(Options {
        request_timeout: Duration::from_millis(500),
        // The name is in each event: a few dozen of them fill every buffer.
        name: "parrot".repeat(20_000),
        ..Options::default()
    })
    .await;
    let reply = begin(house.address(), PATH, &forever()).await;
    until("its time is over", || house.app().gate.inside() == 0).await;
    house.idle().await;
    assert_eq!(house.ended("timed_out"), 1);
    drop(reply);
}

#[tokio::test]
async fn a_device_that_fails_is_an_error_event_without_its_cause() {
    let house = TestServer::open().await;
    let body = json!({"messages": [{"role": "user", "content": "break"}], "stream": true});
    let events = begin(house.address(), PATH, &body).await.events().await;
    assert_eq!(events.len(), 1);
    assert!(
        events[0].contains("internal_error") && !events[0].contains("feathers"),
        "{}",
        events[0]
    );
    // The next request is served.
    let events = begin(house.address(), PATH, &streaming("still here"))
        .await
        .events()
        .await;
    assert_eq!(text_of(&events), "still here");
}
