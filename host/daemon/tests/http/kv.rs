//! Tests `GET /v1/kv/events` and `GET /v1/kv/snapshot`, the feed for gateways. Cache events are scripted here; the
//! engine's own events are tested next to its code.

use crate::chat::say;
use crate::support::client::{JSON, Reply, Response, get, post_bytes, send};
use crate::support::{MODEL, Options, TestServer, internal, loading, until};
use foreword_engine::cache::CacheEvent;
use foreword_ordering::document::Fingerprint;
use foreword_ordering::feed::{Batch, Event, FeedKey, Follower, TenantKey};
use foreword_ordering::{Config, Orderer, Tenant};
use foreword_server::keys::ApiKeys;
use foreword_server::kv::http::MAX_READERS;
use serde_json::{Value, json};
use std::io::Write;

const EVENTS: &str = "/v1/kv/events";
const SNAPSHOT: &str = "/v1/kv/snapshot";

fn stored(salt: &str, path: &[u64]) -> CacheEvent {
    CacheEvent::DocumentsStored {
        salt: salt.into(),
        scope: 1,
        path: path.iter().map(|&document| (document, 10)).collect(),
    }
}

fn removed(salt: &str, path: &[u64]) -> CacheEvent {
    CacheEvent::DocumentsRemoved {
        salt: salt.into(),
        scope: 1,
        path: path.iter().map(|&document| (document, 10)).collect(),
    }
}

fn happen(house: &TestServer, events: Vec<CacheEvent>) {
    let model = house.app().model.get().expect("the model is there");
    model.engine().feed().publish(events);
}

fn batch(response: &Response) -> Batch {
    assert_eq!(response.status, 200, "{}", response.text());
    Batch::read(&response.body, None).expect("a batch")
}

async fn read(house: &TestServer, query: &str) -> Batch {
    batch(&get(house.internal(), &format!("{EVENTS}?{query}")).await)
}

/// The documents of stored paths.
fn paths(batch: &Batch) -> Vec<Vec<u64>> {
    let path = |event: &Event| match event {
        Event::Stored { path, .. } => Some(path.iter().map(|(document, _)| document.0).collect()),
        Event::Removed { .. } | Event::Cleared => None,
    };
    batch.events.iter().filter_map(path).collect()
}

#[tokio::test]
async fn a_reader_gets_all_that_is_held_and_then_what_happens() {
    let house = TestServer::open().await;
    happen(
        &house,
        vec![
            stored("", &[1]),
            stored("", &[1, 2]),
            stored("", &[1, 3]),
            removed("", &[1, 2]),
        ],
    );
    let mut follower = Follower::default();
    let all = read(&house, &follower.query()).await;
    assert_eq!((all.reset, &*all.model), (true, MODEL));
    assert_eq!(paths(&all), [[1, 3]]);
    assert_eq!(follower.follow(&all).next(), Some(&Event::Cleared));

    happen(
        &house,
        vec![stored("", &[4]), removed("", &[1, 3]), CacheEvent::Cleared],
    );
    let more = read(&house, &follower.query()).await;
    assert!(!more.reset);
    let [
        Event::Stored { .. },
        Event::Removed { path, .. },
        Event::Cleared,
    ] = &more.events[..]
    else {
        panic!("{more:?}")
    };
    assert_eq!(path, &[Fingerprint(1), Fingerprint(3)]);
    assert_eq!(follower.follow(&more).count(), 3);

    // The same in small responses.
    let mut bites = Follower::default();
    bites.follow(&all).for_each(drop);
    for _ in 0..3 {
        let bite = read(&house, &format!("limit=1&{}", bites.query())).await;
        assert_eq!(bites.follow(&bite).count(), 1);
    }
    assert_eq!(bites, follower);

    // The snapshot needs no position and ignores one.
    let response = get(
        house.internal(),
        &format!("{SNAPSHOT}?{}", follower.query()),
    )
    .await;
    assert!(batch(&response).reset);
}

