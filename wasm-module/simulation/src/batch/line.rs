//! A line of a batch, and the line of its answer, in OpenAI's format.
//!
//! ```text
//!   {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {…}}
//!   {"id": "batch_req_…", "custom_id": "1", "response": {"status_code": 200, "request_id": …, "body": {…}}, "error": null}
//! ```
//!
//! Errors name fields and limits, never a value of the body.

use crate::lines::without_byte_order_mark;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// A request of a batch.
#[derive(Debug)]
pub struct RequestLine<'a> {
    /// The client's id of the request, unique in its batch.
    pub custom_id: String,
    /// The route requested.
    pub url: String,
    /// The body for the route.
    pub body: &'a str,
}

/// Why a line is not a request of a batch, or not an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LineError(String);

impl LineError {
    pub(super) fn too_long(limit: u64) -> Self {
        Self(format!("the line has more than {limit} bytes"))
    }

    fn not_an_object(column: usize) -> Self {
        Self(format!("not a JSON object: error at column {column}"))
    }
}

/// Most bytes of a `custom_id`.
pub const MAX_ID_BYTES: usize = 512;

/// The routes of OpenAI's batches.
pub const URLS: [&str; 4] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
];

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default)]
    custom_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<&'a RawValue>,
    #[serde(borrow, default)]
    url: Option<&'a RawValue>,
    #[serde(borrow, default)]
    body: Option<&'a RawValue>,
}

/// The fields of a body that determine how it is answered and which requests share its prompt's beginning.
#[derive(Deserialize)]
struct BodyFields<'a> {
    #[serde(borrow, default)]
    stream: Option<&'a RawValue>,
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tools: Option<&'a RawValue>,
    #[serde(borrow, default)]
    instructions: Option<&'a RawValue>,
    #[serde(borrow, default)]
    messages: Option<&'a RawValue>,
}

impl<'a> RequestLine<'a> {
    /// Parses a line; `urls` are the accepted routes.
    ///
    /// # Errors
    /// Returns a [`LineError`] that names the field.
    pub fn parse(line: &'a [u8], urls: &[&str]) -> Result<Self, LineError> {
        let fields: Fields<'a> = object(without_byte_order_mark(line))?;
        let custom_id = text(fields.custom_id).filter(|id| !id.is_empty());
        let custom_id =
            custom_id.ok_or_else(|| field("custom_id", "a string that is not empty"))?;
        if custom_id.len() > MAX_ID_BYTES {
            return Err(LineError(format!(
                "`custom_id` has {} bytes, more than the limit of {MAX_ID_BYTES}",
                custom_id.len()
            )));
        }
        if text(fields.method).as_deref() != Some("POST") {
            return Err(field("method", "\"POST\""));
        }
        let url = text(fields.url).ok_or_else(|| field("url", "a string"))?;
        if !urls.contains(&url.as_str()) {
            let found: String = url.chars().take(SHOWN).collect();
            let expected = urls.join(" or ");
            return Err(LineError(format!(
                "`url` must be {expected}, not {found:?}"
            )));
        }
        let body = fields.body.ok_or_else(|| field("body", "an object"))?.get();
        if !body.starts_with('{') {
            return Err(field("body", "an object"));
        }
        let Some(BodyFields { stream, .. }) = BodyFields::of(body) else {
            return Err(field("body", "an object that names no field twice"));
        };
        if stream.is_some_and(|stream| !matches!(stream.get(), "false" | "null")) {
            return Err(field(
                "body.stream",
                "false or absent: a batch's answers are not streamed",
            ));
        }
        Ok(Self {
            custom_id,
            url,
            body,
        })
    }

    /// Returns the route and the parts of the body at the beginning of its prompt: model, tools, instructions and the
    /// first of several messages; empty for an absent one. Requests with equal parts are sent one after another.
    pub(super) fn head(&self) -> [Cow<'a, str>; 5] {
        let mut head = [const { Cow::Borrowed("") }; 5];
        let Some(fields) = BodyFields::of(self.body) else {
            return head;
        };
        let raw = |value: Option<&'a RawValue>| Cow::Borrowed(value.map_or("", RawValue::get));
        let messages = fields.messages.map(RawValue::get);
        let messages: Vec<&'a RawValue> =
            (messages.and_then(|messages| serde_json::from_str(messages).ok())).unwrap_or_default();
        let first = match messages.as_slice() {
            [first, _, ..] => raw(Some(first)),
            _ => Cow::Borrowed(""),
        };
        head = [
            Cow::Owned(self.url.clone()),
            raw(fields.model),
            raw(fields.tools),
            raw(fields.instructions),
            first,
        ];
        head
    }
}

impl<'a> BodyFields<'a> {
    fn of(body: &'a str) -> Option<Self> {
        serde_json::from_str(body).ok()
    }
}

/// An answer's token counts, from its `usage`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Prompt tokens that the engine had cached.
    pub cached_tokens: u64,
    /// Tokens of the answer.
    pub completion_tokens: u64,
}

