//! Explains why requests could not begin like earlier ones: an index of recent requests for each tenant, and the
//! diagnosis in metrics and in the access log.
//!
//! Each worker explains only from the requests that it has seen itself. An index holds hashes and counts of a bounded
//! number of requests and pieces; the least recently used tenant's is evicted first. Names and shapes, which the core
//! also reports, are left out here: no text holds anything of a request.

use foreword_ordering::head::{Cause, Diagnosis, Index, Limits, SegmentKind};
use foreword_ordering::{Config as Ordering, Parsed, Rewrite, Tenant};

/// The indexes of one plugin.
#[derive(Debug)]
pub(crate) struct Misses {
    limits: Limits,
    tenants: Vec<Seen>,
    now: u64,
}

/// The recent requests of one tenant, as hashes.
#[derive(Debug)]
struct Seen {
    tenant: Box<str>,
    used: u64,
    index: Index,
}

impl Misses {
    /// Returns indexes of `requests` recent requests for each tenant, for engines whose caches have pages of
    /// `page_tokens` tokens. With 0, nothing is explained.
    pub(crate) fn new(requests: u32, page_tokens: u32) -> Self {
        Self {
            limits: Limits {
                requests,
                // vLLM's default, where the configuration does not say.
                page_tokens: if page_tokens > 1 { page_tokens } else { 16 },
                ..Limits::GATEWAY
            },
            tenants: Vec::new(),
            now: 0,
        }
    }

    /// Returns why a request could not begin like an earlier one; `None`: nothing is explained.
    pub(crate) fn explain(
        &mut self,
        tenant: Tenant<'_>,
        engine: &str,
        parsed: &Parsed<'_>,
        ordering: &Ordering,
        rewritten: Option<&Rewrite>,
    ) -> Option<Diagnosis> {
        if self.limits.requests == 0 {
            return None;
        }
        self.now = self.now.saturating_add(1);
        let known = self
            .tenants
            .iter()
            .position(|seen| *seen.tenant == *tenant.name);
        let at = match known {
            Some(at) => at,
            None => {
                if self.tenants.len() >= MAX_TENANTS {
                    let oldest = self.tenants.iter().enumerate();
                    let oldest = oldest.min_by_key(|(_, seen)| seen.used);
                    let at = oldest.map(|(at, _)| at)?;
                    self.tenants.swap_remove(at);
                }
                self.tenants.push(Seen {
                    tenant: tenant.name.into(),
                    used: 0,
                    index: Index::new(self.limits),
                });
                self.tenants.len().saturating_sub(1)
            }
        };
        let seen = self.tenants.get_mut(at)?;
        seen.used = self.now;
        Some((seen.index).explain_sent(parsed, ordering, tenant.name, engine, rewritten))
    }
}

/// Most tenants whose requests are kept.
const MAX_TENANTS: usize = 16;

/// The causes that are counted, with the segments in which they occur; `None`: outside the prompt. A cause in any
/// other segment is counted with the last pair of that cause.
pub(crate) const COUNTED: [(Cause, Option<SegmentKind>); 35] = [
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
];

/// Returns the index of a diagnosis in [`COUNTED`]; `None`: nothing broke.
pub(crate) fn counted(diagnosis: &Diagnosis) -> Option<usize> {
    let met = (diagnosis.cause, diagnosis.segment);
    let exact = COUNTED.iter().position(|counted| *counted == met);
    exact.or_else(|| {
        COUNTED
            .iter()
            .rposition(|(cause, _)| *cause == diagnosis.cause)
    })
}

/// Returns a segment's name in metrics and logs.
pub(crate) fn segment_name(segment: Option<SegmentKind>) -> &'static str {
    segment.map_or("request", SegmentKind::name)
}

/// Returns the access-log fields of a diagnosis, by name.
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
        let parsed = parse(body.as_bytes(), &ordering).unwrap();
        misses.explain(Tenant::named(tenant), "", &parsed, &ordering, None)
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
    fn every_cause_that_breaks_a_prefix_is_counted() {
        for cause in Cause::ALL {
            let is_counted = COUNTED.iter().any(|(counted, _)| *counted == cause);
            assert_eq!(is_counted, !cause.is_none(), "{}", cause.name());
        }
    }
}
