//! Tests of bursts: requests that open alike with cold documents wait for the first one's response, within bounds.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use foreword_tests::http::{Client, post_chunked, post_with};
use foreword_tests::{Gateway, GatewayOptions, Upstream};
use serde_json::json;

use crate::{configured, tagged_texts};

/// Time limit that ends a test whose other side has failed.
const LIMIT: Duration = Duration::from_secs(20);
/// A time in which a request that is not held would have arrived.
const SOON: Duration = Duration::from_millis(300);

/// The engine's scripted answers by the requests' names, and the signal that another one was added.
type Said = (Mutex<Vec<(String, Answer)>>, Condvar);

/// An engine that answers a request, known by its `x-name`, only when the test says how.
struct Engine {
    upstream: Upstream,
    /// The name of each request that arrives.
    arrived: Receiver<String>,
    said: Arc<Said>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// The head and a first event; then [`Answer::End`] must follow.
    Begin,
    End,
    Fail,
    /// The head; then the connection closes.
    Head,
    /// The connection closes without a response.
    Close,
}

impl Engine {
    fn start() -> Self {
        let (arrives, arrived) = channel();
        let arrives = Mutex::new(arrives);
        let said = Arc::<Said>::default();
        let heard = Arc::clone(&said);
        let upstream = Upstream::scripted(move |request, reply| {
            let name = request.header("x-name").unwrap_or_default().to_owned();
            arrives.lock().unwrap().send(name.clone())?;
            let next = || {
                let (said, is_said) = &*heard;
                let mine = |said: &mut Vec<(String, Answer)>| !said.iter().any(|it| it.0 == name);
                let said = is_said.wait_timeout_while(said.lock().unwrap(), LIMIT, mine);
                let (mut said, _) = said.unwrap();
                let at = said.iter().position(|it| it.0 == name);
                at.map_or(Answer::Close, |at| said.remove(at).1)
            };
            match next() {
                Answer::Begin => {
                    reply.begin_events()?;
                    reply.event("{}")?;
                    next();
                    reply.end_events()
                }
                Answer::End => reply.json(200, "{}"),
                Answer::Fail => reply.json(500, "{}"),
                Answer::Head => reply.begin_events(),
                Answer::Close => Ok(()),
            }
        })
        .unwrap();
        Self {
            upstream,
            arrived,
            said,
        }
    }

    fn say(&self, name: &str, answer: Answer) {
        self.said.0.lock().unwrap().push((name.to_owned(), answer));
        self.said.1.notify_all();
    }

    #[track_caller]
    fn assert_arrives(&self) -> String {
        self.arrived.recv_timeout(LIMIT).unwrap()
    }

    #[track_caller]
    fn assert_none_arrives(&self) {
        assert_eq!(
            self.arrived.recv_timeout(SOON),
            Err(RecvTimeoutError::Timeout)
        );
    }
}

/// A chat with a system text and documents of about a thousand tokens each.
fn chat(ids: &[&str]) -> String {
    let text = |id: &str| format!("{id} has words. ").repeat(300);
    let documents: Vec<_> = ids.iter().map(|id| (*id, text(id))).collect();
    tagged_texts(&documents)
}

fn gateway(engine: &Engine, bursts: &serde_json::Value) -> Gateway {
    let plugin = json!({"bursts": bursts, "tenant": {"header": "x-tenant"}});
    configured(&engine.upstream, plugin)
}

fn holding(max_wait_ms: u32) -> serde_json::Value {
    json!({"mode": "hold", "max_wait_ms": max_wait_ms, "max_held": 3})
}

/// Sends a request of a tenant without waiting for its response.
fn ask(gateway: &Gateway, tenant: &str, name: &str, ids: &[&str]) -> Client {
    let headers = [
        "content-type: application/json".to_owned(),
        format!("x-tenant: {tenant}"),
        format!("x-name: {name}"),
    ];
    let headers = headers.each_ref().map(String::as_str);
    let mut client = Client::connect(gateway.address()).unwrap();
    client
        .send(&post_with(&headers, chat(ids).as_bytes()))
        .unwrap();
    client
}

