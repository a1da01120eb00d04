//! One request and its response, from the first callback to the last.
//!
//! ```text
//! request headers ─► not ours ──────────────────────────────► Bystander   forwarded, no report
//!        │
//!        ├─► with salts: not on the lists ([`listed`]) ──────► Settled     refused
//!        ├─► cannot be ordered (encoded, too large, …) ──────► Settled     forwarded or refused
//!        ▼
//!     Holding ── body grows ─► over the bound ───────────────► Settled     forwarded whole, or refused
//!        │
//!        └─ last byte or trailers ─► core ─► new body or none ► Settled     forwarded
//!               └─► no documents: Searching ─ responses ─┘
//! ```
//!
//! The headers are held until the body is complete, because `content-length` must change with it (Envoy hangs on a
//! stale one) and the chosen path becomes a header. If the proxy cannot hold them ([`RequestHeaders::Release`]), they
//! are forwarded at once, without `content-length` and path. The report is a response header. Response bodies are
//! forwarded unchanged, and the reported usage is read from them ([`crate::usage`]).

pub(crate) mod listed;
mod route;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use foreword_ordering::cuts::Cut;
use foreword_ordering::head::{Diagnosis, HeadReport};
use foreword_ordering::{BurstTicket, Entry, OrderingRecord, Retrieved, Rewrite, cache_field};

use crate::answers::ChatKey;
use crate::config::{Mode, OnFailure, RequestHeaders, TenantSource};
use crate::dialect::Dialect;
use crate::engines::DESTINATION_HEADER;
use crate::host::{CallResponse, Host, HostError, LogLevel};
use crate::misses::{self, Ticket};
use crate::outcome::{self, Fault, RequestOutcome, reason};
use crate::pending::PendingResponse;
use crate::plugin::{Plugin, RequestDocuments, Rewritten, Route, for_model};
use crate::retrieval::{Reason, Search, SearchReport, SearchStep};
use crate::salt::Identity;
use crate::usage::PromptUsage;
use listed::{Listed, RequestHead};
use route::route_of;

/// One request and its response, handled from the first proxy callback to the last.
pub struct Exchange {
    plugin: Arc<Plugin>,
    phase: Phase,
    /// The format of error responses to the client, by the API that the request's path belongs to.
    dialect: Dialect,
    /// The model named in the request's path; `None` if the route has no `{model}`.
    model: Option<String>,
    /// The response that the request waits for; `None` until an engine is chosen for the request.
    pending: Option<PendingResponse>,
    /// The search for documents for the request's question; `None` if none was started.
    search: Option<Box<Search>>,
    /// The report of the search for documents; `None` until it has finished.
    ended: Option<SearchReport>,
    /// The changes to the prompt's head (tools, system text, history), made or only reported; `None` if there are none.
    head: Option<HeadReport>,
    /// Counts of the cache markers written into the body; `None` if no markers are set.
    cut: Option<Cut>,
    /// The ticket for the request's cache-miss diagnosis; `None` if there is none.
    miss: Option<Ticket>,
    /// The request's role in a burst (simultaneous requests that begin with the same uncached documents); `None` if it
    /// is in none.
    burst: Option<Burst>,
    /// The key of the chat under which the model's answer will be stored; `None` if answers are not stored.
    chat: Option<ChatKey>,
    /// Number of the request's messages in which lost parts of the model's answers were restored.
    restored: u64,
}

/// The name in access logs of the role of a burst's first request.
const LEADS: &str = "leads";

/// A request's role in a burst: simultaneous requests whose prompts begin with the same documents. One leads, and the
/// others are held until its response begins, so that the engine computes the documents only once.
#[derive(Clone, Copy)]
struct Burst {
    /// The role's name in access logs: `leads` (the first request of the burst), `held`, or `follows` (a later one that
    /// is not held).
    name: &'static str,
    /// The request's number if it is the first of a burst or held, until its response has begun or failed; `None` for a
    /// later request that is not held.
    ticket: Option<BurstTicket>,
    /// True while the request is paused until the response begins to another request that computes the same documents.
    is_held: bool,
    /// True if the response's status is 2xx. False until the response's headers have arrived.
    succeeds: bool,
}

/// The proxy's next action on the request after a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Pass the request on to the next filter.
    Continue,
    /// Keep the request's headers and body buffered, or drop them if the filter has already responded.
    Hold,
}

enum Phase {
    Bystander,
    Holding(BufferedRequest),
    /// The body is complete and stays buffered; the search for documents is still running.
    Searching(BufferedRequest),
    Settled(RequestOutcome),
}

/// State of a request whose body is buffered in the proxy: still arriving, or complete while documents are searched
/// for.
struct BufferedRequest {
    identity: Identity,
    /// True if the client asked that its documents are not ordered: then only the tenant's cache salt is written.
    bypassed: bool,
    /// True if the buffered headers have a `content-length`, which must match the body that is forwarded.
    sized: bool,
    /// Number of bytes of the body buffered so far.
    received: usize,
    /// The embedding vector of the question, as the client's header contains it; `None` if the header is absent or not
    /// configured.
    embedding: Option<Vec<u8>>,
    /// The range in bytes of the body's field `retrieval`, which is not forwarded; `None` if it is absent. Set once the
    /// body is complete.
    cut: Option<Range<usize>>,
}

