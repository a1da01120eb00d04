//! The part `agreement` of the plugin configuration.

use serde_json::Value;

use super::ConfigError;
use super::fields::Fields;

/// The configuration of the ring buffer through which workers share updates about cached prefixes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgreementConfig {
    /// Name of the ring buffer; `None` to derive the name from the plugin's name, routes, tenant source and engines.
    pub(crate) ring: Option<String>,
    /// Number of updates about cached prefixes that the ring buffer holds; a request publishes about one. With 0,
    /// workers share nothing.
    pub(crate) entries: u32,
    /// True if updates about cached prefixes are exchanged with gateways of other proxies that follow the same engines'
    /// event feeds.
    pub(crate) gateways: bool,
}

impl AgreementConfig {
    /// Reads the part `agreement`; absent fields have their defaults.
    pub(super) fn from_json(value: Option<&Value>) -> Result<Self, ConfigError> {
        let fields = Fields::of("agreement", value, &["ring", "entries", "gateways"])?;
        Ok(Self {
            ring: fields.name("agreement.ring")?,
            entries: fields.number("agreement.entries", 0..=MAX_ENTRIES, DEFAULT_ENTRIES)?,
            gateways: fields.switch("agreement.gateways", true)?,
        })
    }
}

/// Default number of updates in the ring buffer through which workers share them; each takes a few hundred bytes.
const DEFAULT_ENTRIES: u32 = 4096;
const MAX_ENTRIES: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_read_and_have_defaults() {
        let read = |value: Value| AgreementConfig::from_json(Some(&value)).unwrap();
        let default = AgreementConfig::from_json(None).unwrap();
        assert_eq!((default.ring.as_deref(), default.entries), (None, 4096));
        assert!(default.gateways && !read(json!({"gateways": false})).gateways);
        assert_eq!(read(json!({})), default);
        assert_eq!(read(json!({"ring": null})), default);
        let own = read(json!({"ring": "eu-1.b_2", "entries": 0}));
        assert_eq!((own.ring.as_deref(), own.entries), (Some("eu-1.b_2"), 0));
    }

    #[test]
    fn a_wrong_value_is_named_with_its_limit() {
        for (value, words) in [
            (json!(true), ["agreement: true", "an object"]),
            (
                json!({"size": 1}),
                ["agreement: {", "ring, entries, gateways"],
            ),
            (json!({"ring": ""}), ["agreement.ring: \"\"", "1 to 64"]),
            (
                json!({"ring": "a/b"}),
                ["agreement.ring: \"a/b\"", "letters"],
            ),
            (
                json!({"gateways": "no"}),
                ["agreement.gateways: \"no\"", "true or false"],
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
