//! Retrieves documents for chats that bring none.
//!
//! ```text
//!   body complete ─▶ question ─▶ vector ────▶ similarity cache ─ hit ─────────────▶ documents ─▶ core ─▶ engine
//!   (held)             │ the client's, or       │ miss                              ▲
//!                      ▼ the embedder's         ├─▶ retriever ─▶ response ▶ cache ──┘
//!                   /v1/embeddings              └─▶ engine: /v1/prefill of the system prompt, meanwhile
//! ```
//!
//! | file | content |
//! | --- | --- |
//! | `config/retrieval` | the configuration, next to this folder |
//! | `query` | the query of one chat |
//! | `search` | the states of one chat's search |
//! | `answers`, `vector` | the responses of embedder and retriever |
//! | `cache`, `documents` | the results of earlier questions |
//! | `sharing` | the results of other workers |
//! | `reason` | why there are no documents |
//! | `metrics` | counters |
//!
//! **One place.** Documents are written into the message that asks for them, before its text: system prompt, documents,
//! question. Before the system prompt they would separate it from the prefix that all requests share; after the
//! question no prefix would include them. A continued chat keeps them there, byte for byte (`keep` in the
//! configuration), and its next question gets its own. The core does all of that, as with a client's documents.
//!
//! **Workers share results.** In Wasm each worker has its own cache, and publishes its retriever's results to the
//! others (`sharing`). The dynamic module's workers share one cache.
//!
//! **A failure costs documents, not requests**, unless `retrieval.on_failure` is `refuse`. Every call has a time-out,
//! and every response and every store has a bound. Nothing here logs, counts or reports text of a question or a
//! document.

mod answers;
mod cache;
mod documents;
mod metrics;
mod query;
mod reason;
mod search;
mod sharing;
mod vector;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

pub(crate) use self::reason::Reason;
pub(crate) use self::search::{Search, SearchReport, SearchStep};
use crate::config::RetrievalConfig;

use self::answers::RetrieverAnswer;
use self::cache::Cache;
use self::metrics::Metrics;
use self::sharing::Sharing;
use crate::host::{Host, LogLevel};
use crate::shared::Shared;

/// The state of document retrieval that the chats of one plugin share.
pub(crate) struct Retrieval {
    config: RetrievalConfig,
    cache: Option<Shared<Cache>>,
    /// Access to the search results of other workers; `None` if they are not shared.
    sharing: Option<Sharing>,
    /// Number of warm-ups in flight (prefills of the system messages during a search).
    warming: Arc<AtomicU32>,
    /// True once the log has it that the retriever compares vectors by another metric than the similarity cache.
    has_warned: AtomicBool,
    metrics: Metrics,
}

impl Retrieval {
    pub(crate) fn new(host: &impl Host, config: RetrievalConfig) -> Self {
        Self {
            cache: config
                .similarity
                .clone()
                .map(|similarity| Shared::new(Cache::new(similarity, config.max_document_bytes))),
            sharing: config
                .similarity
                .as_ref()
                .and_then(|_| Sharing::open(host, config.identity, config.shared_results)),
            warming: Arc::default(),
            has_warned: AtomicBool::default(),
            metrics: Metrics::define(host),
            config,
        }
    }

    /// Logs once if the retriever compares vectors by another metric than the similarity cache: what is near for one may
    /// be far for the other.
    fn compare_metric(&self, host: &impl Host, found: &RetrieverAnswer) {
        let Some((similarity, metric)) = self.config.similarity.as_ref().zip(found.metric) else {
            return;
        };
        let ours = similarity.metric();
        if metric != ours && !self.has_warned.swap(true, Ordering::Relaxed) {
            let message = format!(
                "retrieval.similarity.metric is {}, and the retriever compares by {}",
                ours.name(),
                metric.name()
            );
            host.log(LogLevel::Warn, &message);
        }
    }

    pub(crate) fn config(&self) -> &RetrievalConfig {
        &self.config
    }

    /// Reserves one of the permitted warm-ups in flight, until the result is dropped. `None` if all are taken, or
    /// warm-ups are not configured.
    fn slot(&self) -> Option<Slot> {
        let most = self.config.warm_up.as_ref()?.max_in_flight;
        let slot = Slot(Arc::clone(&self.warming));
        // The slot is counted before the comparison, and freed by its drop.
        (self.warming.fetch_add(1, Ordering::Relaxed) < most).then_some(slot)
    }
}

/// A permit for one warm-up (prefill of the system messages during a search). It is dropped with the engine's response
/// or at the end of the chat, which permits another one.
struct Slot(Arc<AtomicU32>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
