//! Knowledge shared by workers, against the scripted host.

use foreword_ordering::Report;
use foreword_ordering::feed::{Epoch, GatewayId, Push, Pushes, SealedPush};
use foreword_ordering::random::Random;

use super::*;
use crate::tests::{placed_freely, scripted::ScriptedHost};

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
    Plugin::load(host, placed_freely(json).as_bytes()).unwrap()
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

/// A proxy with two workers and two engines whose feeds it follows.
struct Proxy {
    hosts: [ScriptedHost; 2],
    /// The first one leads.
    workers: [Plugin; 2],
    /// Number of each worker's calls that were answered.
    answered: [usize; 2],
}

const FOLLOWING: &str = r#"{"engines": [
    {"name": "a", "address": "10.0.0.1:80", "feed": {"cluster": "feed-a"}},
    {"name": "b", "address": "10.0.0.2:80", "feed": {"cluster": "feed-b"}}]}"#;

impl Proxy {
    fn new(json: &str) -> Self {
        let first = ScriptedHost::default();
        let hosts = [ScriptedHost::beside(&first), first];
        let workers = hosts.each_ref().map(|host| load(host, json));
        Self {
            hosts,
            workers,
            answered: [0; 2],
        }
    }

    /// Both workers tick, and their calls are answered: `others` listen, and have sent `pushes` to the first engine's feed
    /// server. Returns the pushes to it.
    fn tick(&mut self, ms: u64, others: u32, pushes: &[Push]) -> Vec<Push> {
        let workers = [0, 1].map(|worker| {
            self.hosts[worker].set_time(ms);
            self.workers[worker].on_tick(&self.hosts[worker]);
            self.answer(worker, others, pushes)
        });
        workers.concat()
    }

    fn answer(&mut self, worker: usize, others: u32, pushes: &[Push]) -> Vec<Push> {
        let leads = worker == 0;
        let (host, worker, answered) = (
            &self.hosts[worker],
            &self.workers[worker],
            &mut self.answered[worker],
        );
        let calls = host.calls().into_iter().zip(host.call_bodies());
        let mut pushed = Vec::new();
        for (call, ((cluster, headers), body)) in calls.enumerate().skip(*answered) {
            let header = |wanted: &str| {
                let found = headers.iter().find(|(name, _)| name == wanted);
                found.unwrap().1.clone()
            };
            let is_first = cluster == "feed-a";
            let answer = if header(":method") == "POST" {
                let sealed: SealedPush = serde_json::from_slice(&body).unwrap();
                pushed.extend(is_first.then(|| sealed.open(None).unwrap()));
                "{}".to_owned()
            } else if header(":path").starts_with("/v1/kv/records") {
                assert!(leads, "one listens");
                let told = pushes.iter().filter(|_| is_first);
                let answer = Pushes {
                    epoch: Epoch(1),
                    next: 1,
                    others,
                    pushes: told.map(|push| push.sealed(None)).collect(),
                };
                serde_json::to_string(&answer).unwrap()
            } else {
                // The engine has no events: the long poll stays open.
                continue;
            };
            let call = u32::try_from(call).unwrap();
            worker.on_answer(host, call, Some(200), Some(answer.as_bytes()));
        }
        *answered = host.calls().len();
        pushed
    }

    /// Sends a request of one worker, which stays in flight; returns the number of matched documents, and the engine.
    fn send(&self, worker: usize, documents: &[u64]) -> (u32, EngineId, Dispatch) {
        let (plugin, host) = (&self.workers[worker], &self.hosts[worker]);
        let identity = plugin.identity(String::new());
        let body = body(documents);
        let known = RequestDocuments::Nothing;
        let rewritten = plugin.rewrite(host, &identity, body.as_bytes(), known, None);
        let rewritten = rewritten.unwrap();
        let rewrite = rewritten.answer.unwrap();
        let engine = rewrite.record.engine();
        (rewrite.report.matched, engine, rewritten.route.dispatch)
    }

