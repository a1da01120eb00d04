//! Errors in a line of a log.

use foreword_ordering::Skip;

/// Why a line is not a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLine {
    /// The line is too long.
    #[error("the line has more than {limit} bytes")]
    TooLong {
        /// Most bytes of a line, the limit.
        limit: u64,
    },
    /// The line is not a JSON object.
    #[error("not a JSON object: error at column {column}")]
    NotAnObject {
        /// Column where parsing failed, in bytes from 1.
        column: usize,
    },
    /// The line is neither a chat body nor a ranking.
    #[error("neither a chat body (no `messages`, `input` or `contents`) nor a ranking (no `docs`)")]
    Neither,
    /// `request` or `body` is not a JSON body.
    #[error("`request` (or `body`) is neither an object nor a string that holds one")]
    Request,
    /// `docs` is not a list.
    #[error("`docs` is not a list")]
    DocsNotAList,
    /// An element of `docs` is not a valid id.
    #[error("docs[{index}] is neither a string nor a number")]
    Id {
        /// Index of the element.
        index: usize,
    },
    /// There are more documents than can be ordered at once.
    #[error("`docs` has {found} documents, more than the limit of {limit}")]
    TooManyDocuments {
        /// Number of documents in the line.
        found: usize,
        /// Most documents at once.
        limit: u32,
    },
    /// `tokens` is neither a number nor a list of numbers.
    #[error(
        "`tokens` is neither a number from 0 to {} nor a list of such",
        u32::MAX
    )]
    Tokens,
    /// `tokens` and `docs` have different lengths.
    #[error("`tokens` has {tokens} elements, `docs` has {docs}")]
    TokensOfOthers {
        /// Number of elements of `tokens`.
        tokens: usize,
        /// Number of elements of `docs`.
        docs: usize,
    },
    /// The core does not accept the body.
    #[error("{0}")]
    Body(Skip),
}
