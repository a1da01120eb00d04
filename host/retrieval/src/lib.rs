//! Retrieval: finds and ranks documents for a question, in stages.
//!
//! ```text
//!   folder ──▶ ingest ──▶ embedder ──▶ collection ──▶ file (mapped, checksummed, replaced whole)
//!              read, cut   text to      ├ vectors ── index: flat, IVF, HNSW ── a top k after every stage
//!                          vector       ├ words ──── BM25
//!                                       └ records    the documents themselves
//!   question ─▶ embedder ─▶ collection.search ─▶ stage, stage, … ─▶ ranked documents
//!                         └ store: PostgreSQL with pgvector, Qdrant (one stage)
//! ```
//!
//! This crate owns vectors, words, their indexes and the file that contains them. It has no notion of prompts, orders
//! of documents or HTTP servers, and runs no daemon. A [`Collection`] is immutable; to update one, write a new file in
//! its place.

pub mod collection;
mod document;
pub mod embedder;
pub mod file;
pub mod index;
pub mod ingest;
pub mod store;
mod words;

pub use collection::{Collection, Editor, Query, ScoredDocument, Spec, Tuning};
pub use document::Document;
pub use embedder::{EmbedError, Embedder, Embedding};
pub use store::{Ask, Shelf, Store, StoreError};
pub use words::{Words, has_words};