/// An answer's line in a batch's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerLine {
    /// The client's id of the request.
    pub custom_id: String,
    /// The response's status; `None` if there was no response.
    pub status: Option<u16>,
    /// The answer's token counts.
    pub usage: BatchUsage,
}

#[derive(Deserialize)]
struct AnswerFields<'a> {
    #[serde(borrow)]
    custom_id: &'a RawValue,
    #[serde(borrow, default)]
    response: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ResponseFields<'a> {
    status_code: u16,
    #[serde(borrow, default)]
    body: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Usage {
    #[serde(alias = "input_tokens")]
    prompt_tokens: Option<u64>,
    #[serde(alias = "output_tokens")]
    completion_tokens: Option<u64>,
    #[serde(alias = "input_tokens_details")]
    prompt_tokens_details: Option<Details>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    cached_tokens: Option<u64>,
}

impl BatchUsage {
    /// Returns the token counts in an answer's body; zeros if it has none.
    #[must_use]
    pub fn of(body: &str) -> Self {
        let body: Option<Body> = serde_json::from_str(body).ok();
        let usage = body.and_then(|body| body.usage).unwrap_or_default();
        let details = usage.prompt_tokens_details.unwrap_or_default();
        Self {
            prompt_tokens: usage.prompt_tokens.unwrap_or_default(),
            cached_tokens: details.cached_tokens.unwrap_or_default(),
            completion_tokens: usage.completion_tokens.unwrap_or_default(),
        }
    }

    /// Adds another answer's counts.
    pub fn add(&mut self, other: Self) {
        self.prompt_tokens = self.prompt_tokens.saturating_add(other.prompt_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
        self.completion_tokens = (self.completion_tokens).saturating_add(other.completion_tokens);
    }
}

impl AnswerLine {
    /// Parses an answer's line, as written by [`answer_line`].
    ///
    /// # Errors
    /// Returns a [`LineError`] if it is not such a line.
    pub fn parse(line: &[u8]) -> Result<Self, LineError> {
        let fields: AnswerFields<'_> = object(line)?;
        let custom_id =
            text(Some(fields.custom_id)).ok_or_else(|| field("custom_id", "a string"))?;
        let response = match fields.response.map(RawValue::get) {
            None | Some("null") => None,
            Some(response) => Some(
                serde_json::from_str::<ResponseFields<'_>>(response)
                    .map_err(|_| field("response", "an object with a `status_code`, or null"))?,
            ),
        };
        let body = response.as_ref().and_then(|response| response.body);
        Ok(Self {
            custom_id,
            status: response.as_ref().map(|response| response.status_code),
            usage: body.map_or_else(BatchUsage::default, |body| BatchUsage::of(body.get())),
        })
    }

    /// Returns whether the request was served.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.status.is_some_and(|status| status / 100 == 2)
    }
}

/// The outcome of a request of a batch.
#[derive(Clone, Copy, Debug)]
pub enum BatchAnswer<'a> {
    /// The endpoint responded.
    Response {
        /// The response's status.
        status: u16,
        /// The endpoint's request id; empty if there is none.
        request_id: &'a str,
        /// The response's body. If it is not JSON, it is written as a string.
        body: &'a [u8],
    },
    /// There was no response.
    Error {
        /// The cause in one word.
        code: &'a str,
        /// The cause.
        message: &'a str,
    },
}

/// Returns the output line for an answer, with its line break. `id` must be unique in the batch.
#[must_use]
pub fn answer_line(id: &str, custom_id: &str, answer: BatchAnswer<'_>) -> Vec<u8> {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut line = format!(
        "{{\"id\":{},\"custom_id\":{}",
        quoted(id),
        quoted(custom_id)
    );
    match answer {
        BatchAnswer::Response {
            status,
            request_id,
            body,
        } => {
            line += &format!(
                ",\"response\":{{\"status_code\":{status},\"request_id\":{},\"body\":",
                quoted(request_id)
            );
            match std::str::from_utf8(body) {
                Ok(json) if serde_json::from_str::<&RawValue>(json).is_ok() => {
                    // Line breaks in JSON strings are escaped, so these are white space.
                    line.extend(json.trim().chars().map(|character| match character {
                        '\n' | '\r' => ' ',
                        other => other,
                    }));
                }
                _ => line += &quoted(&String::from_utf8_lossy(body)),
            }
            line += "},\"error\":null}\n";
        }
        BatchAnswer::Error { code, message } => {
            line += &format!(
                ",\"response\":null,\"error\":{{\"code\":{},\"message\":{}}}}}\n",
                quoted(code),
                quoted(message)
            );
        }
    }
    line.into_bytes()
}

fn object<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, LineError> {
    let line = line.trim_ascii();
    if !line.starts_with(b"{") {
        return Err(LineError::not_an_object(1));
    }
    serde_json::from_slice(line).map_err(|error| LineError::not_an_object(error.column().max(1)))
}

