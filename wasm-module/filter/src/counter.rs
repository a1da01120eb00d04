//! A counter and a histogram sample for the proxy's metrics. Errors of the proxy are ignored, since counting must not
//! fail a request.

use crate::host::{Host, MetricId};

/// A counter among the proxy's metrics. Holds `None` if the proxy refused to define it: additions then do nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counter(Option<MetricId>);

impl Counter {
    pub(crate) fn define(host: &impl Host, name: &str) -> Self {
        Self(host.define_counter(name).ok())
    }

    /// Adds `amount` to the counter. An amount of zero is skipped, since Envoy refuses it.
    pub(crate) fn add(self, host: &impl Host, amount: u64) {
        if let (Some(id), 1..) = (self.0, amount) {
            let _ = host.add(id, amount);
        }
    }
}

/// Records `value` as one sample in a histogram. Does nothing if `histogram` is `None` because the proxy refused to
/// define it.
pub(crate) fn record(host: &impl Host, histogram: Option<MetricId>, value: u64) {
    if let Some(id) = histogram {
        let _ = host.record(id, value);
    }
}
