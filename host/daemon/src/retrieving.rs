//! The arguments that say where documents are searched.

use anyhow::Context;
use foreword::retrieval::{Config, EmbedderSource, prompt};
use foreword_retrieval::{Shelf, Store};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(clap::Args)]
#[group(id = "retrieving")]
pub(crate) struct Arguments {
    /// Index that documents are searched in, made by `foreword ingest`; need not be there yet
    #[arg(long, value_name = "FILE")]
    index: Option<PathBuf>,
    /// What makes vectors of texts: `hashing`, `hashing:DIMENSIONS`, or the folder of a sentence encoder
    #[arg(long, value_name = "EMBEDDER", default_value = "hashing")]
    embedder: EmbedderSource,
}

impl Arguments {
    /// `ordering`: the gateway's configuration of documents, whose words hold here too.
    pub(crate) fn config(&self, ordering: Option<&Path>) -> anyhow::Result<Config> {
        let json = match ordering {
            Some(file) => {
                std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?
            }
            None => b"{}".to_vec(),
        };
        let index = self.index.clone();
        Ok(Config {
            embedder: self.embedder.clone(),
            store: index.map(|index| Arc::new(Shelf::new(index)) as Arc<dyn Store>),
            ordering: prompt::config(&json)?,
        })
    }
}
