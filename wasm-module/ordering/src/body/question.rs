//! A chat's question and its `retrieval` field, as input to a retriever for chats that bring no documents.
//!
//! ```text
//!   {"messages": [ system, …, user: "Which one?" ], "tools": …, "retrieval": {…}}
//!                   opening          text                        field, cut out of the forwarded body
//! ```

use super::json::{elements, fields, inner, range_in};
use super::search::{find_last, pass_space, trimmed_ascii, trimmed_ascii_end, trimmed_json};
use super::{Parsed, Role, Skip, unescaped};
use std::borrow::Cow;
use std::ops::Range;

/// The input to a retriever for a chat whose request contains no documents: the user's question, and the beginning of
/// the chat's prompt.
#[derive(Debug)]
pub struct Question<'a> {
    /// The text of the last user message that is not a tool's result, with its parts on separate lines. `None` if there
    /// is no such message, or its text is blank.
    pub text: Option<Cow<'a, str>>,
    /// The beginning of the prompt, which the engine can prefill before documents are found.
    pub opening: Opening<'a>,
}

/// The beginning of a chat's prompt, as JSON. Empty unless the body's messages are in the field `messages`.
#[derive(Debug, Default)]
pub struct Opening<'a> {
    /// The JSON of the system messages before all other messages; empty if there is nothing to prefill.
    pub messages: Vec<Cow<'a, str>>,
    /// Those of the body's fields `model`, `tools` and `cache_salt` that are present, each with its name and its value
    /// as JSON. The prompt, or the cached KV state that it may reuse, depends on them.
    pub fields: Vec<(&'static str, &'a str)>,
}

impl<'a> Parsed<'a> {
    /// Returns the JSON of the body's field `retrieval`, the client's instructions on finding documents; `None` if
    /// absent.
    #[must_use]
    pub fn retrieval(&self) -> Option<&'a str> {
        self.retrieval
    }

    /// Returns the range of the field `retrieval` in the body, with the comma beside it, for its removal before the
    /// body is forwarded; `None` if absent.
    #[must_use]
    pub fn place_of_retrieval(&self) -> Option<Range<usize>> {
        place_of_field(self.text, self.retrieval?)
    }
}

/// Returns the question of a parsed chat and the beginning of its prompt, as input to a retriever.
///
/// # Errors
/// Returns [`Skip::InvalidJson`] if the question or the beginning cannot be read from the body.
pub fn question<'a>(parsed: &Parsed<'a>) -> Result<Question<'a>, Skip> {
    let body = parsed.text;
    let text = match parsed.writable().and_then(|at| parsed.messages.get(at)) {
        Some(message) => text_in(body, message.content)?,
        None => Cow::Borrowed(""),
    };
    // The request that prefills the opening is a chat completion.
    let opening = match parsed.is_chat {
        true => opening(parsed)?,
        false => Opening::default(),
    };
    Ok(Question {
        text: (!trimmed_ascii(&text).is_empty()).then_some(text),
        opening,
    })
}

fn opening<'a>(parsed: &Parsed<'a>) -> Result<Opening<'a>, Skip> {
    let body = parsed.text;
    let names = ["model", "tools", "cache_salt"];
    let values = fields(body, trimmed_json(body), names)?;
    let opens = (parsed.messages.iter()).take_while(|message| message.role == Role::System);
    let messages = opens.map(|message| match message.raw == message.content {
        // Anthropic's system text is a field instead of a message.
        true => Cow::Owned(format!(
            r#"{{"role":"system","content":{}}}"#,
            message.content
        )),
        false => Cow::Borrowed(message.raw),
    });
    let values = names.into_iter().zip(values);
    Ok(Opening {
        messages: messages.collect(),
        fields: values
            .filter_map(|(name, value)| Some((name, value?)))
            .collect(),
    })
}

/// Returns the unescaped text of a message's content, with its parts on separate lines. Returns an error if the content
/// is neither a string nor a list.
fn text_in<'a>(body: &str, content: &'a str) -> Result<Cow<'a, str>, Skip> {
    if let Some(text) = inner(content) {
        return Ok(unescaped(text));
    }
    let mut all = String::new();
    for part in elements(body, content)? {
        let text = match inner(part) {
            Some(text) => Some(text),
            None if part.starts_with('{') => {
                let [text] = fields(body, part, ["text"])?;
                text.and_then(inner)
            }
            None => None,
        };
        if let Some(text) = text {
            if !all.is_empty() {
                all.push('\n');
            }
            all.push_str(&unescaped(text));
        }
    }
    Ok(Cow::Owned(all))
}

