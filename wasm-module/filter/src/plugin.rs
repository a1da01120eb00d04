//! What the requests of one configuration share: the checked configuration, what is known, the metrics.
//!
//! What is known sits in a mutex: the orderer, and its part in what workers tell each other ([`crate::agreement`]). A
//! Wasm VM runs on one worker thread, so there it is always free, unless a host nested callbacks: then the request passes
//! instead of trapping the worker. In a dynamic module all workers share the plugin and wait for each other, for the
//! microseconds that an order takes.

use std::sync::{Mutex, MutexGuard, TryLockError};

use foreword_ordering::feed::TenantKey;
use foreword_ordering::{
    Arm, Choice, Deed, EngineId, Orderer, Rewrite, Skip, Terms, Told, Trial, Usage,
};

use crate::agreement::Agreement;
use crate::config::{Config, ConfigError, KEY, Mode, SaltKey, TenantSource};
use crate::engines::{Dealt, Engines, Errand};
use crate::feed::{Answer, Feed, MAX_BATCH_BYTES};
use crate::host::{Host, HostError, LogLevel};
use crate::metrics::Metrics;
use crate::outcome::Outcome;
use crate::salt::{Identity, Salts};
use crate::usage::Counted;

/// One loaded configuration.
pub struct Plugin {
    config: Config,
    engines: Engines,
    knowledge: Mutex<Knowledge>,
    /// Apart from what is known, so that no request waits while a batch is read.
    feeds: Mutex<Vec<Feed>>,
    metrics: Metrics,
    salts: Option<Salts>,
}

/// Where a request goes.
pub(crate) struct Route {
    pub(crate) errand: Errand,
    /// For [`DESTINATION_HEADER`](crate::engines::DESTINATION_HEADER); `None`: there is nothing to choose.
    pub(crate) destinations: Option<String>,
}

