//! The parts `tenant` and `salt` of the plugin configuration: where the filter reads a request's tenant, and the key of
//! the tenants' cache salts.

use serde_json::Value;

use super::ConfigError;
use super::fields::{Fields, header_name, hidden, invalid};
use super::salt_key::SaltKey;

/// Where the filter reads the tenant of a request. It is never the body, since clients could then choose their tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantSource {
    /// The request header with this lower-case name. The proxy must set or check it before the filter reads it.
    Header(String),
    /// A claim of a JWT that Envoy's filter `jwt_authn` has verified. The value is the path to the claim in the
    /// request's dynamic metadata.
    Claim(Vec<String>),
}

/// Reads the part `tenant`: `{"header": …}` or `{"claim": …, "payload": …, "namespace": …}`. Returns an error for
/// anything else.
pub(super) fn source(value: &Value) -> Result<TenantSource, ConfigError> {
    let known = ["header", "claim", "payload", "namespace"];
    let fields = Fields::of("tenant", Some(value), &known)?;
    match (fields.get("header"), fields.get("claim")) {
        (Some(name), None) if fields.len() == 1 => {
            header_name("tenant.header", name).map(TenantSource::Header)
        }
        (None, Some(claim)) => {
            let part = |field, default: Option<&str>| match (fields.get(field), default) {
                (None, Some(default)) => Ok(default.to_owned()),
                (value, _) => {
                    let value = value.unwrap_or(&Value::Null);
                    path_part(value).ok_or_else(|| invalid(field, value, PART))
                }
            };
            let mut path = vec![
                part("tenant.namespace", Some(JWT_AUTHN_NAMESPACE))?,
                part("tenant.payload", None)?,
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

/// Returns the path to a JWT claim within the verified payload. The configuration has the claim's name, or a list of
/// names for a nested claim. Dots are part of a name.
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
    // The path is passed to the proxy with zero bytes between its parts.
    let part = value.as_str()?;
    let fits = (1..=MAX_PART_CHARS).contains(&part.chars().count());
    (fits && !part.contains('\0')).then(|| part.to_owned())
}

/// Reads the part `salt`: `{"key": …}` or `{"key_env": …}`, both with an optional `open_paths`. Returns the key, and
/// the paths of requests that are forwarded without a salt. Errors show only a key's length.
pub(super) fn salt(value: &Value) -> Result<(SaltKey, Vec<String>), ConfigError> {
    let either = || hidden("salt", value, EITHER_KEY);
    let fields = Fields::secret("salt", value, &["key", "key_env", "open_paths"]);
    let fields = fields.map_err(|_| either())?;
    if fields.get("key").is_some() == fields.get("key_env").is_some() {
        return Err(either());
    }
    let key = fields.key(["salt.key", "salt.key_env"]);
    let default = || DEFAULT_OPEN_PATHS.map(str::to_owned).to_vec();
    Ok((
        key.unwrap_or_else(|| Err(either()))?,
        fields.paths("salt.open_paths", 0, default)?,
    ))
}

/// The namespace of dynamic metadata in which Envoy's `jwt_authn` stores verified claims.
const JWT_AUTHN_NAMESPACE: &str = "envoy.filters.http.jwt_authn";
const EITHER_KEY: &str = "an object with either `key` or `key_env`, and perhaps `open_paths`";
/// The default of `salt.open_paths`: paths that clients request before a chat, for the list of models and the engine's
/// health (as in vLLM and SGLang).
const DEFAULT_OPEN_PATHS: [&str; 2] = ["/v1/models", "/health"];
const PART: &str = "a string of 1 to 256 characters";
const MAX_PART_CHARS: usize = 256;
const MAX_CLAIM_DEPTH: usize = 8;
