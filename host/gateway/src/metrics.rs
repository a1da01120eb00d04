//! Counters and histograms: those that the filter defines, and the processor's own.
//!
//! ```text
//!   foreword_requests_total, foreword_ordering_microseconds, …    the filter's, the same names as in every shell
//!   foreword_ext_proc_…                                           the processor's own: streams, bytes, reloads
//! ```

use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;

use foreword_filter::MetricId;
use foreword_process::connections::Counts;
use foreword_process::metrics::{openmetrics, registered};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

/// All metrics of a process.
pub struct Metrics {
    filter: RwLock<FilterMetrics>,
    /// Connections of the internal listener.
    pub(crate) connections: Counts,
    /// Open streams.
    pub(crate) open_streams: Gauge,
    /// Streams accepted.
    pub(crate) streams: Counter,
    /// Streams refused because too many were open.
    pub(crate) refused_streams: Counter,
    /// Streams that ended with an error, whether the gateway or this process caused it.
    pub(crate) failed_streams: Counter,
    /// Bytes of request bodies in memory, over all streams.
    pub(crate) held_bytes: Gauge,
    /// Configurations that replaced another.
    pub(crate) reloads: Counter,
    /// Configurations refused.
    pub(crate) refused_configurations: Counter,
    /// Endpoints in the pool.
    pub(crate) endpoints: Gauge,
    /// Changes to the set of endpoints.
    pub(crate) endpoint_changes: Counter,
    /// Lists of endpoints that could not be read; the previous list stays in use.
    pub(crate) refused_endpoint_lists: Counter,
    /// Scrapes of an endpoint's metrics that failed, or that reported no load.
    pub(crate) failed_scrapes: Counter,
    /// Requests refused because no endpoint of the pool was eligible.
    pub(crate) no_endpoint: Counter,
    /// Requests shed because all endpoints were saturated.
    pub(crate) shed: Counter,
}

/// Registers the processor's own metrics.
struct Own<'r>(&'r mut Registry);

impl Own<'_> {
    fn metric<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        registered(self.0, &format!("foreword_ext_proc_{name}"), help)
    }
}

/// The metrics that the filter defines.
struct FilterMetrics {
    registry: Registry,
    /// Indices in `metrics`, by name.
    names: HashMap<String, u32>,
    metrics: Vec<FilterMetric>,
}

enum FilterMetric {
    Counter(Counter<u64, AtomicU64>),
    Histogram(Histogram),
}

