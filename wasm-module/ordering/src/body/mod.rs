//! Reads chat bodies of every [format](formats) (OpenAI, Anthropic, Cohere, Gemini, Bedrock), finds their documents,
//! and writes the body with the documents in another order.
//!
//! Nothing is parsed into values and printed again: [`chat`] finds the messages and hashes them, [`content`] divides
//! their contents, [`parse`](parse::parse) finds the documents' byte ranges, a policy orders them, [`render`] makes the
//! text for each place, [`edit`] copies ranges. So every byte outside the documents is unchanged, and a document's text
//! keeps its escapes.
//!
//! The formats differ in where messages are and what a message may contain, not in meaning. A body does not name its
//! format, so one reader handles all.
//!
//! ```text
//! {"messages":[{"role":"user","content":"<doc id=\"a\">…</doc>\n<doc id=\"b\">…</doc>\nWhy?"}], …}
//!                                        └──── slot 0 ───────┘  └──── slot 1 ───────┘
//! ```
//!
//! Ranges cost half as much as a `serde_json::Value`, and keep escapes, number spelling and key order. Memory is twice
//! the body's.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod array;
mod chat;
mod clients;
mod content;
mod contexts;
pub(crate) mod edit;
pub(crate) mod escape;
mod formats;
mod found;
mod json;
mod labels;
mod lists;
mod numbered;
mod parse;
mod question;
mod ranks;
mod rebase;
pub(crate) mod render;
mod results;
mod role;
mod salt;
pub mod scan;
mod search;
mod tags;
#[cfg(test)]
mod tests;
pub(crate) mod text;

use crate::work::looked;
use std::borrow::Cow;

pub use array::Retrieved;
pub(crate) use array::element_text;
pub(crate) use chat::{PARAMETERS, around};
pub(crate) use contexts::{ContextTexts, last_text};
pub(crate) use formats::PartStyle;
pub(crate) use found::{Chain, Entry, FoundDocument, Group, GroupLayout, Message, Source, Wrap};
pub(crate) use json::{inner as inner_of, offset_in, range_in, unescaped};
pub(crate) use numbered::NumberedBlock;
pub use parse::{Parsed, parse, parse_with};
pub use question::{Question, question};
pub(crate) use ranks::Ranks;
pub use role::Role;
pub use salt::salted;

/// Returns the body as text; an error if it is not UTF-8.
fn text_of(body: &[u8]) -> Result<&str, Skip> {
    looked(body.len());
    std::str::from_utf8(body).map_err(|error| Skip::InvalidUtf8 {
        offset: error.valid_up_to(),
    })
}

/// Returns the unescaped text of a JSON string; `None` if `raw` is another JSON value, or if the string has an unpaired
/// surrogate, or U+FFFD together with an escape.
pub fn string(raw: &str) -> Option<Cow<'_, str>> {
    json::inner(raw).and_then(scan::decoded)
}

/// The reason why a body is forwarded unchanged. The message of the error contains the value and the limit, never text
/// of the body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Skip {
    /// The body is not UTF-8.
    #[error("the body is not UTF-8: the byte at offset {offset} does not belong")]
    InvalidUtf8 {
        /// Offset of the first invalid byte.
        offset: usize,
    },
    /// The body is not a JSON object in the shape of a chat request.
    #[error("the body is not a chat request in JSON: error at line {line}, column {column}")]
    InvalidJson {
        /// Line of the error in the body, from 1.
        line: usize,
        /// Column of the error in the body, from 1.
        column: usize,
    },
    /// An element of `documents` is neither a string nor an object with a string `text`, `content` or `snippet`, in the
    /// object itself or in its `data`.
    #[error(
        "documents[{index}] has no text: it must be a string or an object with a string `text`, `content` or `snippet`"
    )]
    MalformedDocument {
        /// Index of the element in the `documents` array.
        index: usize,
    },
    /// The body has no documents to order, and nothing else is to be changed.
    #[error("the request has no documents")]
    NoDocuments,
    /// The body has a `documents` array, or a retriever found documents, but no user message can receive them.
    #[error("the request has documents but no user message with text to write them into")]
    NoUserMessage,
    /// The body has more documents than `documents.max`.
    #[error("the request has {found} documents, more than the limit of {limit}")]
    TooManyDocuments {
        /// Number of documents found when the limit was exceeded.
        found: usize,
        /// The maximum number of documents, `documents.max`.
        limit: u32,
    },
    /// The chat has more messages and parts of messages than `MAX_MESSAGES`, the number that is read of one request.
    #[error(
        "the request has {found} messages and parts of messages, more than the limit of {MAX_MESSAGES}"
    )]
    TooManyMessages {
        /// Number of messages and parts of messages counted when the limit was found to be exceeded.
        found: usize,
    },
    /// The name of the request's model is too long.
    #[error("the model's name has {bytes} bytes, more than the limit of {limit}")]
    LongModelName {
        /// Length of the model's name, in bytes.
        bytes: usize,
        /// The maximum length of a model's name, in bytes.
        limit: usize,
    },
}

/// The maximum length of a model's name, in bytes.
pub(crate) const MAX_MODEL_BYTES: usize = 512;

/// The maximum number of messages of a chat and of the parts of their contents together. Each message takes about 300
/// bytes of memory while its body is read, and `{},` takes three bytes in a body: without a bound, a body of 4 MiB
/// would take 400 MiB.
pub(crate) const MAX_MESSAGES: usize = 8_192;

impl Skip {
    /// Returns the reason in one word, such as `invalid-json`, for headers and metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidUtf8 { .. } => "invalid-utf8",
            Self::InvalidJson { .. } => "invalid-json",
            Self::MalformedDocument { .. } => "malformed-document",
            Self::NoDocuments => "no-documents",
            Self::NoUserMessage => "no-user-message",
            Self::TooManyDocuments { .. } => "too-many-documents",
            Self::TooManyMessages { .. } => "too-many-messages",
            Self::LongModelName { .. } => "long-model-name",
        }
    }

    /// All values of [`Skip::reason`], for example to define a counter for each.
    pub const REASONS: [&'static str; 8] = [
        "invalid-utf8",
        "invalid-json",
        "malformed-document",
        "no-documents",
        "no-user-message",
        "too-many-documents",
        "too-many-messages",
        "long-model-name",
    ];
}
