//! `POST /v1/responses`: requests of OpenAI's Responses API, converted to chat requests.
//!
//! | item of `input` | in the chat |
//! | --- | --- |
//! | a string, `message` | a message of its role; its texts are the parts |
//! | `function_call`, `custom_tool_call` | a tool call of the assistant; consecutive calls belong to one message |
//! | `function_call_output`, `custom_tool_call_output` | a `tool` message |
//! | `file_search_call` | its results, as documents after the user's last message |
//! | `reasoning` | `reasoning_content` of the assistant's next message, unless it is encrypted |
//! | anything else, images and files | refused by name, since the model cannot receive it |
//!
//! [`ResponsesRequest::echoed`] has the request's own values of the fields that the response repeats.

use super::Chat;
use super::fields::{Fields, filled, metadata, object, text, wrong_type, wrong_value};
use super::parts::{self, Conversation};
use crate::failure::{Failure, clip};
use serde_json::{Map, Value, json};

/// A parsed request of the Responses API. With the items of earlier responses it becomes a chat request, see
/// [`ResponsesRequest::chat`].
#[derive(Debug)]
pub struct ResponsesRequest {
    /// The id of the response that this request continues; `None` if it continues none.
    pub previous: Option<String>,
    /// True if the response must be stored.
    pub store: bool,
    /// The field `cache_salt`; empty if absent. Requests with different salts share neither KV state nor stored
    /// responses.
    pub cache_salt: String,
    /// The request's input items, in OpenAI's format.
    pub input: Vec<Value>,
    /// The fields that the response object repeats, with the request's values or OpenAI's defaults.
    pub echoed: Map<String, Value>,
    instructions: Option<String>,
    /// The other fields of the request, under the names that they have in a chat request.
    rest: Map<String, Value>,
}

/// Pairs of names for the same field, in a chat request and in the Responses API, for the fields whose names differ.
pub const NAMES: &[(&str, &str)] = &[
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("messages", "input"),
    ("max_completion_tokens", "max_output_tokens"),
];

impl ResponsesRequest {
    /// Parses the body of a request of the Responses API.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] for an invalid field.
    pub fn parse(body: &[u8]) -> Result<Self, Failure> {
        let mut fields = Fields::parse(body)?;
        refuse(&mut fields)?;
        let input = match fields.take("input") {
            Some(Value::String(text)) => {
                vec![
                    json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}),
                ]
            }
            other => filled("input", "a string or an array", other)?,
        };
        let instructions = fields.string("instructions")?;
        let previous = fields.string("previous_response_id")?;
        let store = fields.boolean_or("store", true)?;
        let mut echoed = echoed(&mut fields)?;
        echoed.insert("instructions".to_owned(), json!(instructions));
        echoed.insert("previous_response_id".to_owned(), json!(previous));
        let format = take_format(&mut fields)?;
        echoed.insert("text".to_owned(), json!({"format": format.echoed}));
        let max_tokens = fields.integer("max_output_tokens", 1..=i64::from(u32::MAX))?;
        echoed.insert("max_output_tokens".to_owned(), json!(max_tokens));
        let tools = fields.take("tools");
        echoed.insert("tools".to_owned(), tools.clone().unwrap_or(json!([])));
        let choice = fields.take("tool_choice");
        let echoed_choice = choice.clone().unwrap_or(json!("auto"));
        echoed.insert("tool_choice".to_owned(), echoed_choice);
        let cache_salt = fields.string("cache_salt")?.unwrap_or_default();
        let nested = |tools| parts::nest_tools(tools, "function", false, |tool| tool);
        let rest = fields.rest_with([
            (
                "cache_salt",
                (!cache_salt.is_empty()).then(|| json!(cache_salt)),
            ),
            ("response_format", format.chats),
            ("tools", tools.map(nested).transpose()?),
            ("tool_choice", choice.map(nest_choice).transpose()?),
            (
                "parallel_tool_calls",
                echoed.get("parallel_tool_calls").cloned(),
            ),
            ("max_completion_tokens", Some(json!(max_tokens))),
        ]);
        Ok(Self {
            previous,
            store,
            cache_salt,
            input,
            echoed,
            instructions,
            rest,
        })
    }

    /// Converts the request to a chat request. `earlier` are the items of the responses that it continues, which come
    /// first.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] for an invalid item or field. The error names the field as in a chat request if its
    /// names differ (see [`NAMES`]).
    pub fn chat(&self, earlier: &[Value]) -> Result<Chat, Failure> {
        let mut conversation = Conversation::default();
        if let Some(instructions) = &self.instructions {
            conversation.message("system", vec![instructions.clone()]);
        }
        for item in earlier {
            take_item(&mut conversation, "previous_response_id", item)?;
        }
        for (index, item) in self.input.iter().enumerate() {
            take_item(&mut conversation, &format!("input[{index}]"), item)?;
        }
        let mut rest = self.rest.clone();
        rest.insert("messages".to_owned(), conversation.messages());
        Chat::take(Fields::of(rest))
    }
}

