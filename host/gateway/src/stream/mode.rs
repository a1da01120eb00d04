//! The modes in which the gateway sends bodies, from a stream's first message.
//!
//! | mode | of a request | of a response |
//! | --- | --- | --- |
//! | NONE | only requests that need no body are accepted | no body is read |
//! | BUFFERED | the default: one message, one answer | one message, one answer |
//! | BUFFERED_PARTIAL | as BUFFERED if the whole body arrived; otherwise it counts as too large | as BUFFERED |
//! | FULL_DUPLEX_STREAMED | pieces, which are collected, then sent back | each piece is sent back at once |
//! | STREAMED | refused: the body is never complete here, so nothing can be ordered | each piece is answered |
//! | GRPC | refused | each piece is sent back at once |

use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::ProtocolConfiguration;

/// The modes in which Envoy sends the bodies of requests and of responses. `Grpc` also stands for unknown modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Modes {
    pub(super) request: BodySendMode,
    pub(super) response: BodySendMode,
}

impl Modes {
    /// Returns the modes that `config` states. Without `config`, assumes that the gateway buffers requests.
    pub(super) fn of(config: Option<&ProtocolConfiguration>) -> Self {
        let mode = |mode: i32| BodySendMode::try_from(mode).unwrap_or(BodySendMode::Grpc);
        match config {
            Some(config) => Self {
                request: mode(config.request_body_mode),
                response: mode(config.response_body_mode),
            },
            // A piece that is not the last means that the body exceeds the buffer.
            None => Self {
                request: BodySendMode::BufferedPartial,
                response: BodySendMode::Streamed,
            },
        }
    }

    /// Returns whether the stream may be closed before the response has passed. False if responses are streamed in both
    /// directions, because pieces on their way would be lost. The end of the request does not matter, since a gateway
    /// may respond before it.
    pub(super) fn may_close(self) -> bool {
        !matches!(
            self.response,
            BodySendMode::FullDuplexStreamed | BodySendMode::Grpc
        )
    }
}