/// The result of checking whether a body needs documents from retrieval.
enum RetrievalNeed<'b> {
    /// No search is needed. The value is the parsed body if the rewrite can reuse it.
    None(RequestDocuments<'b>),
    Search(SearchStep),
}

impl BufferedRequest {
    /// Reads the complete body from the proxy. Returns [`Fault::EmptyBody`] if it is empty.
    fn body(&self, host: &impl Host) -> Result<Vec<u8>, Fault> {
        match self.received {
            0 => Err(Fault::EmptyBody),
            bytes => Ok(host.request_body(bytes)?),
        }
    }
}

/// Parts of a request's report that are collected while its body is rewritten, other than the outcome.
#[derive(Default)]
struct Noted {
    head: Option<HeadReport>,
    /// Counts of the cache markers written into the body; `None` if no markers are set.
    cut: Option<Cut>,
    miss: Option<Ticket>,
}

/// The request as it is forwarded to the engine.
struct ForwardedRequest {
    /// The body to forward; `None` to forward the original one.
    body: Option<Vec<u8>>,
    /// Value of the header that tells the engine the chosen path (the order of the documents); `None` if the header is
    /// not sent.
    path: Option<String>,
    outcome: RequestOutcome,
}

impl Exchange {
    /// Returns the exchange for a new request of `plugin`.
    pub fn new(plugin: Arc<Plugin>) -> Self {
        Self {
            plugin,
            phase: Phase::Bystander,
            dialect: Dialect::default(),
            model: None,
            pending: None,
            search: None,
            ended: None,
            head: None,
            cut: None,
            miss: None,
            burst: None,
            chat: None,
            restored: 0,
        }
    }

    /// Returns the JSON body of a 500 response for a failure of the filter itself, in the format of the request's API.
    pub fn failure(&self) -> Vec<u8> {
        (self.dialect).error(500, "the gateway failed", "gateway_failed")
    }

    /// Returns the JSON body of an error response that the module which embeds the filter sends by itself, for instance
    /// because no engine is ready. Its format is that of the API to which the request's path belongs. `status` is the
    /// HTTP status, `message` the text for the client, and `code` the reason in kebab case. Call it after the request's
    /// headers have arrived.
    pub fn refusal(&self, host: &impl Host, status: u16, message: &str, code: &str) -> Vec<u8> {
        let path = host.request_header(":path").ok().flatten();
        let path = path.unwrap_or_default();
        let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
        let dialect = match Dialect::of(str::from_utf8(path).unwrap_or_default()) {
            Dialect::OpenAi => Dialect::guessed(path),
            known => known,
        };
        dialect.error(status, message, code)
    }

    /// Handles the request's headers, and returns what the proxy must do with the request. `end_of_stream` is true if
    /// the request has neither body nor trailers.
    pub fn on_request_headers(&mut self, host: &impl Host, end_of_stream: bool) -> Flow {
        let dialect = self.strip_own_headers(host).map_err(Fault::from);
        let dialect = dialect.and_then(|()| self.dialect_if_ours(host, end_of_stream));
        let bypassed = match dialect {
            Ok(None) => {
                self.direct_unread(host);
                return Flow::Continue;
            }
            Ok(Some(dialect)) => {
                self.dialect = dialect;
                self.is_bypassed(host)
            }
            Err(fault) => return self.decline(host, fault),
        };
        let held = match bypassed {
            Ok(_) if end_of_stream => Err(Fault::EmptyBody),
            Ok(true) if !self.plugin.is_salted() => {
                self.direct_unread(host);
                self.settle(host, RequestOutcome::Passed(reason::BYPASS));
                return Flow::Continue;
            }
            Ok(bypassed) => self.read_headers(host, bypassed),
            Err(error) => Err(error.into()),
        };
        match held {
            Ok(held) => {
                self.phase = Phase::Holding(held);
                match self.plugin.config().request_headers {
                    RequestHeaders::Hold => Flow::Hold,
                    RequestHeaders::Release => Flow::Continue,
                }
            }
            Err(fault) => self.decline(host, fault),
        }
    }

    /// Handles more of the request's body, and returns what the proxy must do with the request. `size` is the number of
    /// bytes buffered so far, the new ones included; `end_of_stream` is true if the body is complete.
    pub fn on_request_body(&mut self, host: &impl Host, size: usize, end_of_stream: bool) -> Flow {
        let Phase::Holding(held) = &mut self.phase else {
            return self.settled_flow();
        };
        held.received = size;
        let limit = self.plugin.config().max_body_bytes;
        if size > usize::try_from(limit).unwrap_or(usize::MAX) {
            // The body was held from its first byte, so it can be forwarded whole.
            return self.decline(host, Fault::TooLarge { found: None, limit });
        }
        if end_of_stream {
            self.finish(host)
        } else {
            Flow::Hold
        }
    }

    /// Handles the request's trailers, which end the body, and returns what the proxy must do with the request.
    pub fn on_request_trailers(&mut self, host: &impl Host) -> Flow {
        match self.phase {
            Phase::Holding(_) => self.finish(host),
            _ => self.settled_flow(),
        }
    }

