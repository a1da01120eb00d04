//! Tests `POST /v1/responses`: complete, streamed, and stored.

use crate::support::client::{JSON, begin, get, post, send};
use crate::support::{MODEL, Options, TestServer, until};
use crate::tools::HERMES;
use foreword_server::keys::ApiKeys;
use foreword_server::transcripts::Bounds;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;

const PATH: &str = "/v1/responses";

const KEPT: Bounds = Bounds {
    responses: 100,
    bytes: 1 << 20,
    time: Duration::from_secs(3600),
};

fn say(text: &str) -> Value {
    json!({"model": MODEL, "input": format!("say({text})")})
}

async fn keeping() -> TestServer {
    TestServer::with(Options {
        store: Some(KEPT),
        ..Options::default()
    })
    .await
}

/// Removes the fields that differ from run to run, after checking them.
fn without_ids(mut response: Value) -> Value {
    for (pointer, prefix) in [
        ("/id", "resp_"),
        ("/output/0/id", "msg_"),
        ("/output/1/id", "fc_"),
        ("/output/1/call_id", "call_"),
    ] {
        if let Some(id) = response.pointer_mut(pointer) {
            assert!(id.as_str().unwrap().starts_with(prefix), "{id}");
            *id = Value::Null;
        }
    }
    for field in ["created_at", "completed_at"] {
        if let Some(time) = response.get_mut(field) {
            assert!(time.as_u64() > Some(1_700_000_000));
            *time = Value::Null;
        }
    }
    response
}

#[tokio::test]
async fn a_response_has_openais_shape() {
    let house = TestServer::open().await;
    let mut body = say("Guten Tag");
    body["metadata"] = json!({"a": "b"});
    body["max_output_tokens"] = 50.into();
    let response = post(house.address(), PATH, &body).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let expected = json!({
        "id": null, "object": "response", "status": "completed", "created_at": null, "completed_at": null,
        "model": MODEL, "background": false, "error": null, "incomplete_details": null, "instructions": null,
        "max_output_tokens": 50, "metadata": {"a": "b"}, "parallel_tool_calls": true, "previous_response_id": null,
        "prompt_cache_key": null, "reasoning": {"effort": null, "summary": null}, "safety_identifier": null,
        "service_tier": "default", "store": false, "temperature": 1.0, "text": {"format": {"type": "text"}},
        "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": 1.0, "truncation": "disabled", "user": null,
        "output": [{
            "id": null, "type": "message", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": "Guten Tag", "annotations": [], "logprobs": []}],
        }],
        "usage": {
            "input_tokens": 16, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 25,
        },
    });
    assert_eq!(without_ids(response.json()), expected);
    let again = post(house.address(), PATH, &body).await.json();
    assert_eq!(again["usage"]["input_tokens_details"]["cached_tokens"], 15);
}

#[tokio::test]
async fn a_response_is_computed_as_the_chat_that_it_stands_for() {
    let house = TestServer::open().await;
    let chat = json!({"model": MODEL, "messages": [
        {"role": "system", "content": "word ".repeat(20)}, {"role": "user", "content": "say(x)"},
    ]});
    let first = post(house.address(), "/v1/chat/completions", &chat)
        .await
        .json();
    let body = json!({"instructions": "word ".repeat(20), "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "say(x)"}]}
    ]});
    let second = post(house.address(), PATH, &body).await.json();
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(second["usage"]["input_tokens"], prompt);
    assert_eq!(
        second["usage"]["input_tokens_details"]["cached_tokens"],
        prompt - 1
    );
}

fn names(events: &[Value]) -> Vec<&str> {
    let names = events.iter().map(|event| event["type"].as_str().unwrap());
    names.collect()
}

async fn streamed(address: SocketAddr, mut body: Value) -> Vec<Value> {
    body["stream"] = true.into();
    let reply = begin(address, PATH, &body).await;
    assert_eq!(reply.status, 200);
    let events = reply.events().await;
    let events: Vec<Value> = (events.iter())
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    events
}

#[tokio::test]
async fn a_stream_has_openais_events_in_their_order() {
    let house = TestServer::open().await;
    let events = streamed(house.address(), say("abc")).await;
    let delta = "response.output_text.delta";
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        delta,
        delta,
        delta,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(names(&events), expected);
    let item = &events[2]["item"]["id"];
    assert!(events[3..9].iter().all(|event| event["item_id"] == *item));
    assert_eq!(events[7]["text"], "abc");
    assert_eq!(events[0]["response"]["status"], "in_progress");
    let whole = post(house.address(), PATH, &say("abc")).await.json();
    let mut last = without_ids(events[10]["response"].clone());
    last["usage"]["input_tokens_details"]["cached_tokens"] = 9.into();
    assert_eq!(last, without_ids(whole));
}

