//! Handles one request and its response: translates messages for the filter, and its decisions into messages.
//!
//! ```text
//!   gateway                     BUFFERED                               FULL_DUPLEX_STREAMED
//!   request headers ─▶   ◀─ headers, with what changed so far     (the answer waits)
//!   request body ────▶   ◀─ body, new headers and new body        (each piece is kept)
//!   its last piece ──▶                                             ◀─ headers with all changes, then body in pieces
//!   response headers ▶   ◀─ headers with the report                ◀─ the same
//!   response pieces ─▶   ◀─ each one unchanged                     ◀─ each one unchanged
//!   the last of them ▶   ◀─ and dynamic metadata for access logs   ◀─ and dynamic metadata for access logs
//! ```
//!
//! With a pool of endpoints, the message that forwards a request names its destination in a header and in metadata. A
//! request without an eligible endpoint is answered with 503, and a shed one with 429.
//!
//! If the filter refuses a request, it is answered at once (`ImmediateResponse`). If the filter does not need a request
//! or its response any more, the stream is closed if no data is lost by that; otherwise the gateway is asked to send no
//! more bodies (`mode_override`).
//!
//! `content-length` is right or absent. If the gateway buffers, the filter sets it with the body. With bodies streamed
//! in both directions the gateway does not check it, and with a wrong length the body's end could pass for the next
//! request; so the header is removed whenever the body changes.

mod answers;
mod mode;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::config::core::v3::HeaderMap;
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse,
};
use foreword_filter::{DESTINATION_HEADER, Exchange, Plugin};
use tonic::Status;

use self::answers::Side;
use self::mode::Modes;
use crate::calls::{Answer, Call};
use crate::pool::subset::Subset;
use crate::processor::Processor;
use crate::proxy::{Headers, Proxy, Reply, RequestState, Scope};

/// One request and its response, from the stream's first message to its end.
pub(crate) struct ProcessingStream {
    processor: Arc<Processor>,
    exchange: Exchange,
    state: RefCell<RequestState>,
    /// The modes in which the gateway sends bodies; `None` until the first message has arrived.
    modes: Option<Modes>,
    request: RequestPhase,
    /// True once the filter has been notified of the stream's end.
    is_done: bool,
    /// Messages to the gateway that were not sent yet.
    out: VecDeque<ProcessingResponse>,
    /// True if no message is accepted any more: the stream closes once `out` has been sent.
    is_closed: bool,
    /// Bytes reserved with [`Processor::hold`].
    held: usize,
}

/// The state of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestPhase {
    /// No message has arrived yet.
    New,
    /// The body is arriving, and the filter needs more of it.
    Collecting,
    /// The whole request has arrived, and the filter waits: for responses to its calls, or to be resumed.
    Waiting(End),
    /// The request was forwarded. Later pieces of it are forwarded unchanged.
    Passing,
}

/// The part of a request that had arrived when it was forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// All of the body that the gateway sends. In a buffered mode that is one message, which trailers may follow.
    Body,
    /// The whole body, and the trailers behind it.
    Trailers,
    /// Not the whole body, because the filter does not need more of it.
    Open,
}

impl ProcessingStream {
    /// Returns a stream that has received no message.
    pub(crate) fn new(processor: Arc<Processor>) -> Self {
        let exchange = Exchange::new(processor.plugin());
        Self {
            processor,
            exchange,
            state: RefCell::default(),
            modes: None,
            request: RequestPhase::New,
            is_done: false,
            out: VecDeque::new(),
            is_closed: false,
            held: 0,
        }
    }

    /// Handles a message from the gateway.
    ///
    /// # Errors
    /// Returns the status that ends the stream. The gateway then forwards or refuses the request, by its
    /// `failure_mode_allow`.
    pub(crate) fn on_message(&mut self, message: ProcessingRequest) -> Result<(), Status> {
        self.guarded(|stream| stream.handle(message))
    }

    /// Passes the result of a call to the filter.
    ///
    /// # Errors
    /// Returns the status to end the stream with, like [`ProcessingStream::on_message`].
    pub(crate) fn on_answer(&mut self, answer: &Answer) -> Result<(), Status> {
        self.guarded(|stream| {
            let Answer { id, status, body } = answer;
            stream.with(|exchange, proxy| {
                exchange.on_answer(proxy, *id, *status, body.as_deref());
            });
            stream.go_on_if_ready();
            Ok(())
        })
    }

    /// Forwards a request that the filter has held and now resumes.
    ///
    /// # Errors
    /// Returns the status to end the stream with, like [`ProcessingStream::on_message`].
    pub(crate) fn on_resumed(&mut self) -> Result<(), Status> {
        self.guarded(|stream| {
            stream.exchange.on_resumed();
            stream.go_on_if_ready();
            Ok(())
        })
    }