    /// Returns whether the rest of the request's body must be buffered and passed on to the filter. After the headers
    /// are forwarded, [`Flow`] does not tell this to the module that embeds the filter.
    pub fn wants_request_body(&self) -> bool {
        matches!(self.phase, Phase::Holding(_))
    }

    /// Returns whether the request waits for a response to a [`Host::call_for_request`], or for another request of its
    /// burst (simultaneous requests that begin with the same documents).
    pub fn waits_for_answer(&self) -> bool {
        matches!(self.phase, Phase::Searching(_)) || self.is_held()
    }

    /// Returns whether the request is held until the response to another request of its burst begins (simultaneous
    /// requests that begin with the same documents). A module that calls this after the wait too must call
    /// [`Exchange::on_resumed`] when the function from [`Host::resumer`] is called.
    pub fn is_held(&self) -> bool {
        self.burst.is_some_and(|burst| burst.is_held)
    }

    /// Returns the maximum time in milliseconds for which the request may be held behind another one that computes the
    /// same documents; 0 if that is off (`bursts`).
    pub fn max_wait_ms(&self) -> u64 {
        self.plugin.max_wait_ms()
    }

    /// Records that the request is no longer held behind another one. It is forwarded with the body and engine already
    /// chosen.
    pub fn on_resumed(&mut self) {
        if let Some(burst) = &mut self.burst {
            burst.is_held = false;
        }
    }

    /// Returns whether the filter must read or change the response's headers.
    pub fn wants_response_headers(&self) -> bool {
        let is_reported = self.plugin.config().report_header.is_some();
        self.pending.is_some() || is_reported && matches!(self.phase, Phase::Settled(_))
    }

    /// Returns whether the filter must read the response's body. Call it after [`Exchange::on_response_headers`].
    pub fn wants_response_body(&self) -> bool {
        self.pending
            .as_ref()
            .is_some_and(PendingResponse::wants_body)
            || self.burst.is_some_and(|burst| burst.ticket.is_some())
    }

    /// Handles the response's headers, which come from the engine or the proxy itself, and adds the report header.
    pub fn on_response_headers(&mut self, host: &impl Host) {
        if let Some(pending) = &mut self.pending {
            let follows = self.burst.is_some_and(|burst| burst.name != LEADS);
            pending.on_headers(host, &self.plugin, follows);
        }
        if let Some(burst) = &mut self.burst {
            burst.is_held = false;
            let status = host.response_header(":status").ok().flatten();
            burst.succeeds = status.is_some_and(|status| status.starts_with(b"2"));
            if !burst.succeeds {
                self.leave_burst(host);
            }
        }
        if let (Some(name), Phase::Settled(outcome)) =
            (&self.plugin.config().report_header, &self.phase)
            && let Err(error) = host.set_response_header(name, &self.report(outcome))
        {
            host.log(LogLevel::Warn, &error.to_string());
        }
    }

    /// Returns the maximum length in bytes of a response to a [`Host::call_for_request`] that the filter reads; 0 if
    /// retrieval is off.
    pub fn max_answer_bytes(&self) -> usize {
        let retrieval = self.plugin.retrieval();
        retrieval.map_or(0, |retrieval| retrieval.config().retriever.max_answer_bytes)
    }

    /// Handles the response to a [`Host::call_for_request`]. `status` is `None` if there was no response, and `body` is
    /// `None` if there was none or it is longer than [`Exchange::max_answer_bytes`]. If the search for documents ends
    /// with it, the request is forwarded, refused, or held behind another one that computes the same documents.
    pub fn on_answer(
        &mut self,
        host: &impl Host,
        call: u64,
        status: Option<u16>,
        body: Option<&[u8]>,
    ) {
        let (Some(search), Some(retrieval)) = (&mut self.search, self.plugin.retrieval()) else {
            return;
        };
        let answer = CallResponse { status, body };
        let step = search.on_answer(host, retrieval, call, answer);
        let Some(SearchStep::Over(found)) = step else {
            return;
        };
        let held = match std::mem::replace(&mut self.phase, Phase::Bystander) {
            Phase::Searching(held) => held,
            phase => {
                self.phase = phase;
                return;
            }
        };
        let flow = match held.body(host) {
            Ok(received) => self.answered(host, &held, &received, found),
            Err(fault) => self.decline(host, fault),
        };
        if flow == Flow::Continue
            && let Err(error) = host.resume()
        {
            host.log(LogLevel::Warn, &error.to_string());
        }
    }

    /// Handles a chunk of `size` bytes of the response's body, which is forwarded unchanged. The last chunk
    /// (`end_of_stream`) may be empty; a response without a body has only that one.
    pub fn on_response_body(&mut self, host: &impl Host, size: usize, end_of_stream: bool) {
        if size > 0 || end_of_stream {
            self.leave_burst(host);
        }
        if let Some(pending) = &mut self.pending {
            pending.on_body(host, &self.plugin, size, end_of_stream);
        }
    }

    /// Handles the response's trailers, which end the response.
    pub fn on_response_trailers(&mut self, host: &impl Host) {
        self.leave_burst(host);
        if let Some(pending) = &mut self.pending {
            pending.on_end(host, &self.plugin);
        }
    }

