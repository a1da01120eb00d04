//! The server's `/metrics`. All counts are over all requests: no label contains anything that a client sent.
//!
//! | name | kind | labels |
//! | --- | --- | --- |
//! | `foreword_http_requests_total` | counter | `route` (the pattern, or `unmatched`), `status` |
//! | `foreword_connections` | gauge | `listener`: `public`, `internal` |
//! | `foreword_connections_closed_total` | counter | `listener`, `cause`, see [`connections::Counts`] |
//! | `foreword_accept_failures_total` | counter | `listener` |
//! | `foreword_generations_total` | counter | `outcome` |
//! | `foreword_document_paths_total` | counter | `outcome`: `placed`, `partial`, `not_found`, `malformed`, `absent` |
//! | `foreword_grammars_total` | counter | `outcome` `prepared`, `refused` (400), `busy` (429), `cancelled`, `failed` |
//! | `foreword_queue_seconds` | histogram | from submission to the engine's start |
//! | `foreword_time_to_first_token_seconds` | histogram | from the request's arrival |
//! | `foreword_time_between_tokens_seconds` | histogram | each gap between consecutive tokens of a choice |
//! | `foreword_request_seconds` | histogram | from arrival to the end of the answer |
//! | `foreword_request_prompt_tokens`, `foreword_request_cached_tokens` | histogram | of each request's prompt |
//! | `foreword_{prompt,cached,generated}_tokens_total` | counter | |
//! | `foreword_prefix_lookups_total`, `foreword_prefix_{partial,full}_hits_total` | counter | |
//! | `foreword_hit_tokens_total` | counter | `tier`: where cached tokens were found |
//! | `foreword_evicted_pages_total` | counter | `cause` |
//! | `foreword_preemptions_total`, `foreword_steps_total`, `foreword_fetched_pages_total` | counter | |
//! | `foreword_disk_{written,dropped,damaged}_pages_total` | counter | of `--kv-disk` |
//! | `foreword_disk_failures_total` | counter | of `--kv-disk`; a full disk is a failure |
//! | `foreword_{retries,devices_lost,expired}_total` | counter | |
//! | `foreword_speculations_total`, `foreword_speculations_{refused,joined,superseded,cancelled}_total` | counter | |
//! | `foreword_retrievals_total` | counter | `outcome`: `found`, `empty`, `failed` |
//! | `foreword_retrieval_seconds` | histogram | from a question to its documents |
//! | `foreword_step_sequences` | histogram | sequences computed side by side in a step |
//! | `foreword_tokenised_bytes_total` | counter | text of prompts |
//! | `foreword_tokenised_before_bytes_total` | counter | the part of that text with cached tokens |
//! | `foreword_requests_waiting`, `foreword_requests_running` | gauge | |
//! | `foreword_pages`, `foreword_pages_in_use`, `foreword_pages_cached` | gauge | |
//! | `foreword_host_pages`, `foreword_host_pages_cached` | gauge | |
//! | `foreword_disk_replicated_pages_total` | counter | copied to `--kv-disk` while still in memory |
//! | `foreword_disk_replica_pages`, `foreword_disk_replica_bytes` | gauge | in memory and also on disk |
//!
//! with `--batch-dir`:
//!
//! | name | kind | labels |
//! | --- | --- | --- |
//! | `foreword_batches` | gauge | `status`, in OpenAI's words: stored batches |
//! | `foreword_batches_ended_total` | counter | `status`: `completed`, `failed`, `expired`, `cancelled` |
//! | `foreword_batch_requests_total` | counter | `outcome`: `served`, `failed` |
//! | `foreword_batch_requests_waiting` | gauge | requests of unfinished batches without an answer |
//! | `foreword_batch_bytes` | gauge | bytes of all files, answers included; limited by `--batch-mib` |
//!
//! and under vLLM's names, for routers and autoscalers that expect these:
//!
//! | name | kind | labels |
//! | --- | --- | --- |
//! | `vllm:num_requests_running`, `vllm:num_requests_waiting` | gauge | `model_name`, `engine` (`0`) |
//! | `vllm:kv_cache_usage_perc` | gauge | `model_name`, `engine` (`0`) |
//! | `vllm:cache_config_info` | gauge, 1 | `block_size`, `num_gpu_blocks`, `enable_prefix_caching`, `engine` |
//!
//! The engine's metrics are read on each scrape; they are absent until the model is loaded.

mod counts;
mod engine;
mod scrape;

pub(crate) use counts::Outcomes;
pub use counts::{Placement, Placements, Responses};
pub use engine::Numbers;
pub(crate) use scrape::Scrape;

use crate::connections;
use axum::http::StatusCode;
use engine::Scraped;
use foreword_process::metrics::openmetrics;
use prometheus_client::collector::Collector;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::fmt;
use std::time::Duration;

