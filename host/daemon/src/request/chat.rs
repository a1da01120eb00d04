//! `POST /v1/chat/completions`: the fields that make a chat request.

use super::Options;
use super::fields::{Fields, show, wrong_type};
use crate::failure::Failure;
use serde_json::{Map, Value};

/// A checked chat request.
#[derive(Debug)]
pub struct Chat {
    /// OpenAI's messages, at least one: every `content` a string, an array of text parts or, where tools are called,
    /// absent; every tool call's `arguments` an object where the client sent one as a string.
    pub messages: Value,
    /// The tools as the client sent them, in its order of keys. They are for the template only: a model's call of a
    /// tool is delivered as the text that it is, not parsed into `tool_calls`.
    pub tools: Option<Value>,
    /// The documents as the client sent them: an array of objects.
    pub documents: Option<Value>,
    /// Everything else.
    pub options: Options,
}

impl Chat {
    /// # Errors
    /// [`Failure::Invalid`].
    pub fn parse(body: &[u8]) -> Result<Self, Failure> {
        let mut fields = Fields::parse(body)?;
        Ok(Self {
            messages: take_messages(&mut fields)?,
            tools: take_tools(&mut fields)?,
            documents: take_objects(&mut fields, "documents")?,
            options: Options::take(&mut fields)?,
        })
    }
}

fn take_messages(fields: &mut Fields) -> Result<Value, Failure> {
    let mut messages = match fields.take("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(Value::Array(_)) => {
            return Err(Failure::invalid("messages", "messages must not be empty"));
        }
        Some(other) => return Err(wrong_type("messages", "an array", &other)),
        None => return Err(Failure::invalid("messages", "messages is missing")),
    };
    for (index, message) in messages.iter_mut().enumerate() {
        let at = format!("messages[{index}]");
        let Value::Object(message) = message else {
            return Err(wrong_type(&at, "an object", message));
        };
        check_message(&at, message)?;
    }
    Ok(Value::Array(messages))
}

fn check_message(at: &str, message: &mut Map<String, Value>) -> Result<(), Failure> {
    match message.get("role") {
        Some(Value::String(_)) => {}
        Some(other) => return Err(wrong_type(&format!("{at}.role"), "a string", other)),
        None => {
            return Err(Failure::invalid(
                format!("{at}.role"),
                format!("{at}.role is missing"),
            ));
        }
    }
    let calls_tools = open_tool_calls(message);
    match message.get("content") {
        Some(Value::String(_)) => Ok(()),
        Some(Value::Array(parts)) => check_parts(&format!("{at}.content"), parts),
        None | Some(Value::Null) if calls_tools => Ok(()),
        None | Some(Value::Null) => Err(Failure::invalid(
            format!("{at}.content"),
            format!("{at}.content is missing"),
        )),
        Some(other) => Err(wrong_type(
            &format!("{at}.content"),
            "a string or an array of text parts",
            other,
        )),
    }
}

/// Whether a template wants parts or one string is the template's matter; that they are texts is checked here.
fn check_parts(at: &str, parts: &[Value]) -> Result<(), Failure> {
    for (index, part) in parts.iter().enumerate() {
        match (part.get("type").and_then(Value::as_str), part.get("text")) {
            (Some("text"), Some(Value::String(_))) => {}
            (Some("text"), _) => {
                let at = format!("{at}[{index}].text");
                return Err(Failure::invalid(&*at, format!("{at} must be a string")));
            }
            _ => {
                let found = part.get("type").map_or_else(|| "none".to_owned(), show);
                let at = format!("{at}[{index}].type");
                return Err(Failure::invalid(
                    &*at,
                    format!("{at} must be \"text\", got {found}"),
                ));
            }
        }
    }
    Ok(())
}

/// Whether the message calls tools. OpenAI writes a call's arguments as a string of JSON; templates in Hugging Face's
/// manner print them as an object, so an object is what they get.
fn open_tool_calls(message: &mut Map<String, Value>) -> bool {
    let Some(Value::Array(calls)) = message.get_mut("tool_calls") else {
        return false;
    };
    for call in calls.iter_mut() {
        if let Some(arguments) = call.pointer_mut("/function/arguments")
            && let Some(text) = arguments.as_str()
            && let Ok(object @ Value::Object(_)) = serde_json::from_str(text)
        {
            *arguments = object;
        }
    }
    !calls.is_empty()
}

