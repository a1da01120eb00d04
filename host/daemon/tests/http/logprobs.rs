//! `logprobs`, in both dialects, whole and streamed.

use crate::chat::say;
use crate::support::TestServer;
use crate::support::client::{begin, post};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// The bytes of all tokens of a chat choice's log-probabilities.
fn bytes(logprobs: &Value) -> Vec<u8> {
    let tokens = logprobs["content"].as_array().unwrap();
    let bytes = tokens
        .iter()
        .flat_map(|token| token["bytes"].as_array().unwrap());
    bytes.map(|byte| byte.as_u64().unwrap() as u8).collect()
}

#[tokio::test]
async fn a_chat_tells_the_logprob_of_each_token_and_its_rivals() {
    let house = TestServer::open().await;
    let mut body = say("hé");
    body["logprobs"] = true.into();
    body["top_logprobs"] = 2.into();
    let answer = post(house.address(), CHAT, &body).await.json();
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(bytes(logprobs), "hé".as_bytes());
    // The parrot is sure: 10,000 above all others, of which the lowest ids come first.
    let first = &logprobs["content"][0];
    let expected = json!({
        "token": "h", "logprob": 0.0, "bytes": [104],
        "top_logprobs": [
            {"token": "h", "logprob": 0.0, "bytes": [104]},
            {"token": "\0", "logprob": -9999.0, "bytes": [0]},
        ],
    });
    assert_eq!(*first, expected);
    assert_eq!(
        logprobs["content"][1]["token"], "\u{fffd}",
        "half a character"
    );
    assert_eq!(logprobs["content"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_stream_tells_them_with_their_text() {
    let house = TestServer::open().await;
    let mut body = say("hé STOP");
    body["stop"] = "STOP".into();
    body["logprobs"] = true.into();
    body["stream"] = true.into();
    let events = begin(house.address(), CHAT, &body).await.events().await;
    let mut text = String::new();
    let mut told = Vec::new();
    for event in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(event).unwrap();
        let choice = &chunk["choices"][0];
        text += choice["delta"]["content"].as_str().unwrap_or_default();
        if !choice["logprobs"].is_null() {
            told.extend(bytes(&choice["logprobs"]));
            assert_eq!(
                text.as_bytes(),
                told,
                "no token before its text, none behind it"
            );
        }
    }
    assert_eq!(text, "hé ", "and none of the stop string");
}

#[tokio::test]
async fn a_completion_tells_them_with_offsets() {
    let house = TestServer::open().await;
    let body = json!({"prompt": "say(aéb)", "logprobs": 1});
    let answer = post(house.address(), "/v1/completions", &body).await.json();
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(
        logprobs["tokens"],
        json!(["a", "\u{fffd}", "\u{fffd}", "b"])
    );
    assert_eq!(logprobs["text_offset"], json!([0, 1, 1, 2]));
    assert_eq!(logprobs["token_logprobs"], json!([0.0, 0.0, 0.0, 0.0]));
    assert_eq!(logprobs["top_logprobs"][0], json!({"a": 0.0}));
    post(
        house.address(),
        "/v1/completions",
        &json!({"prompt": "x", "logprobs": 6}),
    )
    .await
    .error(400, "invalid_value", Some("logprobs"));
}

#[tokio::test]
async fn nobody_who_did_not_ask_is_told() {
    let house = TestServer::open().await;
    let answer = post(house.address(), CHAT, &say("x")).await.json();
    assert!(answer["choices"][0]["logprobs"].is_null());
}
