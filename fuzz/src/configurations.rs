//! A configuration of the filter or of the core: what is taken must work, and what is refused must say why.

use crate::bodies::is_json;
use crate::filter::Proxy;
use foreword_filter::Plugin;
use foreword_ordering::{Config, Orderer, Tenant};

pub(crate) fn run(configuration: &[u8]) {
    if let Err(error) = Plugin::load(&Proxy::default(), configuration) {
        assert!(!error.to_string().is_empty());
    }
    let config = match Config::from_json(configuration) {
        Ok(config) => config,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let mut orderer = Orderer::new(config);
    for ids in [["a", "b"], ["b", "a"], ["a", "b"]] {
        let documents = ids.map(|id| {
            format!(r#"{{"id":"{id}","text":"of {id}, long enough for a hint in its place"}}"#)
        });
        let spans = ids.map(|id| format!(r#"<doc id=\"{id}\">text of {id}</doc>"#));
        let body = format!(
            r#"{{"documents":[{}],"messages":[{{"role":"user","content":"{}"}}]}}"#,
            documents.join(","),
            spans.join(" and "),
        );
        if let Ok(rewrite) = orderer.rewrite(Tenant::default(), body.as_bytes()) {
            let sent = rewrite.body.unwrap_or(body.into_bytes());
            assert!(is_json(&sent), "JSON stays JSON");
        }
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let core = r#"{"policy": "random", "policy_options": {"seed": 1, "window": 9, "max_displacement": 3, "max_contexts": 5,
        "position_weight": 3, "stop_at_ties": true, "sort_shared": true},
        "rank": {"place": "ends", "documents": 2, "unranked": ["tags"]},
        "hint": {"enabled": true, "template": "\"{order}\"\n", "label": "<{label}>", "separator": ", ", "short": "best: {order};", "location": "see {document}"},
        "documents": {"field": "reorder", "tags": ["doc"], "loose_tags": [], "blocks": true, "results": true,
            "numbered": true, "rules": true, "headings": true, "outputs": true, "max": 4},
        "tree": {"max_nodes": 3, "max_tokens": 100, "max_trees": 2},
        "conversation": {"deduplicate": true, "pin": true, "max_pinned_tokens": 50, "max_entries": 3, "max_bytes": 900}}"#;
    let filter = r#"{"routes": ["/a", "/b/*"], "max_body_bytes": 70, "tenant": {"claim": ["sub"], "payload": "p"},
        "salt": {"key_env": "KEY"}, "mode": "dry-run", "on_failure": "refuse", "report_header": null, "bypass_header": "X-Raw",
        "path_header": "X-Path", "request_headers": "release", "log_fields": false, "agreement": {"entries": 64},
        "engines": [{"name": "a", "address": "[::1]:80", "feed": {"cluster": "f", "token": "t"}, "salts": ["/a"]}],
        "retrieval": {"cluster": "c", "path": "/r", "token": "t", "timeout_ms": 5, "k": 3, "keep": false, "on_failure": "fail",
            "tenant_filter": "t", "wrapper": {"before": "a", "after": "b"}, "similarity": {"dimensions": 2},
            "warm_up": {"cluster": "e"}, "embedding": {"header": "x-e", "model": "m", "path": null}}}"#;
    let both = format!("{{\"ordering\": {core}}}");
    [core, filter, &both, "{}", ""]
        .map(|text| text.as_bytes().to_vec())
        .into()
}