/// The tools, unless `tool_choice` forbids them. A choice that would force a call cannot be kept, so it is refused.
fn take_tools(fields: &mut Fields) -> Result<Option<Value>, Failure> {
    let tools = take_objects(fields, "tools")?;
    match fields.take("tool_choice") {
        None => Ok(tools),
        Some(Value::String(choice)) if choice == "auto" => Ok(tools),
        Some(Value::String(choice)) if choice == "none" => Ok(None),
        Some(other) => Err(Failure::invalid(
            "tool_choice",
            format!(
                "tool_choice must be \"auto\" or \"none\", got {}",
                show(&other)
            ),
        )),
    }
}

/// An array of objects, or nothing where it is absent or empty.
fn take_objects(fields: &mut Fields, name: &str) -> Result<Option<Value>, Failure> {
    match fields.take(name) {
        None => Ok(None),
        Some(Value::Array(items)) => match items.iter().position(|item| !item.is_object()) {
            Some(index) => Err(wrong_type(
                &format!("{name}[{index}]"),
                "an object",
                &items[index],
            )),
            None if items.is_empty() => Ok(None),
            None => Ok(Some(Value::Array(items))),
        },
        Some(other) => Err(wrong_type(name, "an array", &other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(body: &Value) -> Result<Chat, Failure> {
        Chat::parse(body.to_string().as_bytes())
    }

    fn refusal(body: &Value) -> (String, String) {
        match parse(body) {
            Err(Failure::Invalid { param, message }) => (param.unwrap_or_default(), message),
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    #[test]
    fn messages_are_checked_one_by_one() {
        let user = json!({"role": "user", "content": "hi"});
        for (messages, param) in [
            (json!([]), "messages"),
            (json!("hi"), "messages"),
            (json!([user, "hi"]), "messages[1]"),
            (json!([{"content": "hi"}]), "messages[0].role"),
            (json!([{"role": 1, "content": "hi"}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (
                json!([{"role": "user", "content": 1}]),
                "messages[0].content",
            ),
            (
                json!([{"role": "user", "content": [{"type": "text"}]}]),
                "messages[0].content[0].text",
            ),
            (
                json!([user, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
                "messages[1].content[0].type",
            ),
        ] {
            assert_eq!(
                refusal(&json!({"messages": messages})).0,
                param,
                "{messages}"
            );
        }
        assert_eq!(
            refusal(&json!({})),
            ("messages".into(), "messages is missing".into())
        );
    }

    #[test]
    fn a_message_that_calls_tools_needs_no_content_and_its_arguments_are_opened() {
        let chat = parse(&json!({"messages": [
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}}]},
        ]}))
        .unwrap();
        let arguments = &chat.messages[0]["tool_calls"][0]["function"]["arguments"];
        assert_eq!(arguments.to_string(), r#"{"b":1,"a":2}"#);
    }

    #[test]
    fn tools_keep_their_order_of_keys_and_yield_to_tool_choice() {
        let body = |choice: Value| {
            json!({
                "messages": [{"role": "user", "content": "hi"}],
                "tools": [{"type": "function", "function": {"name": "f", "description": "d"}}],
                "tool_choice": choice,
            })
        };
        let tools = parse(&body(json!("auto"))).unwrap().tools.unwrap();
        assert_eq!(
            tools.to_string(),
            r#"[{"type":"function","function":{"name":"f","description":"d"}}]"#
        );
        assert!(parse(&body(json!("none"))).unwrap().tools.is_none());
        assert_eq!(refusal(&body(json!("required"))).0, "tool_choice");
    }

    #[test]
    fn documents_are_objects() {
        let body = json!({"messages": [{"role": "user", "content": "hi"}], "documents": [{"id": "a"}, "b"]});
        assert_eq!(
            refusal(&body),
            (
                "documents[1]".into(),
                "documents[1] must be an object, got a string".into()
            )
        );
    }
}
