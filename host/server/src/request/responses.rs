//! `POST /v1/responses`: OpenAI's Responses, converted to a chat.
//!
//! | item of `input` | in the chat |
//! | --- | --- |
//! | a string, `message` | a message of its role; its texts are the parts |
//! | `function_call`, `custom_tool_call` | a call of a tool by the assistant; calls in a row are one message's |
//! | `function_call_output`, `custom_tool_call_output` | a `tool` message |
//! | `file_search_call` | its results, as documents after the user's last message |
//! | `reasoning` | `reasoning_content` of the assistant's next message, unless it is encrypted |
//! | anything else, images and files | refused by name, since the model cannot receive it |
//!
//! The request's fields that a response repeats ([`ResponsesRequest::told`]) are the client's own.

use super::Chat;
use super::fields::{Fields, show, wrong_type};
use super::parts::{self, Conversation};
use crate::failure::Failure;
use serde_json::{Map, Value, json};

/// A request whose items are not yet a chat: items of an earlier response may precede them.
#[derive(Debug)]
pub struct ResponsesRequest {
    /// The id of the response that this request continues.
    pub previous: Option<String>,
    /// Whether the response must be stored.
    pub store: bool,
    /// The salt of the KV state and of stored responses.
    pub cache_salt: String,
    /// The request's input items, in OpenAI's format.
    pub input: Vec<Value>,
    /// The fields that the response repeats.
    pub told: Map<String, Value>,
    instructions: Option<String>,
    /// The other fields, under a chat's names.
    rest: Map<String, Value>,
}

/// Pairs of a chat's field name and its name in Responses, where they differ.
pub const NAMES: &[(&str, &str)] = &[
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("messages", "input"),
    ("max_completion_tokens", "max_output_tokens"),
];

impl ResponsesRequest {
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
            Some(Value::Array(items)) if !items.is_empty() => items,
            Some(Value::Array(_)) => {
                return Err(Failure::invalid("input", "input must not be empty"));
            }
            Some(other) => return Err(wrong_type("input", "a string or an array", &other)),
            None => return Err(Failure::invalid("input", "input is missing")),
        };
        let instructions = fields.string("instructions")?;
        let previous = fields.string("previous_response_id")?;
        let store = fields.take("store");
        let store = match store {
            None => true,
            Some(Value::Bool(store)) => store,
            Some(other) => return Err(wrong_type("store", "a boolean", &other)),
        };
        let mut told = told(&mut fields)?;
        told.insert("instructions".to_owned(), json!(instructions));
        told.insert("previous_response_id".to_owned(), json!(previous));
        let format = take_format(&mut fields)?;
        told.insert("text".to_owned(), json!({"format": format.told}));
        let max_tokens = fields.integer("max_output_tokens", 1..=i64::from(u32::MAX))?;
        told.insert("max_output_tokens".to_owned(), json!(max_tokens));
        let tools = fields.take("tools");
        told.insert("tools".to_owned(), tools.clone().unwrap_or(json!([])));
        let choice = fields.take("tool_choice");
        let told_choice = choice.clone().unwrap_or(json!("auto"));
        told.insert("tool_choice".to_owned(), told_choice);
        let cache_salt = match fields.take("cache_salt") {
            Some(Value::String(salt)) => salt,
            Some(other) => return Err(wrong_type("cache_salt", "a string", &other)),
            None => String::new(),
        };
        let mut rest = fields.rest();
        if !cache_salt.is_empty() {
            rest.insert("cache_salt".to_owned(), json!(cache_salt));
        }
        if let Some(format) = format.chats {
            rest.insert("response_format".to_owned(), format);
        }
        if let Some(tools) = tools {
            rest.insert("tools".to_owned(), nest_tools(tools)?);
        }
        if let Some(choice) = choice {
            rest.insert("tool_choice".to_owned(), nest_choice(choice)?);
        }
        rest.insert("max_completion_tokens".to_owned(), json!(max_tokens));
        Ok(Self {
            previous,
            store,
            cache_salt,
            input,
            told,
            instructions,
            rest,
        })
    }

    /// Converts the request to a chat, with the items of earlier responses first.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`]; fields have their names in a chat, see [`NAMES`].
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

