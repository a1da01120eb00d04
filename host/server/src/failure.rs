//! All failures of a request, with HTTP status and public message, in OpenAI's error format.
//!
//! | status | code | when |
//! | --- | --- | --- |
//! | 400 | `invalid_value` | a field, or the body itself, is invalid |
//! | 400 | `context_length_exceeded` | prompt and answer do not fit |
//! | 401 | `invalid_api_key` | keys are configured and the request has none of them |
//! | 404 | `response_not_found` | the response to continue or return is not stored |
//! | 404 | `file_not_found`, `batch_not_found` | the file or the batch is not stored, or not this client's |
//! | 404 | `model_not_found`, `unknown_url` | another model, another path, a path of the internal listener |
//! | 405 | `method_not_allowed` | the path exists, the method does not |
//! | 403 | `feed_key_required` | the KV feed has no key and was requested on an address other than loopback |
//! | 403 | `operators_key_required` | emptying the cache needs a key here, and none is configured |
//! | 408 | `body_timeout` | the request's body did not arrive in time, or too slowly |
//! | 413 | `body_too_large` | the body exceeds the limit |
//! | 413 | `storage_full` | the limit of files, bytes or batches is reached |
//! | 415 | `unsupported_media_type` | the content type is not JSON |
//! | 429 | `push_rate` | a gateway pushes more than it may |
//! | 429 | `queue_full` | the limit of requests in flight or waiting is reached; see `retry-after` |
//! | 500 | `internal_error` | a fault of the server; the log has the cause, with the request's id |
//! | 503 | `loading`, `stopping` | not yet, or no longer, serving |
//! | 503 | `retriever_unavailable` | embedder or index are not available; everything else is served |
//! | 504 | `request_timeout` | the answer exceeded the time limit |

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use foreword_engine::engine::{self, SubmitError};
use serde_json::{Value, json};
use std::time::Duration;

