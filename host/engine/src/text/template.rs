//! A checkpoint's chat template: from messages to a prompt.
//!
//! Templates are Jinja programs written for `transformers`, which runs them with `trim_blocks`, `lstrip_blocks`, loop
//! controls, a few functions and Python's methods on strings and maps. Here minijinja provides the same.
//! `{% generation %}` blocks, which only training uses, are treated as plain blocks. Known departure: dates are in UTC,
//! not in the machine's time zone.
//!
//! A template comes with the checkpoint and is not trusted. It can read only its variables, takes a bounded number of
//! steps and yields a bounded number of bytes; the memory of strings that it joins meanwhile is not bounded. Depth is bounded as well: minijinja drops, prints and compares nested
//! values by recursion, with some 400 bytes of stack a level, and a step nests by at most one level. So templates are
//! compiled and run on a thread whose stack has room for as many levels as there are steps. A printed value may be at
//! most [`MAX_NESTING`] levels deep, which no real value is.

use super::TextError;
use super::clock::strftime;
use super::json::{to_value, tojson};
use super::limits::{MAX_BYTES, MAX_NESTING, too_deep};
use crate::models::gguf::{Gguf, is_gguf};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value, escape_formatter};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::error::Error as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The chat template of a checkpoint (`chat_template.jinja`, or `chat_template` in `tokenizer_config.json`), which
/// renders messages to a prompt.
pub struct ChatTemplate {
    /// The template interpreter with the compiled templates: [`DEFAULT`] and possibly [`TOOL_USE`].
    environment: Environment<'static>,
    /// Special tokens by their names in `tokenizer_config.json`, such as `bos_token`.
    special_tokens: Vec<(&'static str, String)>,
    /// True if the template accepts a message whose `content` is a list of parts.
    reads_parts: bool,
    /// True if the template's source contains the tag that opens tool calls in the format of [`super::ToolCalls`], so
    /// that the model can be expected to write them so.
    tags_tool_calls: bool,
    /// True if the source of a template contains the word `developer`, so that it presumably handles that role.
    knows_developer: bool,
}

/// Maximum number of template instructions in one rendering: they take some tens of milliseconds. A conversation of a
/// thousand messages takes some tens of thousands.
const FUEL: u64 = 500_000;

/// Maximum length of a template's source in bytes, which bounds the depth of its syntax.
const MAX_SOURCE: usize = 256 << 10;

/// Bytes of stack for compiling and running a template: a kilobyte for each instruction that it may run, and more than
/// that for each byte of its source. Only the part that is used becomes memory.
const STACK: usize = 512 << 20;

/// Maximum number of values that are examined to find how deeply a value to print is nested.
const MAX_LOOKED_AT: usize = 1 << 20;

/// Names of the templates for chats without tools and, below, for chats with tools, as in `transformers`.
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Where a prompt that is rendered from messages ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// At the beginning of the model's answer, so that the model begins a new message.
    #[default]
    Answer,
    /// After the end of the last message (`add_generation_prompt` is false).
    Messages,
    /// After the last message's text, so that the model continues that message (`continue_final_message`).
    FinalMessage,
}

impl ChatTemplate {
    /// Reads the template in the file `own` or, without one, that of the checkpoint `folder` (a folder or a GGUF file).
    /// Templates that ask for the time get the system's, in UTC. Returns `None` for a checkpoint without
    /// a template.
    ///
    /// # Errors
    /// Returns [`TextError::Checkpoint`] when a file is malformed, or `own` cannot be read.
    pub fn load(folder: &Path, own: Option<&Path>) -> Result<Option<Self>, TextError> {
        let (config_file, config) = if is_gguf(folder) {
            (folder.to_owned(), Gguf::open(folder)?.tokenizer_config())
        } else {
            let file = folder.join("tokenizer_config.json");
            let config = match read(&file)? {
                Some(text) => serde_json::from_str(&text)
                    .map_err(|error| TextError::checkpoint(&file, error))?,
                None => Json::Null,
            };
            (file, config)
        };
        let file = match own {
            Some(own) => own.to_owned(),
            None => folder.join("chat_template.jinja"),
        };
        match read(&file)? {
            Some(source) => Self::of(&file, Ok(vec![(DEFAULT, source)]), &config),
            None if own.is_some() => Err(TextError::checkpoint(&file, "there is no such file")),
            None => Self::of(&config_file, templates_in(&config), &config),
        }
    }

