//! Tests every refusal: its status, its code, the field it names, its message.

use crate::chat::say;
use crate::support::client::{JSON, get, post, post_bytes, send};
use crate::support::parrot::MAX_POSITIONS;
use crate::support::{MODEL, Options, TestServer};
use foreword_server::keys::ApiKeys;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_field_out_of_range_is_named_with_its_range() {
    let house = TestServer::open().await;
    for (field, value, message) in [
        (
            "temperature",
            json!(2.5),
            "temperature must be a number from 0 to 2, got 2.5",
        ),
        (
            "temperature",
            json!("hot"),
            "temperature must be a number, got a string",
        ),
        (
            "top_p",
            json!(-0.1),
            "top_p must be a number from 0 to 1, got -0.1",
        ),
        (
            "top_k",
            json!(-2),
            "top_k must be an integer from -1 to 4294967295, got -2",
        ),
        (
            "max_tokens",
            json!(0),
            "max_tokens must be an integer from 1 to 4294967295, got 0",
        ),
        (
            "max_tokens",
            json!(1.5),
            "max_tokens must be an integer from 1 to 4294967295, got 1.5",
        ),
        ("seed", json!("x"), "seed must be an integer, got a string"),
        (
            "min_cache_tokens",
            json!(-1),
            "min_cache_tokens must be an integer from 0 to 4294967295, got -1",
        ),
        (
            "cache_prefix",
            json!("no"),
            "cache_prefix must be a boolean, got a string",
        ),
        (
            "cache_prompt",
            json!(0),
            "cache_prompt must be a boolean, got a number",
        ),
        (
            "skip_reading_prefix_cache",
            json!([]),
            "skip_reading_prefix_cache must be a boolean, got an array",
        ),
        (
            "stream",
            json!("yes"),
            "stream must be a boolean, got a string",
        ),
        (
            "stream_options",
            json!({"include_usage": true}),
            "stream_options needs stream to be true",
        ),
        (
            "stop",
            json!(""),
            "a stop string must have 1 to 1024 bytes, got 0",
        ),
        (
            "stop",
            json!([1]),
            "stop must be a string or an array of strings, got a number",
        ),
        (
            "stop",
            json!(vec!["x"; 17]),
            "stop must hold at most 16 strings, got 17",
        ),
        (
            "cache_salt",
            json!(""),
            "cache_salt must have 1 to 256 bytes, got 0",
        ),
        (
            "cache_salt",
            json!("x".repeat(257)),
            "cache_salt must have 1 to 256 bytes, got 257",
        ),
        ("model", json!(3), "model must be a string, got a number"),
        ("messages", json!([]), "messages must not be empty"),
        (
            "documents",
            json!({}),
            "documents must be an array, got an object",
        ),
        ("n", json!(17), "n must be an integer from 1 to 16, got 17"),
        (
            "logprobs",
            json!(3),
            "logprobs must be a boolean, got a number",
        ),
        (
            "presence_penalty",
            json!(2.5),
            "presence_penalty must be a number from -2 to 2, got 2.5",
        ),
        (
            "repetition_penalty",
            json!(0),
            "repetition_penalty is 0, not above 0 and at most 2",
        ),
        (
            "chat_template_kwargs",
            json!([]),
            "chat_template_kwargs must be an object, got an array",
        ),
        (
            "logit_bias",
            json!({"1": 1}),
            "logit_bias is not supported: leave it out or send {}, got an object",
        ),
        (
            "tool_choice",
            json!("required"),
            "tool_choice demands a call, and there are no tools",
        ),
    ] {
        let mut body = say("x");
        body[field] = value;
        let response = post(house.address(), CHAT, &body).await;
        assert_eq!(response.error(400, "invalid_value", Some(field)), message);
    }
    let mut body = say("x");
    body["top_p"] = 0.into();
    post(house.address(), CHAT, &body)
        .await
        .error(400, "invalid_value", Some("top_p"));
}

