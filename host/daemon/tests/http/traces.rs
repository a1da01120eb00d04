//! Tests the OpenTelemetry spans that arrive at a collector.

use crate::chat::say;
use crate::streaming::streaming;
use crate::support::client::{JSON, begin, get, post, send};
use crate::support::parrot::Steps;
use crate::support::{Options, internal, loading, model};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::Value;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

const PATH: &str = "/v1/chat/completions";

/// A minimal collector, which stores the bodies posted to `/v1/traces`.
struct Collector {
    endpoint: String,
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Collector {
    async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let bodies = Arc::new(Mutex::new(Vec::new()));
        tokio::spawn({
            let bodies = Arc::clone(&bodies);
            async move {
                while let Ok((connection, _)) = listener.accept().await {
                    tokio::spawn(receive(connection, Arc::clone(&bodies)));
                }
            }
        });
        Self { endpoint, bodies }
    }

    fn spans(&self) -> Vec<Span> {
        let bodies = self.bodies.lock().unwrap();
        let requests = bodies
            .iter()
            .map(|body| ExportTraceServiceRequest::decode(&body[..]).expect("protobuf"));
        let resources = requests.flat_map(|request| request.resource_spans);
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }
}

async fn receive(connection: TcpStream, bodies: Arc<Mutex<Vec<Vec<u8>>>>) {
    let mut connection = BufReader::new(connection);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if connection.read_line(&mut first).await.unwrap_or(0) == 0 {
            return;
        }
        assert!(first.starts_with("POST /v1/traces "), "{first}");
        loop {
            let mut line = String::new();
            connection.read_line(&mut line).await.unwrap();
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        connection.read_exact(&mut body).await.unwrap();
        bodies.lock().unwrap().push(body);
        let reply =
            b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        connection.write_all(reply).await.unwrap();
    }
}

fn attribute(span: &Span, name: &str) -> Option<Attribute> {
    let found = span
        .attributes
        .iter()
        .find(|attribute| attribute.key == name)?;
    found.value.clone()?.value
}

fn number(span: &Span, name: &str) -> Option<i64> {
    match attribute(span, name)? {
        Attribute::IntValue(number) => Some(number),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_request_is_one_span_with_its_parts_under_its_callers() {
    let collector = Collector::open().await;
    let options = || Options {
        otlp_endpoint: Some(collector.endpoint.clone()),
        ..Options::default()
    };
    let server = loading(options()).await;
    server.open(model(&options(), Steps::free()));
    let address = server.address();

    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let caller = "00f067aa0ba902b7";
    let traceparent = format!("00-{trace}-{caller}-01");
    let headers = [
        JSON[0],
        ("traceparent", &*traceparent),
        ("x-request-id", "req-1"),
    ];
    let secret = "xylophone";
    send(
        address,
        "POST",
        PATH,
        &headers,
        say(secret).to_string().as_bytes(),
    )
    .await
    .read()
    .await;
    begin(address, PATH, &streaming("abc")).await.events().await;
    post(address, PATH, &Value::Null).await;
    get(internal(&server), "/healthz").await;
    server.stop().await;

    let spans = collector.spans();
    let roots: Vec<&Span> = spans.iter().filter(|span| span.kind == 2).collect();
    assert_eq!(roots.len(), 3, "{spans:#?}");
    let first = roots[0];
    assert_eq!(first.name, "POST /v1/chat/completions");
    assert_eq!(
        (hex(&first.trace_id), hex(&first.parent_span_id)),
        (trace.into(), caller.into())
    );
    assert_eq!(
        attribute(first, "foreword.request_id"),
        Some(Attribute::StringValue("req-1".into()))
    );
    assert_eq!(number(first, "http.response.status_code"), Some(200));
    assert_eq!(
        number(first, "gen_ai.usage.output_tokens"),
        Some(secret.len() as i64)
    );
    assert_eq!(number(first, "foreword.cached_tokens"), Some(0));
    assert_eq!(
        attribute(first, "foreword.outcome"),
        Some(Attribute::StringValue("stop".into()))
    );
    let streamed = roots[1];
    assert!(streamed.parent_span_id.is_empty() && hex(&streamed.trace_id) != trace);
    assert_eq!(
        number(streamed, "gen_ai.usage.output_tokens"),
        Some(3),
        "it ends with the stream"
    );
    assert_eq!(number(roots[2], "http.response.status_code"), Some(400));

    for root in &roots[..2] {
        let parts: Vec<&Span> = spans
            .iter()
            .filter(|span| span.parent_span_id == root.span_id)
            .collect();
        let names: Vec<&str> = parts.iter().map(|part| &*part.name).collect();
        assert_eq!(names, ["queue", "prefill", "decode"]);
        for pair in parts.windows(2) {
            assert!(pair[0].start_time_unix_nano <= pair[0].end_time_unix_nano);
            assert!(pair[0].end_time_unix_nano <= pair[1].start_time_unix_nano);
        }
        assert!(parts.iter().all(|part| part.trace_id == root.trace_id));
        assert!(root.start_time_unix_nano <= parts[0].start_time_unix_nano);
        assert!(parts[2].end_time_unix_nano <= root.end_time_unix_nano);
    }
    for body in &*collector.bodies.lock().unwrap() {
        assert!(
            !String::from_utf8_lossy(body).contains(secret),
            "no text leaves the server"
        );
    }
}

#[tokio::test]
async fn a_collector_that_is_not_there_holds_nobody_up() {
    let nobody = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let options = || Options {
        otlp_endpoint: Some(format!("http://{nobody}")),
        ..Options::default()
    };
    let server = loading(options()).await;
    server.open(model(&options(), Steps::free()));
    assert_eq!(post(server.address(), PATH, &say("x")).await.status, 200);
    server.stop().await;
}