    /// Compiles the templates that were found in `file`, given by name. Returns `None` if the one for chats without
    /// tools is not among them.
    fn of(
        file: &Path,
        templates: Result<Vec<(&'static str, String)>, String>,
        config: &Json,
    ) -> Result<Option<Self>, TextError> {
        let wrong = |reason| TextError::checkpoint(file, reason);
        let templates = templates.map_err(wrong)?;
        if !templates.iter().any(|(name, _)| *name == DEFAULT) {
            return Ok(None);
        }
        on_a_deep_stack(|| Self::new(templates, config))?
            .map(Some)
            .map_err(wrong)
    }

    /// Renders the prompt for an OpenAI `messages` array, with the client's `tools` and `documents`, if any. The fields
    /// of the object `more` are further variables of the template, such as `enable_thinking`; they cannot replace the
    /// standard variables. `ending` says where the prompt ends.
    ///
    /// A `content` that is an array of text parts is passed to a template that accepts arrays. For others the parts are
    /// joined by newlines.
    ///
    /// # Errors
    /// Returns [`TextError::Template`] when the messages do not fit the template, or the last one the ending, and
    /// [`TextError::Thread`] when the system has no thread for it.
    pub fn render(
        &self,
        messages: &Json,
        tools: Option<&Json>,
        documents: Option<&Json>,
        more: Option<&Json>,
        ending: Ending,
    ) -> Result<String, TextError> {
        let mut messages = self.messages(messages).map_err(TextError::Template)?;
        if ending == Ending::FinalMessage {
            mark_final_message(messages.to_mut()).map_err(TextError::Template)?;
        }
        let name = match tools {
            Some(_) if self.environment.get_template(TOOL_USE).is_ok() => TOOL_USE,
            _ => DEFAULT,
        };
        on_a_deep_stack(|| {
            self.run(name, &messages, tools, documents, more, ending)
                .map_err(|error| reason(&error))
        })?
        .and_then(|rendered| match ending {
            Ending::Answer | Ending::Messages => Ok(rendered),
            Ending::FinalMessage => within_final_message(rendered),
        })
        .map_err(TextError::Template)
    }

    /// Returns whether the template's source contains the tag `<tool_call>`, so that the model can be expected to write
    /// tool calls as [`super::ToolCalls`] reads them.
    pub fn tags_tool_calls(&self) -> bool {
        self.tags_tool_calls
    }

    /// Returns whether the template's source mentions the role `developer`. A template that does not mention it drops
    /// that role's messages, refuses them, or writes a role that is unknown to the model.
    pub fn knows_developer(&self) -> bool {
        self.knows_developer
    }

    fn new(templates: Vec<(&'static str, String)>, config: &Json) -> Result<Self, String> {
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        environment.set_syntax(syntax.build().map_err(|error| error.to_string())?);
        environment.set_fuel(Some(FUEL));
        environment.set_formatter(|out, state, value| {
            nesting(value)?;
            escape_formatter(out, state, value)
        });
        // `pprint` indents by depth, so a deep value would fill the memory. `transformers` has no such filter.
        environment.remove_filter("pprint");
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_function(
            "raise_exception",
            |message: String| -> Result<Value, Error> {
                Err(Error::new(ErrorKind::InvalidOperation, message.clone())
                    .with_source(Raised(message)))
            },
        );
        set_clock(&mut environment, SystemTime::now);
        let tags_tool_calls = templates
            .iter()
            .any(|(_, source)| source.contains(super::OPEN_TOOL_CALL));
        let knows_developer = templates
            .iter()
            .any(|(_, source)| source.contains("developer"));
        for (name, source) in templates {
            if source.len() > MAX_SOURCE {
                let size = source.len();
                return Err(format!(
                    "the template has {size} bytes, more than {MAX_SOURCE}"
                ));
            }
            let source = plain_blocks(&source).into_owned();
            environment
                .add_template_owned(name, source)
                .map_err(|error| error.to_string())?;
        }
        let special_tokens = SPECIAL_TOKENS.into_iter().filter_map(|name| {
            let token = &config[name];
            // Either the token itself or an object that describes it.
            let token = token.as_str().or_else(|| token["content"].as_str());
            token.map(|token| (name, token.to_owned()))
        });
        let special_tokens = special_tokens.collect();
        let mut template = Self {
            environment,
            special_tokens,
            reads_parts: false,
            tags_tool_calls,
            knows_developer,
        };
        template.reads_parts = template.probe();
        Ok(template)
    }

    /// Returns the name of the token that ends an answer, such as `<|im_end|>`; `None` if `tokenizer_config.json` names
    /// none.
    pub fn eos_token(&self) -> Option<&str> {
        let mut tokens = self.special_tokens.iter();
        tokens.find_map(|(name, token)| (*name == "eos_token").then_some(token.as_str()))
    }

    /// Returns whether the template accepts a `content` that is a list of parts, by rendering one: a template that
    /// expects a string fails or prints the list.
    fn probe(&self) -> bool {
        const TEXT: &str = "pinpoint";
        let messages =
            serde_json::json!([{"role": "user", "content": [{"type": "text", "text": TEXT}]}]);
        let Ok(prompt) = self.run(DEFAULT, &messages, None, None, None, Ending::Answer) else {
            return false;
        };
        let quoted = |start: usize| prompt[..start].ends_with(['"', '\'']);
        prompt.find(TEXT).is_some_and(|start| !quoted(start))
    }

    fn run(
        &self,
        name: &str,
        messages: &Json,
        tools: Option<&Json>,
        documents: Option<&Json>,
        more: Option<&Json>,
        ending: Ending,
    ) -> Result<String, Error> {
        let optional = |json: Option<&Json>| json.map_or_else(|| Value::from(()), to_value);
        let variables = [
            ("messages", to_value(messages)),
            ("tools", optional(tools)),
            ("documents", optional(documents)),
            (
                "add_generation_prompt",
                Value::from(ending == Ending::Answer),
            ),
        ];
        let tokens = self
            .special_tokens
            .iter()
            .map(|(name, token)| (*name, Value::from(token.as_str())));
        // Of two variables with one name, the later one is used.
        let more = more.and_then(Json::as_object).into_iter().flatten();
        let more = more.map(|(name, value)| (name.as_str(), to_value(value)));
        let variables = Value::from_pairs(more.chain(tokens).chain(variables));
        let mut prompt = Bounded(Vec::new());
        self.environment
            .get_template(name)?
            .render_captured_to(variables, &mut prompt)?;
        // minijinja writes whole strings, so this is always valid.
        Ok(String::from_utf8(prompt.0)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// Checks that every message has a role and no parts other than text. For templates that expect strings, returns
    /// the messages with the text parts of each joined by newlines.
    fn messages<'a>(&self, messages: &'a Json) -> Result<Cow<'a, Json>, String> {
        let list = messages.as_array().ok_or("messages is not an array")?;
        let mut joined: Option<Vec<Json>> = None;
        for (index, message) in list.iter().enumerate() {
            if !message["role"].is_string() {
                return Err(format!("messages[{index}] has no role"));
            }
            let Some(parts) = message["content"].as_array() else {
                continue;
            };
            let texts = parts.iter().enumerate().map(|(part, value)| {
                match (&value["type"], &value["text"]) {
                    (Json::String(kind), Json::String(text)) if kind == "text" => Ok(text.as_str()),
                    (kind, _) => Err(format!(
                        "messages[{index}].content[{part}] is of type {kind}, not a \"text\""
                    )),
                }
            });
            let text = texts.collect::<Result<Vec<_>, _>>()?.join("\n");
            if !self.reads_parts {
                joined.get_or_insert_with(|| list.clone())[index]["content"] = Json::String(text);
            }
        }
        Ok(joined.map_or(Cow::Borrowed(messages), |list| {
            Cow::Owned(Json::Array(list))
        }))
    }
}

/// Text that shows in a rendered prompt where the last message's text ends, as in `transformers`
/// (`apply_chat_template` with `continue_final_message`). A template that strips the text removes the final space.
const FINAL_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Appends [`FINAL_TAG`] to the text of the last message.
fn mark_final_message(messages: &mut Json) -> Result<(), String> {
    let content = messages.as_array_mut().and_then(|list| list.last_mut());
    let content = content.and_then(|message| message.get_mut("content"));
    let text = match content {
        Some(Json::Array(parts)) => parts.last_mut().and_then(|part| part.get_mut("text")),
        content => content,
    };
    match text {
        Some(Json::String(text)) if !text.trim().is_empty() => {
            text.push_str(FINAL_TAG);
            Ok(())
        }
        _ => Err("the last message has no text that could be continued".to_owned()),
    }
}

/// Cuts a prompt, rendered with [`FINAL_TAG`], at the end of its last message's text.
fn within_final_message(mut rendered: String) -> Result<String, String> {
    let Some(end) = rendered.rfind(FINAL_TAG.trim_end()) else {
        return Err(
            "the template does not show the last message's text, so it cannot be continued"
                .to_owned(),
        );
    };
    let is_stripped = !rendered[end..].starts_with(FINAL_TAG);
    rendered.truncate(end);
    if is_stripped {
        rendered.truncate(rendered.trim_end().len());
    }
    Ok(rendered)
}

/// Runs `work` on a thread of its own with a stack of [`STACK`] bytes, and returns its result.
fn on_a_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TextError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("template".to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, work)
            .map_err(TextError::Thread)?;
        thread
            .join()
            .map_err(|_| TextError::Template("the template broke its interpreter".to_owned()))
    })
}

