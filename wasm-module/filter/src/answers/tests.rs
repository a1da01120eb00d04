use super::*;
use crate::tests::scripted::ScriptedHost;
use serde_json::{Value, json};

const THOUGHT: &str = "Rome, \"then\".\n";
const ARGUMENTS: &str = r#"{"city": "Rome", "days": 3}"#;

fn keeping(kept: &str) -> Answers {
    let conversation = json!({"answers": kept, "max_answers_bytes": 4096});
    let config = json!({"conversation": conversation}).to_string();
    let config = Config::from_json(config.as_bytes()).unwrap();
    Answers::new(&config, "r").unwrap()
}

fn answers() -> Answers {
    keeping("all")
}

/// A chat of a question alone, with the fields of the request beside its messages.
fn question(fields: &Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Weather?"}]});
    let body_fields = body.as_object_mut().unwrap();
    body_fields.extend(fields.as_object().unwrap().clone());
    body
}

/// The chat with the answer as the client sends it, and the tool's result.
fn continued(question: &Value, answer: Value) -> String {
    let mut body = question.clone();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(answer);
    messages.push(json!({"role": "tool", "tool_call_id": "c1", "content": "Sunny."}));
    body.to_string()
}

fn call(arguments: &str) -> Value {
    let function = json!({"name": "weather", "arguments": arguments});
    json!({"id": "c1", "type": "function", "function": function})
}

/// The answer as the client sends it.
fn shown(arguments: &str) -> Value {
    json!({"role": "assistant", "content": "Let me see.", "tool_calls": [call(arguments)]})
}

fn restore(host: &ScriptedHost, owner: &[&str], body: &str) -> Chat {
    let body = body.as_bytes();
    answers().restore(host, owner, body, 1 << 20).unwrap()
}

/// Reads a response to `question` in chunks of `chunk` bytes, and keeps its answer. Returns whether it was kept.
fn keep(host: &ScriptedHost, question: &Value, response: &str, chunk: usize) -> bool {
    let chat = restore(host, &["t"], &question.to_string());
    assert_eq!((chat.body, chat.restored), (None, 0));
    let mut reader = AnswerReader::new(chat.key);
    for chunk in response.as_bytes().chunks(chunk) {
        reader.take(chunk);
    }
    reader.keep(host, &answers()).unwrap()
}

fn response(field: &str) -> String {
    let message = json!({"role": "assistant", "content": "Let me see.\n", field: THOUGHT, "tool_calls": [call(ARGUMENTS)]});
    let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
    json!({"id": "r", "choices": [choice], "usage": {"prompt_tokens": 9}}).to_string()
}

fn stream(field: &str, end: &str) -> String {
    let mut out = String::new();
    let mut event = |delta: Value, reason: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
        out += &format!("data: {}\r\n\r\n", json!({"id": "r", "choices": [choice]}));
    };
    event(json!({"role": "assistant", "content": ""}), Value::Null);
    for piece in [&THOUGHT[..4], &THOUGHT[4..]] {
        event(json!({field: piece}), Value::Null);
    }
    event(json!({"content": "\n\nLet me "}), Value::Null);
    event(json!({"content": "see."}), Value::Null);
    let mut first = call("");
    first["index"] = json!(0);
    event(json!({"tool_calls": [first]}), Value::Null);
    for piece in [&ARGUMENTS[..9], &ARGUMENTS[9..]] {
        let function = json!({"arguments": piece});
        event(
            json!({"tool_calls": [{"index": 0, "function": function}]}),
            Value::Null,
        );
    }
    event(json!({}), json!("tool_calls"));
    out + end
}

const END: &str = ": a comment\n\ndata: {\"choices\": [], \"usage\": {}}\n\ndata: [DONE]\n\n";

fn parsed(body: Option<Vec<u8>>) -> Value {
    serde_json::from_slice(&body.expect("nothing was restored")).unwrap()
}

