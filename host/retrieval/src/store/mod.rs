//! Where documents are searched: an index of ours, or a store that someone already runs.
//!
//! | store | stages | words | filters |
//! | --- | --- | --- | --- |
//! | [`Shelf`] | as its index has them | BM25, joined by ranks | any field of the metadata |
//! | [`Pgvector`] | one | no | any field of `metadata` |
//! | [`Qdrant`] | one | no | any field of the payload |
//!
//! A store that cannot be reached is an error of that one request, and is tried again with the next.

mod pgvector;
mod qdrant;
mod shelf;

pub use pgvector::Pgvector;
pub use qdrant::Qdrant;
pub use shelf::Shelf;

use crate::collection::Found;
use serde_json::{Map, Value};
use std::ops::ControlFlow;

/// What is asked of a store.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// The question's vector.
    pub vector: Vec<f32>,
    /// The question itself, where its words shall count too. Stores without words do without.
    pub words: Option<String>,
    /// Documents wanted.
    pub k: usize,
    /// Fields of a document's metadata and the values that they must have; of an array, any one.
    pub filters: Map<String, Value>,
}

/// Why a store gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It is not there, or not whole. The next request may find it.
    #[error("{0}")]
    Unavailable(String),
    /// What was asked for makes no sense to it.
    #[error("{0}")]
    Refused(String),
}

/// Gets the best documents so far, and says whether the search shall go on.
pub type Stage<'s> = dyn FnMut(&[Found]) -> ControlFlow<()> + 's;

/// A place where documents are searched. Blocks while it does.
pub trait Store: Send + Sync {
    /// The best documents, best first. `stage` gets the best so far whenever they have changed, the last time with what
    /// is returned.
    ///
    /// # Errors
    /// [`StoreError`].
    fn search(&self, ask: &Ask, stage: &mut Stage<'_>) -> Result<Vec<Found>, StoreError>;

    /// Changes whenever the same question may find other documents, for whoever remembers what was found.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    fn version(&self) -> Result<String, StoreError>;

    /// The name of the embedder whose vectors it holds, where it knows.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    fn embedder(&self) -> Result<Option<String>, StoreError>;
}
