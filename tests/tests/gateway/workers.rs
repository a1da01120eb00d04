//! Tests of several worker threads in one Envoy: all of them know what one did.
//!
//! Envoy gives each connection to one worker. Tests that need several workers use several connections, and check
//! Envoy's counters to be sure that they came to several.

use foreword_ordering::random::Random;
use foreword_tests::http::{Client, post};
use foreword_tests::{Gateway, GatewayOptions, Shell, Upstream, pause};
use serde_json::{Value, json};

use crate::tagged;

/// Returns a gateway with this number of workers.
fn with_workers(upstream: &Upstream, concurrency: u32, plugin: Value) -> Gateway {
    let options = GatewayOptions {
        concurrency,
        plugin: Some(plugin),
        ..GatewayOptions::placing_freely(upstream.address())
    };
    Gateway::start(&options).unwrap()
}

/// Returns the number of connections that came to each worker.
fn connections(gateway: &Gateway) -> Vec<u64> {
    let stats = gateway
        .admin_get("/stats?filter=worker_.*downstream_cx_total")
        .unwrap();
    let lines = stats
        .lines()
        .filter(|line| !line.starts_with("listener.admin"));
    lines
        .filter_map(|line| line.split_once(": ")?.1.parse().ok())
        .collect()
}

/// Returns connections of which some came to every worker.
pub(crate) fn connect(gateway: &Gateway, workers: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    while clients.len() < 3 * workers
        || connections(gateway)
            .iter()
            .filter(|count| **count > 0)
            .count()
            < workers
    {
        assert!(clients.len() < 200, "{:?}", connections(gateway));
        clients.push(Client::connect(gateway.address()).unwrap());
    }
    clients
}

fn ask(client: &mut Client, body: &str) -> String {
    client.send(&post(body.as_bytes())).unwrap();
    let response = client.response().unwrap();
    assert_eq!(response.status, 200);
    response.report().to_owned()
}

pub(crate) fn field(report: &str, name: &str) -> u64 {
    let found = report
        .split("; ")
        .find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    found
        .and_then(|value| value.parse().ok())
        .unwrap_or_else(|| panic!("{report} has no {name}"))
}

/// Returns requests about 120 topics, five times each on average: five of a topic's six documents, in any order.
fn burst() -> Vec<String> {
    let mut random = Random::new(11);
    let request = |_| {
        let topic = random.below(120);
        let mut chosen: Vec<u64> = (0..6).collect();
        random.shuffle(&mut chosen);
        let ids = chosen
            .iter()
            .take(5)
            .map(|document| format!("t{topic}d{document}"));
        let ids: Vec<String> = ids.collect();
        tagged(&ids.iter().map(String::as_str).collect::<Vec<_>>())
    };
    (0..600).map(request).collect()
}

/// Returns the matched documents of a burst that several clients send at once over all workers. `entries` is the ring's
/// size.
fn reuse(policy: &str, workers: u32, entries: u32) -> u64 {
    const SENDERS: usize = 3;
    let upstream = Upstream::start().unwrap();
    let plugin = json!({"agreement": {"entries": entries}, "ordering": {"policy": policy}});
    let gateway = with_workers(&upstream, workers, plugin);
    let mut clients = connect(&gateway, workers as usize);
    // Each sender has connections to several workers.
    let mut senders: [Vec<&mut Client>; SENDERS] = Default::default();
    for (at, client) in clients.iter_mut().enumerate() {
        senders[at % SENDERS].push(client);
    }
    let burst = burst();
    let matched = std::thread::scope(|scope| {
        let senders = senders
            .into_iter()
            .enumerate()
            .map(|(sender, mut clients)| {
                let requests = burst.iter().skip(sender).step_by(SENDERS);
                scope.spawn(move || {
                    let mut matched = 0;
                    for (at, body) in requests.enumerate() {
                        let connection = at % clients.len();
                        matched += field(&ask(clients[connection], body), "matched");
                    }
                    matched
                })
            });
        let senders: Vec<_> = senders.collect();
        let matched = senders.into_iter().map(|sender| sender.join().unwrap());
        matched.sum()
    });
    let count = |name: &str| gateway.metric(name).unwrap().unwrap_or_default();
    gateway.await_requests(burst.len() as u64);
    if entries > 0 && Shell::chosen() == Shell::Wasm {
        // A worker that had no request lately learns the last ones at its next tick.
        let told = burst.len() as u64 * u64::from(workers - 1);
        while count("foreword_learnt_entries_total") < told {
            pause();
        }
    }
    assert_eq!(count("foreword_lost_entries_total"), 0);
    assert_eq!(count("foreword_untold_requests_total"), 0);
    matched
}

