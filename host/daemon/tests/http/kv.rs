//! `GET /v1/kv/events` and `GET /v1/kv/snapshot`: the feed as gateways read it. What happens in the cache is scripted
//! here; that the engine tells the truth about its own is tested beside it.

use crate::chat::say;
use crate::support::client::{JSON, Reply, Response, get, post_bytes, send};
use crate::support::{House, MODEL, Options, loading, until};
use foreword::keys::ApiKeys;
use foreword::kv::http::MAX_READERS;
use foreword_engine::cache::CacheEvent;
use foreword_ordering::document::Fingerprint;
use foreword_ordering::feed::{Batch, Change, Event, Follower, TenantKey};
use foreword_ordering::{Config, Orderer, Tenant};
use serde_json::json;
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

fn happen(house: &House, events: Vec<CacheEvent>) {
    let model = house.app().model.get().expect("the model is there");
    model.engine().feed().publish(events);
}

fn batch(response: &Response) -> Batch {
    assert_eq!(response.status, 200, "{}", response.text());
    serde_json::from_slice(&response.body).expect("a batch")
}

async fn read(house: &House, query: &str) -> Batch {
    batch(&get(house.address(), &format!("{EVENTS}?{query}")).await)
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
    let house = House::open().await;
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
    assert_eq!(follower.follow(&all).next(), Some(Change::Forget));

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

    // In small bites the same.
    let mut bites = Follower::default();
    bites.follow(&all).for_each(drop);
    for _ in 0..3 {
        let bite = read(&house, &format!("limit=1&{}", bites.query())).await;
        assert_eq!(bites.follow(&bite).count(), 1);
    }
    assert_eq!(bites, follower);

    // The snapshot needs no position and ignores one.
    let response = get(house.address(), &format!("{SNAPSHOT}?{}", follower.query())).await;
    assert!(batch(&response).reset);
}

#[tokio::test]
async fn a_reader_that_waits_is_answered_when_something_happens_to_its_tenant() {
    let house = House::open().await;
    let start = read(&house, "").await;
    let query = format!(
        "wait_ms=60000&epoch={:016x}&since={}&tenant={}",
        start.epoch.0,
        start.next,
        TenantKey::of("mine")
    );
    let address = house.address();
    let waiting = tokio::spawn(async move { get(address, &format!("{EVENTS}?{query}")).await });
    until("the reader waits", || house.app().readers.reading() > 0).await;
    happen(&house, vec![stored("another's", &[1])]);
    happen(&house, vec![stored("mine", &[2])]);
    let news = batch(&waiting.await.unwrap());
    assert_eq!(paths(&news), [[2]]);
    // What was passed over counts.
    assert_eq!((news.from, news.next), (start.next, start.next + 2));
}

#[tokio::test]
async fn a_server_that_stops_waits_for_no_reader() {
    let house = House::open().await;
    let start = read(&house, "").await;
    let query = format!(
        "wait_ms=60000&epoch={:016x}&since={}",
        start.epoch.0, start.next
    );
    let address = house.address();
    let waiting = tokio::spawn(async move { get(address, &format!("{EVENTS}?{query}")).await });
    let mut stream = stream(&house, &[]).await;
    until("both read", || house.app().readers.reading() == 2).await;
    assert!(stream.event_json().await["reset"].as_bool().unwrap());
    house.server.stop().await;
    assert_eq!(batch(&waiting.await.unwrap()).events, []);
    assert!(stream.events().await.len() <= 1);
}

async fn stream(house: &House, headers: &[(&str, &str)]) -> Reply {
    let headers = [&[("accept", "text/event-stream")], headers].concat();
    send(house.address(), "GET", EVENTS, &headers, b"").await
}

#[tokio::test]
async fn a_stream_tells_one_batch_after_another_and_goes_on_where_it_broke_off() {
    let house = House::open().await;
    happen(&house, vec![stored("", &[1])]);
    let mut first = stream(&house, &[]).await;
    let all: Batch = serde_json::from_value(first.event_json().await).unwrap();
    assert_eq!(paths(&all), [[1]]);
    happen(&house, vec![stored("", &[2])]);
    let more: Batch = serde_json::from_value(first.event_json().await).unwrap();
    assert_eq!((more.reset, paths(&more)), (false, vec![vec![2]]));
    drop(first);

    happen(&house, vec![stored("", &[3])]);
    let id = format!("{:016x}-{}", more.epoch.0, more.next);
    let mut second = stream(&house, &[("last-event-id", &id)]).await;
    let more: Batch = serde_json::from_value(second.event_json().await).unwrap();
    assert_eq!((more.reset, paths(&more)), (false, vec![vec![3]]));
}

