//! Loads a plugin: validates the configuration, joins the ring buffer through which workers share updates about cached
//! prefixes, and derives the key of the cache salts.

use foreword_ordering::EngineId;
use foreword_ordering::document::Fingerprint;
use foreword_ordering::feed::{FeedKey, GatewayId};

use super::Plugin;
use super::bursts::InFlight;
use super::clock::Clock;
use super::gateways::gateway_id;
use super::knowledge::Knowledge;
use super::{misses_of, retired};
use crate::agreement::Agreement;
use crate::answers::Answers;
use crate::config::{Config, ConfigError, KEY, Mode, SaltKey, TenantSource};
use crate::engines::Engines;
use crate::feed::{Feed, Gateways, Outbox};
use crate::host::{Host, HostError, LogLevel};
use crate::metrics::Metrics;
use crate::retrieval::Retrieval;
use crate::salt::Salts;
use crate::shared::Shared;
use std::hash::{BuildHasher, RandomState};

impl Plugin {
    /// Loads a plugin from the JSON of its configuration: validates it, defines the metrics, and applies the updates
    /// that other workers, or this one before a reload, have published. Returns an error if the configuration is
    /// refused.
    pub fn load(host: &impl Host, configuration: &[u8]) -> Result<Self, ConfigError> {
        // The maps that are made below have this key. Clients must not know it.
        foreword_ordering::hash::set_key(RandomState::new().hash_one(0));
        let mut config = Config::from_json(configuration)?;
        if host.pool().is_some() {
            config = config.for_pool()?;
        }
        if matches!(config.tenant, Some(TenantSource::Claim(_))) && !host.has_metadata() {
            return Err(ConfigError::Conflict {
                field: "tenant.claim",
                rule: "a dynamic module cannot read claims; let jwt_authn write them into a header \
                       (`claim_to_headers`) and name it in `tenant.header`",
            });
        }
        let salts = config.salt.as_ref();
        let salts = salts.map(|key| salts_of(host, key)).transpose()?;
        let feed_keys = feed_keys(host, &config)?;
        host.log(LogLevel::Info, &loaded(&config));
        let ring = ring(host, &config)
            .inspect_err(|error| {
                let message = format!("workers do not know of each other: {error}");
                host.log(LogLevel::Warn, &message);
            })
            .ok();
        let mut knowledge = Knowledge::new(&config);
        let mut engines = Engines::without_choice(&config.engines);
        let mut followed = Vec::new();
        let answers = ring.as_ref();
        let answers = answers.and_then(|(ring, _)| Answers::new(&config.ordering, ring));
        if let Some((ring, agreement)) = ring {
            knowledge.agreement = agreement;
            match Engines::open(host, &config.engines, &ring) {
                Ok(opened) => engines = opened,
                Err(error) => host.log(LogLevel::Warn, &error.to_string()),
            }
            followed = feeds(host, &config, feed_keys, &ring);
        }
        let metrics = Metrics::define(host);
        knowledge.catch_up(host, &metrics, u64::MAX);
        Ok(Self {
            engines,
            knowledge: Shared::new(knowledge),
            misses: Shared::new(misses_of(&config)),
            feeds: Shared::new(followed),
            outbox: Shared::new(Outbox::default()),
            clock: Clock::default(),
            retrieval: (config.retrieval.clone()).map(|config| Retrieval::new(host, config)),
            in_flight: config.bursts.map(InFlight::new),
            answers,
            metrics,
            config,
            salts,
        })
    }
}

/// Returns the name of the ring buffer through which workers share updates about cached prefixes, and this worker's
/// access to it (`None` if `agreement.entries` is 0). Returns an error if the proxy has no shared data; then each
/// worker orders alone.
fn ring(host: &impl Host, config: &Config) -> Result<(String, Option<Agreement>), HostError> {
    let wanted = &config.agreement;
    let name = match &wanted.ring {
        Some(name) => format!("named/{name}"),
        None => {
            // By default, plugins of other names, or for other tenants, routes or engines, use other rings.
            let plugin = host.property(&["plugin_name"])?.unwrap_or_default();
            let plugin = String::from_utf8_lossy(&plugin);
            let name = |audience| format!("of/{audience:016x}/{plugin}");
            let done = retired::retire(host, &plugin, config.audience, wanted.entries, name);
            if let Err(error) = done {
                host.log(LogLevel::Warn, &error.to_string());
            }
            name(config.audience)
        }
    };
    let agreement = (wanted.entries > 0)
        .then(|| Agreement::open(host, &name, wanted.entries))
        .transpose()?;
    Ok((name, agreement))
}

