//! Editing a collection: adding, replacing and deleting documents.

use super::{Collection, Spec, build};
use crate::Document;
use crate::file::FileError;
use crate::index::{Kind, Refused, Slot};
use fxhash::FxHashMap;
use xxhash_rust::xxh3::xxh3_64;

/// Edits a collection and returns a new one. Documents are identified by their ids.
pub struct Editor {
    collection: Collection,
    /// The slot of each document, by the document's id.
    ids: FxHashMap<String, Slot>,
}

impl Editor {
    /// Starts from `collection`. Reads all of its records for their ids.
    ///
    /// # Errors
    /// Returns [`FileError::Damaged`] when a record cannot be read.
    pub fn new(collection: Collection) -> Result<Self, FileError> {
        let mut ids = FxHashMap::default();
        for slot in collection.live() {
            ids.insert(collection.document(slot)?.id, slot);
        }
        Ok(Self { collection, ids })
    }

    /// Returns whether the collection has a document with the same id and the same content.
    #[must_use]
    pub fn holds(&self, document: &Document) -> bool {
        let slot = self.ids.get(&document.id);
        slot.is_some_and(|slot| {
            self.collection.fingerprints.get(slot.0 as usize) == Some(&fingerprint(&json(document)))
        })
    }

    /// Iterates over the ids of all documents.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.ids.keys().map(String::as_str)
    }

    /// Adds a document with its vector, and deletes an earlier document with the same id.
    ///
    /// # Errors
    /// Returns [`Refused`] when the vector is unusable; the collection is then unchanged.
    pub fn put(&mut self, document: &Document, vector: &[f32]) -> Result<(), Refused> {
        let collection = &mut self.collection;
        let slot = collection.vectors.push(vector)?;
        collection.index.add(&collection.vectors, slot);
        collection.words.add(slot, &document.searched_text());
        let record = json(document);
        collection.fingerprints.to_mut().push(fingerprint(&record));
        collection.records.added.push(record);
        let words = slot.0 as usize / 64 + 1;
        if collection.deleted.len() < words {
            collection.deleted.to_mut().resize(words, 0);
        }
        if let Some(before) = self.ids.insert(document.id.clone(), slot) {
            self.delete(before);
        }
        Ok(())
    }

    /// Deletes a document. Returns whether it was present.
    pub fn remove(&mut self, id: &str) -> bool {
        match self.ids.remove(id) {
            Some(slot) => {
                self.delete(slot);
                true
            }
            None => false,
        }
    }

    /// Returns the edited collection. The collection is rebuilt when more than a quarter of its slots are deleted, and
    /// an IVF index when the number of slots has more than doubled since it was clustered.
    ///
    /// # Errors
    /// Returns [`FileError::Damaged`] when a record cannot be read.
    pub fn finish(self) -> Result<Collection, FileError> {
        let collection = self.collection;
        let deleted = collection.deleted_count();
        let slots = collection.vectors.len();
        let is_loose = 4 * deleted > slots;
        let clustered = collection.index.clustered();
        let has_grown = clustered.is_some_and(|count| slots > 2 * count as usize);
        match (is_loose, has_grown) {
            (true, _) => compacted(&collection),
            (false, true) => Ok(Collection {
                index: build(&collection.spec, &collection.vectors),
                ..collection
            }),
            (false, false) => Ok(collection),
        }
    }

    fn delete(&mut self, slot: Slot) {
        let deleted = self.collection.deleted.to_mut();
        deleted[slot.0 as usize / 64] |= 1 << (slot.0 % 64);
    }
}

/// Returns a collection with the documents of `collection` and no deleted slots.
fn compacted(collection: &Collection) -> Result<Collection, FileError> {
    // The documents are moved without an index, which is built once at the end.
    let spec = Spec {
        kind: Kind::Flat,
        ..collection.spec.clone()
    };
    let mut editor = Editor::new(Collection::new(spec))?;
    for slot in collection.live() {
        let document = collection.document(slot)?;
        let put = editor.put(&document, collection.vectors.row(slot));
        put.map_err(|refused| FileError::Damaged {
            path: collection.records.path.clone(),
            reason: format!("the vector of slot {}: {refused}", slot.0),
        })?;
    }
    let mut compact = editor.collection;
    compact.spec = collection.spec.clone();
    compact.index = build(&compact.spec, &compact.vectors);
    Ok(compact)
}

fn json(document: &Document) -> Vec<u8> {
    // Documents consist of strings and JSON values with strings for keys, so serialisation cannot fail.
    serde_json::to_vec(document).unwrap_or_default()
}

fn fingerprint(record: &[u8]) -> u64 {
    xxh3_64(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collection::Tuning;
    use crate::index::Metric;

    #[test]
    fn many_small_edits_are_clustered_anew_as_one_large_edit_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("collection");
        let mut collection = Collection::new(Spec {
            dimensions: 2,
            metric: Metric::Cosine,
            kind: Kind::Ivf,
            embedder: "none".to_owned(),
            tuning: Tuning::default(),
        });
        let mut clustered = Vec::new();
        for id in 0..100_u8 {
            let mut editor = Editor::new(collection).unwrap();
            let document = Document {
                id: id.to_string(),
                ..Document::default()
            };
            editor.put(&document, &[f32::from(id), 50.0]).unwrap();
            editor.finish().unwrap().save(&path).unwrap();
            collection = Collection::open(&path).unwrap();
            clustered.extend(collection.index.clustered());
        }
        clustered.dedup();
        assert_eq!(clustered, [1, 3, 7, 15, 31, 63]);
        assert!(collection.index.ivf_options().unwrap().clusters > 30);
    }
}
