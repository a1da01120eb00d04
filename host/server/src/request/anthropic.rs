//! `POST /v1/messages`: requests of Anthropic's Messages API, converted to chat requests.
//!
//! | block | in the chat |
//! | --- | --- |
//! | `system`, a string or text blocks | a system message |
//! | `text` | a part of its message |
//! | `document` with a text or content as source, `search_result` | a document in the gateway's format, in its place |
//! | `tool_use` | a call of a tool by the assistant |
//! | `tool_result` | a `tool` message before the rest of the user's; its documents as above |
//! | `thinking` | `reasoning_content` of its message; redacted thinking is dropped |
//! | anything else, images and files | refused by name, since the model cannot receive it |
//!
//! If the last message is the assistant's and ends with text, the answer continues it.
//!
//! `cache_control` has no effect here: the cache finds every prefix without marks in the request.

use super::Chat;
use super::fields::{Fields, filled, missing, object, text, wrong_type, wrong_value};
use super::parts::{self, Conversation};
use crate::failure::Failure;
use serde_json::{Map, Value, json};

/// A request of Anthropic's Messages API, converted to a chat request. Its errors name the fields of a chat request,
/// see [`NAMES`].
#[derive(Debug)]
pub struct MessagesRequest(pub Chat);

/// Pairs of names for the same field, in a chat request and in the Messages API, for the fields whose names differ.
pub const NAMES: &[(&str, &str)] = &[
    (
        "response_format.json_schema.schema",
        "output_config.format.schema",
    ),
    ("response_format", "output_config.format"),
    ("stop", "stop_sequences"),
];

impl MessagesRequest {
    /// Parses the body of a request, which must have `max_tokens`.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] for an invalid field, under a chat's name where [`NAMES`] has one.
    pub fn parse(body: &[u8]) -> Result<Self, Failure> {
        let fields = Fields::parse(body)?;
        if fields.get("max_tokens").is_none() {
            return Err(missing("max_tokens"));
        }
        translate(fields).map(Self)
    }

    /// Parses the body of a request whose tokens are only counted, so that it needs no `max_tokens`.
    ///
    /// # Errors
    /// As [`MessagesRequest::parse`].
    pub fn to_count(body: &[u8]) -> Result<Self, Failure> {
        let mut fields = Fields::parse(body)?;
        fields.take("max_tokens");
        translate(fields).map(Self)
    }
}

fn translate(mut fields: Fields) -> Result<Chat, Failure> {
    for field in ["mcp_servers", "container"] {
        let asked = fields.take(field);
        if asked.is_some_and(|asked| asked.as_array().is_none_or(|list| !list.is_empty())) {
            let message = format!("{field} is not supported: this server runs no tools of its own");
            return Err(Failure::invalid(field, message));
        }
    }
    if fields.take("retrieval").is_some() {
        let message = "retrieval is not supported: it is a field of /v1/chat/completions";
        return Err(Failure::invalid("retrieval", message));
    }
    let mut conversation = Conversation::default();
    if let Some(system) = fields.take("system") {
        conversation.message("system", take_texts("system", &system)?);
    }
    let messages = filled("messages", "an array", fields.take("messages"))?;
    for (index, message) in messages.iter().enumerate() {
        take_message(&mut conversation, &format!("messages[{index}]"), message)?;
    }
    let tools = fields.take("tools");
    let nested = |tools| parts::nest_tools(tools, "custom", true, function);
    let tools = tools.map(nested).transpose()?;
    let choice = fields.take("tool_choice");
    let parallel = take_parallel(choice.as_ref())?;
    let choice = choice.map(|choice| nest_choice(&choice)).transpose()?;
    let is_forced = (choice.as_ref()).is_some_and(|choice| choice != "auto" && choice != "none");
    let continues = !is_forced && messages.last().is_some_and(is_prefill);
    let format = take_format(&mut fields)?;
    if continues && format.is_some() {
        let message = "output_config.format excludes a last message of the assistant: the whole answer follows the schema";
        return Err(Failure::invalid("output_config.format", message));
    }
    let thinking = take_thinking(&mut fields)?;
    let stop = fields.take("stop_sequences");
    for ignored in ["metadata", "stop", "n", "logprobs", "documents"] {
        fields.take(ignored);
    }
    let mut rest = fields.rest_with([
        ("messages", Some(conversation.messages())),
        ("tools", tools),
        ("tool_choice", choice),
        ("parallel_tool_calls", parallel.map(Value::Bool)),
        (
            "continue_final_message",
            continues.then_some(Value::Bool(true)),
        ),
        ("response_format", format),
        ("stop", stop),
    ]);
    if let Some(thinking) = thinking {
        let variables = rest
            .entry("chat_template_kwargs")
            .or_insert_with(|| json!({}));
        if let Value::Object(variables) = variables {
            variables
                .entry("enable_thinking")
                .or_insert(thinking.into());
        }
    }
    Chat::take(Fields::of(rest))
}

