//! An index file as a store: opened on the first request, and again when the file has been replaced.
//!
//! If the new file is missing or damaged, the store continues to serve the previous one, which stays mapped. A damaged
//! file is read once.

use super::{Ask, Stage, Store, StoreError};
use crate::collection::{Collection, Query, ScoredDocument};
use crate::file::FileError;
use crate::index::{Hit, Metric, Slot};
use fxhash::FxHashMap;
use parking_lot::Mutex;
use std::fs::Metadata;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A store for the index file at a path, which it opens again when the file has been replaced.
pub struct Shelf {
    path: PathBuf,
    /// Minimum time between two reports of the best documents so far.
    slice: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The last file that could be read.
    open: Option<Open>,
    /// The last file that is no index or damaged, and the error.
    refused: Option<(Stamp, String)>,
    /// The error of a file that was refused while a previous one is served, until it is taken for the log.
    warning: Option<String>,
}

#[derive(Clone)]
struct Open {
    stamp: Stamp,
    collection: Arc<Collection>,
}

/// The identity of a file's content: it differs between successive files with the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    modified_ns: i128,
    bytes: u64,
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        Self {
            inode: file.ino(),
            modified_ns: i128::from(file.mtime()) * 1_000_000_000 + i128::from(file.mtime_nsec()),
            bytes: file.len(),
        }
    }
}

impl Shelf {
    /// Returns a store for the file at `path`, which need not exist yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            slice: Duration::ZERO,
            state: Mutex::default(),
        }
    }

    /// Returns this store with a minimum time between two reports of the best documents so far, as RAGCache's section
    /// 5.3 has it for HNSW. Without it, each stage of a search is reported.
    #[must_use]
    pub fn in_slices(mut self, slice: Duration) -> Self {
        self.slice = slice;
        self
    }

    /// Returns the file's current collection, or the last one that was readable.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`] if the file was never readable.
    pub fn collection(&self) -> Result<Arc<Collection>, StoreError> {
        self.open().map(|open| open.collection)
    }

    fn open(&self) -> Result<Open, StoreError> {
        // Concurrent callers wait while the file is opened, so that only one opens it.
        let mut state = self.state.lock();
        let State {
            open,
            refused,
            warning,
        } = &mut *state;
        let stamp = std::fs::metadata(&self.path).map(|file| Stamp::of(&file));
        if let (Some(known), Ok(stamp)) = (&*open, &stamp)
            && known.stamp == *stamp
        {
            return Ok(known.clone());
        }
        let read = match stamp {
            Ok(stamp) => match refused.as_ref().filter(|(seen, _)| *seen == stamp) {
                Some((_, reason)) => Err(reason.clone()),
                None => Collection::open(&self.path)
                    .map(|collection| Open {
                        stamp,
                        collection: Arc::new(collection),
                    })
                    .map_err(|error| {
                        let reason = error.to_string();
                        // The system's errors may be temporary, but a damaged file stays damaged until it is replaced.
                        if !matches!(error, FileError::Io { .. }) {
                            *refused = Some((stamp, reason.clone()));
                            *warning = open.is_some().then(|| reason.clone());
                        }
                        reason
                    }),
            },
            Err(error) => Err(format!("{}: {error}", self.path.display())),
        };
        match (read, &*open) {
            (Ok(read), _) => Ok(open.insert(read).clone()),
            (Err(_), Some(known)) => Ok(known.clone()),
            (Err(reason), None) => Err(StoreError::Unavailable(reason)),
        }
    }
}