/// Returns an error for a value whose lists and maps are nested too deeply to be printed, see [`MAX_NESTING`].
fn nesting(value: &Value) -> Result<(), Error> {
    let mut looked_at = 0;
    let mut left = vec![(value.clone(), 0)];
    while let Some((value, depth)) = left.pop() {
        if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map) {
            continue;
        }
        let inner = value.try_iter()?.map(|item| match value.kind() {
            ValueKind::Map => value.get_item(&item).unwrap_or_default(),
            _ => item,
        });
        for item in inner {
            looked_at += 1;
            if depth >= MAX_NESTING || looked_at > MAX_LOOKED_AT {
                return Err(too_deep());
            }
            left.push((item, depth + 1));
        }
    }
    Ok(())
}

fn set_clock(
    environment: &mut Environment<'static>,
    clock: impl Fn() -> SystemTime + Send + Sync + 'static,
) {
    environment.add_function("strftime_now", move |format: &str| {
        strftime(clock(), format).map_err(|reason| Error::new(ErrorKind::InvalidOperation, reason))
    });
}

/// Returns the text of `file`, or `None` if there is no such file.
fn read(file: &PathBuf) -> Result<Option<String>, TextError> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        // A GGUF file is no folder.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(TextError::checkpoint(file, error)),
    }
}