struct Knowledge {
    orderer: Orderer,
    /// `None`: nothing is told and nothing is learnt.
    agreement: Option<Agreement>,
    /// By engine, a bit: whether its answers ever said how much was cached. Then one that says nothing says none.
    reporting: u64,
    /// Requests so far.
    turn: u64,
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
        let ring = ring(host, &config)
            .inspect_err(|error| {
                let message = format!("workers do not know of each other: {error}");
                host.log(LogLevel::Warn, &message);
            })
            .ok();
        let mut knowledge = Knowledge {
            orderer: Orderer::new(config.ordering.clone()),
            agreement: None,
            reporting: 0,
            turn: 0,
        };
        let mut engines = Engines::without_choice(&config.engines);
        let mut followed = Vec::new();
        if let Some((ring, agreement)) = ring {
            knowledge.agreement = agreement;
            match Engines::open(host, &config.engines, &ring) {
                Ok(opened) => engines = opened,
                Err(error) => host.log(LogLevel::Warn, &error.to_string()),
            }
            followed = feeds(host, &config, &ring);
        }
        let metrics = Metrics::define(host);
        knowledge.catch_up(host, &metrics, u64::MAX);
        Ok(Self {
            engines,
            knowledge: Mutex::new(knowledge),
            feeds: Mutex::new(followed),
            metrics,
            config,
            salts,
        })
    }

    /// Whether engines' feeds are to be followed, for which ticks are needed.
    pub fn has_feeds(&self) -> bool {
        self.config
            .engines
            .iter()
            .any(|engine| engine.feed.is_some())
    }

    /// Whether [`Plugin::on_tick`] has anything to do.
    pub fn needs_ticks(&self) -> bool {
        self.knowledge()
            .is_some_and(|knowledge| knowledge.agreement.is_some())
    }

    /// Some time has passed: what other workers did meanwhile is learnt, so that a request that comes late finds little
    /// left to learn.
    pub fn on_tick(&self, host: &impl Host) {
        self.metrics.memory(host);
        if let Some(mut knowledge) = self.knowledge() {
            knowledge.catch_up(host, &self.metrics, LEARNT_AT_A_TICK);
        }
        for feed in self.feeds().iter_mut().flat_map(|feeds| feeds.iter_mut()) {
            if let Err(error) = feed.on_tick(host, now_ms(host)) {
                host.log(LogLevel::Warn, &error.to_string());
            }
        }
    }

    /// Bytes of an answer to a [`Host::call`] that are looked at.
    pub const MAX_ANSWER_BYTES: usize = MAX_BATCH_BYTES;

    /// The answer to a call has come: its status, unless there was no answer, and its body, unless that is longer than
    /// [`Plugin::MAX_ANSWER_BYTES`].
    pub fn on_answer(&self, host: &impl Host, call: u32, status: Option<u16>, body: Option<&[u8]>) {
        let (now_ms, answer) = (now_ms(host), Answer { status, body });
        let said = self.feeds().and_then(|mut feeds| {
            let mut feeds = feeds.iter_mut();
            feeds.find_map(|feed| feed.on_answer(host, now_ms, call, answer))
        });
        let (Some(said), Some(mut knowledge)) = (said, self.knowledge()) else {
            return;
        };
        // What was told before is older.
        knowledge.catch_up(host, &self.metrics, LEARNT_AT_A_TICK);
        for residency in said.messages {
            knowledge.take(host, &self.metrics, Told::Residency(residency));
        }
        // Whoever sees the count sees what is known.
        self.metrics.fed(host, said.events);
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn engines(&self) -> &Engines {
        &self.engines
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
    ) -> Option<(Result<Rewrite, Skip>, Route)> {
        let mut knowledge = self.knowledge()?;
        knowledge.catch_up(host, &self.metrics, LEARNT_AT_A_REQUEST);
        let now_ms = now_ms(host);
        knowledge.turn = knowledge.turn.wrapping_add(1);
        let choices = self.engines.choices(host, now_ms, knowledge.turn);
        let start = host.now_ns();
        let trial = match (self.config.mode, &self.config.experiment) {
            (Mode::DryRun, _) => Trial::DryRun,
            (Mode::Order, Some(experiment)) => Trial::Experiment(experiment),
            (Mode::Order, None) => Trial::None,
        };
        let terms = Terms {
            salt: identity.salt(),
            key_of: Some(TenantKey::of),
            trial,
            choices: &choices,
        };
        let answer = knowledge
            .orderer
            .rewrite_on(&terms, identity.tenant(), body);
        // Saturating: Envoy's clock is the wall clock, which may step back.
        let elapsed = host.now_ns().saturating_sub(start);
        self.metrics.time(host, elapsed);
        let (engine, tokens) = match &answer {
            Ok(rewrite) => {
                let told = Told::Deed(rewrite.deed.clone());
                knowledge.tell(host, &self.metrics, &told);
                (rewrite.deed.engine(), rewrite.deed.uncached())
            }
            Err(_) => (least_loaded(&choices), estimated_tokens(body.len())),
        };
        let route = Route {
            errand: self.engines.send(host, now_ms, engine, tokens),
            destinations: self.engines.destinations(engine, &choices),
        };
        Some((answer, route))
    }

    /// A request that the core does not see goes to the engine that has least to do.
    pub(crate) fn route(&self, host: &impl Host, bytes: usize) -> Route {
        let now_ms = now_ms(host);
        let choices = self.engines.choices(host, now_ms, now_ms);
        let engine = least_loaded(&choices);
        let tokens = estimated_tokens(bytes);
        Route {
            errand: self.engines.send(host, now_ms, engine, tokens),
            destinations: self.engines.destinations(engine, &choices),
        }
    }

    pub(crate) fn settle(&self, host: &impl Host, errand: Errand, dealt: Dealt) {
        self.engines.settle(host, now_ms(host), errand, dealt);
    }

    /// An engine answered that was not sent to by us.
    pub(crate) fn answered_by(&self, host: &impl Host, engine: EngineId) {
        let errand = self.engines.send(host, now_ms(host), engine, 0);
        self.engines
            .settle(host, now_ms(host), errand, Dealt::Answered);
    }

    /// The engine that was chosen did not take the request.
    pub(crate) fn undo(&self, host: &impl Host, deed: &Deed) {
        let undone = deed.undone();
        if !undone.events.is_empty()
            && let Some(mut knowledge) = self.knowledge()
        {
            knowledge.take(host, &self.metrics, Told::Residency(undone));
        }
    }

    /// Another engine got the request than was chosen: it holds the documents now.
    pub(crate) fn went_to(&self, host: &impl Host, deed: &mut Deed, engine: EngineId) {
        deed.redirect(engine);
        if let Some(mut knowledge) = self.knowledge() {
            knowledge.take(host, &self.metrics, Told::Deed(deed.clone()));
        }
    }

    /// An engine has counted a prompt, that of `deed` if the core decided on it.
    pub(crate) fn counted(
        &self,
        host: &impl Host,
        deed: Option<&Deed>,
        arm: Option<Arm>,
        counted: Counted,
    ) {
        self.metrics.counted(host, arm, counted);
        if self.config.log_fields {
            let mut fields = vec![("prompt_tokens", counted.prompt.to_string())];
            fields.extend(
                counted
                    .cached
                    .map(|cached| ("cached_tokens", cached.to_string())),
            );
            if let Err(error) = host.set_log_fields(&fields) {
                host.log(LogLevel::Warn, &error.to_string());
            }
        }
        let (Some(deed), Some(mut knowledge)) = (deed, self.knowledge()) else {
            return;
        };
        let bit = 1_u64.checked_shl(deed.engine().0.into()).unwrap_or(0);
        if counted.cached.is_some() {
            knowledge.reporting |= bit;
        } else if knowledge.reporting & bit == 0 {
            return;
        }
        let usage = Usage {
            prompt_tokens: counted.prompt,
            cached_tokens: counted.cached.unwrap_or(0),
        };
        if let Some(correction) = deed.judged(usage) {
            self.metrics.corrected(host);
            knowledge.take(host, &self.metrics, Told::Correction(correction));
        }
    }

    /// Ticks and answers come on one thread: who finds it in use is nested in it.
    fn feeds(&self) -> Option<MutexGuard<'_, Vec<Feed>>> {
        match self.feeds.try_lock() {
            Ok(feeds) => Some(feeds),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        }
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
        let Self {
            orderer, agreement, ..
        } = self;
        let Some(agreement) = agreement else { return };
        match agreement.catch_up(host, limit, |told| orderer.learn(told)) {
            Ok(learnt) => metrics.learnt(host, learnt),
            Err(error) => host.log(LogLevel::Warn, &error.to_string()),
        }
    }

    /// Learns and tells.
    fn take(&mut self, host: &impl Host, metrics: &Metrics, told: Told) {
        self.orderer.learn(&told);
        self.tell(host, metrics, &told);
    }

    fn tell(&mut self, host: &impl Host, metrics: &Metrics, told: &Told) {
        let Some(agreement) = &mut self.agreement else {
            return;
        };
        match agreement.tell(host, told) {
            Ok(true) => {}
            Ok(false) => metrics.untold(host),
            Err(error) => {
                metrics.untold(host);
                host.log(LogLevel::Warn, &error.to_string());
            }
        }
    }
}

