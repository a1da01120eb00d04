//! Metrics of batches, read from the store's state on each scrape.

use super::store::{Status, Store};
use crate::metrics::Scrape;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Exports the counters and gauges of a store of batches.
#[derive(Debug)]
pub(super) struct BatchCollector(pub(super) Arc<Store>);

impl Collector for BatchCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut scrape = Scrape(encoder);
        let numbers = self.0.numbers();
        let count = |counts: &HashMap<Status, u64>, status: Status| {
            (
                status.name(),
                counts.get(&status).copied().unwrap_or_default(),
            )
        };
        let kept = Status::ALL.map(|status| count(&numbers.batches, status));
        let help = "Batches that are kept, by status";
        scrape.family(MetricType::Gauge, ("batches", help), "status", kept)?;
        let help = "Requests of batches under way without an answer";
        scrape.gauge("batch_requests_waiting", help, numbers.waiting)?;
        let help = "Bytes of the files of batches, answers included";
        scrape.gauge("batch_bytes", help, numbers.bytes)?;
        let help = "Requests of batches by how they were answered";
        let answered = [("served", numbers.served), ("failed", numbers.failed)];
        let metric = ("batch_requests", help);
        scrape.family(MetricType::Counter, metric, "outcome", answered)?;
        let ended = Status::ALL.into_iter().filter(|status| status.is_final());
        let ended = ended.map(|status| count(&numbers.ended, status));
        let metric = ("batches_ended", "Batches by how they ended");
        scrape.family(MetricType::Counter, metric, "status", ended)
    }
}
