//! The body formats: which field has the messages, and how an entry of it is interpreted.
//!
//! | format | messages | system text | entry |
//! | --- | --- | --- | --- |
//! | OpenAI chat, Anthropic, Bedrock Converse, Cohere v2 | `messages` | `system` | `role`, `content` |
//! | OpenAI Responses | `input`, a string or items | `instructions` | by its `type` |
//! | Gemini | `contents` | `systemInstruction` | `role`, `parts` |
//! | Cohere v1 | `chat_history`, then `message` | `preamble` | `role`, `message` |
//!
//! A body does not name its format: the first row whose list is not empty applies. Each format is an entry of
//! [`FORMATS`]; all other code handles only messages.

use super::json::{inner, text};
use super::lists::Author;
use super::role::Role;
use super::{Skip, scan};
use std::borrow::Cow;

/// The format of a request's body: the names of its fields, and how a message is interpreted.
pub(super) struct Format {
    /// The name of the body's field that has the messages.
    pub(super) messages: &'static str,
    /// The possible names of the field with the system text.
    pub(super) system: &'static [&'static str],
    /// The names of those fields of a message or item that [`Format::interpret`] receives, at most [`MAX_FIELDS`].
    pub(super) fields: &'static [&'static str],
    /// Interprets an entry of the list of messages, given the body's text and the entry. Returns an error if the entry
    /// is malformed.
    pub(super) interpret: for<'a> fn(&str, &RawMessage<'a>) -> Result<Interpreted<'a>, Skip>,
    /// The JSON form of a text part that the gateway adds to an empty list of content parts.
    pub(super) style: PartStyle,
    /// True if a field of messages that is not a list of objects is an error. If false, a string is the only user
    /// message, and any other value that is no list is ignored.
    pub(super) is_strict: bool,
}

/// The maximum number of fields of a message or item that one format reads.
pub(super) const MAX_FIELDS: usize = 8;

/// Number of formats in [`FORMATS`].
pub(super) const FORMAT_COUNT: usize = 4;

/// The known body formats. The first one also applies to a body without messages. Cohere's v1 comes last, since its
/// question is in a field of its own.
pub(super) static FORMATS: [Format; FORMAT_COUNT] = [CHAT, RESPONSES, GEMINI, COHERE];

/// The index of Cohere's v1 format in [`FORMATS`].
pub(super) const COHERE_AT: usize = FORMAT_COUNT - 1;

const CHAT: Format = Format {
    messages: "messages",
    system: &["system"],
    fields: CHAT_FIELDS,
    interpret: chat,
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
    interpret: item,
    style: PartStyle::Input,
    is_strict: false,
};

const GEMINI: Format = Format {
    messages: "contents",
    system: &["systemInstruction", "system_instruction"],
    fields: &["role", "parts"],
    interpret: content,
    style: PartStyle::Bare,
    is_strict: false,
};

/// Names of the fields of a chat message that are read. In Cohere's v1 API the content is called `message`.
const CHAT_FIELDS: &[&str] = &["role", "content", "message"];

/// Names of fields that refer to context which precedes the body's first message but is stored at the server.
pub(super) const PRECEDING: [&str; 3] = ["previous_response_id", "conversation", "cachedContent"];

/// Returns whether a field of this name is the object that has the tools or the tool choice (Converse, Gemini).
pub(super) fn is_tool_config(name: &str) -> bool {
    matches!(name, "toolConfig" | "tool_config")
}

/// Returns the name in [`PARAMETERS`](super::chat::PARAMETERS) of the parameter that another format calls `name`;
/// `None` if no format calls a parameter so.
pub(super) fn parameter(name: &str) -> Option<&'static str> {
    match name {
        "text" => Some("response_format"),
        "reasoning" => Some("reasoning_effort"),
        "toolChoice" | "functionCallingConfig" => Some("tool_choice"),
        _ => None,
    }
}

/// A message or input item as JSON, with the values of the fields that [`Format::fields`] names, in that order; `None`
/// if absent or `null`.
pub(super) struct RawMessage<'a> {
    pub(super) raw: &'a str,
    pub(super) fields: [Option<&'a str>; MAX_FIELDS],
}

/// A message of the body, as interpreted by its [`Format`].
pub(super) struct Interpreted<'a> {
    pub(super) role: Role,
    /// The role's name, or the type of an input item that is no message, such as `function_call`; part of the hash that
    /// identifies the message ([`Chain`](super::found::Chain)).
    pub(super) role_name: Cow<'a, str>,
    /// The bytes of this message that enter the hash that identifies the chat, in addition to its role. Empty if the
    /// role alone identifies the message.
    pub(super) content: &'a str,
    pub(super) holds: Holds,
}

/// The parts of a message's content in which documents are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// Documents are searched in the content's texts and content parts, which this author wrote.
    Parts(Author),
    /// Each element of the content is a document: a passage that a search found.
    Passages,
    /// No documents are searched: the content is not read.
    Nothing,
}

impl<'a> Interpreted<'a> {
    /// Returns a message that may have documents where its role allows it (an assistant's message has none). A content
    /// of `None` counts as empty.
    pub(super) fn message(role_name: Cow<'a, str>, content: Option<&'a str>) -> Self {
        let role = Role::of(&role_name);
        Self {
            role,
            role_name,
            content: content.unwrap_or_default(),
            holds: match role {
                // Something like a document in the model's own message is its text, such as a file that it wrote.
                Role::Assistant => Holds::Nothing,
                Role::Tool => Holds::Parts(Author::Tool),
                _ => Holds::Parts(Author::Other),
            },
        }
    }