#[test]
fn what_clients_drop_is_restored_from_responses_of_every_form() {
    let question = question(&json!({}));
    for field in ["reasoning", "reasoning_content"] {
        for response in [response(field), stream(field, END)] {
            for chunk in [1, 7, 64, 100_000] {
                let host = ScriptedHost::default();
                assert!(keep(&host, &question, &response, chunk));
                let sent = continued(&question, shown(r#"{"days":3,"city":"Rome"}"#));
                let chat = restore(&host, &["t"], &sent);
                assert_eq!(chat.restored, 1);
                let body = parsed(chat.body);
                let message = &body["messages"][1];
                let mut expected = shown(ARGUMENTS);
                expected[field] = json!(THOUGHT);
                assert_eq!(*message, expected);
                // Nothing else changed.
                let mut rest = body.clone();
                rest["messages"][1] = shown(r#"{"days":3,"city":"Rome"}"#);
                assert_eq!(rest, serde_json::from_str::<Value>(&sent).unwrap());
            }
        }
    }
}

#[test]
fn reasoning_is_kept_only_if_it_is_asked_for() {
    let host = ScriptedHost::default();
    let question = question(&json!({}));
    let chat = restore(&host, &["t"], &question.to_string());
    let mut reader = AnswerReader::new(chat.key);
    reader.take(response("reasoning").as_bytes());
    assert!(reader.keep(&host, &keeping("arguments")).unwrap());
    let sent = continued(&question, shown(r#"{"days":3,"city":"Rome"}"#));
    let body = parsed(restore(&host, &["t"], &sent).body);
    assert_eq!(body["messages"][1], shown(ARGUMENTS));
    // What was kept before the configuration changed stays unused.
    let host = ScriptedHost::default();
    assert!(keep(&host, &question, &response("reasoning"), 1000));
    let kept = keeping("arguments").restore(&host, &["t"], sent.as_bytes(), 1 << 20);
    assert_eq!(parsed(kept.unwrap().body)["messages"][1], shown(ARGUMENTS));
    // An answer without calls has nothing to keep then.
    let mut reader = AnswerReader::new(chat.key);
    let message = json!({"content": "Yes.", "reasoning": THOUGHT});
    let choice = json!({"message": message, "finish_reason": "stop"});
    reader.take(json!({"choices": [choice]}).to_string().as_bytes());
    assert!(!reader.keep(&host, &keeping("arguments")).unwrap());
}

#[test]
fn what_the_client_sends_itself_stays() {
    let question = question(&json!({}));
    let host = ScriptedHost::default();
    assert!(keep(&host, &question, &response("reasoning"), 100));
    let with = |field: &str, value: Value| {
        let mut message = shown(ARGUMENTS);
        message[field] = value;
        restore(&host, &["t"], &continued(&question, message)).body
    };
    // Its own reasoning, whatever the field.
    assert_eq!(with("reasoning", json!(THOUGHT)), None);
    assert_eq!(with("reasoning_content", json!("Another thought.")), None);
    // An empty field is filled, and no field stands twice.
    for empty in [json!(null), json!("")] {
        let body = with("reasoning", empty.clone()).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&body)
                .matches("\"reasoning\"")
                .count(),
            1
        );
        assert_eq!(parsed(Some(body))["messages"][1]["reasoning"], THOUGHT);
        assert!(with("reasoning_content", empty).is_some());
    }
    // Contents in parts are the same words.
    let parts = json!([{"type": "text", "text": "Let me "}, {"type": "text", "text": "see."}]);
    assert!(with("content", parts).is_some());
}

#[test]
fn another_chat_client_or_answer_gets_nothing() {
    let first = question(&json!({"user": "a"}));
    let host = ScriptedHost::default();
    assert!(keep(&host, &first, &response("reasoning"), 100));
    let nothing = |owner: &[&str], body: &str| {
        let chat = restore(&host, owner, body);
        assert_eq!((chat.body, chat.restored), (None, 0), "{body}");
    };
    let sent = continued(&first, shown(ARGUMENTS));
    assert!(restore(&host, &["t"], &sent).body.is_some());
    for owner in [&["u"][..], &["", "t"], &["t", ""], &["t", "salt"]] {
        nothing(owner, &sent);
    }
    for fields in [
        json!({}),
        json!({"user": "b"}),
        json!({"user": "a", "model": "n"}),
        json!({"user": "a", "cache_salt": "s"}),
        json!({"user": "a", "prompt_cache_key": "k"}),
        json!({"user": "a", "safety_identifier": "k"}),
        json!({"user": "a", "metadata": {"user_id": "k"}}),
        json!({"user": "a", "tools": []}),
        json!({"user": "a", "documents": ["d"]}),
        json!({"user": "a", "chat_template_kwargs": {"k": 1}}),
        json!({"user": "a", "messages": [{"role": "user", "content": "weather?"}]}),
    ] {
        nothing(&["t"], &continued(&question(&fields), shown(ARGUMENTS)));
    }
    // Arguments that someone edited, another text, and other calls.
    for arguments in [
        r#"{"city": "Rome", "days": 4}"#,
        "{",
        "",
        r#"{"city": "Rome"}"#,
    ] {
        nothing(&["t"], &continued(&first, shown(arguments)));
    }
    for (pointer, value) in [
        ("/content", json!("Let me see!")),
        ("/content", json!(null)),
        ("/role", json!("user")),
        ("/tool_calls/0/id", json!("c2")),
        ("/tool_calls/0/function/name", json!("time")),
        (
            "/tool_calls/0/function/arguments",
            json!({"city": "Rome", "days": 3}),
        ),
        ("/tool_calls", json!([])),
        ("/tool_calls", json!([call(ARGUMENTS), call(ARGUMENTS)])),
    ] {
        let mut message = shown(ARGUMENTS);
        *message.pointer_mut(pointer).unwrap() = value;
        nothing(&["t"], &continued(&first, message));
    }
}

#[test]
fn answers_that_did_not_end_or_are_too_long_are_not_kept() {
    let question = question(&json!({}));
    let host = ScriptedHost::default();
    let whole = stream("reasoning", END);
    let cut = &whole[..whole.find("finish_reason\":\"tool").unwrap()];
    let long = |field: &str| {
        let message = json!({"content": "", field: "x".repeat(4096)});
        json!({"choices": [{"message": message, "finish_reason": "stop"}]}).to_string()
    };
    let huge = format!("data: {}\n\n{whole}", "x".repeat(2 << 20));
    for response in [
        cut,
        "",
        "{}",
        "no answer",
        r#"{"error": {"message": "busy"}}"#,
        &long("reasoning"),
        // Nothing that a client would drop.
        r#"{"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}]}"#,
        // A gap between the calls of a stream.
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":3}]},\"finish_reason\":\"stop\"}]}\n\n",
        // Answers that were cut off.
        &whole.replace(
            "\"finish_reason\":\"tool_calls\"",
            "\"finish_reason\":\"length\"",
        ),
        &whole.replace("\"finish_reason\":null", "\"finish_reason\":\"\""),
        &whole.replace("[DONE]", "{\"choices\": []}"),
        &response("reasoning").replace(
            "\"finish_reason\":\"tool_calls\"",
            "\"finish_reason\":\"length\"",
        ),
        &huge,
        &format!("{whole}\ndata: {{\n\n"),
    ] {
        for chunk in [100, 1 << 20] {
            assert!(!keep(&host, &question, response, chunk), "{response:.200}");
        }
    }
}

#[test]
fn the_oldest_are_restored_while_there_is_room() {
    let host = ScriptedHost::default();
    let mut body = question(&json!({}));
    let ask = json!({"role": "user", "content": "And then?"});
    for _ in 0..4 {
        let chat = restore(&host, &["t"], &body.to_string());
        let mut reader = AnswerReader::new(chat.key);
        reader.take(response("reasoning").as_bytes());
        assert!(reader.keep(&host, &answers()).unwrap());
        let messages = body["messages"].as_array_mut().unwrap();
        messages.extend([shown(ARGUMENTS), ask.clone()]);
    }
    let text = body.to_string();
    assert_eq!(restore(&host, &["t"], &text).restored, 4);
    let added = "\"reasoning\":,".len() + serde_json::to_string(THOUGHT).unwrap().len();
    for (room, restored) in [(0, 0), (added - 1, 0), (added, 1), (3 * added - 1, 2)] {
        let chat = answers().restore(&host, &["t"], text.as_bytes(), text.len() + room);
        let chat = chat.unwrap();
        assert_eq!(chat.restored, restored, "{room}");
        let has = |body: Vec<u8>| {
            let body = parsed(Some(body));
            let messages = body["messages"].as_array().unwrap().clone();
            let restored = messages
                .iter()
                .filter(|message| message["reasoning"].is_string());
            restored.count() as u64
        };
        assert_eq!(chat.body.map_or(0, has), restored);
    }
}

#[test]
fn bodies_that_are_no_chats_and_long_lists_are_left_alone() {
    let host = ScriptedHost::default();
    let long = format!(r#"{{"messages": [{}0]}}"#, "0,".repeat(MAX_MESSAGES));
    let calls = format!(
        r#"{{"messages": [{{"role": "assistant", "tool_calls": [{}0]}}]}}"#,
        "0,".repeat(1 << 20)
    );
    for body in [
        "",
        "[]",
        "{}",
        r#"{"messages": 1}"#,
        r#"{"messages": [], "messages": []}"#,
        &long,
    ] {
        assert!(
            answers()
                .restore(&host, &[], body.as_bytes(), 1 << 20)
                .is_none(),
            "{body:.80}"
        );
    }
    for body in [
        r#"{"messages": [0, null, "x", {}, {"role": 1}, {"role": "assistant", "role": "user"}]}"#,
        &calls,
    ] {
        assert_eq!(restore(&host, &[], body).restored, 0);
    }
}

#[test]
fn a_chat_is_kept_whole_and_the_oldest_chat_is_replaced() {
    let host = ScriptedHost::default();
    let places = usize::try_from(PLACES).unwrap();
    let chats = 2 * places;
    let mut kept = Vec::new();
    for number in 0..chats {
        host.set_time(number as u64 + 1);
        let question = question(&json!({"user": number.to_string()}));
        assert!(keep(&host, &question, &response("reasoning"), 1000));
        kept.push(continued(&question, shown(ARGUMENTS)));
    }
    let found = |from: usize| {
        let found = kept[from..].iter();
        found
            .filter(|body| restore(&host, &["t"], body).restored == 1)
            .count()
    };
    assert!(
        (places * 3 / 4..=places).contains(&found(0)),
        "{}",
        found(0)
    );
    // Newer ones stay rather than older ones: of the newest 64, one is lost only where both its places got newer chats, which
    // happens to 64³ / 3 / 512² = .3 of them.
    let newest = found(chats - places / 8);
    assert!(newest >= places / 8 - 2, "{newest}");
}

#[test]
fn a_chats_entry_that_is_full_keeps_its_beginning() {
    let host = ScriptedHost::default();
    let mut body = question(&json!({}));
    let mut kept = 0;
    for _ in 0..60 {
        let chat = restore(&host, &["t"], &body.to_string());
        assert_eq!(chat.restored, kept);
        let mut reader = AnswerReader::new(chat.key);
        reader.take(response("reasoning").as_bytes());
        kept += u64::from(reader.keep(&host, &answers()).unwrap());
        let messages = body["messages"].as_array_mut().unwrap();
        messages.push(shown(ARGUMENTS));
    }
    assert!((20..50).contains(&kept), "{kept}");
}

#[test]
fn json_is_the_same_only_with_the_same_digits() {
    for (one, other) in [
        (
            r#"{"a": [1, {"b": "\u0041"}], "c": null}"#,
            r#"{ "c":null,"a":[1,{"b":"A"}] }"#,
        ),
        ("1.50", "1.50 "),
    ] {
        assert!(is_same_json(one, other, MAX_DEPTH), "{one} {other}");
    }
    for (one, other) in [
        ("100000000000000000001", "100000000000000000002"),
        ("1", "1.0"),
        ("[1, 2]", "[2, 1]"),
        ("[1]", "[1, 1]"),
        (r#"{"a": 1}"#, r#"{"a": 1, "b": 1}"#),
        (r#"{"a": 1}"#, r#"{"b": 1}"#),
        ("{", "{ "),
        ("\"a", "\"a "),
        ("", "{}"),
    ] {
        assert!(!is_same_json(one, other, MAX_DEPTH), "{one} {other}");
    }
    let deep = |open: &str, close: &str| open.repeat(100_000) + &close.repeat(100_000);
    assert!(!is_same_json(&deep("[", "]"), &deep("[ ", "]"), MAX_DEPTH));
}
