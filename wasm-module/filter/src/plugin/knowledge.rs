//! The state that a plugin's requests share: the orderer, and the worker's part in the ring ([`crate::agreement`]).

use foreword_ordering::cuts::Cutter;
use foreword_ordering::{EngineId, Orderer, OrderingRecord, PeerUpdate};
use std::collections::BTreeSet;

use crate::agreement::Agreement;
use crate::config::Config;
use crate::host::{Host, LogLevel};
use crate::metrics::Metrics;

pub(super) struct Knowledge {
    pub(super) orderer: Orderer,
    /// The recent prompts' cache markers, for upstreams that cache only up to markers.
    pub(super) cutter: Cutter,
    /// The worker's part in the ring; `None` if updates are not shared.
    pub(super) agreement: Option<Agreement>,
    /// The engines of which a response reported cached tokens. From then on, a response without a report means that none
    /// were cached.
    pub(super) reporting: BTreeSet<EngineId>,
    /// Number of requests so far.
    pub(super) request_number: u64,
}

impl Knowledge {
    /// Returns empty state that shares no updates yet.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            orderer: Orderer::new(config.ordering.clone()),
            cutter: Cutter::new(),
            agreement: None,
            reporting: BTreeSet::new(),
            request_number: 0,
        }
    }

    /// Drops orderer and cutter, which a panic may have left half changed, and rereads the published updates.
    pub(super) fn begin_anew(&mut self, config: &Config) {
        self.orderer = Orderer::new(config.ordering.clone());
        self.cutter = Cutter::new();
        if let Some(agreement) = &mut self.agreement {
            agreement.forget();
        }
    }

    /// Applies updates that other workers have published, at most `limit`.
    pub(super) fn catch_up(&mut self, host: &impl Host, metrics: &Metrics, limit: u64) {
        let Self {
            orderer, agreement, ..
        } = self;
        let Some(agreement) = agreement else { return };
        match agreement.catch_up(host, limit, |update| orderer.learn(update)) {
            Ok(learnt) => metrics.learnt(host, learnt),
            Err(error) => host.log(LogLevel::Warn, &error.to_string()),
        }
    }

    /// Applies an update and publishes it to the other workers.
    pub(super) fn take(&mut self, host: &impl Host, metrics: &Metrics, update: &PeerUpdate) {
        self.orderer.learn(update);
        self.publish(host, metrics, &update.encode());
    }

    /// Publishes the record of a request of this worker.
    pub(super) fn tell_record(
        &mut self,
        host: &impl Host,
        metrics: &Metrics,
        record: &OrderingRecord,
    ) {
        self.publish(host, metrics, &record.encode());
    }

    /// Publishes an [encoded](PeerUpdate::encode) update.
    fn publish(&mut self, host: &impl Host, metrics: &Metrics, update: &[u8]) {
        let Some(agreement) = &mut self.agreement else {
            return;
        };
        match agreement.publish(host, update) {
            Ok(true) => {}
            Ok(false) => metrics.unpublished(host),
            Err(error) => {
                metrics.unpublished(host);
                host.log(LogLevel::Warn, &error.to_string());
            }
        }
    }
}
