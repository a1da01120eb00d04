//! What an endpoint picker reads: the endpoints of its pool, their metrics, and a gateway's metadata. The first byte says
//! which of these the rest is.
//!
//! | first byte, modulo 4 | the rest |
//! | --- | --- |
//! | 0 | a page of metrics |
//! | 1 | a request's metadata, as protocol buffers have it |
//! | 2 | a name in DNS with its ports |
//! | 3 | the text of a subset hint, and then lists of endpoints that a file holds one after another; with a zero before each |

#[allow(
    dead_code,
    unreachable_pub,
    reason = "compiled here as it stands in the gateway, without its tests"
)]
#[path = "../../host/gateway/src/pool/mod.rs"]
mod pool;

use self::pool::source::{Listing, Name, Source};
use self::pool::subset::{self, Subset};
use self::pool::{Endpoint, MAX_ENDPOINTS, Pool, PoolOptions, scrape};
use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};
use foreword_filter::EngineId;
use prost::Message;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

pub(crate) fn run(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    match kind % 4 {
        0 => metrics(rest),
        1 => metadata(rest),
        2 => name(rest),
        _ => lists(rest),
    }
}

/// A page that is served twice reports twice the requests, and the same caches.
fn metrics(page: &[u8]) {
    let Some(once) = scrape::load(page) else {
        return;
    };
    assert!(once.kv_usage.is_finite() && once.kv_usage >= 0.0);
    let twice = scrape::load(&[page, b"\n", page].concat()).expect("it reported a queue");
    assert_eq!(twice.waiting, once.waiting.saturating_mul(2));
    assert_eq!(twice.running, once.running.saturating_mul(2));
    assert_eq!(twice.kv_usage.to_bits(), once.kv_usage.to_bits());
}

fn metadata(bytes: &[u8]) {
    let Ok(metadata) = Metadata::decode(bytes) else {
        return;
    };
    let metadata: BTreeMap<String, Struct> = metadata.filter_metadata.into_iter().collect();
    let _ = subset::served(&metadata);
    let text = String::from_utf8_lossy(bytes);
    if let Some(subset) = Subset::of(&metadata) {
        // Whatever is eligible is written out in what the gateway sent.
        let addresses: Vec<SocketAddr> = (1..=9)
            .map(|last| ([10, 0, 0, last], 8000).into())
            .collect();
        for address in addresses {
            let is_named = text.contains(&address.ip().to_string());
            assert!(
                is_named || !subset.holds(address),
                "{address} is in no hint"
            );
        }
    }
}

/// A name that is taken has ports, and is what it was read from.
fn name(text: &[u8]) {
    let Ok(text) = str::from_utf8(text) else {
        return;
    };
    match text.parse::<Name>() {
        Ok(name) => {
            let shown = Source::Dns(name).to_string();
            assert!(!shown.is_empty() && shown.len() <= 253);
            assert!(text.starts_with(&shown), "{text:?} became {shown:?}");
        }
        Err(error) => assert!(!error.is_empty()),
    }
}

/// A pool holds what the last good list has, and an endpoint that stays keeps its place.
fn lists(bytes: &[u8]) {
    let mut parts = bytes.split(|byte| *byte == 0);
    let hint = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let subset = Subset::of(&hinted(&hint)).expect("there is a hint");
    let pool = Pool::new(PoolOptions::new(Source::File("endpoints.yaml".into())));
    let mut places: BTreeMap<SocketAddr, EngineId> = BTreeMap::new();
    for part in parts.take(MAX_LISTS) {
        let endpoints = match Listing::File(part.to_vec()).endpoints() {
            Ok(endpoints) => endpoints,
            Err(error) => {
                let error = error.to_string();
                assert!(!error.is_empty() && error.lines().count() == 1, "{error:?}");
                continue;
            }
        };
        assert!(endpoints.len() <= MAX_ENDPOINTS);
        assert!(
            endpoints
                .iter()
                .all(|endpoint| endpoint.address.port() != 0)
        );
        let change = pool.plan(&endpoints);
        let renewed = change.renewed.clone();
        pool.make(change);
        places = checked(&pool, &subset, &endpoints, &places, &renewed);
    }
}

