//! Counters and histograms among the proxy's metrics, and the macro that lists them. Errors of the proxy are ignored,
//! since counting must not fail a request.

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

/// A histogram among the proxy's metrics. Holds `None` if the proxy refused to define it: samples are then dropped.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Histogram(Option<MetricId>);

impl Histogram {
    pub(crate) fn define(host: &impl Host, name: &str) -> Self {
        Self(host.define_histogram(name).ok())
    }

    /// Records `value` as one sample.
    pub(crate) fn record(self, host: &impl Host, value: u64) {
        if let Some(id) = self.0 {
            let _ = host.record(id, value);
        }
    }
}

/// Declares a struct of metrics with a function `define`, which defines them in the proxy in the order of the fields. A
/// field is one metric with the given name (`= "name"`), or what an expression makes of `$host` (`=> expression`).
macro_rules! metrics {
    (
        |$host:ident|
        $(#[$attribute:meta])*
        $visible:vis struct $Metrics:ident {
            $(
                $(#[$doc:meta])*
                $shown:vis $field:ident: $kind:ty $(= $name:literal)? $(=> $metrics:expr)?,
            )*
        }
    ) => {
        $(#[$attribute])*
        $visible struct $Metrics {
            $($(#[$doc])* $shown $field: $kind,)*
        }

        impl $Metrics {
            /// Defines all metrics in the proxy, so that each is shown as 0 before its first request.
            $visible fn define($host: &impl $crate::host::Host) -> Self {
                Self {
                    $($field: $(<$kind>::define($host, $name))? $($metrics)?,)*
                }
            }
        }
    };
}

pub(crate) use metrics;
