//! Tests `tools`: calls in a model's text become `tool_calls`, and required calls are made.

use crate::chat::say;
use crate::support::client::{begin, post};
use crate::support::{Options, TestServer};
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

/// A template in the style of Hermes and Qwen.
pub(crate) const HERMES: &str = "\
{%- if tools %}{{ tools | tojson }} Call: <tool_call>…</tool_call>{% endif %}\
{%- if enable_thinking is defined and not enable_thinking %}/no_think{% endif %}\
{%- for message in messages %}<|user|>{{ message.content }}{% endfor %}<|assistant|>";

async fn house() -> TestServer {
    TestServer::with(Options {
        template: Some(HERMES),
        ..Options::default()
    })
    .await
}

fn with_tools(text: &str) -> Value {
    let mut body = say(text);
    body["tools"] = json!([
        {"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Lima"]}},
            "required": ["city"],
            "additionalProperties": false,
        }}},
        {"type": "function", "function": {"name": "time"}},
    ]);
    body
}

const CALL: &str = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":  \"Oslo\"}}\n</tool_call>\n";

#[tokio::test]
async fn a_call_that_the_model_writes_becomes_a_tool_call() {
    let house = house().await;
    let answer = post(house.address(), PATH, &with_tools(CALL)).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Let me see.\n");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["type"], "function");
    assert!(call["id"].as_str().unwrap().starts_with("call_"));
    let expected = json!({"name": "weather", "arguments": "{\"city\":  \"Oslo\"}"});
    assert_eq!(call["function"], expected);
}

#[tokio::test]
async fn a_stream_has_the_call_in_one_delta() {
    let house = house().await;
    let mut body = with_tools(CALL);
    body["stream"] = true.into();
    let events = begin(house.address(), PATH, &body).await.events().await;
    let choices: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).unwrap()["choices"][0].clone())
        .collect();
    let text: String = choices
        .iter()
        .filter_map(|choice| choice["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, "Let me see.\n");
    let calls: Vec<&Value> = choices
        .iter()
        .filter_map(|choice| choice["delta"]["tool_calls"].get(0))
        .collect();
    assert_eq!(calls.len(), 1);
    assert_eq!(
        (&calls[0]["index"], &calls[0]["function"]["name"]),
        (&json!(0), &json!("weather"))
    );
    assert_eq!(choices.last().unwrap()["finish_reason"], "tool_calls");
}

/// An answer of two calls.
pub(crate) const TWO_CALLS: &str = "Hm. <tool_call>{\"name\": \"time\"}</tool_call><tool_call>{\"name\": \"time\"}</tool_call> Done.";

#[tokio::test]
async fn one_call_ends_an_answer_without_parallel_calls() {
    let house = house().await;
    let mut body = with_tools(TWO_CALLS);
    let answer = post(house.address(), PATH, &body).await.json();
    let calls = |answer: &Value| {
        let calls = answer["choices"][0]["message"]["tool_calls"].as_array();
        calls.unwrap().len()
    };
    assert_eq!(calls(&answer), 2);
    body["parallel_tool_calls"] = false.into();
    let answer = post(house.address(), PATH, &body).await.json();
    assert_eq!(calls(&answer), 1);
    assert_eq!(answer["choices"][0]["message"]["content"], "Hm. ");
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    body["stream"] = true.into();
    let events = begin(house.address(), PATH, &body).await.events().await;
    let deltas = events
        .iter()
        .filter(|event| event.contains("tool_calls\":["));
    assert_eq!(deltas.count(), 1);
    let last: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    house.idle().await;
}

#[tokio::test]
async fn without_tools_the_same_words_are_text() {
    let house = house().await;
    let mut none = with_tools(CALL);
    none["tool_choice"] = "none".into();
    for body in [say(CALL), none] {
        let choice = post(house.address(), PATH, &body).await.json()["choices"][0].clone();
        assert_eq!(
            choice["message"],
            json!({"role": "assistant", "content": CALL})
        );
        assert_eq!(choice["finish_reason"], "stop");
    }
    // The same if the template has no such style.
    let plain = TestServer::open().await;
    let choice = post(plain.address(), PATH, &with_tools(CALL)).await.json()["choices"][0].clone();
    assert_eq!(choice["message"]["content"], CALL);
}

#[tokio::test]
async fn a_call_that_is_demanded_is_made() {
    let house = house().await;
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for (choice, stream) in [
        (json!("required"), false),
        (named.clone(), false),
        (named, true),
    ] {
        let mut body = with_tools("I would rather talk.");
        // With random weights, unrestricted arguments hardly ever end.
        body["tools"][1]["function"]["parameters"] =
            json!({"type": "object", "properties": {}, "additionalProperties": false});
        body["tool_choice"] = choice.clone();
        body["seed"] = 3.into();
        body["max_tokens"] = 300.into();
        body["stream"] = stream.into();
        let (call, reason) = if stream {
            let events = begin(house.address(), PATH, &body).await.events().await;
            let parsed = events[..events.len() - 1]
                .iter()
                .map(|event| serde_json::from_str::<Value>(event).unwrap()["choices"][0].clone());
            let choices: Vec<Value> = parsed.collect();
            let call = choices
                .iter()
                .find_map(|c| c["delta"]["tool_calls"].get(0).cloned());
            (
                call.unwrap(),
                choices.last().unwrap()["finish_reason"].clone(),
            )
        } else {
            let answer = post(house.address(), PATH, &body).await.json();
            let found = &answer["choices"][0];
            assert_eq!(found["message"]["content"], Value::Null, "{found}");
            (
                found["message"]["tool_calls"][0].clone(),
                found["finish_reason"].clone(),
            )
        };
        assert_eq!(reason, "tool_calls", "{choice}");
        let arguments = call["function"]["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        match call["function"]["name"].as_str().unwrap() {
            "weather" => assert!(arguments["city"] == "Oslo" || arguments["city"] == "Lima"),
            "time" if choice == json!("required") => assert!(arguments.is_object()),
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn a_demanded_call_is_asked_for_in_the_models_manner() {
    let house = house().await;
    // The opening tag ends the prompt, so the parrot counts it as said.
    let mut body = with_tools("<tool_call>\n{\"name\": \"time\", \"arguments\": {\"now\": true}}");
    body["tool_choice"] = json!({"type": "function", "function": {"name": "time"}});
    let answer = post(house.address(), PATH, &body).await.json();
    let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(
        *call,
        json!({"name": "time", "arguments": "{\"now\": true}"})
    );
}

#[tokio::test]
async fn a_tool_whose_schema_is_not_supported_is_refused_only_when_it_is_demanded() {
    let house = house().await;
    let mut body = with_tools("ok");
    body["tools"][0]["function"]["parameters"]["not"] = json!({});
    assert_eq!(post(house.address(), PATH, &body).await.status, 200);
    body["tool_choice"] = "required".into();
    let message =
        post(house.address(), PATH, &body)
            .await
            .error(400, "invalid_value", Some("tools"));
    assert!(
        message.contains("`not` at #/anyOf/0/properties/arguments"),
        "{message}"
    );
}

#[tokio::test]
async fn template_variables_reach_the_template() {
    let house = house().await;
    let tokens = async |body: &Value| {
        post(house.address(), PATH, body).await.json()["usage"]["prompt_tokens"]
            .as_u64()
            .unwrap()
    };
    let mut body = say("ok");
    let plain = tokens(&body).await;
    body["chat_template_kwargs"] = json!({"enable_thinking": false, "messages": []});
    assert_eq!(tokens(&body).await, plain + "/no_think".len() as u64);
}