    /// Forgets what the engine was to compute for the request, which the proxy refused after it was ordered.
    pub fn abandon(&mut self, host: &impl Host) {
        let record = self
            .pending
            .as_ref()
            .and_then(|pending| pending.decided().0);
        if let Some(record) = record {
            self.plugin.undo(host, record);
        }
    }

    /// Handles the end of the exchange, however request and response ended: records the results and writes the fields
    /// for access logs.
    pub fn on_done(&mut self, host: &impl Host) {
        // A response whose body has not begun counts as failed, even if its headers have arrived.
        if let Some(burst) = &mut self.burst {
            burst.succeeds = false;
        }
        let is_unsent = self.leave_burst(host);
        let pending = self.pending.take();
        let record = pending.as_ref().and_then(|pending| pending.decided().0);
        if let Some(record) = record.filter(|_| is_unsent) {
            self.plugin.undo(host, record);
        }
        let counted = pending.and_then(|pending| pending.on_done(host, &self.plugin));
        let miss = self.miss.take();
        let miss = miss.and_then(|ticket| self.plugin.missed(host, ticket, counted));
        // Drops an unfinished search, which frees its warm-up slot.
        self.search = None;
        let phase = std::mem::replace(&mut self.phase, Phase::Bystander);
        if let Phase::Settled(outcome) = phase
            && self.plugin.config().log_fields
            && let Err(error) =
                host.set_log_fields(&self.log_fields(&outcome, counted, miss.as_ref()))
        {
            host.log(LogLevel::Warn, &error.to_string());
        }
    }

    /// Returns the request's fields for the access log as pairs of name and value. `counted` is the engine's usage
    /// report and `miss` the cache-miss diagnosis.
    fn log_fields(
        &self,
        outcome: &RequestOutcome,
        counted: Option<PromptUsage>,
        miss: Option<&Diagnosis>,
    ) -> Vec<(&'static str, String)> {
        let mut fields = outcome.fields();
        fields.extend(self.head.iter().flat_map(outcome::head_fields));
        fields.extend(self.cut.iter().flat_map(outcome::cut_fields));
        fields.extend(miss.into_iter().flat_map(misses::fields));
        if let Some(ended) = self.ended {
            fields.push(("retrieval", ended.word.to_owned()));
            fields.push(("retrieval_ms", ended.milliseconds.to_string()));
        }
        if let Some(burst) = self.burst {
            fields.push(("burst", burst.name.to_owned()));
        }
        if self.restored > 0 {
            fields.push(("restored", self.restored.to_string()));
        }
        if let Some(PromptUsage { prompt, cached, .. }) = counted {
            fields.push(("prompt_tokens", prompt.to_string()));
            fields.extend(cached.map(|cached| ("cached_tokens", cached.to_string())));
        }
        fields
    }

    /// Removes headers of the client that have the names of the filter's own, since they would mislead later filters
    /// and the engine. Each is looked up first, since changing headers makes Envoy select the route again.
    fn strip_own_headers(&self, host: &impl Host) -> Result<(), HostError> {
        let config = self.plugin.config();
        let own = config.report_header.as_deref();
        let own = own.into_iter().chain([config.path_header.name.as_str()]);
        let several = self.plugin.engines().are_several();
        for name in own.chain(several.then_some(DESTINATION_HEADER)) {
            if host.request_header(name)?.is_some() {
                host.remove_request_header(name)?;
            }
        }
        Ok(())
    }

    /// Returns the error format of a request that the filter processes; `None` for a request that is forwarded unread.
    /// If cache salts are on, an unread request has no body, and requests on other paths or with other methods are
    /// refused with an error. Sets the model named in the path.
    fn dialect_if_ours(
        &mut self,
        host: &impl Host,
        end_of_stream: bool,
    ) -> Result<Option<Dialect>, Fault> {
        let method = host.request_header(":method")?.unwrap_or_default();
        let path = host.request_header(":path")?.unwrap_or_default();
        let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
        let config = self.plugin.config();
        if self.plugin.is_salted() {
            self.dialect = Dialect::guessed(path);
            let asked = RequestHead {
                method: &method,
                path,
                has_body: !end_of_stream,
                upgrades: host.request_header("upgrade")?.is_some(),
            };
            let listed =
                asked.listed(&config.routes, &config.open_paths, &config.unsalted_routes)?;
            return Ok(match listed {
                Listed::Processed(route) => Some(Dialect::of(route)),
                Listed::WithoutPrompt => None,
            });
        }
        if method != b"POST" {
            return Ok(None);
        }
        let Some((route, model)) = route_of(path, &config.routes) else {
            return Ok(None);
        };
        self.model = model;
        Ok(Some(Dialect::of(route)))
    }

    /// Returns whether the request has the header by which a client asks that its documents are not ordered, and
    /// removes the header, since it is meant for the gateway.
    fn is_bypassed(&self, host: &impl Host) -> Result<bool, HostError> {
        let Some(name) = &self.plugin.config().bypass_header else {
            return Ok(false);
        };
        let is_asked = host.request_header(name)?.is_some();
        if is_asked {
            host.remove_request_header(name)?;
        }
        Ok(is_asked)
    }

