//! Diagnoses why requests lose the cached prefix that they shared with earlier ones: an index of recent requests for
//! each tenant, and the diagnosis in metrics and the access log.
//!
//! ```text
//!   request ─▶ take ─▶ waiting ─┬─ at a tick ──────▶ diagnosed ─▶ at the request's end: access log, metrics
//!              (hashes)         └─ at its end, or when too many wait ─▶
//! ```
//!
//! No request waits for its diagnosis: it is read before it is forwarded, and diagnosed later, in order of arrival.
//!
//! Each worker compares only with requests that it handled itself. A tenant's index holds hashes and counts of a
//! bounded number of requests and text segments. The number of indexes is bounded too; beyond it, the least recently
//! used tenant's index is evicted. Until a request is diagnosed, texts that are new to the index are stored too, within
//! bounds. The core can also report names and shapes of changed text; these are left out here, so no report contains
//! text of a request.

use std::collections::{BTreeMap, VecDeque};

use foreword_ordering::head::{Cause, Diagnosis, Index, Limits, PendingPrompt, SegmentKind};
use foreword_ordering::{Config as Ordering, Parsed, Rewrite, Tenant};

/// The state of cache-miss diagnosis: an index of recent requests for each tenant, and the forwarded requests that
/// still await their diagnosis.
#[derive(Debug)]
pub(crate) struct Misses {
    limits: Limits,
    tenants: Vec<Seen>,
    now: u64,
    /// Forwarded requests that are not diagnosed yet, in order of arrival.
    waiting: VecDeque<Waiting>,
    /// Total bytes of text stored for the requests in `waiting`.
    waiting_bytes: usize,
    /// Finished diagnoses that were not yet returned by [`Misses::explain`], by the request's number; `None` for a
    /// request whose body cannot be read.
    explained: BTreeMap<Ticket, Option<Diagnosis>>,
}

/// The number that identifies a request in the queue for cache-miss diagnosis. Numbers ascend in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// A forwarded request whose prompt is to be diagnosed for a lost cached prefix.
pub(crate) struct Sent<'r, 'b> {
    pub(crate) tenant: Tenant<'r>,
    /// Name of the engine that receives the request; empty if there is only one engine or the engine is unknown.
    pub(crate) engine: &'r str,
    pub(crate) parsed: &'r Parsed<'b>,
    pub(crate) rewritten: Option<&'r Rewrite>,
    /// The body that the gateway rewrote, parsed again; `None` if it was not parsed again.
    pub(crate) again: Option<&'r Parsed<'b>>,
    /// Number of document tokens that the receiving engine has cached according to its event feed; `None` if the engine
    /// has no feed.
    pub(crate) believed: Option<u64>,
}

/// One tenant's index of recent requests, and the number of the tenant's last request.
#[derive(Debug)]
struct Seen {
    tenant: Box<str>,
    used: u64,
    index: Index,
}

/// A forwarded request that awaits its cache-miss diagnosis.
#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    tenant: Box<str>,
    prompt: Prompt,
    believed: Option<u64>,
}

/// The prompt of a forwarded request that awaits its cache-miss diagnosis.
#[derive(Debug)]
enum Prompt {
    /// A prompt of which the tenant's index has already read segments and hashes.
    Read(Box<PendingPrompt>),
    /// A rewritten body in which the prompt's head (tools, system text, history) was changed. It is parsed only when it
    /// is diagnosed.
    Body { body: Box<[u8]>, engine: Box<str> },
}

impl Prompt {
    fn bytes(&self) -> usize {
        match self {
            Self::Read(prompt) => prompt.bytes(),
            Self::Body { body, .. } => body.len(),
        }
    }
}

impl Misses {
    /// Returns a state in which no tenant has an index of recent requests yet. Each tenant's index will compare with at
    /// most `requests` recent requests, for engines whose caches have blocks of `page_tokens` tokens. If `requests` is
    /// 0, nothing is diagnosed.
    pub(crate) fn new(requests: u32, page_tokens: u32) -> Self {
        Self {
            limits: Limits {
                requests,
                // vLLM's default, if the configuration has none.
                page_tokens: if page_tokens > 1 { page_tokens } else { 16 },
                ..Limits::GATEWAY
            },
            tenants: Vec::new(),
            now: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            explained: BTreeMap::new(),
        }
    }