    /// Sends a request that is answered at once; returns the number of matched documents.
    fn ask(&self, worker: usize, documents: &[u64]) -> u32 {
        let (matched, _, dispatch) = self.send(worker, documents);
        let plugin = &self.workers[worker];
        plugin.settle(&self.hosts[worker], dispatch, DispatchResult::Answered);
        matched
    }

    fn counted(&self, name: &str) -> u64 {
        self.hosts.iter().map(|host| host.counter(name)).sum()
    }
}

#[test]
fn what_any_worker_sent_is_told_to_gateways_of_other_proxies_once_and_what_they_told_never() {
    let mut one = Proxy::new(FOLLOWING);
    one.send(0, &[1, 2]);
    assert_eq!(one.tick(0, 1, &[]), [], "nobody was listening yet");
    one.tick(100, 1, &[]);
    assert!(one.workers.iter().all(|worker| !worker.is_woken()));
    // Each worker sends one, and each time an engine is chosen.
    let mut pushed = Vec::new();
    for documents in [[11, 12], [21, 22], [31, 32], [41, 42]] {
        one.send(0, &documents);
        one.send(1, &documents.map(|document| document + 5));
        assert!(one.workers.iter().all(Plugin::is_woken));
        pushed.extend(one.tick(120 + documents[0], 1, &[]));
    }
    let updates: usize = pushed.iter().map(|push| push.updates.len()).sum();
    assert!(
        (1..8).contains(&updates),
        "{updates} of 8 are of the first engine"
    );
    assert!(pushed.iter().any(|push| push.outstanding > 0));
    assert_eq!(one.counted("foreword_sent_updates_total"), 8);

    // Another proxy receives them: its workers order as if they had sent these requests.
    let mut other = Proxy::new(FOLLOWING);
    other.tick(0, 1, &[]);
    let told = other.tick(10, 1, &pushed);
    assert_eq!(told, []);
    let heard = u64::try_from(updates).unwrap();
    assert_eq!(other.counted("foreword_received_updates_total"), heard);
    // Received updates are not pushed again.
    for now in [20, 30, 200, 6_000] {
        assert_eq!(other.tick(now, 1, &[]), []);
    }
    let all = [
        11, 12, 16, 17, 21, 22, 26, 27, 31, 32, 36, 37, 41, 42, 46, 47,
    ];
    let known = all.chunks(2).map(|pair| other.ask(1, &[pair[1], pair[0]]));
    let known = known.filter(|matched| *matched == 2).count();
    assert_eq!(u64::try_from(known), Ok(heard));
}

#[test]
fn a_request_goes_where_other_proxies_have_sent_less() {
    let mut proxy = Proxy::new(FOLLOWING);
    proxy.tick(0, 1, &[]);
    let busy = Push {
        gateway: GatewayId(77),
        number: 1,
        audience: 0,
        outstanding: 50_000,
        updates: Vec::new(),
    };
    proxy.tick(10, 1, std::slice::from_ref(&busy));
    let engine = |proxy: &Proxy, document: u64| proxy.send(1, &[document]).1;
    for document in 100..110 {
        assert_eq!(engine(&proxy, document), EngineId(1));
    }
    // It pushes no more, and its load expires.
    proxy.tick(6_000, 1, &[]);
    let chosen: Vec<u16> = (200..210).map(|at| engine(&proxy, at).0).collect();
    assert!(chosen.contains(&0), "{chosen:?}");
}

#[test]
fn a_gateway_that_is_told_to_exchange_nothing_neither_listens_nor_tells() {
    let json = FOLLOWING.replacen('{', r#"{"agreement": {"gateways": false}, "#, 1);
    let mut proxy = Proxy::new(&json);
    proxy.tick(0, 1, &[]);
    proxy.send(0, &[1, 2]);
    proxy.tick(100, 1, &[]);
    let calls = proxy.hosts[0].calls();
    let is_event = |(_, headers): &(String, Vec<(String, String)>)| {
        let mut headers = headers.iter();
        headers.any(|(name, value)| name == ":path" && value.starts_with("/v1/kv/events"))
    };
    assert!(!calls.is_empty() && calls.iter().all(is_event), "{calls:?}");
}
