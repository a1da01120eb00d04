//! What the requests of one configuration share: the checked configuration, what is known, the metrics.
//!
//! What is known sits in a mutex: the orderer, and its part in what workers tell each other ([`crate::agreement`]). A Wasm VM runs on one worker thread, so there it is always free, unless a host nested
//! callbacks: then the request passes instead of trapping the worker. In a dynamic module all workers share the
//! plugin and wait for each other, for the microseconds that an order takes.

use std::sync::{Mutex, MutexGuard, TryLockError};

use foreword_ordering::{Deed, Orderer, Rewrite, Skip, Terms, Trial};

use crate::agreement::Agreement;
use crate::config::{Config, ConfigError, KEY, Mode, SaltKey, TenantSource};
use crate::host::{Host, HostError, LogLevel};
use crate::metrics::Metrics;
use crate::outcome::Outcome;
use crate::salt::{Identity, Salts};

/// One loaded configuration.
pub struct Plugin {
    config: Config,
    knowledge: Mutex<Knowledge>,
    metrics: Metrics,
    salts: Option<Salts>,
}

struct Knowledge {
    orderer: Orderer,
    /// `None`: nothing is told and nothing is learnt.
    agreement: Option<Agreement>,
}

impl Plugin {
    /// Checks the configuration, defines the metrics and learns what other workers, or this one before a reload, have
    /// told.
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
        let mut knowledge = Knowledge {
            orderer: Orderer::new(config.ordering.clone()),
            agreement: agreement(host, &config),
        };
        let metrics = Metrics::define(host);
        knowledge.catch_up(host, &metrics, u64::MAX);
        Ok(Self {
            knowledge: Mutex::new(knowledge),
            metrics,
            config,
            salts,
        })
    }

    /// Whether [`Plugin::on_tick`] has anything to do.
    pub fn needs_ticks(&self) -> bool {
        self.knowledge()
            .is_some_and(|knowledge| knowledge.agreement.is_some())
    }

    /// Some time has passed: what other workers did meanwhile is learnt, so that a request that comes late finds little
    /// left to learn.
    pub fn on_tick(&self, host: &impl Host) {
        if let Some(mut knowledge) = self.knowledge() {
            knowledge.catch_up(host, &self.metrics, LEARNT_AT_A_TICK);
        }
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

    /// Asks the core, and times it; learns before what other workers did, and tells them afterwards. `None` if this very
    /// thread is using the orderer, which no known proxy can bring about.
    pub(crate) fn rewrite(
        &self,
        host: &impl Host,
        identity: &Identity,
        body: &[u8],
    ) -> Option<Result<Rewrite, Skip>> {
        let mut knowledge = self.knowledge()?;
        knowledge.catch_up(host, &self.metrics, LEARNT_AT_A_REQUEST);
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
        let answer = knowledge
            .orderer
            .rewrite_on(&terms, identity.tenant(), body);
        // Saturating: Envoy's clock is the wall clock, which may step back.
        let elapsed = host.now_ns().saturating_sub(start);
        self.metrics.time(host, elapsed);
        if let Ok(rewrite) = &answer {
            knowledge.tell(host, &self.metrics, &rewrite.deed);
        }
        Some(answer)
    }

    fn knowledge(&self) -> Option<MutexGuard<'_, Knowledge>> {
        let poisoned = match self.knowledge.try_lock() {
            Ok(knowledge) => return Some(knowledge),
            // Waiting for itself, the only thread would trap.
            Err(TryLockError::WouldBlock) if cfg!(target_arch = "wasm32") => return None,
            Err(TryLockError::WouldBlock) => match self.knowledge.lock() {
                Ok(knowledge) => return Some(knowledge),
                Err(poisoned) => poisoned,
            },
            Err(TryLockError::Poisoned(poisoned)) => poisoned,
        };
        // A panic left it half changed: it starts anew, with what the next requests learn.
        let mut knowledge = poisoned.into_inner();
        knowledge.orderer = Orderer::new(self.config.ordering.clone());
        if let Some(agreement) = &mut knowledge.agreement {
            agreement.forget();
        }
        self.knowledge.clear_poison();
        Some(knowledge)
    }

    pub(crate) fn count(&self, host: &impl Host, outcome: &Outcome) {
        self.metrics.count(host, outcome);
    }
}

impl Knowledge {
    fn catch_up(&mut self, host: &impl Host, metrics: &Metrics, limit: u64) {
        let Self { orderer, agreement } = self;
        let Some(agreement) = agreement else { return };
        match agreement.catch_up(host, limit, |deed| orderer.learn(deed)) {
            Ok(learnt) => metrics.learnt(host, learnt),
            Err(error) => host.log(LogLevel::Warn, &error.to_string()),
        }
    }

    fn tell(&mut self, host: &impl Host, metrics: &Metrics, deed: &Deed) {
        let Some(agreement) = &mut self.agreement else {
            return;
        };
        match agreement.tell(host, deed) {
            Ok(true) => {}
            Ok(false) => metrics.untold(host),
            Err(error) => {
                metrics.untold(host);
                host.log(LogLevel::Warn, &error.to_string());
            }
        }
    }
}

