//! Documents with their vectors and words: what is searched.
//!
//! ```text
//!   slot       0      1      2      3  …
//!   vectors    ▒▒▒▒   ▒▒▒▒   ▒▒▒▒   ▒▒▒▒      ◀── index (slots by nearness)
//!   records    {id, title, text, metadata}
//!   deleted    0      1      0      0         a slot is never used twice; an editor drops them when there are many
//! ```
//!
//! | file | answers |
//! | --- | --- |
//! | `search` | which documents a query finds, stage after stage; vectors and words together |
//! | `edit` | documents that come, change and go |
//! | `persist` | what the file holds, and whether what it holds makes sense |

mod edit;
mod persist;
mod search;

pub use edit::Editor;
pub use search::{Query, QueryError};

use crate::Document;
use crate::file::{Array, FileError};
use crate::index::{Flat, Hnsw, HnswOptions, Index, Ivf, IvfOptions, Kind, Metric, Slot, Vectors};
use crate::words::Words;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// What a collection is made for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Components of its vectors.
    pub dimensions: u32,
    /// How they are compared.
    pub metric: Metric,
    /// How near ones are found.
    pub kind: Kind,
    /// The name of the embedder that made them.
    pub embedder: String,
}

/// A document that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The document.
    pub document: Arc<Document>,
    /// Larger is better. By vectors alone it is the [`Metric`]'s, with words the sum of reciprocal ranks.
    pub score: f32,
}

/// See the module's text. Does not change while it is searched: an [`Editor`] makes another one of it.
pub struct Collection {
    spec: Spec,
    vectors: Vectors,
    index: Box<dyn Index>,
    words: Words,
    records: Records,
    /// A bit for each slot.
    deleted: Array<u64>,
    /// Of each slot's document.
    fingerprints: Array<u64>,
}

/// Documents as JSON, those of a file first.
#[derive(Default)]
struct Records {
    path: PathBuf,
    starts: Array<u64>,
    bytes: Array<u8>,
    added: Vec<Vec<u8>>,
}

impl Collection {
    /// One without documents.
    #[must_use]
    pub fn new(spec: Spec) -> Self {
        let vectors = Vectors::new(spec.dimensions, spec.metric);
        Self {
            index: build(spec.kind, &vectors),
            vectors,
            words: Words::default(),
            records: Records::default(),
            deleted: Array::default(),
            fingerprints: Array::default(),
            spec,
        }
    }

    /// What it is made for.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Documents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.vectors.len() - self.deleted_count()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its vectors, deleted ones included.
    #[must_use]
    pub fn vectors(&self) -> &Vectors {
        &self.vectors
    }

    /// Its index.
    #[must_use]
    pub fn index(&self) -> &dyn Index {
        &*self.index
    }

    /// The document in a slot.
    ///
    /// # Errors
    /// [`FileError::Damaged`] when its record cannot be read.
    pub fn document(&self, slot: Slot) -> Result<Document, FileError> {
        self.records.get(slot)
    }

    fn is_deleted(&self, slot: Slot) -> bool {
        let word = self.deleted.get(slot.0 as usize / 64);
        word.is_some_and(|word| word & (1 << (slot.0 % 64)) != 0)
    }

    fn deleted_count(&self) -> usize {
        self.deleted
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Slots of documents, ascending.
    fn live(&self) -> impl Iterator<Item = Slot> {
        let slots = (0..self.vectors.len() as u32).map(Slot);
        slots.filter(|slot| !self.is_deleted(*slot))
    }
}

impl Records {
    fn mapped(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    fn raw(&self, slot: Slot) -> Option<&[u8]> {
        let at = slot.0 as usize;
        match at.checked_sub(self.mapped()) {
            Some(at) => self.added.get(at).map(Vec::as_slice),
            None => self
                .bytes
                .get(self.starts[at] as usize..self.starts[at + 1] as usize),
        }
    }

    fn get(&self, slot: Slot) -> Result<Document, FileError> {
        let raw = self.raw(slot).unwrap_or_default();
        serde_json::from_slice(raw).map_err(|error| FileError::Damaged {
            path: self.path.clone(),
            reason: format!("the record of slot {}: {error}", slot.0),
        })
    }
}

/// An index of that kind with its defaults for so many vectors.
fn build(kind: Kind, vectors: &Vectors) -> Box<dyn Index> {
    match kind {
        Kind::Flat => Box::new(Flat),
        Kind::Ivf => Box::new(Ivf::build(vectors, IvfOptions::for_count(vectors.len()))),
        Kind::Hnsw => Box::new(Hnsw::build(vectors, HnswOptions::default())),
    }
}
