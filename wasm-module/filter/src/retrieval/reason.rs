//! Why a chat got no documents, as one word for headers, counters and logs.

use std::fmt;

foreword_ordering::named! {
    /// The reason why a chat got no documents.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Reason {
        /// The client's field `retrieval`, or its header, cannot be read.
        BadRequest = "bad-request",
        /// The question exceeds the limit for searches.
        LongQuestion = "long-question",
        /// The embedder or the retriever could not be reached.
        Unreachable = "unreachable",
        /// The response did not arrive in time.
        Timeout = "timeout",
        /// The response is an error.
        Status = "status",
        /// The response exceeds the limit.
        TooLarge = "too-large",
        /// The response is not a retriever's or embedder's.
        BadAnswer = "bad-answer",
        /// The question's vector is invalid, or does not fit this cache.
        BadEmbedding = "bad-embedding",
        /// The current thread is already using the cache.
        Busy = "busy",
    }
}

impl Reason {
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
