//! Counters and histograms of document retrieval, defined only if retrieval is configured.
//!
//! ```text
//!   searches = hits + misses + sum of failed_<reason>      (a chat that disconnects early counts only on the left)
//! ```

use super::reason::Reason;
use crate::counter::{Counter, Histogram, metrics};
use crate::host::Host;

metrics! {
    |host|
    /// The metrics of document retrieval in one plugin.
    #[derive(Debug)]
    pub(super) struct Metrics {
        pub(super) searches: Counter = "foreword_retrieval_searches_total",
        /// Chats whose documents came from the similarity cache (results of similar earlier questions).
        pub(super) hits: Counter = "foreword_retrieval_hits_total",
        /// Chats whose documents came from a search of the retriever.
        pub(super) misses: Counter = "foreword_retrieval_misses_total",
        /// Chats among `misses` for which the retriever found no documents.
        pub(super) empty: Counter = "foreword_retrieval_empty_total",
        failed: Vec<(Reason, Counter)> => Reason::ALL
            .map(|reason| {
                let name = reason.name().replace('-', "_");
                let name = format!("foreword_retrieval_failed_{name}_total");
                (reason, Counter::define(host, &name))
            })
            .to_vec(),
        pub(super) embeddings: Counter = "foreword_retrieval_embeddings_total",
        pub(super) opted_out: Counter = "foreword_retrieval_opted_out_total",
        /// Search results of other workers that were added to the similarity cache.
        pub(super) learnt: Counter = "foreword_retrieval_learnt_total",
        pub(super) warm_ups: Counter = "foreword_retrieval_warm_ups_total",
        pub(super) failed_warm_ups: Counter = "foreword_retrieval_failed_warm_ups_total",
        /// Warm-ups (prefills of the system messages during a search) that were not started because too many were in
        /// flight.
        pub(super) skipped_warm_ups: Counter = "foreword_retrieval_skipped_warm_ups_total",
        /// Hits of the similarity cache that were verified by a real search. `false_hits` counts those found wrong.
        pub(super) sampled: Counter = "foreword_retrieval_sampled_total",
        pub(super) false_hits: Counter = "foreword_retrieval_false_hits_total",
        lookup_microseconds: Histogram = "foreword_retrieval_lookup_microseconds",
        milliseconds: Histogram = "foreword_retrieval_milliseconds",
    }
}

impl Metrics {
    pub(super) fn failed(&self, host: &impl Host, reason: Reason) {
        let known = self.failed.iter().find(|(known, _)| *known == reason);
        if let Some((_, counter)) = known {
            counter.add(host, 1);
        }
    }

    /// Records how long a look-up in the similarity cache took.
    pub(super) fn looked_up(&self, host: &impl Host, nanoseconds: u64) {
        self.lookup_microseconds.record(host, nanoseconds / 1_000);
    }

    /// Records how long a search for documents took, which is the time for which its request was held.
    pub(super) fn held(&self, host: &impl Host, nanoseconds: u64) {
        self.milliseconds.record(host, nanoseconds / 1_000_000);
    }
}
