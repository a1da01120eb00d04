//! One request and its response, from the first callback to the last.
//!
//! ```text
//! request headers ─► not ours ──────────────────────────────► Bystander   goes on, no report
//!        │
//!        ├─► cannot be ordered (encoded, too large, …) ──────► Settled     goes on, or is refused
//!        ▼
//!     Holding ── body grows ─► over the bound ───────────────► Settled     goes on whole, or is refused
//!        │
//!        └─ last byte or trailers ─► core ─► new body or none ► Settled     goes on
//! ```
//!
//! The headers are held until the body is complete, because `content-length` must change with it (Envoy
//! hangs on a stale one) and the chosen path becomes a header. Where the proxy cannot hold them
//! ([`RequestHeaders::Release`]) they go on at once, without either. Response headers get the report; response bodies
//! pass as they come, and what they say of the prompt is read on the way ([`crate::usage`]).

use std::sync::Arc;

use foreword_ordering::{Rewrite, Tenant};

use crate::config::{OnFailure, RequestHeaders};
use crate::engines::DESTINATION_HEADER;
use crate::host::{Host, HostError, LogLevel};
use crate::outcome::{Fault, Outcome, error_body, reason};
use crate::plugin::{Plugin, Route};
use crate::sent::Sent;

/// One request and its response.
pub struct Exchange {
    plugin: Arc<Plugin>,
    phase: Phase,
    /// Once the request has gone on, if it is ours.
    sent: Option<Sent>,
}

/// What the proxy does next with the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// It goes on to the next filter.
    Continue,
    /// It stays here, buffered; or it was answered and goes nowhere.
    Hold,
}

enum Phase {
    Bystander,
    Holding(Held),
    Settled(Outcome),
}

/// What is kept of the headers while the body arrives.
struct Held {
    tenant: String,
    /// The headers wait here with a `content-length`, which must follow the body's size.
    sized: bool,
    /// Bytes buffered so far.
    received: usize,
}

/// Why a request is not held or not rewritten.
enum Decline {
    /// A property of the request, not a fault.
    Reason(&'static str),
    Fault(Fault),
    Host(HostError),
}

impl From<HostError> for Decline {
    fn from(error: HostError) -> Self {
        Self::Host(error)
    }
}

impl Exchange {
    /// An exchange of which nothing has arrived yet.
    pub fn new(plugin: Arc<Plugin>) -> Self {
        Self {
            plugin,
            phase: Phase::Bystander,
            sent: None,
        }
    }

    /// The request's headers have arrived; with `end_of_stream` there is nothing more.
    pub fn on_request_headers(&mut self, host: &impl Host, end_of_stream: bool) -> Flow {
        let held = self
            .strip_own_headers(host)
            .and_then(|()| self.is_ours(host));
        let held = match held {
            Ok(false) => return Flow::Continue,
            Ok(true) if end_of_stream => Err(Decline::Reason(reason::EMPTY_BODY)),
            Ok(true) => self.read_headers(host),
            Err(error) => Err(Decline::Host(error)),
        };
        match held {
            Ok(held) => {
                self.phase = Phase::Holding(held);
                match self.plugin.config().request_headers {
                    RequestHeaders::Hold => Flow::Hold,
                    RequestHeaders::Release => Flow::Continue,
                }
            }
            Err(decline) => self.decline(host, decline),
        }
    }

    /// More of the request's body has arrived. `size` counts everything buffered so far.
    pub fn on_request_body(&mut self, host: &impl Host, size: usize, end_of_stream: bool) -> Flow {
        let Phase::Holding(held) = &mut self.phase else {
            return self.settled_flow();
        };
        held.received = size;
        let limit = self.plugin.config().max_body_bytes;
        if size > usize::try_from(limit).unwrap_or(usize::MAX) {
            // Held since the headers, so nothing of it is lost: it goes on whole.
            return self.decline(host, Decline::Fault(Fault::TooLarge { found: None, limit }));
        }
        if end_of_stream {
            self.finish(host)
        } else {
            Flow::Hold
        }
    }

    /// The request ends with trailers: the body is complete.
    pub fn on_request_trailers(&mut self, host: &impl Host) -> Flow {
        match self.phase {
            Phase::Holding(_) => self.finish(host),
            _ => self.settled_flow(),
        }
    }

    /// The response's headers have arrived, from the upstream or from the proxy itself.
    pub fn on_response_headers(&mut self, host: &impl Host) {
        if let Some(sent) = &mut self.sent {
            sent.on_headers(host, &self.plugin);
        }
        if let (Some(name), Phase::Settled(outcome)) =
            (&self.plugin.config().report_header, &self.phase)
            && let Err(error) = host.set_response_header(name, &outcome.to_string())
        {
            host.log(LogLevel::Warn, &error.to_string());
        }
    }

