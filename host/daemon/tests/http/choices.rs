//! Tests `n`: several answers to one prompt.

use crate::chat::say;
use crate::streaming::{forever, streaming};
use crate::support::client::{begin, post};
use crate::support::{Options, TestServer, until};
use foreword_engine::engine::Request;
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

#[tokio::test]
async fn choices_share_the_prompt_and_its_computation() {
    let house = TestServer::open().await;
    let text = "word ".repeat(40);
    let mut body = say(&text);
    body["n"] = 3.into();
    let answer = post(house.address(), PATH, &body).await.json();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(choice["message"]["content"], text);
        assert_eq!(choice["finish_reason"], "stop");
    }
    // The two marks are one token each.
    let prompt = 2 + "say()".len() + text.len();
    let expected = json!({
        "prompt_tokens": prompt,
        "completion_tokens": 3 * text.len(),
        "total_tokens": prompt + 3 * text.len(),
        "prompt_tokens_details": {"cached_tokens": 0},
    });
    assert_eq!(answer["usage"], expected);
    house.idle().await;
    let stats = house.stats();
    // The other choices found at least the prompt's full pages.
    assert_eq!(stats.lookups, 3, "{stats:?}");
    assert!(
        stats.cached_tokens >= 2 * (prompt as u64 / 16 * 16),
        "{stats:?}"
    );
    assert_eq!(house.ended("stop"), 1);
}

#[tokio::test]
async fn choices_of_a_stream_come_interleaved_under_their_index() {
    let house = TestServer::open().await;
    let mut body = streaming("abcd");
    body["n"] = 2.into();
    body["stream_options"] = json!({"include_usage": true});
    let events = begin(house.address(), PATH, &body).await.events().await;
    let chunks: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let mut texts = [String::new(), String::new()];
    let (mut roles, mut ends) = ([0; 2], [0; 2]);
    for chunk in &chunks[..chunks.len() - 1] {
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        assert_eq!(ends[index], 0, "nothing follows an end");
        texts[index] += choice["delta"]["content"].as_str().unwrap_or_default();
        roles[index] += usize::from(choice["delta"]["role"] == "assistant");
        ends[index] += usize::from(choice["finish_reason"] == "stop");
    }
    assert_eq!(
        (texts, roles, ends),
        (["abcd".into(), "abcd".into()], [1; 2], [1; 2])
    );
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 8);
    assert_eq!(events.last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn a_stop_string_ends_one_choice_and_not_the_others() {
    let house = TestServer::open().await;
    let mut body = say("one STOP two");
    body["n"] = 2.into();
    body["stop"] = "STOP".into();
    let answer = post(house.address(), PATH, &body).await.json();
    for index in 0..2 {
        assert_eq!(answer["choices"][index]["message"]["content"], "one ");
    }
    house.idle().await;
}

#[tokio::test]
async fn every_choice_takes_a_place() {
    let house = TestServer::with(Options {
        // Both choices may have to wait, since the engine may not have started the first one when the second arrives.
        max_waiting: 2,
        max_running: 1,
        ..Options::default()
    })
    .await;
    house.steps.hold(0);
    let mut body = say("x");
    body["n"] = 2.into();
    let address = house.address();
    let first = tokio::spawn({
        let body = body.clone();
        async move { post(address, PATH, &body).await }
    });
    until("it is inside", || house.app().gate.inside() == 2).await;
    post(house.address(), PATH, &body)
        .await
        .error(429, "queue_full", None);
    assert_eq!(
        house.app().gate.inside(),
        2,
        "a refused request leaves nothing behind"
    );
    body["n"] = 16.into();
    let refused = post(house.address(), PATH, &body).await;
    let message = refused.error(400, "invalid_value", Some("n"));
    assert!(message.contains("this server's limit"), "{message}");
    house.steps.release();
    assert_eq!(first.await.unwrap().status, 200);
}

#[tokio::test]
async fn choices_wait_for_room_in_the_queue() {
    let house = TestServer::with(Options {
        max_waiting: 2,
        max_running: 1,
        ..Options::default()
    })
    .await;
    house.steps.hold(0);
    let mut body = streaming("abcd");
    body["n"] = 2.into();
    let address = house.address();
    let reply = tokio::spawn(async move { begin(address, PATH, &body).await });
    until("the first choice runs", || house.stats().running == 1).await;
    let app = house.app();
    let engine = app.model.get().expect("the model is there").engine();
    let others = [1, 2].map(|token| {
        let other = Request {
            prompt: vec![token],
            max_tokens: 1,
            ..Request::default()
        };
        engine.submit(other).expect("room for two")
    });
    // The first choice's first token arrives while the queue is full.
    house.steps.hold(1);
    let mut reply = reply.await.unwrap();
    reply.event().await.expect("the opening");
    assert_eq!(
        reply.event_json().await["choices"][0]["delta"]["content"],
        "a"
    );
    house.steps.release();
    let events = reply.events().await;
    let ends = (events.iter()).filter(|event| event.contains("\"finish_reason\":\"stop\""));
    assert_eq!(ends.count(), 2);
    drop(others);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_all_choices() {
    let house = TestServer::open().await;
    house.steps.hold(3);
    let mut body = forever();
    body["n"] = 4.into();
    let mut reply = begin(house.address(), PATH, &body).await;
    reply.event().await.expect("a first event");
    until("all run", || {
        house.stats().running + house.stats().waiting == 4
    })
    .await;
    drop(reply);
    until("the server notices", || house.app().gate.inside() == 0).await;
    house.steps.release();
    house.idle().await;
    assert_eq!(house.ended("cancelled"), 1);
}