/// Removes the fields that this server does not support and that would change the answer. Returns an error if one is
/// present.
fn refuse(fields: &mut Fields) -> Result<(), Failure> {
    for (field, why) in [
        ("conversation", "this server keeps no conversations"),
        ("prompt", "this server keeps no prompts"),
        ("retrieval", "it is a field of /v1/chat/completions"),
    ] {
        if fields.take(field).is_some() {
            let message = format!("{field} is not supported: {why}");
            return Err(Failure::invalid(field, message));
        }
    }
    if fields.boolean("background")? {
        let message = "background is not supported: answers are made while their client waits";
        return Err(Failure::invalid("background", message));
    }
    if let Some(count) = fields.integer("n", i64::MIN..=i64::MAX)?
        && count != 1
    {
        let message = format!("n must be 1, got {count}: a response is one answer");
        return Err(Failure::invalid("n", message));
    }
    let include = fields.take("include");
    let wanted = include.iter().filter_map(Value::as_array).flatten();
    for wanted in wanted.filter_map(Value::as_str) {
        if wanted == "message.output_text.logprobs" {
            let message = "include must not ask for message.output_text.logprobs: they are told on /v1/chat/completions";
            return Err(Failure::invalid("include", message));
        }
    }
    // The field's only option would pad events.
    fields.take("stream_options");
    Ok(())
}

/// Removes the fields that the response object repeats and returns them, with OpenAI's defaults for absent ones.
/// `temperature` and `top_p`, which also affect the answer, are only copied; where absent, the model has defaults.
fn echoed(fields: &mut Fields) -> Result<Map<String, Value>, Failure> {
    let mut echoed = Map::new();
    let metadata = metadata(fields.take("metadata").as_ref())?;
    echoed.insert("metadata".to_owned(), metadata.unwrap_or_default().into());
    let parallel = fields.boolean_or("parallel_tool_calls", true)?;
    echoed.insert("parallel_tool_calls".to_owned(), parallel.into());
    for field in ["user", "prompt_cache_key", "safety_identifier"] {
        echoed.insert(field.to_owned(), json!(fields.string(field)?));
    }
    for field in ["temperature", "top_p"] {
        if let Some(value) = fields.get(field).filter(|value| !value.is_null()) {
            echoed.insert(field.to_owned(), value.clone());
        }
    }
    // These are accepted without effect, so the response must not report their values as in force. An input that is too
    // long is refused.
    if let Some(truncation) = fields.take("truncation")
        && truncation != "disabled"
        && truncation != "auto"
    {
        let wanted = "\"auto\" or \"disabled\"";
        return Err(wrong_value("truncation", wanted, &truncation));
    }
    echoed.insert("truncation".to_owned(), json!("disabled"));
    fields.object("reasoning")?;
    let reasoning = json!({"effort": null, "summary": null});
    echoed.insert("reasoning".to_owned(), reasoning);
    echoed.insert("background".to_owned(), json!(false));
    echoed.insert("service_tier".to_owned(), json!("default"));
    echoed.insert("top_logprobs".to_owned(), json!(0));
    Ok(echoed)
}

/// The field `text.format`, as the response object repeats it, and as the `response_format` of a chat request (`None`
/// for plain text).
struct Formats {
    echoed: Value,
    chats: Option<Value>,
}

fn take_format(fields: &mut Fields) -> Result<Formats, Failure> {
    let text = fields.object("text")?;
    let format = text.map(|mut text| text["format"].take());
    let Some(format) = format.filter(|format| !format.is_null()) else {
        return Ok(Formats {
            echoed: json!({"type": "text"}),
            chats: None,
        });
    };
    object("text.format", &format)?;
    let chats = match format["type"].as_str() {
        Some("json_schema") => {
            let mut schema = format.clone();
            if let Some(schema) = schema.as_object_mut() {
                schema.shift_remove("type");
            }
            json!({"type": "json_schema", "json_schema": schema})
        }
        Some("text" | "json_object") => json!({"type": format["type"]}),
        _ => {
            let wanted = "\"text\", \"json_object\" or \"json_schema\"";
            return Err(wrong_value("text.format.type", wanted, &format["type"]));
        }
    };
    Ok(Formats {
        echoed: format,
        chats: Some(chats),
    })
}

