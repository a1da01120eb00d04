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

/// Collects metrics of the engine on each scrape: the second function encodes the numbers that the first one returns,
/// which is `None` before the model is loaded.
pub(super) struct Scraped<F>(
    pub(super) F,
    pub(super) fn(Numbers, DescriptorEncoder<'_>) -> fmt::Result,
);

impl<F> fmt::Debug for Scraped<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scraped")
    }
}

impl<F: Fn() -> Option<Numbers> + Send + Sync + 'static> Collector for Scraped<F> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        match (self.0)() {
            Some(numbers) => (self.1)(numbers, encoder),
            None => Ok(()),
        }
    }
}

/// Exports the engine's metrics under Foreword's names.
pub(super) fn encode(numbers: Numbers, encoder: DescriptorEncoder<'_>) -> fmt::Result {
    let Numbers {
        engine: stats,
        tokens,
        page_bytes,
        ..
    } = numbers;
    let mut scrape = Scrape(encoder);
    scrape.counter("tokenised_bytes", "Text of prompts", tokens.text_bytes)?;
    let help = "Text of prompts whose tokens were remembered";
    scrape.counter("tokenised_before_bytes", help, tokens.found_bytes)?;
    let help = "Prompt tokens served from the cache, by where they were found";
    // Pages from disk are loaded through host memory.
    let from_device = stats.cached_tokens.saturating_sub(stats.host_tokens);
    let tiers = [("device", from_device), ("host", stats.host_tokens)];
    scrape.family(MetricType::Counter, ("hit_tokens", help), "tier", tiers)?;
    let help = "Pages taken back from the cache, by cause";
    let causes = [
        ("device_full", stats.cache.evicted),
        ("host_full", stats.cache.host_evicted),
    ];
    scrape.family(
        MetricType::Counter,
        ("evicted_pages", help),
        "cause",
        causes,
    )?;
    encode_step_sizes(&mut scrape.0, &stats.step_sizes)?;
    for (name, help, read) in COUNTERS {
        scrape.counter(name, help, read(&stats))?;
    }
    let help = "Bytes of KV state in a page, of the pool, of the host's memory or on disk";
    scrape.gauge("page_bytes", help, page_bytes)?;
    let help =
        "Bytes of KV state in memory of which the disk tier has a copy in case the process ends";
    let bytes = u64::from(stats.cache.disk_replicas).saturating_mul(page_bytes);
    scrape.gauge("disk_replica_bytes", help, bytes)?;
    for (name, help, read) in GAUGES {
        scrape.gauge(name, help, read(&stats).into())?;
    }
    Ok(())
}

/// Exports under vLLM's names the metrics that routers and autoscalers read from vLLM. The label `engine` is the number
/// of vLLM's engine; there is one here.
pub(super) fn encode_as_vllm(numbers: Numbers, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
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

/// Declares metrics, one a line: the name, the field of [`Stats`] that is its value, and the help text.
macro_rules! rows {
    ($($name:literal $($field:ident).+, $help:literal;)*) => {
        &[$(($name, $help, |stats| stats.$($field).+)),*]
    };
}

/// A metric's name, its help text, and the function that reads its value.
type Row<T> = (&'static str, &'static str, fn(&Stats) -> T);

const COUNTERS: &[Row<u64>] = rows! {
    "requests_finished" finished, "Requests finished, failed or cancelled in the engine";
    "prompt_tokens" prompt_tokens, "Prompt tokens taken in";
    "cached_tokens" cached_tokens, "Prompt tokens served from the cache";
    "generated_tokens" generated_tokens, "Tokens generated";
    "prefix_lookups" lookups, "Prefix lookups";
    "prefix_partial_hits" partial_hits, "Prefix lookups that matched part of the prompt";
    "prefix_full_hits" full_hits, "Prefix lookups that matched all but the last token";
    "preemptions" preemptions, "Times a running request had to give up its pages and wait";
    "steps" steps, "Steps computed";
    "fetched_pages" cache.fetched, "Pages read back from disk into host memory";
    "disk_replicated_pages" cache.disk_replicated, "Pages in memory that were copied to the disk tier in case the process ends";
    "disk_written_pages" cache.disk.written, "Pages written to the disk tier's file";
    "disk_dropped_pages" cache.disk.dropped, "Pages not written to the disk tier because too many waited";
    "disk_damaged_pages" cache.disk.damaged, "Pages of the disk tier that did not fit their sum when read";
    "disk_failures" cache.disk.failed, "Calls that the disk tier's disk refused, a full one included";
    "retries" retries, "Times a request was computed again because the device failed under it";
    "devices_lost" devices_lost, "Times everything on the device was lost";
    "speculations" speculations_started, "Speculative prefills taken in, warm-ups included";
    "speculations_refused" speculations_refused, "Speculative prefills that were none because too many requests waited";
    "speculations_joined" speculations_joined, "Requests that found themselves computed already and took that over";
    "speculations_superseded" speculations_superseded, "Speculative prefills that a later one with other documents replaced";
    "speculations_cancelled" speculations_cancelled, "Speculative prefills ended before they were complete: other documents were found, or the client left";
    "expired" expired, "Requests whose deadline passed before they were complete";
};

const GAUGES: &[Row<u32>] = rows! {
    "requests_waiting" waiting, "Requests waiting in the engine";
    "requests_running" running, "Requests running in the engine";
    "pages" cache.pages, "Pages in the pool";
    "pages_in_use" cache.in_use, "Pages held by running requests and computed guesses";
    "pages_cached" cache.cached, "Pages that hold cached prefixes";
    "host_pages" cache.host_pages, "Pages in the host's pool";
    "host_pages_cached" cache.host_cached, "Pages of the host's pool that hold cached prefixes";
    "disk_replica_pages" cache.disk_replicas, "Pages in memory of which the disk tier has a copy in case the process ends";
};
