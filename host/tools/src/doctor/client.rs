//! The client: it bounds each request's time and size, and the number of requests.

use crate::endpoint::{self, NotAnswered, on_one_line};
use serde_json::Value;
use std::cell::Cell;
use std::io::Read;
use std::time::Duration;
use ureq::http::{HeaderMap, Request};

/// A client that counts what it sends.
pub(super) struct Client {
    agent: ureq::Agent,
    key: Option<String>,
    timeout: Duration,
    requests: Cell<u64>,
    prompt_tokens: Cell<u64>,
    /// Requests in a row that got no response.
    silent: Cell<u32>,
}

/// A response, or the reason why there is none.
pub(super) type Answer = Result<Reply, String>;

/// A response, read whole.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// The connection that a request uses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Connection {
    /// An idle one, if there is one.
    Kept,
    /// A new one, which a gateway may give to another of its workers.
    Fresh,
}

impl Client {
    pub(super) fn new(key: Option<String>, timeout: Duration) -> Self {
        Self {
            agent: endpoint::agent(timeout, None),
            key,
            timeout,
            requests: Cell::new(0),
            prompt_tokens: Cell::new(0),
            silent: Cell::new(0),
        }
    }

    /// Returns how many requests were sent, and how many prompt tokens they asked the engine for.
    pub(super) fn spent(&self) -> (u64, u64) {
        (self.requests.get(), self.prompt_tokens.get())
    }

    /// Counts the tokens of a prompt that was answered.
    pub(super) fn count(&self, prompt_tokens: u64) {
        self.prompt_tokens
            .set(self.prompt_tokens.get() + prompt_tokens);
    }

    pub(super) fn get(&self, url: &str) -> Answer {
        self.send(url, None, &[], Connection::Kept)
    }

    pub(super) fn post(&self, url: &str, body: &Value) -> Answer {
        self.post_with(url, body, &[], Connection::Kept)
    }

    pub(super) fn post_with(
        &self,
        url: &str,
        body: &Value,
        headers: &[(&str, String)],
        connection: Connection,
    ) -> Answer {
        self.send(url, Some(body.to_string()), headers, connection)
    }

    /// Sends a request, and sends it again if the server answers 429 or 503.
    fn send(
        &self,
        url: &str,
        body: Option<String>,
        headers: &[(&str, String)],
        connection: Connection,
    ) -> Answer {
        let mut attempts = 0;
        loop {
            if self.requests.get() >= MAX_REQUESTS {
                return Err(format!("not asked: {MAX_REQUESTS} requests were sent"));
            }
            if self.silent.get() >= MAX_SILENT {
                return Err(format!(
                    "not asked: {MAX_SILENT} requests in a row got no response"
                ));
            }
            self.requests.set(self.requests.get() + 1);
            attempts += 1;
            let answer = self.attempt(url, body.as_deref(), headers, connection);
            self.silent.set(match answer {
                Ok(_) => 0,
                Err(_) => self.silent.get() + 1,
            });
            match answer {
                Ok(reply) if matches!(reply.status, 429 | 503) && attempts < MAX_ATTEMPTS => {
                    let asked = reply
                        .header("retry-after")
                        .and_then(|text| text.parse().ok());
                    let wait = Duration::from_secs(asked.unwrap_or(1));
                    std::thread::sleep(wait.min(MAX_WAIT));
                }
                answer => return answer,
            }
        }
    }

    fn attempt(
        &self,
        url: &str,
        body: Option<&str>,
        headers: &[(&str, String)],
        connection: Connection,
    ) -> Answer {
        let method = if body.is_some() { "POST" } else { "GET" };
        let mut request = Request::builder().method(method).uri(url);
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let fresh;
        let agent = match connection {
            Connection::Kept => &self.agent,
            Connection::Fresh => {
                fresh = endpoint::agent(self.timeout, Some(0));
                &fresh
            }
        };
        let failed = |error: ureq::Error| match endpoint::not_answered(url, &error) {
            NotAnswered::Denied(words) | NotAnswered::Unreachable(words) => words,
        };
        let response = match body {
            Some(body) => request.body(body).map(|request| agent.run(request)),
            None => request.body(()).map(|request| agent.run(request)),
        };
        let mut response = response
            .map_err(|error| format!("{url}: {error}"))?
            .map_err(failed)?;
        let mut body = Vec::new();
        let reader = response.body_mut().as_reader().take(MAX_BODY + 1);
        { reader }
            .read_to_end(&mut body)
            .map_err(|error| format!("{url}: {error}"))?;
        if body.len() as u64 > MAX_BODY {
            return Err(format!(
                "{url}: the response has more than {MAX_BODY} bytes"
            ));
        }
        Ok(Reply {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body,
        })
    }
}

impl Reply {
    /// Returns the body as JSON; null where it is none.
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the status and the beginning of the body, as a finding shows a refusal.
    pub(super) fn words(&self) -> String {
        format!("{} {}", self.status, on_one_line(&self.body))
    }
}

/// Returns the error of a request that got no 200: the request with the refusal, or why there is no response, which names its URL.
pub(super) fn refusal(request: &str, answer: &Answer) -> String {
    match answer {
        Ok(reply) => format!("{request}: {}", reply.words()),
        Err(reason) => reason.clone(),
    }
}

/// Most requests of one examination; a usual one needs a third.
const MAX_REQUESTS: u64 = 160;
/// Requests in a row without a response after which nothing more is asked.
const MAX_SILENT: u32 = 3;
/// Attempts of a request that is answered with 429 or 503.
const MAX_ATTEMPTS: u32 = 3;
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Most bytes of a response: a feed's snapshot is the longest.
const MAX_BODY: u64 = 16 << 20;