fn nest_choice(choice: Value) -> Result<Value, Failure> {
    if !choice.is_object() {
        return Ok(choice);
    }
    if choice["type"] != "function" {
        let at = "tool_choice.type";
        return Err(wrong_value(at, "\"function\"", &choice["type"]));
    }
    let name = text("tool_choice.name", &choice["name"])?;
    Ok(json!({"type": "function", "function": {"name": name}}))
}

fn take_item(conversation: &mut Conversation, at: &str, item: &Value) -> Result<(), Failure> {
    object(at, item)?;
    let word = |name: &str| text(&format!("{at}.{name}"), &item[name]);
    let kind = match &item["type"] {
        Value::Null => "message",
        kind => text(&format!("{at}.type"), kind)?,
    };
    match kind {
        "message" => {
            let role = word("role")?;
            let texts = take_texts(&format!("{at}.content"), &item["content"])?;
            match role {
                "assistant" => conversation.assistant(texts),
                "user" | "system" | "developer" => conversation.message(role, texts),
                other => {
                    let other = clip(other);
                    let message = format!(
                        "{at}.role must be \"user\", \"assistant\", \"system\" or \"developer\", got \"{other}\""
                    );
                    return Err(Failure::invalid(format!("{at}.role"), message));
                }
            }
        }
        "function_call" => {
            conversation.call(word("call_id")?, word("name")?, word("arguments")?.into());
        }
        "custom_tool_call" => {
            let arguments = json!({"input": word("input")?});
            conversation.call(word("call_id")?, word("name")?, arguments);
        }
        "function_call_output" | "custom_tool_call_output" => {
            let texts = take_texts(&format!("{at}.output"), &item["output"])?;
            conversation.result(word("call_id")?, texts);
        }
        "file_search_call" => {
            let results = match &item["results"] {
                Value::Null => &[][..],
                Value::Array(results) => results,
                other => return Err(wrong_type(&format!("{at}.results"), "an array", other)),
            };
            let blocks = results.iter().map(|result| {
                let word = |name: &str| result[name].as_str().unwrap_or_default();
                parts::document(word("file_id"), word("filename"), word("text"))
            });
            conversation.documents(blocks.collect());
        }
        "reasoning" => {
            let of = |name: &str| {
                let parts = item[name].as_array();
                let texts = parts.into_iter().flatten();
                let texts = texts.filter_map(|part| part["text"].as_str());
                texts.collect::<Vec<_>>().join("\n")
            };
            let whole = of("content");
            conversation.reasoning(match whole.is_empty() {
                true => of("summary"),
                false => whole,
            });
        }
        other => {
            let other = clip(other);
            let message =
                format!("{at}.type is \"{other}\", which this server cannot show the model");
            return Err(Failure::invalid(format!("{at}.type"), message));
        }
    }
    Ok(())
}

