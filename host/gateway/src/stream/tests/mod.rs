//! Tests streams message by message; `picker` tests those with a pool of endpoints.

mod picker;

use std::collections::BTreeMap;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    CommonResponse, HttpTrailers, ImmediateResponse, ProtocolConfiguration,
};
use envoy_types::pb::google::protobuf::value::Kind;
use serde_json::{Value, json};
use tonic::Code;

use super::*;
use crate::processor::Bounds;

/// A processor with this filter configuration.
fn processor(plugin: &Value, bounds: Bounds) -> Arc<Processor> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), plugin.to_string()).unwrap();
    Processor::load(file.path(), BTreeMap::new(), None, bounds).unwrap()
}

fn defaults() -> Arc<Processor> {
    processor(&json!({}), Bounds::default())
}

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let header = |(name, value): &(&str, &str)| HeaderValue {
        key: (*name).to_owned(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    };
    HeaderMap {
        headers: fields.iter().map(header).collect(),
    }
}

fn message(request: Request) -> ProcessingRequest {
    ProcessingRequest {
        request: Some(request),
        ..ProcessingRequest::default()
    }
}

/// The first message of a stream: a chat's headers, and both bodies' modes.
fn begin(modes: [BodySendMode; 2], more: &[(&str, &str)]) -> ProcessingRequest {
    let mut fields = vec![
        (":method", "POST"),
        (":path", "/v1/chat/completions"),
        ("content-type", "application/json"),
    ];
    fields.extend(more);
    ProcessingRequest {
        protocol_config: Some(ProtocolConfiguration {
            request_body_mode: modes[0].into(),
            response_body_mode: modes[1].into(),
            send_body_without_waiting_for_header_response: false,
        }),
        ..message(Request::RequestHeaders(HttpHeaders {
            headers: Some(headers(&fields)),
            ..HttpHeaders::default()
        }))
    }
}

fn body(bytes: &[u8], end_of_stream: bool) -> ProcessingRequest {
    message(Request::RequestBody(HttpBody {
        body: bytes.to_vec(),
        end_of_stream,
        ..HttpBody::default()
    }))
}

fn response_headers(status: &str) -> ProcessingRequest {
    message(Request::ResponseHeaders(HttpHeaders {
        headers: Some(headers(&[(":status", status)])),
        ..HttpHeaders::default()
    }))
}

fn response_body(bytes: &[u8], end_of_stream: bool) -> ProcessingRequest {
    message(Request::ResponseBody(HttpBody {
        body: bytes.to_vec(),
        end_of_stream,
        ..HttpBody::default()
    }))
}

fn trailers() -> ProcessingRequest {
    message(Request::RequestTrailers(HttpTrailers::default()))
}

/// Passes a message to the stream, and returns all pending answers.
fn ask(stream: &mut ProcessingStream, message: ProcessingRequest) -> Vec<ProcessingResponse> {
    stream.on_message(message).unwrap();
    std::iter::from_fn(|| stream.next_answer()).collect()
}

/// The only answer to a message.
fn answer(stream: &mut ProcessingStream, message: ProcessingRequest) -> ProcessingResponse {
    let mut answers = ask(stream, message);
    assert_eq!(answers.len(), 1, "{answers:?}");
    answers.remove(0)
}

fn common(answer: &ProcessingResponse) -> &CommonResponse {
    let response = match answer.response.as_ref().unwrap() {
        Response::RequestHeaders(it) | Response::ResponseHeaders(it) => &it.response,
        Response::RequestBody(it) | Response::ResponseBody(it) => &it.response,
        other => panic!("{other:?}"),
    };
    response.as_ref().unwrap()
}

/// An answer's header changes, by name.
fn changes(answer: &ProcessingResponse) -> BTreeMap<String, Option<String>> {
    let mutation = common(answer).header_mutation.clone().unwrap_or_default();
    let set = mutation.set_headers.into_iter().map(|option| {
        let header = option.header.unwrap();
        let value = String::from_utf8(header.raw_value).unwrap();
        (header.key, Some(value))
    });
    let removed = mutation.remove_headers.into_iter().map(|name| (name, None));
    set.chain(removed).collect()
}

