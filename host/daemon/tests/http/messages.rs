//! Tests `POST /v1/messages`, Anthropic's Messages API: streamed and not, and its errors.

use crate::logprobs::ENDING;
use crate::support::client::{JSON, begin, post, send};
use crate::support::{MODEL, Options, TestServer};
use crate::tools::{HERMES, TWO_CALLS};
use foreword_server::keys::ApiKeys;
use serde_json::{Value, json};
use std::time::Duration;

const PATH: &str = "/v1/messages";

fn say(text: &str) -> Value {
    let content = format!("say({text})");
    json!({"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": content}]})
}

fn without_id(mut message: Value) -> Value {
    let id = message["id"].take();
    assert!(id.as_str().unwrap().starts_with("msg_"), "{id}");
    message
}

#[tokio::test]
async fn a_message_has_anthropics_shape() {
    let house = TestServer::open().await;
    for cached in [0, 15] {
        let message = post(house.address(), PATH, &say("Guten Tag")).await;
        assert_eq!(message.status, 200, "{}", message.text());
        assert_eq!(message.header("request-id"), message.header("x-request-id"));
        let expected = json!({
            "id": null, "type": "message", "role": "assistant", "model": MODEL,
            "content": [{"type": "text", "text": "Guten Tag"}],
            "stop_reason": "end_turn", "stop_sequence": null,
            "usage": {
                "input_tokens": 16 - cached, "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": cached, "output_tokens": 9,
            },
        });
        assert_eq!(without_id(message.json()), expected);
    }
}

async fn streamed(house: &TestServer, mut body: Value) -> Vec<Value> {
    body["stream"] = true.into();
    let reply = begin(house.address(), PATH, &body).await;
    assert_eq!(reply.status, 200);
    let events = reply.events().await;
    let events = events.iter();
    events
        .map(|event| serde_json::from_str(event).unwrap())
        .collect()
}

fn names(events: &[Value]) -> Vec<&str> {
    let names = events.iter().map(|event| event["type"].as_str().unwrap());
    names.collect()
}

#[tokio::test]
async fn a_stream_has_anthropics_events_in_their_order() {
    let house = TestServer::open().await;
    post(house.address(), PATH, &say("ab")).await;
    house.idle().await;
    let events = streamed(&house, say("ab")).await;
    let expected = [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names(&events), expected);
    let start = &events[0]["message"];
    assert_eq!(start["content"], json!([]));
    assert_eq!(start["usage"]["cache_read_input_tokens"], 8);
    assert_eq!(
        events[3]["delta"],
        json!({"type": "text_delta", "text": "a"})
    );
    let delta = json!({"stop_reason": "end_turn", "stop_sequence": null});
    assert_eq!(events[6]["delta"], delta);
    assert_eq!(events[6]["usage"]["output_tokens"], 2);
}

#[tokio::test]
async fn tools_are_used_and_their_results_read() {
    let house = TestServer::with(Options {
        template: Some(HERMES),
        ..Options::default()
    })
    .await;
    let call = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n";
    let mut body = say(call);
    body["tools"] = json!([{"name": "weather", "input_schema": {"type": "object"}}]);
    let message = post(house.address(), PATH, &body).await.json();
    assert_eq!(message["stop_reason"], "tool_use");
    assert_eq!(message["content"][0]["text"], "Let me see.\n");
    let made = &message["content"][1];
    assert_eq!(
        (&made["name"], &made["input"]),
        (&json!("weather"), &json!({"city": "Oslo"}))
    );
    let events = streamed(&house, body).await;
    let begun = names(&events)
        .iter()
        .rposition(|name| *name == "content_block_start")
        .unwrap();
    assert_eq!(events[begun]["content_block"]["input"], json!({}));
    let delta = json!({"type": "input_json_delta", "partial_json": "{\"city\": \"Oslo\"}"});
    assert_eq!(events[begun + 1]["delta"], delta);
    assert_eq!(
        names(&events)[begun + 2..],
        ["content_block_stop", "message_delta", "message_stop"]
    );
    let back = json!({"max_tokens": 9, "messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": made["id"], "content": "say(Rain)"}]},
    ]});
    let next = post(house.address(), PATH, &back).await.json();
    assert_eq!(next["content"][0]["text"], "Rain");
}

#[tokio::test]
async fn one_use_of_a_tool_ends_an_answer_without_parallel_use() {
    let house = TestServer::with(Options {
        template: Some(HERMES),
        ..Options::default()
    })
    .await;
    let mut body = say(TWO_CALLS);
    body["tools"] = json!([{"name": "time", "input_schema": {"type": "object"}}]);
    let blocks = async |body: &Value| {
        let message = post(house.address(), PATH, body).await.json();
        message["content"].as_array().unwrap().len()
    };
    body["tool_choice"] = json!({"type": "auto"});
    assert_eq!(blocks(&body).await, 4);
    body["tool_choice"]["disable_parallel_tool_use"] = true.into();
    assert_eq!(blocks(&body).await, 2);
}

