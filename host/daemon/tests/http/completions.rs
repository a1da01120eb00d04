//! Tests the host's OpenAI route `POST /v1/completions`: its answers, streams and refusals.

use crate::support::client::{begin, post};
use crate::support::parrot::VOCABULARY;
use crate::support::{MODEL, TestServer};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

fn body(prompt: impl Into<Value>) -> Value {
    json!({"model": MODEL, "prompt": prompt.into()})
}

#[tokio::test]
async fn text_is_continued() {
    let house = TestServer::open().await;
    let mut answer = post(house.address(), PATH, &body("say(abc)")).await.json();
    assert!(
        answer["id"]
            .take()
            .as_str()
            .is_some_and(|id| id.starts_with("cmpl-"))
    );
    answer["created"].take();
    let expected = json!({
        "id": null,
        "object": "text_completion",
        "created": null,
        "model": MODEL,
        "choices": [{"index": 0, "text": "abc", "logprobs": null, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 8,
            "completion_tokens": 3,
            "total_tokens": 11,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    });
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn tokens_are_taken_as_they_are() {
    let house = TestServer::open().await;
    let tokens: Vec<u32> = "say(abc)".bytes().map(u32::from).collect();
    for prompt in [json!(tokens), json!([tokens])] {
        let answer = post(house.address(), PATH, &body(prompt)).await.json();
        assert_eq!(answer["choices"][0]["text"], "abc");
    }
}

#[tokio::test]
async fn sixteen_tokens_are_the_default() {
    let house = TestServer::open().await;
    let answer = post(house.address(), PATH, &body("forever")).await.json();
    assert_eq!(answer["choices"][0]["text"], "a".repeat(16));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn a_stream_has_text_choices_and_no_opening() {
    let house = TestServer::open().await;
    let mut body = body("say(ab)");
    body["stream"] = true.into();
    let events = begin(house.address(), PATH, &body).await.events().await;
    let choices: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).unwrap()["choices"][0].clone())
        .collect();
    let choice = |text: &str, reason: Value| json!({"index": 0, "text": text, "logprobs": null, "finish_reason": reason});
    assert_eq!(
        choices,
        [
            choice("a", Value::Null),
            choice("b", Value::Null),
            choice("", json!("stop"))
        ]
    );
    assert_eq!(events.last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn a_prompt_may_be_repeated_without_an_answer() {
    let house = TestServer::open().await;
    let mut body = body("say(abc)");
    body["echo"] = true.into();
    body["max_tokens"] = 0.into();
    let answer = post(house.address(), PATH, &body).await.json();
    let expected =
        json!({"index": 0, "text": "say(abc)", "logprobs": null, "finish_reason": "length"});
    assert_eq!(answer["choices"], json!([expected]));
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    body["stream"] = true.into();
    let events = begin(house.address(), PATH, &body).await.events().await;
    assert_eq!(events.len(), 3, "{events:?}");
}

#[tokio::test]
async fn tokens_may_end_the_answer() {
    let house = TestServer::open().await;
    let mut body = body("say(abc)");
    body["stop_token_ids"] = json!([u32::from(b'c'), 7]);
    let answer = post(house.address(), PATH, &body).await.json();
    assert_eq!(answer["choices"][0]["text"], "ab");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    body["guided_json"] = json!({"type": "boolean"});
    for (tokens, words) in [
        (json!([7]), "the grammar of the answer"),
        (json!([-1]), "must be a token"),
        (json!(3), "an array of tokens"),
        (json!(vec![0; 65]), "at most 64"),
    ] {
        body["stop_token_ids"] = tokens;
        let response = post(house.address(), PATH, &body).await;
        let param = if words == "must be a token" {
            "stop_token_ids[0]"
        } else {
            "stop_token_ids"
        };
        let message = response.error(400, "invalid_value", Some(param));
        assert!(message.contains(words), "{message}");
    }
    // A special token is no text.
    body["stop_token_ids"] = json!([VOCABULARY - 1]);
    body["seed"] = 7.into();
    let answer = post(house.address(), PATH, &body).await.json();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert!(["true", "false"].contains(&text), "{text}");
}

#[tokio::test]
async fn what_is_no_prompt_is_named() {
    let house = TestServer::open().await;
    for (prompt, message) in [
        (
            json!(""),
            "prompt has no tokens; at least one is needed".to_owned(),
        ),
        (
            json!([]),
            "prompt has no tokens; at least one is needed".to_owned(),
        ),
        (
            json!([1, VOCABULARY]),
            format!("prompt[1] must be a token below {VOCABULARY}, got {VOCABULARY}"),
        ),
        (
            json!(["a", "b"]),
            "prompt must hold one prompt, got 2".to_owned(),
        ),
    ] {
        let response = post(house.address(), PATH, &body(prompt)).await;
        assert_eq!(
            response.error(400, "invalid_value", Some("prompt")),
            message
        );
    }
    let response = post(house.address(), PATH, &json!({"model": MODEL})).await;
    assert_eq!(
        response.error(400, "invalid_value", Some("prompt")),
        "prompt is missing"
    );
}

#[tokio::test]
async fn a_request_says_whether_it_reads_the_cache_and_whether_it_is_kept() {
    let house = TestServer::open().await;
    let text = format!("{} say(abc)", "x".repeat(200));
    let prompt_tokens = text.len() as u64;
    let ask = async |fields: Value| {
        let mut body = body(text.as_str());
        let given = fields.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(given);
        let answer = post(house.address(), PATH, &body).await.json();
        assert_eq!(answer["choices"][0]["text"], "abc");
        let details = &answer["usage"]["prompt_tokens_details"];
        details["cached_tokens"].as_u64().unwrap()
    };
    for not_stored in [
        json!({"cache_prefix": false}),
        json!({"cache_prompt": false}),
        json!({"min_cache_tokens": prompt_tokens + 1}),
    ] {
        assert_eq!(ask(not_stored).await, 0);
        assert_eq!(house.stats().cache.cached, 0);
    }
    assert_eq!(ask(json!({"min_cache_tokens": prompt_tokens})).await, 0);
    assert!(house.stats().cache.cached > 0);
    for unread in [
        json!({"cache_prompt": false}),
        json!({"skip_reading_prefix_cache": true}),
    ] {
        assert_eq!(ask(unread).await, 0);
    }
    assert_eq!(ask(json!({"cache_prefix": false})).await, prompt_tokens - 1);
    assert_eq!(ask(json!({"cache_prefix": null})).await, prompt_tokens - 1);
}