/// Refuses features that this server lacks and that an answer cannot ignore.
fn refuse(fields: &mut Fields) -> Result<(), Failure> {
    for (field, why) in [
        ("conversation", "this server keeps no conversations"),
        ("prompt", "this server keeps no prompts"),
        ("retrieval", "it is a field of /v1/chat/completions"),
    ] {
        if fields.take(field).is_some() {
            return Err(Failure::invalid(
                field,
                format!("{field} is not supported: {why}"),
            ));
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
    // Its only field pads events.
    fields.take("stream_options");
    Ok(())
}

/// Takes the fields that a response repeats, with OpenAI's defaults for absent ones. Fields that also affect the answer
/// stay among the rest.
fn told(fields: &mut Fields) -> Result<Map<String, Value>, Failure> {
    let mut told = Map::new();
    for (field, default) in [
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("truncation", json!("disabled")),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("user", Value::Null),
        ("prompt_cache_key", Value::Null),
        ("safety_identifier", Value::Null),
    ] {
        told.insert(field.to_owned(), fields.take(field).unwrap_or(default));
    }
    for field in ["temperature", "top_p"] {
        let value = fields.get(field).cloned().unwrap_or(json!(1.0));
        told.insert(field.to_owned(), value);
    }
    if !told["metadata"].is_object() {
        return Err(wrong_type("metadata", "an object", &told["metadata"]));
    }
    let field = "parallel_tool_calls";
    if !told[field].is_boolean() {
        return Err(wrong_type(field, "a boolean", &told[field]));
    }
    told.insert("background".to_owned(), json!(false));
    told.insert("service_tier".to_owned(), json!("default"));
    told.insert("top_logprobs".to_owned(), json!(0));
    Ok(told)
}

/// `text.format` as sent, and in the form of a chat's field.
struct Formats {
    told: Value,
    chats: Option<Value>,
}

fn take_format(fields: &mut Fields) -> Result<Formats, Failure> {
    let text = json!({"type": "text"});
    let format = match fields.take("text") {
        None => None,
        Some(Value::Object(mut text)) => text.get_mut("format").map(Value::take),
        Some(other) => return Err(wrong_type("text", "an object", &other)),
    };
    let Some(format) = format.filter(|format| !format.is_null()) else {
        return Ok(Formats {
            told: text,
            chats: None,
        });
    };
    let Value::Object(members) = &format else {
        return Err(wrong_type("text.format", "an object", &format));
    };
    let chats = match members.get("type").and_then(Value::as_str) {
        Some("json_schema") => {
            let mut schema = members.clone();
            schema.shift_remove("type");
            json!({"type": "json_schema", "json_schema": schema})
        }
        Some("text" | "json_object") => json!({"type": members["type"]}),
        _ => {
            let got = show(members.get("type").unwrap_or(&Value::Null));
            return Err(Failure::invalid(
                "text.format.type",
                format!(
                    "text.format.type must be \"text\", \"json_object\" or \"json_schema\", got {got}"
                ),
            ));
        }
    };
    Ok(Formats {
        told: format,
        chats: Some(chats),
    })
}

/// Converts `{"type": "function", "name": …}` to a chat's form: `{"type": "function", "function": {"name": …}}`.
fn nest_tools(tools: Value) -> Result<Value, Failure> {
    let tools = match tools {
        Value::Array(tools) => tools,
        other => return Err(wrong_type("tools", "an array", &other)),
    };
    let nest = |(index, tool): (usize, Value)| {
        let at = format!("tools[{index}]");
        let Value::Object(mut tool) = tool else {
            return Err(wrong_type(&at, "an object", &tool));
        };
        let kind = tool.shift_remove("type").unwrap_or(Value::Null);
        if kind != "function" {
            let message = format!(
                "{at}.type must be \"function\", got {}: this server runs no tools of its own",
                show(&kind)
            );
            return Err(Failure::invalid(format!("{at}.type"), message));
        }
        if !tool.get("name").is_some_and(Value::is_string) {
            let got = tool.get("name").unwrap_or(&Value::Null);
            return Err(wrong_type(&format!("{at}.name"), "a string", got));
        }
        tool.retain(|_, value| !value.is_null());
        Ok(json!({"type": "function", "function": tool}))
    };
    let nested = tools.into_iter().enumerate().map(nest);
    nested.collect::<Result<_, _>>().map(Value::Array)
}

fn nest_choice(choice: Value) -> Result<Value, Failure> {
    match &choice {
        Value::Object(members) => match members.get("type").and_then(Value::as_str) {
            Some("function") => match members.get("name") {
                Some(name @ Value::String(_)) => {
                    Ok(json!({"type": "function", "function": {"name": name}}))
                }
                other => Err(wrong_type(
                    "tool_choice.name",
                    "a string",
                    other.unwrap_or(&Value::Null),
                )),
            },
            _ => {
                let got = show(members.get("type").unwrap_or(&Value::Null));
                let message = format!("tool_choice.type must be \"function\", got {got}");
                Err(Failure::invalid("tool_choice.type", message))
            }
        },
        _ => Ok(choice),
    }
}

fn take_item(conversation: &mut Conversation, at: &str, item: &Value) -> Result<(), Failure> {
    let Value::Object(members) = item else {
        return Err(wrong_type(at, "an object", item));
    };
    let text = |name: &str| match members.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        other => Err(wrong_type(
            &format!("{at}.{name}"),
            "a string",
            other.unwrap_or(&Value::Null),
        )),
    };
    let kind = match members.get("type") {
        None | Some(Value::Null) => "message",
        Some(Value::String(kind)) => kind,
        Some(other) => return Err(wrong_type(&format!("{at}.type"), "a string", other)),
    };
    match kind {
        "message" => {
            let role = text("role")?;
            let content = members.get("content").unwrap_or(&Value::Null);
            let texts = take_texts(&format!("{at}.content"), content)?;
            match role.as_str() {
                "assistant" => conversation.assistant(texts),
                "user" | "system" | "developer" => conversation.message(&role, texts),
                other => {
                    let other = crate::failure::clip(other);
                    return Err(Failure::invalid(
                        format!("{at}.role"),
                        format!(
                            "{at}.role must be \"user\", \"assistant\", \"system\" or \"developer\", got \"{other}\""
                        ),
                    ));
                }
            }
        }
        "function_call" => {
            conversation.call(&text("call_id")?, &text("name")?, text("arguments")?.into());
        }
        "custom_tool_call" => {
            let arguments = json!({"input": text("input")?});
            conversation.call(&text("call_id")?, &text("name")?, arguments);
        }
        "function_call_output" | "custom_tool_call_output" => {
            let output = members.get("output").unwrap_or(&Value::Null);
            let texts = take_texts(&format!("{at}.output"), output)?;
            conversation.result(&text("call_id")?, texts);
        }
        "file_search_call" => {
            let results = match members.get("results") {
                None | Some(Value::Null) => &[][..],
                Some(Value::Array(results)) => results,
                Some(other) => return Err(wrong_type(&format!("{at}.results"), "an array", other)),
            };
            let word =
                |result: &Value, name: &str| result[name].as_str().unwrap_or_default().to_owned();
            let blocks = results.iter().map(|result| {
                let (id, title) = (word(result, "file_id"), word(result, "filename"));
                parts::document(&id, &title, &word(result, "text"))
            });
            conversation.documents(blocks.collect());
        }
        "reasoning" => {
            let of = |name: &str| {
                let parts = members.get(name).and_then(Value::as_array);
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
            let other = crate::failure::clip(other);
            return Err(Failure::invalid(
                format!("{at}.type"),
                format!("{at}.type is \"{other}\", which this server cannot show the model"),
            ));
        }
    }
    Ok(())
}

/// Reads the texts of a string or of an array of parts.
fn take_texts(at: &str, content: &Value) -> Result<Vec<String>, Failure> {
    let parts = match content {
        Value::String(text) => return Ok(vec![text.clone()]),
        Value::Array(parts) => parts,
        other => return Err(wrong_type(at, "a string or an array of parts", other)),
    };
    let take = |(index, part): (usize, &Value)| {
        let at = format!("{at}[{index}]");
        let field = match part["type"].as_str() {
            Some("input_text" | "output_text" | "text") => "text",
            Some("refusal") => "refusal",
            _ => return Err(parts::not_text(&at, &part["type"])),
        };
        match &part[field] {
            Value::String(text) => Ok(text.clone()),
            other => Err(wrong_type(&format!("{at}.{field}"), "a string", other)),
        }
    };
    parts.iter().enumerate().map(take).collect()
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
        assert_eq!(
            chat.options.format,
            super::super::Format::JsonSchema(schema)
        );
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
