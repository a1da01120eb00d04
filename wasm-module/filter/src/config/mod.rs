//! The plugin configuration: from raw JSON to a validated value, or to an error that names the field, the value and the
//! limit.
//!
//! ```text
//!   JSON ──► Raw, values untyped ──► `Fields` reads each: path, range, default ──► Config
//!             └─ `ordering`, as text ──► the core's own validation
//! ```
//!
//! An empty configuration means all defaults. `schema.json` in this directory describes the same for editors and
//! `foreword check-config`; a test compares the two.

mod agreement;
mod bursts;
mod engines;
mod fields;
mod retrieval;
mod salt_key;
mod tenant;

use std::fmt;

use foreword_ordering::document::Fingerprint;
use foreword_ordering::object::Keys;
use foreword_ordering::{
    Config as OrderingConfig, ConfigError as OrderingError, Experiment, MAX_ENGINES,
    RawConfig as RawOrderingConfig,
};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use thiserror::Error;

pub(crate) use agreement::AgreementConfig;
pub(crate) use bursts::BurstConfig;
pub(crate) use engines::{EngineConfig, FeedConfig, engines};
pub(crate) use fields::KEY;
use fields::{Fields, invalid};
pub(crate) use retrieval::{Peer, RetrievalConfig};
pub use salt_key::SaltKey;
pub use tenant::TenantSource;

/// The JSON Schema (draft 2020-12) of the plugin configuration.
///
/// The schema accepts the same configurations as [`Config::from_json`], except for rules between fields (two headers of
/// one name, a salt without tenants, a key in the environment) and for spellings that JSON Schema does not distinguish
/// (`4.0` for `4`, a duplicate field).
pub const SCHEMA: &str = include_str!("schema.json");

/// A validated configuration of one plugin.
pub struct Config {
    /// The configuration of the ordering core, which processes the documents: the part `ordering`, with the engines'
    /// `block_tokens` and, as a default, `retrieval.keep` written into it.
    pub ordering: OrderingConfig,
    /// Request paths, without query, on which a `POST` is processed; `{name}` matches any text in one part of a path.
    /// Not empty.
    pub routes: Vec<String>,
    /// The maximum length of a request body that is processed, in bytes. Longer bodies are forwarded unprocessed or
    /// refused.
    pub max_body_bytes: u32,
    /// The use of the computed order: documents are moved, or the order is only reported.
    pub mode: Mode,
    /// The experiment, in which some chats keep the client's document order for comparison; `None` if none is
    /// configured.
    pub experiment: Option<Experiment>,
    /// Where the filter reads the tenant of a request; `None` if all requests share one tenant.
    pub tenant: Option<TenantSource>,
    /// The secret key from which tenants' cache salts are derived; `None` if salts are off. Requires `tenant`.
    pub salt: Option<SaltKey>,
    /// With salts: request paths, without query, of requests without a prompt, which are forwarded without a salt. A
    /// path that is neither here nor in `routes` is refused. Empty if salts are off.
    pub open_paths: Vec<String>,
    /// With salts: those of `routes` whose requests are refused, since some engine may not separate tenants' caches by
    /// salt there.
    pub unsalted_routes: Vec<String>,
    /// The treatment of a request whose body cannot be ordered: forwarded or refused.
    pub on_failure: OnFailure,
    /// Lower-case name of the response header that reports the outcome of a request; `None` for no header.
    pub report_header: Option<String>,
    /// Lower-case name of the request header by which a client asks that its documents are not ordered; `None` for no
    /// such header. The filter removes it from requests.
    pub bypass_header: Option<String>,
    /// The treatment of a request's headers until the body is complete: held, or forwarded at once.
    pub request_headers: RequestHeaders,
    /// The request header in which the engine receives the chosen path (the order of the request's documents).
    pub path_header: PathHeader,
    /// True if the report on each request is also written to filter state, for access logs.
    pub log_fields: bool,
    /// The engines behind the gateway; at least one.
    pub(crate) engines: Vec<EngineConfig>,
    /// Number of a tenant's recent requests with which each worker compares a request, to diagnose why it shares no
    /// longer cached prefix with them. With 0, nothing is diagnosed.
    pub(crate) explain: u32,
    /// The ring buffer through which workers share updates about cached prefixes.
    pub(crate) agreement: AgreementConfig,
    /// The retrieval of documents for chats that have none; `None` if it is off.
    pub(crate) retrieval: Option<RetrievalConfig>,
    /// The handling of bursts (simultaneous requests whose prompts begin with the same documents); `None` if it is off.
    pub(crate) bursts: Option<BurstConfig>,
    /// A hash of the routes, the source of tenants and the engines. It is part of the default name of the ring buffer,
    /// so workers with different hashes exchange nothing unless `agreement.ring` names the ring.
    pub(crate) audience: u64,
}

