//! The plugin configuration: raw JSON in, a checked value out, or an error that names the field, the value
//! and the limit.
//!
//! ```text
//!   JSON ──► RawConfig, values untyped ──► a check for each field (`field`, `tenant`) ──► Config
//!                    └─ `ordering`, as text ──► the core's own check
//! ```
//!
//! An empty configuration means all defaults. `schema.json` beside this file says the same to editors and to
//! `foreword check-config`; a test holds the two together.

mod field;
mod tenant;

use foreword_ordering::document::Fingerprint;
use foreword_ordering::{Config as OrderingConfig, Experiment};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use thiserror::Error;

use crate::agreement::AgreementConfig;
use crate::engines::{EngineConfig, engines};
use crate::retrieval::RetrievalConfig;
use field::{experiment, max_body_bytes, one_of, own_header};
pub(crate) use field::{header_name, invalid, object, switch};
pub(crate) use tenant::{KEY, feed_key};
pub use tenant::{SaltKey, TenantSource};

/// The JSON Schema (draft 2020-12) of the plugin configuration.
///
/// It accepts what [`Config::from_json`] accepts, but for rules that hold between fields (two headers of one name, a
/// salt without tenants, a key in the environment) and for spellings that JSON Schema does not tell apart (`4.0` for
/// `4`, a field that is there twice).
pub const SCHEMA: &str = include_str!("schema.json");

/// A checked configuration.
pub struct Config {
    /// Handed to the core as it is.
    pub ordering: OrderingConfig,
    /// Paths, without query, on which a `POST` is looked at; `{name}` stands for a part of one. Not empty.
    pub routes: Vec<String>,
    /// Longest body that is read; longer ones pass or are refused.
    pub max_body_bytes: u32,
    /// Whether documents are moved, or only counted.
    pub mode: Mode,
    /// Which requests go on in the client's order, for comparison.
    pub experiment: Option<Experiment>,
    /// Who says whose a request is; without it all requests share one tenant.
    pub tenant: Option<TenantSource>,
    /// What cache salts are made with; only with tenants.
    pub salt: Option<SaltKey>,
    /// Paths, without query, that carry no prompt and are let through without a salt. Where salts are on, what is neither
    /// here nor in `routes` is refused. Empty without salts, which need no such list.
    pub open_paths: Vec<String>,
    /// What happens to a request that cannot be ordered through the client's own fault.
    pub on_failure: OnFailure,
    /// Lower-case name of the response header that says what was done.
    pub report_header: Option<String>,
    /// Lower-case name of the request header that lets a request pass. Always removed.
    pub bypass_header: Option<String>,
    /// Whether the request's headers wait for its body.
    pub request_headers: RequestHeaders,
    /// Where the chosen path is told to the engine.
    pub path_header: PathHeader,
    /// Whether what was done is also written where access logs find it.
    pub log_fields: bool,
    /// At least one.
    pub(crate) engines: Vec<EngineConfig>,
    /// Recent requests of a tenant by which it is explained why a prompt could not begin like an earlier one; 0: nothing
    /// is explained.
    pub(crate) explain: u32,
    /// What workers tell each other.
    pub(crate) agreement: AgreementConfig,
    /// Where documents come from for chats that bring none; `None`: from nowhere.
    pub(crate) retrieval: Option<RetrievalConfig>,
    /// A hash of what says whose requests these are. Configurations that differ in it have nothing to tell each other.
    pub(crate) audience: u64,
}

/// Whether documents are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They are.
    Order,
    /// What would be done is decided and reported; every document goes on as it came.
    DryRun,
}

/// Whether a request's headers wait for its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestHeaders {
    /// They go on together with the new body, and state its length. The proxy must be told to allow it
    /// (`allow_on_headers_stop_iteration`, Envoy 1.35 and later): without that it never delivers the body, and the
    /// request hangs.
    Hold,
    /// They go on at once, without `content-length`: the body follows in chunks. For control planes that cannot set
    /// that option.
    Release,
}

/// The request header that holds the chosen path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathHeader {
    /// In lower case. One from the client is always removed.
    pub name: String,
    /// Whether it is written.
    pub enabled: bool,
}

/// What happens to a request that cannot be ordered through the client's own fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// It goes on as the client wrote it.
    Pass,
    /// It is answered with an error in OpenAI's shape.
    Refuse,
}