impl Store for Shelf {
    fn search(&self, ask: &Ask, stage: &mut Stage<'_>) -> Result<Vec<ScoredDocument>, StoreError> {
        let collection = self.collection()?;
        let query = Query {
            vector: &ask.vector,
            words: ask.words.as_deref(),
            k: ask.k,
            filters: &ask.filters,
            caller: ask.caller.as_ref(),
            slice: self.slice,
        };
        let mut known: FxHashMap<Slot, ScoredDocument> = FxHashMap::default();
        let mut documents = |hits: &[Hit]| -> Result<Vec<ScoredDocument>, StoreError> {
            let of_hit = |hit: &Hit| {
                let found = match known.get(&hit.slot) {
                    Some(found) => found.clone(),
                    None => {
                        let read = collection.found(std::slice::from_ref(hit));
                        let read =
                            read.map_err(|error| StoreError::Unavailable(error.to_string()))?;
                        let found = read.into_iter().next().ok_or_else(|| {
                            StoreError::Unavailable("a document vanished from its index".to_owned())
                        })?;
                        known.entry(hit.slot).or_insert(found).clone()
                    }
                };
                Ok(ScoredDocument {
                    score: hit.score,
                    ..found
                })
            };
            hits.iter().map(of_hit).collect()
        };
        let mut before: Vec<Slot> = Vec::new();
        let mut failed = None;
        let hits = collection.search(&query, |hits| {
            if hits.iter().map(|hit| hit.slot).eq(before.iter().copied()) {
                return ControlFlow::Continue(());
            }
            before = hits.iter().map(|hit| hit.slot).collect();
            match documents(hits) {
                Ok(found) => stage(&found),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        let hits = hits.map_err(|refused| StoreError::Refused(refused.to_string()))?;
        match failed {
            Some(error) => Err(error),
            None => documents(&hits),
        }
    }

    fn version(&self) -> Result<String, StoreError> {
        let Stamp {
            inode,
            modified_ns,
            bytes,
        } = self.open()?.stamp;
        Ok(format!("{inode:x}-{modified_ns:x}-{bytes:x}"))
    }

    fn embedder(&self) -> Result<Option<String>, StoreError> {
        Ok(Some(self.collection()?.spec().embedder.clone()))
    }

    fn metric(&self) -> Option<Metric> {
        Some(self.collection().ok()?.vectors().metric())
    }

    fn take_warning(&self) -> Option<String> {
        self.state.lock().warning.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Document;
    use crate::collection::{Spec, Tuning};
    use crate::embedder::{Embedder, Hashing};
    use crate::index::{Kind, Metric};
    use crate::ingest::mirror;

    fn save(path: &std::path::Path, texts: &[&str]) {
        let embedder = Hashing::new(64).unwrap();
        let documents: Vec<Document> = (texts.iter().enumerate())
            .map(|(at, text)| Document {
                id: at.to_string(),
                text: (*text).to_owned(),
                ..Document::default()
            })
            .collect();
        let spec = Spec {
            dimensions: 64,
            metric: Metric::Cosine,
            kind: Kind::Flat,
            embedder: embedder.name().to_owned(),
            tuning: Tuning::default(),
        };
        let (collection, _) =
            mirror(Collection::new(spec), &documents, &embedder, |_, _| {}).unwrap();
        collection.save(path).unwrap();
    }

    fn best(shelf: &Shelf, question: &str) -> Result<String, StoreError> {
        let embedder = Hashing::new(64).unwrap();
        let ask = Ask {
            vector: embedder.embed(&[question]).unwrap().remove(0).vector,
            k: 1,
            ..Ask::default()
        };
        let mut last = None;
        let found = shelf.search(&ask, &mut |found| {
            last = Some(found.to_vec());
            ControlFlow::Continue(())
        })?;
        assert_eq!(last.as_ref(), Some(&found), "the last stage is the answer");
        Ok(found[0].document.text.clone())
    }

    #[test]
    fn a_file_is_found_when_it_comes_and_again_when_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let shelf = Shelf::new(path.clone());
        let missing = best(&shelf, "ferry").unwrap_err();
        assert!(matches!(missing, StoreError::Unavailable(_)), "{missing}");
        save(&path, &["the ferry", "the train"]);
        assert_eq!(best(&shelf, "ferry").unwrap(), "the ferry");
        let version = shelf.version().unwrap();
        assert_eq!(shelf.version().unwrap(), version);
        save(&path, &["a ferry at noon", "the train"]);
        assert_eq!(best(&shelf, "ferry").unwrap(), "a ferry at noon");
        assert_ne!(shelf.version().unwrap(), version);
    }

    #[test]
    fn a_file_that_is_removed_or_damaged_does_not_end_the_search() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        save(&path, &["the ferry", "the train"]);
        let shelf = Shelf::new(path.clone());
        assert_eq!(best(&shelf, "train").unwrap(), "the train");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(best(&shelf, "train").unwrap(), "the train");
        std::fs::write(&path, "rubbish").unwrap();
        assert_eq!(shelf.take_warning(), None);
        assert_eq!(best(&shelf, "ferry").unwrap(), "the ferry");
        let warning = shelf.take_warning().unwrap();
        assert!(warning.contains("no index of Foreword"), "{warning}");
        // Reading it again would be another warning.
        assert_eq!(best(&shelf, "ferry").unwrap(), "the ferry");
        assert_eq!(shelf.take_warning(), None);
        let fresh = Shelf::new(path.clone());
        for _ in 0..2 {
            let damaged = best(&fresh, "ferry").unwrap_err().to_string();
            assert!(damaged.contains("no index of Foreword"), "{damaged}");
            assert_eq!(fresh.take_warning(), None);
        }
        save(&path, &["a ferry at noon", "the train"]);
        for shelf in [shelf, fresh] {
            assert_eq!(best(&shelf, "ferry").unwrap(), "a ferry at noon");
        }
    }
}