/// The use of the document order that the ordering core computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The documents are forwarded in the computed order.
    Order,
    /// The computed order is only reported; no document moves.
    DryRun,
}

/// The treatment of a request's headers until its body is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestHeaders {
    /// Headers are held and then forwarded with the new body and its length. The proxy must allow that with
    /// `allow_on_headers_stop_iteration` (Envoy 1.35 and later). Otherwise it never delivers the body, and the request
    /// hangs.
    Hold,
    /// Headers are forwarded at once, without `content-length`, and the body follows in chunks. For control planes that
    /// cannot set `allow_on_headers_stop_iteration`.
    Release,
}

/// The request header that tells the engine the chosen path (the order of the request's documents).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathHeader {
    /// Lower-case name of the header. A client's header of that name is always removed.
    pub name: String,
    /// True if the filter also sets the header; false if the configuration has `null` for it.
    pub enabled: bool,
}

/// The treatment of a request whose body cannot be ordered, or whose documents cannot be retrieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// The request is forwarded with its original body.
    Pass,
    /// The client receives an error in the format of its API.
    Refuse,
}

impl Mode {
    const WORDS: [(&str, Self); 2] = [("order", Self::Order), ("dry-run", Self::DryRun)];
}

impl RequestHeaders {
    const WORDS: [(&str, Self); 2] = [("hold", Self::Hold), ("release", Self::Release)];
}

impl OnFailure {
    const WORDS: [(&str, Self); 2] = [("pass", Self::Pass), ("refuse", Self::Refuse)];
}

impl Config {
    /// Returns whether any engine has a configured feed of cache events.
    pub(crate) fn has_feeds(&self) -> bool {
        self.engines.iter().any(|engine| engine.feed.is_some())
    }

    /// Returns whether this gateway exchanges updates with gateways of other proxies: that is enabled, and an engine
    /// has a feed.
    pub(crate) fn exchanges(&self) -> bool {
        self.agreement.gateways && self.has_feeds()
    }

