//! What the requests of one configuration share: the checked configuration, the orderer, the metrics.
//!
//! The orderer sits in a mutex. A Wasm VM runs on one worker thread, so there it is always free, unless a host nested
//! callbacks: then the request passes instead of trapping the worker. In a dynamic module all workers share the
//! plugin and wait for each other, for the microseconds that an order takes.

use std::sync::{Mutex, MutexGuard, TryLockError};

use foreword_ordering::{Orderer, Rewrite, Skip, Tenant};

use crate::config::{Config, ConfigError};
use crate::host::{Host, LogLevel};
use crate::metrics::Metrics;
use crate::outcome::Outcome;

/// One loaded configuration.
pub struct Plugin {
    config: Config,
    orderer: Mutex<Orderer>,
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
            orderer: Mutex::new(Orderer::new(config.ordering.clone())),
            metrics: Metrics::define(host),
            config,
        })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Asks the core, and times it. `None` if this very thread is using the orderer, which no known proxy can bring
    /// about.
    pub(crate) fn rewrite(
        &self,
        host: &impl Host,
        tenant: Tenant<'_>,
        body: &[u8],
    ) -> Option<Result<Rewrite, Skip>> {
        let mut orderer = self.orderer()?;
        let start = host.now_ns();
        let answer = orderer.rewrite(tenant, body);
        // Saturating: Envoy's clock is the wall clock, which may step back.
        let elapsed = host.now_ns().saturating_sub(start);
        self.metrics.time(host, elapsed);
        Some(answer)
    }

    fn orderer(&self) -> Option<MutexGuard<'_, Orderer>> {
        let poisoned = match self.orderer.try_lock() {
            Ok(orderer) => return Some(orderer),
            // Waiting for itself, the only thread would trap.
            Err(TryLockError::WouldBlock) if cfg!(target_arch = "wasm32") => return None,
            Err(TryLockError::WouldBlock) => match self.orderer.lock() {
                Ok(orderer) => return Some(orderer),
                Err(poisoned) => poisoned,
            },
            Err(TryLockError::Poisoned(poisoned)) => poisoned,
        };
        // A panic left it half changed: it starts anew.
        let mut orderer = poisoned.into_inner();
        *orderer = Orderer::new(self.config.ordering.clone());
        self.orderer.clear_poison();
        Some(orderer)
    }

    pub(crate) fn count(&self, host: &impl Host, outcome: &Outcome) {
        self.metrics.count(host, outcome);
    }
}