impl Metrics {
    /// Returns the processor's own metrics. The filter defines its metrics later.
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let connections = registry.sub_registry_with_prefix("foreword_ext_proc");
        let connections = Counts::registered(connections);
        let mut own = Own(&mut registry);
        Self {
            connections,
            open_streams: own.metric("open_streams", "Streams that are open"),
            streams: own.metric("streams", "Streams accepted"),
            refused_streams: own.metric(
                "refused_streams",
                "Streams refused because too many were open",
            ),
            failed_streams: own.metric(
                "failed_streams",
                "Streams that ended with an error, other than those that the gateway cancelled",
            ),
            held_bytes: own.metric("held_bytes", "Bytes of requests' bodies that are held"),
            reloads: own.metric("reloads", "Configurations reloaded"),
            refused_configurations: own.metric("refused_configurations", "Configurations refused"),
            endpoints: own.metric("endpoints", "Endpoints in the picker's pool"),
            endpoint_changes: own.metric("endpoint_changes", "Changes of the picker's endpoints"),
            refused_endpoint_lists: own.metric(
                "refused_endpoint_lists",
                "Lists of endpoints that could not be read; the old endpoints stay",
            ),
            failed_scrapes: own.metric(
                "failed_scrapes",
                "Scrapes of endpoints' metrics that told nothing",
            ),
            no_endpoint: own.metric(
                "no_endpoint",
                "Requests answered with 503, since no endpoint could take them",
            ),
            shed: own.metric(
                "shed",
                "Sheddable requests answered with 429, since all endpoints were saturated",
            ),
            filter: RwLock::new(FilterMetrics {
                registry,
                names: HashMap::new(),
                metrics: Vec::new(),
            }),
        }
    }

    /// Returns the counter `name`, which is defined if it is new; `None` if a histogram has that name.
    pub(crate) fn counter(&self, name: &str) -> Option<MetricId> {
        self.define(name, || FilterMetric::Counter(Counter::default()))
    }

    /// Returns the histogram `name`, which is defined if it is new; `None` if a counter has that name.
    pub(crate) fn histogram(&self, name: &str) -> Option<MetricId> {
        self.define(name, || {
            FilterMetric::Histogram(Histogram::new(buckets(name).iter().copied()))
        })
    }

    /// Returns the metric `name`, created by `new` if there is none; `None` if it exists with another kind.
    fn define(&self, name: &str, new: impl FnOnce() -> FilterMetric) -> Option<MetricId> {
        let mut filter = self.filter.write();
        let metric = new();
        if let Some(at) = filter.names.get(name).copied() {
            let known = filter.metrics.get(usize::try_from(at).ok()?)?;
            let alike = std::mem::discriminant(known) == std::mem::discriminant(&metric);
            return alike.then_some(MetricId(at));
        }
        let at = u32::try_from(filter.metrics.len()).ok()?;
        let help = help(name);
        match &metric {
            FilterMetric::Counter(counter) => {
                // The encoder adds `_total`.
                let stem = name.strip_suffix("_total").unwrap_or(name).to_owned();
                filter.registry.register(stem, help, counter.clone());
            }
            FilterMetric::Histogram(histogram) => {
                filter.registry.register(name, help, histogram.clone());
            }
        }
        filter.metrics.push(metric);
        filter.names.insert(name.to_owned(), at);
        Some(MetricId(at))
    }

    /// Adds to a counter. Returns false if `counter` is no counter's id.
    pub(crate) fn add(&self, counter: MetricId, amount: u64) -> bool {
        let filter = self.filter.read();
        match filter.metrics.get(counter.0 as usize) {
            Some(FilterMetric::Counter(counter)) => {
                counter.inc_by(amount);
                true
            }
            _ => false,
        }
    }

    /// Records a sample in a histogram. Returns false if `histogram` is no histogram's id.
    #[allow(
        clippy::cast_precision_loss,
        reason = "a sample is far below 2^53: microseconds, per cent, documents"
    )]
    pub(crate) fn record(&self, histogram: MetricId, value: u64) -> bool {
        let filter = self.filter.read();
        match filter.metrics.get(histogram.0 as usize) {
            Some(FilterMetric::Histogram(histogram)) => {
                histogram.observe(value as f64);
                true
            }
            _ => false,
        }
    }

    /// Returns all metrics in the text format of OpenMetrics, which Prometheus reads.
    pub(crate) fn text(&self) -> String {
        // Writing to a string cannot fail.
        openmetrics(&self.filter.read().registry).unwrap_or_default()
    }
}

/// Returns a description of a metric: its name in words.
fn help(name: &str) -> String {
    let words = name.strip_prefix("foreword_").unwrap_or(name);
    let words = words.strip_suffix("_total").unwrap_or(words);
    format!("The filter's {}", words.replace('_', " "))
}

/// Returns a histogram's buckets, the same as in `gateway-config/envoy/envoy.yaml`.
fn buckets(name: &str) -> &'static [f64] {
    if name.ends_with("_microseconds") {
        &[
            10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 1e4, 5e4,
        ]
    } else if name.ends_with("_percent") {
        &[
            1.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0,
        ]
    } else {
        &[
            1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0, 250.0, 500.0, 1e3,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_metric_however_often_it_is_defined() {
        let metrics = Metrics::new();
        let one = metrics.counter("foreword_requests_total").unwrap();
        assert_eq!(metrics.counter("foreword_requests_total"), Some(one));
        assert_eq!(metrics.histogram("foreword_requests_total"), None);
        let time = metrics.histogram("foreword_ordering_microseconds").unwrap();
        assert_ne!(one, time);
        assert!(metrics.add(one, 2) && metrics.add(one, 3) && metrics.record(time, 30));
        assert!(!metrics.add(time, 1) && !metrics.record(one, 1) && !metrics.add(MetricId(9), 1));
        let text = metrics.text();
        for line in [
            "foreword_requests_total 5\n",
            "foreword_ordering_microseconds_bucket{le=\"25.0\"} 0\n",
            "foreword_ordering_microseconds_bucket{le=\"50.0\"} 1\n",
            "foreword_ext_proc_streams_total 0\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