#[tokio::test]
async fn an_answer_continues_the_assistants_last_message() {
    let house = TestServer::with(Options {
        template: Some(ENDING),
        ..Options::default()
    })
    .await;
    let mut body = say("abcd");
    let last = json!({"role": "assistant", "content": "ab"});
    body["messages"].as_array_mut().unwrap().push(last);
    let message = post(house.address(), PATH, &body).await.json();
    assert_eq!(message["content"], json!([{"type": "text", "text": "cd"}]));
    let counted = post(house.address(), "/v1/messages/count_tokens", &body).await;
    // <|user|>say(abcd)<|assistant|>ab
    assert_eq!(counted.json(), json!({"input_tokens": 13}));
}

#[tokio::test]
async fn the_end_says_what_ended_it() {
    let house = TestServer::open().await;
    let mut body = say("abc DE DEF ghi");
    body["stop_sequences"] = json!(["nowhere", "DEF"]);
    let message = post(house.address(), PATH, &body).await.json();
    assert_eq!(
        (
            &message["stop_reason"],
            &message["stop_sequence"],
            &message["content"][0]["text"]
        ),
        (&json!("stop_sequence"), &json!("DEF"), &json!("abc DE "))
    );
    let mut body = say("forever and ever");
    body["max_tokens"] = 7.into();
    let message = post(house.address(), PATH, &body).await.json();
    assert_eq!(message["stop_reason"], "max_tokens");
}

#[tokio::test]
async fn tokens_are_counted_as_they_would_be_computed() {
    let house = TestServer::open().await;
    let mut body = say("abc");
    body["system"] = "Be brief.".into();
    body["messages"][0]["content"] = json!([
        {"type": "document", "title": "t", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
        {"type": "text", "text": "say(abc)"},
    ]);
    let message = post(house.address(), PATH, &body).await.json();
    body.as_object_mut().unwrap().remove("max_tokens");
    let counted = post(house.address(), "/v1/messages/count_tokens", &body).await;
    assert_eq!(
        counted.json(),
        json!({"input_tokens": message["usage"]["input_tokens"]})
    );
}

#[tokio::test]
async fn failures_are_told_in_anthropics_words() {
    let house = TestServer::with(Options {
        keys: Some(ApiKeys::of([b"key".as_slice()])),
        max_body_bytes: 4096,
        request_timeout: Duration::from_millis(300),
        ..Options::default()
    })
    .await;
    let asked = async |key: &str, body: &Value| {
        let headers = [JSON[0], ("x-api-key", key)];
        let body = body.to_string();
        send(house.address(), "POST", PATH, &headers, body.as_bytes())
            .await
            .read()
            .await
    };
    let image = json!([{"type": "image", "source": {"type": "url", "url": "u"}}]);
    let image = json!({"max_tokens": 1, "messages": [{"role": "user", "content": image}]});
    let mut other = say("x");
    other["model"] = "other".into();
    let mut stops = say("x");
    stops["stop_sequences"] = json!([""]);
    let never =
        json!({"max_tokens": 100_000, "messages": [{"role": "user", "content": "forever"}]});
    for (key, body, status, kind, words) in [
        ("wrong", say("x"), 401, "authentication_error", "x-api-key"),
        (
            "key",
            json!({}),
            400,
            "invalid_request_error",
            "max_tokens is missing",
        ),
        (
            "key",
            image,
            400,
            "invalid_request_error",
            "messages[0].content[0] is an image",
        ),
        ("key", stops, 400, "invalid_request_error", "a stop string"),
        ("key", other, 404, "not_found_error", "other"),
        (
            "key",
            say(&"x".repeat(5000)),
            413,
            "request_too_large",
            "4096",
        ),
        ("key", never, 504, "timeout_error", "longer"),
    ] {
        let response = asked(key, &body).await;
        let error = response.json();
        assert_eq!(response.status, status, "{error}");
        assert_eq!(
            (&error["type"], &error["error"]["type"]),
            (&json!("error"), &json!(kind))
        );
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
        assert_eq!(error["request_id"].as_str(), response.header("request-id"));
    }
    let wrong = send(house.address(), "GET", PATH, &[("x-api-key", "key")], b"").await;
    let wrong = wrong.read().await;
    assert_eq!(wrong.status, 405);
    assert_eq!(wrong.json()["error"]["type"], "invalid_request_error");
    // Within a stream, it is an event.
    let mut body =
        json!({"max_tokens": 100_000, "messages": [{"role": "user", "content": "forever"}]});
    body["stream"] = true.into();
    let headers = [JSON[0], ("x-api-key", "key")];
    house.steps.hold(4);
    let reply = send(
        house.address(),
        "POST",
        PATH,
        &headers,
        body.to_string().as_bytes(),
    )
    .await;
    let events = reply.events().await;
    house.steps.release();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(
        (&last["type"], &last["error"]["type"]),
        (&json!("error"), &json!("timeout_error"))
    );
}
