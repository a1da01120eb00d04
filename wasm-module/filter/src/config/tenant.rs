//! Who says whose a request is, and the key of the salts that keep tenants apart in the engine.

use std::fmt;

use serde_json::{Map, Value};

use super::ConfigError;
use super::field::{header_name, invalid, is_plain_name, object, paths};

/// Who says whose a request is. Never the body: whoever writes it could choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantSource {
    /// The request header of this lower-case name. The proxy must set or check it before the filter sees it.
    Header(String),
    /// A claim of a JWT that `jwt_authn` has verified: the path to it in the request's dynamic metadata.
    Claim(Vec<String>),
}

/// A secret: what cache salts are made with, or what an engine's feed is sealed with.
#[derive(Clone, PartialEq, Eq)]
pub enum SaltKey {
    /// The bytes.
    Bytes(Vec<u8>),
    /// The proxy's environment variable that holds them, in hexadecimal digits. Configurations are shown on admin pages.
    Environment(String),
}

impl SaltKey {
    /// Reads a key: at least 256 bits in hexadecimal digits.
    pub(crate) fn from_hex(hex: &str) -> Option<Vec<u8>> {
        let digits = hex.as_bytes();
        let (pairs, rest) = digits.as_chunks::<2>();
        if !rest.is_empty() || !(MIN_KEY_BYTES..=MAX_KEY_BYTES).contains(&pairs.len()) {
            return None;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16)?.try_into().ok();
        let byte = |[high, low]: [u8; 2]| -> Option<u8> {
            let high: u8 = digit(high)?;
            Some(high << 4 | digit(low)?)
        };
        pairs.iter().copied().map(byte).collect()
    }
}

/// Never the bytes.
impl fmt::Debug for SaltKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "SaltKey({} bytes)", bytes.len()),
            Self::Environment(name) => write!(f, "SaltKey(${name})"),
        }
    }
}

/// `{"header": …}` or `{"claim": …, "payload": …, "namespace": …}`.
pub(super) fn source(value: &Value) -> Result<TenantSource, ConfigError> {
    let fields = object(
        "tenant",
        value,
        &["header", "claim", "payload", "namespace"],
    )?;
    match (fields.get("header"), fields.get("claim")) {
        (Some(name), None) if fields.len() == 1 => {
            header_name("tenant.header", name).map(TenantSource::Header)
        }
        (None, Some(claim)) => {
            let text = |field, default: Option<&str>, key: &str| match (fields.get(key), default) {
                (None, Some(default)) => Ok(default.to_owned()),
                (value, _) => {
                    let value = value.unwrap_or(&Value::Null);
                    path_part(value).ok_or_else(|| invalid(field, value, PART))
                }
            };
            let mut path = vec![
                text("tenant.namespace", Some(JWT_AUTHN_NAMESPACE), "namespace")?,
                text("tenant.payload", None, "payload")?,
            ];
            path.extend(claim_path(claim)?);
            Ok(TenantSource::Claim(path))
        }
        _ => Err(invalid(
            "tenant",
            value,
            "an object with a `header`, or with a `claim` and the `payload` that it is in",
        )),
    }
}

/// A claim's name, or the names on the way to a nested one. Dots mean nothing: names of claims have them.
fn claim_path(claim: &Value) -> Result<Vec<String>, ConfigError> {
    let single = std::slice::from_ref(claim);
    let parts = claim.as_array().map_or(single, Vec::as_slice);
    let is_short = (1..=MAX_CLAIM_DEPTH).contains(&parts.len());
    let path = parts.iter().map(path_part).collect::<Option<Vec<_>>>();
    path.filter(|_| is_short).ok_or_else(|| {
        let limit = format!("{PART}, or a list of 1 to {MAX_CLAIM_DEPTH} of them");
        invalid("tenant.claim", claim, limit)
    })
}

fn path_part(value: &Value) -> Option<String> {
    // Paths go to the proxy as strings with zero bytes between them.
    let part = value.as_str()?;
    let fits = (1..=MAX_PART_CHARS).contains(&part.chars().count());
    (fits && !part.contains('\0')).then(|| part.to_owned())
}

