//! The body formats: which field holds the messages, and how an entry of it is read.
//!
//! | format | messages | system text | entry |
//! | --- | --- | --- | --- |
//! | OpenAI chat, Anthropic, Bedrock Converse, Cohere v2 | `messages` | `system` | `role`, `content` |
//! | OpenAI Responses | `input`, a string or items | `instructions` | by its `type` |
//! | Gemini | `contents` | `systemInstruction` | `role`, `parts` |
//! | Cohere v1 | `chat_history`, then `message` | `preamble` | `role`, `message` |
//!
//! A body does not name its format: the first row whose list is not empty applies. A format is an entry of [`FORMATS`];
//! all later code knows only messages.

use super::json::{inner, text};
use super::lists::Author;
use super::role::Role;
use super::{Skip, scan};
use std::borrow::Cow;

/// A body format: see the [module](self).
pub(super) struct Format {
    /// The field that holds the messages.
    pub(super) messages: &'static str,
    /// The names of the field that holds the system text.
    pub(super) system: &'static [&'static str],
    /// The fields of an entry that [`Format::said`] receives, at most [`MAX_FIELDS`].
    pub(super) fields: &'static [&'static str],
    /// Interprets an entry by the values of `fields`.
    pub(super) said: for<'a> fn(&str, &RawMessage<'a>) -> Result<Said<'a>, Skip>,
    /// Style of a text part in an empty list of parts.
    pub(super) style: PartStyle,
    /// Whether a value that is not a list is an error. If false, such a field is ignored as unknown.
    pub(super) is_strict: bool,
}

/// Most fields of an entry that a format may request.
pub(super) const MAX_FIELDS: usize = 8;

/// Number of rows of [`FORMATS`].
pub(super) const FORMAT_COUNT: usize = 4;

/// The formats. The first applies to a body without messages. Cohere's v1 comes last: its question is a field of its
/// own.
pub(super) static FORMATS: [Format; FORMAT_COUNT] = [CHAT, RESPONSES, GEMINI, COHERE];

/// The index of Cohere's v1 format in [`FORMATS`].
pub(super) const COHERE_AT: usize = FORMAT_COUNT - 1;

const CHAT: Format = Format {
    messages: "messages",
    system: &["system"],
    fields: CHAT_FIELDS,
    said: chat,
    style: PartStyle::Typed,
    is_strict: true,
};

const COHERE: Format = Format {
    messages: "chat_history",
    system: &["preamble"],
    is_strict: false,
    ..CHAT
};

const RESPONSES: Format = Format {
    messages: "input",
    system: &["instructions"],
    fields: &[
        "type",
        "role",
        "content",
        "output",
        "results",
        "arguments",
        "input",
        "id",
    ],
    said: item,
    style: PartStyle::Input,
    is_strict: false,
};

const GEMINI: Format = Format {
    messages: "contents",
    system: &["systemInstruction", "system_instruction"],
    fields: &["role", "parts"],
    said: content,
    style: PartStyle::Bare,
    is_strict: false,
};

/// Fields of a chat message. Cohere's first API names the content `message`.
const CHAT_FIELDS: &[&str] = &["role", "content", "message"];

/// Fields that refer to context before the body's first message that the body does not hold.
pub(super) const PRECEDING: [&str; 3] = ["previous_response_id", "conversation", "cachedContent"];

/// Returns whether the field is an object with the tools or the tool choice in it (Converse, Gemini).
pub(super) fn is_tool_config(name: &str) -> bool {
    matches!(name, "toolConfig" | "tool_config")
}

/// Maps another format's name of a parameter to its name in [`PARAMETERS`](super::chat::PARAMETERS).
pub(super) fn parameter(name: &str) -> Option<&'static str> {
    match name {
        "text" => Some("response_format"),
        "reasoning" => Some("reasoning_effort"),
        "toolChoice" | "functionCallingConfig" => Some("tool_choice"),
        _ => None,
    }
}

/// A message or input item as written, and its values of [`Format::fields`] in order; `None` if absent or `null`.
pub(super) struct RawMessage<'a> {
    pub(super) raw: &'a str,
    pub(super) fields: [Option<&'a str>; MAX_FIELDS],
}

/// An entry, interpreted.
pub(super) struct Said<'a> {
    pub(super) role: Role,
    /// The role's name as hashed into the chain.
    pub(super) role_name: Cow<'a, str>,
    /// The bytes that identify this message in the hash chain, in addition to its role. Empty if the role alone
    /// identifies it.
    pub(super) content: &'a str,
    pub(super) holds: Holds,
}

/// Which parts of a content may hold documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// The content's texts and parts, written by this author.
    Parts(Author),
    /// The content's elements, each a passage that a search found.
    Passages,
    /// None: its bytes are never read.
    Nothing,
}

impl<'a> Said<'a> {
    /// A message with its own role.
    pub(super) fn message(role_name: Cow<'a, str>, content: Option<&'a str>) -> Self {
        let role = Role::of(&role_name);
        let author = match role {
            Role::Tool => Author::Tool,
            _ => Author::Other,
        };
        Self {
            role,
            role_name,
            content: content.unwrap_or_default(),
            holds: Holds::Parts(author),
        }
    }