/// Returns the supported templates in a `tokenizer_config.json`, each with its name: none, one or two.
fn templates_in(config: &Json) -> Result<Vec<(&'static str, String)>, String> {
    match &config["chat_template"] {
        Json::Null => Ok(Vec::new()),
        Json::String(source) => Ok(vec![(DEFAULT, source.clone())]),
        Json::Array(list) => {
            let mut templates = Vec::new();
            for entry in list {
                let (Some(name), Some(source)) =
                    (entry["name"].as_str(), entry["template"].as_str())
                else {
                    return Err(
                        "chat_template has an entry without a name or a template".to_owned()
                    );
                };
                // Other templates are chosen by name, and the OpenAI API has no field for it.
                let known = [DEFAULT, TOOL_USE].into_iter().find(|known| *known == name);
                templates.extend(known.map(|name| (name, source.to_owned())));
            }
            Ok(templates)
        }
        other => Err(format!(
            "chat_template is {}, not a string or a list",
            kind(other)
        )),
    }
}

fn kind(json: &Json) -> &'static str {
    match json {
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::Object(_) => "an object",
        _ => "something else",
    }
}

/// Replaces the tags of `{% generation %}` … `{% endgeneration %}`, which mark the text to train on in `transformers`,
/// with the tags of a block without effect.
fn plain_blocks(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        text.push_str(before);
        let end = tag.find("%}").unwrap_or(tag.len());
        let (tag, after) = tag.split_at(end);
        let word = tag
            .trim_matches(|character: char| character.is_whitespace() || "+-".contains(character));
        match word {
            "generation" => text.push_str(&tag.replace(word, "if true")),
            "endgeneration" => text.push_str(&tag.replace(word, "endif")),
            _ => text.push_str(tag),
        }
        rest = after;
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// The error of a template that calls `raise_exception`, with the message that it passes.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// Returns the message of a template's error: the template's own if it raised an exception, otherwise the
/// interpreter's.
fn reason(error: &Error) -> String {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return message.clone();
        }
        source = inner.source();
    }
    error.to_string()
}

/// A writer that collects at most [`MAX_BYTES`] bytes and fails beyond that.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MAX_BYTES - self.0.len() {
            return Err(io::Error::other(format!(
                "the prompt is longer than {MAX_BYTES} bytes"
            )));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