#[tokio::test]
async fn a_reader_that_waits_is_answered_when_something_happens_to_its_tenant() {
    let house = TestServer::open().await;
    let start = read(&house, "").await;
    let query = format!(
        "wait_ms=60000&epoch={:016x}&since={}&tenant={}",
        start.epoch.0,
        start.next,
        TenantKey::of("mine")
    );
    let address = house.internal();
    let waiting = tokio::spawn(async move { get(address, &format!("{EVENTS}?{query}")).await });
    until("the reader waits", || house.app().readers.reading() > 0).await;
    happen(&house, vec![stored("another's", &[1])]);
    happen(&house, vec![stored("mine", &[2])]);
    let news = batch(&waiting.await.unwrap());
    assert_eq!(paths(&news), [[2]]);
    // Skipped events count.
    assert_eq!((news.from, news.next), (start.next, start.next + 2));
}

#[tokio::test]
async fn a_server_that_stops_waits_for_no_reader() {
    let house = TestServer::open().await;
    let start = read(&house, "").await;
    let query = format!(
        "wait_ms=60000&epoch={:016x}&since={}",
        start.epoch.0, start.next
    );
    let address = house.internal();
    let waiting = tokio::spawn(async move { get(address, &format!("{EVENTS}?{query}")).await });
    let mut stream = stream(&house, &[]).await;
    until("both read", || house.app().readers.reading() == 2).await;
    assert!(stream.event_json().await["reset"].as_bool().unwrap());
    house.server.stop().await;
    assert_eq!(batch(&waiting.await.unwrap()).events, []);
    assert!(stream.events().await.len() <= 1);
}

async fn stream(house: &TestServer, headers: &[(&str, &str)]) -> Reply {
    let headers = [&[("accept", "text/event-stream")], headers].concat();
    send(house.internal(), "GET", EVENTS, &headers, b"").await
}

async fn streamed(reply: &mut Reply) -> Batch {
    let event = reply.event_json().await.to_string();
    Batch::read(event.as_bytes(), None).expect("a batch")
}

#[tokio::test]
async fn a_stream_tells_one_batch_after_another_and_goes_on_where_it_broke_off() {
    let house = TestServer::open().await;
    happen(&house, vec![stored("", &[1])]);
    let mut first = stream(&house, &[]).await;
    let all = streamed(&mut first).await;
    assert_eq!(paths(&all), [[1]]);
    happen(&house, vec![stored("", &[2])]);
    let more = streamed(&mut first).await;
    assert_eq!((more.reset, paths(&more)), (false, vec![vec![2]]));
    drop(first);

    happen(&house, vec![stored("", &[3])]);
    let id = format!("{:016x}-{}", more.epoch.0, more.next);
    let mut second = stream(&house, &[("last-event-id", &id)]).await;
    let more = streamed(&mut second).await;
    assert_eq!((more.reset, paths(&more)), (false, vec![vec![3]]));
}

