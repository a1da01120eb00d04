//! `POST /v1/chat/completions`: the fields of a chat request that other routes do not have.

use super::fields::{Fields, filled, missing, object, take_objects, text, wrong_type};
use super::parts::not_text;
use super::{Format, Options, ToolChoice, Tools};
use crate::failure::Failure;
use foreword_engine::text::Ending;
use serde_json::Value;

/// A validated chat request.
#[derive(Debug)]
pub struct Chat {
    /// OpenAI's messages, at least one. Each `content` is a string, an array of text parts or, with tool calls,
    /// possibly absent. A tool call's `arguments` are as sent, except that a string that contains a JSON object is
    /// replaced by the object.
    pub messages: Value,
    /// The tools that the model is told of; `None` if there are none, or `tool_choice` is `none`.
    pub tools: Option<Tools>,
    /// The field `documents`, an array of objects, for the chat template; `None` if absent or empty.
    pub documents: Option<Value>,
    /// Additional variables for the chat template, an object (`chat_template_kwargs`, vLLM's extension); `None` if
    /// absent.
    pub template_variables: Option<Value>,
    /// Where the prompt ends, which decides what the answer continues.
    pub ending: Ending,
    /// The options that chats and text completions share.
    pub options: Options,
}

impl Chat {
    /// Parses the body of a chat request.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] for an invalid field.
    pub fn parse(body: &[u8]) -> Result<Self, Failure> {
        Self::take(Fields::parse(body)?)
    }

    pub(super) fn take(mut fields: Fields) -> Result<Self, Failure> {
        let top_logprobs = take_logprobs(&mut fields)?;
        let chat = Self {
            messages: take_messages(&mut fields)?,
            tools: Tools::take(&mut fields)?,
            documents: take_objects(&mut fields, "documents")?,
            template_variables: fields.object("chat_template_kwargs")?,
            ending: take_ending(&mut fields)?,
            options: Options::take(&mut fields, top_logprobs, false)?,
        };
        let is_forced = matches!(
            &chat.tools,
            Some(Tools {
                choice: ToolChoice::Forced(_),
                ..
            })
        );
        if is_forced && chat.ending != Ending::Answer {
            let message = "a tool_choice that demands a call needs a prompt that ends where the answer begins";
            return Err(Failure::invalid("tool_choice", message));
        }
        if is_forced && chat.options.format != Format::Text {
            let message =
                "response_format and a tool_choice that demands a call exclude each other";
            return Err(Failure::invalid("response_format", message));
        }
        Ok(chat)
    }
}

/// Removes vLLM's fields `add_generation_prompt` and `continue_final_message`, and returns where they say that the
/// prompt ends. Returns an error if both are true.
fn take_ending(fields: &mut Fields) -> Result<Ending, Failure> {
    let continues = fields.boolean("continue_final_message")?;
    let opens = fields.boolean_or("add_generation_prompt", !continues)?;
    match (continues, opens) {
        (false, true) => Ok(Ending::Answer),
        (false, false) => Ok(Ending::Messages),
        (true, false) => Ok(Ending::FinalMessage),
        (true, true) => Err(Failure::invalid(
            "continue_final_message",
            "continue_final_message and add_generation_prompt exclude each other",
        )),
    }
}

/// Removes the fields `logprobs` and `top_logprobs`. Returns the number of alternatives for each token; `None` if
/// log-probabilities are not requested.
fn take_logprobs(fields: &mut Fields) -> Result<Option<u32>, Failure> {
    let wanted = fields.boolean("logprobs")?;
    let top = fields.count("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(Failure::invalid(
            "top_logprobs",
            "top_logprobs needs logprobs to be true",
        )),
    }
}

/// OpenAI's maximum value of `top_logprobs`.
const MAX_TOP_LOGPROBS: i64 = 20;

pub(super) fn take_messages(fields: &mut Fields) -> Result<Value, Failure> {
    let mut messages = filled("messages", "an array", fields.take("messages"))?;
    for (index, message) in messages.iter_mut().enumerate() {
        check_message(&format!("messages[{index}]"), message)?;
    }
    Ok(Value::Array(messages))
}

fn check_message(at: &str, message: &mut Value) -> Result<(), Failure> {
    object(at, message)?;
    let at_role = format!("{at}.role");
    let role = message.get("role").ok_or_else(|| missing(&at_role))?;
    text(&at_role, role)?;
    let calls_tools = open_tool_calls(message);
    let at = format!("{at}.content");
    match &message["content"] {
        Value::String(_) => Ok(()),
        Value::Array(parts) => check_parts(&at, parts),
        Value::Null if calls_tools => Ok(()),
        Value::Null => Err(missing(&at)),
        other => Err(wrong_type(&at, "a string or an array of text parts", other)),
    }
}

/// Checks that every part of a message's content is text. `at` is the path of the content, for errors.
fn check_parts(at: &str, parts: &[Value]) -> Result<(), Failure> {
    for (index, part) in parts.iter().enumerate() {
        if part["type"] != "text" {
            return Err(not_text(&format!("{at}[{index}]"), &part["type"]));
        }
        if !part["text"].is_string() {
            let at = format!("{at}[{index}].text");
            return Err(Failure::invalid(&*at, format!("{at} must be a string")));
        }
    }
    Ok(())
}

/// Returns whether a message has tool calls. Replaces each call's arguments, which OpenAI's clients send as a string of
/// JSON, by the object in that string, if it contains one, because templates in Hugging Face's format print an object.
fn open_tool_calls(message: &mut Value) -> bool {
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
            tools.shown.to_string(),
            r#"[{"type":"function","function":{"name":"f","description":"d"}}]"#
        );
        assert!(parse(&body(json!("none"))).unwrap().tools.is_none());
    }

    #[test]
    fn a_forced_call_and_a_format_exclude_each_other() {
        let body = json!({
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "required",
            "response_format": {"type": "json_object"},
        });
        assert_eq!(refusal(&body).0, "response_format");
    }

    #[test]
    fn top_logprobs_need_logprobs() {
        let body = |logprobs: Value, top: Value| {
            json!({
                "messages": [{"role": "user", "content": "hi"}],
                "logprobs": logprobs,
                "top_logprobs": top,
            })
        };
        let found = |logprobs, top| parse(&body(logprobs, top)).unwrap().options.top_logprobs;
        assert_eq!(found(json!(true), json!(20)), Some(20));
        assert_eq!(found(json!(true), Value::Null), Some(0));
        assert_eq!(found(Value::Null, json!(0)), None);
        assert_eq!(refusal(&body(json!(false), json!(3))).0, "top_logprobs");
        assert_eq!(
            refusal(&body(json!(true), json!(21))).1,
            "top_logprobs must be an integer from 0 to 20, got 21"
        );
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
