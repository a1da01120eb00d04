//! What `/metrics` tells. Everything is counted over all requests: no label carries anything that a client sent.
//!
//! | name | kind | labels |
//! | --- | --- | --- |
//! | `foreword_http_requests_total` | counter | `route` (the pattern, or `unmatched`), `status` |
//! | `foreword_generations_total` | counter | `outcome` |
//! | `foreword_document_paths_total` | counter | `outcome`: `placed`, `partial`, `not_found`, `malformed`, `absent` |
//! | `foreword_queue_seconds` | histogram | from submission to the engine's start |
//! | `foreword_time_to_first_token_seconds` | histogram | from the request's arrival |
//! | `foreword_time_between_tokens_seconds` | histogram | each gap between two tokens of a choice |
//! | `foreword_request_seconds` | histogram | from arrival to the end of the answer |
//! | `foreword_request_prompt_tokens`, `foreword_request_cached_tokens` | histogram | of each request's prompt |
//! | `foreword_{prompt,cached,generated}_tokens_total` | counter | |
//! | `foreword_prefix_lookups_total`, `foreword_prefix_{partial,full}_hits_total` | counter | |
//! | `foreword_hit_tokens_total` | counter | `tier`: where cached tokens were found |
//! | `foreword_evicted_pages_total` | counter | `cause` |
//! | `foreword_preemptions_total`, `foreword_steps_total`, `foreword_fetched_pages_total` | counter | |
//! | `foreword_{retries,devices_lost,expired}_total` | counter | |
//! | `foreword_speculations_total`, `foreword_speculations_{refused,joined,superseded}_total` | counter | |
//! | `foreword_retrievals_total` | counter | `outcome`: `found`, `empty`, `failed` |
//! | `foreword_retrieval_seconds` | histogram | from a question to its documents |
//! | `foreword_step_sequences` | histogram | sequences computed side by side in a step |
//! | `foreword_tokenised_bytes_total`, `foreword_tokenised_before_bytes_total` | counter | text of prompts, and how much of it had its tokens remembered |
//! | `foreword_requests_waiting`, `foreword_requests_running` | gauge | |
//! | `foreword_pages`, `foreword_pages_in_use`, `foreword_pages_cached` | gauge | |
//! | `foreword_host_pages`, `foreword_host_pages_cached` | gauge | |
//!
//! The engine's own numbers are read from [`Stats`] on each scrape; before the model is loaded they are absent.

use crate::kv::place::Placement;
use crate::model::Model;
use axum::http::StatusCode;
use foreword_engine::engine::{Stats, StepSizes};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The server's metrics.
pub struct Metrics {
    registry: Registry,
    http: Responses,
    generations: Family<GenerationLabels, Counter>,
    /// Chat requests by what became of their path.
    pub placements: Placements,
    retrievals: Family<GenerationLabels, Counter>,
    /// From a question to its documents.
    pub retrieval_seconds: Histogram,
    /// From submission to the engine's start.
    pub queue_seconds: Histogram,
    /// From the request's arrival to its first token.
    pub first_token_seconds: Histogram,
    /// From one token of a choice to the next.
    pub between_tokens_seconds: Histogram,
    /// From the request's arrival to the end of its answer.
    pub request_seconds: Histogram,
    /// Tokens of a request's prompt.
    pub prompt_tokens: Histogram,
    /// Of those, served from the cache.
    pub cached_tokens: Histogram,
}

/// How a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a stop token or a stop string.
    Stop,
    /// At its longest.
    Length,
    /// The engine failed.
    Failed,
    /// It took longer than a request may.
    TimedOut,
    /// The server stopped before it was complete.
    Cut,
    /// The client went away.
    Cancelled,
}

