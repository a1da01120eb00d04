//! Plays a log through one version, line by line.

use super::Options;
use crate::fault::Fault;
use crate::module::Module;
use crate::proxy::{Proxy, Setup, Totals};
use crate::request::{Answer, Outcome, Request};
use anyhow::Result;
use foreword_report::log::{self, Counts, LineError, OnBad, Place};
use foreword_simulation::{BadLine, Logged, LoggedKind};
use serde_json::Value;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The results of playing a log through one version.
#[derive(Debug, Default)]
pub(super) struct Played {
    pub(super) rows: Vec<Row>,
    pub(super) counts: Counts,
    /// Number of lines that only list ranked documents, and so have no body to play.
    pub(super) rankings: u64,
    pub(super) totals: Totals,
    /// Number of requests by the outcome that the module reported in `x-foreword`.
    pub(super) outcomes: BTreeMap<String, u64>,
    /// Faults outside of requests, each with the place of the next request; `None` at the end.
    pub(super) faults_outside_requests: Vec<(Option<Place>, Fault)>,
}

/// The results of one request, as compared and reported.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) place: Place,
    /// True if the engine received another body than the client sent.
    pub(super) is_changed: bool,
    /// Status of the module's own response; `None` if it sent none.
    pub(super) answered: Option<u32>,
    /// Hash of the forwarded body; `None` if the request was not forwarded.
    pub(super) body: Option<u64>,
    /// Hash of the forwarded headers; 0 if the request was not forwarded.
    pub(super) headers: u64,
    /// Hash of the response that the client received.
    pub(super) response: u64,
    /// Number of instructions of the request's callbacks.
    pub(super) fuel: u64,
    /// Number of host calls of the request's callbacks.
    pub(super) calls: u64,
    pub(super) fault: Option<Box<Fault>>,
}

impl Row {
    fn new(place: Place, request: &Request, outcome: Outcome) -> Self {
        let forwarded = outcome.forwarded.as_ref();
        Self {
            place,
            is_changed: forwarded.is_some_and(|forwarded| forwarded.body != request.body),
            answered: outcome.local.as_ref().map(|local| local.status),
            body: forwarded.map(|forwarded| hash(&forwarded.body)),
            headers: forwarded.map_or(0, |forwarded| hash(&forwarded.headers)),
            response: hash(&(&outcome.response_headers, &outcome.response_body)),
            fuel: outcome.fuel,
            calls: outcome.calls,
            fault: outcome.fault.map(Box::new),
        }
    }

    /// Returns the names of the parts that differ between two versions' rows of a request.
    pub(super) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let differs = [
            ("fault", self.fault != other.fault),
            ("body", self.body != other.body),
            ("headers", self.headers != other.headers),
            (
                "response",
                self.response != other.response || self.answered != other.answered,
            ),
        ];
        let differs = differs.into_iter().filter(|(_, differs)| *differs);
        differs.map(|(what, _)| what).collect()
    }
}

/// Returns a hash that does not differ between runs.
fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The place in a request from which the module reads the tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tenant {
    /// The header with this name, in lower case.
    Header(String),
    /// A claim in the request's metadata, with this property path, a 0 byte between its parts.
    Claim(String),
    /// Nowhere: the module reads no tenant.
    Nowhere,
}

impl Tenant {
    /// Returns the place that Foreword's configuration names; [`Self::Nowhere`] for another module's configuration.
    pub(super) fn of(configuration: &[u8]) -> Self {
        let configuration: Value = serde_json::from_slice(configuration).unwrap_or_default();
        let tenant = &configuration["tenant"];
        if let Some(header) = tenant["header"].as_str() {
            return Self::Header(header.to_ascii_lowercase());
        }
        let claim: Vec<&str> = match &tenant["claim"] {
            Value::String(claim) => vec![claim],
            Value::Array(parts) => parts.iter().filter_map(Value::as_str).collect(),
            _ => return Self::Nowhere,
        };
        let namespace = tenant["namespace"].as_str().unwrap_or(JWT_AUTHN);
        let payload = tenant["payload"].as_str().unwrap_or_default();
        let path = ["metadata", "filter_metadata", namespace, payload];
        Self::Claim([&path, &*claim].concat().join("\0"))
    }
}

const JWT_AUTHN: &str = "envoy.filters.http.jwt_authn";

/// Plays the logs through a module. `is_told`: prints bad lines and shows progress.
pub(super) fn play(
    options: &Options,
    module: &Module,
    setup: Setup,
    tenant: &Tenant,
    is_told: bool,
) -> Result<Played> {
    let mut proxy = Proxy::start(module, setup)?;
    let mut played = Played::default();
    let name = is_told.then_some("rehearsing");
    let on_bad = match (options.strict, is_told) {
        (true, _) => OnBad::Stop,
        (false, true) => OnBad::Tell,
        (false, false) => OnBad::Count,
    };
    played.counts = log::read(&options.files, name, on_bad, |place, line| {
        match request(options, tenant, line)? {
            Some(request) => {
                let added = played.add(&mut proxy, place, &request);
                added.map_err(LineError::Fatal)?;
            }
            None => played.rankings += 1,
        }
        Ok(())
    })?;
    let known = proxy.faults().len();
    played.totals = proxy.finish()?;
    let last = played.totals.faults.iter().skip(known);
    let last = last.map(|fault| (None, fault.clone()));
    played.faults_outside_requests.extend(last);
    Ok(played)
}

