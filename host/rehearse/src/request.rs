//! A request to play, and its outcome.

use crate::abi::Headers;
use crate::fault::Fault;

/// A request to play, with the engine's response to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Headers, including `:method`, `:path`, `:authority` and `:scheme`, with names in lower case.
    pub headers: Headers,
    /// The whole body.
    pub body: Vec<u8>,
    /// Size in bytes of the pieces in which the body arrives; `None` if it arrives whole.
    pub piece_bytes: Option<usize>,
    /// Trailers after the body; empty for none.
    pub trailers: Headers,
    /// The engine's response; unused if the request is not forwarded.
    pub answer: Answer,
    /// Further properties, by path, with a 0 byte between the parts of a path.
    pub properties: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The response of an engine to a request, or of a cluster to an HTTP call of the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Headers, including `:status`; empty for a failed call.
    pub headers: Headers,
    /// The whole body.
    pub body: Vec<u8>,
}

/// The module's own response to a request, in place of the engine's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalResponse {
    /// Status of the response.
    pub status: u32,
    /// The response's headers; `:status` is in `status`.
    pub headers: Headers,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Request {
    /// Returns a `POST` of a JSON body, which the engine answers with an empty object.
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

    /// Adds a property; the parts of its path are separated by a 0 byte.
    pub(crate) fn add_property(&mut self, path: &str, value: &str) {
        self.properties.push((path.into(), value.into()));
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

/// The result of playing a request through the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The request that the engine received; `None` if it was not forwarded.
    pub forwarded: Option<Forwarded>,
    /// The module's own response; `None` if the engine's reached the client.
    pub local: Option<LocalResponse>,
    /// Headers of the client's response.
    pub response_headers: Headers,
    /// Body of the client's response.
    pub response_body: Vec<u8>,
    /// The fault, if a callback failed. The other fields then show what had happened before.
    pub fault: Option<Fault>,
    /// Instructions of all callbacks for the request.
    pub fuel: u64,
    /// Number of host calls for the request.
    pub calls: u64,
}

/// The request that an engine received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Headers, in order.
    pub headers: Headers,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Outcome {
    /// Returns the value of the first header with this name in the client's response; `None` if there is none.
    #[must_use]
    pub fn response_header(&self, name: &str) -> Option<&[u8]> {
        let mut headers = self.response_headers.iter();
        let (_, value) = headers.find(|(known, _)| known == name.as_bytes())?;
        Some(value)
    }
}
