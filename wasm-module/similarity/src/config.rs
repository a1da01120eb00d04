//! The configuration of similarity caches: as written ([`RawSimilarity`]), and as validated ([`SimilarityConfig`]).

use super::buckets::RawBuckets;
use super::metric::Metric;
use foreword_ordering::ConfigError;
use foreword_ordering::object;
use foreword_ordering::object::Ranges;
use serde::Deserialize;

object! {
    /// The configuration of similarity caches, as written. Every field is optional; an unknown field is an error.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RawSimilarity in "similarity." {
        /// Number of components of an embedding.
        pub dimensions: u32 = 384; 1..=16_384,
        /// The distance of two embeddings.
        pub metric: Metric = Metric::Cosine,
        /// Largest distance at which an entry answers another question, unless the entry has its own tolerance. The
        /// right value depends on the embedding model: sample hits, and read the false-hit rate. With 0, only an equal
        /// embedding hits.
        pub tolerance: f64 = 0.1,
        /// Most entries of one cache.
        pub capacity: u32 = 300; 1..=10_000_000,
        /// The rule that chooses the entry to evict when the cache is full.
        pub eviction: Eviction = Eviction::Lru,
        /// The index by which entries are found. If absent, all are compared, which is exact, and fast for up to some thousands. If
        /// given, only those in likely buckets are compared, which misses a few, and is fast for up to millions.
        pub buckets: Option<RawBuckets> = None,
        /// Milliseconds until an entry expires; absent for never.
        pub ttl_ms: Option<u64> = Some(600_000); 1..=u64::MAX,
        /// Most documents of one entry.
        pub max_documents: u32 = 64; 1..=4_096,
        /// Most bytes of one document's id.
        pub max_id_bytes: u32 = 256; 1..=4_096,
        /// Most caches, one per tenant and version of the retriever; the least recently used one is evicted first.
        pub max_caches: u32 = 16; 1..=10_000,
        /// On average, one in this many hits is to be checked by a fresh search; absent for none.
        pub sample_one_in: Option<u32> = None; 1..=u32::MAX.into(),
    }
}

/// The rule that chooses the entry to evict when the cache is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// The entry inserted first, as in Proximity.
    Fifo,
    /// The entry that was inserted or last answered the longest time ago.
    #[default]
    Lru,
}

/// The configuration of similarity caches, validated.
#[derive(Clone, Debug)]
pub struct SimilarityConfig {
    pub(super) raw: RawSimilarity,
}

impl SimilarityConfig {
    /// Parses and validates a JSON configuration; an empty text gives the defaults.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] for malformed JSON and for a value out of range.
    pub fn from_json(text: &[u8]) -> Result<Self, ConfigError> {
        if text.trim_ascii().is_empty() {
            return RawSimilarity::default().try_into();
        }
        serde_json::from_slice::<RawSimilarity>(text)?.try_into()
    }

    /// Validates a configuration in parsed JSON.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] for JSON of the wrong shape and for a value out of range.
    pub fn from_value(value: &serde_json::Value) -> Result<Self, ConfigError> {
        RawSimilarity::deserialize(value)?.try_into()
    }

    /// Returns the number of components of an embedding.
    #[must_use]
    pub fn dimensions(&self) -> u32 {
        self.raw.dimensions
    }

    /// Returns the time after which an entry is forgotten, in milliseconds; `None` for never.
    #[must_use]
    pub fn ttl_ms(&self) -> Option<u64> {
        self.raw.ttl_ms
    }

    /// Returns the distance between two embeddings.
    #[must_use]
    pub fn metric(&self) -> Metric {
        self.raw.metric
    }

    /// Returns the maximum number of documents of an entry.
    #[must_use]
    pub fn max_documents(&self) -> u32 {
        self.raw.max_documents
    }
}

impl TryFrom<RawSimilarity> for SimilarityConfig {
    type Error = ConfigError;

    fn try_from(raw: RawSimilarity) -> Result<Self, ConfigError> {
        raw.check()?;
        raw.buckets.unwrap_or_default().check()?;
        raw.metric
            .check(raw.tolerance)
            .map_err(|error| ConfigError::Value {
                field: "similarity.tolerance",
                reason: error.to_string(),
            })?;
        Ok(Self { raw })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let config = SimilarityConfig::from_json(text.as_bytes());
        config.err().unwrap().to_string()
    }

    #[test]
    fn nothing_given_means_the_defaults() {
        for text in ["", " \n", "{}"] {
            let config = SimilarityConfig::from_json(text.as_bytes()).unwrap();
            assert_eq!(config.raw, RawSimilarity::default());
        }
    }

    #[test]
    fn a_wrong_value_is_named_with_what_is_allowed() {
        assert_eq!(
            error(r#"{"capacity": 0}"#),
            "similarity.capacity: 0 is out of range, it must be 1 to 10000000"
        );
        assert_eq!(
            error(r#"{"tolerance": 3}"#),
            "similarity.tolerance: a tolerance of 3 is out of range, it must be 0 to 2"
        );
        assert!(error(r#"{"metric": "dot"}"#).starts_with("unknown variant `dot`"));
        assert!(error(r#"{"sample_one_in": 0}"#).starts_with("similarity.sample_one_in: 0 is"));
        assert_eq!(
            error(r#"{"buckets": {"tables": 65}}"#),
            "similarity.buckets.tables: 65 is out of range, it must be 1 to 64"
        );
        assert!(error(r#"{"ttl": 5}"#).starts_with("unknown field `ttl`"));
    }
}