#[test]
fn the_same_burst_is_reused_alike_by_one_two_and_four_workers() {
    // `foresight` also learns how even the traffic is, from the requests of all workers.
    for policy in ["longest", "foresight"] {
        let one = reuse(policy, 1, 4096);
        assert!(one > 1000, "{policy}: {one} of 3000 documents matched");
        for workers in [2, 4] {
            let several = reuse(policy, workers, 4096);
            println!("{policy}, {workers} workers: {several} documents matched, one: {one}");
            assert!(
                several.abs_diff(one) * 100 <= one * 3,
                "{policy}, {workers} workers: {several}, one: {one}"
            );
        }
    }
}

#[test]
fn workers_that_tell_each_other_nothing_know_their_own_requests_only() {
    if Shell::chosen() != Shell::Wasm {
        eprintln!("skipped: outside Wasm, all workers share what they know");
        return;
    }
    let [one, several] = [1, 4].map(|workers| reuse("longest", workers, 0));
    // Otherwise the test above would prove nothing.
    assert!(several * 100 < one * 80, "4 workers: {several}, one: {one}");
}

#[test]
fn a_chat_whose_turns_come_to_different_workers_keeps_its_earlier_bytes() {
    let upstream = Upstream::start().unwrap();
    let gateway = with_workers(&upstream, 4, json!({}));
    let mut clients = connect(&gateway, 4);
    // This makes workers that know nothing of each other choose differently.
    for (client, ids) in clients
        .iter_mut()
        .zip([["c", "b", "a"], ["b", "a", "c"], ["c", "a", "b"]])
    {
        ask(client, &tagged(&ids));
    }
    let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
    let mut sent: Vec<Value> = Vec::new();
    for turn in 0..12 {
        let documents = ["a", "b", "c", "d", "e", "f"]
            .iter()
            .cycle()
            .skip(turn)
            .take(3);
        let documents: String = documents
            .map(|id| {
                format!(
                    "<document id=\"{id}\">text of {id}, long enough to be referred to</document>\n"
                )
            })
            .collect();
        messages.push(json!({"role": "user", "content": format!("{documents}Question {turn}?")}));
        let body = json!({"model": "m", "messages": messages}).to_string();
        let at = turn % clients.len();
        ask(&mut clients[at], &body);
        let received: Value = serde_json::from_str(&upstream.last().unwrap().text()).unwrap();
        let received = received["messages"].as_array().unwrap();
        assert!(
            received.starts_with(&sent),
            "turn {turn}: {received:?}\nbefore: {sent:?}"
        );
        sent.clone_from(received);
        messages.push(json!({"role": "assistant", "content": format!("Answer {turn}.")}));
        sent.push(messages.last().unwrap().clone());
    }
}

#[test]
fn what_is_known_outlives_a_reload_with_another_configuration() {
    let upstream = Upstream::start().unwrap();
    let options = GatewayOptions {
        concurrency: 2,
        reloadable: true,
        ..GatewayOptions::placing_freely(upstream.address())
    };
    let gateway = Gateway::start(&options).unwrap();
    let mut clients = connect(&gateway, 2);
    for (client, ids) in clients.iter_mut().zip([["a", "b"], ["c", "d"], ["e", "f"]]) {
        assert_eq!(field(&ask(client, &tagged(&ids)), "matched"), 0);
    }
    gateway
        .reload(&json!({"ordering": {"policy": "foresight"}}))
        .unwrap();
    for client in &mut clients {
        for ids in [["b", "a"], ["d", "c"], ["f", "e"]] {
            let report = ask(client, &tagged(&ids));
            assert!(report.contains("policy=foresight"), "{report}");
            assert_eq!(field(&report, "matched"), 2, "{report}");
        }
    }
    // An invalid one is refused, and the old one stays in use.
    gateway
        .reload(&json!({"agreement": {"entries": -1}}))
        .unwrap_err();
    let report = ask(&mut clients[0], &tagged(&["b", "a"]));
    assert!(
        report.contains("policy=foresight") && report.contains("matched=2"),
        "{report}"
    );
}
