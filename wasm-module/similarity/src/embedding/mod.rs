//! Embeddings without a model: for tests and demonstrations, for browsers that download none, and as a fallback.

mod hashing;

pub use hashing::{DimensionsError, HashingEmbedder, MAX_DIMENSIONS};
