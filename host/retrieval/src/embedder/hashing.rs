//! The core's feature hashing as an embedder: without a model or a download, and with the same bits everywhere.

use super::{EmbedError, Embedder, Embedding};
use foreword_similarity::embedding::{DimensionsError, HashingEmbedder};

/// An embedder that uses the core's [`HashingEmbedder`].
pub struct Hashing {
    inner: HashingEmbedder,
    name: String,
}

impl Hashing {
    /// Default number of dimensions.
    pub const DIMENSIONS: u32 = 768;

    /// Returns an embedder with this number of dimensions.
    ///
    /// # Errors
    /// Returns a [`DimensionsError`] when `dimensions` is 0 or too large.
    pub fn new(dimensions: u32) -> Result<Self, DimensionsError> {
        Ok(Self {
            inner: HashingEmbedder::new(dimensions)?,
            name: format!("hashing-{dimensions}"),
        })
    }
}

impl Embedder for Hashing {
    fn name(&self) -> &str {
        &self.name
    }

    fn dimensions(&self) -> u32 {
        self.inner.dimensions()
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Embedding>, EmbedError> {
        let embed = |(at, text): (usize, &&str)| {
            let vector = self.inner.embed(text).ok_or(EmbedError::Empty { at })?;
            let tokens = text.split_whitespace().count();
            Ok(Embedding {
                vector,
                tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
            })
        };
        texts.iter().enumerate().map(embed).collect()
    }
}
