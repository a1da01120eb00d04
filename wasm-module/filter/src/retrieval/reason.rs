//! Why a chat got no documents, as one word for headers, counters and logs.

use std::fmt;

/// The reason why a chat got no documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The client's field `retrieval`, or its header, cannot be read.
    BadRequest,
    /// The question exceeds the limit for searches.
    LongQuestion,
    /// No server responded.
    Unreachable,
    /// The response did not arrive in time.
    Timeout,
    /// The response is an error.
    Status,
    /// The response exceeds the limit.
    TooLarge,
    /// The response is not a retriever's or embedder's.
    BadAnswer,
    /// The question's vector is invalid, or does not fit this cache.
    BadEmbedding,
    /// The current thread is already using the cache.
    Busy,
}

impl Reason {
    /// All reasons, for the counters.
    pub(crate) const ALL: [Self; 9] = [
        Self::BadRequest,
        Self::LongQuestion,
        Self::Unreachable,
        Self::Timeout,
        Self::Status,
        Self::TooLarge,
        Self::BadAnswer,
        Self::BadEmbedding,
        Self::Busy,
    ];

    /// Returns the reason in kebab case.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::BadRequest => "bad-request",
            Self::LongQuestion => "long-question",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::Status => "status",
            Self::TooLarge => "too-large",
            Self::BadAnswer => "bad-answer",
            Self::BadEmbedding => "bad-embedding",
            Self::Busy => "busy",
        }
    }

    /// Returns the status of an error response to the client.
    pub(crate) fn refusal_status(self) -> u16 {
        match self {
            Self::BadRequest | Self::LongQuestion => 400,
            Self::Timeout => 504,
            _ => 503,
        }
    }
}

/// Writes the reason for the client.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BadRequest => {
                "what the request says about retrieval is neither a boolean nor an object of known fields with an embedding of numbers"
            }
            Self::LongQuestion => "the last user message is too long to be searched for",
            Self::Unreachable => "no documents could be retrieved: nobody answered",
            Self::Timeout => "no documents could be retrieved in time",
            Self::Status | Self::TooLarge | Self::BadAnswer => {
                "no documents could be retrieved: the answer was none that can be used"
            }
            Self::BadEmbedding => {
                "no documents could be retrieved: the question's embedding is none that can be used"
            }
            Self::Busy => "the gateway is busy",
        })
    }
}
