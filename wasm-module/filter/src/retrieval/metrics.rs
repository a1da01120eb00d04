//! Counters and histograms of document retrieval, defined only if retrieval is configured.
//!
//! ```text
//!   searches = hits + misses + sum of failed_<reason>      (a chat that disconnects early counts only on the left)
//! ```

use super::reason::Reason;
use crate::counter::{Counter, record};
use crate::host::{Host, MetricId};

/// The metrics of document retrieval in one plugin.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) searches: Counter,
    /// Chats whose documents came from the similarity cache (results of similar earlier questions).
    pub(super) hits: Counter,
    /// Chats whose documents came from a search of the retriever.
    pub(super) misses: Counter,
    /// Chats among `misses` for which the retriever found no documents.
    pub(super) empty: Counter,
    failed: Vec<(Reason, Counter)>,
    pub(super) embeddings: Counter,
    pub(super) opted_out: Counter,
    /// Search results of other workers that were added to the similarity cache.
    pub(super) learnt: Counter,
    pub(super) warm_ups: Counter,
    pub(super) failed_warm_ups: Counter,
    /// Warm-ups (prefills of the system messages during a search) that were not started because too many were in
    /// flight.
    pub(super) skipped_warm_ups: Counter,
    /// Hits of the similarity cache that were verified by a real search. `false_hits` counts those found wrong.
    pub(super) sampled: Counter,
    pub(super) false_hits: Counter,
    lookup_microseconds: Option<MetricId>,
    milliseconds: Option<MetricId>,
}

impl Metrics {
    pub(super) fn define(host: &impl Host) -> Self {
        let counter =
            |what: &str| Counter::define(host, &format!("foreword_retrieval_{what}_total"));
        let failed = |reason: Reason| {
            let name = format!("failed_{}", reason.name().replace('-', "_"));
            (reason, counter(&name))
        };
        Self {
            searches: counter("searches"),
            hits: counter("hits"),
            misses: counter("misses"),
            empty: counter("empty"),
            failed: Reason::ALL.map(failed).to_vec(),
            embeddings: counter("embeddings"),
            opted_out: counter("opted_out"),
            learnt: counter("learnt"),
            warm_ups: counter("warm_ups"),
            failed_warm_ups: counter("failed_warm_ups"),
            skipped_warm_ups: counter("skipped_warm_ups"),
            sampled: counter("sampled"),
            false_hits: counter("false_hits"),
            lookup_microseconds: host
                .define_histogram("foreword_retrieval_lookup_microseconds")
                .ok(),
            milliseconds: host
                .define_histogram("foreword_retrieval_milliseconds")
                .ok(),
        }
    }

    pub(super) fn failed(&self, host: &impl Host, reason: Reason) {
        let known = self.failed.iter().find(|(known, _)| *known == reason);
        if let Some((_, counter)) = known {
            counter.add(host, 1);
        }
    }

    /// Records how long a look-up in the similarity cache took.
    pub(super) fn looked_up(&self, host: &impl Host, nanoseconds: u64) {
        record(host, self.lookup_microseconds, nanoseconds / 1_000);
    }

    /// Records how long a search for documents took, which is the time for which its request was held.
    pub(super) fn held(&self, host: &impl Host, nanoseconds: u64) {
        record(host, self.milliseconds, nanoseconds / 1_000_000);
    }
}