    /// A chunk of the response's body goes by, `size` bytes. Nothing is held back or changed.
    pub fn on_response_body(&mut self, host: &impl Host, size: usize, end_of_stream: bool) {
        if let Some(sent) = &mut self.sent {
            sent.on_body(host, &self.plugin, size, end_of_stream);
        }
    }

    /// The response ends with trailers.
    pub fn on_response_trailers(&mut self, host: &impl Host) {
        if let Some(sent) = &mut self.sent {
            sent.on_end(host, &self.plugin);
        }
    }

    /// Request and response are over, whatever became of them.
    pub fn on_done(&mut self, host: &impl Host) {
        if let Some(mut sent) = self.sent.take() {
            sent.on_done(host, &self.plugin);
        }
    }

    /// Only this filter says what it did and which path it chose: a header of that name from the client would
    /// mislead whoever reads it behind us. Looked up first, since a change of headers makes Envoy choose its route
    /// anew.
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

    fn is_ours(&self, host: &impl Host) -> Result<bool, HostError> {
        if host.request_header(":method")?.as_deref() != Some(b"POST") {
            return Ok(false);
        }
        let path = host.request_header(":path")?.unwrap_or_default();
        let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
        let routes = &self.plugin.config().routes;
        Ok(routes.iter().any(|route| route.as_bytes() == path))
    }

    fn read_headers(&self, host: &impl Host) -> Result<Held, Decline> {
        if !host
            .request_header("content-type")?
            .is_none_or(|value| is_json(&value))
        {
            return Err(Decline::Reason(reason::NOT_JSON));
        }
        let encoding = host.request_header("content-encoding")?;
        if !encoding.is_none_or(|value| value.trim_ascii().eq_ignore_ascii_case(b"identity")) {
            return Err(Decline::Reason(reason::ENCODED));
        }
        let length = host.request_header("content-length")?;
        let found = length
            .as_deref()
            .and_then(|value| str::from_utf8(value).ok()?.trim().parse::<u64>().ok());
        let limit = self.plugin.config().max_body_bytes;
        if found.is_some_and(|found| found > u64::from(limit)) {
            return Err(Decline::Fault(Fault::TooLarge { found, limit }));
        }
        let tenant = self.tenant(host)?;
        let mut sized = length.is_some();
        if sized && self.plugin.config().request_headers == RequestHeaders::Release {
            // Last of all: from here on the request is sent in chunks, whatever becomes of it.
            host.remove_request_header("content-length")?;
            sized = false;
        }
        Ok(Held {
            tenant,
            sized,
            received: 0,
        })
    }

    /// With tenants switched on, a request that names none is not ordered: sharing one tree among the
    /// nameless would tell each of them what the others sent.
    fn tenant(&self, host: &impl Host) -> Result<String, Decline> {
        let Some(name) = &self.plugin.config().tenant_header else {
            return Ok(String::new());
        };
        let value = host.request_header(name)?.unwrap_or_default();
        if value.is_empty() {
            return Err(Decline::Reason(reason::NO_TENANT));
        }
        if value.len() > MAX_TENANT_BYTES {
            return Err(Decline::Reason(reason::BAD_TENANT));
        }
        String::from_utf8(value).map_err(|_| Decline::Reason(reason::BAD_TENANT))
    }

    /// The body is complete: rewrite it and let the request go.
    fn finish(&mut self, host: &impl Host) -> Flow {
        let Phase::Holding(held) = &self.phase else {
            return self.settled_flow();
        };
        let (outcome, sent) = self.rewrite(host, held);
        self.sent = sent;
        match outcome {
            Ok(outcome) => {
                self.settle(host, outcome);
                Flow::Continue
            }
            Err(decline) => self.decline(host, decline),
        }
    }

    /// What becomes of the request, and what is to be seen of its answer if it goes on.
    fn rewrite(&self, host: &impl Host, held: &Held) -> (Result<Outcome, Decline>, Option<Sent>) {
        if held.received == 0 {
            return (Err(Decline::Reason(reason::EMPTY_BODY)), None);
        }
        let body = match host.request_body(held.received) {
            Ok(body) => body,
            Err(error) => return (Err(error.into()), None),
        };
        let tenant = Tenant::named(&held.tenant);
        let Some((answer, route)) = self.plugin.rewrite(host, tenant, &body) else {
            return (Err(Decline::Reason(reason::BUSY)), None);
        };
        let deed = answer.as_ref().ok().map(|rewrite| rewrite.deed.clone());
        let sent = Sent::new(deed, Some(route.errand));
        let outcome = direct(host, &route).map_err(Decline::from).and_then(|()| {
            let rewrite = answer.map_err(|skip| Decline::Fault(Fault::Skip(skip)))?;
            self.apply(host, held, &body, rewrite)
        });
        (outcome, Some(sent))
    }

