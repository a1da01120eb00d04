//! Converts the messages and documents of other APIs to those of a chat request, with documents in the gateway's
//! format.

use super::fields::{object, show, text, wrong_type};
use crate::failure::Failure;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// The messages of a chat request under construction, in OpenAI's format.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    messages: Vec<Map<String, Value>>,
    /// Reasoning that belongs to the next assistant message.
    reasoning: String,
}

impl Conversation {
    /// Adds a message of `role`, whose content has one part for each text.
    pub(super) fn message(&mut self, role: &str, texts: Vec<String>) {
        let mut message = Map::new();
        message.insert("role".to_owned(), role.into());
        message.insert("content".to_owned(), content(texts));
        self.messages.push(message);
    }

    /// Adds an assistant message, whose content has one part for each text, with the reasoning that was added before.
    pub(super) fn assistant(&mut self, texts: Vec<String>) {
        self.message("assistant", texts);
        self.attach_reasoning();
    }

    /// Adds to the reasoning that belongs to the next assistant message.
    pub(super) fn reasoning(&mut self, text: String) {
        self.reasoning.push_str(&text);
    }

    /// Adds a tool call, with the reasoning that was added before. If the last message is the assistant's, the call is
    /// added to it, otherwise to a new assistant message.
    pub(super) fn call(&mut self, id: &str, name: &str, arguments: Value) {
        let last = self.messages.last();
        let is_assistants =
            last.is_some_and(|last| last.get("role").and_then(Value::as_str) == Some("assistant"));
        if is_assistants {
            self.attach_reasoning();
        } else {
            self.assistant(vec![String::new()]);
        }
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let last = self.messages.last_mut();
        let calls = last.map(|last| last.entry("tool_calls").or_insert_with(|| json!([])));
        if let Some(Value::Array(calls)) = calls {
            calls.push(call);
        }
    }

    /// Adds the result of the tool call `id`, as a message of the role `tool` with one part for each text.
    pub(super) fn result(&mut self, id: &str, texts: Vec<String>) {
        self.message("tool", texts);
        if let Some(last) = self.messages.last_mut() {
            let content = last.shift_remove("content");
            last.insert("tool_call_id".to_owned(), id.into());
            last.insert("content".to_owned(), content.unwrap_or_default());
        }
    }