/// The server's metrics.
pub struct Metrics {
    registry: Registry,
    http: Responses,
    /// Counts the connections of all listeners.
    pub connections: connections::Counts,
    generations: Outcomes,
    /// Counts chat requests, by the outcome of finding their documents in the prompt.
    pub placements: Placements,
    /// Counts the grammars of constrained answers, by the outcome of their preparation.
    pub(crate) grammars: Outcomes,
    retrievals: Outcomes,
    /// Seconds from a question to the documents found for it.
    pub retrieval_seconds: Histogram,
    /// Seconds from a request's submission until the engine starts to compute it.
    pub queue_seconds: Histogram,
    /// Seconds from a request's arrival to the first token of its answer.
    pub first_token_seconds: Histogram,
    /// Seconds from one token of an answer to the next.
    pub between_tokens_seconds: Histogram,
    /// Seconds from a request's arrival to the end of its answer.
    pub request_seconds: Histogram,
    /// Number of tokens of each request's prompt.
    pub prompt_tokens: Histogram,
    /// Number of cached tokens of each request's prompt.
    pub cached_tokens: Histogram,
}

foreword_ordering::named! {
    /// The outcome of an answer's generation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum GenerationOutcome {
        /// A stop token, a stop string or the end of its grammar ended the answer.
        Stop = "stop",
        /// The answer, or one of its choices, reached the maximum length.
        Length = "length",
        /// The engine failed, or the server did.
        Failed = "failed",
        /// The request exceeded its time limit.
        TimedOut = "timed_out",
        /// The server aborted its requests, or the engine stopped, before the answer was complete.
        Cut = "cut",
        /// The answer was dropped before its end, usually because the client disconnected.
        Cancelled = "cancelled",
    }
}

impl Metrics {
    /// Returns the server's metrics. The engine's are read from `numbers` on each scrape, and those of `others` are
    /// exported too.
    pub fn new(
        numbers: impl Fn() -> Option<Numbers> + Clone + Send + Sync + 'static,
        others: impl IntoIterator<Item = Box<dyn Collector>>,
    ) -> Self {
        let mut root = Registry::default();
        let registry = root.sub_registry_with_prefix("foreword");
        let http = Responses::registered(registry);
        let connections = connections::Counts::registered(registry);
        let help = "Generations by how they ended";
        let generations = Outcomes::registered(registry, "generations", help);
        let placements = Placements::registered(registry);
        let help = "Grammars for answers by what became of them";
        let grammars = Outcomes::registered(registry, "grammars", help);
        let help = "Searches for documents by what became of them";
        let retrievals = Outcomes::registered(registry, "retrievals", help);
        let mut histogram = |name: &str, help: &str, bounds: Vec<f64>| {
            let histogram = Histogram::new(bounds);
            registry.register(name, help, histogram.clone());
            histogram
        };
        // The buckets reach from 100 µs to 13 s.
        let short = || exponential_buckets(0.0001, 2.0, 18).collect();
        // The buckets reach from 1 ms to 131 s.
        let long = || exponential_buckets(0.001, 2.0, 18).collect();
        // The buckets reach from 16 to 524,288, and there is one for 0.
        let tokens = || {
            let bounds = std::iter::once(0.0).chain(exponential_buckets(16.0, 2.0, 16));
            bounds.collect()
        };
        // The fields are in the order of the output.
        let metrics = Self {
            http,
            connections,
            generations,
            placements,
            grammars,
            retrievals,
            retrieval_seconds: histogram(
                "retrieval_seconds",
                "From a question to its documents",
                short(),
            ),
            between_tokens_seconds: histogram(
                "time_between_tokens_seconds",
                "From one token of a choice to the next",
                short(),
            ),
            prompt_tokens: histogram(
                "request_prompt_tokens",
                "Tokens of a request's prompt",
                tokens(),
            ),
            cached_tokens: histogram(
                "request_cached_tokens",
                "Tokens of a request's prompt served from the cache",
                tokens(),
            ),
            queue_seconds: histogram(
                "queue_seconds",
                "From submission to the engine's start",
                long(),
            ),
            first_token_seconds: histogram(
                "time_to_first_token_seconds",
                "From arrival to the first token",
                long(),
            ),
            request_seconds: histogram(
                "request_seconds",
                "From arrival to the end of the answer",
                long(),
            ),
            registry: Registry::default(),
        };
        registry.register_collector(Box::new(Scraped(numbers.clone(), engine::encode)));
        for other in others {
            registry.register_collector(other);
        }
        root.register_collector(Box::new(Scraped(numbers, engine::encode_as_vllm)));
        Self {
            registry: root,
            ..metrics
        }
    }

    /// Counts an HTTP response. `route` is the pattern of the route, never the client's path.
    pub fn http(&self, route: &str, status: StatusCode) {
        self.http.count(route, status);
    }

    /// Counts the generation of an answer by its outcome.
    pub fn ended(&self, outcome: GenerationOutcome) {
        self.generations.count(outcome.name());
    }

    /// Counts a search for documents by its result, and records its duration `taken`. `documents` is the number of
    /// documents found; `None` if the search failed.
    pub fn retrieved(&self, documents: Option<usize>, taken: Duration) {
        let outcome = match documents {
            Some(0) => "empty",
            Some(_) => "found",
            None => "failed",
        };
        self.retrievals.count(outcome);
        self.retrieval_seconds.observe(taken.as_secs_f64());
    }

    /// Returns all metrics in the OpenMetrics text format.
    ///
    /// # Errors
    /// Never fails in practice, since writing to a string does not fail.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        openmetrics(&self.registry)
    }
}
