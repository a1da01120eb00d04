//! What the requests of one configuration share: the checked configuration, the orderer, the metrics.
//!
//! One VM runs on one worker thread and its callbacks do not nest, so the orderer sits in a `RefCell`. It is
//! borrowed with `try_borrow_mut` all the same: should a host ever nest callbacks, the request passes instead
//! of trapping the worker.

use std::cell::RefCell;

use foreword_ordering::{Orderer, Rewrite, Skip};

use crate::config::{Config, ConfigError};
use crate::host::{Host, LogLevel};
use crate::metrics::Metrics;
use crate::outcome::Outcome;

/// One loaded configuration.
pub struct Plugin {
    config: Config,
    orderer: RefCell<Orderer>,
    metrics: Metrics,
}

impl Plugin {
    /// Checks the configuration, defines the metrics and starts with an empty orderer.
    pub fn load(host: &impl Host, configuration: &[u8]) -> Result<Self, ConfigError> {
        let config = Config::from_json(configuration)?;
        host.log(
            LogLevel::Info,
            &format!(
                "foreword {}: watching POST on {}, bodies up to {} bytes",
                env!("CARGO_PKG_VERSION"),
                config.routes.join(", "),
                config.max_body_bytes
            ),
        );
        Ok(Self {
            orderer: RefCell::new(Orderer::new(config.ordering.clone())),
            metrics: Metrics::define(host),
            config,
        })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Asks the core, and times it. `None` if the orderer is in use, which no known proxy can bring about.
    pub(crate) fn rewrite(
        &self,
        host: &impl Host,
        tenant: &str,
        body: &[u8],
    ) -> Option<Result<Rewrite, Skip>> {
        let mut orderer = self.orderer.try_borrow_mut().ok()?;
        let start = host.now_ns();
        let answer = orderer.rewrite(tenant, body);
        // Saturating: Envoy's clock is the wall clock, which may step back.
        let elapsed = host.now_ns().saturating_sub(start);
        self.metrics.time(host, elapsed);
        Some(answer)
    }

    pub(crate) fn count(&self, host: &impl Host, outcome: &Outcome) {
        self.metrics.count(host, outcome);
    }
}
