//! The engine's own metrics, read on each scrape.

use foreword_engine::engine::{Stats, StepSizes};
use foreword_engine::text::TokenCacheStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

/// The counters and gauges of the model's engine at one moment.
pub struct Numbers {
    /// The model's name.
    pub model: String,
    /// Number of tokens in a page of KV state.
    pub page_tokens: u32,
    /// Number of bytes of a page of KV state.
    pub page_bytes: u64,
    /// The engine's counters of requests, pages and steps.
    pub engine: Stats,
    /// Counters of the cache for the tokens of repeated texts.
    pub tokens: TokenCacheStats,
}

/// Collects the engine's metrics on each scrape from a function, which returns `None` before the model is loaded.
pub(super) struct Scraped<F>(pub(super) F);

impl<F> fmt::Debug for Scraped<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scraped")
    }
}

impl<F: Fn() -> Option<Numbers> + Send + Sync + 'static> Collector for Scraped<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(Numbers {
            engine: stats,
            tokens,
            page_bytes,
            ..
        }) = (self.0)()
        else {
            return Ok(());
        };
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
        let help = "Bytes of KV state in memory of which the disk tier has a copy in case the process ends";
        let replicas = u64::from(stats.disk_replicas).saturating_mul(page_bytes);
        let metric = ConstGauge::new(i64::try_from(replicas).unwrap_or(i64::MAX));
        let kind = metric.metric_type();
        metric.encode(encoder.encode_descriptor("disk_replica_bytes", help, None, kind)?)?;
        for (name, help, read) in GAUGES {
            let metric = ConstGauge::new(i64::from(read(&stats)));
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }
}

/// Exports under vLLM's names the metrics that routers and autoscalers read from vLLM. The label `engine` is the number
/// of vLLM's engine; there is one here.
pub(super) struct VllmMetrics<F>(pub(super) F);

impl<F> fmt::Debug for VllmMetrics<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VllmMetrics")
    }
}

impl<F: Fn() -> Option<Numbers> + Send + Sync + 'static> Collector for VllmMetrics<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(numbers) = (self.0)() else {
            return Ok(());
        };
        let stats = &numbers.engine;
        let labels = [("model_name", numbers.model.as_str()), ("engine", "0")];
        let used = f64::from(stats.pages_in_use) / f64::from(stats.pages.max(1));
        for (name, help, value) in [
            (
                "vllm:num_requests_running",
                "Requests running in the engine",
                f64::from(stats.running),
            ),
            (
                "vllm:num_requests_waiting",
                "Requests waiting in the engine",
                f64::from(stats.waiting),
            ),
            (
                "vllm:kv_cache_usage_perc",
                "Part of the pages held by running requests, 1 for all",
                used,
            ),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        let (page, pages) = (numbers.page_tokens.to_string(), stats.pages.to_string());
        let labels = [
            ("block_size", page.as_str()),
            ("num_gpu_blocks", pages.as_str()),
            (
                "enable_prefix_caching",
                if stats.prefix_caching {
                    "True"
                } else {
                    "False"
                },
            ),
            ("engine", "0"),
        ];
        let help = "Pages of KV state: tokens of each, and how many there are";
        let mut family =
            encoder.encode_descriptor("vllm:cache_config_info", help, None, MetricType::Gauge)?;
        ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)
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

/// The name and help text of a counter, the name of its label, and for each value of the label a function that reads
/// the count.
type Labelled = (
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, fn(&Stats) -> u64)],
);

/// The engine's counters that have a label.
const LABELLED: &[Labelled] = &[
    (
        "hit_tokens",
        "Prompt tokens served from the cache, by where they were found",
        "tier",
        // Pages from disk are loaded through host memory.
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
        "disk_replicated_pages",
        "Pages in memory that were copied to the disk tier in case the process ends",
        |stats| stats.disk_replicated_pages,
    ),
    (
        "disk_written_pages",
        "Pages written to the disk tier's file",
        |stats| stats.disk.written,
    ),
    (
        "disk_dropped_pages",
        "Pages not written to the disk tier because too many waited",
        |stats| stats.disk.dropped,
    ),
    (
        "disk_damaged_pages",
        "Pages of the disk tier that did not fit their sum when read",
        |stats| stats.disk.damaged,
    ),
    (
        "disk_failures",
        "Calls that the disk tier's disk refused, a full one included",
        |stats| stats.disk.failed,
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
        "speculations_cancelled",
        "Speculative prefills ended before they were complete: other documents were found, or the client left",
        |stats| stats.speculations_cancelled,
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
    (
        "pages_in_use",
        "Pages held by running requests and computed guesses",
        |stats| stats.pages_in_use,
    ),
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
    (
        "disk_replica_pages",
        "Pages in memory of which the disk tier has a copy in case the process ends",
        |stats| stats.disk_replicas,
    ),
];
