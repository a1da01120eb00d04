//! Tests `logprobs` in both APIs, streamed and not.

use crate::chat::say;
use crate::support::client::{begin, post};
use crate::support::parrot::VOCABULARY;
use crate::support::{Options, TestServer};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// The bytes of all tokens in a chat choice's log-probabilities.
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
    // The parrot's token has a logit of 10,000 above all others, of which the lowest ids come first.
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

/// A template that ends an assistant's message, which a continued one must not have.
pub(crate) const ENDING: &str = "\
{%- for message in messages %}\
{%- if message.role == 'assistant' %}<|assistant|>{{ message.content }}.{% else %}<|user|>{{ message.content }}{% endif %}\
{%- endfor %}\
{%- if add_generation_prompt %}<|assistant|>{% endif %}";

async fn ending() -> TestServer {
    TestServer::with(Options {
        template: Some(ENDING),
        ..Options::default()
    })
    .await
}

/// A chat whose last message is the beginning of the assistant's, to be continued.
fn forced(answer: &str) -> Value {
    json!({
        "messages": [
            {"role": "user", "content": "say(abc)"},
            {"role": "assistant", "content": answer},
        ],
        "add_generation_prompt": false,
        "continue_final_message": true,
        "prompt_logprobs": 1,
        "max_tokens": 1,
    })
}

#[tokio::test]
async fn a_chat_tells_how_likely_an_answer_is_that_it_is_given() {
    let house = ending().await;
    let entry = |logprob: f64, rank: u32, text: &str| json!({"logprob": logprob, "rank": rank, "decoded_token": text});
    for _ in 0..2 {
        let answer = post(house.address(), CHAT, &forced("ab")).await.json();
        assert_eq!(answer["choices"][0]["message"]["content"], "c");
        // The whole prompt is computed, even if it is cached.
        let usage = &answer["usage"];
        assert_eq!(usage["prompt_tokens"], 12);
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
        let told = answer["prompt_logprobs"].as_array().unwrap();
        assert_eq!((told.len(), &told[0]), (12, &Value::Null));
        assert_eq!(told[10], json!({"97": entry(0.0, 1, "a")}));
        assert_eq!(told[11], json!({"98": entry(0.0, 1, "b")}));
    }
    let wrong = post(house.address(), CHAT, &forced("ax")).await.json();
    let expected = json!({"120": entry(-9999.0, VOCABULARY, "x"), "98": entry(0.0, 1, "b")});
    assert_eq!(wrong["prompt_logprobs"][11], expected);
    // The computed pages serve requests without log-probabilities.
    let mut plain = forced("ab");
    plain.as_object_mut().unwrap().remove("prompt_logprobs");
    let plain = post(house.address(), CHAT, &plain).await.json();
    assert_eq!(plain["usage"]["prompt_tokens_details"]["cached_tokens"], 11);
    assert!(plain.get("prompt_logprobs").is_none());
}

#[tokio::test]
async fn the_end_of_a_prompt_is_scored_without_computing_what_is_cached() {
    let house = ending().await;
    let whole = post(house.address(), CHAT, &forced("ax")).await.json();
    let whole = whole["prompt_logprobs"].as_array().unwrap();
    for (last, cached) in [(1, 10), (3, 8), (11, 0), (900, 0)] {
        let mut body = forced("ax");
        body["prompt_logprobs_last"] = last.into();
        let answer = post(house.address(), CHAT, &body).await.json();
        let told = answer["prompt_logprobs"].as_array().unwrap();
        let without = 12 - last.min(11);
        assert!(told.len() == 12 && told[..without].iter().all(Value::is_null));
        assert_eq!(told[without..], whole[without..]);
        assert_eq!(
            answer["usage"]["prompt_tokens_details"]["cached_tokens"],
            cached
        );
    }
    // A response's limit counts what it reports.
    let mut long = forced("ab");
    long["messages"][0]["content"] = "x".repeat(7_000).into();
    long["prompt_logprobs"] = 20.into();
    long["prompt_logprobs_last"] = 2.into();
    let told = post(house.address(), CHAT, &long).await.json();
    assert_eq!(told["prompt_logprobs"].as_array().unwrap().len(), 7_004);
    // With `echo` and `logprobs`, all of the prompt's tokens have log-probabilities.
    let echoed = json!({"prompt": "say(b)", "echo": true, "logprobs": 0, "prompt_logprobs": 0, "prompt_logprobs_last": 1});
    let echoed = post(house.address(), "/v1/completions", &echoed)
        .await
        .json();
    let logprobs = &echoed["choices"][0]["logprobs"]["token_logprobs"];
    assert!(
        logprobs.as_array().unwrap()[1..]
            .iter()
            .all(Value::is_number)
    );
    for wrong in [
        json!({"prompt_logprobs": null}),
        json!({"prompt_logprobs_last": 0}),
    ] {
        let mut body = forced("a");
        body["prompt_logprobs_last"] = 1.into();
        let more = wrong.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        let response = post(house.address(), CHAT, &body).await;
        response.error(400, "invalid_value", Some("prompt_logprobs_last"));
    }
}

