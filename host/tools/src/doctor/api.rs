//! The four HTTP APIs that take prompts, with the names of their fields for the prompt, the prompt's token count and
//! the number of cached tokens.

use super::client::{Answer, Client, served};
use serde_json::{Value, json};

/// An HTTP API that takes prompts, and the names of its fields.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) name: &'static str,
    pub(super) path: &'static str,
    /// Name of the request field with the prompt; true if its value is an array of messages, false if it is a string.
    field: (&'static str, bool),
    /// Name of the request field that limits the number of the answer's tokens.
    limit: &'static str,
    /// JSON pointer to the number of prompt tokens in the response.
    prompt: &'static str,
    /// JSON pointer to the number of cached prompt tokens in the response.
    cached: &'static str,
    /// True if the number of prompt tokens in the response excludes the cached ones.
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

/// OpenAI's API of chats, `/v1/chat/completions`.
pub(super) const CHAT: &Api = &APIS[0];

/// The token counts that a response reports for one prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Number of the prompt's tokens, cached ones included; 0 if the response does not report it.
    pub(super) prompt: u64,
    /// Number of the prompt's tokens that the engine found in its cache; `None` if the response does not report it.
    pub(super) cached: Option<u64>,
}

impl Usage {
    /// Returns whether the number of cached tokens is at least half of `tokens`; false if `tokens` is 0.
    pub(super) fn is_cached(&self, tokens: u64) -> bool {
        tokens > 0 && 2 * self.cached.unwrap_or_default() >= tokens
    }

    pub(super) fn cached_or_zero(&self) -> u64 {
        self.cached.unwrap_or_default()
    }

    /// Returns whether at least half of the prompt's tokens were cached; false if the response does not report them.
    pub(super) fn is_warm(&self) -> bool {
        self.is_cached(self.prompt)
    }

    /// Returns the cached tokens and the prompt's tokens as text, such as `384 of 400`.
    pub(super) fn of_prompt(&self) -> String {
        format!("{} of {}", self.shown(), self.prompt)
    }

    /// Returns the number of cached tokens as text; `no field` if the response does not report it.
    pub(super) fn shown(&self) -> String {
        (self.cached).map_or_else(|| "no field".to_owned(), |cached| cached.to_string())
    }
}

impl Api {
    pub(super) fn url(&self, root: &str) -> String {
        format!("{root}{}", self.path)
    }

    /// Returns the body of a request for one token after the prompt `text`.
    pub(super) fn body(&self, model: &str, text: &str) -> Value {
        let prompt = match self.field.1 {
            true => json!([{"role": "user", "content": text}]),
            false => json!(text),
        };
        json!({"model": model, self.field.0: prompt, self.limit: 1})
    }

    /// Returns the body of a request for one token after the prompt `text`, with a `cache_salt` that consists of
    /// `salt`, repeated 32 times.
    pub(super) fn salted(&self, model: &str, text: &str, salt: &str) -> Value {
        let mut body = self.body(model, text);
        body["cache_salt"] = salt.repeat(32).into();
        body
    }

    /// Returns the token counts that a response, as JSON, reports.
    pub(super) fn usage(&self, response: &Value) -> Usage {
        let cached = response.pointer(self.cached).and_then(Value::as_u64);
        let prompt = response.pointer(self.prompt).and_then(Value::as_u64);
        let apart = cached.filter(|_| self.is_apart).unwrap_or_default();
        Usage {
            prompt: prompt.unwrap_or_default() + apart,
            cached,
        }
    }

    /// Sends a request body to this API of the engine or gateway at `root`, and returns the token counts in the
    /// response.
    ///
    /// # Errors
    /// Returns a message if the response is not a 200.
    pub(super) fn ask(&self, client: &Client, root: &str, body: &Value) -> Result<Usage, String> {
        let answer = client.post(&self.url(root), body);
        self.read(client, answer).map(|(usage, _)| usage)
    }

    /// Returns the token counts in a response to a request to this API, and the response's JSON. Adds the prompt's
    /// tokens to the client's count.
    ///
    /// # Errors
    /// Returns a message if the response is not a 200.
    pub(super) fn read(&self, client: &Client, answer: Answer) -> Result<(Usage, Value), String> {
        let response = served(&format!("POST {}", self.path), answer)?.json();
        let usage = self.usage(&response);
        client.count(usage.prompt);
        Ok((usage, response))
    }
}
