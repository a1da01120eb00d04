//! Chat bodies of every [format](formats), OpenAI's, Anthropic's, Cohere's, Gemini's and Bedrock's: where their documents
//! stand, and the body with the documents in another order.
//!
//! Nothing is ever parsed into values and printed again: [`chat`] finds the messages and hashes them, [`content`] takes
//! their contents apart, [`parse`](parse::parse) finds the documents' byte ranges, a policy orders them, [`render`] says
//! what stands in each place, [`edit`] copies ranges. So every byte outside the documents stays as it came, and a
//! document's text keeps its escapes.
//!
//! The formats differ in where messages stand and what a message may hold, not in what it means, so they are read alike:
//! no body says which one it is.
//!
//! ```text
//! {"messages":[{"role":"user","content":"<doc id=\"a\">…</doc>\n<doc id=\"b\">…</doc>\nWhy?"}], …}
//!                                        └──── slot 0 ───────┘  └──── slot 1 ───────┘
//! ```
//!
//! Ranges cost half of what a `serde_json::Value` costs, and keep escapes, the spelling of numbers and the order of
//! keys. Memory is twice the body's.

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
pub(crate) use chat::{Chain, Entry, PARAMETERS, Wrap, around};
pub(crate) use contexts::{context_range, last_text};
pub(crate) use formats::PartStyle;
pub(crate) use found::{FoundDocument, Group, GroupLayout, Message, Source};
pub(crate) use json::{inner as inner_of, offset_in, range_in, unescaped};
pub(crate) use numbered::NumberedBlock;
pub use parse::{Parsed, parse, parse_with};
pub use question::{Question, question};
pub(crate) use ranks::Ranks;
pub use role::Role;
pub use salt::salted;

/// A body as text.
fn text_of(body: &[u8]) -> Result<&str, Skip> {
    looked(body.len());
    std::str::from_utf8(body).map_err(|error| Skip::InvalidUtf8 {
        offset: error.valid_up_to(),
    })
}

/// The text of a JSON string, as written; `None` if it is another value, or an escape stands for no character.
pub fn string(raw: &str) -> Option<Cow<'_, str>> {
    json::inner(raw).and_then(scan::decoded)
}

/// Why a request is left as it came. Displayed with the value and the limit; never with the body's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Skip {
    /// The body is not UTF-8.
    #[error("the body is not UTF-8: the byte at offset {offset} does not belong")]
    InvalidUtf8 {
        /// Of the first byte that does not belong.
        offset: usize,
    },
    /// The body is not a JSON object of a chat request's shape.
    #[error("the body is not a chat request in JSON: error at line {line}, column {column}")]
    InvalidJson {
        /// Where reading failed, from 1.
        line: usize,
        /// Where reading failed, from 1.
        column: usize,
    },
    /// An element of `documents` is neither a string nor an object with a string `text`, `content` or `snippet`, in it or
    /// in its object `data`.
    #[error(
        "documents[{index}] has no text: it must be a string or an object with a string `text`, `content` or `snippet`"
    )]
    MalformedDocument {
        /// Of the element.
        index: usize,
    },
    /// Nothing to order.
    #[error("the request has no documents")]
    NoDocuments,
    /// A `documents` array, but no user message that the documents could be written into.
    #[error("the request has documents but no user message with text to write them into")]
    NoUserMessage,
    /// More documents than the operator allows.
    #[error("the request has {found} documents, more than the limit of {limit}")]
    TooManyDocuments {
        /// In the body.
        found: usize,
        /// `documents.max`.
        limit: u32,
    },
    /// More messages than any chat has.
    #[error(
        "the request has {found} messages and parts of messages, more than the limit of {MAX_MESSAGES}"
    )]
    TooManyMessages {
        /// In the body.
        found: usize,
    },
    /// The model's name is too long to keep a tree for.
    #[error("the model's name has {bytes} bytes, more than the limit of {limit}")]
    LongModelName {
        /// The name's.
        bytes: usize,
        /// Bytes of a model's name, at most.
        limit: usize,
    },
}

/// Bytes of a model's name.
pub(crate) const MAX_MODEL_BYTES: usize = 512;

/// Messages of a chat. Each takes some 300 bytes while its body is read, and `{},` takes three in a body: without a bound,
/// 4 MiB of these would take 400.
pub(crate) const MAX_MESSAGES: usize = 8_192;

impl Skip {
    /// One word for headers and metrics.
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

    /// Every reason, for whoever defines a counter for each.
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