/// The name under which workers agree, and a part in that ring unless it is switched off. A proxy without shared data
/// orders all the same, each worker alone.
fn ring(host: &impl Host, config: &Config) -> Result<(String, Option<Agreement>), HostError> {
    let wanted = &config.agreement;
    let name = match &wanted.ring {
        Some(name) => format!("named/{name}"),
        None => {
            // Plugins of other names, or for other tenants, routes or engines, are not meant by default.
            let plugin = host.property(&["plugin_name"])?.unwrap_or_default();
            let plugin = String::from_utf8_lossy(&plugin);
            format!("of/{:016x}/{plugin}", config.audience)
        }
    };
    let agreement = (wanted.entries > 0)
        .then(|| Agreement::open(host, &name, wanted.entries))
        .transpose()?;
    Ok((name, agreement))
}

fn feeds(host: &impl Host, config: &Config, ring: &str) -> Vec<Feed> {
    let engines = (0..).map(EngineId).zip(&config.engines);
    let feeds = engines.filter_map(|(id, engine)| {
        let feed = Feed::new(host, id, &engine.name, engine.feed.clone()?, ring);
        feed.inspect_err(|error| host.log(LogLevel::Warn, &error.to_string()))
            .ok()
    });
    feeds.collect()
}

fn least_loaded(choices: &[Choice]) -> EngineId {
    let least = choices.iter().min_by_key(|choice| choice.outstanding);
    least.map_or(EngineId::default(), |choice| choice.engine)
}

fn estimated_tokens(bytes: usize) -> u64 {
    u64::from(foreword_ordering::document::estimate_tokens(bytes))
}

fn now_ms(host: &impl Host) -> u64 {
    host.now_ns() / 1_000_000
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
        let rewrite = rewrite.unwrap().0.unwrap();
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
        assert_eq!(idle_host.samples("foreword_vm_mebibytes"), [7]);
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
