//! The format of error responses, by the API that the request's path belongs to.
//!
//! A client's library reads an error in its provider's format and shows "unknown error" for any other. The path
//! determines the provider. Apart from errors, the path's format decides only whether answers are restored: see
//! `restore` in `exchange`, which undoes clients' changes to a model's earlier answers.
//!
//! | path ends in | like | shape |
//! | --- | --- | --- |
//! | `/messages` | Anthropic | `{"type":"error","error":{"type","message"}}` |
//! | `/chat` | Cohere | `{"message"}` |
//! | `:generateContent`, `:streamGenerateContent` | Gemini | `{"error":{"code","message","status"}}` |
//! | `/converse`, `/converse-stream` | Bedrock | `{"__type","message"}` |
//! | anything else: `/chat/completions`, `/responses` | OpenAI | `{"error":{"message","type","param","code"}}` |

/// The format of error responses to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Dialect {
    #[default]
    OpenAi,
    Anthropic,
    Cohere,
    Gemini,
    Bedrock,
}

impl Dialect {
    /// Returns the error format for `route`, a request path that the filter handles. Only its last part decides.
    pub(crate) fn of(route: &str) -> Self {
        let last = route.rsplit('/').next().unwrap_or_default();
        match last {
            "messages" => Self::Anthropic,
            "chat" => Self::Cohere,
            "converse" | "converse-stream" => Self::Bedrock,
            _ if last.ends_with(":generateContent") => Self::Gemini,
            _ if last.ends_with(":streamGenerateContent") => Self::Gemini,
            _ => Self::OpenAi,
        }
    }

    /// Guesses the error format for a request path that is not a configured route, from the words in the path.
    pub(crate) fn guessed(path: &[u8]) -> Self {
        let words = path.split(|byte| !byte.is_ascii_alphanumeric());
        let mut last = None;
        for word in words.filter(|word| !word.is_empty()) {
            if word.eq_ignore_ascii_case(b"messages") {
                return Self::Anthropic;
            }
            last = Some(word);
        }
        match last {
            Some(word) if word.eq_ignore_ascii_case(b"chat") => Self::Cohere,
            _ => Self::OpenAi,
        }
    }

