//! Markers for upstreams that cache only up to markers.

use super::*;

/// An Anthropic body whose documents have some 600 tokens each.
fn marked(ids: &[&str], question: u32) -> String {
    let document = |id: &&str| {
        let text = format!("text of {id} ").repeat(200);
        format!(r#"<document id=\"{id}\">{text}</document>\n"#)
    };
    let documents: String = ids.iter().map(document).collect();
    format!(
        r#"{{"model": "claude-opus-5-5", "messages": [{{"role": "user", "content": "{documents}why {question}?"}}]}}"#
    )
}

const ANTHROPIC: &str = r#"{"engines": [{"name": "claude", "cache": "anthropic"}]}"#;

/// Sends the body 30 times, and returns the last report.
fn often(plugin: &Arc<Plugin>, host: &ScriptedHost, body: impl Fn(u32) -> String) -> String {
    (0..30).fold(String::new(), |_, at| send(plugin, host, &body(at)))
}

#[test]
fn documents_become_blocks_and_markers_stand_where_prompts_go_on_alike() {
    let host = ScriptedHost::default();
    let plugin = plugin(&host, ANTHROPIC);
    let first = marked(&["a", "b"], 0);
    send(&plugin, &host, &first);
    assert_eq!(host.body(), first.as_bytes(), "nothing has come again yet");
    assert_eq!(host.counter("foreword_cut_markers_total"), 0);

    let report = often(&plugin, &host, |at| marked(&["a", "b"], at));
    let sent = String::from_utf8(host.body()).unwrap();
    assert!(
        sent.contains(r#"{"cache_control":{"type":"ephemeral"},"type":"text","#),
        "{sent}"
    );
    assert_eq!(host.header("content-length"), Some(sent.len().to_string()));
    assert!(report.starts_with("unchanged; "), "{report}");
    assert!(report.contains("; cut_markers="), "{report}");
    assert!(report.contains("; cut_read_tokens="), "{report}");
    assert!(host.counter("foreword_cut_markers_total") > 0);
    assert!(host.counter("foreword_cut_read_tokens_total") > 1_000);
}

#[test]
fn chats_without_documents_are_marked_too_and_salted() {
    let host = ScriptedHost::default();
    let salt = "5a".repeat(32);
    let configuration = format!(
        r#"{{"engines": [{{"name": "claude", "cache": "anthropic"}}], "tenant": {{"header": "x-tenant"}}, "salt": {{"key": "{salt}"}}}}"#
    );
    let plugin = plugin(&host, &configuration);
    let system = "Be brief. ".repeat(900);
    let mut last = String::new();
    for at in 0..30 {
        let body = format!(
            r#"{{"model": "claude-opus-5-5", "system": "{system}", "messages": [{{"role": "user", "content": "why {at}?"}}]}}"#
        );
        let length = body.len().to_string();
        host.request(
            "POST",
            PATH,
            &[("content-length", &length), ("x-tenant", "t")],
        );
        let mut exchange = Exchange::new(Arc::clone(&plugin));
        exchange.on_request_headers(&host, false);
        host.receive(body.as_bytes());
        exchange.on_request_body(&host, body.len(), true);
        last = String::from_utf8(host.body()).unwrap();
    }
    assert!(
        last.contains("cache_control") && last.contains("cache_salt"),
        "{last}"
    );
}

#[test]
fn nothing_is_marked_for_other_caches_and_in_dry_runs() {
    for configuration in [
        "",
        r#"{"engines": [{"name": "a", "cache": "prefix"}]}"#,
        r#"{"engines": [{"name": "a", "cache": "units", "block_tokens": 64}]}"#,
        r#"{"mode": "dry-run", "engines": [{"name": "a", "cache": "anthropic"}]}"#,
    ] {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, configuration);
        let report = often(&plugin, &host, |at| marked(&["a", "b"], at));
        assert_eq!(
            host.body(),
            marked(&["a", "b"], 29).as_bytes(),
            "{configuration}"
        );
        assert!(!report.contains("cut_"), "{report}");
        assert_eq!(host.counter("foreword_cut_splits_total"), 0);
    }
}