    /// Returns a future that completes when the filter resumes this held request. It also completes some ticks after
    /// the longest wait, since a plugin that a reload has replaced has no ticks to resume it. Never completes if the
    /// request is not held.
    pub(crate) fn resumed(&self) -> impl Future<Output = ()> + use<> {
        let held = self.exchange.is_held();
        let woken = held.then(|| Arc::clone(&self.state.borrow().woken));
        let ticks = Plugin::TICK_MS.saturating_mul(4);
        let limit = Duration::from_millis(self.exchange.max_wait_ms().saturating_add(ticks));
        async move {
            match woken {
                Some(woken) => {
                    let _ = tokio::time::timeout(limit, woken.notified()).await;
                }
                None => std::future::pending().await,
            }
        }
    }

    fn go_on_if_ready(&mut self) {
        if let RequestPhase::Waiting(end) = self.request
            && !self.exchange.waits_for_answer()
        {
            self.decide_request(end);
        }
    }

    /// Takes the next message to the gateway; `None` if there is none.
    pub(crate) fn next_answer(&mut self) -> Option<ProcessingResponse> {
        let answer = self.out.pop_front();
        if self.out.is_empty() && self.request == RequestPhase::Passing {
            // The body has been handed on.
            self.processor.release(std::mem::take(&mut self.held));
        }
        answer
    }