    /// Returns the JSON body of an error response with HTTP status `status`. `code` is the reason in one kebab-case
    /// word; only OpenAI's format contains it.
    pub(crate) fn error(self, status: u16, message: &str, code: &str) -> Vec<u8> {
        let message = serde_json::to_string(message).unwrap_or_default();
        let body = match self {
            // https://platform.openai.com/docs/guides/error-codes
            Self::OpenAi => {
                let kind = match status {
                    403 => "permission_error",
                    429 => "rate_limit_error",
                    500.. => "server_error",
                    _ => "invalid_request_error",
                };
                format!(
                    r#"{{"error":{{"message":{message},"type":"{kind}","param":null,"code":"{code}"}}}}"#
                )
            }
            // https://docs.anthropic.com/en/api/errors
            Self::Anthropic => {
                let kind = match status {
                    403 => "permission_error",
                    404 => "not_found_error",
                    413 => "request_too_large",
                    429 => "rate_limit_error",
                    503 => "overloaded_error",
                    500.. => "api_error",
                    _ => "invalid_request_error",
                };
                format!(r#"{{"type":"error","error":{{"type":"{kind}","message":{message}}}}}"#)
            }
            // https://docs.cohere.com/reference/errors
            Self::Cohere => format!(r#"{{"message":{message}}}"#),
            // https://docs.cloud.google.com/apis/design/errors#http_mapping
            Self::Gemini => {
                let kind = match status {
                    403 => "PERMISSION_DENIED",
                    404 => "NOT_FOUND",
                    429 => "RESOURCE_EXHAUSTED",
                    503 => "UNAVAILABLE",
                    500.. => "INTERNAL",
                    _ => "INVALID_ARGUMENT",
                };
                format!(r#"{{"error":{{"code":{status},"message":{message},"status":"{kind}"}}}}"#)
            }
            // The type may be in a header instead:
            // https://docs.aws.amazon.com/bedrock/latest/APIReference/CommonErrors.html
            Self::Bedrock => {
                let kind = match status {
                    403 => "AccessDeniedException",
                    404 => "ResourceNotFoundException",
                    429 => "ThrottlingException",
                    503 => "ServiceUnavailableException",
                    500.. => "InternalServerException",
                    _ => "ValidationException",
                };
                format!(r#"{{"__type":"{kind}","message":{message}}}"#)
            }
        };
        body.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn the_route_tells_the_dialect() {
        for (route, dialect) in [
            ("/v1/chat/completions", Dialect::OpenAi),
            ("/v1/messages", Dialect::Anthropic),
            ("/anthropic/v1/messages", Dialect::Anthropic),
            ("/v1/chat", Dialect::Cohere),
            ("/v2/chat", Dialect::Cohere),
            ("/v1/responses", Dialect::OpenAi),
            ("/v1beta/models/{model}:generateContent", Dialect::Gemini),
            (
                "/v1beta/models/{model}:streamGenerateContent",
                Dialect::Gemini,
            ),
            ("/model/{model}/converse", Dialect::Bedrock),
            ("/model/{model}/converse-stream", Dialect::Bedrock),
            ("/", Dialect::OpenAi),
            ("/mymessages", Dialect::OpenAi),
        ] {
            assert_eq!(Dialect::of(route), dialect, "{route}");
        }
    }

    #[test]
    fn a_path_that_is_no_route_tells_the_dialect_by_its_words() {
        for (path, dialect) in [
            (&b"/v1/chat/completions%0A"[..], Dialect::OpenAi),
            (b"//v1//messages/", Dialect::Anthropic),
            (b"/v1/Messages;x=1", Dialect::Anthropic),
            (b"/v1/messages/count_tokens", Dialect::Anthropic),
            (b"/v2/chat/", Dialect::Cohere),
            (b"/v1/mymessages", Dialect::OpenAi),
            (b"\xff\xfe", Dialect::OpenAi),
            (b"", Dialect::OpenAi),
        ] {
            assert_eq!(Dialect::guessed(path), dialect, "{path:?}");
        }
    }

    #[test]
    fn each_dialect_says_it_in_its_own_shape() {
        let error = |dialect: Dialect, status| -> Value {
            serde_json::from_slice(&dialect.error(status, "too \"long\"", "too-large")).unwrap()
        };
        assert_eq!(
            error(Dialect::OpenAi, 413),
            json!({"error": {"message": "too \"long\"", "type": "invalid_request_error", "param": null, "code": "too-large"}})
        );
        assert_eq!(
            error(Dialect::Anthropic, 413),
            json!({"type": "error", "error": {"type": "request_too_large", "message": "too \"long\""}})
        );
        assert_eq!(
            error(Dialect::Cohere, 413),
            json!({"message": "too \"long\""})
        );
        assert_eq!(
            error(Dialect::Gemini, 413),
            json!({"error": {"code": 413, "message": "too \"long\"", "status": "INVALID_ARGUMENT"}})
        );
        assert_eq!(
            error(Dialect::Bedrock, 413),
            json!({"__type": "ValidationException", "message": "too \"long\""})
        );
        let kinds = [403, 404, 500, 503].map(|status| {
            [
                error(Dialect::Gemini, status)["error"]["status"].clone(),
                error(Dialect::Bedrock, status)["__type"].clone(),
            ]
        });
        assert_eq!(
            json!(kinds),
            json!([
                ["PERMISSION_DENIED", "AccessDeniedException"],
                ["NOT_FOUND", "ResourceNotFoundException"],
                ["INTERNAL", "InternalServerException"],
                ["UNAVAILABLE", "ServiceUnavailableException"],
            ])
        );
        let kinds = [400, 403, 404, 415, 500, 503].map(|status| {
            [Dialect::OpenAi, Dialect::Anthropic]
                .map(|dialect| error(dialect, status)["error"]["type"].clone())
        });
        assert_eq!(
            json!(kinds),
            json!([
                ["invalid_request_error", "invalid_request_error"],
                ["permission_error", "permission_error"],
                ["invalid_request_error", "not_found_error"],
                ["invalid_request_error", "invalid_request_error"],
                ["server_error", "api_error"],
                ["server_error", "overloaded_error"],
            ])
        );
    }
}
