//! Embeddings without a model: for tests and demonstrations, for a browser without a download, and for when the model
//! is not available.

mod hashing;

pub use hashing::{DimensionsError, HashingEmbedder, MAX_DIMENSIONS};