/// Returns the request of a line; `None` for a ranking.
fn request(options: &Options, tenant: &Tenant, line: &[u8]) -> Result<Option<Request>, BadLine> {
    let logged = Logged::read(line)?;
    match logged.kind() {
        Ok(LoggedKind::Ranking) => return Ok(None),
        Ok(LoggedKind::Chat) => {}
        // A body inside a line may be anything that a client sends. A line that is not such a record must be a body
        // itself.
        Err(_) if logged.body.len() < line.trim_ascii().len() => {}
        Err(reason) => return Err(reason),
    }
    let path = match &*logged.path {
        "" => &options.path,
        path => path,
    };
    let mut request = Request::post(path, logged.body.as_bytes().to_vec());
    request.piece_bytes = options.piece_bytes.map(|bytes| bytes as usize);
    for (name, value) in &options.header {
        (request.headers).retain(|(known, _)| known != name.as_bytes());
        request.add(name, value);
    }
    if !logged.tenant.is_empty() {
        match tenant {
            Tenant::Header(header) => request.add(header, &logged.tenant),
            Tenant::Claim(path) => request.add_property(path, &logged.tenant),
            Tenant::Nowhere => {}
        }
    }
    if !logged.engine.is_empty() {
        request.add_property("upstream\0address", &logged.engine);
    }
    request.answer = Answer::json(answer(&logged));
    Ok(Some(request))
}

/// Returns the engine's response: the logged usage in OpenAI's format.
fn answer(logged: &Logged<'_>) -> Vec<u8> {
    let mut usage = serde_json::Map::new();
    if let Some(prompt) = logged.prompt_tokens {
        usage.insert("prompt_tokens".to_owned(), prompt.into());
    }
    if let Some(cached) = logged.cached_tokens {
        let details = serde_json::json!({ "cached_tokens": cached });
        usage.insert("prompt_tokens_details".to_owned(), details);
    }
    if usage.is_empty() {
        return b"{}".to_vec();
    }
    let answer = serde_json::json!({"choices": [], "usage": usage});
    answer.to_string().into_bytes()
}

impl Played {
    fn add(&mut self, proxy: &mut Proxy<'_>, place: Place, request: &Request) -> Result<()> {
        let known = proxy.faults().len();
        let outcome = proxy.play(request)?;
        let new = proxy.faults().iter().skip(known);
        self.faults_outside_requests
            .extend(new.map(|fault| (Some(place), fault.clone())));
        if let Some(name) = outcome.response_header("x-foreword").and_then(said) {
            *self.outcomes.entry(name).or_default() += 1;
        }
        self.rows.push(Row::new(place, request, outcome));
        Ok(())
    }

    /// Prints to standard error how many lines were skipped, if any were.
    pub(super) fn tell(&self) {
        self.counts.tell();
        if self.rankings > 0 {
            let (rankings, lines) = (self.rankings, self.counts.lines);
            eprintln!("{rankings} of {lines} lines are rankings: they have no body to play");
        }
    }

    /// Returns the number of lines that were not played.
    pub(super) fn skipped(&self) -> u64 {
        self.counts.bad + self.rankings
    }

    /// Returns the number of faults, in requests and outside of them.
    pub(super) fn faults(&self) -> usize {
        let in_requests = self.rows.iter().filter(|row| row.fault.is_some()).count();
        in_requests + self.faults_outside_requests.len() + self.totals.unlisted_faults
    }
}

/// Returns outcome and reason of an `x-foreword` header, without the request's details; `None` if there is none.
fn said(report: &[u8]) -> Option<String> {
    let report = str::from_utf8(report).ok()?;
    let mut fields = report.split("; ");
    let is_word = |word: &str| {
        let mut bytes = word.bytes();
        word.len() <= 40 && bytes.all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    };
    let outcome = fields.next().filter(|outcome| is_word(outcome))?;
    let reason = fields.find_map(|field| field.strip_prefix("reason="));
    Some(match reason.filter(|reason| is_word(reason)) {
        Some(reason) => format!("{outcome}, {reason}"),
        None => outcome.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_goes_where_the_configuration_looks_for_it() {
        let of = |json: &str| Tenant::of(json.as_bytes());
        assert_eq!(
            of(r#"{"tenant": {"header": "X-Tenant"}}"#),
            Tenant::Header("x-tenant".to_owned())
        );
        assert_eq!(
            of(r#"{"tenant": {"claim": ["org", "id"], "payload": "jwt"}}"#),
            Tenant::Claim(
                "metadata\0filter_metadata\0envoy.filters.http.jwt_authn\0jwt\0org\0id".to_owned()
            )
        );
        for other in ["", "{}", "no JSON", r#"{"tenant": 7}"#] {
            assert_eq!(of(other), Tenant::Nowhere);
        }
    }

    #[test]
    fn a_report_is_counted_by_its_words_alone() {
        let said = |report: &str| said(report.as_bytes());
        assert_eq!(
            said("ordered; policy=foresight; documents=3"),
            Some("ordered".to_owned())
        );
        assert_eq!(
            said("passed; reason=no-documents"),
            Some("passed, no-documents".to_owned())
        );
        assert_eq!(said("A secret text"), None);
        assert_eq!(said("passed; reason=A secret"), Some("passed".to_owned()));
    }
}
