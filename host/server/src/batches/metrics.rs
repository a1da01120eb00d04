//! Metrics of batches, read from the store's state on each scrape.

use super::store::{Status, Store, StoreNumbers};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::sync::Arc;

/// Exports the counters and gauges of a store of batches.
#[derive(Debug)]
pub(super) struct BatchCollector(pub(super) Arc<Store>);

impl Collector for BatchCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let StoreNumbers {
            batches,
            waiting,
            bytes,
            served,
            failed,
            ended,
        } = self.0.numbers();
        let help = "Batches that are kept, by status";
        let mut family = encoder.encode_descriptor("batches", help, None, MetricType::Gauge)?;
        for status in Status::ALL {
            let value = gauge(batches.get(&status).copied().unwrap_or_default());
            value.encode(family.encode_family(&[("status", status.name())])?)?;
        }
        for (name, help, value) in [
            (
                "batch_requests_waiting",
                "Requests of batches under way without an answer",
                waiting,
            ),
            (
                "batch_bytes",
                "Bytes of the files of batches, answers included",
                bytes,
            ),
        ] {
            let kind = MetricType::Gauge;
            gauge(value).encode(encoder.encode_descriptor(name, help, None, kind)?)?;
        }
        let help = "Requests of batches by how they were answered";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("batch_requests", help, None, kind)?;
        for (outcome, value) in [("served", served), ("failed", failed)] {
            let metric = ConstCounter::new(value);
            metric.encode(family.encode_family(&[("outcome", outcome)])?)?;
        }
        let help = "Batches by how they ended";
        let mut family = encoder.encode_descriptor("batches_ended", help, None, kind)?;
        for status in Status::ALL.into_iter().filter(|status| status.is_final()) {
            let metric = ConstCounter::new(ended.get(&status).copied().unwrap_or_default());
            metric.encode(family.encode_family(&[("status", status.name())])?)?;
        }
        Ok(())
    }
}

fn gauge(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}