#[tokio::test]
async fn calls_of_tools_are_items_and_come_back_as_items() {
    let house = TestServer::with(Options {
        template: Some(HERMES),
        ..Options::default()
    })
    .await;
    let call = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n";
    let mut body = say(call);
    body["tools"] =
        json!([{"type": "function", "name": "weather", "parameters": {"type": "object"}}]);
    let response = post(house.address(), PATH, &body).await.json();
    assert_eq!(response["tools"], body["tools"]);
    assert_eq!(response["output"][0]["content"][0]["text"], "Let me see.\n");
    let made = &response["output"][1];
    assert_eq!(
        (&made["type"], &made["name"], &made["arguments"]),
        (
            &json!("function_call"),
            &json!("weather"),
            &json!("{\"city\": \"Oslo\"}")
        )
    );
    let events = streamed(house.address(), body).await;
    let names = names(&events);
    let added = names
        .iter()
        .rposition(|name| *name == "response.output_item.added")
        .unwrap();
    assert_eq!(
        &names[added..],
        [
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    assert_eq!(events[added]["output_index"], 1);
    assert_eq!(events[added]["item"]["arguments"], "");
    // The answer is sent back unchanged, with the tool's result.
    let mut input = vec![json!({"role": "user", "content": "Weather?"})];
    input.extend(response["output"].as_array().unwrap().iter().cloned());
    input.push(
        json!({"type": "function_call_output", "call_id": made["call_id"], "output": "say(Rain)"}),
    );
    let next = post(house.address(), PATH, &json!({"input": input}))
        .await
        .json();
    assert_eq!(next["output"][0]["content"][0]["text"], "Rain");
}

#[tokio::test]
async fn an_answer_that_is_cut_is_incomplete() {
    let house = TestServer::open().await;
    let mut body = say("forever and ever");
    body["max_output_tokens"] = 7.into();
    let response = post(house.address(), PATH, &body).await.json();
    assert_eq!(
        (
            &response["status"],
            &response["incomplete_details"]["reason"]
        ),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(response["output"][0]["content"][0]["text"], "forever");
    let events = streamed(house.address(), body).await;
    assert_eq!(events.last().unwrap()["type"], "response.incomplete");
}

#[tokio::test]
async fn a_stream_that_fails_says_so_with_its_usage() {
    let house = TestServer::with(Options {
        request_timeout: Duration::from_millis(300),
        ..Options::default()
    })
    .await;
    // There are few events: a client that is behind may miss the last one.
    house.steps.hold(4);
    let events = streamed(house.address(), json!({"input": "forever"})).await;
    house.steps.release();
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["status"], "failed");
    assert_eq!(last["response"]["error"]["code"], "server_error");
    assert!(last["response"]["usage"]["output_tokens"].as_u64() > Some(0));
}

#[tokio::test]
async fn refusals_name_the_fields_of_responses() {
    let house = TestServer::open().await;
    for (body, param) in [
        (json!({}), "input"),
        (
            json!({"input": "x", "max_output_tokens": 0}),
            "max_output_tokens",
        ),
        (json!({"input": "x", "temperature": 9}), "temperature"),
        (json!({"input": "x", "logit_bias": {"1": 2}}), "logit_bias"),
        (
            json!({"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": 3}}}),
            "text.format.schema",
        ),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            "input[0].content[0].type",
        ),
    ] {
        let response = post(house.address(), PATH, &body).await;
        let message = response.error(400, "invalid_value", Some(param));
        assert!(
            message.contains(param.trim_end_matches(".type")),
            "{message}"
        );
    }
    let response = post(
        house.address(),
        PATH,
        &json!({"input": "x", "model": "other"}),
    )
    .await;
    response.error(404, "model_not_found", Some("model"));
}

#[tokio::test]
async fn what_a_response_repeats_is_checked() {
    let house = keeping().await;
    let address = house.address();
    for (field, value) in [
        ("metadata", json!({"a": {"b": []}})),
        ("metadata", json!({"a": "x".repeat(513)})),
        ("user", json!(["x"])),
        ("safety_identifier", json!({})),
    ] {
        let mut body = say("x");
        body[field] = value;
        post(address, PATH, &body)
            .await
            .error(400, "invalid_value", Some(field));
    }
    let mut body = say("x");
    for field in ["metadata", "user", "prompt_cache_key", "safety_identifier"] {
        body[field] = Value::Null;
    }
    assert_eq!(post(address, PATH, &body).await.status, 200);
}

