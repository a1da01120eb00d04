//! Collections: the documents that are searched, with their vectors and words.
//!
//! ```text
//!   slot       0      1      2      3  …
//!   vectors    ▒▒▒▒   ▒▒▒▒   ▒▒▒▒   ▒▒▒▒      ◀── index (slots by nearness)
//!   records    {id, title, text, metadata}
//!   deleted    0      1      0      0         a slot is never reused; an editor drops deleted ones when there are many
//! ```
//!
//! | file | answers |
//! | --- | --- |
//! | `search` | which documents a query finds, stage by stage; vectors and words together |
//! | `edit` | how documents are added, replaced and deleted |
//! | `persist` | what the file contains, and whether its parts are consistent |

mod edit;
mod persist;
mod search;

pub use edit::Editor;
pub use search::Query;

use crate::Document;
use crate::file::{Array, FileError};
use crate::index::{Flat, Hnsw, HnswOptions, Index, Ivf, IvfOptions, Kind, Metric, Slot, Vectors};
use crate::words::Words;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// Properties that are fixed when a collection is created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Number of components of each vector.
    pub dimensions: u32,
    /// The measure of similarity between vectors.
    pub metric: Metric,
    /// The kind of index that finds near vectors.
    pub kind: Kind,
    /// Name of the embedder that made the vectors.
    pub embedder: String,
    /// Settings of the index.
    #[serde(default)]
    pub tuning: Tuning,
}

/// Settings of an index; `None` for the kind's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// Number of clusters of an IVF index; see [`IvfOptions::clusters`].
    pub clusters: Option<u32>,
    /// Number of clusters that a search of an IVF index visits, at most `clusters`; see [`IvfOptions::probes`].
    pub probes: Option<u32>,
    /// Number of links of a vector in an HNSW index; see [`HnswOptions::links`].
    pub links: Option<u16>,
    /// Number of candidates for the links of a vector in an HNSW index; see [`HnswOptions::build_breadth`].
    pub build_breadth: Option<u16>,
    /// Number of candidates that a search of an HNSW index keeps; see [`HnswOptions::breadth`].
    pub breadth: Option<u16>,
}

impl Tuning {
    /// Returns the options of an IVF over this number of vectors.
    fn ivf(self, vectors: usize) -> IvfOptions {
        let options = match self.clusters {
            Some(clusters) => IvfOptions::of_clusters(clusters),
            None => IvfOptions::for_count(vectors),
        };
        IvfOptions {
            probes: self.probes.unwrap_or(options.probes),
            ..options
        }
    }

    fn hnsw(self) -> HnswOptions {
        let options = HnswOptions::default();
        HnswOptions {
            links: self.links.unwrap_or(options.links),
            build_breadth: self.build_breadth.unwrap_or(options.build_breadth),
            breadth: self.breadth.unwrap_or(options.breadth),
        }
    }
}

/// A document that a search found, with its score.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredDocument {
    /// The document that was found.
    pub document: Arc<Document>,
    /// Score of the document; larger is better. In a search by vectors alone it is the [`Metric`]'s value; if words are
    /// searched too, it is the sum of reciprocal ranks.
    pub score: f32,
}

/// Documents with their vectors, words and index. A collection is immutable: an [`Editor`] makes a new one from it.
pub struct Collection {
    spec: Spec,
    vectors: Vectors,
    index: Box<dyn Index>,
    words: Words,
    records: Records,
    /// One bit for each slot, set if it is deleted.
    deleted: Array<u64>,
    /// Hash of the document in each slot, as JSON.
    fingerprints: Array<u64>,
}

/// The documents of all slots as JSON: first those of the mapped file, then those that were added to it.
#[derive(Default)]
struct Records {
    path: PathBuf,
    /// Start of each of the file's documents in `bytes`, and the end of the last one.
    starts: Array<u64>,
    bytes: Array<u8>,
    added: Vec<Vec<u8>>,
}

impl Collection {
    /// Returns a collection without documents.
    #[must_use]
    pub fn new(spec: Spec) -> Self {
        let vectors = Vectors::new(spec.dimensions, spec.metric);
        Self {
            index: build(&spec, &vectors),
            vectors,
            words: Words::default(),
            records: Records::default(),
            deleted: Array::default(),
            fingerprints: Array::default(),
            spec,
        }
    }

    /// Returns the properties that the collection was created with.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns the number of documents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.vectors.len() - self.deleted_count()
    }

    /// Returns whether there are no documents.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the vectors of all slots, including those of deleted documents.
    #[must_use]
    pub fn vectors(&self) -> &Vectors {
        &self.vectors
    }

    /// Returns the index over the collection's vectors.
    #[must_use]
    pub fn index(&self) -> &dyn Index {
        &*self.index
    }

    /// Returns the document in a slot.
    ///
    /// # Errors
    /// Returns [`FileError::Damaged`] when the record cannot be read.
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

    /// Iterates over the slots of documents that are not deleted, ascending.
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

/// Builds the index of `spec` for `vectors`.
fn build(spec: &Spec, vectors: &Vectors) -> Box<dyn Index> {
    match spec.kind {
        Kind::Flat => Box::new(Flat),
        Kind::Ivf => Box::new(Ivf::build(vectors, spec.tuning.ivf(vectors.len()))),
        Kind::Hnsw => Box::new(Hnsw::build(vectors, spec.tuning.hnsw())),
    }
}
