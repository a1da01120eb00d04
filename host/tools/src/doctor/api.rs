//! The four APIs: the field of the prompt, and the fields of the response that count its tokens and the cached ones.

use super::client::{Answer, Client, served};
use serde_json::{Value, json};

/// An API that takes prompts.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) name: &'static str,
    pub(super) path: &'static str,
    /// The field of the prompt, and whether it holds messages.
    field: (&'static str, bool),
    /// The field that bounds the answer.
    limit: &'static str,
    /// Where the response has the prompt's tokens and, of these, the cached ones.
    prompt: &'static str,
    cached: &'static str,
    /// Whether the cached tokens are left out of the prompt's.
    is_apart: bool,
}

pub(super) const APIS: [Api; 4] = [
    CHATS,
    Api {
        name: "completions",
        path: "/v1/completions",
        field: ("prompt", false),
        ..CHATS
    },
    Api {
        name: "responses",
        path: "/v1/responses",
        field: ("input", false),
        limit: "max_output_tokens",
        prompt: "/usage/input_tokens",
        cached: "/usage/input_tokens_details/cached_tokens",
        ..CHATS
    },
    Api {
        name: "messages",
        path: "/v1/messages",
        prompt: "/usage/input_tokens",
        cached: "/usage/cache_read_input_tokens",
        is_apart: true,
        ..CHATS
    },
];

const CHATS: Api = Api {
    name: "chat",
    path: "/v1/chat/completions",
    field: ("messages", true),
    limit: "max_tokens",
    prompt: "/usage/prompt_tokens",
    cached: "/usage/prompt_tokens_details/cached_tokens",
    is_apart: false,
};

/// The API of chats.
pub(super) const CHAT: &Api = &APIS[0];

/// An API's token counts of one prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Tokens of the prompt; 0 where they were not reported.
    pub(super) prompt: u64,
    /// Of these, the cached ones; `None`: the response has no such field.
    pub(super) cached: Option<u64>,
}

impl Usage {
    /// Returns whether at least half of `tokens` were cached.
    pub(super) fn is_cached(&self, tokens: u64) -> bool {
        tokens > 0 && 2 * self.cached.unwrap_or_default() >= tokens
    }

    pub(super) fn cached_or_zero(&self) -> u64 {
        self.cached.unwrap_or_default()
    }

    /// Returns whether at least half of the prompt was cached.
    pub(super) fn is_warm(&self) -> bool {
        self.is_cached(self.prompt)
    }

    /// Returns the cached tokens and the prompt's as a finding shows them.
    pub(super) fn of_prompt(&self) -> String {
        format!("{} of {}", self.shown(), self.prompt)
    }

    /// Returns the cached tokens as a finding shows them.
    pub(super) fn shown(&self) -> String {
        (self.cached).map_or_else(|| "no field".to_owned(), |cached| cached.to_string())
    }
}

impl Api {
    pub(super) fn url(&self, root: &str) -> String {
        format!("{root}{}", self.path)
    }

    /// Returns a body that asks for one token after `text`.
    pub(super) fn body(&self, model: &str, text: &str) -> Value {
        let prompt = match self.field.1 {
            true => json!([{"role": "user", "content": text}]),
            false => json!(text),
        };
        json!({"model": model, self.field.0: prompt, self.limit: 1})
    }

    /// Returns the same with a `cache_salt`.
    pub(super) fn salted(&self, model: &str, text: &str, salt: &str) -> Value {
        let mut body = self.body(model, text);
        body["cache_salt"] = salt.repeat(32).into();
        body
    }

    /// Reads the counts in a response.
    pub(super) fn usage(&self, response: &Value) -> Usage {
        let cached = response.pointer(self.cached).and_then(Value::as_u64);
        let prompt = response.pointer(self.prompt).and_then(Value::as_u64);
        let apart = cached.filter(|_| self.is_apart).unwrap_or_default();
        Usage {
            prompt: prompt.unwrap_or_default() + apart,
            cached,
        }
    }

    /// Sends a body, and returns the counts in the response.
    ///
    /// # Errors
    /// Returns the error of a request that got no 200.
    pub(super) fn ask(&self, client: &Client, root: &str, body: &Value) -> Result<Usage, String> {
        let answer = client.post(&self.url(root), body);
        self.read(client, answer).map(|(usage, _)| usage)
    }

    /// Returns the counts in a response, and its JSON.
    ///
    /// # Errors
    /// Returns the error of a request that got no 200.
    pub(super) fn read(&self, client: &Client, answer: Answer) -> Result<(Usage, Value), String> {
        let response = served(&format!("POST {}", self.path), answer)?.json();
        let usage = self.usage(&response);
        client.count(usage.prompt);
        Ok((usage, response))
    }
}
