//! The HTTP client of one examination (a run of `foreword doctor`), which counts its requests and their prompt tokens,
//! and limits the requests.

pub(super) use crate::client::Reply;
use crate::client::{Access, Client as Connections};
use serde_json::Value;
use std::cell::Cell;
use std::time::Duration;

/// The HTTP client of one examination (a run of `foreword doctor`). It counts its requests and their prompt tokens, and
/// limits the number of requests.
pub(super) struct Client {
    /// The roots of the servers that get the API key: engine, gateway and `--internal`.
    named: Vec<String>,
    /// Client whose connections are reused.
    kept: Connections,
    /// The same without the API key.
    keyless: Connections,
    /// Client whose connections are closed after each request.
    fresh: Connections,
    requests: Cell<u64>,
    prompt_tokens: Cell<u64>,
    /// Number of consecutive requests up to now that got no response.
    silent: Cell<u32>,
}

/// A response, or the reason why there is none.
pub(super) type Answer = Result<Reply, String>;

/// The connection over which a request is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Connection {
    /// An idle connection, or a new one if none is idle.
    Kept,
    /// A new connection, which a gateway may assign to another of its workers.
    Fresh,
}

impl Client {
    /// `named` are the roots of the servers that get the API key `key`.
    pub(super) fn new(key: Option<String>, named: Vec<String>, timeout: Duration) -> Self {
        let access = Access {
            key,
            timeout,
            ..Access::default()
        };
        Self {
            named,
            kept: Connections::new(access.clone()),
            keyless: Connections::new(Access {
                key: None,
                ..access.clone()
            }),
            fresh: Connections::new(Access {
                connections: Some(0),
                ..access
            }),
            requests: Cell::new(0),
            prompt_tokens: Cell::new(0),
            silent: Cell::new(0),
        }
    }

    /// Returns the number of requests sent, and the sum of the prompt tokens that were passed to [`Client::count`].
    pub(super) fn spent(&self) -> (u64, u64) {
        (self.requests.get(), self.prompt_tokens.get())
    }

    /// Adds the tokens of an answered prompt to the client's sum of prompt tokens.
    pub(super) fn count(&self, prompt_tokens: u64) {
        self.prompt_tokens.update(|sum| sum + prompt_tokens);
    }

    pub(super) fn get(&self, url: &str) -> Answer {
        self.send(url, None, &[], Connection::Kept)
    }

    pub(super) fn post(&self, url: &str, body: &Value) -> Answer {
        self.send(url, Some(body), &[], Connection::Kept)
    }

    /// Posts `body`, or sends a GET if `body` is `None`; retries after 429 and 503. Returns an error without sending if
    /// [`MAX_REQUESTS`] were sent already, or [`MAX_SILENT`] in a row got no response.
    pub(super) fn send(
        &self,
        url: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
        connection: Connection,
    ) -> Answer {
        let body = body.map(Value::to_string);
        let attempt = || self.attempt(url, body.as_deref(), headers, connection);
        for _ in 1..MAX_ATTEMPTS {
            match attempt() {
                Ok(reply) if matches!(reply.status, 429 | 503) => {
                    std::thread::sleep(reply.pause().unwrap_or(WAIT).min(MAX_WAIT));
                }
                answer => return answer,
            }
        }
        attempt()
    }

    fn attempt(
        &self,
        url: &str,
        body: Option<&str>,
        headers: &[(&str, &str)],
        connection: Connection,
    ) -> Answer {
        if self.requests.get() >= MAX_REQUESTS {
            return Err(format!("not asked: {MAX_REQUESTS} requests were sent"));
        }
        if self.silent.get() >= MAX_SILENT {
            let words = "requests in a row got no response";
            return Err(format!("not asked: {MAX_SILENT} {words}"));
        }
        let is_named = (self.named.iter())
            .filter_map(|root| url.strip_prefix(root.as_str()))
            .any(|path| path.is_empty() || path.starts_with('/'));
        let connections = match connection {
            _ if !is_named => &self.keyless,
            Connection::Kept => &self.kept,
            Connection::Fresh => &self.fresh,
        };
        self.requests.update(|count| count + 1);
        self.silent.update(|count| count + 1);
        let reply = connections
            .send(url, body.map(str::as_bytes), headers)
            .and_then(|response| Reply::read(url, response, MAX_BODY))
            .map_err(|fault| fault.to_string())?
            .ok_or_else(|| format!("{url}: the response has more than {MAX_BODY} bytes"))?;
        self.silent.set(0);
        Ok(reply)
    }
}

impl Reply {
    /// Returns the body parsed as JSON; null if it is not JSON.
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Returns the response if its status is 200. `request` names the request for the error.
///
/// # Errors
/// Returns the [`refusal`] otherwise.
pub(super) fn served(request: &str, answer: Answer) -> Result<Reply, String> {
    match answer {
        Ok(reply) if reply.status == 200 => Ok(reply),
        answer => Err(refusal(request, &answer)),
    }
}

/// Returns a message for a request whose answer is not a 200: the name `request` with status and body, or the reason
/// why there was no response.
pub(super) fn refusal(request: &str, answer: &Answer) -> String {
    match answer {
        Ok(reply) => format!("{request}: {}", reply.words()),
        Err(reason) => reason.clone(),
    }
}

/// Maximum number of requests of one examination (a run of `foreword doctor`); no more are sent. About a third is
/// usual.
const MAX_REQUESTS: u64 = 160;
/// Number of consecutive requests without a response after which an examination sends no further requests.
const MAX_SILENT: u32 = 3;
/// Maximum number of attempts of a request that is answered with 429 or 503.
const MAX_ATTEMPTS: u32 = 3;
/// Wait before a retry if the response has no `Retry-After`.
const WAIT: Duration = Duration::from_secs(1);
/// Longest wait before a retry.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Longest response that is read, in bytes; the snapshot of a KV feed is the longest kind.
const MAX_BODY: u64 = 16 << 20;
