//! Shares retrieval results between Wasm workers: one worker's result enters the other workers' similarity caches.
//!
//! ```text
//!   worker 1: miss ─▶ retriever ─▶ cache ─ publishes ▶ ring in shared data ◀ read before a look-up ─ cache :worker 2
//! ```
//!
//! A Wasm VM shares no memory with the others, so a result is shared with its vector and its documents' texts, which
//! stay in the proxy's process. A look-up first reads the entries that are new to its worker; without any that takes
//! one call. In the dynamic module and in the external processor all workers use one cache, so nothing is published.
//!
//! A result with a version of the retriever unknown to this worker counts as newer and empties the cache, unless it is
//! the version that this worker has just replaced, or was published before this worker's newest result. Results that are too long or malformed are skipped.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::answers::{Document, RetrieverAnswer};
use super::cache::Cache;
use super::vector;
use crate::agreement::Agreement;
use crate::host::Host;
use crate::shared::Shared;

/// One worker's access to the ring buffer in shared data through which workers exchange retrieval results.
#[derive(Debug)]
pub(super) struct Sharing(Shared<Agreement>);

/// A retrieval result as published to the other workers.
#[derive(Serialize, Deserialize)]
struct Entry {
    tenant: String,
    /// The question's embedding vector: little-endian `f32` values in base64.
    vector: String,
    version: String,
    /// Time at which it was published, in milliseconds.
    #[serde(default)]
    at_ms: u64,
    /// The documents, best first: the id of each, and its JSON as an element of a request's `documents`.
    documents: Vec<(String, String)>,
}

impl Sharing {
    /// Joins the ring buffer of the workers with the same retrieval configuration, of which `identity` is a hash. It
    /// holds `entries` results. `None` if results are not shared, or the proxy refuses access to shared data.
    pub(super) fn open(host: &impl Host, identity: u64, entries: u32) -> Option<Self> {
        let is_alone = cfg!(not(any(target_arch = "wasm32", test)));
        if entries == 0 || is_alone {
            return None;
        }
        let name = format!("results-{identity:016x}");
        let agreement = Agreement::open(host, &name, entries).ok()?;
        Some(Self(Shared::new(agreement)))
    }

    /// Publishes a retrieval result and the question's vector to the other workers. A result that is too long is not
    /// published.
    pub(super) fn publish(
        &self,
        host: &impl Host,
        tenant: &str,
        vector: &[f32],
        found: &RetrieverAnswer,
    ) {
        let documents = found.documents.iter();
        let entry = Entry {
            tenant: tenant.to_owned(),
            vector: vector::to_base64(vector),
            version: found.version.clone(),
            at_ms: host.now_ms(),
            documents: documents
                .map(|document| (document.id.clone(), document.element.to_string()))
                .collect(),
        };
        let Ok(entry) = serde_json::to_vec(&entry) else {
            return;
        };
        if let Some(mut agreement) = self.0.lock(Agreement::forget) {
            // If the result cannot be published, other workers search for themselves.
            let _ = agreement.publish_within(host, &entry, MAX_ENTRY_BYTES);
        }
    }

    /// Adds retrieval results that other workers have published to `cache`, at most [`MOST_AT_ONCE`], and returns how
    /// many were stored.
    pub(super) fn learn(&self, host: &impl Host, cache: &mut Cache) -> u64 {
        let Some(mut agreement) = self.0.lock(Agreement::forget) else {
            return 0;
        };
        let now_ms = host.now_ms();
        let learnt = agreement.read_new(host, MOST_AT_ONCE, |entry| {
            let Ok(entry) = serde_json::from_slice::<Entry>(entry) else {
                return false;
            };
            let Some(vector) = vector::from_header(entry.vector.as_bytes()) else {
                return false;
            };
            let documents = entry.documents.into_iter().map(|(id, element)| Document {
                id,
                element: Arc::from(element),
            });
            let found = RetrieverAnswer {
                documents: documents.collect(),
                version: entry.version,
                metric: None,
            };
            // It expires as in the cache of the worker that searched.
            cache.learn(&entry.tenant, &vector, &found, entry.at_ms.min(now_ms))
        });
        learnt.map_or(0, |learnt| learnt.entries)
    }
}