    /// Adds documents, as text in the gateway's format, to the last message if that is the user's, otherwise as a new
    /// user message.
    pub(super) fn documents(&mut self, blocks: Vec<String>) {
        if blocks.is_empty() {
            return;
        }
        let last = self.messages.last_mut();
        let users = last.filter(|last| last.get("role").and_then(Value::as_str) == Some("user"));
        let Some(users) = users else {
            self.message("user", blocks);
            return;
        };
        let mut texts = match users.get_mut("content").map(Value::take) {
            Some(Value::String(text)) => vec![text],
            Some(Value::Array(parts)) => {
                let texts = parts.iter().filter_map(|part| part["text"].as_str());
                texts.map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        texts.extend(blocks);
        users.insert("content".to_owned(), content(texts));
    }

    /// Returns the messages as the JSON array `messages` of a chat request.
    pub(super) fn messages(self) -> Value {
        self.messages.into_iter().map(Value::Object).collect()
    }

    /// Moves the reasoning that was added to the last message, after the reasoning that the message already has.
    fn attach_reasoning(&mut self) {
        let reasoning = std::mem::take(&mut self.reasoning);
        if let Some(last) = self.messages.last_mut()
            && !reasoning.is_empty()
            && let Value::String(whole) = last.entry("reasoning_content").or_insert("".into())
        {
            whole.push_str(&reasoning);
        }
    }
}

/// Returns the `content` of a message: a string if there is one text (empty if there is none), or an array with a text
/// part for each of several.
fn content(mut texts: Vec<String>) -> Value {
    if texts.len() <= 1 {
        return texts.pop().unwrap_or_default().into();
    }
    let parts = texts.into_iter();
    parts
        .map(|text| json!({"type": "text", "text": text}))
        .collect()
}

/// Parses the content of a message at the path `at`: a string, converted by `whole`, or an array, of which `read`
/// converts each element, given its path. `parts` names the elements in an error.
pub(super) fn each<T>(
    at: &str,
    content: &Value,
    parts: &str,
    whole: fn(String) -> T,
    read: impl Fn(String, &Value) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    match content {
        Value::String(text) => Ok(vec![whole(text.clone())]),
        Value::Array(items) => (items.iter().enumerate())
            .map(|(index, item)| read(format!("{at}[{index}]"), item))
            .collect(),
        other => {
            let wanted = format!("a string or an array of {parts}");
            Err(wrong_type(at, &wanted, other))
        }
    }
}

/// Converts the `tools` of another API to those of a chat request, `{"type": "function", "function": …}`. Tools of a
/// type other than `kind` are an error; `is_kind_optional` is true if a tool may have no type. `function` converts a
/// tool's fields other than `type`, without nulls.
pub(super) fn nest_tools(
    tools: Value,
    kind: &str,
    is_kind_optional: bool,
    function: fn(Map<String, Value>) -> Map<String, Value>,
) -> Result<Value, Failure> {
    let Value::Array(tools) = tools else {
        return Err(wrong_type("tools", "an array", &tools));
    };
    let nest = |(index, mut tool): (usize, Value)| {
        let at = format!("tools[{index}]");
        object(&at, &tool)?;
        let found = tool["type"].take();
        if found != kind && !(is_kind_optional && found.is_null()) {
            let got = show(&found);
            let message = format!(
                "{at}.type must be \"{kind}\", got {got}: this server runs no tools of its own"
            );
            return Err(Failure::invalid(format!("{at}.type"), message));
        }
        text(&format!("{at}.name"), &tool["name"])?;
        let Value::Object(mut fields) = tool else {
            return Ok(tool);
        };
        fields.retain(|_, value| !value.is_null());
        Ok(json!({"type": "function", "function": function(fields)}))
    };
    let nested = tools.into_iter().enumerate().map(nest);
    nested.collect::<Result<_, _>>().map(Value::Array)
}

/// Returns a document as a text block in the gateway's format. Id, title and text are escaped so that they cannot end
/// the block early.
pub(super) fn document(id: &str, title: &str, text: &str) -> String {
    let mut block = "<document".to_owned();
    if !id.is_empty() {
        block.push_str(" id=\"");
        for character in id.chars() {
            match character {
                '"' => block.push_str("&quot;"),
                '<' => block.push_str("&lt;"),
                '>' => block.push_str("&gt;"),
                control if control.is_control() => {
                    // Writing to a string does not fail.
                    let _ = write!(block, "&#{};", u32::from(control));
                }
                other => block.push(other),
            }
        }
        block.push('"');
    }
    block.push_str(">\n");
    if !title.is_empty() {
        block.push_str(&enclosed(title));
        block.push_str("\n\n");
    }
    block.push_str(&enclosed(text));
    block.push_str("\n</document>\n");
    block
}

/// Escapes `</document` in a text, in any case, so that the text does not end its document's block.
fn enclosed(text: &str) -> String {
    const CLOSING: &[u8] = b"</document";
    let bytes = text.as_bytes();
    let mut enclosed = String::with_capacity(text.len());
    let mut copied = 0;
    for (at, window) in bytes.windows(CLOSING.len()).enumerate() {
        if window.eq_ignore_ascii_case(CLOSING) {
            enclosed.push_str(&text[copied..at]);
            enclosed.push_str("&lt;");
            copied = at + 1;
        }
    }
    enclosed.push_str(&text[copied..]);
    enclosed
}

/// Returns the failure for a content part at the path `at` whose type, `kind`, is not that of text.
pub(super) fn not_text(at: &str, kind: &Value) -> Failure {
    let shown = show(kind);
    let what = match kind.as_str().unwrap_or_default() {
        kind if kind.contains("image") => "an image",
        kind if kind.contains("audio") => "audio",
        kind if kind.contains("video") => "a video",
        kind if kind.contains("file") => "a file",
        _ => {
            let message = format!("{at}.type must be that of a text, got {shown}");
            return Failure::invalid(format!("{at}.type"), message);
        }
    };
    let message = format!("{at} is {what} ({shown}), and this model reads text alone");
    Failure::invalid(format!("{at}.type"), message)
}
