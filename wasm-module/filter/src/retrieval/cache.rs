//! The results of earlier questions: the similarity caches, and the texts of the documents in them.
//!
//! No tenant gets another tenant's results. If the retriever states a new version, the caches are emptied. Until it is
//! called again, results of its old version are returned; their time to live ensures that it is.

use std::collections::HashMap;
use std::sync::Arc;

use foreword_similarity::{CacheName, Sample, SimilarityCaches, SimilarityConfig};

use super::answers::{Document, RetrieverAnswer};
use super::documents::Documents;
use super::reason::Reason;

/// The cached results of a plugin's retriever, for all tenants.
#[derive(Debug)]
pub(super) struct Cache {
    caches: SimilarityCaches,
    documents: Documents,
    /// The version that the retriever stated with its latest result; empty before the first result, and if it states
    /// none.
    version: String,
    /// The version that the retriever stated before `version`; `None` if it has not changed.
    previous_version: Option<String>,
    /// Time of the newest result that was stored, in milliseconds.
    newest_ms: u64,
    /// Maximum age, in milliseconds, of another worker's result compared with the newest one here; an older result is not
    /// stored. It is a quarter of the entries' time to live.
    most_late_ms: u64,
}

/// The cached documents of a similar earlier question.
#[derive(Debug)]
pub(super) struct Hit {
    /// The documents as elements of a request's `documents`, best first.
    pub(super) elements: Vec<Arc<str>>,
    /// `Some` if the hit was sampled: the caller should search anyway and pass the result to [`Cache::report`].
    pub(super) sample: Option<Sample>,
}

impl Cache {
    pub(super) fn new(config: SimilarityConfig, max_document_bytes: usize) -> Self {
        Self {
            most_late_ms: config.ttl_ms().map_or(u64::MAX, |ttl_ms| ttl_ms / 4),
            caches: SimilarityCaches::new(config),
            documents: Documents::new(max_document_bytes),
            version: String::new(),
            previous_version: None,
            newest_ms: 0,
        }
    }

    /// Returns the cached documents of a question of the same tenant with a similar vector. `None` if there is none:
    /// the caller should then search, and pass the result to [`Cache::keep`]. Returns an error if the cache refuses the
    /// vector.
    pub(super) fn lookup(
        &mut self,
        tenant: &str,
        vector: &[f32],
        now_ms: u64,
    ) -> Result<Option<Hit>, Reason> {
        let retriever = &self.version;
        let name = CacheName { tenant, retriever };
        let hit = self.caches.lookup(name, vector, now_ms);
        let Some(hit) = hit.map_err(|_| Reason::BadEmbedding)? else {
            return Ok(None);
        };
        // If a document's text was evicted, this is a miss.
        let elements = self.documents.get(tenant, hit.documents);
        Ok(elements.map(|elements| Hit {
            elements,
            sample: hit.sample,
        }))
    }

    /// Stores a search result, under the tenant and the question's vector; empties the cache first if the retriever's
    /// version is new. Returns false if a document has no id, if two different ones share an id, or if the similarity
    /// cache refuses the result.
    pub(super) fn keep(
        &mut self,
        tenant: &str,
        vector: &[f32],
        found: &RetrieverAnswer,
        now_ms: u64,
    ) -> bool {
        self.follow(&found.version);
        self.newest_ms = self.newest_ms.max(now_ms);
        let mut by_id = HashMap::new();
        let is_unusable = |document: &Document| {
            let other = by_id.insert(document.id.clone(), Arc::clone(&document.element));
            document.id.is_empty() || other.is_some_and(|other| other != document.element)
        };
        if found.documents.iter().any(is_unusable) {
            return false;
        }
        let ids = found.documents.iter().map(|document| &*document.id);
        let ids: Vec<&str> = ids.collect();
        let retriever = &self.version;
        let name = CacheName { tenant, retriever };
        if self
            .caches
            .insert(name, vector, &ids, None, now_ms)
            .is_err()
        {
            return false;
        }
        for document in &found.documents {
            let element = Arc::clone(&document.element);
            self.documents.put(tenant, &document.id, element);
        }
        true
    }

    /// Stores another worker's search result of the time `at_ms` like [`Cache::keep`], unless it has another retriever
    /// version than this cache, and one that this cache has just replaced or that is older than its newest result; or
    /// unless it is so much older than that that its date, to which the cache dates its newer results back, would end them too early. Returns
    /// whether it was stored.
    pub(super) fn learn(
        &mut self,
        tenant: &str,
        vector: &[f32],
        found: &RetrieverAnswer,
        at_ms: u64,
    ) -> bool {
        let is_replaced = self.previous_version.as_ref() == Some(&found.version);
        let is_older = self.version != found.version && at_ms < self.newest_ms;
        let is_late = at_ms.saturating_add(self.most_late_ms) < self.newest_ms;
        !is_replaced && !is_older && !is_late && self.keep(tenant, vector, found, at_ms)
    }

