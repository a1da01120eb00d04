//! Retrieves documents for requests that have none, while the engine already computes the prompt with the first ones
//! found.
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
//! | `orders` | which documents the engine's cache holds, and the order of a request's documents |
//! | `prompt` | writing documents into a chat's body |
//! | `pipeline` | speculative prefills while the search continues |
//!
//! If the embedder or the store is missing or fails, requests that need it are refused with 503; each such request
//! tries to open it again. All other requests are served.

pub mod orders;
pub mod pipeline;
pub mod prompt;

use crate::failure::Failure;
use crate::request::SearchQuery;
use foreword_ordering::{Config as OrderingConfig, RawConfig};
use foreword_retrieval::embedder::{EmbedError, Embedding, Hashing, MiniLm};
use foreword_retrieval::index::Metric;
use foreword_retrieval::store::Stage;
use foreword_retrieval::{Embedder, ScoredDocument, Store, StoreError};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;

/// The configuration of document retrieval.
pub struct Config {
    /// The embedder, which turns texts into vectors.
    pub embedder: EmbedderSource,
    /// The store of documents to search; `None` if there is none.
    pub store: Option<Arc<dyn Store>>,
    /// The gateway's ordering configuration, by which documents are ordered here too.
    pub ordering: OrderingConfig,
    /// The variant of `ordering` that writes documents in a given order; see [`prompt::config`].
    pub writing: OrderingConfig,
    /// The changes of the documents found that end a speculative prefill (the prompt computed with the documents found
    /// so far).
    pub compared: pipeline::Compared,
}

/// Where the embedder of texts comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmbedderSource {
    /// An embedder without a model, which hashes words and parts of words into this many dimensions.
    Hashing(u32),
    /// The folder of a sentence-encoder checkpoint.
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

impl EmbedderSource {
    /// Opens the embedder. Loading one from a folder takes about a second.
    ///
    /// # Errors
    /// Returns an error if the dimensions are out of range or the folder has no usable model.
    pub fn open(&self) -> anyhow::Result<Arc<dyn Embedder>> {
        Ok(match self {
            Self::Hashing(dimensions) => Arc::new(Hashing::new(*dimensions)?),
            Self::Folder(folder) => Arc::new(MiniLm::load(folder)?),
        })
    }
}

/// Embeds texts and searches the store of documents. All methods block the thread.
pub struct Retriever {
    source: EmbedderSource,
    embedder: Mutex<Option<Arc<dyn Embedder>>>,
    store: Option<Arc<dyn Store>>,
    /// The configuration for writing documents into a chat; see [`prompt::config`].
    pub writing: OrderingConfig,
    /// Orders documents by what the engine has cached.
    pub orders: orders::Orders,
    /// The changes of the documents found that end a speculative prefill (the prompt computed with the documents found
    /// so far).
    pub compared: pipeline::Compared,
}

impl Retriever {
    /// Returns a retriever. The embedder is opened when it is first needed.
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

    /// Returns the embedder, which is opened on the first call.
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

    /// Embeds texts, and returns a vector for each. `field` is the request's field with the texts, for errors, and
    /// `first` the index of the first of them there.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] if a text has nothing to embed, else [`Failure::Retriever`].
    pub fn embed(
        &self,
        field: &str,
        first: usize,
        texts: &[&str],
    ) -> Result<Vec<Embedding>, Failure> {
        let embedded = self.embedder()?.embed(texts);
        embedded.map_err(|error| match error {
            EmbedError::Empty { at } => {
                let error = EmbedError::Empty { at: first + at };
                Failure::invalid(field, format!("{field}: {error}"))
            }
            EmbedError::Failed { .. } => Failure::retriever(error),
        })
    }

    /// Returns the version of the content of the document store, which is part of responses.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] if the server has no store, and [`Failure::Retriever`] if it cannot be reached.
    pub fn version(&self) -> Result<String, Failure> {
        self.store()?.version().map_err(refused)
    }

    /// Returns the measure by which the document store compares vectors; `None` if it is not known.
    pub fn metric(&self) -> Option<Metric> {
        self.store.as_ref()?.metric()
    }

    /// Embeds the question unless the query has a vector, and returns the best documents, best first. Calls `stage`
    /// with the best documents so far whenever they change. Returns no documents if the query was cancelled before the
    /// search began.
    ///
    /// # Errors
    /// Returns [`Failure::Retriever`] if embedder or store are not available, and [`Failure::Invalid`] if they do not
    /// accept the query or the server has no store.
    pub fn search(
        &self,
        asked: SearchQuery,
        stage: &mut Stage<'_>,
    ) -> Result<Vec<ScoredDocument>, Failure> {
        let store = self.store()?;
        let SearchQuery { query, mut ask } = asked;
        let caller = ask.caller.as_ref();
        if caller.is_some_and(|caller| caller.strong_count() == 0) {
            return Ok(Vec::new());
        }
        let is_embedded_here = ask.vector.is_empty();
        if let Some(query) = query.filter(|_| is_embedded_here) {
            let holds = store.embedder().map_err(refused)?;
            let embedder = self.embedder()?;
            if let Some(holds) = holds.filter(|holds| holds != embedder.name()) {
                let given = embedder.name();
                let reason = format!(
                    "the index was made with the embedder {holds}, this server has {given}"
                );
                return Err(Failure::retriever(reason));
            }
            ask.vector = self.embed("query", 0, &[&query])?.remove(0).vector;
        }
        let found = store.search(&ask, stage).map_err(|error| match error {
            // The client sent no vector, and filters have no dimensions.
            StoreError::Refused(reason)
                if is_embedded_here && (ask.filters.is_empty() || reason.contains("dimension")) =>
            {
                Failure::retriever(reason)
            }
            StoreError::Refused(reason) if is_embedded_here => Failure::invalid("filters", reason),
            error => refused(error),
        });
        if let Some(warning) = store.take_warning() {
            tracing::warn!(warning, "the previous index is still searched");
        }
        found
    }

    fn store(&self) -> Result<&Arc<dyn Store>, Failure> {
        let none = || {
            Failure::invalid_body(
                "this server searches no documents: it was started without --index",
            )
        };
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
    use foreword_retrieval::{Ask, Shelf};
    use std::ops::ControlFlow;
    use std::sync::Weak;

    #[test]
    fn a_cancelled_search_needs_neither_embedder_nor_index() {
        let missing = PathBuf::from("missing");
        let retriever = Retriever::new(Config {
            embedder: EmbedderSource::Folder(missing.clone()),
            store: Some(Arc::new(Shelf::new(missing))),
            ..Config::default()
        });
        let asked = || SearchQuery {
            query: Some("When?".to_owned()),
            ask: Ask::default(),
        };
        let search = |asked| retriever.search(asked, &mut |_| ControlFlow::Continue(()));
        assert!(search(asked()).is_err());
        let mut cancelled = asked();
        cancelled.ask.caller = Some(Weak::new());
        assert!(search(cancelled).is_ok_and(|found| found.is_empty()));
    }

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
