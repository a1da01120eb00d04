//! Tests of `conversation.answers`: what clients drop from a model's answers is restored, for the same chat alone.

use foreword_tests::http::{Response, exchange, post_with};
use foreword_tests::{Gateway, Upstream};
use serde_json::{Value, json};

use crate::configured;

const ARGUMENTS: &str = r#"{"path": "a.md", "lines": 3}"#;

fn call(arguments: &str) -> Value {
    let function = json!({"name": "read", "arguments": arguments});
    json!({"id": "call-1", "type": "function", "function": function})
}

/// An engine that thinks and calls a tool, as vLLM writes it, streamed if asked to.
fn engine() -> Upstream {
    Upstream::scripted(|request, reply| {
        let body: Value = serde_json::from_slice(&request.body)?;
        let message = json!({"role": "assistant", "content": null, "reasoning": "Which file?", "tool_calls": [call(ARGUMENTS)]});
        if body["stream"] != true {
            let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
            return reply.json(200, &json!({"choices": [choice]}).to_string());
        }
        reply.begin_events()?;
        let (thought, end) = ("Which file?", ARGUMENTS.len() / 2);
        let mut first = call(&ARGUMENTS[..end]);
        first["index"] = json!(0);
        let rest = json!({"index": 0, "function": {"arguments": &ARGUMENTS[end..]}});
        for (delta, reason) in [
            (json!({"role": "assistant", "content": ""}), Value::Null),
            (json!({"reasoning": &thought[..5]}), Value::Null),
            (json!({"reasoning": &thought[5..]}), Value::Null),
            (json!({"tool_calls": [first]}), Value::Null),
            (json!({"tool_calls": [rest]}), Value::Null),
            (json!({}), json!("tool_calls")),
        ] {
            let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
            reply.event(&json!({"choices": [choice]}).to_string())?;
        }
        reply.event("[DONE]")?;
        reply.end_events()
    })
    .unwrap()
}

/// A gateway that knows tenants, with this value of `conversation.answers`.
fn gateway(engine: &Upstream, answers: &str) -> Gateway {
    let plugin = json!({
        "ordering": {"conversation": {"answers": answers}}, "tenant": {"header": "x-tenant"},
        "report_header": "x-foreword",
    });
    configured(engine, plugin)
}

fn ask(gateway: &Gateway, tenant: &str, body: &Value) -> Response {
    let tenant = format!("x-tenant: {tenant}");
    let request = post_with(
        &["content-type: application/json", &tenant],
        body.to_string().as_bytes(),
    );
    let response = exchange(gateway.address(), &request).unwrap();
    assert_eq!(response.status, 200);
    response
}

fn first(stream: bool) -> Value {
    let messages = json!([{"role": "user", "content": "What does a.md say?"}]);
    json!({"model": "m", "stream": stream, "messages": messages})
}

/// The chat's next request, from a client that drops reasoning and writes arguments anew.
fn second(stream: bool) -> Value {
    let mut body = first(stream);
    let answer = json!({"role": "assistant", "content": "", "tool_calls": [call(r#"{"lines":3,"path":"a.md"}"#)]});
    let result = json!({"role": "tool", "tool_call_id": "call-1", "content": "# A"});
    let messages = body["messages"].as_array_mut().unwrap();
    messages.extend([answer, result]);
    body
}

fn forwarded(engine: &Upstream) -> Value {
    let last = engine.last().unwrap();
    let length = last.header("content-length");
    assert!(length.is_none_or(|length| length == last.body.len().to_string()));
    serde_json::from_slice(&last.body).unwrap()
}

#[test]
fn a_chat_goes_on_with_what_its_model_wrote() {
    for stream in [false, true] {
        let engine = engine();
        let gateway = gateway(&engine, "all");
        ask(&gateway, "red", &first(stream));
        gateway.await_metric("foreword_answers_kept_total", 1);
        // Another tenant's chat of the same words.
        ask(&gateway, "blue", &second(stream));
        assert_eq!(forwarded(&engine), second(stream));
        let response = ask(&gateway, "red", &second(stream));
        assert!(
            response.report().contains("restored=1"),
            "{}",
            response.report()
        );
        let mut expected = second(stream);
        let answer = &mut expected["messages"][1];
        answer["reasoning"] = json!("Which file?");
        answer["tool_calls"] = json!([call(ARGUMENTS)]);
        assert_eq!(forwarded(&engine), expected);
        gateway.await_metric("foreword_messages_restored_total", 1);
    }
}

#[test]
fn nothing_is_kept_unless_it_is_asked_for() {
    let engine = engine();
    let gateway = gateway(&engine, "none");
    for body in [first(false), second(false)] {
        ask(&gateway, "red", &body);
        assert_eq!(forwarded(&engine), body);
    }
    gateway.await_requests(2);
    for metric in [
        "foreword_answers_kept_total",
        "foreword_messages_restored_total",
    ] {
        gateway.await_metric(metric, 0);
    }
}

#[test]
fn documents_are_ordered_in_chats_that_are_restored() {
    let engine = engine();
    let gateway = gateway(&engine, "all");
    let with = |ids: [&str; 3], mut body: Value| {
        let documents = ids.map(|id| format!("<document id=\"{id}\">The text of {id}.</document>"));
        body["messages"][0]["content"] = json!(documents.concat());
        body
    };
    ask(&gateway, "red", &with(["a", "b", "c"], first(false)));
    gateway.await_metric("foreword_answers_kept_total", 1);
    let response = ask(&gateway, "red", &with(["a", "b", "c"], second(false)));
    assert!(
        response.report().contains("restored=1"),
        "{}",
        response.report()
    );
    let body = forwarded(&engine);
    assert_eq!(body["messages"][1]["reasoning"], "Which file?");
    assert_eq!(
        body["messages"][0],
        with(["a", "b", "c"], first(false))["messages"][0]
    );
}
