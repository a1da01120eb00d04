//! Why no documents were retrieved for a chat, as one word for headers, counters and logs.

use std::fmt;

foreword_ordering::named! {
    /// The reason why no documents were retrieved for a chat.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Reason {
        /// The field `retrieval` in the client's request, or its header with the embedding vector, is invalid.
        BadRequest = "bad-request",
        /// The question is longer than the configured `max_question_bytes`.
        LongQuestion = "long-question",
        /// The embedder or the retriever could not be reached.
        Unreachable = "unreachable",
        /// The response of the embedder or the retriever did not arrive in time.
        Timeout = "timeout",
        /// The embedder or the retriever responded with an error status.
        Status = "status",
        /// The response of the embedder or the retriever is longer than the configured maximum.
        TooLarge = "too-large",
        /// The response has status 200, but is not what an embedder or a retriever returns.
        BadAnswer = "bad-answer",
        /// The question's embedding vector is invalid, or the similarity cache refuses it.
        BadEmbedding = "bad-embedding",
        /// The similarity cache is locked by an outer callback of the same thread.
        Busy = "busy",
    }
}

impl Reason {
    /// Returns the status of the error response to the client, if the request is refused for this reason.
    pub(crate) fn refusal_status(self) -> u16 {
        match self {
            Self::BadRequest | Self::LongQuestion => 400,
            Self::Timeout => 504,
            _ => 503,
        }
    }
}

/// Writes the message that a refused client receives.
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