    /// Compares a sampled hit with the result of a real search, for the cache's statistics. Returns whether the hit was
    /// wrong. Empties the cache first if the retriever's version is new.
    pub(super) fn report(
        &mut self,
        tenant: &str,
        sample: &Sample,
        found: &RetrieverAnswer,
    ) -> bool {
        self.follow(&found.version);
        let wrong = |cache: &Self| cache.caches.quality().false_hits;
        let before = wrong(self);
        let ids = found.documents.iter().map(|document| &*document.id);
        let retriever = &self.version;
        let name = CacheName { tenant, retriever };
        self.caches
            .report(name, sample, &ids.collect::<Vec<&str>>());
        wrong(self) > before
    }

    /// Removes all results and documents; also called after a panic, which may have left them half changed.
    pub(super) fn clear(&mut self) {
        self.caches.clear();
        self.documents.clear();
    }

    fn follow(&mut self, version: &str) {
        if self.version != version {
            self.clear();
            let left = std::mem::replace(&mut self.version, version.to_owned());
            self.previous_version = (!left.is_empty()).then_some(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(version: &str, ids: &[&str]) -> RetrieverAnswer {
        let documents = ids.iter().map(|id| Document {
            id: (*id).to_owned(),
            element: format!("{{\"text\":\"of {id}\"}}").into(),
        });
        RetrieverAnswer {
            documents: documents.collect(),
            version: version.to_owned(),
            metric: None,
        }
    }

    fn cache(max_document_bytes: usize) -> Cache {
        let config = br#"{"dimensions": 2, "tolerance": 0.01, "ttl_ms": 1000, "sample_one_in": 1}"#;
        Cache::new(
            SimilarityConfig::from_json(config).unwrap(),
            max_document_bytes,
        )
    }

    fn hit(cache: &mut Cache, tenant: &str, vector: [f32; 2], now_ms: u64) -> Option<String> {
        let hit = cache.lookup(tenant, &vector, now_ms).unwrap()?;
        Some(hit.elements.concat())
    }

    #[test]
    fn a_near_question_of_the_same_tenant_gets_what_was_found_until_it_is_too_old() {
        let mut cache = cache(1 << 20);
        assert!(cache.keep("t", &[1.0, 0.0], &found("1", &["a", "b"]), 0));
        let both = r#"{"text":"of a"}{"text":"of b"}"#;
        assert_eq!(hit(&mut cache, "t", [1.0, 0.1], 999).as_deref(), Some(both));
        assert_eq!(hit(&mut cache, "t", [1.0, 0.5], 999), None);
        assert_eq!(hit(&mut cache, "u", [1.0, 0.0], 999), None);
        assert_eq!(hit(&mut cache, "t", [1.0, 0.0], 1_000), None);
        assert_eq!(
            cache.lookup("t", &[1.0], 0).err(),
            Some(Reason::BadEmbedding)
        );
    }

    #[test]
    fn another_version_of_the_retriever_makes_everything_forgotten() {
        let mut cache = cache(1 << 20);
        cache.keep("t", &[1.0, 0.0], &found("1", &["a"]), 0);
        cache.keep("u", &[0.0, 1.0], &found("2", &["a"]), 0);
        assert_eq!(hit(&mut cache, "t", [1.0, 0.0], 0), None);
        assert!(hit(&mut cache, "u", [0.0, 1.0], 0).is_some());
    }

    #[test]
    fn an_entry_whose_texts_are_gone_is_a_miss_and_one_without_ids_is_none() {
        let mut cache = cache(500);
        cache.keep("t", &[1.0, 0.0], &found("1", &["a"]), 0);
        cache.keep("t", &[0.0, 1.0], &found("1", &["b", "c"]), 0);
        assert_eq!(hit(&mut cache, "t", [1.0, 0.0], 0), None);
        assert!(hit(&mut cache, "t", [0.0, 1.0], 0).is_some());
        assert!(!cache.keep("t", &[1.0, 1.0], &found("1", &["a", ""]), 0));
        assert!(!cache.keep(
            "t",
            &[1.0, 1.0],
            &found("1", &["x".repeat(999).as_str()]),
            0
        ));
        let mut twice = found("1", &["a", "a"]);
        assert!(cache.keep("t", &[1.0, 1.0], &twice, 0));
        twice.documents[0].element = "{}".into();
        assert!(!cache.keep("t", &[-1.0, 1.0], &twice, 0));
        assert_eq!(hit(&mut cache, "t", [-1.0, 1.0], 0), None);
    }

    #[test]
    fn a_sampled_hit_is_judged_by_a_fresh_search() {
        let mut cache = cache(1 << 20);
        cache.keep("t", &[1.0, 0.0], &found("1", &["a", "b"]), 0);
        let sample = |cache: &mut Cache| {
            cache
                .lookup("t", &[1.0, 0.0], 0)
                .unwrap()
                .unwrap()
                .sample
                .unwrap()
        };
        let first = sample(&mut cache);
        assert!(!cache.report("t", &first, &found("1", &["b", "a"])));
        let second = sample(&mut cache);
        assert!(cache.report("t", &second, &found("1", &["b", "c"])));
    }
}