/// A piece that is sent back, and whether it is the last.
fn piece(answer: &ProcessingResponse) -> (Vec<u8>, bool) {
    let mutation = common(answer).body_mutation.clone().unwrap().mutation;
    match mutation.unwrap() {
        Mutation::StreamedResponse(piece) => (piece.body, piece.end_of_stream),
        other => panic!("{other:?}"),
    }
}

fn immediate(answer: &ProcessingResponse) -> &ImmediateResponse {
    match answer.response.as_ref().unwrap() {
        Response::ImmediateResponse(response) => response,
        other => panic!("{other:?}"),
    }
}

/// A field of the dynamic metadata for access logs.
fn logged(answer: &ProcessingResponse, name: &str) -> Option<String> {
    let metadata = answer.dynamic_metadata.as_ref()?;
    let Some(Kind::StructValue(fields)) = &metadata.fields.get("foreword")?.kind else {
        panic!("{metadata:?}");
    };
    match &fields.fields.get(name)?.kind {
        Some(Kind::StringValue(text)) => Some(text.clone()),
        other => panic!("{other:?}"),
    }
}

fn chat(ids: &[&str]) -> String {
    let documents = ids
        .iter()
        .map(|id| json!({"id": id, "text": format!("text of {id}")}));
    json!({
        "model": "m",
        "messages": [{"role": "user", "content": "Why?"}],
        "documents": documents.collect::<Vec<_>>(),
    })
    .to_string()
}

const BUFFERED: [BodySendMode; 2] = [BodySendMode::Buffered, BodySendMode::Streamed];
const DUPLEX: [BodySendMode; 2] = [
    BodySendMode::FullDuplexStreamed,
    BodySendMode::FullDuplexStreamed,
];

/// Makes a processor record a chat, so that the next one is reordered.
fn seen(processor: &Arc<Processor>, ids: &[&str]) {
    let mut stream = ProcessingStream::new(Arc::clone(processor));
    ask(&mut stream, begin(BUFFERED, &[]));
    ask(&mut stream, body(chat(ids).as_bytes(), true));
}

