//! Tests streams of an endpoint picker. Names in italics are cases of llm-d-router's hermetic tests
//! (`hermetic_test.go`) and of the inference extension's light picker. Their cases on LoRA, model rewriting and
//! Kubernetes objects do not apply.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value as Field};
use foreword_filter::{DESTINATION_HEADER, MAX_ENGINES};

use super::*;
use crate::pool::source::Source;
use crate::pool::{Endpoint, Load, Pool, PoolOptions};

fn address(number: usize) -> SocketAddr {
    let [high, low] = u16::try_from(number).unwrap().to_be_bytes();
    SocketAddr::from(([192, 168, 1 + high, low], 8000))
}

/// A picker over endpoints 1 to `endpoints`, which names as many fallbacks.
fn picker(plugin: &Value, endpoints: usize, fallbacks: usize) -> Arc<Processor> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), plugin.to_string()).unwrap();
    picker_of(file.path(), endpoints, fallbacks)
}

/// The same, with its configuration in this file.
fn picker_of(file: &Path, endpoints: usize, fallbacks: usize) -> Arc<Processor> {
    let pool = Pool::new(PoolOptions {
        fallbacks,
        sheddable: vec!["batch".to_owned()],
        // Longer than any test.
        scrape_interval: Duration::from_secs(600),
        ..PoolOptions::new(Source::File("endpoints.yaml".into()))
    });
    let bounds = Bounds::default();
    let processor = Processor::load(file, BTreeMap::new(), Some(pool), bounds).unwrap();
    set(&processor, &(1..=endpoints).collect::<Vec<_>>());
    processor
}

fn set(processor: &Processor, numbers: &[usize]) {
    let endpoints = numbers.iter().map(|number| Endpoint::at(address(*number)));
    processor.take_endpoints(&endpoints.collect::<Vec<_>>());
}

/// Reports the loads of endpoints 1, 2, …: waiting requests, and the used share of the cache.
fn report(processor: &Processor, loads: &[(u64, f64)]) {
    for ((waiting, kv_usage), number) in loads.iter().zip(1..) {
        let load = Load {
            waiting: *waiting,
            running: 0,
            kv_usage: *kv_usage,
        };
        let pool = processor.pool.as_ref().unwrap();
        pool.report(address(number), load, Instant::now(), 0);
    }
}

fn text(text: &str) -> Field {
    Field {
        kind: Some(Kind::StringValue(text.to_owned())),
    }
}

fn with_metadata(
    message: ProcessingRequest,
    namespace: &str,
    key: &str,
    value: Field,
) -> ProcessingRequest {
    let fields = [(key.to_owned(), value)].into_iter().collect();
    let filter_metadata = [(namespace.to_owned(), Struct { fields })]
        .into_iter()
        .collect();
    ProcessingRequest {
        metadata_context: Some(Metadata {
            filter_metadata,
            ..Metadata::default()
        }),
        ..message
    }
}

/// The first message of a request that allows only these endpoints.
fn within_subset(message: ProcessingRequest, numbers: &[usize]) -> ProcessingRequest {
    let entries = numbers.iter();
    let values = entries.map(|number| text(&address(*number).to_string()));
    let value = Field {
        kind: Some(Kind::ListValue(ListValue {
            values: values.collect(),
        })),
    };
    let key = "x-gateway-destination-endpoint-subset";
    with_metadata(message, "envoy.lb.subset_hint", key, value)
}