    /// Returns an input item that an engine or a tool wrote and that must be forwarded unchanged: no documents are
    /// searched in it.
    fn sealed(role: Role, kind: &'a str, content: &'a str) -> Self {
        Self {
            role,
            role_name: kind.into(),
            content,
            holds: Holds::Nothing,
        }
    }
}

/// Interprets a chat message of OpenAI, Anthropic, Converse or Cohere.
fn chat<'a>(body: &str, message: &RawMessage<'a>) -> Result<Interpreted<'a>, Skip> {
    let [role, content, message, ..] = message.fields;
    let role = text(body, role)?;
    let role = match role.as_ref() {
        "USER" => "user".into(),
        "CHATBOT" => "assistant".into(),
        _ => role,
    };
    Ok(Interpreted::message(role, content.or(message)))
}

/// Interprets an item of `input` in OpenAI's Responses API. Items of unknown types are forwarded unchanged.
fn item<'a>(body: &str, item: &RawMessage<'a>) -> Result<Interpreted<'a>, Skip> {
    let [kind, role, content, output, results, arguments, input, id] = item.fields;
    let kind = kind.and_then(inner).unwrap_or("message");
    Ok(match kind {
        // A message without a role refers to an item stored at the server.
        "message" if role.is_none() => {
            Interpreted::sealed(Role::Other, "item_reference", id.unwrap_or(item.raw))
        }
        "message" => Interpreted::message(text(body, role)?, content),
        "function_call_output" | "custom_tool_call_output" => {
            Interpreted::message("tool".into(), output)
        }
        "file_search_call" => Interpreted {
            role: Role::Tool,
            role_name: kind.into(),
            content: results.or(id).unwrap_or_default(),
            holds: Holds::Passages,
        },
        "function_call" => {
            Interpreted::sealed(Role::Assistant, kind, arguments.unwrap_or_default())
        }
        "custom_tool_call" => Interpreted::sealed(Role::Assistant, kind, input.unwrap_or_default()),
        "item_reference" => Interpreted::sealed(Role::Other, kind, id.unwrap_or_default()),
        "reasoning" => Interpreted::sealed(Role::Assistant, kind, item.raw),
        _ => Interpreted::sealed(Role::Other, kind, item.raw),
    })
}

/// Interprets an entry of Gemini's `contents`; an entry without a role is the user's.
fn content<'a>(body: &str, content: &RawMessage<'a>) -> Result<Interpreted<'a>, Skip> {
    let [role, parts, ..] = content.fields;
    let role = match role {
        Some(_) => text(body, role)?,
        None => "user".into(),
    };
    let mut said = Interpreted::message(
        match role.as_ref() {
            "model" => "assistant".into(),
            _ => role,
        },
        parts,
    );
    // In Gemini's format a tool's result is a part, whatever the entry's role.
    if said.role != Role::Assistant {
        said.holds = Holds::Parts(Author::Other);
    }
    Ok(said)
}

/// The JSON form of a text in a list of content parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PartStyle {
    /// Text parts have the form `{"type":"text","text":"…"}`: OpenAI chat, Anthropic, Cohere.
    #[default]
    Typed,
    /// Text parts have the form `{"type":"input_text","text":"…"}`: OpenAI Responses.
    Input,
    /// Text parts have the form `{"text":"…"}`: Gemini, Bedrock Converse.
    Bare,
}

impl PartStyle {
    /// Returns the JSON form of text parts in a list that has a part of this `type`, given as JSON; `kind` is `None` if
    /// the part has no type.
    pub(super) fn of(kind: Option<&str>) -> Self {
        match kind.and_then(inner) {
            None => Self::Bare,
            Some(kind) if kind.starts_with("input_") || kind.starts_with("output_") => Self::Input,
            Some(_) => Self::Typed,
        }
    }

    /// Returns the JSON with which a text part of this form begins, up to its text.
    pub(crate) fn open(self) -> &'static str {
        match self {
            Self::Typed => r#"{"type":"text","text":""#,
            Self::Input => r#"{"type":"input_text","text":""#,
            Self::Bare => r#"{"text":""#,
        }
    }

    /// Returns the JSON with which a text part of this form begins, up to its text, after a comma that separates it
    /// from the previous part.
    pub(crate) fn open_behind(self) -> &'static str {
        match self {
            Self::Typed => r#",{"type":"text","text":""#,
            Self::Input => r#",{"type":"input_text","text":""#,
            Self::Bare => r#",{"text":""#,
        }
    }

    /// All forms of a text part.
    pub(crate) const ALL: [Self; 3] = [Self::Typed, Self::Input, Self::Bare];
}

/// Returns the label of a `document` block of Bedrock's Converse API, empty if it has no name. `None` if the block has
/// no source, or must not move because citations are enabled: answers cite documents by index.
pub(super) fn converse_label(document: &str) -> Option<&str> {
    let [name, source, citations] = scan::fields(document, ["name", "source", "citations"]).ok()?;
    source?;
    let cites = citations
        .is_some_and(|citations| scan::fields(citations, ["enabled"]) != Ok([Some("false")]));
    (!cites).then(|| name.and_then(inner).unwrap_or_default())
}

/// Returns the label of a passage of `file_search_call.results`: its file's name, else the file's id, else an empty
/// text. `None` if the passage has no text. Passages may move, since answers cite files and not indices.
pub(super) fn passage_label(passage: &str) -> Option<&str> {
    if !passage.starts_with('{') {
        return None;
    }
    let [text, filename, file_id] = scan::fields(passage, ["text", "filename", "file_id"]).ok()?;
    text.and_then(inner)?;
    Some(filename.or(file_id).and_then(inner).unwrap_or_default())
}

/// Names of the fields whose texts are searched for documents if a tool's result is a JSON object.
pub(super) const TEXTS_OF_RESULT: [&str; 3] = ["result", "output", "content"];
