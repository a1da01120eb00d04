//! Tests `GET` and `POST /v1/kv/records`, by which gateways exchange updates through the feed's server.

use crate::support::client::{JSON, Response, get, send};
use crate::support::{Options, TestServer, until};
use foreword_ordering::feed::{FeedKey, GatewayId, MAX_PUSH_BYTES, Push, Pushes};
use foreword_ordering::{Config, EngineId, Orderer, PeerUpdate, Residency, Tenant};
use foreword_server::keys::ApiKeys;
use foreword_server::kv::http::MAX_READERS;
use serde_json::{Value, json};
use std::io::Write;
use std::net::SocketAddr;

const RECORDS: &str = "/v1/kv/records";

/// An update for the model of that name.
fn update(model: &str) -> Vec<u8> {
    let residency = Residency {
        engine: EngineId::default(),
        model: model.into(),
        events: Vec::new(),
    };
    PeerUpdate::Residency(residency).encode()
}

fn push(gateway: u64, models: &[&str]) -> Push {
    let updates = models.iter().map(|model| update(model));
    Push {
        gateway: GatewayId(gateway),
        number: 1,
        audience: 2,
        outstanding: 3,
        updates: updates.collect(),
    }
}

fn key() -> FeedKey {
    FeedKey::new(&[7; 32])
}

fn json_of(push: &Push, key: Option<&FeedKey>) -> Value {
    serde_json::to_value(push.sealed(key)).unwrap()
}

async fn tell_with(house: &TestServer, token: Option<&str>, body: &Value) -> Response {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let bearer = bearer.iter().map(|value| ("authorization", &**value));
    let headers: Vec<_> = JSON.into_iter().chain(bearer).collect();
    let body = body.to_string();
    let reply = send(house.internal(), "POST", RECORDS, &headers, body.as_bytes());
    reply.await.read().await
}

async fn tell(house: &TestServer, push: &Push) -> u64 {
    let key = key();
    let response = tell_with(house, Some(key.token()), &json_of(push, Some(&key))).await;
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()["others"].as_u64().unwrap()
}

fn pushes(response: &Response) -> Pushes {
    assert_eq!(response.status, 200, "{}", response.text());
    serde_json::from_slice(&response.body).unwrap()
}

/// Sends a request with the feed's key.
async fn ask(address: SocketAddr, path: &str) -> Response {
    let bearer = format!("Bearer {}", key().token());
    let headers = [("authorization", &*bearer)];
    send(address, "GET", path, &headers, b"").await.read().await
}

async fn listen(house: &TestServer, gateway: u64, after: Option<&Pushes>) -> Pushes {
    pushes(&ask(house.internal(), &query(gateway, after)).await)
}

fn query(gateway: u64, after: Option<&Pushes>) -> String {
    let after = after.map(|after| format!("&epoch={:016x}&since={}", after.epoch.0, after.next));
    let after = after.unwrap_or_default();
    format!("{RECORDS}?gateway={}{after}", GatewayId(gateway))
}

#[tokio::test]
async fn gateways_hear_what_others_told_as_it_was_told() {
    let house = TestServer::with(sealed()).await;
    assert_eq!(tell(&house, &push(2, &["early"])).await, 0);
    let start = listen(&house, 1, None).await;
    assert_eq!((start.pushes.len(), start.others), (0, 0));
    assert_eq!(tell(&house, &push(2, &["a", "b"])).await, 1);
    assert_eq!(tell(&house, &push(1, &["own"])).await, 0);
    let heard = listen(&house, 1, Some(&start)).await;
    let opened: Vec<Push> = heard
        .pushes
        .iter()
        .map(|push| push.open(Some(&key())).unwrap())
        .collect();
    assert_eq!(opened, [push(2, &["a", "b"])]);
    let heard = listen(&house, 1, Some(&heard)).await;
    assert_eq!(heard.pushes, []);
}

#[tokio::test]
async fn a_gateway_that_waits_is_woken_by_others_alone_and_when_one_joins() {
    let house = TestServer::with(sealed()).await;
    let address = house.internal();
    let wait = |after: &Pushes| {
        let path = format!("{}&wait_ms=60000", query(1, Some(after)));
        tokio::spawn(async move { pushes(&ask(address, &path).await) })
    };
    let start = listen(&house, 1, None).await;
    let waiting = wait(&start);
    tell(&house, &push(1, &["own"])).await;
    assert_eq!(listen(&house, 2, None).await.others, 1);
    let joined = waiting.await.unwrap();
    assert_eq!((joined.pushes.len(), joined.others), (0, 1));
    let waiting = wait(&joined);
    tell(&house, &push(1, &["own"])).await;
    tell(&house, &push(2, &["a"])).await;
    assert_eq!(waiting.await.unwrap().pushes.len(), 1);
    // A request whose number of other gateways is out of date does not wait.
    let address_of =
        |others: u32| format!("{}&wait_ms=60000&others={others}", query(1, Some(&joined)));
    let at_once = pushes(&ask(address, &address_of(7)).await);
    assert_eq!(at_once.others, 1);
    // Waiting requests do not delay the server's end.
    let waiting = wait(&listen(&house, 1, None).await);
    until("it waits", || house.app().readers.listening() == 1).await;
    house.server.stop().await;
    assert_eq!(waiting.await.unwrap().pushes, []);
}