    /// Queues a request that is about to be forwarded, and returns the ticket with which [`Misses::explain`] returns
    /// its diagnosis; `None` if diagnosis is off.
    pub(crate) fn take(&mut self, sent: &Sent<'_, '_>, ordering: &Ordering) -> Option<Ticket> {
        if self.limits.requests == 0 {
            return None;
        }
        self.now = self.now.saturating_add(1);
        let ticket = Ticket(self.now);
        let Sent {
            tenant: Tenant { name: tenant, .. },
            engine,
            parsed,
            rewritten,
            again,
            ..
        } = *sent;
        let index = self.index_for(tenant, ordering)?;
        let stabilised = rewritten.filter(|rewrite| rewrite.head.applied);
        let prompt = match stabilised.and_then(|rewrite| rewrite.body.as_deref()) {
            Some(body) => match again {
                Some(again) => {
                    let read = index.read_sent(again, ordering, tenant, engine, None);
                    Prompt::Read(Box::new(read))
                }
                None => Prompt::Body {
                    body: body.into(),
                    engine: engine.into(),
                },
            },
            None => {
                let read = index.read_sent(parsed, ordering, tenant, engine, rewritten);
                Prompt::Read(Box::new(read))
            }
        };
        self.waiting_bytes = self.waiting_bytes.saturating_add(prompt.bytes());
        self.waiting.push_back(Waiting {
            ticket,
            tenant: tenant.into(),
            prompt,
            believed: sent.believed,
        });
        while self.waiting.len() > MAX_WAITING
            || self.waiting_bytes > MAX_WAITING_BYTES && self.waiting.len() > 1
        {
            self.explain_next(ordering);
        }
        Some(ticket)
    }

    /// Returns a request's diagnosis. If the request is still queued, diagnoses first the earlier queued requests and
    /// then this one. `None` if its body cannot be read, or its diagnosis was evicted or already returned.
    pub(crate) fn explain(&mut self, ticket: Ticket, ordering: &Ordering) -> Option<Diagnosis> {
        while self
            .waiting
            .front()
            .is_some_and(|waiting| waiting.ticket <= ticket)
        {
            self.explain_next(ordering);
        }
        self.explained.remove(&ticket).flatten()
    }

    /// Diagnoses the `limit` oldest queued requests, or all if there are fewer. Called outside of request callbacks, so
    /// no request waits for it.
    pub(crate) fn explain_waiting(&mut self, limit: usize, ordering: &Ordering) {
        for _ in 0..limit.min(self.waiting.len()) {
            self.explain_next(ordering);
        }
    }

