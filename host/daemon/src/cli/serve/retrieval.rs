//! The arguments of retrieval.

use anyhow::Context;
use clap::ValueEnum;
use foreword_ordering::RawConfig;
use foreword_retrieval::index::Metric;
use foreword_retrieval::store::{Pgvector, Qdrant};
use foreword_retrieval::{Shelf, Store};
use foreword_server::retrieval::pipeline::Compared;
use foreword_server::retrieval::{Config, EmbedderSource, prompt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[derive(clap::Args)]
#[group(id = "retrieving")]
pub(crate) struct Arguments {
    /// Index to search for documents, made by `foreword ingest`; it need not exist yet
    #[arg(long, value_name = "FILE")]
    index: Option<PathBuf>,
    /// Shortest time between two prefills' documents while a search of the index continues, as in RAGCache's section 5.3
    /// [default: every stage of the search, a thirty-second of its work]
    #[arg(long, value_name = "MILLISECONDS", requires = "index", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    search_slice_ms: Option<u64>,
    /// Search a table of PostgreSQL with pgvector instead, postgres://USER:PASSWORD@HOST/DATABASE; its columns are id,
    /// title, text, metadata, embedding
    #[arg(
        long,
        value_name = "URL",
        conflicts_with = "index",
        requires = "pgvector_table"
    )]
    pgvector: Option<String>,
    /// Table, as TABLE or SCHEMA.TABLE
    #[arg(long, value_name = "TABLE")]
    pgvector_table: Option<String>,
    /// Search a collection of Qdrant instead, http://HOST:6333/collections/NAME
    #[arg(long, value_name = "URL", conflicts_with_all = ["index", "pgvector"])]
    qdrant: Option<String>,
    /// File with Qdrant's API key
    #[arg(long, value_name = "FILE", requires = "qdrant")]
    qdrant_key_file: Option<PathBuf>,
    /// Embedder of texts: `hashing`, `hashing:DIMENSIONS`, or the folder of a sentence encoder
    #[arg(long, value_name = "EMBEDDER", default_value = "hashing")]
    embedder: EmbedderSource,
    /// Which change of the documents found so far ends a prefill that was begun with them
    #[arg(long, value_enum, default_value_t = Speculation::Documents)]
    speculation: Speculation,
}

#[derive(Clone, Copy, ValueEnum)]
enum Speculation {
    /// Another document, or another rank of one whose place follows from its rank
    Documents,
    /// Another document or another rank, as RAGCache's Algorithm 2 has it
    Ranks,
}

impl Arguments {
    /// Returns the configuration of retrieval. `ordering` is the gateway's ordering configuration, by which documents
    /// are ordered and written.
    pub(crate) fn config(&self, ordering: RawConfig) -> anyhow::Result<Config> {
        Ok(Config {
            embedder: self.embedder.clone(),
            store: self.store()?,
            writing: prompt::config(&ordering)?,
            ordering: ordering.try_into()?,
            compared: match self.speculation {
                Speculation::Documents => Compared::Documents,
                Speculation::Ranks => Compared::Ranks,
            },
        })
    }

    fn store(&self) -> anyhow::Result<Option<Arc<dyn Store>>> {
        if let Some(index) = &self.index {
            let slice = Duration::from_millis(self.search_slice_ms.unwrap_or(0));
            return Ok(Some(Arc::new(Shelf::new(index.clone()).in_slices(slice))));
        }
        if let (Some(url), Some(table)) = (&self.pgvector, &self.pgvector_table) {
            let store = Pgvector::new(url, table, Metric::Cosine)?;
            return Ok(Some(Arc::new(store)));
        }
        let Some(url) = &self.qdrant else {
            return Ok(None);
        };
        let key = self.qdrant_key_file.as_ref().map(|file| {
            let key = std::fs::read_to_string(file);
            key.with_context(|| format!("cannot read {}", file.display()))
        });
        let key = key.transpose()?.map(|key| key.trim().to_owned());
        let store = Qdrant::new(url, key)?;
        Ok(Some(Arc::new(store)))
    }
}
