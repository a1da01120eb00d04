//! The part `bursts` of the plugin configuration.

use foreword_ordering::BurstLimits;
use serde_json::Value;

use super::ConfigError;
use super::fields::Fields;

/// The configuration for bursts: simultaneous requests whose prompts begin with the same documents, which are not
/// cached yet. The first request leads: the engine computes the documents for it. The others follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BurstConfig {
    /// True if requests that begin with the same uncached documents as an earlier one are held until that one's
    /// response begins (mode `hold`). In the mode `report`, they are only counted.
    pub(crate) holds: bool,
    pub(crate) limits: BurstLimits,
}

impl BurstConfig {
    pub(super) fn from_json(value: &Value) -> Result<Self, ConfigError> {
        let known = ["mode", "max_wait_ms", "max_held", "min_tokens"];
        let fields = Fields::of("bursts", Some(value), &known)?;
        let usual = BurstLimits::default();
        Ok(Self {
            holds: fields.one_of("bursts.mode", [("report", false), ("hold", true)])?,
            limits: BurstLimits {
                max_wait_ms: fields.number("bursts.max_wait_ms", 1..=60_000, usual.max_wait_ms)?,
                max_held: fields.number("bursts.max_held", 1..=1_024, usual.max_held)?,
                min_tokens: fields.number("bursts.min_tokens", 1..=1_048_576, usual.min_tokens)?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn it_reports_unless_it_is_to_hold_and_a_wrong_value_is_named() {
        let config = BurstConfig::from_json(&json!({})).unwrap();
        assert!(!config.holds);
        assert_eq!(config.limits.max_wait_ms, 2_000);
        let config = BurstConfig::from_json(&json!({"mode": "hold", "max_held": 1})).unwrap();
        assert!(config.holds);
        assert_eq!(config.limits.max_held, 1);
        for (value, words) in [
            (json!({"mode": "off"}), "bursts.mode: \"off\""),
            (json!({"max_wait_ms": 0}), "bursts.max_wait_ms: 0"),
            (json!({"held": 1}), "bursts"),
        ] {
            let error = BurstConfig::from_json(&value).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