    fn read_headers(&self, host: &impl Host, bypassed: bool) -> Result<BufferedRequest, Fault> {
        if !host
            .request_header("content-type")?
            .is_none_or(|value| is_json(&value))
        {
            return Err(Fault::NotJson);
        }
        let encoding = host.request_header("content-encoding")?;
        if !encoding.is_none_or(|value| value.trim_ascii().eq_ignore_ascii_case(b"identity")) {
            return Err(Fault::Encoded);
        }
        let length = host.request_header("content-length")?;
        let found = length
            .as_deref()
            .and_then(|value| str::from_utf8(value).ok()?.trim().parse::<u64>().ok());
        let limit = self.plugin.config().max_body_bytes;
        if found.is_some_and(|found| found > u64::from(limit)) {
            return Err(Fault::TooLarge { found, limit });
        }
        let identity = self.plugin.identity(self.tenant(host)?);
        let retrieval = self.plugin.retrieval();
        let mut embedding = None;
        if let Some(name) = retrieval.and_then(|it| it.config().embedding.header.as_ref()) {
            embedding = host.request_header(name)?;
            if embedding.is_some() {
                host.remove_request_header(name)?;
            }
        }
        let mut sized = length.is_some();
        if sized && self.plugin.config().request_headers == RequestHeaders::Release {
            // This must come last: without `content-length` the request is sent in chunks, whatever happens later.
            host.remove_request_header("content-length")?;
            sized = false;
        }
        Ok(BufferedRequest {
            identity,
            bypassed,
            sized,
            received: 0,
            embedding,
            cut: None,
        })
    }

    /// Returns the name of the request's tenant; empty if tenants are not configured. If they are and the request names
    /// none, or no valid one, returns an error, so that the request is not ordered: with a common record of cached
    /// prefixes, clients without a tenant would learn of each other's documents.
    fn tenant(&self, host: &impl Host) -> Result<String, Fault> {
        let value = match &self.plugin.config().tenant {
            None => return Ok(String::new()),
            Some(TenantSource::Header(name)) => {
                let values = host.request_header_values(name)?;
                // A proxy that joins values separates them by commas.
                if values.len() > 1 || values.iter().any(|value| value.contains(&b',')) {
                    return Err(Fault::SeveralTenants);
                }
                values.into_iter().next()
            }
            Some(TenantSource::Claim(path)) => {
                let mut parts = vec!["metadata", "filter_metadata"];
                parts.extend(path.iter().map(String::as_str));
                // Envoy may return an error for a claim that is not text.
                let claim = host.property(&parts);
                claim.map_err(|_| Fault::BadTenant {
                    limit: MAX_TENANT_BYTES,
                })?
            }
        };
        let value = value.unwrap_or_default();
        if value.is_empty() {
            return Err(Fault::NoTenant);
        }
        let limit = MAX_TENANT_BYTES;
        String::from_utf8(value)
            .ok()
            .filter(|name| name.len() <= limit && !name.contains(char::is_control))
            .ok_or(Fault::BadTenant { limit })
    }

    /// Handles a complete body: restores the model's earlier answers in it, searches for documents if it has none,
    /// rewrites it and forwards the request. Returns what the proxy must do with the request.
    fn finish(&mut self, host: &impl Host) -> Flow {
        let mut held = match std::mem::replace(&mut self.phase, Phase::Bystander) {
            Phase::Holding(held) => held,
            phase => {
                self.phase = phase;
                return self.settled_flow();
            }
        };
        let received = match held.body(host) {
            Ok(received) => received,
            Err(fault) => return self.decline(host, fault),
        };
        if self.plugin.is_salted()
            && let Some(field) = cache_field(&received)
        {
            return self.decline(host, Fault::CacheField { field });
        }
        let received = match self.restore(host, &mut held, received) {
            Ok(received) => received,
            Err(error) => return self.decline(host, error.into()),
        };
        match self.search(host, &mut held, &received) {
            RetrievalNeed::None(known) => self.rewrite_and_forward(host, &held, &received, known),
            RetrievalNeed::Search(SearchStep::Wait) => {
                self.phase = Phase::Searching(held);
                Flow::Hold
            }
            RetrievalNeed::Search(SearchStep::Over(found)) => {
                self.answered(host, &held, &received, found)
            }
        }
    }

    /// Restores stored answers of the model that the client changed, and returns the body; the original one if nothing
    /// is restored. Writes the new body to the proxy and updates `held`.
    fn restore(
        &mut self,
        host: &impl Host,
        held: &mut BufferedRequest,
        received: Vec<u8>,
    ) -> Result<Vec<u8>, HostError> {
        let is_chat = self.dialect == Dialect::OpenAi && !held.bypassed;
        let Some(answers) = self.plugin.answers().filter(|_| is_chat) else {
            return Ok(received);
        };
        let limit = usize::try_from(self.plugin.config().max_body_bytes).unwrap_or(usize::MAX);
        let model = self.model.as_deref().unwrap_or_default();
        let salt = held.identity.salt().unwrap_or_default();
        let owner = [held.identity.tenant().name, salt, model];
        let Some(chat) = answers.restore(host, &owner, &received, limit) else {
            return Ok(received);
        };
        self.chat = Some(chat.key);
        let Some(body) = chat.body else {
            return Ok(received);
        };
        replace(host, held, &received, &body)?;
        held.received = body.len();
        self.restored = chat.restored;
        Ok(body)
    }

