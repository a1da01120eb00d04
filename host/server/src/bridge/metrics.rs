//! The bridge's `/metrics`. No label contains anything that a client or the engine sent.
//!
//! | name | kind | labels |
//! | --- | --- | --- |
//! | `foreword_http_requests_total` | counter | `route`, `status` |
//! | `foreword_connections`, `foreword_connections_closed_total`, `foreword_accept_failures_total` | | as the host's |
//! | `foreword_document_paths_total` | counter | `outcome`, as the host's |
//! | `foreword_bridge_copies_total` | counter | `outcome`: `followed`, `no_documents`, `other_model`, `unreadable` |
//! | `foreword_bridge_batches_total` | counter | `outcome`: `taken`, `known`, `unreadable` |
//! | `foreword_bridge_forgotten_total` | counter | `cause`: `gap`, `restart`, `disconnected`, `unreadable` |
//! | `foreword_bridge_connections_total`, `foreword_bridge_replays_total` | counter | |
//! | `foreword_bridge_connected` | gauge | 1 while the engine's events arrive |
//! | `foreword_bridge_blocks`, `foreword_bridge_waiting_prompts` | gauge | |
//! | `foreword_bridge_salted` | gauge | 1 if a salted request ended reporting, since the engine does not report salts |

use super::residency::Residency;
use crate::connections;
use crate::metrics::{Outcomes, Placements, Responses, Scrape};
use foreword_process::metrics::{openmetrics, registered};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;

/// The metrics that the bridge exports under `/metrics`.
pub(super) struct Metrics {
    registry: Registry,
    /// Counts HTTP responses, by route and status.
    pub(super) responses: Responses,
    /// Counts the connections of all listeners.
    pub(super) listeners: connections::Counts,
    /// Counts copies of requests, by the outcome of locating their documents in the prompt.
    pub(super) placements: Placements,
    /// Number of connections made to the engine's event socket.
    pub(super) connections: Counter,
    /// Number of requests to the engine to replay missed events.
    pub(super) replays: Counter,
    /// 1 while the engine's events arrive, otherwise 0.
    pub(super) connected: Gauge,
    copies: Outcomes,
    batches: Outcomes,
    forgotten: Family<Cause, Counter>,
}

foreword_ordering::named! {
    /// The reason why the state of what the engine has cached was discarded.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum ResetCause {
        /// Batches of events are missing and cannot be replayed.
        Gap = "gap",
        /// The engine was restarted, so its cache is empty.
        Restart = "restart",
        /// The connection to the engine was lost, and there is no replay of the missed batches of cache events.
        Disconnected = "disconnected",
        /// A batch of events could not be read, so its changes are unknown.
        Unreadable = "unreadable",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Cause {
    cause: &'static str,
}

impl Metrics {
    /// Returns metrics. The numbers of known blocks and waiting prompts in `residency` are read on each scrape.
    pub(super) fn new(residency: Arc<Residency>) -> Self {
        let mut registry = Registry::with_prefix("foreword");
        let responses = Responses::registered(&mut registry);
        let listeners = connections::Counts::registered(&mut registry);
        let placements = Placements::registered(&mut registry);
        let bridge = registry.sub_registry_with_prefix("bridge");
        let help = "Copies of requests by what became of them";
        let copies = Outcomes::registered(bridge, "copies", help);
        let help = "The engine's batches of events by what became of them";
        let batches = Outcomes::registered(bridge, "batches", help);
        let help = "Times everything was forgotten, by cause";
        let forgotten = registered(bridge, "forgotten", help);
        let connections = registered(bridge, "connections", "Times the engine was connected to");
        let help = "Times the engine was asked to repeat batches";
        let replays = registered(bridge, "replays", help);
        let connected = registered(bridge, "connected", "Whether the engine's events arrive");
        registry.register_collector(Box::new(Known(residency)));
        Self {
            registry,
            responses,
            listeners,
            placements,
            connections,
            replays,
            connected,
            copies,
            batches,
            forgotten,
        }
    }

    /// Counts a copy of a request, by what became of it.
    pub(super) fn copy(&self, outcome: &'static str) {
        self.copies.count(outcome);
    }

    /// Counts a batch of the engine's events, by what became of it.
    pub(super) fn batch(&self, outcome: &'static str) {
        self.batches.count(outcome);
    }

    /// Counts that the state of what the engine has cached was discarded, by the cause.
    pub(super) fn forgotten(&self, lost: ResetCause) {
        let cause = lost.name();
        self.forgotten.get_or_create(&Cause { cause }).inc();
    }

    /// Returns all metrics in the OpenMetrics text format.
    ///
    /// # Errors
    /// Never fails in practice, since writing to a string does not fail.
    pub(super) fn encode(&self) -> Result<String, fmt::Error> {
        openmetrics(&self.registry)
    }
}

/// Exports how many blocks the engine is known to have cached, and how many prompts wait for blocks.
#[derive(Debug)]
struct Known(Arc<Residency>);

impl Collector for Known {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut scrape = Scrape(encoder);
        let counts = self.0.counts();
        let help = "Blocks that the engine is known to have";
        scrape.gauge("bridge_blocks", help, counts.blocks as u64)?;
        let help = "Prompts that wait for the engine's blocks";
        scrape.gauge("bridge_waiting_prompts", help, counts.prompts as u64)?;
        let help =
            "Whether a salted request ended reporting, since the engine does not report salts";
        scrape.gauge("bridge_salted", help, counts.is_silent.into())
    }
}