/// Returns the range in `body` of the field with this value (a substring of `body`), with the comma that would be left
/// over without the field. `None` if no field's name precedes the value.
fn place_of_field(body: &str, value: &str) -> Option<Range<usize>> {
    let value = range_in(body, value);
    let name = trimmed_ascii_end(body.get(..value.start)?).strip_suffix(':')?;
    let name = trimmed_ascii_end(name).strip_suffix('"')?;
    // A name contains no unescaped quote, so the last quote opens it.
    let start = find_last(name, b'"')?;
    let behind = pass_space(body, value.end);
    if body.as_bytes().get(behind) == Some(&b',') {
        return Some(start..pass_space(body, behind + 1));
    }
    let before = trimmed_ascii_end(body.get(..start)?);
    let start = before.strip_suffix(',').map_or(start, str::len);
    Some(start..value.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(body: &str) -> Parsed<'_> {
        super::super::parse(body.as_bytes(), &Config::default()).unwrap()
    }

    fn asked(body: &str) -> Question<'_> {
        question(&read(body)).unwrap()
    }

    #[test]
    fn the_question_is_the_last_user_messages_text() {
        let text = |messages: &str| {
            let body = format!(r#"{{"messages": {messages}}}"#);
            asked(&body).text.map(Cow::into_owned)
        };
        assert_eq!(
            text(
                r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c\n\u0041\""}, {"role": "tool", "content": "d"}]"#
            ),
            Some("c\nA\"".to_owned())
        );
        let parts = r#"[{"type": "text", "text": "a"}, {"type": "image_url"}, "b", 7]"#;
        assert_eq!(
            text(&format!(r#"[{{"role": "user", "content": {parts}}}]"#)),
            Some("a\nb".to_owned())
        );
        for nothing in [
            "[]",
            r#"[{"role": "user", "content": " \n"}]"#,
            r#"[{"role": "user", "content": []}]"#,
            r#"[{"role": "user", "content": null}]"#,
            r#"[{"role": "system", "content": "a"}]"#,
        ] {
            assert_eq!(text(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn a_chat_with_documents_says_so_wherever_they_stand() {
        for (body, has_documents) in [
            (
                r#"{"messages": [{"role": "user", "content": "<doc id=\"a\">b</doc>"}, {"role": "user", "content": "c"}]}"#,
                true,
            ),
            (
                r#"{"messages": [{"role": "user", "content": "c"}], "documents": ["a"]}"#,
                true,
            ),
            (
                r#"{"messages": [{"role": "user", "content": "c"}], "documents": []}"#,
                false,
            ),
            (
                r#"{"messages": [{"role": "user", "content": "c"}], "documents": null}"#,
                false,
            ),
        ] {
            assert_eq!(read(body).has_documents(), has_documents, "{body}");
        }
    }

    #[test]
    fn the_field_is_cut_out_and_every_other_byte_stays() {
        for (body, field, rest) in [
            (r#"{"retrieval": false}"#, "false", "{}"),
            (
                r#"{ "retrieval" :{"k": 2} , "a": 1}"#,
                r#"{"k": 2}"#,
                r#"{ "a": 1}"#,
            ),
            (r#"{"a": 1 , "retrieval": true }"#, "true", r#"{"a": 1  }"#),
            (
                r#"{"a": 1, "retr\u0069eval": null, "b": 2}"#,
                "null",
                r#"{"a": 1, "b": 2}"#,
            ),
            (
                r#"{"a": {"retrieval": 1}, "retrieval": 2}"#,
                "2",
                r#"{"a": {"retrieval": 1}}"#,
            ),
        ] {
            let parsed = read(body);
            assert_eq!(parsed.retrieval(), Some(field), "{body}");
            let mut cut = body.to_owned();
            cut.replace_range(parsed.place_of_retrieval().unwrap(), "");
            assert_eq!(cut, rest);
        }
        assert_eq!(read("{}").place_of_retrieval(), None);
    }

    #[test]
    fn a_prompts_opening_ends_where_somebody_speaks() {
        let body = r#"{"model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"},
            {"role": "user", "content": "u"}, {"role": "system", "content": "late"}], "tools": [1], "cache_salt": "x"}"#;
        let opening = asked(body).opening;
        assert_eq!(
            opening.messages,
            [
                r#"{"role": "system", "content": "s"}"#,
                r#"{"role": "developer", "content": "d"}"#
            ]
        );
        assert_eq!(
            opening.fields,
            [
                ("model", r#""m""#),
                ("tools", "[1]"),
                ("cache_salt", r#""x""#)
            ]
        );
        let anthropic = asked(r#"{"system": "s", "messages": [{"role": "user", "content": "u"}]}"#);
        assert_eq!(
            anthropic.opening.messages,
            [r#"{"role":"system","content":"s"}"#]
        );
    }
}