/// An answer's destinations. Header and metadata must agree, and the route is recomputed.
fn destinations(answer: &ProcessingResponse) -> Option<Vec<usize>> {
    let header = changes(answer).remove(DESTINATION_HEADER).flatten();
    let metadata = answer.dynamic_metadata.as_ref();
    let metadata = metadata.and_then(|it| match &it.fields.get("envoy.lb")?.kind {
        Some(Kind::StructValue(fields)) => match &fields.fields[DESTINATION_HEADER].kind {
            Some(Kind::StringValue(text)) => Some(text.clone()),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    });
    assert_eq!(header, metadata, "{answer:?}");
    assert_eq!(common(answer).clear_route_cache, header.is_some());
    let numbers = header?;
    let numbers = numbers.split(',').map(|text| {
        let address: SocketAddr = text.parse().unwrap();
        assert_eq!(address.port(), 8000);
        let SocketAddr::V4(address) = address else {
            panic!("{address}");
        };
        usize::from(address.ip().octets()[3])
    });
    Some(numbers.collect())
}

/// The destinations of a chat without documents.
fn picked(processor: &Arc<Processor>, first: ProcessingRequest) -> Vec<usize> {
    let mut stream = ProcessingStream::new(Arc::clone(processor));
    ask(&mut stream, first);
    let chat = br#"{"model": "m", "messages": [{"role": "user", "content": "test1"}]}"#;
    let answers = ask(&mut stream, body(chat, true));
    destinations(&answers[0]).unwrap()
}

fn status_of(answers: &[ProcessingResponse]) -> (i32, Value) {
    assert_eq!(answers.len(), 1, "{answers:?}");
    let response = immediate(&answers[0]);
    let error = serde_json::from_slice(&response.body).unwrap();
    (response.status.unwrap().code, error)
}

#[test]
fn the_endpoint_with_the_least_to_do_is_picked_and_the_others_follow() {
    for modes in [BUFFERED, DUPLEX] {
        // *select lower queue and kv cache*
        let processor = picker(&json!({}), 3, 7);
        report(&processor, &[(3, 0.2), (0, 0.1), (10, 0.2)]);
        assert_eq!(picked(&processor, begin(modes, &[])), [2, 1, 3]);
        // *avoid excessive queue size*: all are saturated, and the request is still forwarded
        let processor = picker(&json!({}), 3, 0);
        report(&processor, &[(10, 0.2), (200, 0.1), (6, 0.2)]);
        assert_eq!(picked(&processor, begin(modes, &[])), [3]);
        // *noncritical, but one server has capacity*
        report(&processor, &[(4, 0.2), (0, 0.85), (10, 0.9)]);
        let sheddable = [("x-gateway-inference-objective", "batch")];
        assert_eq!(picked(&processor, begin(modes, &sheddable)), [1]);
    }
}

#[test]
fn between_two_scrapes_requests_do_not_all_go_to_who_had_least_to_do() {
    let processor = picker(&json!({}), 3, 0);
    for (number, running) in [(1, 0), (2, 3), (3, 3)] {
        let load = Load {
            running,
            ..Load::default()
        };
        let pool = processor.pool.as_ref().unwrap();
        pool.report(address(number), load, Instant::now(), 0);
    }
    let mut counts = [0; 4];
    for _ in 0..9 {
        let mut stream = ProcessingStream::new(Arc::clone(&processor));
        let mut get = begin(BUFFERED, &[]);
        if let Some(Request::RequestHeaders(it)) = &mut get.request {
            it.headers = Some(headers(&[(":method", "GET"), (":path", "/v1/models")]));
            it.end_of_stream = true;
        }
        let sent = answer(&mut stream, get);
        counts[destinations(&sent).unwrap()[0]] += 1;
        // Answered at once, so that no request is outstanding.
        ask(&mut stream, response_headers("200"));
    }
    assert_eq!(counts, [0, 5, 2, 2]);
}

#[test]
fn every_request_gets_a_destination_whatever_it_is() {
    for modes in [BUFFERED, DUPLEX] {
        let processor = picker(&json!({"bypass_header": "x-raw"}), 2, 1);
        report(&processor, &[(3, 0.2), (0, 0.1)]);
        // *simple GET (header only)*
        let mut stream = ProcessingStream::new(Arc::clone(&processor));
        let mut get = begin(modes, &[]);
        if let Some(Request::RequestHeaders(it)) = &mut get.request {
            it.headers = Some(headers(&[(":method", "GET"), (":path", "/v1/models")]));
            it.end_of_stream = true;
        }
        let answer = answer(&mut stream, get);
        assert_eq!(destinations(&answer), Some(vec![2, 1]), "{modes:?}");
        // The response is still to come; it reports the endpoint's health.
        assert!(!stream.is_closed());
        // A body that is not read, in one piece and in several; *passthrough parser success*.
        for path in ["/v1/embeddings", "/v1/chat/completions"] {
            let mut stream = ProcessingStream::new(Arc::clone(&processor));
            let mut first = begin(modes, &[("content-length", "999"), ("x-raw", "1")]);
            if let Some(Request::RequestHeaders(it)) = &mut first.request {
                let all = &mut it.headers.as_mut().unwrap().headers;
                all[1].raw_value = path.as_bytes().to_vec();
            }
            let answers = ask(&mut stream, first);
            assert_eq!(destinations(&answers[0]), Some(vec![2, 1]), "{path}");
            if modes == DUPLEX {
                let answers = ask(&mut stream, body(b"not looked at", true));
                assert_eq!(piece(&answers[0]), (b"not looked at".to_vec(), true));
            }
        }
        // Malformed bodies are forwarded unchanged. (*invalid json body*, *request missing model field*: pickers that
        // read the model's name respond with 400. Here the engine reports the error.)
        for wrong in [&b"no json"[..], b"{\"prompt\": \"hello\"}", b"\xff"] {
            let mut stream = ProcessingStream::new(Arc::clone(&processor));
            ask(&mut stream, begin(modes, &[]));
            let answers = ask(&mut stream, body(wrong, true));
            assert_eq!(destinations(&answers[0]), Some(vec![2, 1]));
        }
        // *split body across chunks*
        if modes == DUPLEX {
            let mut stream = ProcessingStream::new(Arc::clone(&processor));
            ask(&mut stream, begin(modes, &[]));
            let (head, tail) = (br#"{"model": "m", "mess"#, br#"ages": []}"#);
            assert_eq!(ask(&mut stream, body(head, false)), []);
            let answers = ask(&mut stream, body(tail, true));
            assert_eq!(destinations(&answers[0]), Some(vec![2, 1]));
            assert_eq!(piece(&answers[1]).0, [&head[..], tail].concat());
        }
    }
    let mut stream = ProcessingStream::new(picker(&json!({"max_body_bytes": 10}), 1, 1));
    ask(&mut stream, begin(BUFFERED, &[]));
    let answer = answer(&mut stream, body(chat(&["a"]).as_bytes(), true));
    assert_eq!(destinations(&answer), Some(vec![1]));
}

#[test]
fn a_clients_own_destination_is_never_believed() {
    for modes in [BUFFERED, DUPLEX] {
        let processor = picker(&json!({}), 1, 7);
        let forged = [(DESTINATION_HEADER, "10.9.9.9:22")];
        assert_eq!(picked(&processor, begin(modes, &forged)), [1]);
        set(&processor, &[]);
        let mut stream = ProcessingStream::new(processor);
        let answers = ask(&mut stream, begin(modes, &forged));
        assert_eq!(status_of(&answers).0, 503);
    }
}

#[test]
fn only_the_subset_is_picked_from_and_an_empty_one_is_a_503() {
    for modes in [BUFFERED, DUPLEX] {
        let processor = picker(&json!({}), 3, 7);
        report(&processor, &[(0, 0.2), (0, 0.1), (10, 0.2)]);
        // *subsetting: select best from subset*
        let first = within_subset(begin(modes, &[]), &[3, 1]);
        assert_eq!(picked(&processor, first), [1, 3]);
        // *subsetting: partial match*: despite its load, and although others are not in the pool
        let first = within_subset(begin(modes, &[]), &[3, 99]);
        assert_eq!(picked(&processor, first), [3]);
        // *subsetting: no pods match*, *SubsetFilterEmptyReturnsNoPods*
        for subset in [&[99][..], &[]] {
            let mut stream = ProcessingStream::new(Arc::clone(&processor));
            let answers = ask(&mut stream, within_subset(begin(modes, &[]), subset));
            let (status, error) = status_of(&answers);
            assert_eq!(
                (status, &error["error"]["code"]),
                (503, &json!("no-endpoint"))
            );
            assert_eq!(
                logged(&answers[0], "reason").as_deref(),
                Some("no-endpoint")
            );
            assert!(stream.is_closed());
        }
    }
}

#[test]
fn without_endpoints_a_503_and_a_sheddable_request_under_load_a_429() {
    for (path, kind) in [
        ("/v1/chat/completions", "/error/code"),
        ("/v1/messages", "/error/message"),
        ("/v1/embeddings?a=b", "/error/code"),
    ] {
        // *no backend pods available*
        let processor = picker(&json!({}), 0, 7);
        let first = |fields| {
            let mut first = begin(DUPLEX, fields);
            if let Some(Request::RequestHeaders(it)) = &mut first.request {
                let all = &mut it.headers.as_mut().unwrap().headers;
                all[1].raw_value = path.as_bytes().to_vec();
            }
            first
        };
        let mut stream = ProcessingStream::new(Arc::clone(&processor));
        let (status, error) = status_of(&ask(&mut stream, first(&[])));
        assert_eq!(status, 503);
        assert!(error.pointer(kind).is_some(), "{error}");
        // *noncritical and all models past threshold, shed request*
        set(&processor, &[1, 2, 3]);
        report(&processor, &[(6, 0.2), (0, 0.85), (10, 0.9)]);
        let sheddable = [("x-gateway-inference-objective", "batch")];
        let mut stream = ProcessingStream::new(Arc::clone(&processor));
        let answers = ask(&mut stream, first(&sheddable));
        let (status, error) = status_of(&answers);
        assert_eq!(status, 429);
        assert!(error.pointer(kind).is_some(), "{error}");
        // *do not shed requests by default*
        for other in [&[][..], &[("x-gateway-inference-objective", "chat")]] {
            let mut stream = ProcessingStream::new(Arc::clone(&processor));
            let answers = ask(&mut stream, first(other));
            let response = answers.first().and_then(|it| it.response.as_ref());
            assert!(!matches!(response, Some(Response::ImmediateResponse(_))));
        }
        let metrics = processor.metrics.text();
        for line in [
            "foreword_ext_proc_no_endpoint_total 1\n",
            "foreword_ext_proc_shed_total 1\n",
        ] {
            assert!(metrics.contains(line), "{line} is not in\n{metrics}");
        }
    }
}

#[test]
fn endpoints_that_leave_while_a_body_comes_are_not_sent_to() {
    for modes in [BUFFERED, DUPLEX] {
        let processor = picker(&json!({}), 2, 7);
        let mut stream = ProcessingStream::new(Arc::clone(&processor));
        ask(&mut stream, begin(modes, &[]));
        set(&processor, &[2]);
        let answers = ask(&mut stream, body(chat(&["a"]).as_bytes(), true));
        assert_eq!(destinations(&answers[0]), Some(vec![2]));
        let mut stream = ProcessingStream::new(Arc::clone(&processor));
        ask(&mut stream, begin(modes, &[]));
        set(&processor, &[]);
        let answers = ask(&mut stream, body(chat(&["a"]).as_bytes(), true));
        assert_eq!(status_of(&answers).0, 503);
        assert_eq!(logged(&answers[0], "outcome").as_deref(), Some("refused"));
        drop(stream);
        assert!(
            processor
                .metrics
                .text()
                .contains("foreword_ext_proc_held_bytes 0\n")
        );
    }
}

/// Sends a chat with documents, and makes the named endpoint answer. Returns its first destination.
fn answered(processor: &Arc<Processor>, ids: &[&str], status: &str, by: Option<usize>) -> usize {
    let mut stream = ProcessingStream::new(Arc::clone(processor));
    ask(&mut stream, begin(BUFFERED, &[]));
    let sent = answer(&mut stream, body(chat(ids).as_bytes(), true));
    let mut response = response_headers(status);
    if let Some(by) = by {
        let key = "x-gateway-destination-endpoint-served";
        let address = address(by).to_string();
        response = with_metadata(response, "envoy.lb", key, text(&address));
    }
    ask(&mut stream, response);
    ask(&mut stream, response_body(b"{}", true));
    destinations(&sent).unwrap()[0]
}

#[test]
fn documents_go_where_they_are_held_even_after_other_endpoints_have_come_and_gone() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{}").unwrap();
    let processor = picker_of(file.path(), 3, 7);
    let long: Vec<String> = (0..8)
        .map(|at| format!("{at} {}", "x".repeat(500)))
        .collect();
    let ids: Vec<&str> = long.iter().map(String::as_str).collect();
    let home = answered(&processor, &ids, "200", None);
    for _ in 0..6 {
        assert_eq!(answered(&processor, &ids, "200", None), home);
    }
    // The list starts differently, and is longer: its engines keep their ids.
    let others: Vec<usize> = (1..=3).filter(|it| *it != home).collect();
    set(&processor, &[7, 8, others[1], home, 9]);
    for _ in 0..6 {
        assert_eq!(answered(&processor, &ids, "200", None), home);
    }
    // A reload keeps the ids as well.
    std::fs::write(file.path(), r#"{"max_body_bytes": 100000}"#).unwrap();
    processor.reload().unwrap();
    for _ in 0..6 {
        assert_eq!(answered(&processor, &ids, "200", None), home);
    }
    set(&processor, &[7, 8]);
    assert_ne!(answered(&processor, &ids, "200", None), home);
}

#[test]
fn the_gateway_says_who_has_served_and_the_documents_are_known_there() {
    let processor = picker(&json!({}), 3, 7);
    let long: Vec<String> = (0..8)
        .map(|at| format!("{at} {}", "y".repeat(500)))
        .collect();
    let ids: Vec<&str> = long.iter().map(String::as_str).collect();
    let first = answered(&processor, &ids, "200", None);
    let other = first % 3 + 1;
    // Envoy tried `first`, which failed, and then `other`: `first` is unhealthy, and `other` has the documents.
    answered(&processor, &ids, "200", Some(other));
    for _ in 0..6 {
        assert_eq!(answered(&processor, &ids, "200", Some(other)), other);
    }
    // An address outside the pool is ignored.
    assert_eq!(answered(&processor, &ids, "200", Some(77)), other);
    // An endpoint that fails gets no requests for a while, not even GETs.
    answered(&processor, &ids, "503", None);
    for _ in 0..6 {
        assert_ne!(answered(&processor, &["z"], "200", None), other);
    }
}

#[test]
fn a_place_that_is_taken_by_another_endpoint_holds_nothing_of_the_one_before() {
    let processor = picker(&json!({}), 1, 7);
    let long: Vec<String> = (0..8)
        .map(|at| format!("{at} {}", "z".repeat(500)))
        .collect();
    let ids: Vec<&str> = long.iter().map(String::as_str).collect();
    answered(&processor, &ids, "200", None);
    let matched = || {
        let mut stream = ProcessingStream::new(Arc::clone(&processor));
        ask(&mut stream, begin(BUFFERED, &[]));
        ask(&mut stream, body(chat(&ids).as_bytes(), true));
        let report = answer(&mut stream, response_headers("200"));
        changes(&report)["x-foreword"].clone().unwrap()
    };
    assert!(matched().contains("matched=8"));
    // Other endpoints take the unused places first, then the first one's.
    for number in 2..=usize::from(MAX_ENGINES) {
        set(&processor, &[number]);
    }
    set(&processor, &[usize::from(MAX_ENGINES) + 1]);
    assert!(matched().contains("matched=0"));
    assert!(matched().contains("matched=8"));
}

#[test]
fn a_configuration_with_engines_of_its_own_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let pool = || Pool::new(PoolOptions::new(Source::File("endpoints.yaml".into())));
    for (engines, is_taken) in [
        (json!([{"name": "all", "block_tokens": 16}]), true),
        (json!([{"name": "a", "address": "10.0.0.1:80"}]), false),
        (json!([{"name": "a", "feed": {"cluster": "c"}}]), false),
        (
            json!([{"name": "a", "address": "10.0.0.1:80"}, {"name": "b", "address": "10.0.0.2:80"}]),
            false,
        ),
    ] {
        std::fs::write(file.path(), json!({"engines": engines}).to_string()).unwrap();
        let loaded = Processor::load(
            file.path(),
            BTreeMap::new(),
            Some(pool()),
            Bounds::default(),
        );
        match loaded {
            Ok(_) => assert!(is_taken, "{engines}"),
            Err(error) => {
                let error = format!("{error:#}");
                assert!(
                    !is_taken && error.contains("the pool says which engines"),
                    "{error}"
                );
            }
        }
    }
    std::fs::write(file.path(), r#"{"request_headers": "release"}"#).unwrap();
    let loaded = Processor::load(
        file.path(),
        BTreeMap::new(),
        Some(pool()),
        Bounds::default(),
    );
    assert!(loaded.is_err());
}