/// `{"key": …}` or `{"key_env": …}`, and `open_paths` beside either: the key, and the paths that go on without a salt.
/// Errors tell a key's length alone.
pub(super) fn salt(value: &Value) -> Result<(SaltKey, Vec<String>), ConfigError> {
    let Ok(fields) = object("salt", value, &["key", "key_env", "open_paths"]) else {
        return Err(hidden("salt", value, EITHER_KEY));
    };
    let key = salt_key(fields.get("key"), fields.get("key_env"))
        .unwrap_or_else(|| Err(hidden("salt", value, EITHER_KEY)))?;
    let open_paths = match fields.get("open_paths") {
        None => DEFAULT_OPEN_PATHS.map(str::to_owned).to_vec(),
        Some(list) => paths("salt.open_paths", 0, list)?,
    };
    Ok((key, open_paths))
}

/// `None`: both are there, or neither.
fn salt_key(key: Option<&Value>, key_env: Option<&Value>) -> Option<Result<SaltKey, ConfigError>> {
    Some(match (key, key_env) {
        (Some(key), None) => key
            .as_str()
            .and_then(SaltKey::from_hex)
            .map(SaltKey::Bytes)
            .ok_or_else(|| hidden("salt.key", key, KEY)),
        (None, Some(name)) => match name.as_str() {
            Some(text) if is_plain_name(text) => Ok(SaltKey::Environment(text.to_owned())),
            _ => Err(invalid(
                "salt.key_env",
                name,
                "the name of an environment variable",
            )),
        },
        _ => return None,
    })
}

/// A feed's `key` or `key_env`, read from its fields; `null` is as good as absence. Errors tell a key's length alone.
pub(crate) fn feed_key(fields: &Map<String, Value>) -> Result<Option<SaltKey>, ConfigError> {
    let field = |name| fields.get(name).filter(|value| !value.is_null());
    match (field("key"), field("key_env")) {
        (None, None) => Ok(None),
        (Some(key), None) => (key.as_str())
            .and_then(SaltKey::from_hex)
            .map(|key| Some(SaltKey::Bytes(key)))
            .ok_or_else(|| hidden("engines.feed.key", key, KEY)),
        (None, Some(name)) => match name.as_str() {
            Some(text) if is_plain_name(text) => Ok(Some(SaltKey::Environment(text.to_owned()))),
            _ => Err(invalid(
                "engines.feed.key_env",
                name,
                "the name of an environment variable",
            )),
        },
        (Some(_), Some(_)) => Err(ConfigError::Conflict {
            field: "engines.feed",
            rule: "it takes either `key` or `key_env`",
        }),
    }
}

/// An error about a value that may be a secret.
fn hidden(field: &'static str, value: &Value, limit: &str) -> ConfigError {
    let value = match value {
        Value::String(text) => format!("a string of {} bytes", text.len()),
        Value::Object(_) => "this object".to_owned(),
        _ => "this value".to_owned(),
    };
    ConfigError::Invalid {
        field,
        value,
        limit: limit.to_owned(),
    }
}

/// Where Envoy's `jwt_authn` keeps what it has verified.
const JWT_AUTHN_NAMESPACE: &str = "envoy.filters.http.jwt_authn";
const EITHER_KEY: &str = "an object with either `key` or `key_env`, and perhaps `open_paths`";
/// What clients ask before they chat: which models there are, and whether the engine lives (vLLM's and SGLang's name for it).
const DEFAULT_OPEN_PATHS: [&str; 2] = ["/v1/models", "/health"];
const PART: &str = "a string of 1 to 256 characters";
pub(crate) const KEY: &str = "64 to 256 hexadecimal digits (try `openssl rand -hex 32`)";
const MAX_PART_CHARS: usize = 256;
const MAX_CLAIM_DEPTH: usize = 8;
const MIN_KEY_BYTES: usize = 32;
const MAX_KEY_BYTES: usize = 128;
