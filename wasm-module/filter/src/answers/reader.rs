//! Reads a model's answer from a response of OpenAI's chat API, in JSON or in a stream of events.

use std::borrow::Cow;

use serde::Deserialize;

use super::{Answer, Answers, AtMost, ChatKey, MAX_CALLS, Reasoning, ReasoningField};
use crate::host::{Host, HostError};

/// Collects the first choice of a response to a chat request, to be stored when the response has ended.
#[derive(Debug)]
pub(crate) struct AnswerReader {
    chat: ChatKey,
    form: Form,
    /// Bytes not yet parsed: of a JSON response, all so far; of a stream of events, those of the current line.
    buffer: Vec<u8>,
    written: Written,
    /// True if the answer has one of the `finish_reason`s in [`ENDS`].
    is_complete: bool,
    /// True if the whole response was read; for a stream of events, up to its `[DONE]`.
    is_done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Unknown,
    Json,
    Events,
    /// The response is too long, is not a chat completion, or its answer was cut off; nothing more is read.
    Other,
}

/// The part of the model's answer that was read from the response so far.
#[derive(Debug, Default)]
struct Written {
    /// Bytes of text added to the other fields so far. An answer of more than [`MAX_BYTES`] bytes is not stored.
    bytes: usize,
    content: String,
    reasoning: Option<Reasoning>,
    calls: Vec<WrittenCall>,
}

#[derive(Debug, Default)]
struct WrittenCall {
    id: String,
    name: String,
    arguments: String,
}

/// The fields read from a JSON response, or from one event of a stream.
#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow)]
    choices: AtMost<Choice<'a>, MAX_CALLS>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: usize,
    #[serde(borrow, alias = "message")]
    delta: Option<Delta<'a>>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow)]
    reasoning: Option<Cow<'a, str>>,
    #[serde(borrow)]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(borrow)]
    tool_calls: Option<AtMost<CallDelta<'a>, MAX_CALLS>>,
}

#[derive(Deserialize)]
struct CallDelta<'a> {
    index: Option<usize>,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    function: Option<FunctionDelta<'a>>,
}

#[derive(Deserialize)]
struct FunctionDelta<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    arguments: Option<Cow<'a, str>>,
}

impl AnswerReader {
    /// Returns a reader for the answer to the request whose chat is `chat`.
    pub(crate) fn new(chat: ChatKey) -> Self {
        Self {
            chat,
            form: Form::Unknown,
            buffer: Vec::new(),
            written: Written::default(),
            is_complete: false,
            is_done: false,
        }
    }

    /// Returns whether nothing more needs to be read: a stream has ended, or the response has no answer that can be
    /// stored.
    pub(crate) fn is_over(&self) -> bool {
        self.is_done || self.form == Form::Other
    }