#[tokio::test]
async fn a_reader_that_is_too_slow_begins_anew_and_holds_nothing_up() {
    let house = TestServer::open().await;
    let mut follower = Follower::default();
    follower.follow(&read(&house, "").await).for_each(drop);
    // A stream that is not read.
    let _unread = stream(&house, &[]).await;
    for round in 0..20_000 {
        happen(
            &house,
            vec![stored("", &[round, 7]), removed("", &[round, 7])],
        );
    }
    happen(&house, vec![stored("", &[1, 2, 3])]);
    let news = read(&house, &follower.query()).await;
    assert!(news.reset);
    assert_eq!(paths(&news), [[1, 2, 3]]);
    // The engine answers as usual.
    let answer = post_bytes(house.address(), CHAT, say("hello").to_string().as_bytes()).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn tenants_are_told_apart_and_salts_are_not_told() {
    let house = TestServer::open().await;
    happen(
        &house,
        vec![
            stored("secret-a", &[1]),
            stored("secret-b", &[2]),
            stored("", &[3]),
        ],
    );
    let response = get(house.internal(), SNAPSHOT).await;
    assert!(!response.text().contains("secret"), "{}", response.text());
    assert_eq!(paths(&batch(&response)).len(), 3);
    for (tenant, document) in [("secret-a", 1), ("secret-b", 2), ("", 3)] {
        let query = format!("tenant={}", TenantKey::of(tenant));
        assert_eq!(paths(&read(&house, &query).await), [[document]], "{tenant}");
    }
}

#[tokio::test]
async fn the_feed_has_keys_of_its_own_where_there_are_some() {
    let keys = |text: &str| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Some(ApiKeys::load(file.path()).unwrap())
    };
    for (api, feed, opens, shut) in [
        (keys("api"), keys("feed"), Some("feed"), Some("api")),
        (keys("api"), None, Some("api"), Some("feed")),
        (None, keys("feed"), Some("feed"), None),
        (keys("api"), keys("feed"), Some("feed"), None),
    ] {
        let house = TestServer::with(Options {
            keys: api,
            kv_keys: feed,
            ..Options::default()
        })
        .await;
        for path in [EVENTS, SNAPSHOT] {
            for (key, status) in [(opens, 200), (shut, 401)] {
                let bearer = key.map(|key| format!("Bearer {key}"));
                let headers: Vec<_> = bearer
                    .iter()
                    .map(|value| ("authorization", &**value))
                    .collect();
                let reply = send(house.internal(), "GET", path, &headers, b"").await;
                assert_eq!(reply.status, status, "{path} with {key:?}");
            }
        }
    }
}

fn sealed(file: &str) -> Options {
    let mut keys = tempfile::NamedTempFile::new().unwrap();
    keys.write_all(file.as_bytes()).unwrap();
    Options {
        keys: Some(ApiKeys::load(keys.path()).unwrap()),
        feed_key: Some(FeedKey::new(&[7; 32])),
        ..Options::default()
    }
}

async fn read_with(house: &TestServer, key: &str, path: &str) -> Response {
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", &*bearer)];
    let reply = send(house.internal(), "GET", path, &headers, b"").await;
    reply.read().await
}

#[tokio::test]
async fn a_sealed_feed_tells_nothing_without_its_key_and_is_read_with_the_token_made_of_it() {
    let house = TestServer::with(sealed("clients")).await;
    let key = FeedKey::new(&[7; 32]);
    let document = Fingerprint::of(&[b"a document that somebody guesses"]).0;
    happen(&house, vec![stored("salt", &[document]), stored("", &[5])]);
    // Clients' keys give access to the API, but not to this.
    for other in ["clients", "", FeedKey::new(&[8; 32]).token()] {
        let refused = read_with(&house, other, SNAPSHOT).await;
        refused.error(401, "invalid_api_key", None);
    }
    let snapshot = read_with(&house, key.token(), SNAPSHOT).await;
    for told in [
        format!("{document:016x}"),
        TenantKey::of("salt").to_string(),
        ", 10]".to_owned(),
        ",10]".to_owned(),
    ] {
        assert!(!snapshot.text().contains(&told), "{}", snapshot.text());
    }
    let read = Batch::read(&snapshot.body, Some(&key)).unwrap();
    let mut found = paths(&read);
    found.sort();
    let mut expected = [vec![document], vec![5]];
    expected.sort();
    assert_eq!(found, expected);
    // One tenant's events, by its sealed name, as in the feed. Its plain name would let any client ask.
    let whose = key.seal_tenant(TenantKey::of("salt"));
    let path = format!("{EVENTS}?tenant={whose}");
    let one = read_with(&house, key.token(), &path).await;
    let one = Batch::read(&one.body, Some(&key)).unwrap();
    assert_eq!(paths(&one), [[document]]);
    let path = format!("{EVENTS}?tenant={}", TenantKey::of("salt"));
    let refused = read_with(&house, key.token(), &path).await;
    refused.error(400, "invalid_value", Some("tenant"));
}