    /// Returns whether the stream must be closed, once no message is left to send.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Takes the calls that the filter has requested.
    pub(crate) fn take_calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.state.get_mut().asked)
    }

    /// Returns the maximum number of bytes to read of a call's response.
    pub(crate) fn max_answer_bytes(&self) -> usize {
        self.exchange.max_answer_bytes()
    }

    /// Runs `work` and catches a panic, which would otherwise end the connection with all its streams. Answers a
    /// request that was not forwarded yet with 500.
    fn guarded(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let result = catch_unwind(AssertUnwindSafe(|| work(self)));
        result.unwrap_or_else(|_| {
            if self.request == RequestPhase::Passing || self.is_closed {
                return Err(Status::internal("the filter failed"));
            }
            let reply = Reply {
                status: 500,
                headers: vec![("content-type".to_owned(), "application/json".to_owned())],
                body: self.exchange.failure(),
            };
            self.out.clear();
            self.out.push_back(answers::immediate(reply));
            self.is_closed = true;
            Ok(())
        })
    }

    /// Calls the filter with this request's host.
    fn with<T>(&mut self, call: impl FnOnce(&mut Exchange, &Proxy<'_>) -> T) -> T {
        let proxy = self.processor.proxy(Scope::Request(&self.state));
        call(&mut self.exchange, &proxy)
    }

    fn handle(&mut self, message: ProcessingRequest) -> Result<(), Status> {
        if message.observability_mode {
            return Err(Status::failed_precondition(OBSERVABILITY));
        }
        let config = message.protocol_config.as_ref();
        let modes = *self.modes.get_or_insert_with(|| Modes::of(config));
        let state = self.state.get_mut();
        state.attributes.extend(message.attributes.into_values());
        let metadata = message.metadata_context.map(|it| it.filter_metadata);
        state.metadata.extend(metadata.into_iter().flatten());
        match message.request {
            Some(Request::RequestHeaders(headers)) => self.on_request_headers(modes, headers)?,
            Some(Request::RequestBody(body)) => self.on_request_body(modes, body)?,
            Some(Request::RequestTrailers(_)) => self.on_request_trailers(),
            Some(Request::ResponseHeaders(headers)) => self.on_response_headers(modes, headers),
            Some(Request::ResponseBody(body)) => self.on_response_body(modes, body),
            Some(Request::ResponseTrailers(_)) => {
                self.with(|exchange, proxy| exchange.on_response_trailers(proxy));
                self.answer_last(answers::trailers(Side::Response));
            }
            None => return Err(Status::invalid_argument("a message without a request")),
        }
        Ok(())
    }

    fn on_request_headers(&mut self, modes: Modes, headers: HttpHeaders) -> Result<(), Status> {
        if self.request != RequestPhase::New {
            return Err(Status::invalid_argument("headers came twice"));
        }
        let state = self.state.get_mut();
        state.request = fields(headers.headers);
        state.subset = Subset::of(&state.metadata);
        let ends = headers.end_of_stream;
        if self.refuse_for_pool() {
            return Ok(());
        }
        self.with(|exchange, proxy| exchange.on_request_headers(proxy, ends));
        if self.refuse() {
            return Ok(());
        }
        if self.exchange.wants_request_body() {
            let words = match modes.request {
                BodySendMode::Buffered
                | BodySendMode::BufferedPartial
                | BodySendMode::FullDuplexStreamed => None,
                BodySendMode::None => Some("NONE"),
                BodySendMode::Streamed => Some("STREAMED"),
                BodySendMode::Grpc => Some("unknown"),
            };
            if let Some(words) = words {
                return Err(Status::failed_precondition(format!(
                    "request_body_mode is {words}: prompts cannot be ordered; use BUFFERED or FULL_DUPLEX_STREAMED"
                )));
            }
            self.request = RequestPhase::Collecting;
            if modes.request != BodySendMode::FullDuplexStreamed {
                let changes = self.request_changes();
                self.out.push_back(answers::headers(Side::Request, changes));
            }
            return Ok(());
        }
        if self.refuse_undirected(End::Open) {
            return Ok(());
        }
        self.request = RequestPhase::Passing;
        let changes = self.request_changes();
        let mut answer = self.directed(changes, |changes| answers::headers(Side::Request, changes));
        let wants_response = self.exchange.wants_response_headers();
        // Pieces of a streamed body may be on their way, and would be lost if they were not sent back.
        let is_over = ends || modes.request != BodySendMode::FullDuplexStreamed;
        self.is_closed = is_over && !wants_response && modes.may_close();
        if wants_response && modes.request != BodySendMode::FullDuplexStreamed {
            answer.mode_override = Some(answers::without_bodies(true));
        }
        if self.is_closed {
            self.answer_last(answer);
        } else {
            self.out.push_back(answer);
        }
        Ok(())
    }

    fn on_request_body(&mut self, modes: Modes, body: HttpBody) -> Result<(), Status> {
        let (mut body, ends) = (body.body, body.end_of_stream);
        match self.request {
            RequestPhase::Collecting => {}
            RequestPhase::Passing => {
                let answer = match modes.request {
                    BodySendMode::FullDuplexStreamed => answers::piece(Side::Request, body, ends),
                    _ => answers::body(Side::Request, answers::Changes::new(), None),
                };
                self.out.push_back(answer);
                if ends {
                    self.after_request();
                }
                return Ok(());
            }
            RequestPhase::New | RequestPhase::Waiting(_) => {
                return Err(Status::invalid_argument("a body out of turn"));
            }
        }
        if !self.processor.hold(body.len()) {
            let words = "too many bytes of requests are held";
            return Err(Status::resource_exhausted(words));
        }
        self.held += body.len();
        let state = self.state.get_mut();
        if state.body.is_empty() {
            state.body = body;
        } else {
            state.body.append(&mut body);
        }
        let (size, is_whole) = match (modes.request, ends) {
            // Trailers may follow, but no more of the body.
            (BodySendMode::Buffered, _) => (state.body.len(), true),
            // The body exceeds the gateway's buffer, so it counts as larger than any limit.
            (BodySendMode::BufferedPartial, false) => (usize::MAX, false),
            _ => (state.body.len(), ends),
        };
        self.with(|exchange, proxy| exchange.on_request_body(proxy, size, is_whole));
        self.decide_request(
            match ends || modes.request != BodySendMode::FullDuplexStreamed {
                true => End::Body,
                false => End::Open,
            },
        );
        Ok(())
    }

    fn on_request_trailers(&mut self) {
        if self.request == RequestPhase::Collecting {
            self.with(|exchange, proxy| exchange.on_request_trailers(proxy));
            self.decide_request(End::Trailers);
        } else {
            self.out.push_back(answers::trailers(Side::Request));
            self.after_request();
        }
    }

    /// Forwards or refuses a request that has arrived up to `end`, as the filter decides. Does neither while the filter
    /// needs more of the body or waits.
    fn decide_request(&mut self, end: End) {
        if self.refuse() {
            return;
        }
        if self.exchange.wants_request_body() {
            return;
        }
        if self.exchange.waits_for_answer() {
            self.request = RequestPhase::Waiting(end);
            return;
        }
        if self.refuse_undirected(end) {
            return;
        }
        self.request = RequestPhase::Passing;
        let is_duplex = self.is_duplex();
        let changes = self.request_changes();
        let state = self.state.get_mut();
        let new = state.new_body.take();
        let old = std::mem::take(&mut state.body);
        if !is_duplex {
            self.out.push_back(match end {
                End::Trailers => answers::trailers(Side::Request),
                End::Body | End::Open => self.directed(changes, |changes| {
                    answers::body(Side::Request, changes, new)
                }),
            });
            // The gateway may hold back trailers until this is answered.
            return self.after_request();
        }
        let mut changes = changes;
        if new.is_some() || changes.contains_key("content-length") {
            changes.insert("content-length".to_owned(), None);
        }
        let head = self.directed(changes, |changes| answers::headers(Side::Request, changes));
        self.out.push_back(head);
        let body = new.unwrap_or(old);
        let mut pieces = body.chunks(PIECE_BYTES).peekable();
        if pieces.peek().is_none() && end == End::Body {
            let empty = answers::piece(Side::Request, Vec::new(), true);
            self.out.push_back(empty);
        }
        while let Some(piece) = pieces.next() {
            let ends = end == End::Body && pieces.peek().is_none();
            let piece = answers::piece(Side::Request, piece.to_vec(), ends);
            self.out.push_back(piece);
        }
        if end == End::Trailers {
            self.out.push_back(answers::trailers(Side::Request));
        }
        if end != End::Open {
            self.after_request();
        }
    }

    /// After the request was forwarded, closes the stream if the filter does not need the response.
    fn after_request(&mut self) {
        let may_close = self.modes.is_some_and(Modes::may_close);
        if may_close && !self.exchange.wants_response_headers() {
            self.close();
        }
    }

    fn on_response_headers(&mut self, modes: Modes, headers: HttpHeaders) {
        self.state.get_mut().response = fields(headers.headers);
        let is_last = headers.end_of_stream || modes.response == BodySendMode::None;
        self.with(|exchange, proxy| {
            exchange.on_response_headers(proxy);
            if is_last {
                exchange.on_response_body(proxy, 0, true);
            }
        });
        let changes = self.state.get_mut().response.take_changes();
        let mut answer = answers::headers(Side::Response, changes);
        let wants_body = self.exchange.wants_response_body();
        if is_last || !wants_body {
            if !wants_body && modes.may_close() {
                answer.mode_override = Some(answers::without_bodies(true));
            }
            self.answer_last(answer);
        } else {
            self.out.push_back(answer);
        }
    }

    fn on_response_body(&mut self, modes: Modes, body: HttpBody) {
        let (size, ends) = (body.body.len(), body.end_of_stream);
        self.state.get_mut().chunk = body.body;
        self.with(|exchange, proxy| exchange.on_response_body(proxy, size, ends));
        let chunk = std::mem::take(&mut self.state.get_mut().chunk);
        let answer = match modes.response {
            BodySendMode::FullDuplexStreamed | BodySendMode::Grpc => {
                answers::piece(Side::Response, chunk, ends)
            }
            _ => answers::body(Side::Response, answers::Changes::new(), None),
        };
        if ends {
            self.answer_last(answer);
        } else {
            self.out.push_back(answer);
        }
    }

    /// If the filter has its own response, sends it, closes the stream and returns true.
    fn refuse(&mut self) -> bool {
        let Some(reply) = self.state.get_mut().reply.take() else {
            return false;
        };
        self.answer_last(answers::immediate(reply));
        self.is_closed = true;
        true
    }

    /// Refuses a request without an eligible endpoint in the pool, or one to be shed. Returns whether it did.
    fn refuse_for_pool(&mut self) -> bool {
        let Some(pool) = &self.processor.pool else {
            return false;
        };
        let state = self.state.get_mut();
        let view = pool.view(state.subset.as_ref(), Instant::now());
        let mut eligible = view.engines.iter().filter(|it| it.is_eligible).peekable();
        if eligible.peek().is_none() {
            self.refuse_with(Refusal::NoEndpoint);
            return true;
        }
        let objective = state.request.get(OBJECTIVE_HEADER);
        let is_sheddable = objective.is_some_and(|objective| {
            let mut names = pool.options().sheddable.iter();
            names.any(|name| name.as_bytes() == objective)
        });
        if is_sheddable && eligible.all(|it| it.is_saturated) {
            self.refuse_with(Refusal::Shed);
            return true;
        }
        false
    }

    fn is_duplex(&self) -> bool {
        (self.modes).is_some_and(|modes| modes.request == BodySendMode::FullDuplexStreamed)
    }

    /// Refuses a request whose destinations all left the pool while its body arrived, or that ends with trailers and no
    /// body, whose answer cannot name a destination. Returns whether it did.
    fn refuse_undirected(&mut self, end: End) -> bool {
        let is_directed = |stream: &mut Self| {
            let request = &stream.state.get_mut().request;
            request.get(DESTINATION_HEADER).is_some()
        };
        let can_name = end != End::Trailers || self.is_duplex();
        if self.processor.pool.is_none() || can_name && is_directed(self) {
            return false;
        }
        self.with(|exchange, proxy| exchange.abandon(proxy));
        self.refuse_with(Refusal::NoEndpoint);
        true
    }

    /// Returns the message that `answer` builds with `changes`. If these set a destination, the message's metadata
    /// names it too, and the pool counts the request.
    fn directed(
        &self,
        changes: answers::Changes,
        answer: impl FnOnce(answers::Changes) -> ProcessingResponse,
    ) -> ProcessingResponse {
        let destinations = changes.get(DESTINATION_HEADER).cloned().flatten();
        let mut answer = answer(changes);
        if let Some(destinations) = destinations {
            answers::direct(&mut answer, &destinations);
            let first = destinations.split(',').next();
            let first = first.and_then(|first| first.parse().ok());
            if let (Some(pool), Some(first)) = (&self.processor.pool, first) {
                pool.picked(first);
            }
        }
        answer
    }

    fn refuse_with(&mut self, refusal: Refusal) {
        let (status, code, words, counter) = match refusal {
            Refusal::NoEndpoint => (
                503,
                "no-endpoint",
                "no engine is ready for the request",
                &self.processor.metrics.no_endpoint,
            ),
            Refusal::Shed => (
                429,
                "shed",
                "all engines are busy, and the request may be refused then",
                &self.processor.metrics.shed,
            ),
        };
        counter.inc();
        let body = self.with(|exchange, proxy| exchange.refusal(proxy, status, words, code));
        let state = self.state.get_mut();
        state.reply = Some(Reply {
            status,
            headers: vec![
                ("content-type".to_owned(), "application/json".to_owned()),
                ("retry-after".to_owned(), "1".to_owned()),
            ],
            body,
        });
        self.refuse();
        // The filter has not seen the request, or no longer handles it, so it reports no outcome.
        if let Some(answer) = self.out.back_mut() {
            let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
            let fields = vec![field("outcome", "refused"), field("reason", code)];
            answers::add_metadata(answer, NAMESPACE, fields);
        }
    }

    /// Sends the last message of the stream, with the access-log metadata.
    fn answer_last(&mut self, mut answer: ProcessingResponse) {
        self.finish();
        self.describe(&mut answer);
        self.out.push_back(answer);
    }

    /// Ends the stream after the pending messages, the last of which gets the access-log metadata.
    fn close(&mut self) {
        self.finish();
        self.is_closed = true;
        if let Some(last) = self.out.pop_back() {
            self.answer_last(last);
        }
    }

    /// Tells the filter that the stream has ended, unless that was done.
    fn finish(&mut self) {
        if !std::mem::replace(&mut self.is_done, true) {
            self.with(|exchange, proxy| exchange.on_done(proxy));
        }
    }

    /// Adds the access-log metadata to a message, unless it was sent.
    fn describe(&mut self, answer: &mut ProcessingResponse) {
        let fields = std::mem::take(&mut self.state.get_mut().log_fields);
        if !fields.is_empty() {
            answers::add_metadata(answer, NAMESPACE, fields);
        }
    }

    fn request_changes(&mut self) -> answers::Changes {
        self.state.get_mut().request.take_changes()
    }
}