    /// Parses and validates the JSON of a plugin configuration. Empty text stands for all defaults. Returns an error
    /// for the first problem found.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ConfigError> {
        let raw: Raw = match bytes.trim_ascii().first() {
            None => Raw::default(),
            Some(b'{') => serde_json::from_slice(bytes).map_err(ConfigError::Json)?,
            Some(_) => return Err(ConfigError::NotAnObject),
        };
        let fields = Fields::all(&raw.fields);
        let retrieval = fields.given("retrieval");
        let retrieval = retrieval.map(RetrievalConfig::from_json).transpose()?;
        let keeps = retrieval.as_ref().is_some_and(|retrieval| retrieval.keep);
        let ordering = ordering(raw.ordering.as_deref(), keeps)?;
        let agreement = AgreementConfig::from_json(fields.get("agreement"))?;
        let engines = engines(fields.get("engines"))?;
        let salt = fields.given("salt").map(tenant::salt).transpose()?;
        let (salt, open_paths) =
            salt.map_or_else(Default::default, |(key, open)| (Some(key), open));
        // The smallest block: a match that one engine can reuse must not be ignored because of another engine.
        let blocks = engines.iter().filter_map(|engine| engine.block_tokens);
        let ordering = match blocks.min() {
            Some(block_tokens) => ordering.with_block_tokens(block_tokens),
            None => ordering,
        };
        let path_header = fields.own_header("path_header", Some(DEFAULT_PATH_HEADER))?;
        let mut config = Self {
            ordering,
            routes: fields.routes("routes", || DEFAULT_ROUTES.map(str::to_owned).to_vec())?,
            max_body_bytes: fields.number(
                "max_body_bytes",
                1..=LIMIT_MAX_BODY_BYTES,
                DEFAULT_MAX_BODY_BYTES,
            )?,
            mode: fields.one_of("mode", Mode::WORDS)?,
            experiment: fields.given("experiment").map(experiment).transpose()?,
            tenant: fields.given("tenant").map(tenant::source).transpose()?,
            salt,
            open_paths,
            on_failure: fields.one_of("on_failure", OnFailure::WORDS)?,
            report_header: fields.own_header("report_header", Some(DEFAULT_REPORT_HEADER))?,
            bypass_header: fields.own_header("bypass_header", None)?,
            request_headers: fields.one_of("request_headers", RequestHeaders::WORDS)?,
            path_header: PathHeader {
                enabled: path_header.is_some(),
                // Without a header of its own, a client's default header is still removed.
                name: path_header.unwrap_or_else(|| DEFAULT_PATH_HEADER.to_owned()),
            },
            log_fields: fields.switch("log_fields", true)?,
            audience: audience(&fields, &engines),
            unsalted_routes: Vec::new(),
            engines,
            explain: explained(fields.get("explain"))?,
            agreement,
            retrieval,
            bursts: fields
                .given("bursts")
                .map(BurstConfig::from_json)
                .transpose()?,
        };
        config.check_headers()?;
        config.check_engines()?;
        let filters = |retrieval: &RetrievalConfig| retrieval.tenant_filter.is_some();
        if config.tenant.is_none() && config.retrieval.as_ref().is_some_and(filters) {
            return Err(ConfigError::Conflict {
                field: "retrieval.tenant_filter",
                rule: "documents are filtered by the tenant's name, so it needs `tenant`",
            });
        }
        if config.salt.is_some() && config.tenant.is_none() {
            return Err(ConfigError::Conflict {
                field: "salt",
                rule: "it is derived from the tenant's name, so it needs `tenant`",
            });
        }
        if config.salt.is_some() && config.routes.iter().any(|route| route.contains('{')) {
            return Err(ConfigError::Conflict {
                field: "routes",
                rule: "with `salt` a path is compared byte by byte, and an API that names its model in the path knows no \
                       `cache_salt`: none may have a part in braces",
            });
        }
        if config.salt.is_some() {
            let keeps = |route: &&String| {
                config
                    .engines
                    .iter()
                    .all(|engine| engine.keeps_salts(route))
            };
            let unsalted = config.routes.iter().filter(|route| !keeps(route));
            config.unsalted_routes = unsalted.cloned().collect();
        }
        if (config.open_paths.iter()).any(|open| config.routes.contains(open)) {
            return Err(ConfigError::Conflict {
                field: "salt.open_paths",
                rule: "what they name goes on without a salt, so none of `routes` may be among them",
            });
        }
        Ok(config)
    }

    /// Returns the configuration for a module that embeds the filter and provides a pool of engines: [`MAX_ENGINES`]
    /// engines with the settings of the only one configured. Returns an error if several engines are configured, or one
    /// with an address or a feed.
    pub(crate) fn for_pool(mut self) -> Result<Self, ConfigError> {
        let of_all = match &self.engines[..] {
            [engine] if engine.address.is_none() && engine.feed.is_none() => engine.clone(),
            _ => {
                return Err(ConfigError::Conflict {
                    field: "engines",
                    rule: "the pool says which engines there are: it may list one, without address and feed, whose \
                           settings are those of all",
                });
            }
        };
        let places = (0..MAX_ENGINES).map(|place| EngineConfig {
            name: format!("pool/{place}"),
            ..of_all.clone()
        });
        self.engines = places.collect();
        self.check_engines()?;
        Ok(self)
    }

    /// Checks what several engines require (request headers are held, since one names the chosen engine; no warm-up,
    /// since no engine is chosen yet when it starts), and what feeds require (the ring buffer through which workers
    /// share their events).
    fn check_engines(&self) -> Result<(), ConfigError> {
        if self.engines.len() > 1 && self.request_headers == RequestHeaders::Release {
            return Err(ConfigError::Conflict {
                field: "engines",
                rule: "with several, a header says which one is chosen: request_headers must be \"hold\"",
            });
        }
        if self.agreement.entries == 0 && self.has_feeds() {
            return Err(ConfigError::Conflict {
                field: "engines.feed",
                rule: "one worker follows it and tells the others: agreement.entries must not be 0",
            });
        }
        let warms = |retrieval: &RetrievalConfig| retrieval.warm_up.is_some();
        if self.engines.len() > 1 && self.retrieval.as_ref().is_some_and(warms) {
            return Err(ConfigError::Conflict {
                field: "retrieval.warm_up",
                rule: "which of several engines gets a chat is not known before its documents are: it must be null",
            });
        }
        Ok(())
    }

    /// Checks that the configured headers have different names.
    fn check_headers(&self) -> Result<(), ConfigError> {
        let tenant = match &self.tenant {
            Some(TenantSource::Header(name)) => Some(name),
            _ => None,
        };
        let embedding = self.retrieval.as_ref();
        let embedding = embedding.and_then(|retrieval| retrieval.embedding.header.as_ref());
        let named = [
            ("report_header", self.report_header.as_ref()),
            ("path_header", Some(&self.path_header.name)),
            ("bypass_header", self.bypass_header.as_ref()),
            ("tenant.header", tenant),
            ("retrieval.embedding.header", embedding),
        ];
        for (at, (field, name)) in named.iter().enumerate() {
            let mut others = named.iter().skip(at.saturating_add(1));
            if name.is_some() && others.any(|(_, other)| other == name) {
                return Err(ConfigError::Conflict {
                    field,
                    rule: "report_header, path_header, bypass_header, tenant.header and retrieval.embedding.header must differ",
                });
            }
        }
        Ok(())
    }
}