    /// Starts the search for documents if retrieval is on and the body has none. If the body has a field `retrieval`,
    /// `held.cut` is set, because the field must be removed.
    fn search<'b>(
        &mut self,
        host: &impl Host,
        held: &mut BufferedRequest,
        received: &'b [u8],
    ) -> RetrievalNeed<'b> {
        let config = self.plugin.config();
        let Some(retrieval) = self.plugin.retrieval() else {
            return RetrievalNeed::None(RequestDocuments::Nothing);
        };
        let parsed = foreword_ordering::parse(received, &config.ordering);
        let parsed = parsed.and_then(|parsed| for_model(parsed, self.model.as_deref()));
        let Ok(parsed) = parsed else {
            // The core will report the error.
            return RetrievalNeed::None(RequestDocuments::Nothing);
        };
        held.cut = parsed.place_of_retrieval();
        if held.bypassed || config.mode != Mode::Order {
            return RetrievalNeed::None(RequestDocuments::Nothing);
        }
        let (identity, header) = (&held.identity, held.embedding.as_deref());
        let whose = (identity.tenant().name, identity.salt());
        match Search::begin(host, retrieval, &parsed, header, whose) {
            Ok(Some((search, step))) => {
                self.search = Some(Box::new(search));
                RetrievalNeed::Search(step)
            }
            Err(reason) => RetrievalNeed::Search(SearchStep::Over(Err(reason))),
            // The body's bytes will change, so this parse cannot be reused.
            Ok(None) if held.cut.is_some() => RetrievalNeed::None(RequestDocuments::Nothing),
            Ok(None) => RetrievalNeed::None(RequestDocuments::Parsed(Box::new(parsed))),
        }
    }

    /// Handles the end of the search for documents: with the result `found` or without documents, the request is
    /// forwarded, held or refused.
    fn answered(
        &mut self,
        host: &impl Host,
        held: &BufferedRequest,
        received: &[u8],
        found: Result<Option<String>, Reason>,
    ) -> Flow {
        let retrieval = self.plugin.retrieval();
        let on_failure = retrieval.map(|retrieval| retrieval.config().on_failure);
        self.ended = match (&self.search, &found) {
            (Some(search), _) => search.ended(),
            // The search failed before it started.
            (None, Err(reason)) => Some(SearchReport::at_once(*reason)),
            (None, Ok(_)) => None,
        };
        match found {
            Ok(Some(documents)) => {
                let plugin = Arc::clone(&self.plugin);
                let retrieved = retrieved(&plugin, &documents);
                self.rewrite_and_forward(
                    host,
                    held,
                    received,
                    RequestDocuments::Retrieved(retrieved),
                )
            }
            Err(reason) if on_failure != Some(OnFailure::Pass) => {
                self.decline(host, Fault::Retrieval(reason))
            }
            Ok(None) | Err(_) => {
                self.rewrite_and_forward(host, held, received, RequestDocuments::Nothing)
            }
        }
    }

    /// Rewrites the body `received`; `known` has its documents as far as they are already parsed or retrieved. Then the
    /// request is forwarded, held behind another one that computes the same documents, or refused. Returns what the
    /// proxy must do with the request.
    fn rewrite_and_forward(
        &mut self,
        host: &impl Host,
        held: &BufferedRequest,
        received: &[u8],
        known: RequestDocuments<'_>,
    ) -> Flow {
        let mut pending = None;
        let mut noted = Noted::default();
        let sent = self.send(host, held, received, known, &mut pending, &mut noted);
        if let Some(pending) = &mut pending {
            pending.of_chat(self.chat);
        }
        (self.pending, self.head, self.miss) = (pending, noted.head, noted.miss);
        self.cut = noted.cut;
        match sent {
            Ok(outcome) => {
                self.plugin.restored(host, self.restored);
                self.settle(host, outcome);
                self.enter_burst(host)
            }
            Err(fault) => self.decline(host, fault),
        }
    }

    /// Decides for a request that is ready to be forwarded whether it is held while another request computes the same
    /// documents. Returns what the proxy must do with it.
    fn enter_burst(&mut self, host: &impl Host) -> Flow {
        let decided = self.pending.as_ref().map(PendingResponse::decided);
        let (record, arm) = decided.unwrap_or_default();
        let (name, ticket, is_held) = match self.plugin.enter(host, record, arm) {
            Entry::Free => return Flow::Continue,
            Entry::Leads(ticket) => (LEADS, Some(ticket), false),
            Entry::Held(ticket) => ("held", Some(ticket), true),
            Entry::Unheld => ("follows", None, false),
        };
        self.burst = Some(Burst {
            name,
            ticket,
            is_held,
            succeeds: false,
        });
        match is_held {
            true => Flow::Hold,
            false => Flow::Continue,
        }
    }

    /// Releases the requests that are held until this request's response begins. Called when it has begun, or when the
    /// request has failed or ended. Returns whether the request itself was still held, so that it was never forwarded.
    fn leave_burst(&mut self, host: &impl Host) -> bool {
        let burst = self.burst.as_mut();
        let left = burst.and_then(|burst| Some((burst.ticket.take()?, burst.succeeds)));
        match left {
            Some((ticket, true)) => self.plugin.burst_answered(host, ticket),
            Some((ticket, false)) => return self.plugin.burst_gone(host, ticket),
            None => {}
        }
        false
    }

    /// Rewrites the body `received`, and replaces body and headers in the proxy; the caller lets the request continue.
    /// Sets `pending` as soon as an engine is chosen, even if an error follows, and `noted` to parts of the report.
    fn send(
        &self,
        host: &impl Host,
        held: &BufferedRequest,
        received: &[u8],
        known: RequestDocuments<'_>,
        pending: &mut Option<PendingResponse>,
        noted: &mut Noted,
    ) -> Result<RequestOutcome, Fault> {
        let mut body = Cow::Borrowed(received);
        if let Some(cut) = held.cut.clone().filter(|cut| cut.end <= received.len()) {
            body.to_mut().drain(cut);
        }
        let tenant = held.identity.tenant().name;
        let sent = if held.bypassed {
            let route = self.plugin.route(host, body.len());
            let answer = PendingResponse::new(None, None, route.dispatch);
            *pending = Some(answer.of_tenant(&self.plugin, tenant));
            direct(host, &route)?;
            salted(&body, held, reason::BYPASS)?
        } else {
            let Rewritten {
                answer,
                route,
                head,
                cut,
                miss,
            } = (self.plugin)
                .rewrite(host, &held.identity, &body, known, self.model.as_deref())
                .ok_or(Fault::Busy)?;
            noted.head = (!head.is_empty()).then_some(head);
            noted.cut = cut;
            let mut marked = noted.cut.as_mut().and_then(|cut| cut.body.take());
            noted.miss = miss;
            let (record, arm, answer) = match answer {
                Ok(rewrite) => {
                    let arm = rewrite.arm;
                    let (record, mut sent) = self.sent(rewrite);
                    sent.body = marked.take().or(sent.body);
                    (Some(record), arm, Ok(sent))
                }
                Err(skip) => (None, None, Err(skip)),
            };
            let awaited = PendingResponse::new(record, arm, route.dispatch);
            *pending = Some(awaited.of_tenant(&self.plugin, tenant));
            direct(host, &route)?;
            match answer {
                Ok(sent) => sent,
                Err(skip) => {
                    let reason = skip.reason();
                    let fault = Fault::Skip(skip);
                    if self.refusal_status(&fault).is_some() {
                        return Err(fault);
                    }
                    let mut sent = salted(marked.as_deref().unwrap_or(&body), held, reason)?;
                    sent.body = sent.body.or(marked);
                    sent
                }
            }
        };
        let name = &self.plugin.config().path_header.name;
        if let Some(path) = &sent.path {
            host.set_request_header(name, path)?;
        }
        let new = sent.body.as_deref();
        let new = new.or_else(|| held.cut.is_some().then_some(&*body));
        if let Some(new) = new
            && let Err(error) = replace(host, held, received, new)
        {
            // The path describes a body that is not sent.
            if sent.path.is_some() {
                host.remove_request_header(name)?;
            }
            return Err(error.into());
        }
        Ok(sent.outcome)
    }

    /// Splits the ordering core's result for a body into the record of the request, with which the engine's usage
    /// report is compared, and the request to forward.
    fn sent(&self, rewrite: Rewrite) -> (OrderingRecord, ForwardedRequest) {
        let config = self.plugin.config();
        let told = config.path_header.enabled && config.request_headers == RequestHeaders::Hold;
        let Rewrite { report, arm, .. } = rewrite;
        let sent = ForwardedRequest {
            body: rewrite.body,
            path: told.then(|| rewrite.path.to_header()).flatten(),
            outcome: match rewrite.as_sent {
                Some(as_sent) => RequestOutcome::DryRun { report, as_sent },
                None if rewrite.ordered => RequestOutcome::Ordered { report, arm },
                None => RequestOutcome::Unchanged { report, arm },
            },
        };
        (rewrite.record, sent)
    }

    /// Handles a request that cannot be processed for the reason `fault`: forwards the original request, or refuses it.
    /// Returns what the proxy must do with it.
    fn decline(&mut self, host: &impl Host, fault: Fault) -> Flow {
        if let Fault::Host(error) = &fault {
            host.log(LogLevel::Warn, &error.to_string());
        }
        match self.refusal_status(&fault) {
            Some(status) => self.refuse(host, status, &fault),
            None => {
                self.direct_unread(host);
                self.settle(host, RequestOutcome::Passed(fault.reason()));
                Flow::Continue
            }
        }
    }

    /// Chooses an engine for a request whose body is not read. Does nothing if there is no pool of engines, since only
    /// a pool needs an engine for every request.
    fn direct_unread(&mut self, host: &impl Host) {
        if self.pending.is_some() || host.pool().is_none() {
            return;
        }
        let length = host.request_header("content-length").ok().flatten();
        let length = length.and_then(|length| str::from_utf8(&length).ok()?.parse().ok());
        // A length is only the client's claim.
        let bound = self.plugin.config().max_body_bytes;
        let bound = usize::try_from(bound).unwrap_or(usize::MAX);
        let route = self.plugin.route(host, length.unwrap_or(0).min(bound));
        if let Err(error) = direct(host, &route) {
            host.log(LogLevel::Warn, &error.to_string());
        }
        self.pending = Some(PendingResponse::unread(route.dispatch));
    }

    fn refusal_status(&self, fault: &Fault) -> Option<u16> {
        fault.refusal_status(self.plugin.config().on_failure, self.plugin.is_salted())
    }

    fn refuse(&mut self, host: &impl Host, status: u16, fault: &Fault) -> Flow {
        let mut outcome = RequestOutcome::Refused(fault.reason());
        let report = self.report(&outcome);
        let mut headers = vec![("content-type", "application/json")];
        // Set here, since not every proxy passes the filter's own response through its response callbacks.
        if let Some(name) = &self.plugin.config().report_header {
            headers.push((name, &report));
        }
        if let Some(methods) = fault.allowed_methods() {
            headers.push(("allow", methods));
        }
        let body = (self.dialect).error(status, &fault.to_string(), fault.reason());
        if let Err(error) = host.respond(status, &headers, &body) {
            host.log(LogLevel::Warn, &error.to_string());
            // With salts the request must not be forwarded; it waits for the proxy's own time-out.
            if !self.plugin.is_salted() {
                outcome = RequestOutcome::Passed(reason::HOST_ERROR);
            }
        }
        self.settle(host, outcome);
        self.settled_flow()
    }

    fn settle(&mut self, host: &impl Host, outcome: RequestOutcome) {
        self.plugin.count(host, &outcome);
        self.phase = Phase::Settled(outcome);
    }

    /// Returns the value of the response header that reports the outcome to the operator.
    fn report(&self, outcome: &RequestOutcome) -> String {
        let mut report = outcome.to_string();
        for (name, value) in self.head.iter().flat_map(outcome::head_fields) {
            report.push_str(&format!("; {name}={value}"));
        }
        for (name, value) in self.cut.iter().flat_map(outcome::cut_fields) {
            report.push_str(&format!("; {name}={value}"));
        }
        if let Some(ended) = self.ended {
            report.push_str(&format!("; retrieval={}", ended.word));
        }
        if self.restored > 0 {
            report.push_str(&format!("; restored={}", self.restored));
        }
        report
    }

    fn settled_flow(&self) -> Flow {
        match self.phase {
            Phase::Searching(_) | Phase::Settled(RequestOutcome::Refused(_)) => Flow::Hold,
            _ if self.is_held() => Flow::Hold,
            _ => Flow::Continue,
        }
    }
}

