//! Warns of a chain of Envoy's HTTP filters in which some Envoy releases lose bytes of request bodies, whatever
//! Foreword's configuration.
//!
//! ```text
//!   http_filters: Foreword, Wasm (holds headers) ─▶ … ─▶ ext_proc with request_body_mode FULL_DUPLEX_STREAMED
//! ```
//!
//! Envoy 1.35 to 1.37 lose a chunk of 16 KiB of bodies over 1 MB if a Wasm filter resumes a request while its body
//! arrives, and such an ext_proc follows (Kuadrant/wasm-shim#388). Endpoint pickers of the Gateway API's inference
//! extension are such ext_procs. Foreword resumes later, and with Envoy 1.40 no byte is lost
//! (`tests/tests/ext_proc/picker.rs`), but other releases are not tested. Foreword as a dynamic module or as an
//! external processor is not affected, nor is a picker that buffers.

use serde_json::Value;

/// Returns a warning for each external processor in `text`, YAML or JSON, that streams bodies in both directions and
/// follows Foreword's Wasm filter in the same list of filters. Empty if `text` is neither.
pub(super) fn warnings(text: &str) -> Vec<String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap_or_default();
    let mut found = Vec::new();
    for document in &documents {
        search(document, &mut found);
    }
    found
}

fn search(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| search(item, found)),
        Value::Object(fields) => {
            if let Some(filters) = fields.get("http_filters").and_then(Value::as_array) {
                let ours = filters.iter().position(is_our_wasm);
                let behind = ours.and_then(|at| filters.get(at..)).unwrap_or_default();
                found.extend(behind.iter().filter(|it| is_duplex(it)).map(|filter| {
                    let name = filter["name"].as_str().unwrap_or("an ext_proc");
                    format!(
                        "the ext_proc filter `{name}` behind Foreword's Wasm filter has FULL_DUPLEX_STREAMED bodies: Envoy \
                         1.35 to 1.37 were seen to lose 16 KiB of bodies over 1 MB in such chains. Use Envoy 1.40, with \
                         which this is tested, or let it buffer (BUFFERED), or use Foreword's dynamic module or external \
                         processor"
                    )
                }));
            }
            fields.values().for_each(|value| search(value, found));
        }
        // A string may be a file in a ConfigMap.
        Value::String(text) if text.contains("http_filters") => found.extend(warnings(text)),
        _ => {}
    }
}

fn is_our_wasm(filter: &Value) -> bool {
    let typed = &filter["typed_config"];
    has_type(typed, "http.wasm.v3.Wasm")
        && typed.to_string().to_ascii_lowercase().contains("foreword")
}

fn is_duplex(filter: &Value) -> bool {
    let typed = &filter["typed_config"];
    has_type(typed, "ext_proc.v3.ExternalProcessor")
        && typed["processing_mode"]["request_body_mode"] == "FULL_DUPLEX_STREAMED"
}

fn has_type(typed: &Value, name: &str) -> bool {
    let kind = typed["@type"].as_str();
    kind.is_some_and(|kind| kind.ends_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(filters: [&str; 2]) -> usize {
        let list = filters.map(|filter| {
            match filter {
            "wasm" => "{name: a, typed_config: {\"@type\": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, config: {name: foreword}}}".to_owned(),
            "other" => "{name: b, typed_config: {\"@type\": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, config: {name: waf}}}".to_owned(),
            mode => format!("{{name: picker, typed_config: {{\"@type\": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor, processing_mode: {{request_body_mode: {mode}}}}}}}"),
        }
        });
        let [first, second] = list;
        warnings(&format!(
            "static_resources:\n- http_filters:\n  - {first}\n  - {second}\n"
        ))
        .len()
    }

    #[test]
    fn only_our_wasm_before_a_streaming_processor_is_warned_of() {
        assert_eq!(chain(["wasm", "FULL_DUPLEX_STREAMED"]), 1);
        assert_eq!(chain(["wasm", "BUFFERED"]), 0);
        assert_eq!(chain(["other", "FULL_DUPLEX_STREAMED"]), 0);
        assert_eq!(chain(["FULL_DUPLEX_STREAMED", "wasm"]), 0);
    }

    #[test]
    fn a_config_maps_file_is_searched_and_the_shipped_chains_are_sound() {
        let envoy = "http_filters: [{typed_config: {\"@type\": x/http.wasm.v3.Wasm, config: {name: Foreword}}}, {name: epp, typed_config: {\"@type\": x/ext_proc.v3.ExternalProcessor, processing_mode: {request_body_mode: FULL_DUPLEX_STREAMED}}}]";
        let map = format!("kind: ConfigMap\ndata:\n  envoy.yaml: |\n    {envoy}\n");
        let told = warnings(&map);
        assert!(told.len() == 1 && told[0].contains("`epp`"), "{told:?}");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../gateway-config/");
        for file in [
            "envoy/envoy.yaml",
            "envoy/ext-proc.yaml",
            "envoy/engines.yaml",
        ] {
            let text = std::fs::read_to_string(format!("{folder}{file}")).unwrap();
            assert_eq!(warnings(&text), [""; 0], "{file}");
        }
    }
}
