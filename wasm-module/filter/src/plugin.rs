//! What the requests of one configuration share: the checked configuration, the orderer, the metrics.
//!
//! The orderer sits in a mutex. A Wasm VM runs on one worker thread, so there it is always free, unless a host nested
//! callbacks: then the request passes instead of trapping the worker. In a dynamic module all workers share the
//! plugin and wait for each other, for the microseconds that an order takes.

use std::sync::{Mutex, MutexGuard, TryLockError};

use foreword_ordering::{Orderer, Rewrite, Skip, Terms, Trial};

use crate::config::{Config, ConfigError, KEY, Mode, SaltKey, TenantSource};
use crate::host::{Host, LogLevel};
use crate::metrics::Metrics;
use crate::outcome::Outcome;
use crate::salt::{Identity, Salts};

/// One loaded configuration.
pub struct Plugin {
    config: Config,
    orderer: Mutex<Orderer>,
    metrics: Metrics,
    salts: Option<Salts>,
}

impl Plugin {
    /// Checks the configuration, defines the metrics and starts with an empty orderer.
    pub fn load(host: &impl Host, configuration: &[u8]) -> Result<Self, ConfigError> {
        let config = Config::from_json(configuration)?;
        if matches!(config.tenant, Some(TenantSource::Claim(_))) && !host.has_metadata() {
            return Err(ConfigError::Conflict {
                field: "tenant.claim",
                rule: "a dynamic module cannot read claims; let jwt_authn write them into a header \
                       (`claim_to_headers`) and name it in `tenant.header`",
            });
        }
        let salts = config.salt.as_ref();
        let salts = salts.map(|key| salts_of(host, key)).transpose()?;
        host.log(LogLevel::Info, &loaded(&config));
        Ok(Self {
            orderer: Mutex::new(Orderer::new(config.ordering.clone())),
            metrics: Metrics::define(host),
            config,
            salts,
        })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Whose request it is, by the tenant's name.
    pub(crate) fn identity(&self, name: String) -> Identity {
        Identity::new(name, self.salts.as_ref())
    }

    /// Whether every request must go on with a salt of ours, or not at all.
    pub(crate) fn is_salted(&self) -> bool {
        self.salts.is_some()
    }

    /// Asks the core, and times it. `None` if this very thread is using the orderer, which no known proxy can bring
    /// about.
    pub(crate) fn rewrite(
        &self,
        host: &impl Host,
        identity: &Identity,
        body: &[u8],
    ) -> Option<Result<Rewrite, Skip>> {
        let mut orderer = self.orderer()?;
        let start = host.now_ns();
        let trial = match (self.config.mode, &self.config.experiment) {
            (Mode::DryRun, _) => Trial::DryRun,
            (Mode::Order, Some(experiment)) => Trial::Experiment(experiment),
            (Mode::Order, None) => Trial::None,
        };
        let terms = Terms {
            salt: identity.salt(),
            trial,
        };
        let answer = orderer.rewrite_on(&terms, identity.tenant(), body);
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

fn salts_of(host: &impl Host, key: &SaltKey) -> Result<Salts, ConfigError> {
    let (field, key) = match key {
        SaltKey::Bytes(bytes) => ("salt.key", Some(bytes.clone())),
        SaltKey::Environment(name) => {
            let key = host.environment(name);
            (
                "salt.key_env",
                key.and_then(|key| SaltKey::from_hex(key.trim())),
            )
        }
    };
    key.and_then(|key| Salts::new(&key))
        .ok_or_else(|| ConfigError::Invalid {
            field,
            // Never what was found.
            value: "what the environment has under that name".to_owned(),
            limit: KEY.to_owned(),
        })
}

/// One line for the log, in `name=value` pairs.
fn loaded(config: &Config) -> String {
    let tenants = match config.tenant {
        None => "off",
        Some(TenantSource::Header(_)) => "header",
        Some(TenantSource::Claim(_)) => "claim",
    };
    format!(
        "event=loaded version={} routes={} max_body_bytes={} mode={} experiment={} tenants={tenants} salts={}",
        env!("CARGO_PKG_VERSION"),
        config.routes.join(","),
        config.max_body_bytes,
        match config.mode {
            Mode::Order => "order",
            Mode::DryRun => "dry-run",
        },
        if config.experiment.is_some() {
            "on"
        } else {
            "off"
        },
        if config.salt.is_some() { "on" } else { "off" },
    )
}
