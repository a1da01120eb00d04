//! The state that a plugin's requests share: the orderer, and the worker's access to the ring buffer through which
//! workers share updates ([`crate::agreement`]).

use foreword_ordering::cuts::Cutter;
use foreword_ordering::{EngineId, Orderer, OrderingRecord, PeerUpdate};
use std::collections::BTreeSet;

use crate::agreement::Agreement;
use crate::config::Config;
use crate::host::{Host, LogLevel};
use crate::metrics::Metrics;
use crate::usage::{PromptUsage, UsageForm};

pub(super) struct Knowledge {
    pub(super) orderer: Orderer,
    /// The positions of cache markers in recent prompts, for upstreams that cache only up to markers.
    pub(super) cutter: Cutter,
    /// The worker's access to the ring buffer through which workers share updates about cached prefixes; `None` if they
    /// share none.
    pub(super) agreement: Option<Agreement>,
    /// The engines and models of which some response reported cached tokens, and in which fields, at most
    /// [`MAX_REPORTING`]. From then on, such a response without that number means that none were cached.
    pub(super) reporting: BTreeSet<(EngineId, UsageForm, Box<str>)>,
    /// Number of requests that the ordering core has processed since the plugin was loaded.
    pub(super) request_number: u64,
}

/// Longest list of engines and models that are known to report cached tokens. Clients name the models.
const MAX_REPORTING: usize = 1_024;

impl Knowledge {
    /// Returns whether a response without the number of cached tokens means that none were cached: the engine has
    /// reported that number for the model before, in the same fields. `counted` is what this response reports.
    pub(super) fn reports(&mut self, record: &OrderingRecord, counted: PromptUsage) -> bool {
        let reporter = (record.engine(), counted.form, record.model().into());
        if counted.cached.is_some() && self.reporting.len() < MAX_REPORTING {
            self.reporting.insert(reporter);
            return true;
        }
        self.reporting.contains(&reporter)
    }

    /// Returns an empty record of cached prefixes, for which no updates are shared with other workers yet.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            orderer: Orderer::new(config.ordering.clone()),
            cutter: Cutter::new(),
            agreement: None,
            reporting: BTreeSet::new(),
            request_number: 0,
        }
    }

    /// Replaces orderer and cutter, which a panic may have left half changed, by empty ones. The updates in the ring
    /// buffer through which workers share them are then read again, from the oldest on.
    pub(super) fn begin_anew(&mut self, config: &Config) {
        self.orderer = Orderer::new(config.ordering.clone());
        self.cutter = Cutter::new();
        if let Some(agreement) = &mut self.agreement {
            agreement.forget();
        }
    }

    /// Applies updates about cached prefixes that other workers have published, at most `limit` of them, and counts
    /// them.
    pub(super) fn catch_up(&mut self, host: &impl Host, metrics: &Metrics, limit: u64) {
        let Self {
            orderer, agreement, ..
        } = self;
        let Some(agreement) = agreement else { return };
        match agreement.catch_up(host, limit, |update| orderer.learn(update)) {
            Ok(learnt) => {
                metrics.learnt_entries.add(host, learnt.entries);
                metrics.lost_entries.add(host, learnt.lost);
            }
            Err(error) => host.log(LogLevel::Warn, &error.to_string()),
        }
    }

    /// Applies an update about cached prefixes and publishes it to the other workers.
    pub(super) fn take(&mut self, host: &impl Host, metrics: &Metrics, update: &PeerUpdate) {
        self.orderer.learn(update);
        self.publish(host, metrics, &update.encode());
    }

    /// Publishes the record of one of this worker's requests to the other workers.
    pub(super) fn publish_record(
        &mut self,
        host: &impl Host,
        metrics: &Metrics,
        record: &OrderingRecord,
    ) {
        self.publish(host, metrics, &record.encode());
    }

    /// Publishes an [encoded](PeerUpdate::encode) update about cached prefixes to the other workers. Counts it if it
    /// cannot be published.
    fn publish(&mut self, host: &impl Host, metrics: &Metrics, update: &[u8]) {
        let Some(agreement) = &mut self.agreement else {
            return;
        };
        match agreement.publish(host, update) {
            Ok(true) => {}
            Ok(false) => metrics.unpublished_updates.add(host, 1),
            Err(error) => {
                metrics.unpublished_updates.add(host, 1);
                host.log(LogLevel::Warn, &error.to_string());
            }
        }
    }
}