/// The reason why a plugin configuration was refused. The proxy logs it; then it does not start, or keeps the old
/// configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The configuration is not a JSON object.
    #[error("plugin configuration: it is not a JSON object")]
    NotAnObject,
    /// The configuration is not JSON, or has an unknown or repeated field.
    #[error("plugin configuration: {0}")]
    Json(serde_json::Error),
    /// The ordering core refused the part `ordering`. The value is its message.
    #[error("plugin configuration: ordering: {0}")]
    Ordering(String),
    /// The similarity cache refused the part `retrieval.similarity`. The value is its message.
    #[error("plugin configuration: retrieval: {0}")]
    Retrieval(String),
    /// A field's value is not accepted.
    #[error("plugin configuration: {field}: {value} is not {limit}")]
    Invalid {
        /// The path of the field from the configuration's root.
        field: &'static str,
        /// The value as JSON, shortened; for a secret, at most its length.
        value: String,
        /// A description of the accepted values.
        limit: String,
    },
    /// A field's value contradicts another field or the proxy's environment.
    #[error("plugin configuration: {field}: {rule}")]
    Conflict {
        /// The path of the field from the configuration's root.
        field: &'static str,
        /// The rule that the field breaks.
        rule: &'static str,
    },
}

/// The configuration's fields before they are validated. Values stay untyped so that each error can name its field:
/// serde's own messages name only the type.
#[derive(Default)]
struct Raw {
    /// The JSON text of the field `ordering`; `None` if absent. The ordering core parses it, and its errors name lines
    /// and columns of this text.
    ordering: Option<Box<RawValue>>,
    fields: Map<String, Value>,
}

/// The names of all fields at the root of the plugin configuration.
const FIELDS: [&str; 18] = [
    "ordering",
    "routes",
    "max_body_bytes",
    "mode",
    "experiment",
    "tenant",
    "salt",
    "on_failure",
    "report_header",
    "bypass_header",
    "request_headers",
    "path_header",
    "log_fields",
    "agreement",
    "explain",
    "engines",
    "retrieval",
    "bursts",
];