#[tokio::test]
async fn a_feed_without_a_key_is_for_loopback_alone_and_says_that_it_has_none() {
    let (_house, here) = TestServer::with_internal_everywhere(Options::default()).await;
    for path in [EVENTS, SNAPSHOT] {
        let message = get(here, path).await.error(403, "feed_key_required", None);
        assert!(message.contains("--feed-key-file"), "{message}");
    }
    for path in ["/readyz", "/healthz", "/metrics"] {
        assert_eq!(get(here, path).await.status, 200);
    }
    let house = TestServer::open().await;
    let snapshot = get(house.internal(), SNAPSHOT).await.json();
    assert!(snapshot.as_object().unwrap().contains_key("key"));
    assert_eq!(snapshot["key"], Value::Null);
    // With a key, it is served there, too.
    let (_house, here) = TestServer::with_internal_everywhere(sealed("clients")).await;
    assert_eq!(get(here, SNAPSHOT).await.status, 401);
}

#[tokio::test]
async fn a_reader_takes_no_other_keys_places() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"greedy\nmodest\n").unwrap();
    let house = TestServer::with(Options {
        kv_keys: Some(ApiKeys::load(file.path()).unwrap()),
        ..sealed("clients")
    })
    .await;
    let mut streams = Vec::new();
    for _ in 0..MAX_READERS {
        let headers = [("authorization", "Bearer greedy")];
        let stream = stream(&house, &headers).await;
        assert_eq!(stream.status, 200);
        streams.push(stream);
    }
    let refused = read_with(&house, "greedy", EVENTS).await;
    refused.error(429, "queue_full", None);
    // Requests without a key take no place.
    for _ in 0..2 * MAX_READERS {
        get(house.internal(), EVENTS)
            .await
            .error(401, "invalid_api_key", None);
    }
    let key = FeedKey::new(&[7; 32]);
    for other in ["modest", key.token()] {
        let news = read_with(&house, other, EVENTS).await;
        assert_eq!(news.status, 200);
    }
    assert_eq!(get(house.internal(), "/readyz").await.status, 200);
}

#[tokio::test]
async fn bad_parameters_are_named_with_value_and_limit() {
    let house = TestServer::open().await;
    for (query, param, words) in [
        ("since=3", "since", "give both"),
        ("epoch=00000000000000ab", "since", "give both"),
        (
            "epoch=ab&since=3",
            "epoch",
            "16 hexadecimal digits, got \"ab\"",
        ),
        ("epoch=00000000000000ab&since=x", "since", "got \"x\""),
        ("wait_ms=60001", "wait_ms", "from 0 to 60000, got \"60001\""),
        ("limit=-1", "limit", "from 1 to 4096"),
        ("limit=0", "limit", "from 1 to 4096"),
        ("tenant=bob", "tenant", "32 hexadecimal digits, got \"bob\""),
    ] {
        let response = get(house.internal(), &format!("{EVENTS}?{query}")).await;
        let message = response.error(400, "invalid_value", Some(param));
        assert!(message.contains(words), "{query}: {message}");
    }
    let response = send(house.internal(), "POST", EVENTS, &JSON, b"{}")
        .await
        .read()
        .await;
    response.error(405, "method_not_allowed", None);
}

