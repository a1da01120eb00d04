//! Checks of single values. Each names its field, the value and what would be accepted.

use foreword_ordering::Experiment;
use serde_json::{Map, Value};

use super::ConfigError;

/// A list of exact paths, of which there must be at least so many.
pub(super) fn paths(
    field: &'static str,
    least: usize,
    value: &Value,
) -> Result<Vec<String>, ConfigError> {
    let list = value
        .as_array()
        .filter(|list| (least..=MAX_ROUTES).contains(&list.len()));
    let Some(list) = list else {
        let limit = format!("a list of {least} to {MAX_ROUTES} paths");
        return Err(invalid(field, value, limit));
    };
    list.iter()
        .map(|route| match route.as_str() {
            Some(path)
                if path.starts_with('/')
                    && path.len() <= MAX_ROUTE_BYTES
                    && path.bytes().all(|byte| byte.is_ascii_graphic())
                    && !path.contains(['?', '#', '%']) =>
            {
                Ok(path.to_owned())
            }
            _ => Err(invalid(
                field,
                route,
                format!(
                    "a path of at most {MAX_ROUTE_BYTES} visible ASCII characters that begins with \"/\", has no query \
                     and no \"%\""
                ),
            )),
        })
        .collect()
}

/// A list of paths of which a part in braces may stand for what differs.
pub(super) fn routes(value: &Value) -> Result<Vec<String>, ConfigError> {
    let routes = paths("routes", 1, value)?;
    for route in &routes {
        if !is_pattern(route) {
            let limit = "a path in which braces enclose a name of 1 to 32 lower-case letters, one in each part between \"/\"";
            return Err(invalid("routes", &Value::from(route.as_str()), limit));
        }
    }
    Ok(routes)
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

pub(super) fn max_body_bytes(value: &Value) -> Result<u32, ConfigError> {
    value
        .as_u64()
        .and_then(|bytes| u32::try_from(bytes).ok())
        .filter(|bytes| (1..=LIMIT_MAX_BODY_BYTES).contains(bytes))
        .ok_or_else(|| {
            let limit = format!("a whole number from 1 to {LIMIT_MAX_BODY_BYTES}");
            invalid("max_body_bytes", value, limit)
        })
}

/// Requests by which others are explained.
pub(super) fn explained(value: &Value) -> Result<u32, ConfigError> {
    let fields = value.as_object();
    let fields = fields.filter(|fields| fields.keys().all(|key| key == "requests"));
    let Some(fields) = fields else {
        return Err(invalid(
            "explain",
            value,
            "an object with the field requests",
        ));
    };
    let Some(value) = fields.get("requests") else {
        return Ok(super::DEFAULT_EXPLAINED);
    };
    let requests = value
        .as_u64()
        .and_then(|requests| u32::try_from(requests).ok());
    requests
        .filter(|requests| *requests <= MAX_EXPLAINED)
        .ok_or_else(|| {
            let limit = format!("a whole number from 0 to {MAX_EXPLAINED}");
            invalid("explain.requests", value, limit)
        })
}

/// Requests kept for explanations.
const MAX_EXPLAINED: u32 = 1_024;

/// One of two words.
pub(super) fn one_of<T>(
    field: &'static str,
    value: &Value,
    choices: [(&str, T); 2],
) -> Result<T, ConfigError> {
    let limit = choices.each_ref().map(|(word, _)| format!("\"{word}\""));
    let mut choices = choices.into_iter();
    choices
        .find(|(word, _)| value.as_str() == Some(word))
        .map(|(_, choice)| choice)
        .ok_or_else(|| invalid(field, value, limit.join(" or ")))
}

pub(crate) fn switch(field: &'static str, value: &Value) -> Result<bool, ConfigError> {
    value
        .as_bool()
        .ok_or_else(|| invalid(field, value, "true or false"))
}

/// `{"name": …, "control_share": …}`.
pub(super) fn experiment(value: &Value) -> Result<Experiment, ConfigError> {
    let fields = object("experiment", value, &["name", "control_share"])?;
    let name = match fields.get("name") {
        None => DEFAULT_EXPERIMENT,
        Some(name) => name
            .as_str()
            .filter(|name| is_plain_name(name))
            .ok_or_else(|| {
                let limit =
                    format!("1 to {MAX_NAME_BYTES} ASCII letters, digits, \"-\", \"_\" or \".\"");
                invalid("experiment.name", name, limit)
            })?,
    };
    let share = fields.get("control_share").unwrap_or(&Value::Null);
    share
        .as_f64()
        .and_then(|share| Experiment::new(name, share))
        .ok_or_else(|| invalid("experiment.control_share", share, "a number from 0 to 1"))
}

/// The filter removes such a header from requests and writes its own, so it must not be one that HTTP itself needs.
pub(super) fn own_header(field: &'static str, value: &Value) -> Result<String, ConfigError> {
    let name = header_name(field, value)?;
    if name.starts_with("x-") {
        Ok(name)
    } else {
        Err(invalid(field, value, r#"a name that begins with "x-""#))
    }
}

pub(crate) fn header_name(field: &'static str, value: &Value) -> Result<String, ConfigError> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    match value.as_str() {
        Some(name)
            if (1..=MAX_HEADER_NAME_BYTES).contains(&name.len()) && name.bytes().all(token) =>
        {
            Ok(name.to_ascii_lowercase())
        }
        _ => {
            let limit = format!("a header name of 1 to {MAX_HEADER_NAME_BYTES} characters");
            Err(invalid(field, value, limit))
        }
    }
}

/// An object that has none but these fields.
pub(crate) fn object<'v>(
    field: &'static str,
    value: &'v Value,
    known: &[&str],
) -> Result<&'v Map<String, Value>, ConfigError> {
    value
        .as_object()
        .filter(|fields| fields.keys().all(|key| known.contains(&key.as_str())))
        .ok_or_else(|| {
            let limit = format!("an object with the fields {}", known.join(", "));
            invalid(field, value, limit)
        })
}

/// A name that is safe in configurations, headers and logs.
pub(super) fn is_plain_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

pub(crate) fn invalid(field: &'static str, value: &Value, limit: impl Into<String>) -> ConfigError {
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

/// A worker's Wasm memory never shrinks and aborts near 1 GiB; a body needs a few times its own size there.
const LIMIT_MAX_BODY_BYTES: u32 = 32 << 20;
const DEFAULT_EXPERIMENT: &str = "default";
const MAX_ROUTES: usize = 64;
const MAX_ROUTE_BYTES: usize = 256;
const MAX_HEADER_NAME_BYTES: usize = 64;
const MAX_NAME_BYTES: usize = 64;
const MAX_QUOTED_CHARS: usize = 80;
