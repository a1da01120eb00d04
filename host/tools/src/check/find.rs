//! Finds the configuration of Foreword's filter (the "plugin configuration") in a file: alone, or within a
//! configuration of Envoy, Istio or Envoy Gateway, or within a ConfigMap.
//!
//! | document | the configuration is |
//! | --- | --- |
//! | of none of the following kinds | the document |
//! | Envoy's Wasm or dynamic-module filter | its `configuration` or `filter_config`, JSON in a string or an object |
//! | `WasmPlugin`, `TrafficExtension` | `pluginConfig` |
//! | `EnvoyExtensionPolicy` | `config` of one of `wasm` |
//! | a ConfigMap | in a document within one of its texts |
//!
//! Envoy's filter may be in any resource or an `EnvoyFilter`. Filters of these kinds whose name and module do not
//! contain `foreword` are skipped.

use anyhow::{Context, bail};
use serde_json::{Map, Value};

/// A configuration of Foreword's filter, found in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FoundConfig {
    /// Path of the configuration in the file, such as `document 2.spec.pluginConfig`; empty if it is the whole file.
    pub(super) place: String,
    /// The configuration as JSON, as the filter receives it.
    pub(super) configuration: String,
}

/// Returns all configurations of Foreword's filter in `text`.
///
/// # Errors
/// Returns an error if the text is not YAML, or contains no configuration of Foreword's filter.
pub(super) fn configurations(text: &str) -> anyhow::Result<Vec<FoundConfig>> {
    // The filter must receive the original JSON, since only that shows a duplicate field.
    if serde_json::from_str::<Value>(text).is_ok_and(|value| !is_resource(&value))
        || text.trim().is_empty()
    {
        return Ok(vec![FoundConfig {
            place: String::new(),
            configuration: text.to_owned(),
        }]);
    }
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).context("neither JSON nor YAML")?;
    let mut found = Vec::new();
    let several = documents.len() > 1;
    for (at, document) in documents.iter().enumerate() {
        let place = match several {
            true => format!("document {}", at + 1),
            false => String::new(),
        };
        if is_resource(document) {
            search(&place, document, &mut found);
        } else if document.is_object() {
            found.push(FoundConfig {
                place,
                configuration: document.to_string(),
            });
        }
    }
    if found.is_empty() {
        bail!("it holds no configuration of Foreword's filter");
    }
    Ok(found)
}

/// Returns whether the document is a resource (of Envoy, Istio or Kubernetes) that may contain a configuration of
/// Foreword's filter. Any other document is taken as such a configuration itself, valid or not.
fn is_resource(document: &Value) -> bool {
    [
        "kind",
        "static_resources",
        "dynamic_resources",
        "resources",
        "@type",
        "http_filters",
        "typed_config",
    ]
    .iter()
    .any(|key| document.get(key).is_some())
}

fn search(place: &str, value: &Value, found: &mut Vec<FoundConfig>) {
    match value {
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                search(&format!("{place}[{at}]"), item, found);
            }
        }
        Value::Object(fields) => {
            if let Some((key, configuration)) = held(fields) {
                found.push(FoundConfig {
                    place: below(place, key),
                    configuration: text_of(configuration),
                });
                return;
            }
            for (key, value) in fields {
                search(&below(place, key), value, found);
            }
        }
        // A string may be a file in a ConfigMap.
        Value::String(text) if text.contains('\n') => {
            let documents: Result<Vec<Value>, _> = serde_saphyr::from_multiple(text);
            for document in documents.unwrap_or_default() {
                if is_resource(&document) {
                    search(place, &document, found);
                }
            }
        }
        _ => {}
    }
}

/// Returns the path of the field `key` of the object with the path `place`.
pub(super) fn below(place: &str, key: &str) -> String {
    match place {
        "" => key.to_owned(),
        place => format!("{place}.{key}"),
    }
}