#[tokio::test]
async fn there_is_no_feed_without_a_model_and_none_for_too_many() {
    let server = loading(Options::default()).await;
    get(internal(&server), EVENTS)
        .await
        .error(503, "loading", None);

    let house = TestServer::open().await;
    let mut streams = Vec::new();
    for _ in 0..MAX_READERS {
        streams.push(stream(&house, &[]).await);
    }
    let refused = get(house.internal(), EVENTS).await;
    refused.error(429, "queue_full", None);
    assert_eq!(refused.header("retry-after"), Some("1"));
    streams.clear();
    until("they have gone", || house.app().readers.reading() == 0).await;
    assert_eq!(get(house.internal(), EVENTS).await.status, 200);
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_path_that_does_not_fit_costs_nothing_and_each_case_is_counted() {
    let house = TestServer::open().await;
    let body = |ids: &[&str]| {
        let documents: Vec<_> = ids
            .iter()
            .map(|id| format!("<doc id={id}>text of {id}</doc>"))
            .collect();
        json!({"model": MODEL, "messages": [{"role": "user", "content": format!("{} say(yes)", documents.concat())}]})
            .to_string()
    };
    let path_of = |body: &str| {
        let mut orderer = Orderer::new(
            Config::default().with_placement(foreword_ordering::policy::Placement::FREE),
        );
        let rewrite = orderer.rewrite(Tenant::named(""), body.as_bytes()).unwrap();
        rewrite.path.to_header().unwrap()
    };
    let (whole, other) = (body(&["a", "b"]), body(&["c"]));
    for (header, outcome) in [
        (Some(path_of(&whole)), "placed"),
        (Some(path_of(&body(&["a", "c"]))), "partial"),
        (Some(path_of(&other)), "not_found"),
        (Some("2;what?".to_owned()), "malformed"),
        (None, "absent"),
    ] {
        let mut headers = JSON.to_vec();
        headers.extend(header.as_deref().map(|path| ("x-foreword-path", path)));
        let response = send(house.address(), "POST", CHAT, &headers, whole.as_bytes())
            .await
            .read()
            .await;
        assert_eq!(
            response.json()["choices"][0]["message"]["content"],
            "yes",
            "{outcome}"
        );
        let metrics = house.app().metrics.encode().unwrap();
        let counted = format!("foreword_document_paths_total{{outcome=\"{outcome}\"}} 1");
        assert!(metrics.contains(&counted), "{outcome}: {metrics}");
    }
}

#[tokio::test]
async fn documents_that_the_gateway_named_are_told_with_their_tokens_once_they_are_computed() {
    let house = TestServer::open().await;
    let blocks = ["a", "bc", "def"]
        .map(|id| format!("<doc id={id}>{}</doc>", format!("text of {id} ").repeat(4)));
    let body = |blocks: &[String]| {
        let content = format!("{} say(yes)", blocks.concat());
        json!({"model": MODEL, "messages": [{"role": "user", "content": content}]}).to_string()
    };
    let mut orderer =
        Orderer::new(Config::default().with_placement(foreword_ordering::policy::Placement::FREE));
    let mut follower = Follower::default();
    follower.follow(&read(&house, "").await).for_each(drop);
    for count in [2, 3] {
        let body = body(&blocks[..count]);
        let path = orderer
            .rewrite(Tenant::named(""), body.as_bytes())
            .unwrap()
            .path;
        let header = path.to_header().unwrap();
        let headers = [JSON[0], ("x-foreword-path", &header)];
        let answer = send(house.address(), "POST", CHAT, &headers, body.as_bytes()).await;
        assert_eq!(answer.read().await.status, 200);

        // The answer is complete, so its events are in the feed.
        let news = read(&house, &follower.query()).await;
        follower.follow(&news).for_each(drop);
        let [
            Event::Stored {
                scope,
                path: stored,
                ..
            },
        ] = &news.events[..]
        else {
            panic!("{news:?}")
        };
        assert_eq!((*scope, stored.len()), (path.runs[0].scope, count));
        for ((document, tokens), (chosen, block)) in stored
            .iter()
            .zip(path.runs[0].documents.iter().zip(&blocks))
        {
            // One byte is one token here.
            assert_eq!((document, *tokens as usize), (chosen, block.len()));
        }
    }
    let model = house.app().model.get().expect("the model is there");
    assert!(model.engine().clear_cache() > 0);
    assert_eq!(batch(&get(house.internal(), SNAPSHOT).await).events, []);
}
