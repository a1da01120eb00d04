//! The plugin configuration: raw JSON in, a checked value out, or an error that names the field, the value
//! and the limit.
//!
//! An empty configuration means all defaults. The part under `ordering` is the core's and is checked there.

use foreword_ordering::Config as OrderingConfig;
use foreword_ordering::document::Fingerprint;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::agreement::AgreementConfig;
use crate::engines::{EngineConfig, engines};

/// A checked configuration.
pub struct Config {
    /// Handed to the core as it is.
    pub ordering: OrderingConfig,
    /// Paths, without query, on which a `POST` is looked at. Not empty.
    pub routes: Vec<String>,
    /// Longest body that is read; longer ones pass or are refused.
    pub max_body_bytes: u32,
    /// Lower-case name of the request header that holds the tenant; without it all requests share one tenant.
    pub tenant_header: Option<String>,
    /// What happens to a request that cannot be ordered through the client's own fault.
    pub on_failure: OnFailure,
    /// Lower-case name of the response header that says what was done.
    pub report_header: Option<String>,
    /// Whether the request's headers wait for its body.
    pub request_headers: RequestHeaders,
    /// Where the chosen path is told to the engine.
    pub path_header: PathHeader,
    /// At least one.
    pub(crate) engines: Vec<EngineConfig>,
    /// What workers tell each other.
    pub(crate) agreement: AgreementConfig,
    /// A hash of what says whose requests these are. Configurations that differ in it have nothing to tell each other.
    pub(crate) audience: u64,
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
        let ordering = match &raw.ordering {
            Some(json) => OrderingConfig::from_json(json.get().as_bytes())
                .map_err(|error| ConfigError::Ordering(error.to_string()))?,
            None => OrderingConfig::default(),
        };
        let tenant_header = match &raw.tenant_header {
            None => None,
            Some(value) => Some(header_name("tenant_header", value)?),
        };
        let report_header = match &raw.report_header {
            Field::Absent => Some(DEFAULT_REPORT_HEADER.to_owned()),
            Field::Given(Value::Null) => None,
            Field::Given(value) => Some(own_header("report_header", value)?),
        };
        let path_header = path_header(&raw.path_header)?;
        for (field, name) in [
            ("report_header", &report_header),
            ("tenant_header", &tenant_header),
        ] {
            if name.as_ref() == Some(&path_header.name) {
                return Err(invalid(
                    field,
                    name,
                    "a header other than path_header, which is removed from requests",
                ));
            }
        }
        if report_header.is_some() && report_header == tenant_header {
            return Err(invalid(
                "tenant_header",
                tenant_header,
                "a header other than report_header, which is removed from requests",
            ));
        }
        let engines = engines(raw.engines.as_ref())?;
        let agreement = AgreementConfig::from_json(raw.agreement.as_ref())?;
        let request_headers = request_headers(raw.request_headers.as_ref())?;
        if engines.len() > 1 && request_headers == RequestHeaders::Release {
            let limit = "\"hold\": with several engines, the headers say which one is chosen";
            return Err(invalid("request_headers", "release", limit));
        }
        if agreement.entries == 0 && engines.iter().any(|engine| engine.feed.is_some()) {
            let limit = "1 or more: what a feed says, one worker tells the others";
            return Err(invalid("agreement.entries", 0, limit));
        }
        Ok(Self {
            ordering,
            routes: routes(raw.routes.as_ref())?,
            max_body_bytes: max_body_bytes(raw.max_body_bytes.as_ref())?,
            tenant_header,
            on_failure: on_failure(raw.on_failure.as_ref())?,
            report_header,
            request_headers,
            path_header,
            engines,
            agreement,
            audience: raw.audience(),
        })
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
    /// A field's value is outside its limits.
    #[error("plugin configuration: {field}: {value} is not {limit}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The value, as JSON, shortened.
        value: String,
        /// What would be accepted.
        limit: String,
    },
}

/// The configuration as written. Values stay untyped so that each check can name its field: serde's own
/// messages name the type alone.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawConfig {
    ordering: Option<Box<RawValue>>,
    routes: Option<Value>,
    max_body_bytes: Option<Value>,
    tenant_header: Option<Value>,
    on_failure: Option<Value>,
    report_header: Field,
    request_headers: Option<Value>,
    path_header: Field,
    agreement: Option<Value>,
    engines: Option<Value>,
}

impl RawConfig {
    /// Of what may change in a running gateway, such as bounds and policies, nothing is part of it.
    fn audience(&self) -> u64 {
        let parts = [&self.routes, &self.tenant_header, &self.engines];
        let parts = parts.map(|value| format!("{value:?}"));
        Fingerprint::of(&parts.each_ref().map(String::as_bytes)).0
    }
}

/// A field for which `null` differs from absence.
#[derive(Default, Deserialize)]
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