#[tokio::test]
async fn a_field_that_would_change_the_answer_is_refused_unless_it_is_neutral() {
    let house = TestServer::open().await;
    for (field, refused, neutral) in [
        ("guided_regex", json!("a+"), json!(null)),
        ("guided_choice", json!(["a", "b"]), json!([])),
        ("guided_grammar", json!("root ::= a"), json!(null)),
        ("allowed_token_ids", json!([1]), json!([])),
        ("bad_words", json!(["x"]), json!([])),
        ("chat_template", json!("{{ messages }}"), json!(null)),
        ("truncate_prompt_tokens", json!(8), json!(-1)),
        ("include_stop_str_in_output", json!(true), json!(false)),
        ("skip_special_tokens", json!(false), json!(true)),
        ("functions", json!([{"name": "f"}]), json!([])),
        ("function_call", json!("auto"), json!("none")),
        ("modalities", json!(["text", "audio"]), json!(["text"])),
        ("audio", json!({"voice": "x"}), json!(null)),
        ("regex", json!("a+"), json!(null)),
        ("ebnf", json!("root ::= a"), json!(null)),
        ("json_schema", json!("{}"), json!(null)),
    ] {
        let mut body = say("x");
        body[field] = refused;
        let response = post(house.address(), CHAT, &body).await;
        let message = response.error(400, "invalid_value", Some(field));
        let words = format!("{field} is not supported: leave it out or send {neutral}, got ");
        assert!(message.starts_with(&words), "{message}");
        body[field] = neutral;
        assert_eq!(post(house.address(), CHAT, &body).await.status, 200);
    }
}

#[tokio::test]
async fn what_is_no_json_object_is_refused() {
    let house = TestServer::open().await;
    for (body, message) in [
        (
            &b"{\"messages\": ["[..],
            "the body is not valid JSON: EOF while parsing a list at line 1 column 14",
        ),
        (
            b"",
            "the body is not valid JSON: EOF while parsing a value at line 1 column 0",
        ),
        (b"[]", "the body must be a JSON object, got an array"),
        (
            b"{\"model\": \"\xc3\x28\"}",
            "the body is not UTF-8: invalid byte at offset 11",
        ),
    ] {
        let response = post_bytes(house.address(), CHAT, body).await;
        assert_eq!(response.error(400, "invalid_value", None), message);
    }
}

#[tokio::test]
async fn parts_other_than_text_are_refused() {
    let house = TestServer::open().await;
    let image = json!({"type": "image_url", "image_url": {"url": "data:,"}});
    let body = json!({"messages": [{"role": "user", "content": [image]}]});
    let message = post(house.address(), CHAT, &body).await.error(
        400,
        "invalid_value",
        Some("messages[0].content[0].type"),
    );
    assert_eq!(
        message,
        "messages[0].content[0] is an image (\"image_url\"), and this model reads text alone"
    );
}

#[tokio::test]
async fn messages_that_do_not_fit_the_template_are_refused_in_its_words() {
    let house = TestServer::open().await;
    let body = json!({"messages": [{"role": "narrator", "content": "x"}]});
    let message =
        post(house.address(), CHAT, &body)
            .await
            .error(400, "invalid_value", Some("messages"));
    assert!(message.contains("unknown role narrator"), "{message}");
}

#[tokio::test]
async fn a_model_without_a_template_takes_completions_only() {
    let house = TestServer::with(Options {
        template: None,
        ..Options::default()
    })
    .await;
    let message =
        post(house.address(), CHAT, &say("x"))
            .await
            .error(400, "invalid_value", Some("messages"));
    assert_eq!(
        message,
        "this model has no chat template; use /v1/completions"
    );
    let body = json!({"prompt": "say(x)"});
    assert_eq!(
        post(house.address(), "/v1/completions", &body).await.status,
        200
    );
}

