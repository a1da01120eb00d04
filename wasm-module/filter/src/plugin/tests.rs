//! What workers know of each other, against the scripted host.

use foreword_ordering::Report;
use foreword_ordering::random::Random;

use super::*;
use crate::tests::scripted::ScriptedHost;

/// A chat request with documents.
fn body(documents: &[u64]) -> String {
    let documents = documents.iter();
    let documents: String = documents
        .map(|document| format!("<doc id=\"{document}\">text of {document}</doc>"))
        .collect();
    serde_json::json!({"messages": [{"role": "user", "content": documents}]}).to_string()
}

fn send(plugin: &Plugin, host: &ScriptedHost, body: &str) -> (Option<Vec<u8>>, Report) {
    let identity = plugin.identity(String::new());
    let rewrite = plugin.rewrite(
        host,
        &identity,
        body.as_bytes(),
        RequestDocuments::Nothing,
        None,
    );
    let rewrite = rewrite.unwrap().answer.unwrap();
    (rewrite.body, rewrite.report)
}

fn load(host: &ScriptedHost, json: &str) -> Plugin {
    Plugin::load(host, json.as_bytes()).unwrap()
}

#[test]
fn a_burst_over_three_workers_is_ordered_as_by_one() {
    let alone = ScriptedHost::default();
    let single = load(&alone, "{}");
    let host = ScriptedHost::default();
    let hosts: [_; 3] = std::array::from_fn(|_| ScriptedHost::beside(&host));
    let workers = hosts.each_ref().map(|host| load(host, "{}"));
    let mut random = Random::new(7);
    for _ in 0..300 {
        let mut documents: Vec<u64> = (0..12).collect();
        random.shuffle(&mut documents);
        let body = body(&documents[..5]);
        let at = usize::try_from(random.below(3)).unwrap();
        let (worker, host) = (&workers[at], &hosts[at]);
        assert_eq!(send(worker, host, &body), send(&single, &alone, &body));
    }
    let learnt = |host: &ScriptedHost| host.counter("foreword_learnt_entries_total");
    assert!(hosts.iter().all(|host| learnt(host) > 150));
    assert_eq!(learnt(&alone), 0);
}

#[test]
fn an_idle_worker_learns_at_its_ticks_and_a_new_one_when_it_is_loaded() {
    let host = ScriptedHost::default();
    let busy = load(&host, "{}");
    let idle_host = ScriptedHost::beside(&host);
    let idle = load(&idle_host, "{}");
    send(&busy, &host, &body(&[1, 2]));
    idle.on_tick(&idle_host);
    assert_eq!(idle_host.samples("foreword_vm_mebibytes"), [7]);
    assert_eq!(idle_host.counter("foreword_learnt_entries_total"), 1);
    let new = load(
        &ScriptedHost::beside(&host),
        r#"{"ordering": {"policy": "greedy"}}"#,
    );
    host.refuse("shared_data");
    for plugin in [&idle, &new] {
        assert_eq!(send(plugin, &host, &body(&[2, 1])).1.matched, 2);
    }
}

#[test]
fn plugins_for_others_and_plugins_told_to_be_alone_tell_each_other_nothing() {
    for json in [
        r#"{"routes": ["/v1/x"]}"#,
        r#"{"tenant": {"header": "x-tenant"}}"#,
        r#"{"agreement": {"ring": "other"}}"#,
        r#"{"agreement": {"entries": 0}}"#,
    ] {
        let host = ScriptedHost::default();
        send(&load(&host, "{}"), &host, &body(&[1, 2]));
        let other = load(&host, json);
        assert_eq!(send(&other, &host, &body(&[2, 1])).1.matched, 0, "{json}");
    }
    let host = ScriptedHost::default();
    let json = r#"{"agreement": {"ring": "shared"}, "max_body_bytes": 9}"#;
    send(&load(&host, json), &host, &body(&[1, 2]));
    let other = load(
        &host,
        r#"{"agreement": {"ring": "shared"}, "routes": ["/x"]}"#,
    );
    assert_eq!(send(&other, &host, &body(&[2, 1])).1.matched, 2);
}

#[test]
fn a_proxy_without_shared_data_orders_all_the_same() {
    for call in ["shared_data", "set_shared_data", "property"] {
        let host = ScriptedHost::default();
        host.refuse(call);
        let plugin = load(&host, "{}");
        send(&plugin, &host, &body(&[1, 2]));
        assert_eq!(send(&plugin, &host, &body(&[2, 1])).1.matched, 2);
        assert_eq!(host.counter("foreword_untold_requests_total"), 0);
    }
    let host = ScriptedHost::default();
    let plugin = load(&host, "{}");
    host.refuse("set_shared_data");
    send(&plugin, &host, &body(&[1, 2]));
    assert_eq!(host.counter("foreword_untold_requests_total"), 1);
}