#[tokio::test]
async fn a_reader_that_is_too_slow_begins_anew_and_holds_nothing_up() {
    let house = House::open().await;
    let mut follower = Follower::default();
    follower.follow(&read(&house, "").await).for_each(drop);
    // A stream that nobody reads.
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
    // The engine answers as ever.
    let answer = post_bytes(house.address(), CHAT, say("hello").to_string().as_bytes()).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn tenants_are_told_apart_and_salts_are_not_told() {
    let house = House::open().await;
    happen(
        &house,
        vec![
            stored("secret-a", &[1]),
            stored("secret-b", &[2]),
            stored("", &[3]),
        ],
    );
    let response = get(house.address(), SNAPSHOT).await;
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
        let house = House::with(Options {
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
                let reply = send(house.address(), "GET", path, &headers, b"").await;
                assert_eq!(reply.status, status, "{path} with {key:?}");
            }
        }
    }
}

#[tokio::test]
async fn bad_parameters_are_named_with_value_and_limit() {
    let house = House::open().await;
    for (query, param, words) in [
        ("since=3", "since", "give both"),
        ("epoch=00000000000000ab", "since", "give both"),
        (
            "epoch=ab&since=3",
            "epoch",
            "16 hexadecimal digits, got \"ab\"",
        ),
        ("epoch=00000000000000ab&since=x", "since", "got \"x\""),
        ("wait_ms=60001", "wait_ms", "up to 60000, got \"60001\""),
        ("limit=-1", "limit", "up to 4096"),
        ("tenant=bob", "tenant", "32 hexadecimal digits, got \"bob\""),
    ] {
        let response = get(house.address(), &format!("{EVENTS}?{query}")).await;
        let message = response.error(400, "invalid_value", Some(param));
        assert!(message.contains(words), "{query}: {message}");
    }
    let response = send(house.address(), "POST", EVENTS, &JSON, b"{}")
        .await
        .read()
        .await;
    response.error(405, "method_not_allowed", None);
}

#[tokio::test]
async fn there_is_no_feed_without_a_model_and_none_for_too_many() {
    let server = loading(Options::default()).await;
    get(server.address(), EVENTS)
        .await
        .error(503, "loading", None);

    let house = House::open().await;
    let mut streams = Vec::new();
    for _ in 0..MAX_READERS {
        streams.push(stream(&house, &[]).await);
    }
    let refused = get(house.address(), EVENTS).await;
    refused.error(429, "queue_full", None);
    assert_eq!(refused.header("retry-after"), Some("1"));
    streams.clear();
    until("they have gone", || house.app().readers.reading() == 0).await;
    assert_eq!(get(house.address(), EVENTS).await.status, 200);
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_path_that_does_not_fit_costs_nothing_and_each_case_is_counted() {
    let house = House::open().await;
    let body = |ids: &[&str]| {
        let documents: Vec<_> = ids
            .iter()
            .map(|id| format!("<doc id={id}>text of {id}</doc>"))
            .collect();
        json!({"model": MODEL, "messages": [{"role": "user", "content": format!("{} say(yes)", documents.concat())}]})
            .to_string()
    };
    let path_of = |body: &str| {
        let mut orderer = Orderer::new(Config::default());
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
    let house = House::open().await;
    let blocks = ["a", "bc", "def"]
        .map(|id| format!("<doc id={id}>{}</doc>", format!("text of {id} ").repeat(4)));
    let body = |blocks: &[String]| {
        let content = format!("{} say(yes)", blocks.concat());
        json!({"model": MODEL, "messages": [{"role": "user", "content": content}]}).to_string()
    };
    let mut orderer = Orderer::new(Config::default());
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

        // The answer is there, so the feed is.
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
            // A byte is a token here.
            assert_eq!((document, *tokens as usize), (chosen, block.len()));
        }
    }
    let model = house.app().model.get().expect("the model is there");
    assert!(model.engine().clear_cache() > 0);
    assert_eq!(batch(&get(house.address(), SNAPSHOT).await).events, []);
}