    /// Diagnoses the queued request that arrived first and stores the diagnosis. Does nothing if none is queued.
    fn explain_next(&mut self, ordering: &Ordering) {
        let Some(waiting) = self.waiting.pop_front() else {
            return;
        };
        let bytes = waiting.prompt.bytes();
        self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes);
        let tenant = &*waiting.tenant;
        let mut tenants = self.tenants.iter_mut();
        let seen = tenants.find(|seen| *seen.tenant == *tenant);
        let diagnosis = seen.and_then(|Seen { index, .. }| {
            let mut diagnosis = match waiting.prompt {
                Prompt::Read(prompt) => index.diagnose(*prompt),
                Prompt::Body { body, engine } => {
                    let explained = index.explain_body(&body, ordering, tenant, &engine);
                    explained.ok()?
                }
            };
            if let Some(tokens) = waiting.believed {
                diagnosis.believed(tokens, ordering.block_tokens());
            }
            Some(diagnosis)
        });
        if self.explained.len() >= MAX_EXPLAINED {
            self.explained.pop_first();
        }
        self.explained.insert(waiting.ticket, diagnosis);
    }

    /// Returns the index of recent requests for `tenant`, creating it if necessary. Beyond [`MAX_TENANTS`], a new
    /// tenant replaces the least recently used one, whose queued requests are diagnosed first: so every queued request
    /// finds its tenant's index. `None` never occurs.
    fn index_for(&mut self, tenant: &str, ordering: &Ordering) -> Option<&mut Index> {
        let known = self.tenants.iter().position(|seen| *seen.tenant == *tenant);
        let at = match known {
            Some(at) => at,
            None => {
                if self.tenants.len() >= MAX_TENANTS {
                    let oldest = self.tenants.iter().min_by_key(|seen| seen.used)?;
                    let oldest = oldest.tenant.clone();
                    let mut waiting = self.waiting.iter();
                    let last = waiting.rposition(|waiting| waiting.tenant == oldest);
                    self.explain_waiting(last.map_or(0, |last| last.saturating_add(1)), ordering);
                    self.tenants.retain(|seen| seen.tenant != oldest);
                }
                self.tenants.push(Seen {
                    tenant: tenant.into(),
                    used: 0,
                    index: Index::new(self.limits),
                });
                self.tenants.len().saturating_sub(1)
            }
        };
        let seen = self.tenants.get_mut(at)?;
        seen.used = self.now;
        Some(&mut seen.index)
    }
}

/// The maximum number of requests, of all tenants of one plugin, that await their diagnosis. Above it, the current
/// request's callback diagnoses the oldest.
const MAX_WAITING: usize = 64;

/// The maximum total bytes of text stored for requests that await their diagnosis; a single request alone may exceed
/// it.
const MAX_WAITING_BYTES: usize = 2 << 20;

/// The maximum number of finished diagnoses stored until their requests end; the oldest is dropped first.
const MAX_EXPLAINED: usize = 4_096;

/// The maximum number of tenants with an index of recent requests, in one plugin.
const MAX_TENANTS: usize = 16;

/// The causes of a lost cached prefix that have counters, each with the kind of prompt segment (tool, system text,
/// document, message) in which it occurs; `None` for a cause outside the prompt. A cause found in any other kind of
/// segment is counted with the last pair of that cause.
pub(crate) const COUNTED: [(Cause, Option<SegmentKind>); 36] = [
    (Cause::ToolOrder, Some(SegmentKind::Tool)),
    (Cause::ToolSet, Some(SegmentKind::Tool)),
    (Cause::ToolSchema, Some(SegmentKind::Tool)),
    (Cause::KeyOrder, Some(SegmentKind::Tool)),
    (Cause::KeyOrder, Some(SegmentKind::System)),
    (Cause::SystemText, Some(SegmentKind::System)),
    (Cause::VolatileValue, Some(SegmentKind::Tool)),
    (Cause::VolatileValue, Some(SegmentKind::Question)),
    (Cause::VolatileValue, Some(SegmentKind::Message)),
    (Cause::VolatileValue, Some(SegmentKind::System)),
    (Cause::Whitespace, Some(SegmentKind::Tool)),
    (Cause::Whitespace, Some(SegmentKind::Message)),
    (Cause::Whitespace, Some(SegmentKind::Document)),
    (Cause::Whitespace, Some(SegmentKind::System)),
    (Cause::HistoryEdited, Some(SegmentKind::Message)),
    (Cause::HistoryDropped, Some(SegmentKind::Message)),
    (Cause::ContextMoved, Some(SegmentKind::Document)),
    (Cause::ContextMoved, Some(SegmentKind::Message)),
    (Cause::HoistedSystem, Some(SegmentKind::System)),
    (Cause::DocumentSet, Some(SegmentKind::Document)),
    (Cause::DocumentOrder, Some(SegmentKind::Document)),
    (Cause::DocumentText, Some(SegmentKind::Document)),
    (Cause::QuestionFirst, Some(SegmentKind::Question)),
    (Cause::TenantSalt, None),
    (Cause::OtherEngine, None),
    (Cause::ModelChanged, None),
    (Cause::Parameters, None),
    (Cause::Evicted, Some(SegmentKind::Tool)),
    (Cause::Evicted, Some(SegmentKind::System)),
    (Cause::Evicted, Some(SegmentKind::Document)),
    (Cause::Evicted, Some(SegmentKind::Message)),
    (Cause::BelowPage, Some(SegmentKind::Tool)),
    (Cause::BelowPage, Some(SegmentKind::System)),
    (Cause::BelowPage, Some(SegmentKind::Document)),
    (Cause::BelowPage, Some(SegmentKind::Message)),
    (Cause::Unread, None),
];