/// The reason that a request got no answer, or an incomplete one.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A field, or the body, is invalid.
    #[error("{message}")]
    Invalid {
        /// The field in OpenAI's notation (`messages[2].content`); `None` for the body as a whole.
        param: Option<String>,
        /// The value found, and the values accepted.
        message: String,
    },
    /// Prompt and answer do not fit into the model's positions or the engine's pages.
    #[error(
        "this request needs {needed} tokens ({prompt} of them in the prompt), more than the {limit} that fit"
    )]
    ContextLength {
        /// Tokens of the prompt. For a text with more than twice as many as fit, only those counted until that was certain.
        prompt: u32,
        /// Tokens of the prompt, and of the longest answer that the request allows.
        needed: u64,
        /// Maximum number of tokens of prompt and answer together.
        limit: u32,
    },
    /// The request has none of the accepted API keys.
    #[error("a valid API key is required, as `Authorization: Bearer KEY` or `x-api-key: KEY`")]
    Unauthorized,
    /// The request names a model that is not served.
    #[error("the model `{asked}` does not exist here; this server serves `{served}`")]
    UnknownModel {
        /// The model's name that the client sent, shortened by [`clip`].
        asked: String,
        /// The name of the served model.
        served: String,
    },
    /// No such response, file or batch is stored, or it belongs to another client.
    #[error("the {what} `{id}` is not kept here, or no longer")]
    NotStored {
        /// The kind of object that is not stored: `response`, `file` or `batch`.
        what: &'static str,
        /// The id that the client sent, shortened by [`clip`].
        id: String,
        /// The field of the request that contains the id; `None` if the id is in the path.
        param: Option<&'static str>,
    },
    /// A limit on stored files, bytes or batches is reached.
    #[error("the limit of {limit} {what} is reached: remove what is no longer needed")]
    StorageFull {
        /// Name of the limited resource, such as `files`.
        what: &'static str,
        /// The limit on that resource.
        limit: u64,
    },
    /// The server does not serve the path.
    #[error("unknown URL: {method} {path}")]
    UnknownUrl {
        /// The request's method.
        method: String,
        /// The request's path, shortened by [`clip`].
        path: String,
    },
    /// The path is served only on the internal listener (`--internal-listen`).
    #[error("unknown URL: {method} {path}; it is served on the address of --internal-listen")]
    Elsewhere {
        /// The request's method.
        method: String,
        /// The request's path, without query.
        path: String,
    },
    /// The feed of cache events has no key, and its listener would show to other machines which documents are cached.
    #[error(
        "without a key of its own the feed is read on loopback only, and gateways tell each other nothing: give --feed-key-file"
    )]
    FeedKeyRequired,
    /// No key is configured for emptying the cache, and others than the operator can reach the listener.
    #[error(
        "without keys the cache is emptied on the internal listener alone, and there on loopback: give --kv-key-file or --api-key-file"
    )]
    OperatorsKeyRequired,
    /// The path is served, but not with the request's method.
    #[error("{path} does not take {method}; see the `allow` header")]
    Method {
        /// The request's method.
        method: String,
        /// The request's path, shortened by [`clip`].
        path: String,
    },
    /// The body was not complete within the time limit.
    #[error("the request's body did not arrive within {} s", limit.as_secs())]
    BodyTimeout {
        /// Time limit for receiving the body.
        limit: Duration,
    },
    /// The body arrived more slowly than the minimum rate.
    #[error("the request's body arrived at less than {rate} bytes per second")]
    BodySlow {
        /// Minimum rate, in bytes a second.
        rate: u32,
    },
    /// The body is longer than the limit.
    #[error("the request's body has {}, more than the limit of {limit} bytes", size_words(*size, *limit))]
    BodyTooLarge {
        /// Length by `content-length`, in bytes; `None` if there was no such header.
        size: Option<u64>,
        /// Maximum length of a body, in bytes.
        limit: u64,
    },
    /// The content type is not JSON.
    #[error("the content type must be `application/json`, got {}", found.as_deref().map_or("none".into(), |f| format!("`{f}`")))]
    MediaType {
        /// The declared content type, shortened by [`clip`]; `None` if there was none.
        found: Option<String>,
    },
    /// A limit on the number of requests in flight or waiting is reached; the client may retry.
    #[error("the server is at its limit of {limit} requests; try again later")]
    QueueFull {
        /// The limit on requests that was reached.
        limit: u32,
        /// Time after which the server may accept another request; [`SOON`] if unknown.
        retry_after: Duration,
    },
    /// A gateway pushes more bytes to other gateways than the rate allowed for one key.
    #[error("more than {limit} bytes a second are pushed with this key; try again later")]
    PushRate {
        /// Maximum rate of pushes with one key, in bytes a second.
        limit: u32,
        /// Time after which another push may be accepted.
        retry_after: Duration,
    },
    /// The model is not loaded yet.
    #[error("the model is still loading; try again later")]
    Loading,
    /// The server is stopping and accepts no more requests.
    #[error("the server is stopping")]
    Stopping,
    /// The embedder or the document index is not available. The cause is logged, not sent to the client.
    #[error("the retriever is not available; the server's log says why")]
    Retriever {
        /// The cause, for the log.
        cause: String,
    },
    /// The answer was not complete within the time limit.
    #[error("the request took longer than the limit of {} s", limit.as_secs())]
    Timeout {
        /// Time limit from the request's arrival to the end of its answer.
        limit: Duration,
    },
    /// The server failed. The cause is logged, not sent to the client.
    #[error("internal error")]
    Internal {
        /// The cause, for the log.
        cause: String,
    },
}

