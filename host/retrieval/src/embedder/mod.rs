//! Embedders convert texts to vectors.
//!
//! | embedder | captures | needs |
//! | --- | --- | --- |
//! | [`Hashing`] | words and their parts | nothing |
//! | [`MiniLm`] | meanings, in English | 91 MB of weights: `cargo xtask setup-embedder` |
//!
//! Vectors of different embedders are not comparable, so an index records the name of its embedder.

mod bert;
mod hashing;
mod minilm;

pub use foreword_similarity::embedding::DimensionsError;
pub use hashing::Hashing;
pub use minilm::{LoadError, MiniLm};

/// Converts texts to vectors of one length.
pub trait Embedder: Send + Sync {
    /// Returns a name that distinguishes this embedder's vectors from others'.
    fn name(&self) -> &str;

    /// Returns the number of components of every vector.
    fn dimensions(&self) -> u32;

    /// Returns the vectors of `texts`, each scaled to length 1, in the order of the texts.
    ///
    /// # Errors
    /// Returns an [`EmbedError`] that names the first text without a vector.
    fn embed(&self, texts: &[&str]) -> Result<Vec<Embedding>, EmbedError>;
}

/// The embedding of one text.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// The vector, of length 1.
    pub vector: Vec<f32>,
    /// Number of the text's tokens that the vector represents.
    pub tokens: u32,
}

/// The reason why a text has no vector.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The text has no words to embed.
    #[error("text {at} has nothing to embed: no letter and no digit")]
    Empty {
        /// Index of the text, from 0.
        at: usize,
    },
    /// The tokenizer or the model failed.
    #[error("text {at} could not be embedded: {reason}")]
    Failed {
        /// Index of the text, from 0.
        at: usize,
        /// The reason for the failure.
        reason: String,
    },
}
