//! A request to play, and what became of it.

use crate::abi::Headers;
use crate::fault::Fault;
use crate::state::LocalResponse;

/// A request, and the engine's answer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// With `:method`, `:path`, `:authority` and `:scheme`; names in lower case.
    pub headers: Headers,
    /// The body, whole.
    pub body: Vec<u8>,
    /// Bytes of the pieces that the body comes in; `None`: it comes whole.
    pub piece_bytes: Option<usize>,
    /// Trailers that follow the body.
    pub trailers: Headers,
    /// What the engine answers, should it be asked.
    pub answer: Answer,
    /// What the proxy knows of it beside: a path, a 0 byte between two parts, and the value.
    pub properties: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What an engine answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Headers of the response, `:status` among them.
    pub headers: Headers,
    /// The body, whole.
    pub body: Vec<u8>,
}

impl Request {
    /// A `POST` of this JSON body, and an engine that answers with an empty object.
    #[must_use]
    pub fn post(path: &str, body: Vec<u8>) -> Self {
        let pair = |name: &str, value: &str| (name.into(), value.into());
        Self {
            headers: vec![
                pair(":method", "POST"),
                pair(":path", path),
                pair(":authority", "gateway"),
                pair(":scheme", "http"),
                pair("content-type", "application/json"),
                pair("content-length", &body.len().to_string()),
            ],
            body,
            piece_bytes: None,
            trailers: Vec::new(),
            answer: Answer::json(b"{}".to_vec()),
            properties: Vec::new(),
        }
    }

    /// Adds a header; the name must be in lower case.
    pub fn add(&mut self, name: &str, value: &str) {
        self.headers.push((name.into(), value.into()));
    }
}

impl Answer {
    /// Status 200, and this JSON body.
    #[must_use]
    pub fn json(body: Vec<u8>) -> Self {
        let pair = |name: &str, value: &str| (name.into(), value.into());
        Self {
            headers: vec![
                pair(":status", "200"),
                pair("content-type", "application/json"),
            ],
            body,
        }
    }
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the engine got; `None`: nothing.
    pub forwarded: Option<Forwarded>,
    /// The module's own answer; the client gets it in place of the engine's.
    pub local: Option<LocalResponse>,
    /// Headers of the answer as the client gets them.
    pub response_headers: Headers,
    /// Body of the response that the client got.
    pub response_body: Vec<u8>,
    /// The callback that failed. The rest is as it was then.
    pub fault: Option<Fault>,
    /// Instructions of all its callbacks.
    pub fuel: u64,
    /// Calls into the proxy.
    pub calls: u64,
}

/// What the engine got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Headers in the order in which they were sent.
    pub headers: Headers,
    /// The body, whole.
    pub body: Vec<u8>,
}

impl Outcome {
    /// The first header of this name that the client gets.
    #[must_use]
    pub fn response_header(&self, name: &str) -> Option<&[u8]> {
        find(&self.response_headers, name)
    }

    /// The first header of this name that the engine got.
    #[must_use]
    pub fn forwarded_header(&self, name: &str) -> Option<&[u8]> {
        find(&self.forwarded.as_ref()?.headers, name)
    }
}

fn find<'a>(headers: &'a Headers, name: &str) -> Option<&'a [u8]> {
    let mut headers = headers.iter();
    let (_, value) = headers.find(|(known, _)| known == name.as_bytes())?;
    Some(value)
}
