//! Documents for requests that come without: found while the engine already computes what is found first.
//!
//! ```text
//!   /v1/embeddings ─▶ embedder
//!   /v1/retrieve   ─▶ embedder ─▶ store ─▶ orders: the policy's, over what the engine's cache holds
//!   chat with `retrieval` ─▶ pipeline ─▶ embedder ─▶ store ──stage──▶ guess ──▶ engine (prefill)
//!                                                       └──last───▶ prompt ──▶ engine (joins the guess)
//! ```
//!
//! | file | answers |
//! | --- | --- |
//! | `orders` | which documents the engine's cache holds, and in which order they should stand |
//! | `prompt` | how documents come into a chat's body |
//! | `pipeline` | what is computed before the search is over |
//!
//! Embedder and store may be missing, or go: whatever needs them is then refused with 503, and everything else is served
//! as before. They are looked for again with every request.

pub mod orders;
pub mod pipeline;
pub mod prompt;

use crate::failure::Failure;
use crate::request::SearchQuery;
use foreword_ordering::{Config as OrderingConfig, RawConfig};
use foreword_retrieval::embedder::{EmbedError, Embedding, Hashing, MiniLm};
use foreword_retrieval::store::Stage;
use foreword_retrieval::{Embedder, ScoredDocument, Store, StoreError};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// What finds documents.
pub struct Config {
    /// What makes vectors of texts.
    pub embedder: EmbedderSource,
    /// Where documents are searched; `None`: nowhere.
    pub store: Option<Arc<dyn Store>>,
    /// How the gateway orders documents, and so how they are ordered here.
    pub ordering: OrderingConfig,
    /// The same, for what only writes them: see [`prompt::config`].
    pub writing: OrderingConfig,
}

/// Where the embedder comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmbedderSource {
    /// Words and their parts, without a model, into so many dimensions.
    Hashing(u32),
    /// A sentence encoder's folder.
    Folder(PathBuf),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            embedder: EmbedderSource::Hashing(Hashing::DIMENSIONS),
            store: None,
            ordering: OrderingConfig::default(),
            writing: prompt::config(&RawConfig::default()).unwrap_or_default(),
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
    /// The embedder itself. A folder's takes a second.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn open(&self) -> Result<Arc<dyn Embedder>, String> {
        match self {
            Self::Hashing(dimensions) => match Hashing::new(*dimensions) {
                Ok(hashing) => Ok(Arc::new(hashing)),
                Err(error) => Err(error.to_string()),
            },
            Self::Folder(folder) => match MiniLm::load(folder) {
                Ok(model) => Ok(Arc::new(model)),
                Err(error) => Err(error.to_string()),
            },
        }
    }
}

/// What finds documents, once it runs. Everything here blocks.
pub struct Retriever {
    source: EmbedderSource,
    embedder: Mutex<Option<Arc<dyn Embedder>>>,
    store: Option<Arc<dyn Store>>,
    /// How documents come into a prompt.
    pub writing: OrderingConfig,
    /// How they are ordered.
    pub orders: orders::Orders,
}

impl Retriever {
    /// Nothing is opened before it is needed.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            source: config.embedder,
            embedder: Mutex::default(),
            store: config.store,
            writing: config.writing,
            orders: orders::Orders::new(config.ordering),
        }
    }

    /// The embedder.
    ///
    /// # Errors
    /// [`Failure::Retriever`] when it cannot be loaded.
    pub fn embedder(&self) -> Result<Arc<dyn Embedder>, Failure> {
        // Whoever comes while it is loaded waits: it would load it too.
        let mut embedder = self.embedder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(embedder) = &*embedder {
            return Ok(Arc::clone(embedder));
        }
        let opened = self.source.open().map_err(Failure::retriever)?;
        Ok(Arc::clone(embedder.insert(opened)))
    }

    /// The vectors of texts that came in `field`.
    ///
    /// # Errors
    /// [`Failure::Invalid`] when one has nothing to embed, else as [`Retriever::embedder`].
    pub fn embed(&self, field: &str, texts: &[&str]) -> Result<Vec<Embedding>, Failure> {
        let embedded = self.embedder()?.embed(texts);
        embedded.map_err(|error| match error {
            EmbedError::Empty { .. } => Failure::invalid(field, format!("{field}: {error}")),
            EmbedError::Failed { .. } => Failure::retriever(error),
        })
    }

    /// What remembers the answers of another version of the store must forget them.
    ///
    /// # Errors
    /// [`Failure::Retriever`] when there is no store or it cannot be reached.
    pub fn version(&self) -> Result<String, Failure> {
        self.store()?.version().map_err(refused)
    }

    /// The best documents, best first; `stage` gets the best so far whenever they have changed.
    ///
    /// # Errors
    /// [`Failure::Retriever`] when embedder or store are not there, [`Failure::Invalid`] when they do not take what is
    /// asked.
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