impl Config {
    /// Parses and checks a configuration.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ConfigError> {
        let raw: RawConfig = match bytes.trim_ascii().first() {
            None => RawConfig::default(),
            Some(b'{') => serde_json::from_slice(bytes).map_err(ConfigError::Json)?,
            // Serde would read `[]` as a struct without fields, so as the defaults.
            Some(_) => return Err(ConfigError::NotAnObject),
        };
        let retrieval = raw.retrieval.map_or_null(|| None, retrieval)?;
        let keeps = retrieval.as_ref().is_some_and(|(_, keeps)| *keeps);
        let ordering = ordering(raw.ordering.as_deref(), keeps)?;
        let given = |field: &Field| match field {
            Field::Absent => None,
            Field::Given(value) => Some(value.clone()),
        };
        let agreement = AgreementConfig::from_json(given(&raw.agreement).as_ref())?;
        let engines = engines(given(&raw.engines).as_ref())?;
        let (salt, open_paths) = (raw.salt)
            .map_or_null(|| None, tenant::salt)?
            .map_or_else(Default::default, |(key, open)| (Some(key), open));
        // The smallest block: what one engine can reuse is not given up for another.
        let blocks = engines.iter().filter_map(|engine| engine.block_tokens);
        let ordering = match blocks.min() {
            Some(block_tokens) => ordering.with_block_tokens(block_tokens),
            None => ordering,
        };
        let audience = raw.audience(&engines);
        let config = Self {
            ordering,
            routes: raw.routes.map_or_default(default_routes, field::routes)?,
            max_body_bytes: raw
                .max_body_bytes
                .map_or_default(|| DEFAULT_MAX_BODY_BYTES, max_body_bytes)?,
            mode: raw.mode.map_or_default(
                || Mode::Order,
                |value| {
                    let modes = [("order", Mode::Order), ("dry-run", Mode::DryRun)];
                    one_of("mode", value, modes)
                },
            )?,
            experiment: raw.experiment.map_or_null(|| None, experiment)?,
            tenant: raw.tenant.map_or_null(|| None, tenant::source)?,
            salt,
            open_paths,
            on_failure: raw.on_failure.map_or_default(
                || OnFailure::Pass,
                |value| {
                    let choices = [("pass", OnFailure::Pass), ("refuse", OnFailure::Refuse)];
                    one_of("on_failure", value, choices)
                },
            )?,
            report_header: raw.report_header.map_or_null(
                || Some(DEFAULT_REPORT_HEADER.to_owned()),
                |value| own_header("report_header", value),
            )?,
            bypass_header: raw
                .bypass_header
                .map_or_null(|| None, |value| own_header("bypass_header", value))?,
            request_headers: raw.request_headers.map_or_default(
                || RequestHeaders::Hold,
                |value| {
                    let choices = [
                        ("hold", RequestHeaders::Hold),
                        ("release", RequestHeaders::Release),
                    ];
                    one_of("request_headers", value, choices)
                },
            )?,
            path_header: path_header(raw.path_header)?,
            log_fields: raw
                .log_fields
                .map_or_default(|| true, |value| field::switch("log_fields", value))?,
            engines,
            explain: raw
                .explain
                .map_or_default(|| DEFAULT_EXPLAINED, field::explained)?,
            agreement,
            retrieval: retrieval.map(|(retrieval, _)| retrieval),
            audience,
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
        if (config.open_paths.iter()).any(|open| config.routes.contains(open)) {
            return Err(ConfigError::Conflict {
                field: "salt.open_paths",
                rule: "what they name goes on without a salt, so none of `routes` may be among them",
            });
        }
        Ok(config)
    }

    /// A choice of engines is told in headers, and what a feed says is told to other workers.
    fn check_engines(&self) -> Result<(), ConfigError> {
        if self.engines.len() > 1 && self.request_headers == RequestHeaders::Release {
            return Err(ConfigError::Conflict {
                field: "engines",
                rule: "with several, a header says which one is chosen: request_headers must be \"hold\"",
            });
        }
        if self.agreement.entries == 0 && self.engines.iter().any(|engine| engine.feed.is_some()) {
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

    /// Headers that mean something to the filter must be told apart.
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

/// Why a configuration was refused. The proxy logs it and does not start, or keeps the old configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// JSON, or not even that, but no object.
    #[error("plugin configuration: it is not a JSON object")]
    NotAnObject,
    /// Not JSON, or a field that does not exist.
    #[error("plugin configuration: {0}")]
    Json(serde_json::Error),
    /// The core refused its part.
    #[error("plugin configuration: ordering: {0}")]
    Ordering(String),
    /// The core refused the similarity cache.
    #[error("plugin configuration: retrieval: {0}")]
    Retrieval(String),
    /// A field's value is outside its limits.
    #[error("plugin configuration: {field}: {value} is not {limit}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The value, as JSON, shortened; of a key only its length.
        value: String,
        /// What would be accepted.
        limit: String,
    },
    /// A field does not fit another one, or the proxy.
    #[error("plugin configuration: {field}: {rule}")]
    Conflict {
        /// The field.
        field: &'static str,
        /// What does not hold.
        rule: &'static str,
    },
}

/// The configuration as written. Values stay untyped so that each check can name its field: serde's own
/// messages name the type alone.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawConfig {
    #[serde(deserialize_with = "given")]
    ordering: Option<Box<RawValue>>,
    routes: Field,
    max_body_bytes: Field,
    mode: Field,
    experiment: Field,
    tenant: Field,
    salt: Field,
    on_failure: Field,
    report_header: Field,
    bypass_header: Field,
    request_headers: Field,
    path_header: Field,
    log_fields: Field,
    agreement: Field,
    explain: Field,
    engines: Field,
    retrieval: Field,
}

