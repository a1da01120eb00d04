//! Texts to vectors.
//!
//! | embedder | knows | needs |
//! | --- | --- | --- |
//! | [`Hashing`] | words and their parts | nothing |
//! | [`MiniLm`] | meanings, in English | 91 MB of weights: `cargo xtask setup-embedder` |
//!
//! Vectors of different embedders mean nothing to each other, so an index records the name of the one it was made with.

mod bert;
mod hashing;
mod minilm;

pub use hashing::Hashing;
pub use minilm::{LoadError, MiniLm};

/// Texts to vectors of one length.
pub trait Embedder: Send + Sync {
    /// Tells its vectors from other embedders'.
    fn name(&self) -> &str;

    /// Components of every vector.
    fn dimensions(&self) -> u32;

    /// The vectors of `texts`, each of length 1, in their order.
    ///
    /// # Errors
    /// [`EmbedError`] names the first text that has no vector.
    fn embed(&self, texts: &[&str]) -> Result<Vec<Embedding>, EmbedError>;
}

/// A text's vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// Of length 1.
    pub vector: Vec<f32>,
    /// Tokens of the text that it stands for.
    pub tokens: u32,
}

/// Why a text has no vector.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// There is nothing in it to embed.
    #[error("text {at} has nothing to embed: no letter and no digit")]
    Empty {
        /// Which text, from 0.
        at: usize,
    },
    /// The tokenizer or the model failed.
    #[error("text {at} could not be embedded: {reason}")]
    Failed {
        /// Which text, from 0.
        at: usize,
        /// Why.
        reason: String,
    },
}
