//! Retrieves documents for requests without any, while the engine already computes the first ones found.
//!
//! ```text
//!   /v1/embeddings ─▶ embedder
//!   /v1/retrieve   ─▶ embedder ─▶ store ─▶ orders: the policy's, based on the engine's cache
//!   chat with `retrieval` ─▶ pipeline ─▶ embedder ─▶ store ──stage──▶ guess ──▶ engine (prefill)
//!                                                       └──last───▶ prompt ──▶ engine (joins the guess)
//! ```
//!
//! | file | content |
//! | --- | --- |
//! | `orders` | the documents in the engine's cache, and the order of a request's documents |
//! | `prompt` | writing documents into a chat's body |
//! | `pipeline` | computing before the search is over |
//!
//! Embedder and store may be missing or fail: requests that need them are then refused with 503, and all others are served.
//! Each request tries them again.

pub mod orders;
pub mod pipeline;
pub mod prompt;

use crate::failure::Failure;
use crate::request::SearchQuery;
use foreword_ordering::{Config as OrderingConfig, RawConfig};
use foreword_retrieval::embedder::{
    DimensionsError, EmbedError, Embedding, Hashing, LoadError, MiniLm,
};
use foreword_retrieval::store::Stage;
use foreword_retrieval::{Embedder, ScoredDocument, Store, StoreError};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;

/// The configuration of retrieval.
pub struct Config {
    /// The embedder of texts.
    pub embedder: EmbedderSource,
    /// The store to search; `None` if there is none.
    pub store: Option<Arc<dyn Store>>,
    /// The gateway's ordering configuration, which also orders documents here.
    pub ordering: OrderingConfig,
    /// The variant of `ordering` for an orderer that only writes documents; see [`prompt::config`].
    pub writing: OrderingConfig,
    /// Which change of the documents ends a guess.
    pub compared: pipeline::Compared,
}

/// The source of the embedder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmbedderSource {
    /// Hashed words and parts of words, without a model, into this many dimensions.
    Hashing(u32),
    /// The folder of a sentence encoder.
    Folder(PathBuf),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            embedder: EmbedderSource::Hashing(Hashing::DIMENSIONS),
            store: None,
            ordering: OrderingConfig::default(),
            writing: prompt::config(&RawConfig::default()).unwrap_or_default(),
            compared: pipeline::Compared::default(),
        }
    }
}

impl std::str::FromStr for EmbedderSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let dimensions = match text.strip_prefix("hashing") {
            Some("") => Hashing::DIMENSIONS,
            Some(rest) if rest.starts_with(':') => rest[1..]
                .parse()
                .map_err(|_| format!("hashing:N needs a number of dimensions, got {text:?}"))?,
            _ => return Ok(Self::Folder(PathBuf::from(text))),
        };
        let checked = Hashing::new(dimensions).map_err(|error| error.to_string())?;
        Ok(Self::Hashing(checked.dimensions()))
    }
}