#[test]
fn followers_wait_for_the_first_byte_of_their_leader_and_other_requests_do_not() {
    let engine = Engine::start();
    let gateway = gateway(&engine, &holding(60_000));
    let leader = ask(&gateway, "red", "leader", &["a", "b"]);
    assert_eq!(engine.assert_arrives(), "leader");
    let followers = ["one", "two"].map(|name| ask(&gateway, "red", name, &["a", "b"]));
    engine.assert_none_arrives();
    // Neither another tenant nor other documents wait.
    let blue = ask(&gateway, "blue", "blue", &["a", "b"]);
    assert_eq!(engine.assert_arrives(), "blue");
    let other = ask(&gateway, "red", "other", &["c", "d"]);
    assert_eq!(engine.assert_arrives(), "other");
    engine.say("leader", Answer::Begin);
    let mut names = [engine.assert_arrives(), engine.assert_arrives()];
    names.sort();
    assert_eq!(names, ["one", "two"]);
    gateway.await_metric("foreword_burst_released_answered_total", 2);
    // The prefix is warm now: no request waits.
    let late = ask(&gateway, "red", "late", &["a", "b"]);
    assert_eq!(engine.assert_arrives(), "late");
    for name in ["leader", "blue", "other", "late", "one", "two"] {
        engine.say(name, Answer::End);
    }
    for mut client in [leader, blue, other, late].into_iter().chain(followers) {
        assert_eq!(client.response().unwrap().status, 200);
    }
    gateway.await_metric("foreword_burst_held_total", 2);
    assert_eq!(gateway.failures().unwrap(), 0);
}

#[test]
fn a_follower_leads_when_its_leader_fails() {
    for failure in [Answer::Fail, Answer::Head, Answer::Close] {
        let engine = Engine::start();
        let gateway = gateway(&engine, &holding(60_000));
        let _leader = ask(&gateway, "red", "leader", &["a", "b"]);
        assert_eq!(engine.assert_arrives(), "leader");
        let _one = ask(&gateway, "red", "one", &["a", "b"]);
        gateway.await_metric("foreword_burst_held_total", 1);
        let _two = ask(&gateway, "red", "two", &["a", "b"]);
        gateway.await_metric("foreword_burst_held_total", 2);
        engine.say("leader", failure);
        assert_eq!(engine.assert_arrives(), "one");
        engine.assert_none_arrives();
        engine.say("one", Answer::Begin);
        assert_eq!(engine.assert_arrives(), "two");
        gateway.await_metric("foreword_burst_released_failed_total", 1);
        gateway.await_metric("foreword_burst_released_answered_total", 1);
    }
}

#[test]
fn what_a_follower_computed_is_known_although_its_leader_failed() {
    let engine = Engine::start();
    let gateway = gateway(&engine, &holding(60_000));
    let _leader = ask(&gateway, "red", "leader", &["a", "b"]);
    assert_eq!(engine.assert_arrives(), "leader");
    let mut one = ask(&gateway, "red", "one", &["a", "b", "c"]);
    gateway.await_metric("foreword_burst_held_total", 1);
    engine.say("leader", Answer::Fail);
    assert_eq!(engine.assert_arrives(), "one");
    engine.say("one", Answer::End);
    assert_eq!(one.response().unwrap().status, 200);
    let _next = ask(&gateway, "red", "next", &["c", "a", "b"]);
    assert_eq!(engine.assert_arrives(), "next");
    let sent = engine.upstream.last().unwrap();
    let text = sent.text();
    let at = ["a", "b", "c"].map(|id| text.find(&format!("{id} has words. ")).unwrap());
    assert!(at.is_sorted(), "{at:?}");
    engine.say("next", Answer::End);
}

#[test]
fn what_a_held_request_would_have_brought_is_forgotten_when_its_client_disconnects() {
    let engine = Engine::start();
    let gateway = gateway(&engine, &holding(60_000));
    let mut leader = ask(&gateway, "red", "leader", &["a", "b"]);
    assert_eq!(engine.assert_arrives(), "leader");
    let gone = ask(&gateway, "red", "gone", &["a", "b", "c", "d"]);
    gateway.await_metric("foreword_burst_held_total", 1);
    drop(gone);
    gateway.await_metric("foreword_burst_left_total", 1);
    engine.say("leader", Answer::End);
    assert_eq!(leader.response().unwrap().status, 200);
    let _one = ask(&gateway, "red", "one", &["a", "b", "c", "d"]);
    assert_eq!(engine.assert_arrives(), "one");
    let _two = ask(&gateway, "red", "two", &["a", "b", "c", "d"]);
    gateway.await_metric("foreword_burst_held_total", 2);
    engine.say("one", Answer::End);
    assert_eq!(engine.assert_arrives(), "two");
    engine.say("two", Answer::End);
}