    /// Reads the next chunk of the response's body.
    pub(crate) fn take(&mut self, chunk: &[u8]) {
        if self.form == Form::Unknown {
            self.form = match chunk.trim_ascii_start().first() {
                None => return,
                Some(b'{') => Form::Json,
                Some(_) => Form::Events,
            };
        }
        match self.form {
            Form::Events => {
                for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
                    self.append(piece);
                    if piece.ends_with(b"\n") {
                        let line = std::mem::take(&mut self.buffer);
                        self.line(&line);
                    }
                }
            }
            Form::Json => self.append(chunk),
            Form::Unknown | Form::Other => {}
        }
    }

    /// Stores the answer if it is complete, and returns whether it was stored. Called when the response has ended or
    /// [`Self::is_over`] is true.
    pub(crate) fn keep(mut self, host: &impl Host, answers: &Answers) -> Result<bool, HostError> {
        if self.form == Form::Json {
            let body = std::mem::take(&mut self.buffer);
            self.read(&body);
            self.is_done = true;
        }
        if self.form == Form::Other || !self.is_complete || !self.is_done {
            return Ok(false);
        }
        let Written {
            content,
            reasoning,
            calls,
            ..
        } = self.written;
        let names = calls.iter().map(|call| [&*call.id, &*call.name]);
        let key = self.chat.answer(&content, names);
        let answer = Answer {
            reasoning: reasoning.filter(|_| answers.keeps_reasoning),
            arguments: calls.into_iter().map(|call| call.arguments).collect(),
        };
        answers.keep(host, &self.chat, key, answer)
    }

    fn append(&mut self, bytes: &[u8]) {
        if self.form == Form::Other {
            return;
        }
        if self.buffer.len().saturating_add(bytes.len()) > MAX_BYTES {
            return self.give_up();
        }
        self.buffer.extend_from_slice(bytes);
    }

    fn give_up(&mut self) {
        self.form = Form::Other;
        self.buffer = Vec::new();
        self.written = Written::default();
    }

    /// Reads one line of a stream of events.
    fn line(&mut self, line: &[u8]) {
        if let Some(data) = line.strip_prefix(b"data:") {
            let data = data.trim_ascii();
            match data {
                b"[DONE]" => self.is_done = true,
                _ => self.read(data),
            }
        }
    }

    fn read(&mut self, json: &[u8]) {
        let Ok(response) = serde_json::from_slice::<Response<'_>>(json) else {
            return self.give_up();
        };
        for choice in response
            .choices
            .0
            .into_iter()
            .filter(|choice| choice.index == 0)
        {
            let is_ended = choice
                .finish_reason
                .as_deref()
                .map(|reason| ENDS.contains(&reason));
            self.is_complete |= is_ended == Some(true);
            let is_read = choice.delta.is_none_or(|delta| self.written.add(delta));
            // Nothing is stored of an answer that was cut off.
            if !is_read || is_ended == Some(false) {
                return self.give_up();
            }
        }
    }
}

impl Written {
    /// Adds a piece of the model's answer, from one event or a whole response. Returns false if the answer is too long,
    /// or a tool call's index skips one.
    fn add(&mut self, delta: Delta<'_>) -> bool {
        append(&mut self.content, delta.content, &mut self.bytes);
        let thoughts = [
            (ReasoningField::Reasoning, delta.reasoning),
            (ReasoningField::ReasoningContent, delta.reasoning_content),
        ];
        // Only the first of the two is read: vLLM writes the same text into both fields.
        let thought = (thoughts.into_iter())
            .find_map(|(field, text)| Some((field, text.filter(|text| !text.is_empty())?)));
        if let Some((field, text)) = thought {
            let reasoning = self.reasoning.get_or_insert(Reasoning {
                field,
                text: String::new(),
            });
            append(&mut reasoning.text, Some(text), &mut self.bytes);
        }
        for (at, call) in delta
            .tool_calls
            .into_iter()
            .flat_map(|calls| calls.0)
            .enumerate()
        {
            let at = call.index.unwrap_or(at);
            if at > self.calls.len() || at >= MAX_CALLS {
                return false;
            }
            if at == self.calls.len() {
                self.calls.push(WrittenCall::default());
            }
            let Some(known) = self.calls.get_mut(at) else {
                return false;
            };
            if let Some(id) = call.id.filter(|id| !id.is_empty()) {
                self.bytes = self.bytes.saturating_add(id.len());
                known.id = id.into_owned();
            }
            if let Some(function) = call.function {
                append(&mut known.name, function.name, &mut self.bytes);
                append(&mut known.arguments, function.arguments, &mut self.bytes);
            }
        }
        self.bytes <= MAX_BYTES
    }
}

fn append(to: &mut String, text: Option<Cow<'_, str>>, bytes: &mut usize) {
    let text = text.unwrap_or_default();
    *bytes = bytes.saturating_add(text.len());
    to.push_str(&text);
}

/// The `finish_reason`s of a response whose answer was not cut off.
const ENDS: [&str; 3] = ["stop", "tool_calls", "function_call"];
/// The maximum number of bytes of a JSON response, of one line of a stream of events, and of the answer collected from
/// a stream.
const MAX_BYTES: usize = 256 << 10;