/// The maximum length in bytes of a published retrieval result: five documents of 12 KB. A longer one is not published.
const MAX_ENTRY_BYTES: usize = 64 << 10;
/// The maximum number of other workers' results read before one look-up in the similarity cache.
const MOST_AT_ONCE: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::scripted::ScriptedHost;
    use foreword_similarity::SimilarityConfig;

    fn cache() -> Cache {
        let config =
            SimilarityConfig::from_json(br#"{"dimensions": 2, "tolerance": 0.01}"#).unwrap();
        Cache::new(config, 1 << 20)
    }

    fn found(version: &str, text: &str) -> RetrieverAnswer {
        RetrieverAnswer {
            documents: vec![Document {
                id: "d".to_owned(),
                element: Arc::from(text),
            }],
            version: version.to_owned(),
            metric: None,
        }
    }

    /// Returns two workers of one proxy that share their results.
    fn workers() -> [(ScriptedHost, Sharing); 2] {
        let host = ScriptedHost::default();
        let beside = ScriptedHost::beside(&host);
        [host, beside].map(|host| {
            let sharing = Sharing::open(&host, 1, 8).unwrap();
            (host, sharing)
        })
    }

    fn known(cache: &mut Cache, tenant: &str) -> Option<String> {
        let hit = cache.lookup(tenant, &[1.0, 0.0], 0).unwrap()?;
        hit.elements.first().map(ToString::to_string)
    }

    #[test]
    fn what_one_worker_found_another_knows_and_no_other_tenant() {
        let [(host, first), (beside, second)] = workers();
        let (mut own, mut others) = (cache(), cache());
        own.keep("t", &[1.0, 0.0], &found("v1", "{}"), 0);
        first.publish(&host, "t", &[1.0, 0.0], &found("v1", "{}"));
        assert_eq!(second.learn(&beside, &mut others), 1);
        assert_eq!(known(&mut others, "t").as_deref(), Some("{}"));
        assert_eq!(known(&mut others, "u"), None);
        // No result is received twice, and no worker receives its own.
        assert_eq!(second.learn(&beside, &mut others), 0);
        assert_eq!(first.learn(&host, &mut own), 0);
        // Another configuration is another ring.
        assert_eq!(
            Sharing::open(&beside, 2, 8)
                .unwrap()
                .learn(&beside, &mut others),
            0
        );
        assert!(Sharing::open(&beside, 1, 0).is_none());
    }

    #[test]
    fn a_newer_version_empties_the_cache_and_the_one_left_behind_does_not() {
        let [(host, first), (beside, second)] = workers();
        let mut cache = cache();
        for version in ["v1", "v2", "v1"] {
            first.publish(&host, "t", &[1.0, 0.0], &found(version, version));
        }
        assert_eq!(second.learn(&beside, &mut cache), 2);
        assert_eq!(known(&mut cache, "t").as_deref(), Some("v2"));
    }

    /// A worker that reads late neither serves what has expired nor goes back to an older version.
    #[test]
    fn a_result_keeps_its_time() {
        let [(host, first), (beside, second)] = workers();
        let config = br#"{"dimensions": 2, "tolerance": 0.01, "ttl_ms": 1000}"#;
        let config = SimilarityConfig::from_json(config).unwrap();
        for (read_at, is_known) in [(1_500, true), (9_000, false)] {
            let mut cache = Cache::new(config.clone(), 1 << 20);
            host.set_time(1_000);
            first.publish(&host, "t", &[1.0, 0.0], &found("v1", "{}"));
            beside.set_time(read_at);
            assert_eq!(second.learn(&beside, &mut cache), 1);
            let hit = cache.lookup("t", &[1.0, 0.0], read_at).unwrap();
            assert_eq!(hit.is_some(), is_known, "{read_at}");
        }
        let mut cache = Cache::new(config.clone(), 1 << 20);
        cache.keep("t", &[1.0, 0.0], &found("v3", "new"), 9_500);
        host.set_time(9_400);
        first.publish(&host, "t", &[1.0, 0.0], &found("v2", "old"));
        beside.set_time(9_600);
        assert_eq!(second.learn(&beside, &mut cache), 0);
        let hit = cache.lookup("t", &[1.0, 0.0], 9_600).unwrap();
        assert_eq!(
            hit.map(|hit| hit.elements[0].to_string()).as_deref(),
            Some("new")
        );
    }

    #[test]
    fn what_is_too_long_or_no_result_is_left_out() {
        let [(host, first), (beside, second)] = workers();
        let mut cache = cache();
        first.publish(&host, "t", &[1.0, 0.0], &found("v", &"x".repeat(70_000)));
        for entry in [
            &b"nonsense"[..],
            br#"{"tenant": "t", "vector": "A", "version": "v", "documents": []}"#,
        ] {
            let mut agreement = first.0.try_lock().unwrap();
            assert!(agreement.publish_within(&host, entry, 1_000).unwrap());
        }
        // Vectors of another length are refused by the cache.
        first.publish(&host, "t", &[1.0], &found("v", "{}"));
        assert_eq!(second.learn(&beside, &mut cache), 0);
        assert_eq!(known(&mut cache, "t"), None);
    }
}
