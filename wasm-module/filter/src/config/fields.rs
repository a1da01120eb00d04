//! Reads JSON objects of the plugin configuration.
//!
//! A caller gives a field's whole path, its range and its default; [`Fields`] finds the value under the last part of
//! the path. Each error names the field, the value and the accepted values.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::ConfigError;
use super::salt_key::SaltKey;

/// The fields of one JSON object of the configuration; no fields if the object is absent. A caller names a field by its
/// path from the configuration's root, such as `retrieval.k`; the last part (`k`) is looked up in this object.
pub(super) struct Fields<'v>(Option<&'v Map<String, Value>>);

impl<'v> Fields<'v> {
    /// Wraps an optional object; an absent one has no fields. `field` is its path. Returns an error if the value is not
    /// an object, or has a field that is not in `known`.
    pub(super) fn of(
        field: &'static str,
        value: Option<&'v Value>,
        known: &[&str],
    ) -> Result<Self, ConfigError> {
        value.map_or(Ok(Self(None)), |value| {
            Self::read(field, value, value, known)
        })
    }

    /// Wraps an object that may contain a secret. Returns an error, which does not quote the value, if the value is not
    /// an object, or has a field that is not in `known`. `field` is the object's path.
    pub(super) fn secret(
        field: &'static str,
        value: &'v Value,
        known: &[&str],
    ) -> Result<Self, ConfigError> {
        Self::read(field, value, &Value::from(HIDDEN), known)
    }

    fn read(
        field: &'static str,
        value: &'v Value,
        shown: &Value,
        known: &[&str],
    ) -> Result<Self, ConfigError> {
        let fields = value
            .as_object()
            .filter(|fields| fields.keys().all(|key| known.contains(&key.as_str())));
        let fields = fields.ok_or_else(|| {
            let limit = format!("an object with the fields {}", known.join(", "));
            invalid(field, shown, limit)
        })?;
        Ok(Self(Some(fields)))
    }

    /// Wraps the fields of the configuration's root object.
    pub(super) fn all(fields: &'v Map<String, Value>) -> Self {
        Self(Some(fields))
    }

    pub(super) fn len(&self) -> usize {
        self.0.map_or(0, Map::len)
    }