impl Failure {
    /// Returns the failure for an invalid field. `param` is its name, and `message` says what is wrong.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid {
            param: Some(param.into()),
            message: message.into(),
        }
    }

    /// Returns the failure for an `id` under which no response, file or batch is stored. `what` is the kind of object,
    /// and `param` the field of the request that contains the id, or `None` if the id is in the path.
    pub fn not_stored(what: &'static str, id: &str, param: Option<&'static str>) -> Self {
        let id = clip(id);
        Self::NotStored { what, id, param }
    }

    /// Returns the failure for a body that is invalid as a whole. `message` says what is wrong.
    pub fn invalid_body(message: impl Into<String>) -> Self {
        Self::Invalid {
            param: None,
            message: message.into(),
        }
    }

    /// Replaces an invalid field's name by the one of another API, at the beginning of `param` and of the message.
    /// `names` are pairs of old and new name. Other failures, and fields that are not in `names`, are returned
    /// unchanged.
    #[must_use]
    pub fn renamed(self, names: &[(&str, &str)]) -> Self {
        let Self::Invalid {
            param: Some(param),
            message,
        } = self
        else {
            return self;
        };
        let renamed = |text: String| {
            let found = names.iter().find_map(|(from, to)| {
                let rest = text.strip_prefix(from)?;
                let is_whole =
                    !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
                is_whole.then(|| format!("{to}{rest}"))
            });
            found.unwrap_or(text)
        };
        Self::Invalid {
            param: Some(renamed(param)),
            message: renamed(message),
        }
    }

    /// Returns the failure for a fault of the server, with a cause for the log.
    pub fn internal(cause: impl std::fmt::Display) -> Self {
        Self::Internal {
            cause: cause.to_string(),
        }
    }

    /// Returns the failure for unavailable retrieval, with a cause for the log.
    pub fn retriever(cause: impl std::fmt::Display) -> Self {
        Self::Retriever {
            cause: cause.to_string(),
        }
    }

    /// Returns the failure for a request that the engine refused; `max_tokens` is the request's maximum answer length.
    pub fn from_submit(error: SubmitError, max_tokens: u32) -> Self {
        match error {
            SubmitError::QueueFull { limit, retry_after }
            | SubmitError::TenantQueueFull { limit, retry_after } => {
                Self::QueueFull { limit, retry_after }
            }
            SubmitError::Busy { waiting } => Self::QueueFull {
                limit: waiting,
                retry_after: SOON,
            },
            SubmitError::TooLong { tokens, limit } => Self::ContextLength {
                prompt: tokens,
                needed: u64::from(tokens) + u64::from(max_tokens),
                limit,
            },
            SubmitError::Invalid(message) => Self::invalid_body(message),
            SubmitError::Stopped => Self::Stopping,
        }
    }

    /// Returns the failure for a request that the engine aborted. `limit` is the request's time limit, to report if it
    /// expired, and `field` the request's field that requires the grammar of the answer.
    pub fn from_engine(failure: engine::Failure, limit: Duration, field: &str) -> Self {
        match failure {
            engine::Failure::Expired => Self::Timeout { limit },
            engine::Failure::Grammar(reason) => Self::invalid(field, format!("{field}: {reason}")),
            other => Self::internal(other),
        }
    }

    /// Returns the failure's HTTP status, its error type in OpenAI's format, and its code.
    fn kind(&self) -> (StatusCode, &'static str, &'static str) {
        const REQUEST: &str = "invalid_request_error";
        const SERVER: &str = "server_error";
        match self {
            Self::Invalid { .. } => (StatusCode::BAD_REQUEST, REQUEST, "invalid_value"),
            Self::ContextLength { .. } => {
                (StatusCode::BAD_REQUEST, REQUEST, "context_length_exceeded")
            }
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, REQUEST, "invalid_api_key"),
            Self::UnknownModel { .. } => (StatusCode::NOT_FOUND, REQUEST, "model_not_found"),
            Self::NotStored { what, .. } => {
                let code = match *what {
                    "response" => "response_not_found",
                    "file" => "file_not_found",
                    _ => "batch_not_found",
                };
                (StatusCode::NOT_FOUND, REQUEST, code)
            }
            Self::StorageFull { .. } => (StatusCode::PAYLOAD_TOO_LARGE, REQUEST, "storage_full"),
            Self::UnknownUrl { .. } | Self::Elsewhere { .. } => {
                (StatusCode::NOT_FOUND, REQUEST, "unknown_url")
            }
            Self::FeedKeyRequired => (StatusCode::FORBIDDEN, REQUEST, "feed_key_required"),
            Self::OperatorsKeyRequired => {
                (StatusCode::FORBIDDEN, REQUEST, "operators_key_required")
            }
            Self::Method { .. } => (
                StatusCode::METHOD_NOT_ALLOWED,
                REQUEST,
                "method_not_allowed",
            ),
            Self::BodyTimeout { .. } | Self::BodySlow { .. } => {
                (StatusCode::REQUEST_TIMEOUT, REQUEST, "body_timeout")
            }
            Self::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, REQUEST, "body_too_large"),
            Self::MediaType { .. } => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                REQUEST,
                "unsupported_media_type",
            ),
            Self::QueueFull { .. } => (
                StatusCode::TOO_MANY_REQUESTS,
                "rate_limit_error",
                "queue_full",
            ),
            Self::PushRate { .. } => (
                StatusCode::TOO_MANY_REQUESTS,
                "rate_limit_error",
                "push_rate",
            ),
            Self::Internal { .. } => (StatusCode::INTERNAL_SERVER_ERROR, SERVER, "internal_error"),
            Self::Loading => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "loading"),
            Self::Stopping => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "stopping"),
            Self::Retriever { .. } => (
                StatusCode::SERVICE_UNAVAILABLE,
                SERVER,
                "retriever_unavailable",
            ),
            Self::Timeout { .. } => (StatusCode::GATEWAY_TIMEOUT, SERVER, "request_timeout"),
        }
    }

    /// Returns the HTTP status of the response to the client.
    pub fn status(&self) -> StatusCode {
        self.kind().0
    }

    /// Returns the error's `code`, such as `queue_full`.
    pub fn code(&self) -> &'static str {
        self.kind().2
    }

    /// Returns the response body: OpenAI's error object, `{"error": {…}}`.
    pub fn body(&self) -> Value {
        let (_, kind, code) = self.kind();
        let param = match self {
            Self::Invalid { param, .. } => param.as_deref(),
            Self::UnknownModel { .. } => Some("model"),
            Self::NotStored { param, .. } => *param,
            _ => None,
        };
        json!({"error": {"message": self.to_string(), "type": kind, "param": param, "code": code}})
    }

    /// Logs the cause that the client does not see: of a server fault, or of unavailable retrieval.
    pub fn log(&self) {
        match self {
            Self::Internal { cause } => tracing::error!(cause, "internal error"),
            Self::Retriever { cause } => tracing::warn!(cause, "no retrieval"),
            _ => {}
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        self.log();
        let mut response = (self.status(), axum::Json(self.body())).into_response();
        response.extensions_mut().insert(Wording(self.to_string()));
        let headers = response.headers_mut();
        match self {
            Self::QueueFull { retry_after, .. } | Self::PushRate { retry_after, .. } => {
                headers.insert(header::RETRY_AFTER, whole_seconds(retry_after));
            }
            Self::Loading | Self::Retriever { .. } => {
                headers.insert(header::RETRY_AFTER, whole_seconds(SOON));
            }
            Self::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // Closing the connection lets the client try another server.
            Self::Stopping | Self::BodyTimeout { .. } | Self::BodySlow { .. } => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

/// The client's message of a failure, attached to the response so that outer layers can write the body again for
/// another API.
#[derive(Clone, Debug)]
pub(crate) struct Wording(pub(crate) String);

/// The time in the header `retry-after` for failures for which no better time is known.
pub const SOON: Duration = Duration::from_secs(1);

/// Returns the value of `retry-after` in whole seconds, rounded up, at least 1.
fn whole_seconds(time: Duration) -> HeaderValue {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    HeaderValue::from(seconds.max(1))
}

/// Returns the first 100 characters of a client's text, with `…` if it was longer, for an error message.
pub fn clip(text: &str) -> String {
    const CHARACTERS: usize = 100;
    match text.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn size_words(size: Option<u64>, limit: u64) -> String {
    size.map_or_else(
        || format!("over {limit} bytes"),
        |size| format!("{size} bytes"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_internal_cause_is_not_shown() {
        let failure = Failure::internal("disk /dev/sda on fire");
        assert_eq!(failure.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!failure.body().to_string().contains("sda"));
    }

    #[test]
    fn a_full_queue_says_when_to_come_back() {
        let header = |milliseconds| {
            let error = SubmitError::QueueFull {
                limit: 1,
                retry_after: Duration::from_millis(milliseconds),
            };
            let response = Failure::from_submit(error, 1).into_response();
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            response.headers()[header::RETRY_AFTER].clone()
        };
        for (milliseconds, seconds) in [(0, "1"), (900, "1"), (2000, "2"), (2001, "3")] {
            assert_eq!(header(milliseconds), seconds);
        }
    }

    #[test]
    fn a_grammar_that_costs_too_much_within_an_answer_is_its_requests_fault() {
        let reason = "the answer's grammar failed: too many items".to_owned();
        let failure = Failure::from_engine(engine::Failure::Grammar(reason), SOON, "tools");
        assert_eq!(failure.status(), StatusCode::BAD_REQUEST);
        assert_eq!(failure.body()["error"]["param"], "tools");
        let message = "tools: the answer's grammar failed: too many items";
        assert_eq!(failure.to_string(), message);
        let failure = engine::Failure::Sampling("not a number".to_owned());
        let failure = Failure::from_engine(failure, SOON, "tools");
        assert_eq!(failure.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[test]
    fn an_oversized_body_is_named_with_its_limit() {
        let body = Failure::BodyTooLarge {
            size: Some(90),
            limit: 64,
        }
        .body();
        assert_eq!(
            body["error"]["message"],
            "the request's body has 90 bytes, more than the limit of 64 bytes"
        );
    }

    #[test]
    fn a_field_is_told_under_the_name_that_its_api_has_for_it() {
        let names = [
            ("response_format.json_schema", "text.format"),
            ("stop", "stop_sequences"),
        ];
        for (param, told) in [
            ("response_format.json_schema.schema", "text.format.schema"),
            ("stop", "stop_sequences"),
            ("stops", "stops"),
            ("seed", "seed"),
        ] {
            let failure = Failure::invalid(param, format!("{param} must be a number, stop"));
            let body = failure.renamed(&names).body();
            assert_eq!(body["error"]["param"], told);
            let message = format!("{told} must be a number, stop");
            assert_eq!(body["error"]["message"], message);
        }
    }

    #[test]
    fn clipping_respects_characters() {
        assert_eq!(clip(&"é".repeat(100)), "é".repeat(100));
        assert_eq!(clip(&"é".repeat(101)), format!("{}…", "é".repeat(100)));
    }
}