/// Reads the configuration's root object. An unknown or repeated field is an error that names it, with its line and
/// column.
impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Raw, M::Error> {
                let mut keys = Keys::new(&FIELDS);
                let mut raw = Raw::default();
                while let Some(at) = map.next_key_seed(&mut keys)? {
                    match usize::try_from(at).ok().and_then(|at| FIELDS.get(at)) {
                        Some(&"ordering") => raw.ordering = Some(map.next_value()?),
                        Some(name) => {
                            raw.fields.insert((*name).to_owned(), map.next_value()?);
                        }
                        // `Keys` returns only indices of `FIELDS`.
                        None => {}
                    }
                }
                Ok(raw)
            }
        }

        deserializer.deserialize_map(Object)
    }
}

/// Returns a hash of the routes, the source of tenants and the engines. Settings that may change in a running gateway,
/// such as bounds and policies, are excluded.
fn audience(fields: &Fields<'_>, engines: &[EngineConfig]) -> u64 {
    let [routes, tenant] = ["routes", "tenant"].map(|field| format!("{:?}", fields.get(field)));
    let engines = engines.iter().map(|engine| (&engine.name, engine.address));
    let engines = format!("{:?}", engines.collect::<Vec<_>>());
    Fingerprint::of(&[&routes, &tenant, &engines].map(String::as_bytes)).0
}

/// Reads the ordering core's part of the configuration, `ordering`. `keeps` is the default of `conversation.pin`: if
/// retrieved documents stay in the chat, the gateway must write them into later requests, since no client sends them
/// again.
fn ordering(json: Option<&RawValue>, keeps: bool) -> Result<OrderingConfig, ConfigError> {
    let mut raw = RawOrderingConfig::default();
    raw.conversation.pin = keeps;
    raw.read_json(json.map_or("{}", RawValue::get).as_bytes())
        .and_then(|()| raw.try_into())
        .map_err(|error: OrderingError| ConfigError::Ordering(error.to_string()))
}

/// Reads the field `experiment`, an object `{"name": …, "control_share": …}`. Returns an error if the share is absent
/// or not from 0 to 1.
fn experiment(value: &Value) -> Result<Experiment, ConfigError> {
    let fields = Fields::of("experiment", Some(value), &["name", "control_share"])?;
    let name = fields.get("experiment.name");
    let name = name.map_or_else(
        || Ok(DEFAULT_EXPERIMENT.to_owned()),
        |name| fields::name("experiment.name", name),
    )?;
    let share = fields.get("control_share").unwrap_or(&Value::Null);
    share
        .as_f64()
        .and_then(|share| Experiment::new(&name, share))
        .ok_or_else(|| invalid("experiment.control_share", share, "a number from 0 to 1"))
}

/// Reads the field `explain`, an object `{"requests": …}`, and returns the number of recent requests to compare with.
fn explained(value: Option<&Value>) -> Result<u32, ConfigError> {
    let fields = Fields::of("explain", value, &["requests"])?;
    fields.number("explain.requests", 0..=MAX_EXPLAINED, DEFAULT_EXPLAINED)
}

/// The routes if none are configured: those of OpenAI's and Anthropic's APIs.
const DEFAULT_ROUTES: [&str; 3] = ["/v1/chat/completions", "/v1/messages", "/v1/responses"];
const DEFAULT_REPORT_HEADER: &str = "x-foreword";
const DEFAULT_PATH_HEADER: &str = "x-foreword-path";
const DEFAULT_MAX_BODY_BYTES: u32 = 4 << 20;
/// The maximum value of `max_body_bytes`. A worker's Wasm memory never shrinks and aborts near 1 GiB, and processing a
/// body needs a few times its size there.
const LIMIT_MAX_BODY_BYTES: u32 = 32 << 20;
const DEFAULT_EXPERIMENT: &str = "default";
/// The default number of a tenant's recent requests with which each worker compares a request.
const DEFAULT_EXPLAINED: u32 = 64;
const MAX_EXPLAINED: u32 = 1_024;

#[cfg(test)]
mod tests;
