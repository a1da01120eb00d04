//! The engine's own metrics, read on each scrape.

use super::scrape::Scrape;
use foreword_engine::engine::{Stats, StepSizes};
use foreword_engine::text::TokenCacheStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
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
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(Numbers {
            engine: stats,
            tokens,
            page_bytes,
            ..
        }) = (self.0)()
        else {
            return Ok(());
        };
        let mut scrape = Scrape(encoder);
        scrape.counter("tokenised_bytes", "Text of prompts", tokens.text_bytes)?;
        let help = "Text of prompts whose tokens were remembered";
        scrape.counter("tokenised_before_bytes", help, tokens.found_bytes)?;
        let help = "Prompt tokens served from the cache, by where they were found";
        // Pages from disk are loaded through host memory.
        let from_device = stats.cached_tokens.saturating_sub(stats.host_tokens);
        let tiers = [("device", from_device), ("host", stats.host_tokens)];
        scrape.counters("hit_tokens", help, "tier", tiers)?;
        let help = "Pages taken back from the cache, by cause";
        let causes = [
            ("device_full", stats.cache.evicted),
            ("host_full", stats.cache.host_evicted),
        ];
        scrape.counters("evicted_pages", help, "cause", causes)?;
        encode_step_sizes(&mut scrape.0, &stats.step_sizes)?;
        for (name, help, read) in COUNTERS {
            scrape.counter(name, help, read(&stats))?;
        }
        let help = "Bytes of KV state in a page, of the pool, of the host's memory or on disk";
        scrape.gauge("page_bytes", help, page_bytes)?;
        let help = "Bytes of KV state in memory of which the disk tier has a copy in case the process ends";
        let bytes = u64::from(stats.cache.disk_replicas).saturating_mul(page_bytes);
        scrape.gauge("disk_replica_bytes", help, bytes)?;
        for (name, help, read) in GAUGES {
            scrape.gauge(name, help, read(&stats).into())?;
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
        let used = f64::from(stats.cache.in_use) / f64::from(stats.cache.pages.max(1));
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
        let (page, pages) = (
            numbers.page_tokens.to_string(),
            stats.cache.pages.to_string(),
        );
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
        |stats| stats.cache.fetched,
    ),
    (
        "disk_replicated_pages",
        "Pages in memory that were copied to the disk tier in case the process ends",
        |stats| stats.cache.disk_replicated,
    ),
    (
        "disk_written_pages",
        "Pages written to the disk tier's file",
        |stats| stats.cache.disk.written,
    ),
    (
        "disk_dropped_pages",
        "Pages not written to the disk tier because too many waited",
        |stats| stats.cache.disk.dropped,
    ),
    (
        "disk_damaged_pages",
        "Pages of the disk tier that did not fit their sum when read",
        |stats| stats.cache.disk.damaged,
    ),
    (
        "disk_failures",
        "Calls that the disk tier's disk refused, a full one included",
        |stats| stats.cache.disk.failed,
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
    ("pages", "Pages in the pool", |stats| stats.cache.pages),
    (
        "pages_in_use",
        "Pages held by running requests and computed guesses",
        |stats| stats.cache.in_use,
    ),
    ("pages_cached", "Pages that hold cached prefixes", |stats| {
        stats.cache.cached
    }),
    ("host_pages", "Pages in the host's pool", |stats| {
        stats.cache.host_pages
    }),
    (
        "host_pages_cached",
        "Pages of the host's pool that hold cached prefixes",
        |stats| stats.cache.host_cached,
    ),
    (
        "disk_replica_pages",
        "Pages in memory of which the disk tier has a copy in case the process ends",
        |stats| stats.cache.disk_replicas,
    ),
];