impl Outcome {
    /// As it stands in metrics and log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Cut => "cut",
            Self::Cancelled => "cancelled",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HttpLabels {
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GenerationLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PathLabels {
    outcome: &'static str,
}

/// HTTP responses by route and status, of any server here. The default is told to nobody.
#[derive(Clone, Debug, Default)]
pub struct Responses(Family<HttpLabels, Counter>);

impl Responses {
    /// In this registry.
    pub fn registered(registry: &mut Registry) -> Self {
        let family = Family::default();
        let help = "HTTP requests by route and status";
        registry.register("http_requests", help, family.clone());
        Self(family)
    }

    /// Counts one; `route` is the pattern, never what a client put in the path.
    pub fn count(&self, route: &str, status: StatusCode) {
        self.0
            .get_or_create(&HttpLabels {
                route: route.to_owned(),
                status: status.as_u16(),
            })
            .inc();
    }
}

/// Chat requests by what became of the path that the gateway told, of any server here.
#[derive(Clone, Debug, Default)]
pub struct Placements(Family<PathLabels, Counter>);

impl Placements {
    /// In this registry.
    pub fn registered(registry: &mut Registry) -> Self {
        let family = Family::default();
        let help = "Chat requests by what became of the path that the gateway told";
        registry.register("document_paths", help, family.clone());
        Self(family)
    }

    /// Counts one.
    pub fn count(&self, outcome: Placement) {
        self.0
            .get_or_create(&PathLabels {
                outcome: outcome.name(),
            })
            .inc();
    }
}

impl Metrics {
    /// Metrics that read the engine's numbers from `model` once it is set.
    pub fn new(model: Arc<OnceLock<Arc<Model>>>) -> Self {
        let mut registry = Registry::with_prefix("foreword");
        let http = Responses::registered(&mut registry);
        let generations = Family::default();
        registry.register(
            "generations",
            "Generations by how they ended",
            generations.clone(),
        );
        let placements = Placements::registered(&mut registry);
        let retrievals = Family::default();
        registry.register(
            "retrievals",
            "Searches for documents by what became of them",
            retrievals.clone(),
        );
        let retrieval_seconds = {
            // 100 µs to 13 s.
            let histogram = Histogram::new(exponential_buckets(0.0001, 2.0, 18));
            let help = "From a question to its documents";
            registry.register("retrieval_seconds", help, histogram.clone());
            histogram
        };
        let between_tokens_seconds = {
            // 100 µs to 13 s.
            let histogram = Histogram::new(exponential_buckets(0.0001, 2.0, 18));
            let help = "From one token of a choice to the next";
            registry.register("time_between_tokens_seconds", help, histogram.clone());
            histogram
        };
        let mut tokens = |name, help| {
            // 16 to 524,288, and those of none.
            let bounds = std::iter::once(0.0).chain(exponential_buckets(16.0, 2.0, 16));
            let histogram = Histogram::new(bounds);
            registry.register(name, help, histogram.clone());
            histogram
        };
        let prompt_tokens = tokens("request_prompt_tokens", "Tokens of a request's prompt");
        let cached_tokens = tokens(
            "request_cached_tokens",
            "Tokens of a request's prompt served from the cache",
        );
        let mut seconds = |name, help| {
            // 1 ms to 131 s.
            let histogram = Histogram::new(exponential_buckets(0.001, 2.0, 18));
            registry.register(name, help, histogram.clone());
            histogram
        };
        let metrics = Self {
            http,
            generations,
            placements,
            retrievals,
            retrieval_seconds,
            queue_seconds: seconds("queue_seconds", "From submission to the engine's start"),
            first_token_seconds: seconds(
                "time_to_first_token_seconds",
                "From arrival to the first token",
            ),
            between_tokens_seconds,
            prompt_tokens,
            cached_tokens,
            request_seconds: seconds("request_seconds", "From arrival to the end of the answer"),
            registry: Registry::default(),
        };
        registry.register_collector(Box::new(EngineNumbers(model)));
        Self {
            registry,
            ..metrics
        }
    }

    /// Counts an HTTP response.
    pub fn http(&self, route: &str, status: StatusCode) {
        self.http.count(route, status);
    }

    /// Counts a generation.
    pub fn ended(&self, outcome: Outcome) {
        self.generations
            .get_or_create(&GenerationLabels {
                outcome: outcome.name(),
            })
            .inc();
    }

    /// Counts a search, which took so long, by the documents that it found; `None`: it failed.
    pub fn retrieved(&self, documents: Option<usize>, taken: Duration) {
        let outcome = match documents {
            Some(0) => "empty",
            Some(_) => "found",
            None => "failed",
        };
        self.retrievals
            .get_or_create(&GenerationLabels { outcome })
            .inc();
        self.retrieval_seconds.observe(taken.as_secs_f64());
    }

    /// All metrics in the OpenMetrics text format.
    ///
    /// # Errors
    /// Never in practice: writing to a string does not fail.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}

/// Reads the engine's counters and gauges when scraped.
struct EngineNumbers(Arc<OnceLock<Arc<Model>>>);

impl fmt::Debug for EngineNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineNumbers")
    }
}

impl Collector for EngineNumbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(model) = self.0.get() else {
            return Ok(());
        };
        let stats = model.engine().stats();
        let tokens = model.token_cache_stats();
        for (name, help, value) in [
            ("tokenised_bytes", "Text of prompts", tokens.text_bytes),
            (
                "tokenised_before_bytes",
                "Text of prompts whose tokens were remembered",
                tokens.found_bytes,
            ),
        ] {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        for (name, help, label, rows) in LABELLED {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (value, read) in *rows {
                let metric = ConstCounter::new(read(&stats));
                metric.encode(family.encode_family(&[(*label, *value)])?)?;
            }
        }
        encode_step_sizes(&mut encoder, &stats.step_sizes)?;
        for (name, help, read) in COUNTERS {
            let metric = ConstCounter::new(read(&stats));
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        for (name, help, read) in GAUGES {
            let metric = ConstGauge::new(i64::from(read(&stats)));
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }
}

fn encode_step_sizes(encoder: &mut DescriptorEncoder<'_>, sizes: &StepSizes) -> fmt::Result {
    let last = sizes.counts.len() - 1;
    let bound = |place: usize| match place {
        place if place == last => f64::MAX, // stands for +Inf
        place => (1_u64 << place) as f64,
    };
    let buckets: Vec<(f64, u64)> = sizes
        .counts
        .iter()
        .enumerate()
        .map(|(place, count)| (bound(place), *count))
        .collect();
    let help = "Sequences computed side by side in a step";
    encoder
        .encode_descriptor("step_sequences", help, None, MetricType::Histogram)?
        .encode_histogram::<NoLabelSet>(
            sizes.sequences as f64,
            sizes.counts.iter().sum(),
            &buckets,
            None,
        )
}

/// Name, help, and the label that tells the rows apart.
type Labelled = (
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, fn(&Stats) -> u64)],
);