/// A part in the configured ring. A proxy without shared data orders all the same, each worker alone.
fn agreement(host: &impl Host, config: &Config) -> Option<Agreement> {
    let wanted = &config.agreement;
    if wanted.entries == 0 {
        return None;
    }
    let name = || -> Result<String, HostError> {
        if let Some(name) = &wanted.ring {
            return Ok(format!("named/{name}"));
        }
        // Plugins of other names, or for other tenants or routes, are not meant by default.
        let plugin = host.property(&["plugin_name"])?.unwrap_or_default();
        let plugin = String::from_utf8_lossy(&plugin);
        Ok(format!("of/{:016x}/{plugin}", config.audience))
    };
    let opened = name().and_then(|name| Agreement::open(host, &name, wanted.entries));
    opened
        .inspect_err(|error| {
            let message = format!("workers do not know of each other: {error}");
            host.log(LogLevel::Warn, &message);
        })
        .ok()
}

/// Entries that a request may have to wait for, some three microseconds each.
const LEARNT_AT_A_REQUEST: u64 = 256;
/// Entries between which a worker looks after its streams.
const LEARNT_AT_A_TICK: u64 = 2048;

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

#[cfg(test)]
mod tests {
    use foreword_ordering::Report;
    use foreword_ordering::random::Random;

    use super::*;
    use crate::scripted::ScriptedHost;

    /// A chat request with documents.
    fn body(documents: &[u64]) -> String {
        let documents = documents.iter();
        let documents: String = documents
            .map(|document| format!("<doc id=\"{document}\">text of {document}</doc>"))
            .collect();
        serde_json::json!({"messages": [{"role": "user", "content": documents}]}).to_string()
    }

    fn send(plugin: &Plugin, host: &ScriptedHost, body: &str) -> (Option<Vec<u8>>, Report) {
        let identity = plugin.identity(String::new());
        let rewrite = plugin.rewrite(host, &identity, body.as_bytes());
        let rewrite = rewrite.unwrap().unwrap();
        (rewrite.body, rewrite.report)
    }

    fn load(host: &ScriptedHost, json: &str) -> Plugin {
        Plugin::load(host, json.as_bytes()).unwrap()
    }

    #[test]
    fn a_burst_over_three_workers_is_ordered_as_by_one() {
        let alone = ScriptedHost::default();
        let single = load(&alone, "{}");
        let host = ScriptedHost::default();
        let hosts: [_; 3] = std::array::from_fn(|_| ScriptedHost::beside(&host));
        let workers = hosts.each_ref().map(|host| load(host, "{}"));
        let mut random = Random::new(7);
        for _ in 0..300 {
            let mut documents: Vec<u64> = (0..12).collect();
            random.shuffle(&mut documents);
            let body = body(&documents[..5]);
            let at = usize::try_from(random.below(3)).unwrap();
            let (worker, host) = (&workers[at], &hosts[at]);
            assert_eq!(send(worker, host, &body), send(&single, &alone, &body));
        }
        let learnt = |host: &ScriptedHost| host.counter("foreword_learnt_entries_total");
        assert!(hosts.iter().all(|host| learnt(host) > 150));
        assert_eq!(learnt(&alone), 0);
    }

    #[test]
    fn an_idle_worker_learns_at_its_ticks_and_a_new_one_when_it_is_loaded() {
        let host = ScriptedHost::default();
        let busy = load(&host, "{}");
        let idle_host = ScriptedHost::beside(&host);
        let idle = load(&idle_host, "{}");
        assert!(idle.needs_ticks());
        send(&busy, &host, &body(&[1, 2]));
        idle.on_tick(&idle_host);
        assert_eq!(idle_host.counter("foreword_learnt_entries_total"), 1);
        let new = load(
            &ScriptedHost::beside(&host),
            r#"{"ordering": {"policy": "greedy"}}"#,
        );
        host.refuse("shared_data");
        for plugin in [&idle, &new] {
            assert_eq!(send(plugin, &host, &body(&[2, 1])).1.matched, 2);
        }
    }

    #[test]
    fn plugins_for_others_and_plugins_told_to_be_alone_tell_each_other_nothing() {
        for json in [
            r#"{"routes": ["/v1/x"]}"#,
            r#"{"tenant": {"header": "x-tenant"}}"#,
            r#"{"agreement": {"ring": "other"}}"#,
            r#"{"agreement": {"entries": 0}}"#,
        ] {
            let host = ScriptedHost::default();
            send(&load(&host, "{}"), &host, &body(&[1, 2]));
            let other = load(&host, json);
            assert_eq!(send(&other, &host, &body(&[2, 1])).1.matched, 0, "{json}");
        }
        let host = ScriptedHost::default();
        let json = r#"{"agreement": {"ring": "shared"}, "max_body_bytes": 9}"#;
        send(&load(&host, json), &host, &body(&[1, 2]));
        let other = load(
            &host,
            r#"{"agreement": {"ring": "shared"}, "routes": ["/x"]}"#,
        );
        assert_eq!(send(&other, &host, &body(&[2, 1])).1.matched, 2);
    }

    #[test]
    fn a_proxy_without_shared_data_orders_all_the_same() {
        for call in ["shared_data", "set_shared_data", "property"] {
            let host = ScriptedHost::default();
            host.refuse(call);
            let plugin = load(&host, "{}");
            assert!(!plugin.needs_ticks(), "{call}");
            send(&plugin, &host, &body(&[1, 2]));
            assert_eq!(send(&plugin, &host, &body(&[2, 1])).1.matched, 2);
            assert_eq!(host.counter("foreword_untold_requests_total"), 0);
        }
        let host = ScriptedHost::default();
        let plugin = load(&host, "{}");
        host.refuse("set_shared_data");
        send(&plugin, &host, &body(&[1, 2]));
        assert_eq!(host.counter("foreword_untold_requests_total"), 1);
    }
}
