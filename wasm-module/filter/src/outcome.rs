//! The outcome of a request, and its report: for the operator in a response header and in the access log, for a refused
//! client as a message that [`crate::dialect`] formats.
//!
//! No text contains anything of a document, a question or a tenant, only counts and fixed words.

use std::fmt;

use foreword_ordering::cuts::Cut;
use foreword_ordering::head::HeadReport;
use foreword_ordering::{Arm, Report, Skip};
use thiserror::Error;

use crate::config::OnFailure;
use crate::exchange::listed::Unlisted;
use crate::host::HostError;
use crate::retrieval::Reason;

/// The outcome of a request: whether the gateway changed its body, forwarded it or refused it. If cache salts are on,
/// even an "original body" carries the gateway's salt.
#[derive(Debug)]
pub enum RequestOutcome {
    /// A body with changed text or order was forwarded.
    Ordered {
        /// Counts of the changes made to the request's documents.
        report: Report,
        /// The arm (treatment group) of the request's chat in an experiment; `None` if no experiment runs.
        arm: Option<Arm>,
    },
    /// The ordering core processed the request and changed neither text nor order. Cache markers may have been added.
    Unchanged {
        /// Counts of the request's documents, of those that match the prefix cache, and of their tokens.
        report: Report,
        /// The arm (treatment group) of the request's chat in an experiment; `None` if no experiment runs.
        arm: Option<Arm>,
    },
    /// The original body was forwarded, because of the mode `dry-run`.
    DryRun {
        /// Counts of the changes that would have been made to the request's documents.
        report: Report,
        /// The counts for the documents in the client's own order, for comparison with `report`.
        as_sent: Report,
    },
    /// The original body was forwarded unprocessed. The value is the reason in kebab case.
    Passed(&'static str),
    /// The client received an error response instead of the engine's. The value is the reason in kebab case.
    Refused(&'static str),
}

impl RequestOutcome {
    /// Returns the outcome in one word, for the response header and the access log.
    fn word(&self) -> &'static str {
        match self {
            Self::Ordered { .. } => "ordered",
            Self::Unchanged { .. } => "unchanged",
            Self::DryRun { .. } => "dry-run",
            Self::Passed(_) => "passed",
            Self::Refused(_) => "refused",
        }
    }

    /// Returns the outcome as pairs of name and value for the access log. No name occurs twice, and the first one is
    /// always `outcome`.
    pub(crate) fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![("outcome", self.word().to_owned())];
        let (report, arm) = match self {
            Self::Passed(reason) | Self::Refused(reason) => {
                fields.push(("reason", (*reason).to_owned()));
                return fields;
            }
            Self::Ordered { report, arm } | Self::Unchanged { report, arm } => (report, *arm),
            Self::DryRun { report, .. } => (report, None),
        };
        let mut count = |name, value: u64| fields.push((name, value.to_string()));
        count("documents", report.documents.into());
        count("matched", report.matched.into());
        count("moved", report.moved.into());
        count("dropped", report.dropped.into());
        count("deduplicated", report.deduplicated.into());
        count("pinned", report.pinned.into());
        count("document_tokens", report.document_tokens);
        count("matched_tokens", report.matched_tokens);
        count("client_matched_tokens", report.client_matched_tokens);
        count("estimated_tokens", report.estimated_tokens);
        fields.push(("policy", report.policy.to_owned()));
        fields.extend(arm.map(|arm| ("arm", arm.name().to_owned())));
        fields
    }
}

/// Writes the value of the response header that reports the outcome to the operator.
impl fmt::Display for RequestOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word();
        let (report, arm, as_sent) = match self {
            Self::Ordered { report, arm } | Self::Unchanged { report, arm } => (report, *arm, None),
            Self::DryRun { report, as_sent } => (report, None, Some(as_sent)),
            Self::Passed(reason) | Self::Refused(reason) => {
                return write!(f, "{word}; reason={reason}");
            }
        };
        write!(
            f,
            "{word}; policy={}; documents={}; matched={}; moved={}; dropped={}; hint={}",
            report.policy,
            report.documents,
            report.matched,
            report.moved,
            report.dropped,
            u8::from(report.hinted)
        )?;
        if report.numbered {
            f.write_str("; labels=numbered")?;
        }
        // Only requests that continue a chat have these counts.
        if report.deduplicated > 0 {
            write!(f, "; deduplicated={}", report.deduplicated)?;
        }
        if report.pinned > 0 {
            write!(f, "; pinned={}", report.pinned)?;
        }
        if let Some(as_sent) = as_sent {
            write!(f, "; client_matched={}", as_sent.matched)?;
        }
        if let Some(arm) = arm {
            write!(f, "; arm={}", arm.name())?;
        }
        Ok(())
    }
}

