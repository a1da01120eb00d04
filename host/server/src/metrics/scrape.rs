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

    /// Writes one metric, a counter or gauge by `kind`, with a value for each of the label's.
    pub(crate) fn family<'v>(
        &mut self,
        kind: MetricType,
        (name, help): (&str, &str),
        label: &str,
        values: impl IntoIterator<Item = (&'v str, u64)>,
    ) -> fmt::Result {
        let is_counter = matches!(kind, MetricType::Counter);
        let mut family = (self.0).encode_descriptor(name, help, None, kind)?;
        for (of, value) in values {
            let labels = [(label, of)];
            let encoder = family.encode_family(&labels)?;
            match is_counter {
                true => ConstCounter::new(value).encode(encoder)?,
                false => gauge(value).encode(encoder)?,
            }
        }
        Ok(())
    }
}

fn gauge(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}