    fn apply(
        &self,
        host: &impl Host,
        held: &Held,
        body: &[u8],
        rewrite: Rewrite,
    ) -> Result<Outcome, Decline> {
        let Rewrite {
            body: new,
            report,
            path,
            ..
        } = rewrite;
        let config = self.plugin.config();
        let header = &config.path_header;
        let told = header.enabled && config.request_headers == RequestHeaders::Hold;
        let path = path.to_header().filter(|_| told);
        if let Some(path) = &path {
            host.set_request_header(&header.name, path)?;
        }
        let Some(new) = new else {
            return Ok(Outcome::Unchanged(report));
        };
        if let Err(error) = replace(host, held, body, &new) {
            // The path is not that of the old body. An engine that gets it all the same finds that out.
            if path.is_some() {
                host.remove_request_header(&header.name)?;
            }
            return Err(error.into());
        }
        Ok(Outcome::Ordered(report))
    }

    /// Lets the request go as it came, or refuses it if it is the client's fault and so configured.
    fn decline(&mut self, host: &impl Host, decline: Decline) -> Flow {
        let reason = match decline {
            Decline::Reason(reason) => reason,
            Decline::Host(error) => {
                host.log(LogLevel::Warn, &error.to_string());
                reason::HOST_ERROR
            }
            Decline::Fault(fault) => {
                match (self.plugin.config().on_failure, fault.refusal_status()) {
                    (OnFailure::Refuse, Some(status)) => return self.refuse(host, status, &fault),
                    _ => fault.reason(),
                }
            }
        };
        self.settle(host, Outcome::Passed(reason));
        Flow::Continue
    }

    fn refuse(&mut self, host: &impl Host, status: u16, fault: &Fault) -> Flow {
        let outcome = Outcome::Refused(fault.reason());
        let report = outcome.to_string();
        let mut headers = vec![("content-type", "application/json")];
        // Not every proxy shows a filter the headers of its own answer.
        if let Some(name) = &self.plugin.config().report_header {
            headers.push((name, &report));
        }
        match host.respond(status, &headers, &error_body(fault)) {
            Ok(()) => {
                self.settle(host, outcome);
                Flow::Hold
            }
            Err(error) => self.decline(host, Decline::Host(error)),
        }
    }

    fn settle(&mut self, host: &impl Host, outcome: Outcome) {
        self.plugin.count(host, &outcome);
        self.phase = Phase::Settled(outcome);
    }

    fn settled_flow(&self) -> Flow {
        match self.phase {
            Phase::Settled(Outcome::Refused(_)) => Flow::Hold,
            _ => Flow::Continue,
        }
    }
}

/// Tells Envoy which engine is chosen.
fn direct(host: &impl Host, route: &Route) -> Result<(), HostError> {
    match &route.destinations {
        Some(destinations) => host.set_request_header(DESTINATION_HEADER, destinations),
        None => Ok(()),
    }
}

/// Puts `new` in the place of the body and lets `content-length` follow; on an error the old body stands.
fn replace(host: &impl Host, held: &Held, old: &[u8], new: &[u8]) -> Result<(), HostError> {
    host.replace_request_body(held.received, new)?;
    // A change of headers makes Envoy choose its route anew, so none without need.
    if held.sized
        && new.len() != held.received
        && let Err(error) = host.set_request_header("content-length", &new.len().to_string())
    {
        // The old length still stands, so the old body must too.
        host.replace_request_body(new.len(), old)?;
        return Err(error);
    }
    Ok(())
}

/// `application/json` or a type with the suffix `+json`, with or without parameters.
fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default();
    let essence = essence.trim_ascii().to_ascii_lowercase();
    essence == b"application/json" || essence.ends_with(b"+json")
}