impl RawConfig {
    /// Of what may change in a running gateway, such as bounds and policies, nothing is part of it.
    fn audience(&self, engines: &[EngineConfig]) -> u64 {
        let [routes, tenant] = [&self.routes, &self.tenant].map(|value| format!("{value:?}"));
        let engines = engines.iter().map(|engine| (&engine.name, engine.address));
        let engines = format!("{:?}", engines.collect::<Vec<_>>());
        Fingerprint::of(&[&routes, &tenant, &engines].map(String::as_bytes)).0
    }
}

/// Serde would take `null` for absence.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// A field for which `null` differs from absence.
#[derive(Debug, Default, Deserialize)]
#[serde(from = "Value")]
enum Field {
    #[default]
    Absent,
    Given(Value),
}

impl From<Value> for Field {
    fn from(value: Value) -> Self {
        Self::Given(value)
    }
}

impl Field {
    /// A field that has no meaning for `null`.
    fn map_or_default<T>(
        &self,
        default: impl FnOnce() -> T,
        check: impl FnOnce(&Value) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        match self {
            Self::Absent => Ok(default()),
            Self::Given(value) => check(value),
        }
    }

    /// A field that `null` switches off.
    fn map_or_null<T>(
        &self,
        default: impl FnOnce() -> Option<T>,
        check: impl FnOnce(&Value) -> Result<T, ConfigError>,
    ) -> Result<Option<T>, ConfigError> {
        match self {
            Self::Absent => Ok(default()),
            Self::Given(Value::Null) => Ok(None),
            Self::Given(value) => check(value).map(Some),
        }
    }
}

fn retrieval(value: &Value) -> Result<(RetrievalConfig, bool), ConfigError> {
    Ok((
        RetrievalConfig::from_json(value)?,
        RetrievalConfig::keeps(value)?,
    ))
}

/// The core's part. What a retriever found stays in a chat if it `keeps` it and nothing else is said: no client sends it
/// again.
fn ordering(json: Option<&RawValue>, keeps: bool) -> Result<OrderingConfig, ConfigError> {
    let checked = |json: &str| {
        OrderingConfig::from_json(json.as_bytes())
            .map_err(|error| ConfigError::Ordering(error.to_string()))
    };
    let json = json.map_or("{}", RawValue::get);
    // First of all, for the places that errors name.
    let config = checked(json)?;
    if !keeps {
        return Ok(config);
    }
    let mut value: Value = serde_json::from_str(json).map_err(ConfigError::Json)?;
    let conversation = value
        .as_object_mut()
        .map(|fields| fields.entry("conversation").or_insert_with(|| json!({})));
    if let Some(Value::Object(fields)) = conversation {
        fields.entry("pin").or_insert(Value::Bool(true));
    }
    checked(&value.to_string())
}

/// `null` switches the header off; the usual one is still removed where a client sends it.
fn path_header(field: Field) -> Result<PathHeader, ConfigError> {
    let name = field.map_or_null(
        || Some(DEFAULT_PATH_HEADER.to_owned()),
        |value| own_header("path_header", value),
    )?;
    Ok(PathHeader {
        enabled: name.is_some(),
        name: name.unwrap_or_else(|| DEFAULT_PATH_HEADER.to_owned()),
    })
}

fn default_routes() -> Vec<String> {
    DEFAULT_ROUTES.map(str::to_owned).to_vec()
}

/// OpenAI's and Anthropic's; their bodies are read alike.
const DEFAULT_ROUTES: [&str; 3] = ["/v1/chat/completions", "/v1/messages", "/v1/responses"];
const DEFAULT_REPORT_HEADER: &str = "x-foreword";
const DEFAULT_PATH_HEADER: &str = "x-foreword-path";
const DEFAULT_MAX_BODY_BYTES: u32 = 4 << 20;
/// Recent requests of a tenant that a request is compared with.
const DEFAULT_EXPLAINED: u32 = 64;

#[cfg(test)]
mod tests;
