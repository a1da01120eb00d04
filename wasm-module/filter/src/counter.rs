//! A counter and a histogram. Errors of the proxy are ignored, since counting must not fail a request.

use crate::host::{Host, MetricId};

/// A counter; `None` if the proxy refused to define it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counter(Option<MetricId>);

impl Counter {
    pub(crate) fn define(host: &impl Host, name: &str) -> Self {
        Self(host.define_counter(name).ok())
    }

    /// Adds to the counter; zero is skipped, since Envoy refuses it.
    pub(crate) fn add(self, host: &impl Host, amount: u64) {
        if let (Some(id), 1..) = (self.0, amount) {
            let _ = host.add(id, amount);
        }
    }
}

/// Records a value in a histogram, if the proxy defined it.
pub(crate) fn record(host: &impl Host, histogram: Option<MetricId>, value: u64) {
    if let Some(id) = histogram {
        let _ = host.record(id, value);
    }
}