impl Drop for ProcessingStream {
    fn drop(&mut self) {
        // If the client or the gateway has disconnected, the filter does not know yet.
        let _ = catch_unwind(AssertUnwindSafe(|| self.finish()));
        self.processor.release(self.held);
    }
}

/// The reason for which an endpoint picker refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    NoEndpoint,
    Shed,
}

/// Converts the protocol's headers to the filter's.
fn fields(headers: Option<HeaderMap>) -> Headers {
    let headers = headers.unwrap_or_default().headers.into_iter();
    let field = headers.map(|header| {
        let value = match header.raw_value.is_empty() {
            true => header.value.into_bytes(),
            false => header.raw_value,
        };
        (header.key, value)
    });
    Headers::new(field.collect())
}

/// Longest piece of a body to send back, in bytes, as Envoy recommends.
const PIECE_BYTES: usize = 62_000;
/// The header with the name of a request's objective, see [`PoolOptions::sheddable`](crate::pool::PoolOptions).
const OBJECTIVE_HEADER: &str = "x-gateway-inference-objective";
/// The namespace of the access-log metadata: `%DYNAMIC_METADATA(foreword:outcome)%`.
const NAMESPACE: &str = "foreword";
const OBSERVABILITY: &str = "observability_mode is on, in which nothing can be changed: use mode \"dry-run\" in the filter's configuration";