fn sealed() -> Options {
    let mut keys = tempfile::NamedTempFile::new().unwrap();
    keys.write_all(b"a reader").unwrap();
    Options {
        kv_keys: Some(ApiKeys::load(keys.path()).unwrap()),
        feed_key: Some(key()),
        ..Options::default()
    }
}

#[tokio::test]
async fn with_a_feed_key_pushes_are_its_holders_and_show_nothing() {
    let house = TestServer::with(sealed()).await;
    let (key, other) = (key(), FeedKey::new(&[8; 32]));
    let body = json_of(&push(1, &["tenant red"]), Some(&key));
    for token in [None, Some("x"), Some(other.token())] {
        let refused = tell_with(&house, token, &body).await;
        refused.error(401, "invalid_api_key", None);
    }
    // A reader with a key of its own cannot seal, so it cannot push.
    for (key, words) in [
        (Some(&other), "sealed with another key"),
        (None, "is not sealed"),
    ] {
        let refused = tell_with(&house, Some("a reader"), &json_of(&push(1, &[]), key)).await;
        let message = refused.error(400, "invalid_value", Some("payload"));
        assert!(message.contains(words), "{message}");
    }
    let hear = |token: String| {
        let path = query(2, None);
        let address = house.internal();
        async move {
            let bearer = format!("Bearer {token}");
            let headers = [("authorization", &*bearer)];
            send(address, "GET", &path, &headers, b"").await.status
        }
    };
    assert_eq!(hear("x".to_owned()).await, 401);
    assert_eq!(hear(key.token().to_owned()).await, 200);
    let told = tell_with(&house, Some(key.token()), &body).await;
    assert_eq!(told.status, 200, "{}", told.text());
    assert!(!body.to_string().contains("74656e616e7420726564"), "{body}");
}

/// A chat whose conversation is recorded, and the record of its newest request.
fn record() -> PeerUpdate {
    let config = json!({"conversation": {"pin": true}});
    let config = Config::from_json(config.to_string().as_bytes()).unwrap();
    let mut orderer = Orderer::new(config);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "Why?"}],
        "documents": [{"id": "d", "text": "a secret of the tenant's"}]});
    let rewrite = orderer.rewrite(Tenant::named("red"), body.to_string().as_bytes());
    PeerUpdate::OrderingRecord(rewrite.unwrap().record)
}

#[tokio::test]
async fn only_updates_that_hold_no_text_are_passed_on() {
    let house = TestServer::with(sealed()).await;
    let start = listen(&house, 9, None).await;
    let (key, record) = (key(), record());
    let (whole, bare) = (record.encode(), record.encode_remote());
    let holds = |bytes: &[u8]| bytes.windows(6).any(|part| part == b"secret");
    assert!(holds(&whole) && !holds(&bare), "the record has a text");
    let longer = [&bare[..], b"\0"].concat();
    for (updates, wrong) in [
        (vec![whole], Some(0)),
        (vec![bare.clone(), b"words".to_vec()], Some(1)),
        (vec![longer], Some(0)),
        (vec![Vec::new()], Some(0)),
        (vec![bare], None),
    ] {
        let push = Push {
            updates,
            ..push(1, &[])
        };
        let told = tell_with(&house, Some(key.token()), &json_of(&push, Some(&key))).await;
        let Some(at) = wrong else {
            assert_eq!(told.status, 200, "{}", told.text());
            continue;
        };
        let message = told.error(400, "invalid_value", Some("payload"));
        assert!(
            message.contains(&format!("update {at} is none")),
            "{message}"
        );
    }
    assert_eq!(listen(&house, 9, Some(&start)).await.pushes.len(), 1);
}

