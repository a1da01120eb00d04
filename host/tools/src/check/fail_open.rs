//! Finds settings by which requests bypass Foreword while it is unavailable. If the gateway writes salts, such a
//! request reaches the engine with a salt of the client's choice, or none.
//!
//! | resource | setting that fails open |
//! | --- | --- |
//! | Envoy's ext_proc filter, in any resource | `failure_mode_allow: true` |
//! | Envoy's Wasm filter | `failure_policy: FAIL_OPEN`, `fail_open: true` |
//! | `EnvoyExtensionPolicy` | `failOpen: true` |
//! | `WasmPlugin`, `TrafficExtension` | `failStrategy: FAIL_OPEN` |
//! | `AgentgatewayPolicy`, agentgateway's file, `InferencePool` | `failureMode: FailOpen` |

use super::find::below;
use serde_json::Value;

/// The settings in a file that decide whether requests bypass Foreword while it is unavailable.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Failures {
    /// True if the file has at least one setting that decides whether requests bypass Foreword while it is unavailable,
    /// whatever its value. Such a file need not contain Foreword's configuration: that of an external processor is in
    /// another file.
    pub(super) has_setting: bool,
    /// The settings in the file that let requests bypass Foreword while it is unavailable ("fail open"), each as
    /// `path: value`.
    pub(super) open: Vec<String>,
}

/// Searches `text`, which is YAML or JSON, for settings that decide whether requests bypass Foreword while it is
/// unavailable. Finds none if `text` is neither.
pub(super) fn failures(text: &str) -> Failures {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap_or_default();
    let mut found = Failures::default();
    for document in &documents {
        search("", document, &mut found);
    }
    found
}

fn search(place: &str, value: &Value, found: &mut Failures) {
    match value {
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                search(&format!("{place}[{at}]"), item, found);
            }
        }
        Value::Object(fields) => {
            let kind = fields.get("@type").and_then(Value::as_str);
            let is_processor =
                kind.is_some_and(|kind| kind.ends_with("ext_proc.v3.ExternalProcessor"));
            for (name, value) in fields {
                let place = below(place, name);
                if let Some(is_open) = is_open(name, value, is_processor) {
                    found.has_setting = true;
                    let setting = is_open.then(|| format!("{place}: {value}"));
                    found.open.extend(setting);
                } else {
                    search(&place, value, found);
                }
            }
        }
        // A string may be a file in a ConfigMap.
        Value::String(text) if text.contains("http_filters") => {
            let inside = failures(text);
            found.has_setting |= inside.has_setting;
            let open = inside.open.into_iter();
            let open = open.map(|setting| format!("{place}: {setting}"));
            found.open.extend(open);
        }
        _ => {}
    }
}

/// Returns whether the field `name` with this `value` lets requests bypass Foreword while it is unavailable. `None` if
/// the field does not decide this, or its value has the wrong type. `is_processor` is true if the field belongs to an
/// ext_proc filter: `failure_mode_allow` counts only there.
fn is_open(name: &str, value: &Value, is_processor: bool) -> Option<bool> {
    match name {
        "failure_mode_allow" if is_processor => value.as_bool(),
        "fail_open" | "failOpen" => value.as_bool(),
        "failureMode" | "failStrategy" | "failure_policy" => {
            let word = value.as_str()?.replace('_', "");
            Some(word.eq_ignore_ascii_case("failopen"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_fail_open_is_found_where_it_stands() {
        let processor = r#"{http_filters: [{typed_config: {"@type": x/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor, failure_mode_allow: true}}]}"#;
        let map = format!("kind: ConfigMap\ndata:\n  envoy.yaml: |\n    {processor}\n");
        for (text, open) in [
            (
                processor,
                "http_filters[0].typed_config.failure_mode_allow: true",
            ),
            (
                &map,
                "data.envoy.yaml: http_filters[0].typed_config.failure_mode_allow: true",
            ),
            (
                "spec: {extProc: [{failOpen: true}]}",
                "spec.extProc[0].failOpen: true",
            ),
            (
                "spec: {failStrategy: FAIL_OPEN}",
                "spec.failStrategy: \"FAIL_OPEN\"",
            ),
            (
                "policies: {extProc: {failureMode: failOpen}}",
                "policies.extProc.failureMode: \"failOpen\"",
            ),
            (
                "config: {failure_policy: FAIL_OPEN}",
                "config.failure_policy: \"FAIL_OPEN\"",
            ),
            (
                "spec: {endpointPickerRef: {failureMode: FailOpen}}",
                "spec.endpointPickerRef.failureMode: \"FailOpen\"",
            ),
        ] {
            let expected = Failures {
                has_setting: true,
                open: vec![open.to_owned()],
            };
            assert_eq!(failures(text), expected, "{text}");
        }
        let closed = Failures {
            has_setting: true,
            open: Vec::new(),
        };
        assert_eq!(failures("spec: {wasm: [{failOpen: false}]}"), closed);
        assert_eq!(failures("config: {failure_policy: FAIL_RELOAD}"), closed);
        for other in [
            "{}",
            "spec: {extAuthz: {failure_mode_allow: true}}",
            "noise: [",
        ] {
            assert_eq!(failures(other), Failures::default(), "{other}");
        }
    }
}
