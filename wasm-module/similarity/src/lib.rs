//! The similarity cache: answers a question with the documents that a retriever found for a nearly identical one.
//!
//! ```text
//!   embedding ──▶ nearest key within its tolerance? ──yes──▶ that question's documents, ranked
//!                   │                                          │ one hit in n is sampled:
//!                   no                                         ▼
//!                   ▼                                        search all the same, report what it found
//!                 search, then insert
//! ```
//!
//! It is an approximate key-value cache after Proximity (Bergman et al., EuroMLSys 2025, Algorithm 1), with a gateway's
//! further needs: a time to live, a cache for each tenant and version of the retriever, invalidation by document, and a
//! measured rate of wrong hits.
//!
//! | file | content |
//! | --- | --- |
//! | `config` | the configuration, and how much memory it can take |
//! | `metric` | the metrics: which vectors can be compared, and the meaning of a tolerance |
//! | `distance` | the arithmetic: the same bits on every target |
//! | `rows` | the store of keys |
//! | `buckets`, `rotation`, `crossings` | locality-sensitive hashing: finds keys of a large cache that may be near |
//! | `cache` | one cache: look up, insert, expire, evict, invalidate |
//! | `caches` | the caches of all tenants and retriever versions |
//! | `quality` | hit rate, false hits, recall |
//!
//! The module [`embedding`] has an embedder that needs no model. The cache knows nothing of embedding models,
//! retrievers or texts: its input is vectors, and its output is document ids.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod buckets;
mod cache;
mod caches;
mod config;
mod crossings;
mod distance;
pub mod embedding;
mod metric;
mod quality;
mod rotation;
mod rows;

pub use buckets::RawBuckets;
pub use cache::{Hit, SimilarityCache};
pub use caches::{CacheName, SimilarityCaches};
pub use config::{Eviction, RawSimilarity, SimilarityConfig};
pub use metric::{Metric, SimilarityError};
pub use quality::{Quality, Sample};
