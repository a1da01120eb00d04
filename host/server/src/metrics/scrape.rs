//! Writing metrics whose values are read on each scrape.

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

/// Writes the metrics of one scrape.
pub(crate) struct Scrape<'e>(pub(crate) DescriptorEncoder<'e>);

impl Scrape<'_> {
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let kind = MetricType::Counter;
        ConstCounter::new(value).encode(self.0.encode_descriptor(name, help, None, kind)?)
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let kind = MetricType::Gauge;
        gauge(value).encode(self.0.encode_descriptor(name, help, None, kind)?)
    }

    /// Writes one counter with a value for each of the label's.
    pub(crate) fn counters<'v>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'v str, u64)>,
    ) -> fmt::Result {
        let mut family = (self.0).encode_descriptor(name, help, None, MetricType::Counter)?;
        for (of, value) in values {
            ConstCounter::new(value).encode(family.encode_family(&[(label, of)])?)?;
        }
        Ok(())
    }

    /// Writes one gauge with a value for each of the label's.
    pub(crate) fn gauges<'v>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'v str, u64)>,
    ) -> fmt::Result {
        let mut family = (self.0).encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (of, value) in values {
            gauge(value).encode(family.encode_family(&[(label, of)])?)?;
        }
        Ok(())
    }
}

fn gauge(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}