/// Returns whether the answer continues `message`, the last one: the assistant's, with text and without tool calls.
/// Text with reasoning is not continued, because templates show it differently.
fn is_prefill(message: &Value) -> bool {
    let has_text = |text: &Value| {
        let text = text.as_str().unwrap_or_default();
        !text.trim().is_empty() && !text.contains("</think>")
    };
    let content = &message["content"];
    let blocks = content.as_array().map_or(&[][..], Vec::as_slice);
    message["role"] == "assistant"
        && (has_text(content) || blocks.last().is_some_and(|last| has_text(&last["text"])))
        && blocks.iter().all(|block| block["type"] != "tool_use")
}

/// Returns the value of a chat request's `parallel_tool_calls` for the `disable_parallel_tool_use` in a `tool_choice`;
/// `None` if it is absent.
fn take_parallel(choice: Option<&Value>) -> Result<Option<bool>, Failure> {
    match choice.map(|choice| &choice["disable_parallel_tool_use"]) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(disabled)) => Ok(Some(!disabled)),
        Some(other) => {
            let at = "tool_choice.disable_parallel_tool_use";
            Err(wrong_type(at, "a boolean", other))
        }
    }
}

/// Removes the field `thinking` and returns whether it enables thinking; `None` if it is absent.
fn take_thinking(fields: &mut Fields) -> Result<Option<bool>, Failure> {
    let Some(thinking) = fields.take("thinking") else {
        return Ok(None);
    };
    match thinking["type"].as_str() {
        Some("enabled" | "adaptive") => Ok(Some(true)),
        Some("disabled") => Ok(Some(false)),
        _ => {
            let wanted = "\"enabled\", \"adaptive\" or \"disabled\"";
            Err(wrong_value("thinking.type", wanted, &thinking["type"]))
        }
    }
}

/// Removes the field `output_config`, or if it is absent the older `output_format`, and returns its format as the
/// `response_format` of a chat request; `None` if there is none.
fn take_format(fields: &mut Fields) -> Result<Option<Value>, Failure> {
    let format = match fields.object("output_config")? {
        None => fields.take("output_format"),
        Some(mut config) => Some(config["format"].take()),
    };
    let Some(mut format) = format.filter(|format| !format.is_null()) else {
        return Ok(None);
    };
    if format["type"] != "json_schema" {
        let at = "output_config.format.type";
        return Err(wrong_value(at, "\"json_schema\"", &format["type"]));
    }
    let schema = format["schema"].take();
    Ok(Some(json!({
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": schema},
    })))
}

/// Returns a tool of the Messages API as the `function` of a chat request's tool.
fn function(mut tool: Map<String, Value>) -> Map<String, Value> {
    let names = [
        ("name", "name"),
        ("description", "description"),
        ("input_schema", "parameters"),
    ];
    let renamed = |(from, to): (&str, &str)| Some((to.to_owned(), tool.remove(from)?));
    names.into_iter().filter_map(renamed).collect()
}

fn nest_choice(choice: &Value) -> Result<Value, Failure> {
    match choice["type"].as_str() {
        Some("auto") => Ok("auto".into()),
        Some("any") => Ok("required".into()),
        Some("none") => Ok("none".into()),
        Some("tool") => {
            let name = text("tool_choice.name", &choice["name"])?;
            Ok(json!({"type": "function", "function": {"name": name}}))
        }
        _ => {
            let wanted = "\"auto\", \"any\", \"tool\" or \"none\"";
            Err(wrong_value("tool_choice.type", wanted, &choice["type"]))
        }
    }
}

fn take_message(conversation: &mut Conversation, at: &str, message: &Value) -> Result<(), Failure> {
    object(at, message)?;
    let Some(role @ ("user" | "assistant" | "system")) = message["role"].as_str() else {
        let at = format!("{at}.role");
        let wanted = "\"user\" or \"assistant\"";
        return Err(wrong_value(&at, wanted, &message["role"]));
    };
    let blocks = take_blocks(&format!("{at}.content"), &message["content"])?;
    match role {
        "assistant" => take_answer(conversation, blocks),
        role => take_question(conversation, role, blocks),
    }
}