/// Checks what requests see of a pool, and returns the place of each endpoint.
fn checked(
    pool: &Pool,
    subset: &Subset,
    listed: &[Endpoint],
    before: &BTreeMap<SocketAddr, EngineId>,
    renewed: &[EngineId],
) -> BTreeMap<SocketAddr, EngineId> {
    let view = pool.view(Some(subset), Instant::now());
    let now: BTreeMap<SocketAddr, EngineId> = (view.engines.iter())
        .map(|engine| (engine.address, engine.engine))
        .collect();
    let mut ids: Vec<u16> = now.values().map(|id| id.0).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), view.engines.len(), "places are distinct");
    assert!(ids.iter().all(|id| usize::from(*id) < MAX_ENDPOINTS));
    // As many as are listed, since a list is never longer than there are places.
    assert_eq!(now.len(), listed.len());
    for endpoint in listed {
        let place = now.get(&endpoint.address).expect("it is listed");
        match before.get(&endpoint.address) {
            Some(kept) => assert_eq!(place, kept),
            None => {
                let other = before.iter().find(|(_, id)| *id == place);
                let left = other.is_some_and(|(address, _)| !now.contains_key(address));
                assert!(other.is_none() || left && renewed.contains(place));
            }
        }
    }
    for engine in &view.engines {
        assert_eq!(engine.is_eligible, subset.holds(engine.address));
    }
    now
}

/// Metadata with this text as the hint.
fn hinted(hint: &str) -> BTreeMap<String, Struct> {
    let text = |text: &str| Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    };
    let list = ListValue {
        values: hint.split(';').map(text).collect(),
    };
    let value = Value {
        kind: Some(Kind::ListValue(list)),
    };
    let fields = [(SUBSET_KEY.to_owned(), value)].into_iter().collect();
    BTreeMap::from([(SUBSET_NAMESPACE.to_owned(), Struct { fields })])
}

/// Lists that a pool takes one after another: places must run out, which takes several.
const MAX_LISTS: usize = 16;

const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
const SUBSET_KEY: &str = "x-gateway-destination-endpoint-subset";

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let with = |kind: u8, rest: &[u8]| [&[kind], rest].concat();
    let metadata = Metadata {
        filter_metadata: hinted("10.0.0.1:8000, 10.0.0.2;10.0.0.3:8001")
            .into_iter()
            .collect(),
        ..Metadata::default()
    };
    // As many endpoints as there are places, and then others.
    let many = |first: usize, count: usize| {
        let lines =
            (first..first + count).map(|at| format!("- 10.1.{}.{}:80\n", at / 200, at % 200));
        format!("endpoints:\n{}", lines.collect::<String>())
    };
    let [all, next] = [many(0, MAX_ENDPOINTS), many(9, MAX_ENDPOINTS)];
    vec![
        with(0, b"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine=\"0\",m=\"a}\\\"\"} 2.0\nvllm:num_requests_running 7 1700000000\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.5\n"),
        with(0, b"sglang:num_queue_reqs 1e18\r\nsglang:num_running_reqs 5\nsglang:token_usage 0.9"),
        with(1, &metadata.encode_to_vec()),
        with(2, b"vllm.llm.svc.cluster.local:8000,8001"),
        with(3, b"10.0.0.1:8000\0endpoints:\n- 10.0.0.1:8000\n- {name: b, address: 10.0.0.2, port: \"8000\", metrics: 10.0.0.2:9400}\n\0{\"endpoints\": [\"[::1]:80\", \"10.0.0.1:8000\"]}\0endpoints: []\n"),
        with(3, format!("10.1.0.3\0{all}\0{next}\0{all}").as_bytes()),
    ]
}