/// The core keeps one set of trees per tenant, so a tenant's name is kept too.
const MAX_TENANT_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::ScriptedHost;
    use foreword_ordering::path::SentPath;

    const PATH: &str = "/v1/chat/completions";

    fn plugin(host: &ScriptedHost, json: &str) -> Arc<Plugin> {
        Arc::new(Plugin::load(host, json.as_bytes()).unwrap())
    }

    fn body(ids: &[&str]) -> String {
        let documents: Vec<_> = ids
            .iter()
            .map(|id| format!(r#"{{"id": "{id}", "text": "text of {id}"}}"#))
            .collect();
        format!(
            r#"{{"model": "m", "messages": [{{"role": "user", "content": "why?"}}], "documents": [{}]}}"#,
            documents.join(", ")
        )
    }

    /// The body that goes on has the documents in this order.
    fn assert_in_order(host: &ScriptedHost, ids: &[&str]) {
        let sent = String::from_utf8(host.body()).unwrap();
        let places = ids.iter().map(|id| sent.find(&format!("text of {id}")));
        assert!(
            places.is_sorted_by(|left, right| left.unwrap() < right.unwrap()),
            "{sent}"
        );
    }

    /// Sends one request with a `content-length` and returns its report.
    fn send(plugin: &Arc<Plugin>, host: &ScriptedHost, body: &str) -> String {
        host.request("POST", PATH, &[("content-length", &body.len().to_string())]);
        let mut exchange = Exchange::new(Arc::clone(plugin));
        if exchange.on_request_headers(host, body.is_empty()) == Flow::Hold {
            host.receive(body.as_bytes());
            exchange.on_request_body(host, host.body().len(), true);
        }
        exchange.on_response_headers(host);
        host.response_header("x-foreword").unwrap_or_default()
    }

    #[test]
    fn a_second_request_is_held_rewritten_and_reported() {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, "");
        send(&plugin, &host, &body(&["a", "b", "c"]));

        let second = body(&["c", "b", "a"]);
        host.request(
            "POST",
            PATH,
            &[("content-length", &second.len().to_string())],
        );
        let mut exchange = Exchange::new(Arc::clone(&plugin));
        assert_eq!(exchange.on_request_headers(&host, false), Flow::Hold);
        host.receive(&second.as_bytes()[..10]);
        assert_eq!(exchange.on_request_body(&host, 10, false), Flow::Hold);
        host.receive(&second.as_bytes()[10..]);
        assert_eq!(
            exchange.on_request_body(&host, second.len(), true),
            Flow::Continue
        );
        exchange.on_response_headers(&host);

        assert_in_order(&host, &["a", "b", "c"]);
        assert_eq!(
            host.header("content-length"),
            Some(host.body().len().to_string())
        );
        let report = host.response_header("x-foreword").unwrap();
        assert!(report.starts_with("ordered; policy="), "{report}");
        assert!(
            report.contains("; documents=3; matched=3; moved=2; dropped=0"),
            "{report}"
        );
        assert_eq!(host.counter("foreword_requests_total"), 2);
        assert_eq!(host.counter("foreword_matched_documents_total"), 3);
        assert_eq!(host.samples("foreword_ordering_microseconds").len(), 2);
    }

    #[test]
    fn released_headers_go_on_without_content_length_and_the_body_follows() {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, r#"{"request_headers": "release"}"#);
        for (ids, sent, report) in [
            (["a", "b", "c"], ["a", "b", "c"], "matched=0"),
            (["c", "b", "a"], ["a", "b", "c"], "matched=3"),
        ] {
            let body = body(&ids);
            host.request("POST", PATH, &[("content-length", &body.len().to_string())]);
            let mut exchange = Exchange::new(Arc::clone(&plugin));
            assert_eq!(exchange.on_request_headers(&host, false), Flow::Continue);
            assert_eq!(host.header("content-length"), None);
            host.refuse("set_request_header");
            host.receive(&body.as_bytes()[..10]);
            assert_eq!(exchange.on_request_body(&host, 10, false), Flow::Hold);
            host.receive(&body.as_bytes()[10..]);
            assert_eq!(
                exchange.on_request_body(&host, body.len(), true),
                Flow::Continue
            );
            exchange.on_response_headers(&host);
            assert_in_order(&host, &sent);
            assert!(host.response_header("x-foreword").unwrap().contains(report));
        }
        assert_eq!(
            host.refused_calls(),
            0,
            "headers that had gone on were changed"
        );
    }

    #[test]
    fn headers_that_decide_are_released_as_they_came() {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, r#"{"request_headers": "release"}"#);
        host.request("POST", PATH, &[("content-length", "4194305")]);
        let mut exchange = Exchange::new(plugin);
        assert_eq!(exchange.on_request_headers(&host, false), Flow::Continue);
        assert_eq!(host.header("content-length").as_deref(), Some("4194305"));
    }

    #[test]
    fn a_chunked_request_gets_no_content_length() {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, "");
        send(&plugin, &host, &body(&["a", "b"]));
        host.request("POST", PATH, &[]);
        let mut exchange = Exchange::new(plugin);
        assert_eq!(exchange.on_request_headers(&host, false), Flow::Hold);
        host.receive(body(&["b", "a"]).as_bytes());
        assert_eq!(
            exchange.on_request_body(&host, host.body().len(), true),
            Flow::Continue
        );
        assert_eq!(host.header("content-length"), None);
        assert_in_order(&host, &["a", "b"]);
    }

    #[test]
    fn trailers_complete_the_body() {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, "");
        send(&plugin, &host, &body(&["a", "b"]));
        host.request("POST", PATH, &[]);
        let mut exchange = Exchange::new(plugin);
        exchange.on_request_headers(&host, false);
        host.receive(body(&["b", "a"]).as_bytes());
        assert_eq!(
            exchange.on_request_body(&host, host.body().len(), false),
            Flow::Hold
        );
        assert_eq!(exchange.on_request_trailers(&host), Flow::Continue);
        assert_in_order(&host, &["a", "b"]);
    }

    #[test]
    fn requests_that_are_not_ours_are_neither_held_nor_counted() {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, "");
        for (method, path) in [
            ("GET", PATH),
            ("POST", "/v1/embeddings"),
            ("POST", "/v1/chat/completions/"),
        ] {
            host.request(method, path, &[("x-foreword", "ordered; forged")]);
            let mut exchange = Exchange::new(Arc::clone(&plugin));
            assert_eq!(exchange.on_request_headers(&host, false), Flow::Continue);
            assert_eq!(
                exchange.on_request_body(&host, 9_000_000, true),
                Flow::Continue
            );
            exchange.on_response_headers(&host);
            assert_eq!(host.response_header("x-foreword"), None);
            assert_eq!(
                host.header("x-foreword"),
                None,
                "forged header of {method} {path}"
            );
        }
        assert_eq!(host.counter("foreword_requests_total"), 0);
    }

    #[test]
    fn a_query_does_not_hide_a_route() {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, "");
        host.request("POST", "/v1/chat/completions?api-version=1", &[]);
        assert_eq!(
            Exchange::new(plugin).on_request_headers(&host, false),
            Flow::Hold
        );
    }

    #[test]
    fn headers_alone_can_decide_that_a_request_passes() {
        for (header, value, reason) in [
            ("content-type", "text/plain", "not-json"),
            ("content-type", "application/jsonx", "not-json"),
            ("content-encoding", "gzip", "encoded"),
            ("content-length", "4194305", "too-large"),
        ] {
            let host = ScriptedHost::default();
            let plugin = plugin(&host, "");
            host.request("POST", PATH, &[(header, value)]);
            let mut exchange = Exchange::new(plugin);
            assert_eq!(
                exchange.on_request_headers(&host, false),
                Flow::Continue,
                "{reason}"
            );
            exchange.on_response_headers(&host);
            let report = host.response_header("x-foreword").unwrap();
            assert_eq!(report, format!("passed; reason={reason}"));
        }
    }

    #[test]
    fn json_is_recognised_by_its_media_type() {
        for value in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/vnd.x+json",
        ] {
            assert!(is_json(value.as_bytes()), "{value}");
        }
        for value in [
            "",
            "text/json",
            "application/jsonl",
            "multipart/form-data; x=application/json",
        ] {
            assert!(!is_json(value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn a_body_that_outgrows_the_bound_goes_on_at_once() {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, r#"{"max_body_bytes": 100}"#);
        host.request("POST", PATH, &[]);
        let mut exchange = Exchange::new(plugin);
        assert_eq!(exchange.on_request_headers(&host, false), Flow::Hold);
        assert_eq!(exchange.on_request_body(&host, 100, false), Flow::Hold);
        assert_eq!(exchange.on_request_body(&host, 101, false), Flow::Continue);
        assert_eq!(exchange.on_request_body(&host, 5, true), Flow::Continue);
        assert_eq!(host.counter("foreword_passed_too_large_total"), 1);
    }

    #[test]
    fn faults_of_the_client_are_refused_only_where_configured() {
        let long = format!("[{}]", " ".repeat(200));
        for (body, reason, status) in [
            ("{]", "invalid-json", 400),
            (long.as_str(), "too-large", 413),
        ] {
            let host = ScriptedHost::default();
            let pass = plugin(&host, r#"{"max_body_bytes": 100}"#);
            assert_eq!(send(&pass, &host, body), format!("passed; reason={reason}"));
            assert_eq!(host.local_response(), None);

            let refuse = plugin(&host, r#"{"max_body_bytes": 100, "on_failure": "refuse"}"#);
            assert_eq!(
                send(&refuse, &host, body),
                format!("refused; reason={reason}")
            );
            let (answered, error) = host.local_response().unwrap();
            assert_eq!(answered, status);
            let error: serde_json::Value = serde_json::from_slice(&error).unwrap();
            assert_eq!(error["error"]["type"], "invalid_request_error");
            assert_eq!(error["error"]["code"], reason);
        }
    }

    #[test]
    fn a_request_without_documents_passes_even_where_faults_are_refused() {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, r#"{"on_failure": "refuse"}"#);
        let body = r#"{"messages": [{"role": "user", "content": "hello"}]}"#;
        assert_eq!(send(&plugin, &host, body), "passed; reason=no-documents");
        assert_eq!(send(&plugin, &host, ""), "passed; reason=empty-body");
    }

    #[test]
    fn a_refused_request_stays_held() {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, r#"{"max_body_bytes": 10, "on_failure": "refuse"}"#);
        host.request("POST", PATH, &[]);
        let mut exchange = Exchange::new(plugin);
        exchange.on_request_headers(&host, false);
        assert_eq!(exchange.on_request_body(&host, 11, false), Flow::Hold);
        assert_eq!(exchange.on_request_body(&host, 20, true), Flow::Hold);
        assert_eq!(host.counter("foreword_refused_total"), 1);
    }

    #[test]
    fn tenants_do_not_see_each_others_documents() {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, r#"{"tenant_header": "x-tenant"}"#);
        let send = |tenant: Option<&str>, ids: &[&str]| {
            let body = body(ids);
            let headers: Vec<_> = tenant.iter().map(|tenant| ("x-tenant", *tenant)).collect();
            host.request("POST", PATH, &headers);
            let mut exchange = Exchange::new(Arc::clone(&plugin));
            if exchange.on_request_headers(&host, false) == Flow::Hold {
                host.receive(body.as_bytes());
                exchange.on_request_body(&host, body.len(), true);
            }
            exchange.on_response_headers(&host);
            host.response_header("x-foreword").unwrap()
        };
        send(Some("one"), &["a", "b"]);
        assert!(send(Some("two"), &["b", "a"]).contains("matched=0"));
        assert!(send(Some("one"), &["b", "a"]).contains("matched=2"));
        assert_eq!(send(None, &["b", "a"]), "passed; reason=no-tenant");
        assert_eq!(
            send(Some(&"x".repeat(257)), &["b", "a"]),
            "passed; reason=bad-tenant"
        );
    }

    #[test]
    fn the_engine_is_told_the_path_and_a_client_cannot_tell_one() {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, "");
        send(&plugin, &host, &body(&["a", "b"]));
        let first = host.header("x-foreword-path").unwrap();
        let path = SentPath::from_header(&first).unwrap();
        assert_eq!(path.runs.len(), 1);
        assert_eq!(path.runs[0].documents.len(), 2);

        // The same two in the other order are sent as before, a third one behind them.
        send(&plugin, &host, &body(&["c", "b", "a"]));
        let second = host.header("x-foreword-path").unwrap();
        assert!(second.starts_with(&first), "{second}");

        for (json, method, sent) in [
            ("", "GET", ""),
            (
                "",
                "POST",
                r#"{"messages": [{"role": "user", "content": "hello"}]}"#,
            ),
            (r#"{"path_header": null}"#, "POST", &body(&["a"])),
        ] {
            let plugin = self::plugin(&host, json);
            host.request(method, PATH, &[("x-foreword-path", "1;forged")]);
            let mut exchange = Exchange::new(plugin);
            if exchange.on_request_headers(&host, sent.is_empty()) == Flow::Hold {
                host.receive(sent.as_bytes());
                exchange.on_request_body(&host, sent.len(), true);
            }
            assert_eq!(host.header("x-foreword-path"), None, "{method} {sent}");
        }
    }

    #[test]
    fn a_proxy_that_refuses_a_call_lets_the_request_go_untouched() {
        let original = body(&["b", "a"]);
        for (call, json) in [
            ("request_header", ""),
            ("request_body", ""),
            ("replace_request_body", ""),
            ("set_request_header", ""),
            // The path is the first header that is written, `content-length` the second.
            ("set_request_header", r#"{"path_header": null}"#),
        ] {
            let host = ScriptedHost::default();
            let plugin = plugin(&host, json);
            send(&plugin, &host, &body(&["a", "b"]));
            host.request(
                "POST",
                PATH,
                &[("content-length", &original.len().to_string())],
            );
            host.refuse(call);
            let mut exchange = Exchange::new(plugin);
            if exchange.on_request_headers(&host, false) == Flow::Hold {
                host.receive(original.as_bytes());
                assert_eq!(
                    exchange.on_request_body(&host, original.len(), true),
                    Flow::Continue
                );
                assert_eq!(host.body(), original.as_bytes(), "{call}");
                assert_eq!(
                    host.header("content-length"),
                    Some(original.len().to_string())
                );
                assert_eq!(host.header("x-foreword-path"), None, "{call}");
            }
            exchange.on_response_headers(&host);
            assert_eq!(
                host.response_header("x-foreword").unwrap(),
                "passed; reason=host-error",
                "{call}"
            );
        }
    }

    /// A plugin before two engines that hold what they were sent.
    fn two_engines(host: &ScriptedHost) -> Arc<Plugin> {
        plugin(
            host,
            r#"{"engines": [{"name": "a", "address": "10.0.0.1:80"}, {"name": "b", "address": "10.0.0.2:80"}]}"#,
        )
    }

    /// Sends a request as far as its engine, and returns where it goes.
    fn depart(plugin: &Arc<Plugin>, host: &ScriptedHost, body: &str) -> (Exchange, String) {
        host.request(
            "POST",
            PATH,
            &[("x-gateway-destination-endpoint", "10.6.6.6:80")],
        );
        let mut exchange = Exchange::new(Arc::clone(plugin));
        assert_eq!(exchange.on_request_headers(host, false), Flow::Hold);
        host.receive(body.as_bytes());
        exchange.on_request_body(host, body.len(), true);
        let destinations = host.header("x-gateway-destination-endpoint").unwrap();
        (exchange, destinations)
    }

    /// The answer comes from `address`, if anybody gave one, with that status.
    fn arrive(mut exchange: Exchange, host: &ScriptedHost, address: &str, status: &str) {
        host.set_property(&["upstream", "address"], address.as_bytes());
        host.respond_with(status, None);
        exchange.on_response_headers(host);
        exchange.on_done(host);
    }

    const TO_A: &str = "10.0.0.1:80,10.0.0.2:80";
    const TO_B: &str = "10.0.0.2:80,10.0.0.1:80";

    #[test]
    fn requests_go_to_the_engine_that_holds_their_documents_and_new_ones_to_the_idle_one() {
        let host = ScriptedHost::default();
        let plugin = two_engines(&host);
        let (first, to) = depart(&plugin, &host, &body(&["a", "b"]));
        let (engine, other) = if to == TO_A {
            (TO_A, TO_B)
        } else {
            (TO_B, TO_A)
        };
        assert_eq!(to, engine);
        let (second, to) = depart(&plugin, &host, &body(&["c", "d"]));
        assert_eq!(to, other);
        // Without documents, too.
        let (third, to) = depart(&plugin, &host, r#"{"messages": []}"#);
        assert!([TO_A, TO_B].contains(&&*to), "{to}");
        for (exchange, to) in [(first, engine), (second, other), (third, &*to)] {
            let (address, _) = to.split_once(',').unwrap();
            arrive(exchange, &host, address, "200");
        }
        for (ids, to) in [
            (["b", "a"], engine),
            (["d", "c"], other),
            (["b", "a"], engine),
        ] {
            let (exchange, went) = depart(&plugin, &host, &body(&ids));
            assert_eq!(went, to);
            let (address, _) = to.split_once(',').unwrap();
            arrive(exchange, &host, address, "200");
        }
    }

    #[test]
    fn an_engine_that_fails_is_avoided_until_it_is_tried_again() {
        let host = ScriptedHost::default();
        let plugin = two_engines(&host);
        for failure in ["503", "502", "504"] {
            host.set_time(1_000_000);
            host.shared().retain(|key, _| !key.contains("/engine/"));
            let plugin = two_engines(&host);
            let (exchange, to) = depart(&plugin, &host, &body(&["a", "b"]));
            arrive(exchange, &host, "", failure);
            for _ in 0..4 {
                let (exchange, went) = depart(&plugin, &host, &body(&["b", "a"]));
                assert_ne!(went, to, "{failure}");
                let (address, _) = went.split_once(',').unwrap();
                arrive(exchange, &host, address, "200");
            }
        }
        drop(plugin);
    }

    #[test]
    fn an_engine_that_served_instead_of_another_holds_the_documents_now() {
        let host = ScriptedHost::default();
        let plugin = two_engines(&host);
        host.set_time(1_000_000);
        let (exchange, to) = depart(&plugin, &host, &body(&["a", "b"]));
        let other = if to == TO_A {
            "10.0.0.2:80"
        } else {
            "10.0.0.1:80"
        };
        arrive(exchange, &host, other, "200");
        // The failed one is out; and when it is back, the documents are elsewhere.
        for time in [1_000_100, 1_040_000, 1_080_000] {
            host.set_time(time);
            let (exchange, went) = depart(&plugin, &host, &body(&["b", "a"]));
            assert!(went.starts_with(other), "{went} at {time}");
            assert!(host.counter("foreword_matched_documents_total") >= 2);
            arrive(exchange, &host, other, "200");
        }
    }

    #[test]
    fn a_client_that_leaves_says_nothing_of_the_engine_and_takes_its_load_along() {
        let host = ScriptedHost::default();
        let plugin = two_engines(&host);
        let choices = |plugin: &Plugin| plugin.engines().choices(&host, 0, 0);
        let (mut exchange, _) = depart(&plugin, &host, &body(&["a", "b"]));
        assert!(choices(&plugin).iter().any(|choice| choice.outstanding > 0));
        exchange.on_done(&host);
        exchange.on_done(&host);
        let choices = choices(&plugin);
        assert_eq!(choices.len(), 2);
        assert!(choices.iter().all(|choice| choice.outstanding == 0));
    }

    #[test]
    fn with_one_engine_no_destination_is_named_and_a_clients_own_is_left_alone() {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, "");
        let (_, to) = depart(&plugin, &host, &body(&["a"]));
        assert_eq!(to, "10.6.6.6:80");
    }

    /// Sends documents and lets the engine say what it had of a prompt of 1,000 tokens; what was believed before.
    fn say(plugin: &Arc<Plugin>, host: &ScriptedHost, ids: &[&str], usage: &str) -> u64 {
        let before = host.counter("foreword_matched_documents_total");
        let words = "Words that make it long. ".repeat(30);
        let body = body(ids).replace("</", &format!("{words}</"));
        let (mut exchange, _) = depart(plugin, host, &body);
        host.respond_with("200", None);
        exchange.on_response_headers(host);
        let answer = format!("{{\"choices\": [], {usage}}}");
        for (at, chunk) in answer.as_bytes().chunks(16).enumerate() {
            host.stream(chunk);
            exchange.on_response_body(host, chunk.len(), (at + 1) * 16 >= answer.len());
        }
        exchange.on_done(host);
        host.counter("foreword_matched_documents_total") - before
    }

    const NOTHING_CACHED: &str =
        r#""usage": {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 0}}"#;

    #[test]
    fn an_answer_that_counts_less_than_was_believed_corrects_it() {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, "");
        assert_eq!(say(&plugin, &host, &["a", "b"], NOTHING_CACHED), 0);
        assert_eq!(say(&plugin, &host, &["a", "c"], NOTHING_CACHED), 1);
        assert_eq!(host.counter("foreword_corrections_total"), 1);
        // So [a b] is not held.
        assert_eq!(say(&plugin, &host, &["b", "a"], NOTHING_CACHED), 1);
        assert_eq!(host.counter("foreword_engine_prompt_tokens_total"), 3_000);
        assert_eq!(host.counter("foreword_engine_cached_tokens_total"), 0);
        assert_eq!(host.samples("foreword_engine_cached_percent"), [0, 0, 0]);
    }

    #[test]
    fn an_engine_that_never_counts_corrects_nothing_and_one_that_did_means_none() {
        let silent = r#""usage": {"prompt_tokens": 1000}"#;
        let host = ScriptedHost::default();
        let plugin = plugin(&host, "");
        say(&plugin, &host, &["a", "b"], silent);
        say(&plugin, &host, &["a", "b"], silent);
        assert_eq!(host.counter("foreword_corrections_total"), 0);
        let full =
            r#""usage": {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 990}}"#;
        say(&plugin, &host, &["a", "b"], full);
        assert_eq!(host.counter("foreword_corrections_total"), 0);
        say(&plugin, &host, &["a", "b"], silent);
        assert_eq!(host.counter("foreword_corrections_total"), 1);
    }

    #[test]
    fn answers_that_say_nothing_readable_are_let_be() {
        let host = ScriptedHost::default();
        let plugin = plugin(&host, "");
        for (status, header) in [("500", None), ("200", Some(("content-encoding", "gzip")))] {
            let (mut exchange, _) = depart(&plugin, &host, &body(&["a"]));
            host.respond_with(status, header);
            exchange.on_response_headers(&host);
            host.refuse("response_body");
            exchange.on_response_body(&host, 10, true);
        }
        assert_eq!(host.refused_calls(), 0);
        // A refused call costs the count and nothing else.
        let (mut exchange, _) = depart(&plugin, &host, &body(&["a"]));
        host.respond_with("200", None);
        exchange.on_response_headers(&host);
        exchange.on_response_body(&host, 10, false);
        exchange.on_response_body(&host, 10, true);
        assert_eq!(host.refused_calls(), 1);
        assert_eq!(host.counter("foreword_engine_prompt_tokens_total"), 0);
    }
}