#[tokio::test]
async fn prompt_and_answer_must_fit() {
    let house = TestServer::open().await;
    let mut body = say("x");
    body["max_tokens"] = MAX_POSITIONS.into();
    let message =
        post(house.address(), CHAT, &body)
            .await
            .error(400, "context_length_exceeded", None);
    assert_eq!(
        message,
        format!(
            "this request needs {} tokens (8 of them in the prompt), more than the {MAX_POSITIONS} that fit",
            MAX_POSITIONS + 8
        )
    );
}

#[tokio::test]
async fn prompt_and_answer_must_fit_into_the_pages() {
    let house = TestServer::with(Options {
        pages: 2,
        ..Options::default()
    })
    .await;
    let mut body = say("x");
    body["max_tokens"] = 25.into();
    let response = post(house.address(), CHAT, &body).await;
    let message = response.error(400, "context_length_exceeded", None);
    assert!(message.ends_with("more than the 32 that fit"), "{message}");
    // A text that is far too long is not tokenised as a whole.
    let long = json!({"prompt": "1!".repeat(300_000)});
    let response = post(house.address(), "/v1/completions", &long).await;
    let message = response.error(400, "context_length_exceeded", None);
    assert!(message.contains("(65536 of them"), "{message}");
    let model = get(house.address(), "/v1/models").await.json()["data"][0].take();
    assert_eq!(model["max_model_len"], 32);
    let info = get(house.address(), "/server_info").await.json();
    assert_eq!(info["vllm_config"]["model_config"]["max_model_len"], 32);
    let info = get(house.address(), "/model_info").await.json();
    assert_eq!(info["max_context_length"], 32);
}

#[tokio::test]
async fn a_search_is_refused_by_a_server_that_was_started_without_an_index() {
    let house = TestServer::open().await;
    let mut chat = say("x");
    chat["retrieval"] = json!(true);
    for (path, body) in [(CHAT, chat), ("/v1/retrieve", json!({"query": "ferry"}))] {
        let answer = post(house.address(), path, &body).await;
        let message = answer.error(400, "invalid_value", None);
        assert!(message.contains("started without --index"), "{message}");
    }
}

#[tokio::test]
async fn another_model_is_not_found() {
    let house = TestServer::open().await;
    let mut body = say("x");
    body["model"] = "gpt-4o".into();
    let message =
        post(house.address(), CHAT, &body)
            .await
            .error(404, "model_not_found", Some("model"));
    assert_eq!(
        message,
        format!("the model `gpt-4o` does not exist here; this server serves `{MODEL}`")
    );
    get(house.address(), "/v1/models/gpt-4o")
        .await
        .error(404, "model_not_found", Some("model"));
}

#[tokio::test]
async fn other_urls_and_methods_are_told_apart() {
    let house = TestServer::open().await;
    let message =
        get(house.address(), "/v1/images/generations")
            .await
            .error(404, "unknown_url", None);
    assert_eq!(message, "unknown URL: GET /v1/images/generations");
    for (method, path, allow) in [("GET", CHAT, "POST"), ("DELETE", "/v1/models", "GET,HEAD")] {
        let response = send(house.address(), method, path, &[], b"")
            .await
            .read()
            .await;
        response.error(405, "method_not_allowed", None);
        assert_eq!(response.header("allow"), Some(allow), "{method} {path}");
    }
    let response = send(house.internal(), "POST", "/metrics", &[], b"").await;
    let response = response.read().await;
    response.error(405, "method_not_allowed", None);
    assert_eq!(response.header("allow"), Some("GET,HEAD"));
}

#[tokio::test]
async fn what_tells_of_tenants_is_not_on_the_clients_port_and_the_rest_not_on_the_internal_one() {
    let house = TestServer::open().await;
    for path in [
        "/v1/kv/events",
        "/v1/kv/snapshot?tenant=",
        "/v1/kv/records?gateway=0000000000000001",
        "/metrics",
        "/healthz",
        "/readyz",
    ] {
        for method in ["GET", "POST"] {
            let response = send(house.address(), method, path, &[], b"").await;
            let message = response.read().await.error(404, "unknown_url", None);
            assert!(message.contains("--internal-listen"), "{message}");
        }
        assert_eq!(get(house.internal(), path).await.status, 200, "{path}");
    }
    // Other spellings are other paths.
    for path in [
        "/v1/kv/snapshot/",
        "/v1//kv/snapshot",
        "/v1/kv/%73napshot",
        "//metrics",
    ] {
        let response = get(house.address(), path).await;
        response.error(404, "unknown_url", None);
    }
    for path in [CHAT, "/v1/models", "/v1/prefill"] {
        let response = get(house.internal(), path).await;
        response.error(404, "unknown_url", None);
    }
}

