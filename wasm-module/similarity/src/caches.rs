//! The similarity caches of all tenants and versions of the retriever.

use super::cache::{Hit, SimilarityCache};
use super::config::SimilarityConfig;
use super::metric::SimilarityError;
use super::quality::{Quality, Sample};
use fxhash::FxHashMap;

/// Identifies a cache, which has one tenant's results from one version of a retriever. Another version may find other
/// documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheName<'n> {
    /// The tenant that asks.
    pub tenant: &'n str,
    /// The version of the retriever, including its model and index; it must change whenever answers or embeddings may
    /// change.
    pub retriever: &'n str,
}

/// Similarity caches, created on first use. When there are too many, the least recently used one is evicted.
///
/// A tenant's answers depend only on its own questions, as long as no more than `max_caches` are in use. Names do not
/// count towards the memory limit, so their source must bound their length.
#[derive(Debug)]
pub struct SimilarityCaches {
    config: SimilarityConfig,
    /// Caches by tenant, then retriever version.
    caches: FxHashMap<(Box<str>, Box<str>), NamedCache>,
    /// Number of calls so far.
    now: u64,
    /// Sum of the counts of evicted caches.
    gone: Quality,
}

#[derive(Debug)]
struct NamedCache {
    cache: SimilarityCache,
    last_used: u64,
}

impl SimilarityCaches {
    /// Returns an empty collection.
    #[must_use]
    pub fn new(config: SimilarityConfig) -> Self {
        Self {
            config,
            caches: FxHashMap::default(),
            now: 0,
            gone: Quality::default(),
        }
    }

    /// Looks `embedding` up in the cache `name`; see [`SimilarityCache::lookup`].
    ///
    /// # Errors
    /// Returns the errors of [`SimilarityCache::lookup`].
    pub fn lookup(
        &mut self,
        name: CacheName<'_>,
        embedding: &[f32],
        now_ms: u64,
    ) -> Result<Option<Hit<'_>>, SimilarityError> {
        self.cache(name).lookup(embedding, now_ms)
    }

    /// Stores the documents retrieved for `embedding` in the cache `name`; see [`SimilarityCache::insert`].
    ///
    /// # Errors
    /// Returns the errors of [`SimilarityCache::insert`].
    pub fn insert<S: AsRef<str>>(
        &mut self,
        name: CacheName<'_>,
        embedding: &[f32],
        documents: &[S],
        tolerance: Option<f64>,
        now_ms: u64,
    ) -> Result<(), SimilarityError> {
        self.cache(name)
            .insert(embedding, documents, tolerance, now_ms)
    }

    /// Removes the tenant's entries with one of `documents`, for all versions of the retriever. Returns their number.
    pub fn invalidate<S: AsRef<str>>(&mut self, tenant: &str, documents: &[S]) -> usize {
        self.caches
            .iter_mut()
            .filter(|((owner, _), _)| &**owner == tenant)
            .map(|(_, kept)| kept.cache.invalidate(documents))
            .sum()
    }

    /// Compares a sampled hit of the cache `name` with the result of a fresh search, and counts it.
    pub fn report<S: AsRef<str>>(&mut self, name: CacheName<'_>, sample: &Sample, fresh: &[S]) {
        match self.caches.get_mut(&key(name)) {
            Some(kept) => kept.cache.report(sample, fresh),
            None => self.gone.report(sample, fresh),
        }
    }

    /// Returns the counts of all caches' answers, including the evicted ones.
    #[must_use]
    pub fn quality(&self) -> Quality {
        let mut all = self.gone;
        for kept in self.caches.values() {
            all.add(&kept.cache.quality());
        }
        all
    }

    /// Returns the counts of one cache's answers; `None` if there is no such cache.
    #[must_use]
    pub fn quality_of(&self, name: CacheName<'_>) -> Option<Quality> {
        Some(self.caches.get(&key(name))?.cache.quality())
    }

    /// Returns the number of caches.
    #[must_use]
    pub fn len(&self) -> usize {
        self.caches.len()
    }

    /// Returns whether there is no cache.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.caches.is_empty()
    }

    /// Returns the number of entries in all caches.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.caches.values().map(|kept| kept.cache.len()).sum()
    }

    /// Removes all entries, as is necessary after the index was rebuilt. Counts are kept.
    pub fn clear(&mut self) {
        self.gone = self.quality();
        self.caches.clear();
    }

    fn cache(&mut self, name: CacheName<'_>) -> &mut SimilarityCache {
        self.now += 1;
        let key = key(name);
        if !self.caches.contains_key(&key)
            && self.caches.len() >= self.config.raw.max_caches as usize
            && let Some(oldest) = self
                .caches
                .iter()
                .min_by_key(|(_, kept)| kept.last_used)
                .map(|(key, _)| key.clone())
            && let Some(kept) = self.caches.remove(&oldest)
        {
            self.gone.add(&kept.cache.quality());
        }
        let kept = self.caches.entry(key).or_insert_with(|| NamedCache {
            cache: SimilarityCache::new(&self.config),
            last_used: 0,
        });
        kept.last_used = self.now;
        &mut kept.cache
    }
}

fn key(name: CacheName<'_>) -> (Box<str>, Box<str>) {
    (name.tenant.into(), name.retriever.into())
}