/// Returns the pairs of name and value by which the response header and the access log report changes to a prompt's
/// head (tools, system text, history): whether they were applied, and the counts that are not zero.
pub(crate) fn head_fields(head: &HeadReport) -> Vec<(&'static str, String)> {
    let word = if head.applied { "applied" } else { "reported" };
    let mut fields = vec![("head", word.to_owned())];
    let counts = head_counts(head).into_iter();
    let counts = counts.filter(|(_, count)| *count > 0);
    fields.extend(counts.map(|(name, count)| (name, count.to_string())));
    fields
}

/// Number of counts in a report on changes to a prompt's head (tools, system text, history): see [`head_counts`].
pub(crate) const HEAD_COUNTS: usize = 13;

/// Returns the non-zero counts that describe a prompt's cache markers, with their names in the response header and the
/// access log.
pub(crate) fn cut_fields(cut: &Cut) -> Vec<(&'static str, String)> {
    let counts = cut_counts(cut).into_iter();
    let counts = counts.filter(|(_, count)| *count > 0);
    counts
        .map(|(name, count)| (name, count.to_string()))
        .collect()
}

/// Returns all counts that describe a prompt's cache markers, with their names in response header, access log and
/// metrics.
pub(crate) fn cut_counts(cut: &Cut) -> [(&'static str, u64); 6] {
    [
        ("cut_markers", cut.markers.into()),
        ("cut_client_markers", cut.client_markers.into()),
        ("cut_splits", cut.splits.into()),
        ("cut_unread", cut.unread.into()),
        ("cut_read_tokens", cut.read_tokens),
        ("cut_written_tokens", cut.written_tokens),
    ]
}

/// Returns all counts in a report on changes to a prompt's head (tools, system text, history), with their names in
/// response header, access log and metrics.
pub(crate) fn head_counts(head: &HeadReport) -> [(&'static str, u32); HEAD_COUNTS] {
    [
        ("head_tools", head.tools_moved),
        ("head_schemas", head.tools_reformed),
        ("head_moved", head.moved),
        ("head_learned", head.learned),
        ("head_frozen", head.frozen),
        ("head_dropped", head.dropped),
        ("head_left", head.left),
        ("head_unread", head.unread),
        ("head_restored", head.restored),
        ("head_relocated", head.relocated),
        ("head_doubtful", head.doubtful),
        ("head_numbered", head.numbered),
        ("head_scored", head.scored),
    ]
}

/// The filter's own reasons, as words in reports, for not ordering a request's documents. The ordering crate has its
/// own: [`Skip::REASONS`].
pub(crate) mod reason {
    /// The tenant's name is too long, not UTF-8, or has control characters.
    pub(crate) const BAD_TENANT: &str = "bad-tenant";
    /// Another use of the orderer by the same thread has not returned, so it cannot be locked.
    pub(crate) const BUSY: &str = "busy";
    /// The request has the header by which a client opts out of processing.
    pub(crate) const BYPASS: &str = "bypass";
    /// A refused request: cache salts are on, and the body has a field with which the client could name KV-cache state,
    /// perhaps another tenant's.
    pub(crate) const CACHE_FIELD: &str = "cache-field";
    /// The request has no body.
    pub(crate) const EMPTY_BODY: &str = "empty-body";
    /// The body has a content encoding such as gzip, so it cannot be read.
    pub(crate) const ENCODED: &str = "encoded";
    /// The proxy refused a host call.
    pub(crate) const HOST_ERROR: &str = "host-error";
    /// The configuration demands a tenant for each request, and the request names none.
    pub(crate) const NO_TENANT: &str = "no-tenant";
    /// The content type is not JSON.
    pub(crate) const NOT_JSON: &str = "not-json";
    /// The header that names the tenant has several values.
    pub(crate) const SEVERAL_TENANTS: &str = "several-tenants";
    /// The search for documents failed, and the configuration refuses such requests.
    pub(crate) const RETRIEVAL: &str = "retrieval";
    /// The body is longer than the configured `max_body_bytes`.
    pub(crate) const TOO_LARGE: &str = "too-large";

    /// The filter's reasons for which requests are forwarded with their original body. Each has a counter.
    pub(crate) const ALL: [&str; 9] = [
        BAD_TENANT, BUSY, BYPASS, EMPTY_BODY, ENCODED, HOST_ERROR, NO_TENANT, NOT_JSON, TOO_LARGE,
    ];
}

/// The reason why the filter did not order a request, with the values for the message to the client.
#[derive(Debug, Error)]
pub(crate) enum Fault {
    #[error(
        "the request's tenant is not a text of at most {limit} bytes without control characters"
    )]
    BadTenant { limit: usize },
    #[error("the gateway is busy")]
    Busy,
    /// With cache salts on: the body has the named field, with which a client could name KV-cache state. `*` in the
    /// name matches any suffix.
    #[error(
        "the gateway takes no `{field}` from a client: it names KV state, which the gateway keeps apart by tenants"
    )]
    CacheField { field: &'static str },
    #[error("the request has no body")]
    EmptyBody,
    #[error("the request's content-encoding is not `identity`, the only one that is read here")]
    Encoded,
    /// A failure of the proxy, which does not concern the client; it is logged.
    #[error("the gateway failed")]
    Host(#[from] HostError),
    /// No documents could be retrieved, and the configuration `retrieval.on_failure` is `refuse`.
    #[error("{0}")]
    Retrieval(Reason),
    #[error("the request names no tenant")]
    NoTenant,
    /// The header that names the tenant has several values or a comma, so it was not set by the proxy.
    #[error("the request names several tenants; the header must have one value, without a comma")]
    SeveralTenants,
    #[error("the request's content-type is not `application/json`, the only one that is read here")]
    NotJson,
    /// The body is longer than `limit` bytes. `found` is its length in bytes; `None` if it is unknown because the body
    /// came in chunks.
    #[error("{}", too_large(.found, .limit))]
    TooLarge { found: Option<u64>, limit: u32 },
    /// The ordering core found nothing to order in the body, or an error in it. The value says which.
    #[error(transparent)]
    Skip(Skip),
    /// With cache salts on: the request's method and path are not on the lists of allowed paths.
    #[error(transparent)]
    Unlisted(#[from] Unlisted),
}

impl Fault {
    /// Returns the reason in kebab case, for the response header and the counter.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::BadTenant { .. } => reason::BAD_TENANT,
            Self::Busy => reason::BUSY,
            Self::CacheField { .. } => reason::CACHE_FIELD,
            Self::EmptyBody => reason::EMPTY_BODY,
            Self::Encoded => reason::ENCODED,
            Self::Host(_) => reason::HOST_ERROR,
            Self::Retrieval(_) => reason::RETRIEVAL,
            Self::NoTenant => reason::NO_TENANT,
            Self::SeveralTenants => reason::SEVERAL_TENANTS,
            Self::NotJson => reason::NOT_JSON,
            Self::TooLarge { .. } => reason::TOO_LARGE,
            Self::Skip(skip) => skip.reason(),
            Self::Unlisted(unlisted) => unlisted.reason(),
        }
    }

    /// Returns the value of the header `allow` for a 405 response; `None` if the status is not 405.
    pub(crate) fn allowed_methods(&self) -> Option<&'static str> {
        match self {
            Self::Unlisted(unlisted) => unlisted.allowed_methods(),
            _ => None,
        }
    }

    /// Returns the status of the error response that the client gets; `None` if the request is forwarded instead.
    ///
    /// If cache salts are on (`salted`), a body that cannot be parsed is refused whatever `on_failure` says: the filter
    /// cannot write its salt, and the body may contain one of the client's own. A body that can be parsed is forwarded
    /// with the salt.
    pub(crate) fn refusal_status(&self, on_failure: OnFailure, salted: bool) -> Option<u16> {
        let refuses = on_failure == OnFailure::Refuse;
        let (status, is_refused) = match self {
            Self::TooLarge { .. } => (413, refuses || salted),
            Self::Skip(Skip::InvalidUtf8 { .. } | Skip::InvalidJson { .. }) => {
                (400, refuses || salted)
            }
            // Nothing to order is no fault of the client's.
            Self::Skip(Skip::NoDocuments | Skip::NoUserMessage) | Self::EmptyBody => (400, false),
            Self::Skip(_) => (400, refuses),
            Self::NoTenant | Self::BadTenant { .. } => (403, salted),
            Self::NotJson | Self::Encoded => (415, salted),
            Self::CacheField { .. } => (400, true),
            Self::SeveralTenants => (403, true),
            Self::Retrieval(reason) => (reason.refusal_status(), true),
            Self::Busy => (503, salted),
            Self::Host(_) => (500, salted),
            Self::Unlisted(unlisted) => (unlisted.status(), true),
        };
        is_refused.then_some(status)
    }
}

