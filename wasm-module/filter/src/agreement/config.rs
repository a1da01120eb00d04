//! The part `agreement` of the plugin configuration.

use serde_json::Value;

use crate::config::{ConfigError, invalid};

/// The agreement between workers: the ring that they share, and its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgreementConfig {
    /// Name of the ring; `None`: it is derived from the configured tenants and routes.
    pub(crate) ring: Option<String>,
    /// Number of entries that the ring holds, one a request; 0: workers know nothing of each other.
    pub(crate) entries: u32,
}

impl AgreementConfig {
    pub(crate) fn from_json(value: Option<&Value>) -> Result<Self, ConfigError> {
        let mut config = Self {
            ring: None,
            entries: DEFAULT_ENTRIES,
        };
        let Some(value) = value else {
            return Ok(config);
        };
        let fields = value
            .as_object()
            .filter(|fields| fields.keys().all(|key| FIELDS.contains(&key.as_str())));
        let Some(fields) = fields else {
            let limit = format!("an object with the fields {}", FIELDS.join(", "));
            return Err(invalid("agreement", value, limit));
        };
        match fields.get("ring") {
            None | Some(Value::Null) => {}
            Some(value) => match value.as_str() {
                Some(name) if is_name(name) => config.ring = Some(name.to_owned()),
                _ => {
                    let limit = format!(
                        "1 to {MAX_NAME_BYTES} ASCII letters, digits, \"-\", \"_\" or \".\""
                    );
                    return Err(invalid("agreement.ring", value, limit));
                }
            },
        }
        if let Some(value) = fields.get("entries") {
            let entries = value
                .as_u64()
                .and_then(|entries| u32::try_from(entries).ok());
            config.entries = entries
                .filter(|entries| *entries <= MAX_ENTRIES)
                .ok_or_else(|| {
                    let limit = format!("a whole number from 0 to {MAX_ENTRIES}");
                    invalid("agreement.entries", value, limit)
                })?;
        }
        Ok(config)
    }
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

const FIELDS: [&str; 2] = ["ring", "entries"];

/// Default size of the ring; an entry takes a few hundred bytes.
const DEFAULT_ENTRIES: u32 = 4096;
const MAX_ENTRIES: u32 = 1 << 16;
const MAX_NAME_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_read_and_have_defaults() {
        let read = |value: Value| AgreementConfig::from_json(Some(&value)).unwrap();
        let default = AgreementConfig::from_json(None).unwrap();
        assert_eq!((default.ring.as_deref(), default.entries), (None, 4096));
        assert_eq!(read(json!({})), default);
        assert_eq!(read(json!({"ring": null})), default);
        let own = read(json!({"ring": "eu-1.b_2", "entries": 0}));
        assert_eq!((own.ring.as_deref(), own.entries), (Some("eu-1.b_2"), 0));
    }

    #[test]
    fn a_wrong_value_is_named_with_its_limit() {
        for (value, words) in [
            (json!(true), ["agreement: true", "an object"]),
            (json!({"size": 1}), ["agreement: {", "ring, entries"]),
            (json!({"ring": ""}), ["agreement.ring: \"\"", "1 to 64"]),
            (
                json!({"ring": "a/b"}),
                ["agreement.ring: \"a/b\"", "letters"],
            ),
            (
                json!({"entries": -1}),
                ["agreement.entries: -1", "0 to 65536"],
            ),
            (
                json!({"entries": 65537}),
                ["agreement.entries: 65537", "0 to 65536"],
            ),
        ] {
            let error = AgreementConfig::from_json(Some(&value)).unwrap_err();
            let error = error.to_string();
            for word in words {
                assert!(error.contains(word), "{error} lacks {word}");
            }
        }
    }
}
