//! The two shapes of OpenAI's answers: chat completions and text completions, whole and in chunks.

use crate::answer::Usage;
use foreword_engine::engine::FinishReason;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Which shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Chat,
    Completion,
}

/// What all objects of one answer have in common.
pub(super) struct Envelope {
    dialect: Dialect,
    id: String,
    created_s: u64,
    model: String,
}

impl Envelope {
    pub(super) fn new(dialect: Dialect, request_id: &str, model: &str) -> Self {
        let prefix = match dialect {
            Dialect::Chat => "chatcmpl",
            Dialect::Completion => "cmpl",
        };
        let created = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            dialect,
            id: format!("{prefix}-{request_id}"),
            created_s: created.as_secs(),
            model: model.to_owned(),
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The answer as one object.
    pub(super) fn whole(&self, text: &str, reason: FinishReason, usage: Usage) -> Value {
        let (object, mut choice) = match self.dialect {
            Dialect::Chat => (
                "chat.completion",
                json!({"index": 0, "message": {"role": "assistant", "content": text}}),
            ),
            Dialect::Completion => ("text_completion", json!({"index": 0, "text": text})),
        };
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = reason_name(reason).into();
        let mut whole = self.object(object, json!([choice]));
        whole["usage"] = usage_object(usage);
        whole
    }

    /// What a stream sends before the first text, if anything.
    pub(super) fn opening(&self) -> Option<Value> {
        match self.dialect {
            Dialect::Chat => {
                Some(self.chunk(json!({"delta": {"role": "assistant", "content": ""}}), None))
            }
            Dialect::Completion => None,
        }
    }

    /// More text.
    pub(super) fn text(&self, text: &str) -> Value {
        match self.dialect {
            Dialect::Chat => self.chunk(json!({"delta": {"content": text}}), None),
            Dialect::Completion => self.chunk(json!({"text": text}), None),
        }
    }

    /// The end.
    pub(super) fn end(&self, reason: FinishReason) -> Value {
        match self.dialect {
            Dialect::Chat => self.chunk(json!({"delta": {}}), Some(reason)),
            Dialect::Completion => self.chunk(json!({"text": ""}), Some(reason)),
        }
    }

    /// The usage, where it was asked for: a chunk without choices.
    pub(super) fn usage(&self, usage: Usage) -> Value {
        let mut chunk = self.object(self.chunk_object(), json!([]));
        chunk["usage"] = usage_object(usage);
        chunk
    }

    fn chunk(&self, mut choice: Value, reason: Option<FinishReason>) -> Value {
        choice["index"] = 0.into();
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = reason.map(reason_name).into();
        self.object(self.chunk_object(), json!([choice]))
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

fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop | FinishReason::Prefilled => "stop",
        FinishReason::Length => "length",
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
