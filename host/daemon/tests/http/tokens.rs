//! Tests `/tokenize`, `/detokenize`, the renderers, and roles that a template does not support.

use crate::support::client::{post, post_bytes};
use crate::support::parrot::MAX_POSITIONS;
use crate::support::{MODEL, Options, TestServer};
use serde_json::{Value, json};

/// <|user|>hi<|assistant|>
const HI: [u32; 4] = [256, 0x68, 0x69, 257];

#[tokio::test]
async fn texts_and_chats_are_tokenised_as_they_would_be_computed() {
    let house = TestServer::open().await;
    let address = house.address();
    let text = json!({"model": MODEL, "prompt": "hü", "return_token_strs": true});
    let found = post(address, "/tokenize", &text).await.json();
    assert_eq!(found["tokens"], json!([0x68, 0xc3, 0xbc]));
    assert_eq!(
        (&found["count"], &found["token_strs"][0]),
        (&json!(3), &json!("h"))
    );
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let found = post(address, "/tokenize", &chat).await.json();
    assert_eq!(
        (&found["tokens"], &found["token_strs"]),
        (&json!(HI), &Value::Null)
    );
    let back = post(address, "/detokenize", &json!({"tokens": HI}))
        .await
        .json();
    assert_eq!(back, json!({"prompt": "<|user|>hi<|assistant|>"}));
    let wrong = post(address, "/detokenize", &json!({"tokens": [1, 99_999]})).await;
    wrong.error(400, "invalid_value", Some("tokens"));
    let many = format!(r#"{{"tokens":[1{}]}}"#, ",1".repeat(MAX_POSITIONS as usize));
    let many = post_bytes(address, "/detokenize", many.as_bytes()).await;
    let told = many.error(400, "invalid_value", Some("tokens"));
    assert!(
        told.ends_with(&format!("more than the model's {MAX_POSITIONS}")),
        "{told}"
    );
    let wrong = post(
        address,
        "/tokenize",
        &json!({"prompt": "x", "model": "other"}),
    )
    .await;
    wrong.error(404, "model_not_found", Some("model"));
}

#[tokio::test]
async fn prompts_are_rendered_without_an_answer() {
    let house = TestServer::open().await;
    let address = house.address();
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1});
    let chat = post(address, "/v1/chat/completions/render", &chat)
        .await
        .json();
    assert_eq!(chat["token_ids"], json!(HI));
    let response = post(address, "/v1/responses/render", &json!({"input": "hi"})).await;
    assert_eq!(response.json()["token_ids"], json!(HI));
    let wrong = json!({"input": "hi", "previous_response_id": "resp_1"});
    let wrong = post(address, "/v1/responses/render", &wrong).await;
    wrong.error(400, "invalid_value", Some("previous_response_id"));
    let one = post(address, "/v1/completions/render", &json!({"prompt": "hi"}))
        .await
        .json();
    assert_eq!(one[0]["token_ids"], json!([0x68, 0x69]));
    let several = json!({"prompt": ["hi", "h"]});
    let several = post(address, "/v1/completions/render", &several)
        .await
        .json();
    assert_eq!(several[1]["token_ids"], json!([0x68]));
    assert_eq!(several.as_array().unwrap().len(), 2);
    let wrong = json!({"prompt": ["hi", 7]});
    let wrong = post(address, "/v1/completions/render", &wrong).await;
    wrong.error(400, "invalid_value", Some("prompt"));
    assert_eq!(house.stats().finished, 0);
}

#[tokio::test]
async fn a_developer_is_the_system_where_a_template_does_not_know_it() {
    let house = TestServer::open().await;
    let body = |role: &str| json!({"messages": [{"role": role, "content": "Be brief."}, {"role": "user", "content": "say(ok)"}]});
    let answer = post(house.address(), "/v1/chat/completions", &body("developer"))
        .await
        .json();
    assert_eq!(answer["choices"][0]["message"]["content"], "ok");
    let other = post(house.address(), "/v1/chat/completions", &body("critic")).await;
    other.error(400, "invalid_value", Some("messages"));
    const KNOWS: &str = "\
{%- for message in messages %}<|user|>{% if message.role == 'developer' %}DEV{% endif %}{{ message.content }}{% endfor %}<|assistant|>";
    let knows = TestServer::with(Options {
        template: Some(KNOWS),
        ..Options::default()
    })
    .await;
    let rendered = post(
        knows.address(),
        "/v1/chat/completions/render",
        &body("developer"),
    )
    .await
    .json();
    let text = post(
        knows.address(),
        "/detokenize",
        &json!({"tokens": rendered["token_ids"]}),
    )
    .await
    .json();
    assert_eq!(
        text["prompt"],
        "<|user|>DEVBe brief.<|user|>say(ok)<|assistant|>"
    );
}