/// Returns the message of [`Fault::TooLarge`].
fn too_large(found: &Option<u64>, limit: &u32) -> String {
    match found {
        Some(found) => format!("the request body has {found} bytes; the limit is {limit}"),
        None => format!("the request body has more than {limit} bytes, which is the limit"),
    }
}

#[cfg(test)]
pub(crate) const REPORT: Report = Report {
    policy: "longest",
    documents: 5,
    matched: 3,
    moved: 4,
    dropped: 0,
    deduplicated: 0,
    pinned: 0,
    replayed: 0,
    hinted: true,
    numbered: false,
    document_tokens: 900,
    matched_tokens: 700,
    client_matched_tokens: 60,
    estimated_tokens: 1_000,
};

#[cfg(test)]
mod tests {
    use super::*;

    const ORDERED: RequestOutcome = RequestOutcome::Ordered {
        report: REPORT,
        arm: None,
    };

    fn dry_run() -> RequestOutcome {
        RequestOutcome::DryRun {
            report: REPORT,
            as_sent: Report {
                matched: 1,
                matched_tokens: 60,
                ..REPORT
            },
        }
    }

    #[test]
    fn the_header_gives_counts_in_a_fixed_order() {
        assert_eq!(
            ORDERED.to_string(),
            "ordered; policy=longest; documents=5; matched=3; moved=4; dropped=0; hint=1"
        );
        assert_eq!(
            dry_run().to_string(),
            "dry-run; policy=longest; documents=5; matched=3; moved=4; dropped=0; hint=1; client_matched=1"
        );
        let numbered = RequestOutcome::Ordered {
            report: Report {
                numbered: true,
                ..REPORT
            },
            arm: None,
        };
        assert!(numbered.to_string().ends_with("; hint=1; labels=numbered"));
        let control = RequestOutcome::Unchanged {
            report: REPORT,
            arm: Some(Arm::Control),
        };
        assert!(control.to_string().ends_with("; hint=1; arm=control"));
        assert_eq!(
            RequestOutcome::Passed("too-large").to_string(),
            "passed; reason=too-large"
        );
        assert_eq!(
            RequestOutcome::Refused("too-large").to_string(),
            "refused; reason=too-large"
        );
    }