#[tokio::test]
async fn a_push_that_is_none_is_refused_with_its_field_and_limit_and_not_passed_on() {
    let house = TestServer::with(sealed()).await;
    let start = listen(&house, 9, None).await;
    let key = key();
    let good = json_of(&push(1, &["a"]), Some(&key));
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body
    };
    for (body, param, words) in [
        (json!([]), None, "no push: "),
        (json!({}), None, "missing field `gateway`"),
        (with("gateway", json!("1")), None, "16 hexadecimal digits"),
        (
            with("gateway", json!("00000000000000aa")),
            Some("payload"),
            "another one than its push names",
        ),
        (
            with("payload", json!("0")),
            Some("payload"),
            "does not open it",
        ),
        (
            with("payload", json!("")),
            Some("payload"),
            "does not open it",
        ),
        (
            with("key", json!("00000000000000aa")),
            Some("payload"),
            "sealed with another key",
        ),
        (
            json_of(&push(1, &[""; 257]), Some(&key)),
            Some("payload"),
            "257 updates, more than the limit of 256",
        ),
        (
            with("payload", json!("0".repeat(2 * MAX_PUSH_BYTES + 2))),
            Some("payload"),
            "65537 bytes, more than the limit of 65536",
        ),
    ] {
        let refused = tell_with(&house, Some(key.token()), &body).await;
        let message = refused.error(400, "invalid_value", param);
        assert!(message.contains(words), "{message} lacks {words}");
    }
    let long = json!("0".repeat(2 * MAX_PUSH_BYTES + 4_000));
    let refused = tell_with(&house, Some(key.token()), &with("payload", long)).await;
    refused.error(413, "body_too_large", None);
    assert_eq!(listen(&house, 9, Some(&start)).await.next, start.next);
    for (query, param, words) in [
        ("", "gateway", "is missing"),
        ("gateway=x", "gateway", "16 hexadecimal digits, got \"x\""),
        ("gateway=0000000000000001&since=1", "since", "give both"),
        (
            "gateway=0000000000000001&wait_ms=60001",
            "wait_ms",
            "from 0 to 60000",
        ),
        ("gatway=0000000000000001", "gatway", "the parameters are"),
    ] {
        let refused = ask(house.internal(), &format!("{RECORDS}?{query}")).await;
        let message = refused.error(400, "invalid_value", Some(param));
        assert!(message.contains(words), "{query}: {message}");
    }
}

#[tokio::test]
async fn who_pushes_more_than_its_key_may_is_told_to_wait_and_others_are_not() {
    let house = TestServer::with(sealed()).await;
    let key = key();
    // A push counts against the key's budget even if it is malformed.
    let long = json!("x".repeat(2 * MAX_PUSH_BYTES));
    let mut refused = None;
    for _ in 0..20_000 {
        let response = tell_with(&house, Some(key.token()), &long).await;
        if response.status != 400 {
            refused = Some(response);
            break;
        }
    }
    let refused = refused.expect("there is a limit");
    let message = refused.error(429, "push_rate", None);
    assert!(message.contains("8388608 bytes a second"), "{message}");
    assert_eq!(refused.header("retry-after"), Some("1"));
    let empty = json_of(&push(1, &[]), Some(&key));
    let other = tell_with(&house, Some("a reader"), &empty).await;
    assert_eq!(other.status, 200);
}

#[tokio::test]
async fn without_a_key_nothing_is_told_even_on_loopback_and_gateways_elsewhere_are_refused() {
    let (_house, here) = TestServer::with_internal_everywhere(Options::default()).await;
    let refused = get(here, &query(1, None)).await;
    refused.error(403, "feed_key_required", None);
    let body = json_of(&push(1, &[]), None).to_string();
    let refused = send(here, "POST", RECORDS, &JSON, body.as_bytes()).await;
    let refused = refused.read().await;
    refused.error(403, "feed_key_required", None);

    // On loopback they may listen, but receive nothing.
    let house = TestServer::open().await;
    let address = house.internal();
    assert_eq!(get(address, &query(1, None)).await.status, 200);
    for body in [
        json_of(&push(1, &[]), None),
        json_of(&push(1, &["a"]), Some(&key())),
        json!({}),
    ] {
        let refused = tell_with(&house, None, &body).await;
        refused.error(403, "feed_key_required", None);
    }
}

#[tokio::test]
async fn places_of_those_who_listen_are_bounded() {
    let house = TestServer::with(sealed()).await;
    let address = house.internal();
    let start = listen(&house, 0, None).await;
    let mut waiting = Vec::new();
    for _ in 0..MAX_READERS {
        let path = format!("{}&wait_ms=60000", query(0, Some(&start)));
        waiting.push(tokio::spawn(
            async move { ask(address, &path).await.status },
        ));
    }
    until("all wait", || {
        house.app().readers.listening() == MAX_READERS
    })
    .await;
    let refused = ask(house.internal(), &query(0, Some(&start))).await;
    refused.error(429, "queue_full", None);
    // Readers of the feed have separate places.
    assert_eq!(ask(house.internal(), "/v1/kv/events").await.status, 200);
    tell(&house, &push(7, &[])).await;
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), 200);
    }
}