/// Returns the configuration of Foreword's filter that an object contains and the name of its field; `None` if the
/// object does not configure Foreword's filter.
fn held(fields: &Map<String, Value>) -> Option<(&'static str, &Value)> {
    const HOLDERS: [(&str, &str); 4] = [
        // Envoy's PluginConfig, whose module is in `vm_config`; its dynamic module; Istio; Envoy Gateway.
        ("configuration", "vm_config"),
        ("filter_config", "dynamic_module_config"),
        ("pluginConfig", "url"),
        ("config", "code"),
    ];
    HOLDERS.into_iter().find_map(|(key, beside)| {
        let configuration = fields.get(key).filter(|_| fields.contains_key(beside))?;
        let others = fields.iter().filter(|(name, _)| *name != key);
        let mut said = others.map(|(_, value)| value.to_string().to_ascii_lowercase());
        let is_ours = said.any(|text| text.contains("foreword"));
        is_ours.then_some((key, configuration))
    })
}

/// Returns a configuration of Foreword's filter as the filter receives it: a string's text, or an object as JSON. A
/// value packed with an `@type` is unpacked.
fn text_of(configuration: &Value) -> String {
    let kind = configuration.get("@type");
    let packed = kind.and_then(|_| configuration.get("value"));
    match packed.unwrap_or(configuration) {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(text: &str) -> Vec<(String, String)> {
        let found = configurations(text).unwrap();
        found
            .into_iter()
            .map(|found| (found.place, found.configuration))
            .collect()
    }

    #[test]
    fn a_file_that_is_the_configuration_is_taken_as_it_is_written() {
        let twice = r#"{"mode": "order", "mode": "order"}"#;
        assert_eq!(places(twice), [(String::new(), twice.to_owned())]);
        assert_eq!(
            places("mode: order\n"),
            [(String::new(), r#"{"mode":"order"}"#.to_owned())]
        );
        assert_eq!(places(""), [(String::new(), String::new())]);
    }

    #[test]
    fn the_shipped_files_hold_one_each() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../gateway-config/");
        for (file, end) in [
            ("envoy/envoy.yaml", "typed_config.config.configuration"),
            ("envoy/dynamic-module.yaml", "typed_config.filter_config"),
            ("istio/wasmplugin.yaml", "spec.pluginConfig"),
            ("istio/trafficextension.yaml", "spec.wasm.pluginConfig"),
            ("istio/envoyfilter.yaml", "config.configuration"),
            (
                "envoy-gateway/envoyextensionpolicy.yaml",
                "spec.wasm[0].config",
            ),
        ] {
            let text = std::fs::read_to_string(format!("{folder}{file}")).unwrap();
            let found = places(&text);
            let [(place, configuration)] = &found[..] else {
                panic!("{file}: {found:?}");
            };
            assert!(place.ends_with(end), "{file}: {place}");
            let value: Value = serde_json::from_str(configuration).unwrap();
            assert!(value["routes"].is_array(), "{file}: {value}");
        }
    }

    #[test]
    fn a_config_maps_text_is_searched_and_other_filters_are_not_ours() {
        let filter = |name: &str| {
            format!(
                "  - typed_config: {{config: {{name: {name}, vm_config: {{}}, configuration: {{a: 1}}}}}}\n"
            )
        };
        let envoy = format!(
            "static_resources:\n{}{}",
            filter("other"),
            filter("foreword")
        );
        let indented = envoy.replace('\n', "\n    ");
        let map = format!(
            "kind: ConfigMap\ndata:\n  envoy.yaml: |\n    {indented}\n---\nkind: Service\n"
        );
        assert_eq!(
            places(&map),
            [(
                "document 1.data.envoy.yaml.static_resources[1].typed_config.config.configuration"
                    .to_owned(),
                r#"{"a":1}"#.to_owned()
            )]
        );
        let error = configurations("kind: Service\n").unwrap_err();
        assert!(error.to_string().contains("no configuration"), "{error}");
        assert!(configurations("a: [\n").is_err());
    }
}