#[tokio::test]
async fn a_chat_ends_where_it_is_asked_to() {
    let house = ending().await;
    let rendered = async |fields: Value| {
        let mut body = forced("a b ");
        let more = fields.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        let rendered = post(house.address(), "/v1/chat/completions/render", &body).await;
        let tokens = json!({"tokens": rendered.json()["token_ids"]});
        let text = post(house.address(), "/detokenize", &tokens).await;
        text.json()["prompt"].as_str().unwrap().to_owned()
    };
    let begin = "<|user|>say(abc)<|assistant|>a b ";
    assert_eq!(rendered(json!({})).await, begin);
    // One of the two fields is sufficient.
    assert_eq!(
        rendered(json!({"add_generation_prompt": null})).await,
        begin
    );
    let open = json!({"continue_final_message": false});
    assert_eq!(rendered(open).await, format!("{begin}."));
    let usual = json!({"continue_final_message": null, "add_generation_prompt": null});
    assert_eq!(rendered(usual).await, format!("{begin}.<|assistant|>"));
    for (fields, param) in [
        (
            json!({"add_generation_prompt": true}),
            "continue_final_message",
        ),
        (
            json!({"messages": [{"role": "user", "content": " "}]}),
            "messages",
        ),
        (json!({"stream": true}), "prompt_logprobs"),
        (json!({"prompt_logprobs": 21}), "prompt_logprobs"),
        (
            json!({"prompt_logprobs": null, "max_tokens": 0}),
            "max_tokens",
        ),
        (json!({"max_tokens": 0, "n": 2}), "n"),
    ] {
        let mut body = forced("a");
        let more = fields.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        let response = post(house.address(), CHAT, &body).await;
        response.error(400, "invalid_value", Some(param));
    }
    let response = json!({"input": "hi", "prompt_logprobs": 1});
    post(house.address(), "/v1/responses", &response)
        .await
        .error(400, "invalid_value", Some("prompt_logprobs"));
}

#[tokio::test]
async fn a_completion_repeats_its_prompt_with_logprobs() {
    let house = TestServer::open().await;
    let path = "/v1/completions";
    let body =
        json!({"prompt": "é say(b)", "echo": true, "logprobs": 1, "prompt_logprobs": 0, "n": 2});
    let answer = post(house.address(), path, &body).await.json();
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!(choice["text"], "é say(b)b");
        let logprobs = &choice["logprobs"];
        assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 10);
        assert_eq!(
            logprobs["text_offset"],
            json!([0, 0, 1, 2, 3, 4, 5, 6, 7, 8])
        );
        assert_eq!(logprobs["token_logprobs"][0], Value::Null);
        assert_eq!(logprobs["top_logprobs"][0], Value::Null);
        // The parrot's likeliest token is the end token.
        assert_eq!(
            logprobs["top_logprobs"][1],
            json!({"<|end|>": 0.0, "\u{fffd}": -9999.0})
        );
        assert_eq!(logprobs["token_logprobs"][9], 0.0);
        let told = choice["prompt_logprobs"].as_array().unwrap();
        assert_eq!(told.len(), 9);
        assert_eq!(told[1].as_object().unwrap().len(), 1, "its own token alone");
    }
    let scored = json!({"prompt": [104, 105], "echo": true, "logprobs": 0, "max_tokens": 0});
    let answer = post(house.address(), path, &scored).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!("hi"), &json!("length"))
    );
    assert_eq!(choice["logprobs"]["token_logprobs"], json!([null, -9999.0]));
    assert_eq!(answer["usage"]["completion_tokens"], 0);
}

#[tokio::test]
async fn a_stream_repeats_its_prompt_first() {
    let house = TestServer::open().await;
    // As in vLLM, a request for 0 log-probabilities of the prompt returns none.
    let body = json!({"prompt": "say(b)", "echo": true, "stream": true, "prompt_logprobs": 0});
    let events = begin(house.address(), "/v1/completions", &body)
        .await
        .events()
        .await;
    let texts = events[..events.len() - 1].iter().map(|event| {
        let chunk: Value = serde_json::from_str(event).unwrap();
        chunk["choices"][0]["text"].as_str().unwrap().to_owned()
    });
    assert_eq!(texts.collect::<Vec<_>>(), ["say(b)", "b", ""]);
}

#[tokio::test]
async fn a_response_has_a_bounded_number_of_logprobs() {
    let house = ending().await;
    let mut long = forced("a");
    long["prompt_logprobs"] = 20.into();
    long["messages"][0]["content"] = "x".repeat(7_000).into();
    let long = post(house.address(), CHAT, &long).await;
    let message = long.error(400, "invalid_value", Some("prompt_logprobs"));
    assert!(
        message.ends_with("7003 prompt tokens, more than 131072"),
        "{message}"
    );
    let mut answers = say("x");
    answers["logprobs"] = true.into();
    answers["top_logprobs"] = 20.into();
    answers["n"] = 16.into();
    answers["max_tokens"] = 781.into();
    let message = (post(house.address(), CHAT, &answers).await).error(
        400,
        "invalid_value",
        Some("max_tokens"),
    );
    assert!(message.contains("at most 780 tokens"), "{message}");
    answers["max_tokens"] = 780.into();
    let whole = post(house.address(), CHAT, &answers).await;
    assert_eq!(whole.status, 200, "{}", whole.text());
    // A stream sends them as they come.
    answers["max_tokens"] = 781.into();
    answers["stream"] = true.into();
    assert_eq!(post(house.address(), CHAT, &answers).await.status, 200);
}
