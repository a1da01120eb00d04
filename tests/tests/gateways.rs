//! Two gateways before the same engines, each a real Envoy: what one has sent, the other knows while it is computed.
//!
//! Prompts never reach the hosts, whose feeds are followed: the engines are scripted. So a gateway can know of another's
//! requests from what gateways tell each other alone.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use foreword_ordering::document::Fingerprint;
use foreword_ordering::feed::{FeedKey, GatewayId, Push};
use foreword_ordering::{EngineId, PeerUpdate, Residency};
use foreword_tests::http::{Response, exchange, post, post_with};
use foreword_tests::{Gateway, GatewayOptions, Host, Upstream, artifacts, pause, until};
use serde_json::{Value, json};

const ENGINES: usize = 3;
const NAMES: [&str; ENGINES] = ["a", "b", "c"];

/// Engines whose answers wait, and hosts that serve their feeds.
struct Fleet {
    engines: [Upstream; ENGINES],
    hosts: [Host; ENGINES],
    /// Whether requests that ask to be held are held.
    holds: Arc<AtomicBool>,
    key: FeedKey,
    key_digits: String,
}

impl Fleet {
    fn start() -> Self {
        let holds = Arc::new(AtomicBool::new(true));
        let engines = std::array::from_fn(|_| {
            let holds = Arc::clone(&holds);
            Upstream::scripted(move |request, reply| {
                while request.header("x-hold").is_some() && holds.load(Ordering::SeqCst) {
                    pause();
                }
                reply.json(200, r#"{"ok": true}"#)
            })
            .unwrap()
        });
        let model = artifacts::repository().join("host/engine/fixtures/qwen2");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        let key_digits = "5a".repeat(32);
        std::fs::write(&file, &key_digits).unwrap();
        let mut arguments = vec!["--name", "tiny", "--kv-tokens", "2560"];
        arguments.extend(["--feed-key-file", file.to_str().unwrap()]);
        Self {
            engines,
            hosts: std::array::from_fn(|_| Host::start(&model, &arguments).unwrap()),
            holds,
            key: FeedKey::from_hex(&key_digits).unwrap(),
            key_digits,
        }
    }

    fn gateway(&self, fields: Value) -> Gateway {
        let engines = self.engines.iter().zip(NAMES).map(|(engine, name)| {
            let feed = json!({"cluster": format!("feed-{name}"), "key": self.key_digits});
            json!({"name": name, "address": engine.address().to_string(), "feed": feed})
        });
        let mut plugin = json!({
            "engines": engines.collect::<Vec<_>>(), "agreement": {"ring": RING},
        });
        plugin["agreement"]
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let options = GatewayOptions {
            engines: Some(self.engines.each_ref().map(Upstream::address)),
            feeds: Some(self.hosts.each_ref().map(Host::internal)),
            plugin: Some(plugin),
            concurrency: 2,
            ..GatewayOptions::placing_freely(self.engines[0].address())
        };
        Gateway::start(&options).unwrap()
    }

    /// Tells gateways something as another one; returns how many listen.
    fn tell(&self, host: &Host, number: u64, updates: Vec<Vec<u8>>) -> u64 {
        let push = Push {
            gateway: GatewayId(1),
            number,
            audience: Fingerprint::of(&[format!("named/{RING}").as_bytes()]).0,
            outstanding: 0,
            updates,
        };
        let body = serde_json::to_string(&push.sealed(Some(&self.key))).unwrap();
        let token = self.key.token();
        let request = format!(
            "POST /v1/kv/records HTTP/1.1\r\nhost: feed\r\ncontent-type: application/json\r\n\
             authorization: Bearer {token}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let response = exchange(host.internal(), request.as_bytes()).unwrap();
        assert_eq!(response.status, 200);
        response.json().unwrap()["others"].as_u64().unwrap()
    }

    /// Waits until these gateways know of each other, for every engine: they have heard something, with which they were
    /// told how many listen, and their workers have had time to look.
    fn introduce(&self, gateways: &[&Gateway]) {
        for host in &self.hosts {
            until("all listen", || {
                self.tell(host, 0, Vec::new()) == gateways.len() as u64
            });
            let nothing = PeerUpdate::Residency(Residency {
                engine: EngineId(0),
                model: "another".into(),
                events: Vec::new(),
            });
            self.tell(host, 1, vec![nothing.encode()]);
        }
        for gateway in gateways {
            until("all have heard", || heard(gateway) == ENGINES as u64);
        }
        // No metric shows which worker knows it; each looks every tenth of a second.
        thread::sleep(Duration::from_secs(1));
    }

    /// The engine that got the request with this question, and the order of its documents.
    fn find(&self, question: &str) -> Option<(usize, Vec<String>)> {
        self.engines.iter().enumerate().find_map(|(at, engine)| {
            let received = engine.received().into_iter();
            let mut texts = received.map(|request| request.text());
            let text = texts.find(|text| text.contains(question))?;
            let ids = text.split("document id=\\\"").skip(1);
            let ids = ids.filter_map(|rest| Some(rest.split_once('\\')?.0.to_owned()));
            Some((at, ids.collect()))
        })
    }
}

fn heard(gateway: &Gateway) -> u64 {
    let count = gateway.metric("foreword_received_updates_total").unwrap();
    count.unwrap_or_default()
}

fn body(ids: &[&str], question: &str) -> String {
    let documents = ids.iter().map(|id| {
        let words = format!("What {id} says is long enough to count. ").repeat(20);
        format!("<document id=\"{id}\">{words}</document>")
    });
    let content = documents.collect::<Vec<_>>().join("\n") + "\n" + question;
    json!({"model": "tiny", "messages": [{"role": "user", "content": content}]}).to_string()
}

fn ask(gateway: &Gateway, ids: &[&str], question: &str) -> Response {
    let response = exchange(gateway.address(), &post(body(ids, question).as_bytes())).unwrap();
    assert_eq!(response.status, 200, "{}", response.report());
    response
}

/// Sends a request whose answer waits, while `meanwhile` runs.
fn while_computing(
    fleet: &Fleet,
    gateway: &Gateway,
    ids: &[&str],
    question: &str,
    meanwhile: impl FnOnce(),
) {
    let address: SocketAddr = gateway.address();
    let message = post_with(
        &["content-type: application/json", "x-hold: 1"],
        body(ids, question).as_bytes(),
    );
    thread::scope(|scope| {
        let waiting = scope.spawn(move || exchange(address, &message).unwrap().status);
        // The request ends if the test fails meanwhile, too.
        let _releasing = Releasing(&fleet.holds);
        until("it is computed", || fleet.find(question).is_some());
        meanwhile();
        assert!(!waiting.is_finished(), "it was computed all the time");
        fleet.holds.store(false, Ordering::SeqCst);
        assert_eq!(waiting.join().unwrap(), 200);
    });
}

struct Releasing<'a>(&'a AtomicBool);

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[test]
fn what_one_gateway_sends_another_follows_while_it_is_computed() {
    let fleet = Fleet::start();
    let [one, two] = [(); 2].map(|()| fleet.gateway(json!({})));
    fleet.introduce(&[&one, &two]);
    let before = heard(&two);
    while_computing(&fleet, &one, &["d1", "d2", "d3", "d4"], "First?", || {
        until("the other has heard", || heard(&two) > before);
        let response = ask(&two, &["d4", "d2", "d3", "d1"], "Second?");
        assert!(
            response.report().contains("matched=4"),
            "{}",
            response.report()
        );
        let [first, second] = ["First?", "Second?"].map(|question| fleet.find(question).unwrap());
        assert_eq!(first, second, "the same engine, and the same order");
        // Nothing of the others is there, and the engine of the first has the most to do.
        for at in 0..9 {
            let ids = [0, 1].map(|id| format!("other-{at}-{id}"));
            let question = format!("Unrelated {at}?");
            ask(&two, &[&ids[0], &ids[1]], &question);
            let (engine, _) = fleet.find(&question).unwrap();
            assert_ne!(engine, first.0, "request {at}");
        }
    });
    // When it is computed, the engine is an engine like the others.
    let busy = fleet.find("First?").unwrap().0;
    let asked = Cell::new(0_u64);
    until("the load is known to be gone", || {
        let at = asked.replace(asked.get() + 1);
        let id = format!("later-{at}");
        let question = format!("Later {at}?");
        ask(&two, &[&id], &question);
        fleet.find(&question).unwrap().0 == busy
    });
    // What the other told is not told back: it was heard by one gateway, once.
    let told = 1 + 9 + asked.get();
    until("all is told", || {
        two.metric("foreword_sent_updates_total").unwrap() == Some(told)
    });
    until("all is heard", || heard(&one) >= told + ENGINES as u64);
    assert_eq!(heard(&one), told + ENGINES as u64);
    for gateway in [&one, &two] {
        let lost = gateway.metric("foreword_lost_updates_total").unwrap();
        assert_eq!(lost.unwrap_or_default(), 0);
        assert_eq!(gateway.failures().unwrap(), 0);
    }
}

#[test]
fn a_gateway_that_exchanges_nothing_knows_nothing_of_others() {
    let fleet = Fleet::start();
    let one = fleet.gateway(json!({}));
    let alone = fleet.gateway(json!({"gateways": false}));
    fleet.introduce(&[&one]);
    while_computing(&fleet, &one, &["d1", "d2", "d3", "d4"], "First?", || {
        let response = ask(&alone, &["d4", "d2", "d3", "d1"], "Second?");
        assert!(
            response.report().contains("matched=0"),
            "{}",
            response.report()
        );
    });
    assert_eq!(heard(&alone), 0);
}

/// Name of the ring, which gateways must have in common.
const RING: &str = "fleet";