/// Why there is no embedder.
#[derive(Debug, thiserror::Error)]
pub enum EmbedderError {
    /// The hashing embedder has no dimensions, or too many.
    #[error(transparent)]
    Dimensions(#[from] DimensionsError),
    /// The folder has no model that can be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl EmbedderSource {
    /// Opens the embedder. One in a folder takes a second.
    ///
    /// # Errors
    /// Returns an [`EmbedderError`] if there is none.
    pub fn open(&self) -> Result<Arc<dyn Embedder>, EmbedderError> {
        Ok(match self {
            Self::Hashing(dimensions) => Arc::new(Hashing::new(*dimensions)?),
            Self::Folder(folder) => Arc::new(MiniLm::load(folder)?),
        })
    }
}

/// Retrieves documents. All of its methods block.
pub struct Retriever {
    source: EmbedderSource,
    embedder: Mutex<Option<Arc<dyn Embedder>>>,
    store: Option<Arc<dyn Store>>,
    /// The configuration for writing documents into a prompt.
    pub writing: OrderingConfig,
    /// The order of documents.
    pub orders: orders::Orders,
    /// Which change of the documents ends a guess.
    pub compared: pipeline::Compared,
}

impl Retriever {
    /// Returns a retriever; nothing is opened until it is needed.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            source: config.embedder,
            embedder: Mutex::default(),
            store: config.store,
            writing: config.writing,
            orders: orders::Orders::new(config.ordering),
            compared: config.compared,
        }
    }

    /// Returns the embedder.
    ///
    /// # Errors
    /// Returns [`Failure::Retriever`] if it cannot be loaded.
    pub fn embedder(&self) -> Result<Arc<dyn Embedder>, Failure> {
        // Other callers wait while it is loaded, so that it is loaded once.
        let mut embedder = self.embedder.lock();
        if let Some(embedder) = &*embedder {
            return Ok(Arc::clone(embedder));
        }
        let opened = self.source.open().map_err(Failure::retriever)?;
        Ok(Arc::clone(embedder.insert(opened)))
    }

    /// Returns the vectors of texts from the request's `field`.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] if a text has nothing to embed, otherwise the errors of [`Retriever::embedder`].
    pub fn embed(&self, field: &str, texts: &[&str]) -> Result<Vec<Embedding>, Failure> {
        let embedded = self.embedder()?.embed(texts);
        embedded.map_err(|error| match error {
            EmbedError::Empty { .. } => Failure::invalid(field, format!("{field}: {error}")),
            EmbedError::Failed { .. } => Failure::retriever(error),
        })
    }

    /// Returns the store's version; results of another version must be dropped.
    ///
    /// # Errors
    /// Returns [`Failure::Retriever`] if there is no store or it cannot be reached.
    pub fn version(&self) -> Result<String, Failure> {
        self.store()?.version().map_err(refused)
    }

    /// Returns the best documents, best first; calls `stage` with the best so far whenever they change.
    ///
    /// # Errors
    /// Returns [`Failure::Retriever`] if embedder or store are not available, and [`Failure::Invalid`] if they do not
    /// accept the query.
    pub fn search(
        &self,
        asked: SearchQuery,
        stage: &mut Stage<'_>,
    ) -> Result<Vec<ScoredDocument>, Failure> {
        let store = self.store()?;
        let SearchQuery { query, mut ask } = asked;
        if let Some(query) = query.filter(|_| ask.vector.is_empty()) {
            let holds = store.embedder().map_err(refused)?;
            let embedder = self.embedder()?;
            if let Some(holds) = holds.filter(|holds| holds != embedder.name()) {
                let given = embedder.name();
                let reason = format!(
                    "the index was made with the embedder {holds}, this server has {given}"
                );
                return Err(Failure::retriever(reason));
            }
            ask.vector = self.embed("query", &[&query])?.remove(0).vector;
        }
        store.search(&ask, stage).map_err(refused)
    }

    fn store(&self) -> Result<&Arc<dyn Store>, Failure> {
        let none = || Failure::retriever("no index was configured; see --index");
        self.store.as_ref().ok_or_else(none)
    }
}

fn refused(error: StoreError) -> Failure {
    match error {
        StoreError::Unavailable(reason) => Failure::retriever(reason),
        StoreError::Refused(reason) => Failure::invalid("embedding", reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedder_is_named_in_one_word() {
        let source = |text: &str| text.parse::<EmbedderSource>();
        assert_eq!(source("hashing"), Ok(EmbedderSource::Hashing(768)));
        assert_eq!(source("hashing:64"), Ok(EmbedderSource::Hashing(64)));
        assert_eq!(
            source("models/x"),
            Ok(EmbedderSource::Folder("models/x".into()))
        );
        assert!(
            source("hashing:0")
                .unwrap_err()
                .contains("must be 1 to 16384")
        );
        assert!(
            source("hashing:many")
                .unwrap_err()
                .contains("needs a number")
        );
    }
}