    /// Returns the value of the field with this path, which may be `null`; `None` if the field is absent.
    pub(super) fn get(&self, field: &str) -> Option<&'v Value> {
        let name = field.rsplit('.').next().unwrap_or_default();
        self.0?.get(name)
    }

    /// Returns the value of the field with this path; `None` if the field is absent or `null`.
    pub(super) fn given(&self, field: &str) -> Option<&'v Value> {
        self.get(field).filter(|value| !value.is_null())
    }

    /// Reads a whole number; `default` if the field is absent. Returns an error if the value is not a whole number
    /// within `range`.
    pub(super) fn number<T>(
        &self,
        field: &'static str,
        range: RangeInclusive<T>,
        default: T,
    ) -> Result<T, ConfigError>
    where
        T: TryFrom<u64> + PartialOrd + Display,
    {
        self.get(field)
            .map_or(Ok(default), |value| number(field, value, range))
    }

    pub(super) fn switch(&self, field: &'static str, default: bool) -> Result<bool, ConfigError> {
        self.get(field).map_or(Ok(default), |value| {
            let switch = value.as_bool();
            switch.ok_or_else(|| invalid(field, value, "true or false"))
        })
    }

    /// Reads one of two words and returns its meaning; the first one's if the field is absent. Returns an error for any
    /// other value.
    pub(super) fn one_of<T>(
        &self,
        field: &'static str,
        [default, other]: [(&str, T); 2],
    ) -> Result<T, ConfigError> {
        let limit = || format!("\"{}\" or \"{}\"", default.0, other.0);
        match self.get(field).map(|value| (value, value.as_str())) {
            None => Ok(default.1),
            Some((_, Some(word))) if word == default.0 => Ok(default.1),
            Some((_, Some(word))) if word == other.0 => Ok(other.1),
            Some((value, _)) => Err(invalid(field, value, limit())),
        }
    }

    /// Reads a text of `least` to [`MAX_TEXT_CHARS`] characters; `None` if the field is absent or `null`.
    pub(super) fn text(
        &self,
        field: &'static str,
        least: usize,
    ) -> Result<Option<String>, ConfigError> {
        let is_text = |text: &str| (least..=MAX_TEXT_CHARS).contains(&text.chars().count());
        let limit = || format!("a text of {least} to {MAX_TEXT_CHARS} characters");
        let read = |value| string(field, value, is_text, limit);
        self.given(field).map(read).transpose()
    }

    /// Reads a name of ASCII letters, digits, `-`, `_` and `.`, which is safe in configurations, headers and logs;
    /// `None` if the field is absent or `null`.
    pub(super) fn name(&self, field: &'static str) -> Result<Option<String>, ConfigError> {
        self.given(field)
            .map(|value| name(field, value))
            .transpose()
    }

    /// Reads the name of an Envoy cluster; `None` if the field is absent or `null`.
    pub(super) fn cluster(&self, field: &'static str) -> Result<Option<String>, ConfigError> {
        let is_cluster = |name: &str| {
            (1..=MAX_CLUSTER_BYTES).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let read = |value| string(field, value, is_cluster, || CLUSTER.to_owned());
        self.given(field).map(read).transpose()
    }

    /// Reads the name of an Envoy cluster; returns an error if the field is absent or `null`.
    pub(super) fn required_cluster(&self, field: &'static str) -> Result<String, ConfigError> {
        let cluster = self.cluster(field)?;
        cluster.ok_or_else(|| invalid(field, &Value::Null, CLUSTER))
    }

    /// Reads the path of another server's API; `None` if the field is absent, but an error if it is `null`.
    pub(super) fn path(&self, field: &'static str) -> Result<Option<String>, ConfigError> {
        let limit = || {
            format!(
                "a path of at most {MAX_PATH_BYTES} visible ASCII characters that begins with \"/\""
            )
        };
        let read = |value| string(field, value, is_path, limit);
        self.get(field).map(read).transpose()
    }

    /// Reads a list of `least` to [`MAX_PATHS`] request paths, without query, fragment and `%`; `default` if the field
    /// is absent.
    pub(super) fn paths(
        &self,
        field: &'static str,
        least: usize,
        default: impl FnOnce() -> Vec<String>,
    ) -> Result<Vec<String>, ConfigError> {
        let Some(value) = self.get(field) else {
            return Ok(default());
        };
        let list = value.as_array();
        let list = list.filter(|list| (least..=MAX_PATHS).contains(&list.len()));
        let list = list.ok_or_else(|| {
            let limit = format!("a list of {least} to {MAX_PATHS} paths");
            invalid(field, value, limit)
        })?;
        let is_exact = |path: &str| is_path(path) && !path.contains(['?', '#', '%']);
        let limit = || {
            format!(
                "a path of at most {MAX_PATH_BYTES} visible ASCII characters that begins with \"/\", has no query \
                 and no \"%\""
            )
        };
        list.iter()
            .map(|path| string(field, path, is_exact, limit))
            .collect()
    }

    /// Reads a list of at least one request path; `default` if the field is absent. In each part between slashes, one
    /// name in braces may stand for any text.
    pub(super) fn routes(
        &self,
        field: &'static str,
        default: impl FnOnce() -> Vec<String>,
    ) -> Result<Vec<String>, ConfigError> {
        let routes = self.paths(field, 1, default)?;
        match routes.iter().find(|route| !is_pattern(route)) {
            None => Ok(routes),
            Some(route) => {
                let limit = "a path in which braces enclose a name of 1 to 32 lower-case letters, one in each part between \"/\"";
                Err(invalid(field, &Value::from(route.as_str()), limit))
            }
        }
    }

    /// Reads the name of one of the filter's own headers; `default` if the field is absent, `None` if it is `null`. The
    /// filter replaces such headers in requests, so a name that does not begin with `x-` is an error: it might be a
    /// header that HTTP needs.
    pub(super) fn own_header(
        &self,
        field: &'static str,
        default: Option<&str>,
    ) -> Result<Option<String>, ConfigError> {
        match self.get(field) {
            None => Ok(default.map(str::to_owned)),
            Some(Value::Null) => Ok(None),
            Some(value) => {
                let name = header_name(field, value)?;
                if name.starts_with("x-") {
                    Ok(Some(name))
                } else {
                    Err(invalid(field, value, r#"a name that begins with "x-""#))
                }
            }
        }
    }

    /// Reads a bearer token; `None` if the field is absent or `null`. A token is a secret, so errors do not quote it.
    pub(super) fn token(&self, field: &'static str) -> Result<Option<String>, ConfigError> {
        let Some(value) = self.given(field) else {
            return Ok(None);
        };
        let is_token = |token: &&str| {
            (1..=MAX_TOKEN_BYTES).contains(&token.len())
                && token.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let token = value.as_str().filter(is_token).ok_or_else(|| {
            let limit = format!("1 to {MAX_TOKEN_BYTES} visible ASCII characters");
            invalid(field, &Value::from(HIDDEN), limit)
        })?;
        Ok(Some(token.to_owned()))
    }

    /// Reads a secret key from the first field, or from the second the name of an environment variable that contains
    /// one. `None` if neither or both fields are given. Errors show only a key's length.
    pub(super) fn key(
        &self,
        [key, environment]: [&'static str; 2],
    ) -> Option<Result<SaltKey, ConfigError>> {
        match (self.given(key), self.given(environment)) {
            (Some(value), None) => {
                let bytes = value.as_str().and_then(SaltKey::from_hex);
                let bytes = bytes.ok_or_else(|| hidden(key, value, KEY));
                Some(bytes.map(SaltKey::Bytes))
            }
            (None, Some(value)) => {
                let limit = || "the name of an environment variable".to_owned();
                let name = string(environment, value, is_name, limit);
                Some(name.map(SaltKey::Environment))
            }
            _ => None,
        }
    }
}

/// Reads a whole number from a configuration value. `field` is its path, for the error if the value is not a whole
/// number within `range`.
pub(super) fn number<T>(
    field: &'static str,
    value: &Value,
    range: RangeInclusive<T>,
) -> Result<T, ConfigError>
where
    T: TryFrom<u64> + PartialOrd + Display,
{
    let number = value.as_u64().and_then(|number| T::try_from(number).ok());
    number
        .filter(|number| range.contains(number))
        .ok_or_else(|| {
            let limit = format!("a whole number from {} to {}", range.start(), range.end());
            invalid(field, value, limit)
        })
}

/// Reads the name of an HTTP header in any case from a configuration value, and returns it in lower case.
pub(super) fn header_name(field: &'static str, value: &Value) -> Result<String, ConfigError> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_header =
        |name: &str| (1..=MAX_HEADER_BYTES).contains(&name.len()) && name.bytes().all(is_token);
    let limit = || format!("a header name of 1 to {MAX_HEADER_BYTES} characters");
    string(field, value, is_header, limit).map(|name| name.to_ascii_lowercase())
}

/// Reads a name of ASCII letters, digits, `-`, `_` and `.` from a configuration value; such a name is safe in
/// configurations, headers and logs.
pub(super) fn name(field: &'static str, value: &Value) -> Result<String, ConfigError> {
    let limit =
        || format!("a name of 1 to {MAX_NAME_BYTES} ASCII letters, digits, \"-\", \"_\" or \".\"");
    string(field, value, is_name, limit)
}

/// Reads a string for which `fits` returns true. Otherwise returns an error that describes the accepted values by
/// `limit`.
fn string(
    field: &'static str,
    value: &Value,
    fits: impl FnOnce(&str) -> bool,
    limit: impl FnOnce() -> String,
) -> Result<String, ConfigError> {
    match value.as_str() {
        Some(text) if fits(text) => Ok(text.to_owned()),
        _ => Err(invalid(field, value, limit())),
    }
}

fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_part)
}

fn is_path(path: &str) -> bool {
    path.starts_with('/')
        && path.len() <= MAX_PATH_BYTES
        && path.bytes().all(|byte| byte.is_ascii_graphic())
}

fn is_pattern(route: &str) -> bool {
    route.split('/').all(|part| {
        let Some((before, rest)) = part.split_once('{') else {
            return !part.contains('}');
        };
        let Some((name, behind)) = rest.split_once('}') else {
            return false;
        };
        let is_name =
            (1..=32).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase());
        is_name && !before.contains('}') && !behind.contains(['{', '}'])
    })
}

/// Returns the error for a field whose value is not accepted. `limit` describes the accepted values. The error quotes
/// the value, shortened.
pub(super) fn invalid(field: &'static str, value: &Value, limit: impl Into<String>) -> ConfigError {
    let mut value = value.to_string();
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

/// Returns the error for a field whose value is not accepted but may be a secret: it shows only the length of a string.
/// `limit` describes the accepted values.
pub(super) fn hidden(field: &'static str, value: &Value, limit: &str) -> ConfigError {
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

/// Description of the accepted secret keys, for errors.
pub(crate) const KEY: &str = "64 to 256 hexadecimal digits (try `openssl rand -hex 32`)";
/// The text that errors quote in place of a secret.
const HIDDEN: &str = "…";
const CLUSTER: &str = "the name of an Envoy cluster, 1 to 256 visible ASCII characters";
const MAX_CLUSTER_BYTES: usize = 256;
const MAX_HEADER_BYTES: usize = 64;
const MAX_NAME_BYTES: usize = 64;
const MAX_PATH_BYTES: usize = 256;
const MAX_PATHS: usize = 64;
const MAX_QUOTED_CHARS: usize = 80;
const MAX_TEXT_CHARS: usize = 1_024;
const MAX_TOKEN_BYTES: usize = 4_096;
