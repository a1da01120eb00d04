//! The APIs that generate text, and the response objects of OpenAI's chat and text completions.

use super::logprobs;
use crate::answer::{End, PromptToken, Scored, Usage};
use crate::ids::now;
use crate::request::{anthropic, responses};
use foreword_engine::text::ToolCall;
use serde_json::{Value, json};
use std::hash::{BuildHasher, RandomState};

/// OpenAI's two completion routes, for chats and for texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Chat,
    Completion,
}

/// The API whose format a generation request and its answer have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    OpenAi(Dialect),
    Responses,
    Messages,
}

impl Api {
    /// Returns pairs of names for the same field, in a chat request and in this API, for the fields whose names differ.
    pub(super) fn names(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::OpenAi(_) => &[],
            Self::Responses => responses::NAMES,
            Self::Messages => anthropic::NAMES,
        }
    }
}

/// The fields that all objects of one response share: id, model, time of creation.
pub(super) struct Envelope {
    dialect: Dialect,
    id: String,
    created_s: u64,
    model: String,
}

/// One choice of an answer that is delivered as one object, not streamed.
#[derive(Default)]
pub(super) struct Whole {
    pub(super) text: String,
    pub(super) calls: Vec<ToolCall>,
    /// The choice's tokens with their log-probabilities; `None` if these were not requested.
    pub(super) logprobs: Option<Vec<Scored>>,
    /// The reason that the choice ended; `None` until it is complete.
    pub(super) end: Option<End>,
}

impl Envelope {
    pub(super) fn new(dialect: Dialect, request_id: &str, model: &str) -> Self {
        let prefix = match dialect {
            Dialect::Chat => "chatcmpl",
            Dialect::Completion => "cmpl",
        };
        Self {
            dialect,
            id: format!("{prefix}-{request_id}"),
            created_s: now(),
            model: model.to_owned(),
        }
    }

    /// Returns the complete response object. `prompt` has the prompt's log-probabilities, which are placed as in vLLM:
    /// at the top level for a chat, in each choice for a text completion.
    pub(super) fn whole(
        &self,
        choices: Vec<Whole>,
        usage: Usage,
        prompt: Option<&[PromptToken]>,
    ) -> Value {
        let choices = choices.into_iter().enumerate();
        let mut choices: Vec<Value> = choices
            .map(|(index, whole)| self.whole_choice(index, whole))
            .collect();
        if let Some(prompt) = prompt.filter(|_| self.dialect == Dialect::Completion) {
            for choice in &mut choices {
                choice["prompt_logprobs"] = logprobs::prompt(prompt);
            }
        }
        let object = match self.dialect {
            Dialect::Chat => "chat.completion",
            Dialect::Completion => "text_completion",
        };
        let mut whole = self.object(object, json!(choices));
        whole["usage"] = usage_object(usage);
        if let Some(prompt) = prompt.filter(|_| self.dialect == Dialect::Chat) {
            whole["prompt_logprobs"] = logprobs::prompt(prompt);
        }
        whole
    }

    fn whole_choice(&self, index: usize, whole: Whole) -> Value {
        let mut choice = match self.dialect {
            Dialect::Completion => json!({"index": index, "text": whole.text}),
            Dialect::Chat if whole.calls.is_empty() => {
                json!({"index": index, "message": {"role": "assistant", "content": whole.text}})
            }
            Dialect::Chat => {
                let content = Some(whole.text).filter(|text| !text.is_empty());
                let calls: Vec<Value> = whole.calls.iter().map(call_object).collect();
                let message = json!({"role": "assistant", "content": content, "tool_calls": calls});
                json!({"index": index, "message": message})
            }
        };
        choice["logprobs"] = self.logprobs(whole.logprobs.as_deref());
        choice["finish_reason"] = whole.end.map(end_name).into();
        choice
    }

    /// Returns the event that begins the choice `index` of a stream, with its role; `None` for a text completion, which
    /// has no such event.
    pub(super) fn opening(&self, index: usize) -> Option<Value> {
        match self.dialect {
            Dialect::Chat => {
                let delta = json!({"delta": {"role": "assistant", "content": ""}});
                Some(self.chunk(index, delta, None, None))
            }
            Dialect::Completion => None,
        }
    }

    /// Returns the event with more text of the choice `index`, and the log-probabilities of its tokens if they were
    /// requested.
    pub(super) fn text(&self, index: usize, text: &str, logprobs: Option<&[Scored]>) -> Value {
        let choice = match self.dialect {
            Dialect::Chat => json!({"delta": {"content": text}}),
            Dialect::Completion => json!({"text": text}),
        };
        self.chunk(index, choice, logprobs, None)
    }

    /// Returns the event with a complete tool call, the one with index `number` among the calls of the choice `index`.
    pub(super) fn call(
        &self,
        index: usize,
        number: usize,
        call: &ToolCall,
        logprobs: Option<&[Scored]>,
    ) -> Value {
        let mut call = call_object(call);
        call["index"] = number.into();
        self.chunk(
            index,
            json!({"delta": {"tool_calls": [call]}}),
            logprobs,
            None,
        )
    }

    /// Returns the event that ends the choice `index`, with the reason.
    pub(super) fn end(&self, index: usize, end: End) -> Value {
        let choice = match self.dialect {
            Dialect::Chat => json!({"delta": {}}),
            Dialect::Completion => json!({"text": ""}),
        };
        self.chunk(index, choice, None, Some(end))
    }

    /// Returns the event with the token counts of the answer, which has no choices.
    pub(super) fn usage(&self, usage: Usage) -> Value {
        let mut chunk = self.object(self.chunk_object(), json!([]));
        chunk["usage"] = usage_object(usage);
        chunk
    }

    fn chunk(
        &self,
        index: usize,
        mut choice: Value,
        logprobs: Option<&[Scored]>,
        end: Option<End>,
    ) -> Value {
        choice["index"] = index.into();
        choice["logprobs"] = self.logprobs(logprobs);
        choice["finish_reason"] = end.map(end_name).into();
        self.object(self.chunk_object(), json!([choice]))
    }

    fn logprobs(&self, tokens: Option<&[Scored]>) -> Value {
        match (self.dialect, tokens) {
            (_, None) => Value::Null,
            (Dialect::Chat, Some(tokens)) => logprobs::chat(tokens),
            (Dialect::Completion, Some(tokens)) => logprobs::completion(tokens),
        }
    }

    fn chunk_object(&self) -> &'static str {
        match self.dialect {
            Dialect::Chat => "chat.completion.chunk",
            Dialect::Completion => "text_completion",
        }
    }

    fn object(&self, object: &str, choices: Value) -> Value {
        json!({"id": self.id, "object": object, "created": self.created_s, "model": self.model, "choices": choices})
    }
}

/// Returns a tool call as OpenAI's tool call object, with a new id.
fn call_object(call: &ToolCall) -> Value {
    let id = format!("call_{:016x}", RandomState::new().hash_one(()));
    let function = json!({"name": call.name, "arguments": call.arguments});
    json!({"id": id, "type": "function", "function": function})
}

fn end_name(end: End) -> &'static str {
    match end {
        End::Stop => "stop",
        End::Length => "length",
        End::Calls => "tool_calls",
    }
}

fn usage_object(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": u64::from(usage.prompt) + u64::from(usage.completion),
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    })
}