fn retrieved<'d>(plugin: &'d Plugin, documents: &'d str) -> Retrieved<'d> {
    let wrapper = plugin
        .retrieval()
        .map(|retrieval| &retrieval.config().wrapper);
    Retrieved {
        documents,
        around: wrapper.map_or([""; 2], |wrapper| wrapper.each_ref().map(String::as_str)),
    }
}

/// Writes the request header that names the chosen engine for Envoy. Does nothing if there is only one engine.
fn direct(host: &impl Host, route: &Route) -> Result<(), HostError> {
    match &route.destinations {
        Some(destinations) => host.set_request_header(DESTINATION_HEADER, destinations),
        None => Ok(()),
    }
}

/// Returns the request to forward with only the tenant's cache salt written into its body. Without salts, its body is
/// `None`, for the original one.
fn salted(
    body: &[u8],
    held: &BufferedRequest,
    reason: &'static str,
) -> Result<ForwardedRequest, Fault> {
    let salt = held.identity.salt();
    let body = salt.map(|salt| foreword_ordering::salted(body, salt));
    Ok(ForwardedRequest {
        body: body.transpose().map_err(Fault::Skip)?,
        path: None,
        outcome: RequestOutcome::Passed(reason),
    })
}

/// Replaces the body in the proxy by `new` and updates `content-length`. On an error the body `old` is restored.
fn replace(
    host: &impl Host,
    held: &BufferedRequest,
    old: &[u8],
    new: &[u8],
) -> Result<(), HostError> {
    host.replace_request_body(held.received, new)?;
    // Changing headers makes Envoy select the route again, so it is done only if needed.
    if held.sized
        && new.len() != held.received
        && let Err(error) = host.set_request_header("content-length", &new.len().to_string())
    {
        // The old length is still set, so the old body is restored.
        host.replace_request_body(new.len(), old)?;
        return Err(error);
    }
    Ok(())
}

/// Returns whether a value of the header `content-type` is `application/json` or has the suffix `+json`, with or
/// without parameters.
fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default();
    let essence = essence.trim_ascii().to_ascii_lowercase();
    essence == b"application/json" || essence.ends_with(b"+json")
}

/// The maximum length of a tenant's name, in bytes. The ordering core stores the name with the tenant's records of
/// cached prefixes.
const MAX_TENANT_BYTES: usize = 256;

#[cfg(test)]
mod tests;
