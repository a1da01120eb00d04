//! Stores in which documents are searched: an index of Foreword or an external database.
//!
//! | store | stages | words | filters |
//! | --- | --- | --- | --- |
//! | [`Shelf`] | those of its index | BM25, joined by ranks | any field of the metadata |
//! | [`Pgvector`] | one | no | any field of `metadata` |
//! | [`Qdrant`] | one | no | any field of the payload |
//!
//! A store that cannot be reached fails only the current request; the next one tries again.

mod pgvector;
mod qdrant;
mod shelf;

pub use pgvector::Pgvector;
pub use qdrant::Qdrant;
pub use shelf::Shelf;

use crate::collection::ScoredDocument;
use crate::index::Metric;
use serde_json::{Map, Value};
use std::ops::ControlFlow;
use std::sync::Weak;

/// A search request to a store.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// The question's vector.
    pub vector: Vec<f32>,
    /// The question, if its words are searched too. Ignored if it has no word, and by stores without word search.
    pub words: Option<String>,
    /// Number of documents wanted.
    pub k: usize,
    /// Required values of metadata fields; an array accepts any of its values.
    pub filters: Map<String, Value>,
    /// A reference to a value that the caller owns, which cancels the search when the caller drops it; `None` for a
    /// search that is never cancelled. Stores that search in this process check it for each document.
    pub caller: Option<Weak<()>>,
}

/// The reason why a store did not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be reached or read, or failed. A later request may succeed.
    #[error("{0}")]
    Unavailable(String),
    /// The store refused the request as invalid.
    #[error("{0}")]
    Refused(String),
}

/// An external store's URL is invalid.
#[derive(Debug, thiserror::Error)]
pub enum StoreUrlError {
    /// The URL is not PostgreSQL's. It is not repeated, because it may contain a password.
    #[error("no PostgreSQL URL: {0}")]
    Postgres(postgres::Error),
    /// The URL is not that of a Qdrant collection.
    #[error(
        "{0:?} is not the URL of a collection, such as http://localhost:6333/collections/handbook"
    )]
    Qdrant(String),
}

/// Receives the best documents so far, and decides whether the search continues.
pub type Stage<'s> = dyn FnMut(&[ScoredDocument]) -> ControlFlow<()> + 's;

/// A store of documents. Its calls block.
pub trait Store: Send + Sync {
    /// Returns the best documents, best first. `stage` receives the best so far whenever these are other documents or
    /// in another order; if any are found, its last call receives the returned ones, except from a store that reports at
    /// intervals of time ([`Shelf::in_slices`]).
    ///
    /// # Errors
    /// Returns a [`StoreError`] when the store is unavailable or refuses the request.
    fn search(&self, ask: &Ask, stage: &mut Stage<'_>) -> Result<Vec<ScoredDocument>, StoreError>;

    /// Returns a version that changes when the store reports changed documents, for callers that cache results. Not
    /// every store reports every change.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`] when the store cannot be reached.
    fn version(&self) -> Result<String, StoreError>;

    /// Returns the name of the embedder that made the store's vectors; `None` if the store does not record it.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`] when the store cannot be reached.
    fn embedder(&self) -> Result<Option<String>, StoreError>;

    /// Returns the measure by which the store compares vectors; `None` if it is not known, or another one.
    fn metric(&self) -> Option<Metric> {
        None
    }

    /// Returns a fault that did not keep the store from answering, for the log; `None` if there is no new one. Each
    /// fault is returned once.
    fn take_warning(&self) -> Option<String> {
        None
    }
}