#[tokio::test]
async fn without_an_internal_listener_nothing_of_it_is_served() {
    let house = TestServer::with(Options {
        internal: None,
        ..Options::default()
    })
    .await;
    assert_eq!(house.server.internal_address(), None);
    let response = get(house.address(), "/metrics").await;
    response.error(404, "unknown_url", None);
    assert_eq!(post(house.address(), CHAT, &say("x")).await.status, 200);
}

#[tokio::test]
async fn a_body_must_be_declared_as_json() {
    let house = TestServer::open().await;
    let body = say("x").to_string();
    for (headers, message) in [
        (
            &[("content-type", "text/plain")][..],
            "the content type must be `application/json`, got `text/plain`",
        ),
        (&[], "the content type must be `application/json`, got none"),
    ] {
        let response = send(house.address(), "POST", CHAT, headers, body.as_bytes())
            .await
            .read()
            .await;
        assert_eq!(response.error(415, "unsupported_media_type", None), message);
    }
    let headers = [("content-type", "Application/JSON; charset=utf-8")];
    assert_eq!(
        send(house.address(), "POST", CHAT, &headers, body.as_bytes())
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn a_key_is_asked_for_where_there_are_keys() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "secret-1\nsecret-2\n").unwrap();
    let keys = Some(ApiKeys::load(file.path()).unwrap());
    let house = TestServer::with(Options {
        keys,
        ..Options::default()
    })
    .await;
    let body = say("x").to_string();
    let with_key = async |authorization: Option<&str>| {
        let key = authorization.map(|value| ("authorization", value));
        let headers: Vec<_> = JSON.into_iter().chain(key).collect();
        send(house.address(), "POST", CHAT, &headers, body.as_bytes())
            .await
            .read()
            .await
    };
    assert_eq!(with_key(Some("Bearer secret-2")).await.status, 200);
    for wrong in [None, Some("Bearer secret-3"), Some("Basic secret-1")] {
        let response = with_key(wrong).await;
        response.error(401, "invalid_api_key", None);
        assert_eq!(response.header("www-authenticate"), Some("Bearer"));
    }
    get(house.address(), "/v1/models")
        .await
        .error(401, "invalid_api_key", None);
    for open in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(get(house.internal(), open).await.status, 200, "{open}");
    }
}

#[tokio::test]
async fn a_request_id_that_is_not_safe_to_repeat_is_replaced() {
    let house = TestServer::open().await;
    let body = say("x").to_string();
    let long = "x".repeat(129);
    for id in ["a b", long.as_str()] {
        let headers = [JSON[0], ("x-request-id", id)];
        let response = send(house.address(), "POST", CHAT, &headers, body.as_bytes())
            .await
            .read()
            .await;
        let given = response.header("x-request-id").unwrap();
        assert_ne!(given, id);
        let expected: Value = format!("chatcmpl-{given}").into();
        assert_eq!(response.json()["id"], expected);
    }
}

#[tokio::test]
async fn a_failing_device_is_a_500_without_its_cause() {
    let house = TestServer::open().await;
    let body = json!({"messages": [{"role": "user", "content": "break"}]});
    let message = post(house.address(), CHAT, &body)
        .await
        .error(500, "internal_error", None);
    assert_eq!(message, "internal error");
    assert_eq!(house.ended("failed"), 1);
    assert_eq!(post(house.address(), CHAT, &say("x")).await.status, 200);
}