fn take_question(
    conversation: &mut Conversation,
    role: &str,
    blocks: Vec<Block>,
) -> Result<(), Failure> {
    let mut texts = Vec::new();
    let mut results = 0;
    for block in blocks {
        match block {
            Block::Text(text) => texts.push(text),
            Block::Other { at, kind } if kind["type"] == "tool_result" && role == "user" => {
                let id = text(&format!("{at}.tool_use_id"), &kind["tool_use_id"])?;
                let inner = match &kind["content"] {
                    Value::Null => Vec::new(),
                    content => take_texts(&format!("{at}.content"), content)?,
                };
                conversation.result(id, inner);
                results += 1;
            }
            Block::Other { at, kind } => return Err(refused(&at, &kind)),
        }
    }
    if !texts.is_empty() || results == 0 {
        conversation.message(role, texts);
    }
    Ok(())
}

fn take_answer(conversation: &mut Conversation, blocks: Vec<Block>) -> Result<(), Failure> {
    let mut texts = Vec::new();
    let mut calls = Vec::new();
    for block in blocks {
        match block {
            Block::Text(text) => texts.push(text),
            Block::Other { at, mut kind } => match kind["type"].as_str() {
                Some("thinking") => {
                    let thinking = kind["thinking"].as_str().unwrap_or_default();
                    conversation.reasoning(thinking.to_owned());
                }
                Some("redacted_thinking") => {}
                Some("tool_use") => {
                    let word = |name: &str| text(&format!("{at}.{name}"), &kind[name]);
                    let (id, name) = (word("id")?.to_owned(), word("name")?.to_owned());
                    object(&format!("{at}.input"), &kind["input"])?;
                    calls.push((id, name, kind["input"].take()));
                }
                _ => return Err(refused(&at, &kind)),
            },
        }
    }
    conversation.assistant(texts);
    for (id, name, input) in calls {
        conversation.call(&id, &name, input);
    }
    Ok(())
}

/// A content block of a message: converted to text, or any other block with its path in the body.
enum Block {
    Text(String),
    Other { at: String, kind: Value },
}

/// Parses the content of a message, a string or an array of blocks. `at` is its path in the body, for errors.
fn take_blocks(at: &str, content: &Value) -> Result<Vec<Block>, Failure> {
    parts::each(at, content, "blocks", Block::Text, |at, block| match text(
        &format!("{at}.type"),
        &block["type"],
    )? {
        "text" => text_of(&at, block).map(Block::Text),
        "document" => document(&at, block).map(Block::Text),
        "search_result" => search_result(&at, block).map(Block::Text),
        _ => Ok(Block::Other {
            at,
            kind: block.clone(),
        }),
    })
}

/// Parses content all of whose blocks must be convertible to text; other blocks are an error. `at` is its path in the
/// body.
fn take_texts(at: &str, content: &Value) -> Result<Vec<String>, Failure> {
    let blocks = take_blocks(at, content)?.into_iter();
    let texts = blocks.map(|block| match block {
        Block::Text(text) => Ok(text),
        Block::Other { at, kind } => Err(refused(&at, &kind)),
    });
    texts.collect()
}

fn text_of(at: &str, block: &Value) -> Result<String, Failure> {
    text(&format!("{at}.text"), &block["text"]).map(str::to_owned)
}

/// Parses content all of whose blocks must have the type `text`, and joins their texts with line feeds. `at` is its
/// path in the body.
fn joined(at: &str, content: &Value) -> Result<String, Failure> {
    let texts = parts::each(at, content, "blocks", String::from, |at, block| {
        match block["type"] == "text" {
            true => text_of(&at, block),
            false => Err(refused(&at, block)),
        }
    });
    Ok(texts?.join("\n"))
}

fn document(at: &str, block: &Value) -> Result<String, Failure> {
    let source = &block["source"];
    let at_source = format!("{at}.source");
    let text = match source["type"].as_str() {
        Some("text") => text(&format!("{at_source}.data"), &source["data"])?.to_owned(),
        Some("content") => joined(&format!("{at_source}.content"), &source["content"])?,
        Some(kind @ ("base64" | "url" | "file")) => {
            let message = format!(
                "{at_source}.type is \"{kind}\", a file, and this model reads text alone: send its text"
            );
            return Err(Failure::invalid(format!("{at_source}.type"), message));
        }
        _ => {
            let at = format!("{at_source}.type");
            return Err(wrong_value(&at, "\"text\" or \"content\"", &source["type"]));
        }
    };
    let text = match block["context"].as_str() {
        Some(context) if !context.is_empty() => format!("{context}\n\n{text}"),
        _ => text,
    };
    let title = block["title"].as_str().unwrap_or_default();
    Ok(parts::document("", title, &text))
}

fn search_result(at: &str, block: &Value) -> Result<String, Failure> {
    let text = joined(&format!("{at}.content"), &block["content"])?;
    let word = |name: &str| block[name].as_str().unwrap_or_default();
    Ok(parts::document(word("source"), word("title"), &text))
}

