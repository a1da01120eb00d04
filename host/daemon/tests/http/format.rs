//! Tests `response_format`: answers must be JSON, whatever the model prefers.

use crate::chat::say;
use crate::support::TestServer;
use crate::support::client::{begin, post};
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

fn with_schema(text: &str, schema: Value) -> Value {
    let mut body = say(text);
    let format = json!({"name": "test", "schema": schema, "strict": true});
    body["response_format"] = json!({"type": "json_schema", "json_schema": format});
    // The parrot prefers its own text; only random sampling can choose tokens that the mask allows.
    body["seed"] = 7.into();
    body["max_tokens"] = 400.into();
    body
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

#[tokio::test]
async fn json_that_the_model_means_to_say_passes_unchanged() {
    let house = TestServer::open().await;
    let text = r#"{"a": [1, 2.5, {"b": "é 🦜"}]}"#;
    let mut body = say(text);
    body["response_format"] = json!({"type": "json_object"});
    let answer = post(house.address(), PATH, &body).await.json();
    assert_eq!(
        (content(&answer), &answer["choices"][0]["finish_reason"]),
        (text, &json!("stop"))
    );
}

#[tokio::test]
async fn a_model_that_means_otherwise_is_held_to_the_schema() {
    let house = TestServer::open().await;
    let schema = json!({
        "type": "object",
        "properties": {"size": {"enum": ["small", "large"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["size", "count"],
        "additionalProperties": false,
    });
    let body = with_schema("I would rather talk.", schema.clone());
    let answer = post(house.address(), PATH, &body).await.json();
    let value: Value = serde_json::from_str(content(&answer)).unwrap();
    assert!(
        ["small", "large"].contains(&value["size"].as_str().unwrap()),
        "{value}"
    );
    assert!(
        (0..=9).contains(&value["count"].as_i64().unwrap()),
        "{value}"
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");

    // The same, streamed and with two choices.
    let mut body = with_schema("I would rather talk.", schema);
    body["stream"] = true.into();
    body["n"] = 2.into();
    let events = begin(house.address(), PATH, &body).await.events().await;
    let mut texts = [String::new(), String::new()];
    for event in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(event).unwrap();
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        texts[index] += choice["delta"]["content"].as_str().unwrap_or_default();
    }
    assert_eq!(texts[0], content(&answer));
    assert!(serde_json::from_str::<Value>(&texts[1]).unwrap()["size"].is_string());
}

#[tokio::test]
async fn an_answer_may_not_end_before_it_is_complete() {
    let house = TestServer::open().await;
    // The parrot says the beginning of an object and would end there.
    let schema = json!({"type": "object", "properties": {"a": {"const": "b"}}, "required": ["a"]});
    let answer = post(house.address(), PATH, &with_schema("{\"a", schema))
        .await
        .json();
    let value: Value = serde_json::from_str(content(&answer)).unwrap();
    assert_eq!(value["a"], "b");
}

#[tokio::test]
async fn a_schema_that_is_not_supported_is_named() {
    let house = TestServer::open().await;
    let field = "response_format.json_schema.schema";
    let schema = json!({"type": "object", "properties": {"a": {"not": {"type": "string"}}}});
    let response = post(house.address(), PATH, &with_schema("x", schema)).await;
    assert_eq!(
        response.error(400, "invalid_value", Some(field)),
        format!("{field}: `not` at #/properties/a is not supported")
    );
    let schema = json!({"type": "array", "minItems": 3, "maxItems": 2});
    let response = post(house.address(), PATH, &with_schema("x", schema)).await;
    response.error(400, "invalid_value", Some(field));
    assert_eq!(post(house.address(), PATH, &say("x")).await.status, 200);
}