#[tokio::test]
async fn responses_go_on_from_kept_ones_where_some_are_kept() {
    let none = TestServer::open().await;
    let mut body = say("x");
    body["previous_response_id"] = "resp_1".into();
    let refused = post(none.address(), PATH, &body).await;
    let message = refused.error(400, "invalid_value", Some("previous_response_id"));
    assert!(message.contains("--store"), "{message}");
    let gone = get(none.address(), "/v1/responses/resp_1").await;
    gone.error(400, "invalid_value", Some("response_id"));

    let house = keeping().await;
    let address = house.address();
    let mut first = say("a parrot ".repeat(9).as_str());
    first["instructions"] = "not carried over".into();
    let first = post(address, PATH, &first).await.json();
    assert_eq!(first["store"], true);
    let id = first["id"].as_str().unwrap();
    let second = json!({"input": "say(again)", "previous_response_id": id});
    let events = streamed(address, second).await;
    let second = &events.last().unwrap()["response"];
    assert_eq!(second["output"][0]["content"][0]["text"], "again");
    assert_eq!(second["previous_response_id"], id);
    // <|user|>say(…)<|user|>…<|user|>say(again)<|assistant|>
    let said = "a parrot ".repeat(9).len() as u64;
    assert_eq!(second["usage"]["input_tokens"], 4 + 2 * said + 5 + 10);
    // A third request continues the second.
    let third = json!({"input": "say(more)", "previous_response_id": second["id"]});
    let third = post(address, PATH, &third).await.json();
    assert_eq!(third["output"][0]["content"][0]["text"], "more");

    assert_eq!(get(address, &format!("{PATH}/{id}")).await.json(), first);
    let items = get(address, &format!("{PATH}/{id}/input_items"))
        .await
        .json();
    assert_eq!(items["data"][0]["role"], "user");
    let items =
        json!([{"role": "user", "content": "say(one)"}, {"role": "user", "content": "say(two)"}]);
    let both = post(address, PATH, &json!({"input": items})).await.json();
    let page = async |query: &str| {
        let path = format!(
            "{PATH}/{}/input_items?{query}",
            both["id"].as_str().unwrap()
        );
        get(address, &path).await
    };
    let texts = |page: &Value| -> Vec<Value> {
        let items = page["data"].as_array().unwrap();
        items.iter().map(|item| item["content"].clone()).collect()
    };
    let first = page("limit=1").await.json();
    assert_eq!(
        (texts(&first), &first["has_more"]),
        (vec![json!("say(two)")], &json!(true))
    );
    let ascending = page("order=asc&include[]=x").await.json();
    assert_eq!(texts(&ascending), ["say(one)", "say(two)"]);
    let after = format!("after={}", first["last_id"].as_str().unwrap());
    assert_eq!(texts(&page(&after).await.json()), ["say(one)"]);
    page("limit=0")
        .await
        .error(400, "invalid_value", Some("limit"));
    let gone = send(address, "DELETE", &format!("{PATH}/{id}"), &[], b"").await;
    assert_eq!(gone.read().await.json()["deleted"], true);
    let gone = get(address, &format!("{PATH}/{id}")).await;
    gone.error(404, "response_not_found", None);
    let gone = json!({"input": "x", "previous_response_id": id});
    let gone = post(address, PATH, &gone).await;
    gone.error(404, "response_not_found", Some("previous_response_id"));
}

#[tokio::test]
async fn kept_responses_are_their_tenants_alone() {
    let house = TestServer::with(Options {
        store: Some(KEPT),
        keys: Some(ApiKeys::of([b"one".as_slice(), b"two".as_slice()])),
        ..Options::default()
    })
    .await;
    let asked = async |key: &str, body: &Value| {
        let key = format!("Bearer {key}");
        let headers = [JSON[0], ("authorization", key.as_str())];
        let body = body.to_string();
        send(house.address(), "POST", PATH, &headers, body.as_bytes())
            .await
            .read()
            .await
    };
    let mut body = say("secret");
    body["cache_salt"] = "tenant-a".into();
    let id = asked("one", &body).await.json()["id"].take();
    let next = |salt: Option<&str>| {
        let mut next = json!({"input": "say(x)", "previous_response_id": id});
        if let Some(salt) = salt {
            next["cache_salt"] = salt.into();
        }
        next
    };
    assert_eq!(asked("one", &next(Some("tenant-a"))).await.status, 200);
    for (key, salt) in [
        ("one", Some("tenant-b")),
        ("one", None),
        ("two", Some("tenant-a")),
    ] {
        let refused = asked(key, &next(salt)).await;
        refused.error(404, "response_not_found", Some("previous_response_id"));
    }
    // A request without a body has no salt.
    let path = format!("{PATH}/{}", id.as_str().unwrap());
    let headers = [("authorization", "Bearer one")];
    let shown = send(house.address(), "GET", &path, &headers, b"")
        .await
        .read()
        .await;
    shown.error(404, "response_not_found", None);
    // Responses that must not be stored are not.
    let before = house.app().transcripts.as_ref().unwrap().held();
    let mut not_stored = say("x");
    not_stored["store"] = false.into();
    assert_eq!(asked("one", &not_stored).await.json()["store"], false);
    assert_eq!(house.app().transcripts.as_ref().unwrap().held(), before);
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_ends_it() {
    let house = keeping().await;
    let reply = begin(
        house.address(),
        PATH,
        &json!({"input": "forever", "stream": true}),
    )
    .await;
    until("it runs", || house.stats().running == 1).await;
    drop(reply);
    house.idle().await;
    assert_eq!(house.ended("cancelled"), 1);
    assert_eq!(house.app().transcripts.as_ref().unwrap().held().0, 0);
}