fn refused(at: &str, block: &Value) -> Failure {
    parts::not_text(at, &block["type"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: &Value) -> Result<Chat, Failure> {
        MessagesRequest::to_count(body.to_string().as_bytes()).map(|request| request.0)
    }

    fn refusal(body: &Value) -> (String, String) {
        match chat(body) {
            Err(Failure::Invalid { param, message }) => (param.unwrap_or_default(), message),
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    #[test]
    fn blocks_become_messages_in_their_order() {
        let body = json!({
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": [
                    {"type": "document", "title": "A", "source": {"type": "text", "media_type": "text/plain", "data": "Ada."}},
                    {"type": "document", "context": "old", "source": {"type": "content", "content": [{"type": "text", "text": "Bob."}]}},
                    {"type": "search_result", "source": "https://x", "title": "X", "content": [{"type": "text", "text": "Cy."}]},
                    {"type": "text", "text": "Who?"},
                ]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "one"}]},
                    {"type": "text", "text": "Go on."},
                ]},
            ],
        });
        let expected = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "text", "text": "<document>\nA\n\nAda.\n</document>\n"},
                {"type": "text", "text": "<document>\nold\n\nBob.\n</document>\n"},
                {"type": "text", "text": "<document id=\"https://x\">\nX\n\nCy.\n</document>\n"},
                {"type": "text", "text": "Who?"},
            ]},
            {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
            ]},
            {"role": "tool", "tool_call_id": "t1", "content": "one"},
            {"role": "user", "content": "Go on."},
        ]);
        assert_eq!(chat(&body).unwrap().messages, expected);
    }

    #[test]
    fn options_have_their_names_in_a_chat() {
        let chat = chat(&json!({
            "messages": [{"role": "user", "content": "Hi"}],
            "stop_sequences": ["x"],
            "tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "thinking": {"type": "disabled"},
        }))
        .unwrap();
        assert_eq!(chat.options.stop, ["x"]);
        let tools = chat.tools.unwrap();
        let expected = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
        assert_eq!(tools.shown, expected);
        assert!(matches!(tools.choice, super::super::ToolChoice::Forced(_)));
        assert!(!tools.parallel);
        assert_eq!(
            chat.template_variables,
            Some(json!({"enable_thinking": false}))
        );
    }

    #[test]
    fn a_last_message_of_the_assistant_is_continued() {
        use foreword_engine::text::Ending;
        let call = json!({"type": "tool_use", "id": "t", "name": "f", "input": {}});
        let text = json!({"type": "text", "text": "Ada"});
        for (role, content, ending) in [
            ("assistant", json!("Ada"), Ending::FinalMessage),
            ("assistant", json!([text]), Ending::FinalMessage),
            ("assistant", json!(" "), Ending::Answer),
            ("assistant", json!([text, call]), Ending::Answer),
            ("user", json!("Ada"), Ending::Answer),
        ] {
            let last = json!({"role": role, "content": content});
            let body = json!({"messages": [{"role": "user", "content": "Who?"}, last]});
            assert_eq!(chat(&body).unwrap().ending, ending, "{body}");
        }
    }

    #[test]
    fn what_cannot_be_shown_or_done_is_named() {
        let block = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
        for (body, param) in [
            (json!({}), "messages"),
            (
                json!({"messages": [{"role": "tool", "content": "x"}]}),
                "messages[0].role",
            ),
            (
                json!({"messages": [{"role": "user"}]}),
                "messages[0].content",
            ),
            (
                block(json!({"type": "image", "source": {"type": "base64"}})),
                "messages[0].content[0].type",
            ),
            (
                block(
                    json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf"}}),
                ),
                "messages[0].content[0].source.type",
            ),
            (
                block(
                    json!({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}),
                ),
                "messages[0].content[0].content[0].type",
            ),
            (
                json!({"system": [{"type": "image"}], "messages": [{"role": "user", "content": "x"}]}),
                "system[0].type",
            ),
            (
                json!({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "web_search_20250305", "name": "w"}]}),
                "tools[0].type",
            ),
            (
                json!({"messages": [{"role": "user", "content": "x"}], "tool_choice": {"type": "x"}}),
                "tool_choice.type",
            ),
            (
                json!({"messages": [{"role": "user", "content": "x"}], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}),
                "tool_choice.disable_parallel_tool_use",
            ),
            (
                json!({"messages": [{"role": "assistant", "content": "x"}], "output_format": {"type": "json_schema", "schema": {}}}),
                "output_config.format",
            ),
        ] {
            assert_eq!(refusal(&body).0, param, "{body}");
        }
        let missing =
            MessagesRequest::parse(br#"{"messages": [{"role": "user", "content": "x"}]}"#);
        assert_eq!(missing.unwrap_err().to_string(), "max_tokens is missing");
    }
}