    #[test]
    fn a_field_of_the_log_is_named_once_and_the_first_is_always_there() {
        for outcome in [ORDERED, dry_run(), RequestOutcome::Passed("bypass")] {
            let fields = outcome.fields();
            assert_eq!(fields[0], ("outcome", outcome.word().to_owned()));
            let mut names: Vec<_> = fields.iter().map(|(name, _)| *name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), fields.len());
        }
        assert!(
            dry_run()
                .fields()
                .contains(&("client_matched_tokens", "60".into()))
        );
    }

    #[test]
    fn a_head_is_told_in_counts_that_are_not_zero() {
        let head = HeadReport {
            applied: true,
            tools_moved: 2,
            moved: 1,
            ..HeadReport::default()
        };
        let told = |head| format!("{:?}", head_fields(&head));
        assert_eq!(
            told(head.clone()),
            r#"[("head", "applied"), ("head_tools", "2"), ("head_moved", "1")]"#
        );
        let reported = HeadReport {
            applied: false,
            ..head
        };
        assert!(told(reported).starts_with(r#"[("head", "reported")"#));
    }

    #[test]
    fn a_refusal_names_value_and_limit() {
        let fault = Fault::TooLarge {
            found: Some(20),
            limit: 10,
        };
        assert_eq!(
            (fault.reason(), fault.to_string().as_str()),
            (
                "too-large",
                "the request body has 20 bytes; the limit is 10"
            )
        );
    }

    #[test]
    fn what_may_hold_a_salt_of_the_clients_own_goes_no_further() {
        let unread = [
            Fault::BadTenant { limit: 256 },
            Fault::Busy,
            Fault::Encoded,
            Fault::NoTenant,
            Fault::NotJson,
            Fault::Host(HostError {
                call: "x",
                status: 1,
            }),
            Fault::TooLarge {
                found: None,
                limit: 1,
            },
            Fault::Skip(Skip::InvalidUtf8 { offset: 0 }),
            Fault::Skip(Skip::InvalidJson { line: 1, column: 1 }),
        ];
        for fault in unread {
            let status = fault.refusal_status(OnFailure::Pass, true);
            assert!(status.is_some_and(|status| status >= 400), "{fault:?}");
            assert_eq!(
                fault.refusal_status(OnFailure::Pass, false),
                None,
                "{fault:?}"
            );
        }
        for skip in [Skip::NoDocuments, Skip::NoUserMessage] {
            let fault = Fault::Skip(skip);
            assert_eq!(
                fault.refusal_status(OnFailure::Refuse, true),
                None,
                "{fault:?}"
            );
        }
    }
}