#[test]
fn a_buffered_body_is_replaced_with_its_length_and_the_answer_observed() {
    let processor = defaults();
    seen(&processor, &["a", "b"]);
    let mut stream = ProcessingStream::new(Arc::clone(&processor));
    let old = chat(&["b", "a"]);
    let length = old.len().to_string();
    let fields = [("content-length", &*length), ("x-foreword", "forged")];
    let first = answer(&mut stream, begin(BUFFERED, &fields));
    assert_eq!(changes(&first)["x-foreword"], None);
    let second = answer(&mut stream, body(old.as_bytes(), true));
    let Some(Mutation::Body(new)) = common(&second).body_mutation.clone().unwrap().mutation else {
        panic!("{second:?}");
    };
    assert_ne!(new, old.as_bytes());
    let changes_of_request = changes(&second);
    assert_eq!(
        changes_of_request["content-length"],
        Some(new.len().to_string())
    );
    assert!(changes_of_request["x-foreword-path"].is_some());

    let third = answer(&mut stream, response_headers("200"));
    let report = changes(&third)["x-foreword"].clone().unwrap();
    assert!(report.starts_with("ordered;"), "{report}");
    let usage =
        br#"{"usage": {"prompt_tokens": 90, "prompt_tokens_details": {"cached_tokens": 64}}}"#;
    let (begins, ends) = usage.split_at(40);
    let piece = answer(&mut stream, response_body(begins, false));
    assert_eq!(
        (common(&piece).body_mutation.clone(), piece.dynamic_metadata),
        (None, None)
    );
    let last = answer(&mut stream, response_body(ends, true));
    assert_eq!(logged(&last, "outcome").as_deref(), Some("ordered"));
    assert_eq!(logged(&last, "cached_tokens").as_deref(), Some("64"));
    let metrics = processor.metrics.text();
    for line in [
        "foreword_requests_total 2\n",
        "foreword_ordered_total 2\n",
        "foreword_engine_cached_tokens_total 64\n",
        "foreword_ext_proc_held_bytes 0\n",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[test]
fn trailers_complete_a_request_in_every_mode() {
    let old = chat(&["b", "a"]);
    for modes in [BUFFERED, DUPLEX] {
        let processor = defaults();
        seen(&processor, &["a", "b"]);
        let mut stream = ProcessingStream::new(processor);
        ask(&mut stream, begin(modes, &[]));
        let mut answers = ask(&mut stream, body(old.as_bytes(), false));
        answers.extend(ask(&mut stream, trailers()));
        let last = answers.pop().unwrap();
        assert!(
            matches!(last.response, Some(Response::RequestTrailers(_))),
            "{last:?}"
        );
        if modes == DUPLEX {
            // The trailers end the body, so no piece does.
            assert!(answers[1..].iter().all(|answer| !piece(answer).1));
        }
        let report = answer(&mut stream, response_headers("200"));
        let report = changes(&report)["x-foreword"].clone().unwrap();
        assert!(report.starts_with("ordered;"), "{modes:?}: {report}");
    }
}

/// The body forwarded for one that arrives in pieces of these sizes, and the number of answers before its end.
fn streamed(processor: &Arc<Processor>, body_sent: &[u8], sizes: &[usize]) -> (Vec<u8>, usize) {
    let mut stream = ProcessingStream::new(Arc::clone(processor));
    let length = body_sent.len().to_string();
    let mut answers = ask(&mut stream, begin(DUPLEX, &[("content-length", &length)]));
    let (mut rest, mut early) = (body_sent, 0);
    for at in 0.. {
        let size = sizes[at % sizes.len()].min(rest.len());
        let (bytes, behind) = rest.split_at(size);
        rest = behind;
        early = answers.len();
        answers.extend(ask(&mut stream, body(bytes, rest.is_empty())));
        if rest.is_empty() {
            break;
        }
    }
    let head = answers.remove(0);
    let pieces: Vec<_> = answers.iter().map(piece).collect();
    let sent: Vec<u8> = pieces.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
    if sent != body_sent {
        // A stale length would be worse than none.
        assert_eq!(changes(&head)["content-length"], None);
    }
    assert!(pieces.iter().all(|(bytes, _)| bytes.len() <= 64 << 10));
    let ends = pieces.iter().filter(|(_, ends)| *ends).count();
    assert_eq!((ends, pieces.last().unwrap().1), (1, true));
    (sent, early)
}

#[test]
fn a_streamed_body_is_sent_back_whole_however_it_comes() {
    let processor = defaults();
    let long: Vec<String> = (0..40)
        .map(|at| format!("{at} {}", "x".repeat(5_000)))
        .collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    seen(&processor, &long);
    let backwards: Vec<&str> = long.iter().rev().copied().collect();
    let old = chat(&backwards);
    let (whole, _) = streamed(&processor, old.as_bytes(), &[old.len()]);
    assert_ne!(whole, old.as_bytes());
    for sizes in [&[1_000][..], &[65_536], &[1, 70_000, 333]] {
        let (sent, early) = streamed(&processor, old.as_bytes(), sizes);
        assert!(sent == whole, "{sizes:?}");
        assert_eq!(early, 0, "nothing goes on before the end");
    }
}

#[test]
fn a_streamed_body_over_the_bound_goes_on_to_the_byte() {
    let processor = processor(&json!({"max_body_bytes": 10_000}), Bounds::default());
    let body: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    // Without a length: with one, the body would be refused at once as too large.
    let mut stream = ProcessingStream::new(Arc::clone(&processor));
    let mut answers = ask(&mut stream, begin(DUPLEX, &[]));
    for (at, bytes) in body.chunks(3_000).enumerate() {
        let ends = (at + 1) * 3_000 >= body.len();
        answers.extend(ask(&mut stream, super::tests::body(bytes, ends)));
    }
    let head = answers.remove(0);
    assert_eq!(changes(&head), BTreeMap::new());
    let sent: Vec<u8> = answers.iter().flat_map(|answer| piece(answer).0).collect();
    assert!(sent == body);
    assert!(piece(answers.last().unwrap()).1);
    assert!(
        processor
            .metrics
            .text()
            .contains("foreword_passed_too_large_total 1\n")
    );
}

#[test]
fn a_body_that_is_cut_at_the_gateways_buffer_passes_as_too_large() {
    let mut stream = ProcessingStream::new(defaults());
    let partial = [BodySendMode::BufferedPartial, BodySendMode::None];
    answer(&mut stream, begin(partial, &[]));
    let whole = chat(&["a", "b"]);
    let first = answer(&mut stream, body(&whole.as_bytes()[..50], false));
    assert_eq!(common(&first).body_mutation, None);
    let report = answer(&mut stream, response_headers("200"));
    let report = changes(&report)["x-foreword"].clone().unwrap();
    assert_eq!(report, "passed; reason=too-large");
}

#[test]
fn a_mode_in_which_nothing_can_be_ordered_ends_the_stream_with_an_error() {
    for mode in [
        BodySendMode::None,
        BodySendMode::Streamed,
        BodySendMode::Grpc,
    ] {
        let mut stream = ProcessingStream::new(defaults());
        let error = stream
            .on_message(begin([mode, BodySendMode::None], &[]))
            .unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition);
        assert!(error.message().contains("request_body_mode"), "{error}");
        // Unwatched requests pass, too.
        let mut stream = ProcessingStream::new(defaults());
        let elsewhere = begin([mode, BodySendMode::None], &[(":path", "/v1/embeddings")]);
        let mut fields = elsewhere;
        if let Some(Request::RequestHeaders(it)) = &mut fields.request {
            let all = &mut it.headers.as_mut().unwrap().headers;
            all.remove(1);
        }
        answer(&mut stream, fields);
        assert!(stream.is_closed());
    }
    let mut stream = ProcessingStream::new(defaults());
    let mirrored = ProcessingRequest {
        observability_mode: true,
        ..begin(BUFFERED, &[])
    };
    let error = stream.on_message(mirrored).unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
}

#[test]
fn a_refused_request_is_answered_and_its_stream_closed() {
    for modes in [BUFFERED, DUPLEX] {
        let processor = processor(&json!({"on_failure": "refuse"}), Bounds::default());
        let mut stream = ProcessingStream::new(processor);
        ask(&mut stream, begin(modes, &[]));
        let refusal = answer(&mut stream, body(b"{\"messages\"", true));
        let response = immediate(&refusal);
        assert_eq!(response.status.unwrap().code, 400);
        assert_eq!(response.details, "foreword");
        let error: Value = serde_json::from_slice(&response.body).unwrap();
        assert_eq!(error["error"]["code"], "invalid-json");
        assert_eq!(logged(&refusal, "outcome").as_deref(), Some("refused"));
        assert!(stream.is_closed());
    }
}

#[test]
fn what_all_streams_hold_together_is_bounded_and_given_back() {
    let bounds = Bounds {
        held_bytes: 1_000,
        ..Bounds::default()
    };
    let processor = processor(&json!({}), bounds);
    let stream = |bytes: usize| {
        let mut stream = ProcessingStream::new(Arc::clone(&processor));
        ask(&mut stream, begin(DUPLEX, &[]));
        let result = stream.on_message(body(&vec![b' '; bytes], false));
        (stream, result.map_err(|status| status.code()))
    };
    let (one, first) = stream(600);
    assert_eq!(first, Ok(()));
    let (_two, second) = stream(600);
    assert_eq!(second, Err(Code::ResourceExhausted));
    drop(one);
    let (_three, third) = stream(600);
    assert_eq!(third, Ok(()));
}

#[test]
fn a_request_that_is_not_watched_costs_one_answer() {
    let mut stream = ProcessingStream::new(defaults());
    let request = message(Request::RequestHeaders(HttpHeaders {
        headers: Some(headers(&[(":method", "GET"), (":path", "/v1/models")])),
        end_of_stream: true,
        ..HttpHeaders::default()
    }));
    let only = answer(&mut stream, request);
    assert_eq!(changes(&only), BTreeMap::new());
    assert!(stream.is_closed());
}

/// A gateway may respond before it has read the request, so pieces of the response may precede the request's end.
#[test]
fn where_responses_are_streamed_both_ways_each_piece_is_sent_back_also_of_what_is_not_watched() {
    let mut stream = ProcessingStream::new(defaults());
    let mut first = begin(DUPLEX, &[]);
    if let Some(Request::RequestHeaders(it)) = &mut first.request {
        it.headers = Some(headers(&[(":method", "POST"), (":path", "/metrics")]));
    }
    answer(&mut stream, first);
    let own = answer(&mut stream, response_headers("404"));
    assert_eq!(own.mode_override, None);
    let late = answer(&mut stream, body(b"{}", true));
    assert_eq!(piece(&late), (b"{}".to_vec(), true));
    assert!(!stream.is_closed());
    let last = answer(&mut stream, response_body(b"none", true));
    assert_eq!(piece(&last), (b"none".to_vec(), true));
}

#[test]
fn a_request_whose_headers_decide_is_sent_no_body_of() {
    let mut stream = ProcessingStream::new(defaults());
    let gzip = answer(
        &mut stream,
        begin(BUFFERED, &[("content-encoding", "gzip")]),
    );
    let mode = gzip.mode_override.unwrap();
    assert_eq!(mode.request_body_mode, i32::from(BodySendMode::None));
    // A gateway that does not support the override sends it anyway, and gets its answer.
    let ignored = answer(&mut stream, body(b"\x1f\x8b", true));
    assert_eq!(common(&ignored).body_mutation, None);
    let report = answer(&mut stream, response_headers("200"));
    let report = changes(&report)["x-foreword"].clone().unwrap();
    assert_eq!(report, "passed; reason=encoded");
}

#[test]
fn verified_claims_and_attributes_are_read_from_the_stream() {
    let plugin = json!({"tenant": {"claim": "org", "payload": "jwt"}});
    let text = |text: &str| Kind::StringValue(text.to_owned());
    for (claim, report) in [
        (Some(text("red")), "ordered;"),
        (Some(Kind::NumberValue(42.0)), "passed; reason=bad-tenant"),
        (None, "passed; reason=no-tenant"),
    ] {
        let mut stream = ProcessingStream::new(processor(&plugin, Bounds::default()));
        let mut first = begin(BUFFERED, &[]);
        let structure = |name: &str, kind: Kind| {
            let value = envoy_types::pb::google::protobuf::Value { kind: Some(kind) };
            envoy_types::pb::google::protobuf::Struct {
                fields: [(name.to_owned(), value)].into(),
            }
        };
        let payload =
            claim.map(|claim| structure("jwt", Kind::StructValue(structure("org", claim))));
        let namespace = "envoy.filters.http.jwt_authn".to_owned();
        first.metadata_context = Some(envoy_types::pb::envoy::config::core::v3::Metadata {
            filter_metadata: payload.map(|it| (namespace, it)).into_iter().collect(),
            ..Default::default()
        });
        ask(&mut stream, first);
        ask(&mut stream, body(chat(&["a"]).as_bytes(), true));
        let answer = answer(&mut stream, response_headers("200"));
        let found = changes(&answer)["x-foreword"].clone().unwrap();
        assert!(found.starts_with(report), "{found}");
    }
}
