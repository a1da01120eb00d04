//! The core of Foreword: orders a request's documents so that the prompt begins like one whose KV state the engine
//! still has.
//!
//! ```text
//!  body ──▶ body ──▶ messages ──▶ request ──▶ order ──▶ render, edit ──▶ body
//!         (chat,    and their      │   ▲        │         (same bytes, moved; hints added)
//!         parse)    documents      │   │        ▼
//!                                  │  policy ◀─ knowledge tree (what the engine is believed to hold)
//!                                  ▼
//!                               conversation (how a chat's earlier messages were forwarded, and which documents they hold)
//! ```
//!
//! [`Orderer`] is the entry point: one call per request. The same code runs in the Envoy filter, in the browser, in the
//! host and in offline replay, so all decide alike. It does no I/O, reads no clock, starts no thread, and does not
//! panic on any input.
//!
//! ```
//! use foreword_ordering::{Config, Orderer, Skip, Tenant};
//!
//! let chat = |documents: &str| {
//!     format!(r#"{{"messages": [{{"role": "user", "content": "Which?"}}], "documents": [{documents}]}}"#)
//! };
//! let mut orderer = Orderer::new(Config::default());
//! let first = chat(r#"{"id": "a", "text": "…"}, {"id": "b", "text": "…"}"#);
//! orderer.rewrite(Tenant::default(), first.as_bytes())?;
//!
//! // The next request brings both again after another, which keeps its place next to the question: it ranks best.
//! let next = chat(r#"{"id": "c", "text": "…"}, {"id": "b", "text": "…"}, {"id": "a", "text": "…"}"#);
//! let rewrite = orderer.rewrite(Tenant::default(), next.as_bytes())?;
//! assert_eq!(rewrite.report.matched, 2);
//! let body = String::from_utf8(rewrite.body.expect("it was changed")).expect("it is text");
//! let order = ["id=\\\"b", "id=\\\"a", "id=\\\"c", "c>b>a", "Which?"].map(|part| body.find(part));
//! assert!(order.is_sorted() && order[0].is_some());
//! # Ok::<(), Skip>(())
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod arrangement;
mod body;
mod bursts;
mod bytes;
mod cache_field;
mod client_order;
pub mod config;
mod conversation;
pub mod cuts;
pub mod document;
mod engines;
mod experiment;
pub mod feed;
pub mod hash;
pub mod head;
pub mod hexadecimal;
pub mod hint;
pub mod listing;
pub mod lru;
mod named;
#[doc(hidden)]
pub mod object;
mod orderer;
pub mod path;
mod peer_update;
pub mod policy;
pub mod random;
#[doc(hidden)]
pub mod recency;
mod request;
mod slots;
#[doc(hidden)]
pub mod sort;
mod standalone;
mod tenant;
pub mod tree;
mod trees;
#[cfg(any(test, feature = "count-work"))]
pub mod work;
#[cfg(not(any(test, feature = "count-work")))]
mod work;

pub use body::{Parsed, Question, Retrieved, Role, Skip, parse, parse_with, question, salted};
#[doc(hidden)]
pub use body::{scan, string};
pub use bursts::{BurstLimits, BurstTicket, Bursts, Entry, Opening, Release, Released};
pub use bytes::BadBytes;
pub use cache_field::cache_field;
pub use config::{Config, DocumentsField, KeptAnswers, RawConfig};
pub use engines::{EngineCandidate, EngineId, MAX_ENGINES};
pub use experiment::{Arm, Experiment};
pub use listing::documents_of;
pub use object::ConfigError;
pub use orderer::{Orderer, Remembered, Rewrite, RewriteOptions, Trial};
pub use peer_update::{Correction, OrderingRecord, PeerUpdate, RemoteRecord, Residency, Usage};
pub use request::Report;
pub use standalone::{StandaloneDocument, StandaloneOrder};
pub use tenant::Tenant;