fn routes(value: Option<&Value>) -> Result<Vec<String>, ConfigError> {
    let Some(value) = value else {
        return Ok(DEFAULT_ROUTES.map(str::to_owned).to_vec());
    };
    let list = value
        .as_array()
        .filter(|list| (1..=MAX_ROUTES).contains(&list.len()));
    let Some(list) = list else {
        return Err(invalid(
            "routes",
            value,
            format!("a list of 1 to {MAX_ROUTES} paths"),
        ));
    };
    list.iter()
        .map(|route| match route.as_str() {
            Some(path)
                if path.starts_with('/')
                    && path.len() <= MAX_ROUTE_BYTES
                    && !path.contains(['?', '#']) =>
            {
                Ok(path.to_owned())
            }
            _ => Err(invalid(
                "routes",
                route,
                format!("a path that begins with \"/\", has no query and at most {MAX_ROUTE_BYTES} bytes"),
            )),
        })
        .collect()
}

fn max_body_bytes(value: Option<&Value>) -> Result<u32, ConfigError> {
    let Some(value) = value else {
        return Ok(DEFAULT_MAX_BODY_BYTES);
    };
    value
        .as_u64()
        .and_then(|bytes| u32::try_from(bytes).ok())
        .filter(|bytes| (1..=LIMIT_MAX_BODY_BYTES).contains(bytes))
        .ok_or_else(|| {
            invalid(
                "max_body_bytes",
                value,
                format!("a whole number from 1 to {LIMIT_MAX_BODY_BYTES}"),
            )
        })
}

