//! Tests `POST /v1/chat/completions` without streaming.

use crate::support::client::{JSON, post, send};
use crate::support::{MODEL, TestServer};
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

pub(crate) fn say(text: &str) -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": format!("say({text})")}]})
}

#[tokio::test]
async fn an_answer_has_openais_shape() {
    let house = TestServer::open().await;
    let body = say("Guten Tag").to_string();
    let headers = [JSON[0], ("x-request-id", "abc-1")];
    let response = send(house.address(), "POST", PATH, &headers, body.as_bytes())
        .await
        .read()
        .await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.header("x-request-id"), Some("abc-1"));
    let mut answer = response.json();
    assert!(
        answer["created"]
            .take()
            .as_u64()
            .is_some_and(|seconds| seconds > 1_700_000_000)
    );
    // <|user|>say(Guten Tag)<|assistant|>, one token per byte and mark.
    let expected = json!({
        "id": "chatcmpl-abc-1",
        "object": "chat.completion",
        "created": null,
        "model": MODEL,
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": "Guten Tag"},
            "logprobs": null,
            "finish_reason": "stop",
        }],
        "usage": {
            "prompt_tokens": 16,
            "completion_tokens": 9,
            "total_tokens": 25,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    });
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn the_second_identical_request_is_served_from_the_cache() {
    let house = TestServer::open().await;
    let body = say(&"word ".repeat(40));
    let first = post(house.address(), PATH, &body).await.json();
    let second = post(house.address(), PATH, &body).await.json();
    assert_eq!(second["choices"], first["choices"]);
    let prompt = second["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(
        second["usage"]["prompt_tokens_details"]["cached_tokens"],
        prompt - 1
    );
}

#[tokio::test]
async fn salts_keep_tenants_apart() {
    let house = TestServer::open().await;
    let salted = |salt: &str| {
        let mut body = say(&"word ".repeat(40));
        body["cache_salt"] = salt.into();
        body
    };
    let cached = async |salt: &str| {
        post(house.address(), PATH, &salted(salt)).await.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(cached("a").await, 0);
    assert_eq!(cached("b").await, 0);
    assert!(cached("a").await > 0);
}

#[tokio::test]
async fn characters_split_over_tokens_arrive_whole() {
    let house = TestServer::open().await;
    let text = "Grüße 東京 🦜👩\u{200d}👩\u{200d}👧";
    let answer = post(house.address(), PATH, &say(text)).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], text);
}

#[tokio::test]
async fn an_answer_ends_at_max_tokens() {
    let house = TestServer::open().await;
    for field in ["max_tokens", "max_completion_tokens"] {
        let mut body = say("forever and ever");
        body[field] = 7.into();
        let answer = post(house.address(), PATH, &body).await.json();
        assert_eq!(
            answer["choices"][0]["message"]["content"], "forever",
            "{field}"
        );
        assert_eq!(answer["choices"][0]["finish_reason"], "length", "{field}");
        assert_eq!(answer["usage"]["completion_tokens"], 7, "{field}");
    }
}

#[tokio::test]
async fn an_answer_ends_before_a_stop_string() {
    let house = TestServer::open().await;
    for stop in [json!("DEF"), json!(["nowhere", "DEF", "F"])] {
        let mut body = say("abc DE DEF ghi");
        body["stop"] = stop.clone();
        let answer = post(house.address(), PATH, &body).await.json();
        assert_eq!(
            answer["choices"][0]["message"]["content"], "abc DE ",
            "{stop}"
        );
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{stop}");
    }
    house.idle().await;
}

#[tokio::test]
async fn ignore_eos_goes_on_to_max_tokens() {
    let house = TestServer::open().await;
    let mut body = say("ab");
    body["ignore_eos"] = true.into();
    body["max_tokens"] = 5.into();
    let answer = post(house.address(), PATH, &body).await.json();
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn documents_and_tools_reach_the_template() {
    let house = TestServer::open().await;
    let mut body = say("ok");
    let plain = post(house.address(), PATH, &body).await.json()["usage"]["prompt_tokens"]
        .as_u64()
        .unwrap();
    body["documents"] = json!([{"id": "d1", "text": "one"}]);
    let tools = json!([{"type": "function", "function": {"name": "zeta", "description": "alpha"}}]);
    let documents = post(house.address(), PATH, &body).await.json()["usage"]["prompt_tokens"]
        .as_u64()
        .unwrap();
    assert_eq!(documents, plain + "[d1: one]".len() as u64);
    body["tools"] = tools;
    let both = post(house.address(), PATH, &body).await.json()["usage"]["prompt_tokens"]
        .as_u64()
        .unwrap();
    assert!(both > documents + "typefunctionnamezetadescriptionalpha".len() as u64);
}

#[tokio::test]
async fn what_has_no_meaning_here_is_ignored_and_null_is_absent() {
    let house = TestServer::open().await;
    let mut body = say("ok");
    for (field, value) in [
        ("user", json!("u1")),
        ("metadata", json!({"a": 1})),
        ("temperature", Value::Null),
        ("logprobs", json!(false)),
        ("n", json!(1)),
        ("frequency_penalty", json!(0.0)),
        ("response_format", json!({"type": "text"})),
        ("top_k", json!(-1)),
        ("seed", json!(-5)),
    ] {
        body[field] = value;
    }
    let response = post(house.address(), PATH, &body).await;
    assert_eq!(
        response.json()["choices"][0]["message"]["content"],
        "ok",
        "{}",
        response.text()
    );
}

#[tokio::test]
async fn the_model_may_be_left_out() {
    let house = TestServer::open().await;
    let mut body = say("ok");
    body.as_object_mut().unwrap().remove("model");
    assert_eq!(post(house.address(), PATH, &body).await.status, 200);
}

#[tokio::test]
async fn many_at_once_each_get_their_own_answer() {
    let house = TestServer::open().await;
    let address = house.address();
    let ask = |n: usize| async move {
        let text = format!("{n}:{}", "x".repeat(n));
        let answer = post(address, PATH, &say(&text)).await.json();
        assert_eq!(answer["choices"][0]["message"]["content"], *text);
    };
    let clients: Vec<_> = (0..64).map(|n| tokio::spawn(ask(n))).collect();
    for client in clients {
        client.await.unwrap();
    }
    house.idle().await;
    assert_eq!(house.ended("stop"), 64);
}