fn text(value: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(value?.get()).ok()
}

fn field(field: &str, expected: &str) -> LineError {
    LineError(format!("`{field}` must be {expected}"))
}

/// Most characters of a route in an error.
const SHOWN: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        let error = RequestLine::parse(line.as_bytes(), &URLS).unwrap_err();
        error.to_string()
    }

    #[test]
    fn a_request_is_read_with_its_body_as_it_stands() {
        let line = br#" {"custom_id":"a\u0062","method":"POST","url":"/v1/embeddings","body":{"input": [1.0e3]},"more":1}
"#;
        let request = RequestLine::parse(line, &URLS).unwrap();
        assert_eq!(
            (request.custom_id.as_str(), request.url.as_str()),
            ("ab", "/v1/embeddings")
        );
        assert_eq!(request.body, r#"{"input": [1.0e3]}"#);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_field_and_limit_and_no_word_of_the_body() {
        assert_eq!(refused("[1]"), "not a JSON object: error at column 1");
        assert_eq!(
            refused(r#"{"custom_id":"1","body":{"secret":}}"#),
            "not a JSON object: error at column 35"
        );
        for (line, words) in [
            (
                r#"{"method":"POST"}"#,
                "`custom_id` must be a string that is not empty",
            ),
            (
                r#"{"custom_id":7}"#,
                "`custom_id` must be a string that is not empty",
            ),
            (
                r#"{"custom_id":""}"#,
                "`custom_id` must be a string that is not empty",
            ),
            (
                r#"{"custom_id":"1","method":"GET"}"#,
                "`method` must be \"POST\"",
            ),
            (
                r#"{"custom_id":"1","method":"POST"}"#,
                "`url` must be a string",
            ),
            (
                r#"{"custom_id":"1","method":"POST","url":"/v1/x"}"#,
                "`url` must be /v1/chat/completions or /v1/completions or /v1/embeddings or /v1/responses, not \"/v1/x\"",
            ),
            (
                r#"{"custom_id":"1","method":"POST","url":"/v1/completions"}"#,
                "`body` must be an object",
            ),
            (
                r#"{"custom_id":"1","method":"POST","url":"/v1/completions","body":"secret"}"#,
                "`body` must be an object",
            ),
            (
                r#"{"custom_id":"1","method":"POST","url":"/v1/completions","body":{"stream":true}}"#,
                "`body.stream` must be false or absent: a batch's answers are not streamed",
            ),
            (
                r#"{"custom_id":"1","method":"POST","url":"/v1/completions","body":{"model":1,"model":1,"stream":true}}"#,
                "`body` must be an object that names no field twice",
            ),
        ] {
            assert_eq!(refused(line), words, "{line}");
        }
        let long = "x".repeat(513);
        assert_eq!(
            refused(&format!(r#"{{"custom_id":"{long}"}}"#)),
            "`custom_id` has 513 bytes, more than the limit of 512"
        );
    }

    #[test]
    fn an_answer_stands_on_one_line_and_is_read_again() {
        let body = "{\r\n \"text\": \"a\\nb\",\n \"usage\": {\"prompt_tokens\": 9, \"completion_tokens\": 2, \"prompt_tokens_details\": {\"cached_tokens\": 4}}}\n";
        let line = answer_line(
            "r\"1",
            "a\n",
            BatchAnswer::Response {
                status: 200,
                request_id: "x",
                body: body.as_bytes(),
            },
        );
        assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
        let read = AnswerLine::parse(&line).unwrap();
        let usage = BatchUsage {
            prompt_tokens: 9,
            cached_tokens: 4,
            completion_tokens: 2,
        };
        assert_eq!(
            (read.custom_id.as_str(), read.usage, read.is_served()),
            ("a\n", usage, true)
        );
        let whole: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(
            whole.pointer("/response/body/text").unwrap(),
            &serde_json::json!("a\nb")
        );

        let failed = BatchAnswer::Error {
            code: "c",
            message: "m",
        };
        let read = AnswerLine::parse(&answer_line("1", "2", failed)).unwrap();
        assert_eq!((read.status, read.is_served()), (None, false));
        let page = BatchAnswer::Response {
            status: 502,
            request_id: "",
            body: b"<html>\n\xff",
        };
        let read = AnswerLine::parse(&answer_line("1", "2", page)).unwrap();
        assert_eq!((read.status, read.is_served()), (Some(502), false));
    }

    #[test]
    fn the_counts_of_responses_are_read_too() {
        let body = r#"{"usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 2}}"#;
        let usage = BatchUsage::of(body);
        assert_eq!(
            (
                usage.prompt_tokens,
                usage.cached_tokens,
                usage.completion_tokens
            ),
            (9, 4, 2)
        );
        assert_eq!(BatchUsage::of("7"), BatchUsage::default());
    }
}