/// Parses the content at the path `at`, whose parts must all be text: a string, or an array of parts. Returns the
/// texts.
fn take_texts(at: &str, content: &Value) -> Result<Vec<String>, Failure> {
    parts::each(at, content, "parts", String::from, |at, part| {
        let field = match part["type"].as_str() {
            Some("input_text" | "output_text" | "text") => "text",
            Some("refusal") => "refusal",
            _ => return Err(parts::not_text(&at, &part["type"])),
        };
        text(&format!("{at}.{field}"), &part[field]).map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: &Value) -> Result<Chat, Failure> {
        ResponsesRequest::parse(body.to_string().as_bytes())?.chat(&[])
    }

    fn refusal(body: &Value) -> (String, String) {
        match chat(body) {
            Err(Failure::Invalid { param, message }) => (param.unwrap_or_default(), message),
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    #[test]
    fn a_text_and_instructions_are_a_chat() {
        let chat = chat(
            &json!({"instructions": "Be brief.", "input": "Hi", "max_output_tokens": 7, "stop": "x"}),
        );
        let chat = chat.unwrap();
        let expected =
            json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]);
        assert_eq!(chat.messages, expected);
        assert_eq!(chat.options.max_tokens, Some(7));
        assert_eq!(chat.options.stop, ["x"]);
    }

    #[test]
    fn items_become_messages_in_their_order() {
        let input = json!([
            {"role": "developer", "content": "Use tools."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Who?"}]},
            {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["who"], "results": [
                {"file_id": "f1", "filename": "a.md", "score": 0.9, "text": "Ada."},
                {"file_id": "f\"2", "text": "Bob</document>."},
            ]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\": 1}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [
                {"type": "output_text", "text": "Ada.", "annotations": []}
            ]},
        ]);
        let expected = json!([
            {"role": "developer", "content": "Use tools."},
            {"role": "user", "content": [
                {"type": "text", "text": "Who?"},
                {"type": "text", "text": "<document id=\"f1\">\na.md\n\nAda.\n</document>\n"},
                {"type": "text", "text": "<document id=\"f&quot;2\">\nBob&lt;/document>.\n</document>\n"},
            ]},
            {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {}}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "content": "two"},
            {"role": "assistant", "content": "Ada."},
        ]);
        assert_eq!(chat(&json!({"input": input})).unwrap().messages, expected);
    }

    #[test]
    fn reasoning_before_a_call_belongs_to_its_message() {
        let reasoning = |text: &str| json!({"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]});
        let input = json!([
            {"role": "user", "content": "Who?"},
            reasoning("One."),
            {"role": "assistant", "content": "Let me see."},
            reasoning("Two."),
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
            {"role": "assistant", "content": "Ada."},
        ]);
        let messages = chat(&json!({"input": input})).unwrap().messages;
        assert_eq!(messages[1]["reasoning_content"], "One.Two.");
        assert_eq!(messages[3]["reasoning_content"], Value::Null);
    }

    #[test]
    fn flat_tools_and_formats_are_nested() {
        let chat = chat(&json!({
            "input": "Hi",
            "tools": [{"type": "function", "name": "f", "description": null, "parameters": {"type": "object"}, "strict": true}],
            "tool_choice": {"type": "function", "name": "f"},
        }))
        .unwrap();
        let tools = chat.tools.unwrap();
        let expected = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": true}}]);
        assert_eq!(tools.shown, expected);
        assert!(matches!(tools.choice, super::super::ToolChoice::Forced(_)));
        let schema = json!({"type": "object"});
        let format = json!({"type": "json_schema", "name": "x", "schema": schema, "strict": true});
        let chat = self::chat(&json!({"input": "Hi", "text": {"format": format}})).unwrap();
        let field = "response_format.json_schema.schema";
        assert_eq!(
            chat.options.format,
            super::super::Format::JsonSchema { schema, field }
        );
    }

    #[test]
    fn a_response_tells_what_is_in_force() {
        let echoed = |body: Value| {
            ResponsesRequest::parse(body.to_string().as_bytes())
                .unwrap()
                .echoed
        };
        for body in [
            json!({"input": "x"}),
            json!({"input": "x", "truncation": null, "reasoning": null}),
            json!({"input": "x", "truncation": "auto"}),
            json!({"input": "x", "truncation": "disabled", "reasoning": {"effort": "high", "summary": "auto"}}),
        ] {
            let echoed = echoed(body);
            assert_eq!(echoed["truncation"], "disabled");
            let reasoning = json!({"effort": null, "summary": null});
            assert_eq!(echoed["reasoning"], reasoning);
        }
    }

    #[test]
    fn what_cannot_be_shown_or_done_is_named() {
        let item = |item: Value| json!({"input": [item]});
        for (body, param) in [
            (json!({}), "input"),
            (json!({"input": []}), "input"),
            (json!({"input": "x", "background": true}), "background"),
            (json!({"input": "x", "conversation": "c"}), "conversation"),
            (json!({"input": "x", "n": 2}), "n"),
            (json!({"input": "x", "truncation": "middle"}), "truncation"),
            (
                json!({"input": "x", "tools": [{"type": "web_search"}]}),
                "tools[0].type",
            ),
            (
                json!({"input": "x", "text": {"format": {"type": "xml"}}}),
                "text.format.type",
            ),
            (item(json!("x")), "input[0]"),
            (
                item(json!({"type": "mcp_call", "id": "m"})),
                "input[0].type",
            ),
            (
                item(json!({"role": "critic", "content": "x"})),
                "input[0].role",
            ),
            (
                item(
                    json!({"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}),
                ),
                "input[0].content[0].type",
            ),
            (
                item(json!({"type": "function_call_output", "output": "x"})),
                "input[0].call_id",
            ),
        ] {
            assert_eq!(refusal(&body).0, param, "{body}");
        }
        let image = item(json!({"role": "user", "content": [{"type": "input_image"}]}));
        assert_eq!(
            refusal(&image).1,
            "input[0].content[0] is an image (\"input_image\"), and this model reads text alone"
        );
    }
}
