//! Formats an answer for the API of its request: as one object, or as the events of a stream.
//!
//! ```text
//!   Answer ── Piece ──▶ Shape ─┬─ OpenAi     chat and text completions      chunks, `[DONE]`
//!                              ├─ Responses  items                          named events, numbered
//!                              └─ Messages   content blocks                 named events
//! ```
//!
//! A shape receives the pieces in order, and remembers what the last events repeat. It knows nothing of the engine.

use super::dialect::{Envelope, Whole};
use super::messages::MessagesShape;
use super::responses::ResponsesShape;
use crate::answer::{Piece, PromptToken, Usage};
use crate::failure::Failure;
use axum::response::sse::Event;
use foreword_engine::text::Part;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// Formats an answer for the API of its request.
pub(super) enum Shape {
    OpenAi(OpenAi),
    Responses(Box<ResponsesShape>),
    Messages(MessagesShape),
}

impl Shape {
    /// Returns the events that begin a stream, before the first piece of the answer.
    pub(super) fn opening(&mut self) -> Vec<Event> {
        match self {
            Self::OpenAi(_) | Self::Messages(_) => Vec::new(),
            Self::Responses(shape) => shape.opening(),
        }
    }

    /// Returns the events for the next piece of the answer. `usage` has the token counts so far.
    pub(super) fn piece(&mut self, piece: Piece, usage: Usage) -> Vec<Event> {
        match self {
            Self::OpenAi(shape) => shape.piece(&piece),
            Self::Responses(shape) => shape.piece(piece),
            Self::Messages(shape) => shape.piece(piece, usage),
        }
    }

    /// Returns the events that end the stream of a complete answer. `usage` has its token counts.
    pub(super) fn finish(&mut self, usage: Usage) -> Vec<Event> {
        match self {
            Self::OpenAi(shape) => shape.finish(usage),
            Self::Responses(shape) => shape.finish(usage),
            Self::Messages(shape) => shape.finish(usage),
        }
    }

    /// Returns the event that ends a stream if the generation fails. `usage` has the token counts so far.
    pub(super) fn failure(&mut self, failure: &Failure, usage: Usage) -> Event {
        match self {
            Self::OpenAi(_) => Event::default().data(failure.body().to_string()),
            Self::Responses(shape) => shape.failure(failure, usage),
            Self::Messages(_) => super::messages::failure_event(failure),
        }
    }

    /// Adds the next piece of an answer that is delivered as one object.
    pub(super) fn take(&mut self, piece: Piece) {
        match self {
            Self::OpenAi(shape) => shape.take(piece),
            Self::Responses(shape) => drop(shape.piece(piece)),
            Self::Messages(shape) => drop(shape.piece(piece, Usage::default())),
        }
    }

    /// Returns the complete answer as one object. `usage` has its token counts, and `prompt` the prompt's
    /// log-probabilities if they were requested.
    pub(super) fn whole(&mut self, usage: Usage, prompt: Option<&[PromptToken]>) -> Box<RawValue> {
        let whole = match self {
            Self::OpenAi(shape) => {
                let choices = std::mem::take(&mut shape.choices);
                shape.envelope.whole(choices, usage, prompt)
            }
            Self::Responses(shape) => return shape.whole(usage),
            Self::Messages(shape) => shape.whole(usage),
        };
        to_raw_value(&whole).unwrap_or_default()
    }
}

/// Formats the answers of OpenAI's chat and text completions.
pub(super) struct OpenAi {
    envelope: Envelope,
    logprobs: bool,
    include_usage: bool,
    /// The choices so far, if the answer is delivered as one object.
    choices: Vec<Whole>,
    /// For each choice of a streamed answer, whether its first event was sent.
    opened: Vec<bool>,
    /// For each choice of a streamed answer, the number of tool calls sent.
    calls: Vec<usize>,
}

impl OpenAi {
    pub(super) fn new(
        envelope: Envelope,
        choices: usize,
        logprobs: bool,
        include_usage: bool,
    ) -> Self {
        let mut whole = Vec::new();
        whole.resize_with(choices, || Whole {
            logprobs: logprobs.then(Vec::new),
            ..Whole::default()
        });
        Self {
            envelope,
            logprobs,
            include_usage,
            choices: whole,
            opened: vec![false; choices],
            calls: vec![0; choices],
        }
    }

    fn piece(&mut self, piece: &Piece) -> Vec<Event> {
        let (index, envelope) = (piece.choice, &self.envelope);
        let mut chunks = Vec::new();
        if !std::mem::replace(&mut self.opened[index], true) {
            chunks.extend(envelope.opening(index));
        }
        // The first chunk of a piece has the log-probabilities of all its tokens.
        let mut tokens = Some(&*piece.logprobs).filter(|_| self.logprobs);
        for part in &piece.parts {
            chunks.push(match part {
                Part::Text(text) => envelope.text(index, text, tokens),
                Part::Call(call) => {
                    self.calls[index] += 1;
                    envelope.call(index, self.calls[index] - 1, call, tokens)
                }
            });
            tokens = tokens.map(|_| &[][..]);
        }
        if tokens.is_some_and(|tokens| !tokens.is_empty()) {
            chunks.push(envelope.text(index, "", tokens));
        }
        chunks.extend(piece.end.map(|end| envelope.end(index, end)));
        chunks.into_iter().map(|chunk| self.dress(chunk)).collect()
    }

    fn finish(&self, usage: Usage) -> Vec<Event> {
        let usage = self
            .include_usage
            .then(|| self.dress(self.envelope.usage(usage)));
        let done = Event::default().data("[DONE]");
        usage.into_iter().chain([done]).collect()
    }

    /// Returns a chunk as an event, with a null `usage` as in OpenAI's API if the last chunk will report the token
    /// counts.
    fn dress(&self, mut chunk: Value) -> Event {
        if self.include_usage
            && let Some(chunk) = chunk.as_object_mut()
        {
            chunk.entry("usage").or_insert(Value::Null);
        }
        Event::default().data(chunk.to_string())
    }

    fn take(&mut self, piece: Piece) {
        let choice = &mut self.choices[piece.choice];
        for part in piece.parts {
            match part {
                Part::Text(text) => choice.text.push_str(&text),
                Part::Call(call) => choice.calls.push(call),
            }
        }
        if let Some(logprobs) = &mut choice.logprobs {
            logprobs.extend(piece.logprobs);
        }
        choice.end = piece.end;
    }
}