fn on_failure(value: Option<&Value>) -> Result<OnFailure, ConfigError> {
    match value.map(|value| (value, value.as_str())) {
        None | Some((_, Some("pass"))) => Ok(OnFailure::Pass),
        Some((_, Some("refuse"))) => Ok(OnFailure::Refuse),
        Some((value, _)) => Err(invalid("on_failure", value, r#""pass" or "refuse""#)),
    }
}

fn request_headers(value: Option<&Value>) -> Result<RequestHeaders, ConfigError> {
    match value.map(|value| (value, value.as_str())) {
        None | Some((_, Some("hold"))) => Ok(RequestHeaders::Hold),
        Some((_, Some("release"))) => Ok(RequestHeaders::Release),
        Some((value, _)) => Err(invalid("request_headers", value, r#""hold" or "release""#)),
    }
}

/// `null` switches the header off; the usual one is still removed where a client sends it.
fn path_header(field: &Field) -> Result<PathHeader, ConfigError> {
    let (name, enabled) = match field {
        Field::Absent => (DEFAULT_PATH_HEADER.to_owned(), true),
        Field::Given(Value::Null) => (DEFAULT_PATH_HEADER.to_owned(), false),
        Field::Given(value) => (own_header("path_header", value)?, true),
    };
    Ok(PathHeader { name, enabled })
}

/// The filter removes such a header from requests and writes its own, so it must not be one that HTTP itself needs.
fn own_header(field: &'static str, value: &Value) -> Result<String, ConfigError> {
    let name = header_name(field, value)?;
    if name.starts_with("x-") {
        Ok(name)
    } else {
        Err(invalid(field, value, r#"a name that begins with "x-""#))
    }
}

fn header_name(field: &'static str, value: &Value) -> Result<String, ConfigError> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    match value.as_str() {
        Some(name)
            if (1..=MAX_HEADER_NAME_BYTES).contains(&name.len()) && name.bytes().all(token) =>
        {
            Ok(name.to_ascii_lowercase())
        }
        _ => Err(invalid(
            field,
            value,
            format!("a header name of 1 to {MAX_HEADER_NAME_BYTES} characters, or null"),
        )),
    }
}

pub(crate) fn invalid(
    field: &'static str,
    value: impl serde::Serialize,
    limit: impl Into<String>,
) -> ConfigError {
    let mut value = serde_json::to_string(&value).unwrap_or_default();
    if let Some((end, _)) = value.char_indices().nth(MAX_QUOTED_CHARS) {
        value.truncate(end);
        value.push('…');
    }
    ConfigError::Invalid {
        field,
        value,
        limit: limit.into(),
    }
}

/// OpenAI's and Anthropic's; their bodies are read alike.
const DEFAULT_ROUTES: [&str; 2] = ["/v1/chat/completions", "/v1/messages"];
const DEFAULT_REPORT_HEADER: &str = "x-foreword";
const DEFAULT_PATH_HEADER: &str = "x-foreword-path";
const DEFAULT_MAX_BODY_BYTES: u32 = 4 << 20;
/// A worker's Wasm memory never shrinks and aborts near 1 GiB; a body needs a few times its own size there.
const LIMIT_MAX_BODY_BYTES: u32 = 32 << 20;
const MAX_ROUTES: usize = 64;
const MAX_ROUTE_BYTES: usize = 256;
const MAX_HEADER_NAME_BYTES: usize = 64;
const MAX_QUOTED_CHARS: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    fn error(json: &str) -> String {
        Config::from_json(json.as_bytes())
            .err()
            .unwrap()
            .to_string()
    }

    #[test]
    fn an_empty_configuration_and_an_empty_object_give_the_defaults() {
        for json in ["", " \n", "{}"] {
            let config = Config::from_json(json.as_bytes()).unwrap();
            assert_eq!(config.routes, ["/v1/chat/completions", "/v1/messages"]);
            assert_eq!(config.max_body_bytes, 4_194_304);
            assert_eq!(config.tenant_header, None);
            assert_eq!(config.on_failure, OnFailure::Pass);
            assert_eq!(config.report_header.as_deref(), Some("x-foreword"));
            assert_eq!(config.request_headers, RequestHeaders::Hold);
            assert_eq!(config.path_header.name, "x-foreword-path");
            assert!(config.path_header.enabled);
        }
    }

    #[test]
    fn every_field_is_read() {
        let json = r#"{"ordering": {}, "routes": ["/a", "/b"], "max_body_bytes": 7, "tenant_header": "X-Tenant",
            "on_failure": "refuse", "report_header": null, "path_header": "X-Path",
            "request_headers": "release"}"#;
        let config = Config::from_json(json.as_bytes()).unwrap();
        assert_eq!(config.routes, ["/a", "/b"]);
        assert_eq!(config.max_body_bytes, 7);
        assert_eq!(config.tenant_header.as_deref(), Some("x-tenant"));
        assert_eq!(config.on_failure, OnFailure::Refuse);
        assert_eq!(config.report_header, None);
        assert_eq!(config.request_headers, RequestHeaders::Release);
        assert_eq!(config.path_header.name, "x-path");
        let config = Config::from_json(br#"{"path_header": null}"#).unwrap();
        assert!(!config.path_header.enabled);
    }

    #[test]
    fn only_an_object_is_a_configuration() {
        for json in ["[]", "null", "7", "routes"] {
            assert!(error(json).contains("not a JSON object"), "{json}");
        }
    }

    #[test]
    fn an_unknown_field_is_named() {
        assert!(error(r#"{"max_body": 1}"#).contains("unknown field `max_body`"));
    }

    #[test]
    fn a_bad_value_is_named_with_field_value_and_limit() {
        for (json, parts) in [
            (
                r#"{"max_body_bytes": 0}"#,
                ["max_body_bytes", "0", "1 to 33554432"],
            ),
            (
                r#"{"max_body_bytes": 33554433}"#,
                ["max_body_bytes", "33554433", "1 to 33554432"],
            ),
            (
                r#"{"max_body_bytes": "4MB"}"#,
                ["max_body_bytes", "\"4MB\"", "whole number"],
            ),
            (r#"{"routes": []}"#, ["routes", "[]", "1 to 64"]),
            (
                r#"{"routes": ["v1"]}"#,
                ["routes", "\"v1\"", "begins with \"/\""],
            ),
            (
                r#"{"routes": ["/v1?x=1"]}"#,
                ["routes", "\"/v1?x=1\"", "no query"],
            ),
            (
                r#"{"tenant_header": "a b"}"#,
                ["tenant_header", "\"a b\"", "1 to 64 characters"],
            ),
            (
                r#"{"report_header": "host"}"#,
                ["report_header", "\"host\"", "begins with \"x-\""],
            ),
            (
                r#"{"on_failure": "drop"}"#,
                ["on_failure", "\"drop\"", "\"pass\" or \"refuse\""],
            ),
            (
                r#"{"request_headers": true}"#,
                ["request_headers", "true", "\"hold\" or \"release\""],
            ),
            (
                r#"{"tenant_header": "X-Foreword"}"#,
                ["tenant_header", "x-foreword", "report_header"],
            ),
            (
                r#"{"path_header": "host"}"#,
                ["path_header", "\"host\"", "begins with \"x-\""],
            ),
            (
                r#"{"path_header": "X-Foreword"}"#,
                ["report_header", "x-foreword", "path_header"],
            ),
        ] {
            let message = error(json);
            for part in parts {
                assert!(message.contains(part), "{json}: {message:?} lacks {part:?}");
            }
        }
    }

    #[test]
    fn a_long_bad_value_is_quoted_in_part() {
        let message = error(&format!(r#"{{"on_failure": "{}"}}"#, "é".repeat(5_000)));
        assert!(message.len() < 400, "{} bytes", message.len());
    }

    #[test]
    fn a_fault_in_the_ordering_part_says_where_it_is() {
        let message = error(r#"{"ordering": {"no_such_field": 1}}"#);
        assert!(
            message.contains("ordering") && message.contains("no_such_field"),
            "{message}"
        );
    }
}
