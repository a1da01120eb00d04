//! OpenTelemetry spans of requests, sent to a collector by OTLP over HTTP. Off unless an endpoint is configured.
//!
//! ```text
//!   POST /v1/chat/completions                      server span, under the caller's `traceparent` if it sent one
//!   ├── queue     submitted ──▶ the engine starts
//!   ├── prefill   started ────▶ first token
//!   └── decode    first token ▶ last token
//! ```
//!
//! Attributes are counts, names that the server chose, and the request's id, which may come from the client; no text of
//! a prompt or an answer. Spans wait in a bounded queue and are dropped if the collector does not keep up, so no
//! request waits. Probes and scrapes have no spans.
//!
//! The endpoint must be plain HTTP, so it should be a collector on the same machine or network.

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use axum::http::{HeaderMap, StatusCode};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{
    SpanBuilder, SpanKind, Status, TraceContextExt, Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Creates spans of requests and sends them to a collector.
pub struct Spans {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Spans {
    /// Returns an exporter that sends spans to the collector at `endpoint`, such as `http://localhost:4318`.
    ///
    /// # Errors
    /// Returns an error if the endpoint is not a plain HTTP URL.
    pub fn to(endpoint: &str) -> anyhow::Result<Self> {
        if !endpoint.starts_with("http://") {
            bail!("the OTLP endpoint must begin with http://, got {endpoint}");
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client::new())
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .build()
            .with_context(|| format!("cannot send spans to {endpoint}"))?;
        let resource = Resource::builder_empty()
            .with_service_name("foreword")
            .build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource)
            .build();
        let tracer = provider.tracer("foreword");
        Ok(Self { provider, tracer })
    }

    /// Starts the span of a request. If `headers` have a `traceparent`, the caller's span is its parent. `None` unless
    /// `route` is under `/v1/`.
    pub fn begin(
        &self,
        method: &str,
        route: &str,
        request_id: &str,
        headers: &HeaderMap,
    ) -> Option<RequestSpan> {
        if !route.starts_with("/v1/") {
            return None;
        }
        let parent = TraceContextPropagator::new()
            .extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let builder = SpanBuilder::from_name(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("http.request.method", method.to_owned()),
                KeyValue::new("http.route", route.to_owned()),
                KeyValue::new("foreword.request_id", request_id.to_owned()),
            ]);
        let span = self.tracer.build_with_context(builder, &parent);
        Some(RequestSpan(Arc::new(Inner {
            tracer: self.tracer.clone(),
            context: parent.with_span(span),
        })))
    }

    /// Sends the spans that wait in the queue. Blocks for at most 5 s.
    pub fn shutdown(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(SHUTDOWN) {
            tracing::warn!(%error, "spans were lost");
        }
    }
}

/// The span of a request. Clones share the span; it ends when the last is dropped.
#[derive(Clone)]
pub struct RequestSpan(Arc<Inner>);

struct Inner {
    tracer: SdkTracer,
    context: Context,
}

impl RequestSpan {
    /// Records the response's status; 5xx marks the span as failed. The span does not end yet, as a stream may follow.
    pub fn status(&self, status: StatusCode) {
        let span = self.0.context.span();
        let code = i64::from(status.as_u16());
        span.set_attribute(KeyValue::new("http.response.status_code", code));
        if status.is_server_error() {
            span.set_status(Status::error(""));
        }
    }

    /// Adds attributes to the request's span, such as token counts.
    pub fn set(&self, attributes: impl IntoIterator<Item = KeyValue>) {
        self.0.context.span().set_attributes(attributes);
    }

    /// Marks the span as failed, for an answer that failed after a successful status.
    pub fn fail(&self) {
        self.0.context.span().set_status(Status::error(""));
    }

    /// Adds a finished phase of the request, such as `prefill`, as a child span.
    pub fn part(&self, name: &'static str, from: SystemTime, to: SystemTime) {
        use opentelemetry::trace::Span;
        let builder = SpanBuilder::from_name(name).with_start_time(from);
        let mut span = self.0.tracer.build_with_context(builder, &self.0.context);
        span.end_with_timestamp(to);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.context.span().end();
    }
}

/// The exporter's HTTP client. It blocks, since it runs on the exporter's own thread.
#[derive(Debug)]
struct Client(ureq::Agent);

impl Client {
    fn new() -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(EXPORT))
            .http_status_as_error(false)
            .build();
        Self(config.into())
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let response = self.0.run(Request::from_parts(head, &body[..]))?;
        let (head, mut body) = response.into_parts();
        let body = body.with_config().limit(MAX_RESPONSE_BYTES).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}

/// Time limit for sending a batch of spans to the collector.
const EXPORT: Duration = Duration::from_secs(5);
/// Maximum time by which sending the last batch may delay a stop.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// Maximum number of bytes read of a collector's response, which is short.
const MAX_RESPONSE_BYTES: u64 = 64 << 10;
