//! A request to play, and its outcome.

use crate::abi::Headers;
use crate::fault::Fault;

/// A request, and the engine's response to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Headers, with `:method`, `:path`, `:authority` and `:scheme`; names in lower case.
    pub headers: Headers,
    /// The whole body.
    pub body: Vec<u8>,
    /// Size of the pieces in which the body arrives; `None` if it arrives whole.
    pub piece_bytes: Option<usize>,
    /// Trailers after the body.
    pub trailers: Headers,
    /// The engine's response, if the request is forwarded.
    pub answer: Answer,
    /// Further properties of the request. In a path, a 0 byte separates two parts.
    pub properties: Vec<(Vec<u8>, Vec<u8>)>,
}

/// An engine's response to a request, or a cluster's to a call of the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Headers, including `:status`; empty if a call failed.
    pub headers: Headers,
    /// The whole body.
    pub body: Vec<u8>,
}

/// A response that the module sent instead of the engine's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalResponse {
    /// Status of the response.
    pub status: u32,
    /// Further headers.
    pub headers: Headers,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Request {
    /// Returns a `POST` of this JSON body, for an engine that responds with an empty object.
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
    /// Returns a response with status 200 and this JSON body.
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

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The request as forwarded; `None` if it was not forwarded.
    pub forwarded: Option<Forwarded>,
    /// The module's own response; the client gets it instead of the engine's.
    pub local: Option<LocalResponse>,
    /// Headers of the response that the client got.
    pub response_headers: Headers,
    /// Body of the response that the client got.
    pub response_body: Vec<u8>,
    /// The fault, if a callback failed; the other fields then show the state at that point.
    pub fault: Option<Fault>,
    /// Instructions of all callbacks of the request.
    pub fuel: u64,
    /// Host calls of the request.
    pub calls: u64,
}

/// A request as the engine received it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Headers, in order.
    pub headers: Headers,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Outcome {
    /// Returns the first header of this name in the client's response.
    #[must_use]
    pub fn response_header(&self, name: &str) -> Option<&[u8]> {
        find(&self.response_headers, name)
    }

    /// Returns the first header of this name in the forwarded request.
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