    /// An entry that an engine or a tool wrote; it is forwarded unchanged.
    fn sealed(role: Role, kind: &'a str, content: &'a str) -> Self {
        Self {
            role,
            role_name: kind.into(),
            content,
            holds: Holds::Nothing,
        }
    }
}

/// Reads a chat message: OpenAI's, Anthropic's, Converse's, Cohere's.
fn chat<'a>(body: &str, message: &RawMessage<'a>) -> Result<Said<'a>, Skip> {
    let [role, content, message, ..] = message.fields;
    let role = text(body, role)?;
    let role = match role.as_ref() {
        "USER" => "user".into(),
        "CHATBOT" => "assistant".into(),
        _ => role,
    };
    Ok(Said::message(role, content.or(message)))
}

/// Reads an item of Responses' `input`. Items of unknown types are forwarded unchanged.
fn item<'a>(body: &str, item: &RawMessage<'a>) -> Result<Said<'a>, Skip> {
    let [kind, role, content, output, results, arguments, input, id] = item.fields;
    let kind = kind.and_then(inner).unwrap_or("message");
    Ok(match kind {
        // Without a role it refers to an item that the server keeps.
        "message" if role.is_none() => {
            Said::sealed(Role::Other, "item_reference", id.unwrap_or(item.raw))
        }
        "message" => Said::message(text(body, role)?, content),
        "function_call_output" | "custom_tool_call_output" => Said::message("tool".into(), output),
        "file_search_call" => Said {
            role: Role::Tool,
            role_name: kind.into(),
            content: results.or(id).unwrap_or_default(),
            holds: Holds::Passages,
        },
        "function_call" => Said::sealed(Role::Assistant, kind, arguments.unwrap_or_default()),
        "custom_tool_call" => Said::sealed(Role::Assistant, kind, input.unwrap_or_default()),
        "item_reference" => Said::sealed(Role::Other, kind, id.unwrap_or_default()),
        "reasoning" => Said::sealed(Role::Assistant, kind, item.raw),
        _ => Said::sealed(Role::Other, kind, item.raw),
    })
}

/// Reads an entry of Gemini's `contents`. Without a role it is the user's.
fn content<'a>(body: &str, content: &RawMessage<'a>) -> Result<Said<'a>, Skip> {
    let [role, parts, ..] = content.fields;
    let role = match role {
        Some(_) => text(body, role)?,
        None => "user".into(),
    };
    let mut said = Said::message(
        match role.as_ref() {
            "model" => "assistant".into(),
            _ => role,
        },
        parts,
    );
    // A tool's result is a part here, whatever the entry's role.
    said.holds = Holds::Parts(Author::Other);
    Ok(said)
}

/// How a list of parts writes a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PartStyle {
    /// `{"type":"text","text":"…"}`: OpenAI chat, Anthropic, Cohere.
    #[default]
    Typed,
    /// `{"type":"input_text","text":"…"}`: Responses.
    Input,
    /// `{"text":"…"}`: Gemini, Converse.
    Bare,
}

impl PartStyle {
    /// The style of a list that contains a part of this `type` (as written; `None` if absent).
    pub(super) fn of(kind: Option<&str>) -> Self {
        match kind.and_then(inner) {
            None => Self::Bare,
            Some(kind) if kind.starts_with("input_") || kind.starts_with("output_") => Self::Input,
            Some(_) => Self::Typed,
        }
    }

    /// The JSON of a text part up to the text's first character.
    pub(crate) fn open(self) -> &'static str {
        match self {
            Self::Typed => r#"{"type":"text","text":""#,
            Self::Input => r#"{"type":"input_text","text":""#,
            Self::Bare => r#"{"text":""#,
        }
    }

    /// The JSON that separates a text part from the part before it, and opens the text's string.
    pub(crate) fn open_behind(self) -> &'static str {
        match self {
            Self::Typed => r#",{"type":"text","text":""#,
            Self::Input => r#",{"type":"input_text","text":""#,
            Self::Bare => r#",{"text":""#,
        }
    }

    /// All styles.
    pub(crate) const ALL: [Self; 3] = [Self::Typed, Self::Input, Self::Bare];
}

/// The label of Converse's block `document`, if it may move. With citations on it may not: answers cite documents by
/// index.
pub(super) fn converse_label(document: &str) -> Option<&str> {
    let [name, source, citations] = scan::fields(document, ["name", "source", "citations"]).ok()?;
    source?;
    let cites = citations
        .is_some_and(|citations| scan::fields(citations, ["enabled"]) != Ok([Some("false")]));
    (!cites).then(|| name.and_then(inner).unwrap_or_default())
}

/// The label of a passage of `file_search_call.results`; `None` if it holds no text. Answers cite files by name or id.
pub(super) fn passage_label(passage: &str) -> Option<&str> {
    if !passage.starts_with('{') {
        return None;
    }
    let [text, filename, file_id] = scan::fields(passage, ["text", "filename", "file_id"]).ok()?;
    text.and_then(inner)?;
    Some(filename.or(file_id).and_then(inner).unwrap_or_default())
}

/// Fields that hold the texts of a tool's result that is an object.
pub(super) const TEXTS_OF_RESULT: [&str; 3] = ["result", "output", "content"];