fn feeds(host: &impl Host, config: &Config, keys: Vec<Option<FeedKey>>, ring: &str) -> Vec<Feed> {
    let warn = |error: &HostError| host.log(LogLevel::Warn, &error.to_string());
    let id = config.exchanges().then(|| gateway_id(host, ring));
    let id: Option<GatewayId> = id.and_then(|id| id.inspect_err(warn).ok());
    // Gateways exchange updates if their workers would use the same ring.
    let audience = Fingerprint::of(&[ring.as_bytes()]).0;
    let engines = (0..).map(EngineId).zip(&config.engines).zip(keys);
    let feeds = engines.filter_map(|((id_of_engine, engine), key)| {
        let (name, feed) = (&engine.name, engine.feed.clone()?);
        let of_feed = format!("{ring}/{name}");
        let gateways = id.and_then(|id| {
            let gateways = Gateways::new(host, id, audience, &of_feed);
            gateways.inspect_err(warn).ok()
        });
        let feed = Feed::new(host, id_of_engine, name, feed, key, ring, gateways);
        feed.inspect_err(warn).ok()
    });
    feeds.collect()
}

/// Returns for each engine the key that its event feed is sealed (encrypted) with; `None` if the engine has no feed or
/// the feed no key. Returns an error if a key's environment variable is unset or malformed.
fn feed_keys(host: &impl Host, config: &Config) -> Result<Vec<Option<FeedKey>>, ConfigError> {
    let keys = config.engines.iter().map(|engine| {
        let key = engine.feed.as_ref().and_then(|feed| feed.key.as_ref());
        let bytes = key.map(|key| secret(host, "engines.feed.key_env", key));
        bytes
            .transpose()
            .map(|key| key.map(|key| FeedKey::new(&key)))
    });
    keys.collect()
}

fn salts_of(host: &impl Host, key: &SaltKey) -> Result<Salts, ConfigError> {
    let bytes = secret(host, "salt.key_env", key)?;
    Salts::new(&bytes).ok_or(ConfigError::Conflict {
        field: "salt.key",
        rule: KEY,
    })
}

/// Returns the bytes of a secret key, from the configuration or the environment. Returns an error, which names `field`,
/// if the environment variable is unset or malformed.
fn secret(host: &impl Host, field: &'static str, key: &SaltKey) -> Result<Vec<u8>, ConfigError> {
    let key = match key {
        SaltKey::Bytes(bytes) => Some(bytes.clone()),
        SaltKey::Environment(name) => {
            let key = host.environment(name);
            key.and_then(|key| SaltKey::from_hex(key.trim()))
        }
    };
    key.ok_or_else(|| ConfigError::Invalid {
        field,
        // The error never shows the value found.
        value: "what the environment has under that name".to_owned(),
        limit: KEY.to_owned(),
    })
}

/// Returns the log line that reports a loaded configuration, as `name=value` pairs.
fn loaded(config: &Config) -> String {
    let tenants = match config.tenant {
        None => "off",
        Some(TenantSource::Header(_)) => "header",
        Some(TenantSource::Claim(_)) => "claim",
    };
    let on_off = |is_on| if is_on { "on" } else { "off" };
    format!(
        "event=loaded version={} routes={} max_body_bytes={} mode={} experiment={} tenants={tenants} salts={} retrieval={}",
        env!("CARGO_PKG_VERSION"),
        config.routes.join(","),
        config.max_body_bytes,
        match config.mode {
            Mode::Order => "order",
            Mode::DryRun => "dry-run",
        },
        on_off(config.experiment.is_some()),
        on_off(config.salt.is_some()),
        on_off(config.retrieval.is_some()),
    )
}