#[test]
fn a_reload_releases_held_requests_no_later() {
    let engine = Engine::start();
    let plugin = json!({"bursts": holding(60_000), "tenant": {"header": "x-tenant"}});
    let options = GatewayOptions {
        plugin: Some(plugin),
        reloadable: true,
        ..GatewayOptions::placing_freely(engine.upstream.address())
    };
    let gateway = Gateway::start(&options).unwrap();
    let _leader = ask(&gateway, "red", "leader", &["a", "b"]);
    assert_eq!(engine.assert_arrives(), "leader");
    let _one = ask(&gateway, "red", "one", &["a", "b"]);
    gateway.await_metric("foreword_burst_held_total", 1);
    gateway.reload(&json!({})).unwrap();
    engine.say("leader", Answer::Begin);
    // Long before the longest wait.
    assert_eq!(engine.assert_arrives(), "one");
}

#[test]
fn a_leader_whose_client_disconnects_is_replaced_and_a_held_client_frees_its_place() {
    let engine = Engine::start();
    let gateway = gateway(&engine, &holding(60_000));
    let leader = ask(&gateway, "red", "leader", &["a", "b"]);
    assert_eq!(engine.assert_arrives(), "leader");
    let one = ask(&gateway, "red", "one", &["a", "b"]);
    gateway.await_metric("foreword_burst_held_total", 1);
    drop(one);
    gateway.await_metric("foreword_burst_left_total", 1);
    let _two = ask(&gateway, "red", "two", &["a", "b"]);
    gateway.await_metric("foreword_burst_held_total", 2);
    engine.assert_none_arrives();
    drop(leader);
    assert_eq!(engine.assert_arrives(), "two");
}

#[test]
fn waits_expire_and_no_more_wait_than_allowed() {
    let engine = Engine::start();
    let gateway = gateway(&engine, &holding(1_500));
    let _leader = ask(&gateway, "red", "leader", &["a", "b"]);
    assert_eq!(engine.assert_arrives(), "leader");
    let mut held = Vec::new();
    for count in 1..4 {
        held.push(ask(&gateway, "red", "held", &["a", "b"]));
        gateway.await_metric("foreword_burst_held_total", count);
    }
    let _more = ask(&gateway, "red", "more", &["a", "b"]);
    assert_eq!(engine.assert_arrives(), "more");
    gateway.await_metric("foreword_burst_unheld_total", 1);
    for _ in &held {
        assert_eq!(engine.assert_arrives(), "held");
    }
    gateway.await_metric("foreword_burst_released_expired_total", 3);
    assert_eq!(gateway.failures().unwrap(), 0);
}

#[test]
fn a_held_request_in_pieces_is_forwarded_whole_with_and_without_trailers() {
    let engine = Engine::start();
    let gateway = gateway(&engine, &holding(60_000));
    let headers = [
        "content-type: application/json",
        "x-tenant: red",
        "x-name: pieces",
    ];
    let mut client = Client::connect(gateway.address()).unwrap();
    for (count, trailers) in (1..).zip([&[][..], &["x-sum: 1"]]) {
        let ids: Vec<String> = (0..200).map(|at| format!("d{count}-{at}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let _leader = ask(&gateway, "red", "leader", &ids[..100]);
        assert_eq!(engine.assert_arrives(), "leader");
        let pieces = post_chunked(&headers, chat(&ids).as_bytes(), 10_000, trailers);
        client.send(&pieces).unwrap();
        gateway.await_metric("foreword_burst_held_total", count);
        engine.say("leader", Answer::End);
        assert_eq!(engine.assert_arrives(), "pieces");
        engine.say("pieces", Answer::End);
        assert_eq!(client.response().unwrap().status, 200);
        let sent = engine.upstream.last().unwrap();
        assert!(sent.body.len() > 1 << 19, "{}", sent.body.len());
        let text = sent.text();
        let has = |id: &&str| text.contains(&format!("{id} has words. "));
        assert!(ids.iter().all(has));
    }
}

#[test]
fn off_and_report_hold_no_request() {
    for bursts in [json!(null), json!({})] {
        let engine = Engine::start();
        let gateway = gateway(&engine, &bursts);
        let mut clients = Vec::new();
        for name in ["one", "two"] {
            clients.push(ask(&gateway, "red", name, &["a", "b"]));
            assert_eq!(engine.assert_arrives(), name);
        }
        let reported = u64::from(!bursts.is_null());
        for name in ["one", "two"] {
            engine.say(name, Answer::End);
        }
        for client in &mut clients {
            assert_eq!(client.response().unwrap().status, 200);
        }
        gateway.await_requests(2);
        gateway.await_metric("foreword_burst_reported_total", reported);
        gateway.await_metric("foreword_burst_held_total", 0);
    }
}