/// What is told by kind. Here a new tier or cause gets its row.
const LABELLED: &[Labelled] = &[
    (
        "hit_tokens",
        "Prompt tokens served from the cache, by where they were found",
        "tier",
        // From disk they come by way of host memory.
        &[
            ("device", |stats| {
                stats.cached_tokens.saturating_sub(stats.host_tokens)
            }),
            ("host", |stats| stats.host_tokens),
        ],
    ),
    (
        "evicted_pages",
        "Pages taken back from the cache, by cause",
        "cause",
        &[
            ("device_full", |stats| stats.evicted_pages),
            ("host_full", |stats| stats.host_evicted_pages),
        ],
    ),
];

type Row<T> = (&'static str, &'static str, fn(&Stats) -> T);

const COUNTERS: &[Row<u64>] = &[
    (
        "requests_finished",
        "Requests finished, failed or cancelled in the engine",
        |stats| stats.finished,
    ),
    ("prompt_tokens", "Prompt tokens taken in", |stats| {
        stats.prompt_tokens
    }),
    (
        "cached_tokens",
        "Prompt tokens served from the cache",
        |stats| stats.cached_tokens,
    ),
    ("generated_tokens", "Tokens generated", |stats| {
        stats.generated_tokens
    }),
    ("prefix_lookups", "Prefix lookups", |stats| stats.lookups),
    (
        "prefix_partial_hits",
        "Prefix lookups that matched part of the prompt",
        |stats| stats.partial_hits,
    ),
    (
        "prefix_full_hits",
        "Prefix lookups that matched all but the last token",
        |stats| stats.full_hits,
    ),
    (
        "preemptions",
        "Times a running request had to give up its pages and wait",
        |stats| stats.preemptions,
    ),
    ("steps", "Steps computed", |stats| stats.steps),
    (
        "fetched_pages",
        "Pages read back from disk into host memory",
        |stats| stats.fetched_pages,
    ),
    (
        "retries",
        "Times a request was computed again because the device failed under it",
        |stats| stats.retries,
    ),
    (
        "devices_lost",
        "Times everything on the device was lost",
        |stats| stats.devices_lost,
    ),
    (
        "speculations",
        "Speculative prefills taken in, warm-ups included",
        |stats| stats.speculations_started,
    ),
    (
        "speculations_refused",
        "Speculative prefills that were none because too many requests waited",
        |stats| stats.speculations_refused,
    ),
    (
        "speculations_joined",
        "Requests that found themselves computed already and took that over",
        |stats| stats.speculations_joined,
    ),
    (
        "speculations_superseded",
        "Speculative prefills that a later one with other documents replaced",
        |stats| stats.speculations_superseded,
    ),
    (
        "expired",
        "Requests whose deadline passed before they were complete",
        |stats| stats.expired,
    ),
];

const GAUGES: &[Row<u32>] = &[
    (
        "requests_waiting",
        "Requests waiting in the engine",
        |stats| stats.waiting,
    ),
    (
        "requests_running",
        "Requests running in the engine",
        |stats| stats.running,
    ),
    ("pages", "Pages in the pool", |stats| stats.pages),
    ("pages_in_use", "Pages held by running requests", |stats| {
        stats.pages_in_use
    }),
    ("pages_cached", "Pages that hold cached prefixes", |stats| {
        stats.pages_cached
    }),
    ("host_pages", "Pages in the host's pool", |stats| {
        stats.host_pages
    }),
    (
        "host_pages_cached",
        "Pages of the host's pool that hold cached prefixes",
        |stats| stats.host_pages_cached,
    ),
];