/// Returns the index in [`COUNTED`] under which a diagnosis is counted, by its cause and kind of prompt segment; `None`
/// if no cached prefix was lost.
pub(crate) fn counted(diagnosis: &Diagnosis) -> Option<usize> {
    let met = (diagnosis.cause, diagnosis.segment);
    let exact = COUNTED.iter().position(|counted| *counted == met);
    exact.or_else(|| {
        COUNTED
            .iter()
            .rposition(|(cause, _)| *cause == diagnosis.cause)
    })
}

/// Returns the name in metrics and logs of a kind of prompt segment (tool, system text, document, message); `request`
/// if it is `None`, for a cause outside the prompt.
pub(crate) fn segment_name(segment: Option<SegmentKind>) -> &'static str {
    segment.map_or("request", SegmentKind::name)
}

/// Returns the access-log fields of a cache-miss diagnosis as pairs of name and value.
pub(crate) fn fields(diagnosis: &Diagnosis) -> Vec<(&'static str, String)> {
    let mut fields = vec![("miss_cause", diagnosis.cause.name().to_owned())];
    if diagnosis.cause.is_none() {
        return fields;
    }
    fields.push(("miss_segment", segment_name(diagnosis.segment).to_owned()));
    fields.push(("miss_tokens", diagnosis.lost_tokens.to_string()));
    fields.push(("miss_index", diagnosis.index.to_string()));
    fields.push(("miss_offset", diagnosis.offset.to_string()));
    if let Some(kind) = diagnosis.volatile {
        fields.push(("miss_volatile", kind.name().to_owned()));
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::parse;

    fn body(clock: &str) -> String {
        format!(
            r#"{{"model":"m","messages":[{{"role":"system","content":"It is 2026-11-22 {clock}. Be brief and cite your sources in each answer."}},{{"role":"user","content":"Why?"}}]}}"#
        )
    }

    fn explain(misses: &mut Misses, tenant: &str, body: &str) -> Option<Diagnosis> {
        let ordering = Ordering::default();
        let ticket = take(misses, tenant, body)?;
        misses.explain(ticket, &ordering)
    }

    fn take(misses: &mut Misses, tenant: &str, body: &str) -> Option<Ticket> {
        let ordering = Ordering::default();
        let sent = Sent {
            tenant: Tenant::named(tenant),
            engine: "",
            parsed: &parse(body.as_bytes(), &ordering).unwrap(),
            rewritten: None,
            again: None,
            believed: None,
        };
        misses.take(&sent, &ordering)
    }

    #[test]
    fn a_clock_is_told_within_a_tenant_and_nobody_elses_requests_are_seen() {
        let mut misses = Misses::new(8, 1);
        let first = explain(&mut misses, "a", &body("14:03")).unwrap();
        assert_eq!(first.cause, Cause::FirstSeen);
        assert_eq!(fields(&first), [("miss_cause", "first-seen".to_owned())]);
        let other = explain(&mut misses, "b", &body("14:04")).unwrap();
        assert_eq!(other.cause, Cause::FirstSeen);
        let second = explain(&mut misses, "a", &body("14:04")).unwrap();
        assert_eq!(second.cause, Cause::VolatileValue);
        let fields = fields(&second);
        assert!(fields.contains(&("miss_segment", "system".to_owned())));
        assert!(fields.contains(&("miss_volatile", "date-time".to_owned())));
        assert_eq!(
            counted(&second).map(|at| COUNTED[at].0),
            Some(Cause::VolatileValue)
        );
        assert_eq!(counted(&first), None);
    }

    #[test]
    fn tenants_and_requests_are_bounded_and_none_is_none() {
        assert!(explain(&mut Misses::new(0, 1), "a", &body("14:03")).is_none());
        let mut misses = Misses::new(4, 1);
        for at in 0..100 {
            explain(&mut misses, &format!("t{}", at % 40), &body("14:03"));
        }
        assert_eq!(misses.tenants.len(), MAX_TENANTS);
        assert!(misses.tenants.iter().all(|seen| seen.index.len() <= 4));
    }

    #[test]
    fn requests_are_explained_in_the_order_of_arrival_whoever_asks_first() {
        let ordering = Ordering::default();
        let mut misses = Misses::new(8, 1);
        let first = take(&mut misses, "a", &body("14:03")).unwrap();
        let second = take(&mut misses, "a", &body("14:04")).unwrap();
        let causes = [second, first].map(|ticket| {
            let explained = misses.explain(ticket, &ordering).unwrap();
            (explained.request, explained.cause)
        });
        assert_eq!(
            causes,
            [(2, Cause::VolatileValue), (1, Cause::FirstSeen)],
            "the second asks first"
        );
        assert_eq!(misses.explain(first, &ordering), None, "it is told once");
    }

    #[test]
    fn a_tick_explains_so_many_and_nothing_waits_beyond_the_bounds() {
        let ordering = Ordering::default();
        let mut misses = Misses::new(8, 1);
        let tickets: Vec<Ticket> = (0..MAX_WAITING + 10)
            .map(|at| take(&mut misses, "a", &body(&format!("14:{at:02}"))).unwrap())
            .collect();
        assert_eq!(misses.waiting.len(), MAX_WAITING);
        assert_eq!(misses.explained.len(), 10);
        misses.explain_waiting(16, &ordering);
        assert_eq!(misses.waiting.len(), MAX_WAITING - 16);
        for ticket in tickets.iter().skip(1) {
            let explained = misses.explain(*ticket, &ordering).unwrap();
            assert_eq!(explained.cause, Cause::VolatileValue);
        }
        assert!(misses.waiting.is_empty());
        assert_eq!(misses.waiting_bytes, 0);
    }

    #[test]
    fn large_bodies_do_not_pile_up() {
        let mut misses = Misses::new(8, 1);
        for at in 0..40 {
            let tools: String = (0..1_000)
                .map(|tool| format!(r#"{{"type":"function","function":{{"name":"t{at}_{tool}","description":"{}"}}}},"#, "word ".repeat(20)))
                .collect();
            let tools = tools.trim_end_matches(',');
            let body =
                body("14:03").replace(r#""model""#, &format!(r#""tools":[{tools}],"model""#));
            take(&mut misses, "a", &body);
            assert!(misses.waiting_bytes <= MAX_WAITING_BYTES);
        }
        assert!(!misses.waiting.is_empty());
    }

    #[test]
    fn a_tenant_that_is_evicted_has_its_requests_explained_first() {
        let ordering = Ordering::default();
        let mut misses = Misses::new(8, 1);
        let first =
            [body("14:03"), body("14:04")].map(|body| take(&mut misses, "a", &body).unwrap());
        for at in 0..MAX_TENANTS {
            take(&mut misses, &format!("t{at}"), &body("14:03"));
        }
        assert!(misses.tenants.iter().all(|seen| *seen.tenant != *"a"));
        let causes = first.map(|ticket| misses.explain(ticket, &ordering).unwrap().cause);
        assert_eq!(causes, [Cause::FirstSeen, Cause::VolatileValue]);
    }

    #[test]
    fn every_cause_that_breaks_a_prefix_is_counted() {
        for cause in Cause::ALL {
            let is_counted = COUNTED.iter().any(|(counted, _)| *counted == cause);
            assert_eq!(is_counted, !cause.is_none(), "{}", cause.name());
        }
    }
}
