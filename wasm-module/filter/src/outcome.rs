//! What became of a request, and how that is told: to the operator in a response header, to a refused
//! client in an error of OpenAI's shape.
//!
//! Neither text holds anything of a document, a question or another tenant: counts and fixed words only.

use std::fmt;

use foreword_ordering::{Report, Skip};
use serde::Serialize;

/// What became of a request.
#[derive(Debug)]
pub enum Outcome {
    /// Sent on with a new body.
    Ordered(Report),
    /// Looked at and sent on as it came: its documents already stood as they should.
    Unchanged(Report),
    /// Sent on as it came, for the reason given in kebab case.
    Passed(&'static str),
    /// Answered with an error, for the reason given in kebab case.
    Refused(&'static str),
}

/// The header's value.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, report) = match self {
            Self::Ordered(report) => ("ordered", report),
            Self::Unchanged(report) => ("unchanged", report),
            Self::Passed(reason) => return write!(f, "passed; reason={reason}"),
            Self::Refused(reason) => return write!(f, "refused; reason={reason}"),
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
        )
    }
}

/// The shell's reasons to let a request pass; the core has its own, [`Skip::REASONS`].
pub(crate) mod reason {
    /// The tenant's name is too long or not UTF-8.
    pub(crate) const BAD_TENANT: &str = "bad-tenant";
    /// The orderer is in use.
    pub(crate) const BUSY: &str = "busy";
    /// There is no body.
    pub(crate) const EMPTY_BODY: &str = "empty-body";
    /// The body is compressed.
    pub(crate) const ENCODED: &str = "encoded";
    /// The proxy refused a call.
    pub(crate) const HOST_ERROR: &str = "host-error";
    /// Tenants are switched on and the request names none.
    pub(crate) const NO_TENANT: &str = "no-tenant";
    /// The content type is not JSON.
    pub(crate) const NOT_JSON: &str = "not-json";
    /// The body is longer than `max_body_bytes`.
    pub(crate) const TOO_LARGE: &str = "too-large";

    /// Every one, for the counters.
    pub(crate) const ALL: [&str; 8] = [
        BAD_TENANT, BUSY, EMPTY_BODY, ENCODED, HOST_ERROR, NO_TENANT, NOT_JSON, TOO_LARGE,
    ];
}

/// Why a request was not ordered.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The body has more bytes than the filter reads. The length is not known when it came in chunks.
    TooLarge { found: Option<u64>, limit: u32 },
    /// The core found nothing to order, or a fault in the body.
    Skip(Skip),
}

impl Fault {
    /// Kebab-case word for the header and the counter.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => reason::TOO_LARGE,
            Self::Skip(skip) => skip.reason(),
        }
    }

    /// The status with which `on_failure: refuse` answers; `None` where the client did nothing wrong.
    pub(crate) fn refusal_status(&self) -> Option<u16> {
        match self {
            Self::TooLarge { .. } => Some(413),
            Self::Skip(Skip::NoDocuments | Skip::NoUserMessage) => None,
            Self::Skip(_) => Some(400),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge {
                found: Some(found),
                limit,
            } => {
                write!(
                    f,
                    "the request body has {found} bytes; the limit is {limit}"
                )
            }
            Self::TooLarge { found: None, limit } => {
                write!(
                    f,
                    "the request body has more than {limit} bytes, which is the limit"
                )
            }
            Self::Skip(skip) => skip.fmt(f),
        }
    }
}

/// The body of a refusal: <https://platform.openai.com/docs/guides/error-codes>.
pub(crate) fn error_body(fault: &Fault) -> Vec<u8> {
    #[derive(Serialize)]
    struct Body<'a> {
        error: Error<'a>,
    }
    #[derive(Serialize)]
    struct Error<'a> {
        message: String,
        r#type: &'a str,
        param: Option<&'a str>,
        code: &'a str,
    }
    serde_json::to_vec(&Body {
        error: Error {
            message: fault.to_string(),
            r#type: "invalid_request_error",
            param: None,
            code: fault.reason(),
        },
    })
    .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_gives_counts_in_a_fixed_order() {
        let report = Report {
            policy: "longest",
            documents: 5,
            matched: 3,
            moved: 4,
            dropped: 0,
            hinted: true,
            document_tokens: 900,
            matched_tokens: 700,
        };
        assert_eq!(
            Outcome::Ordered(report).to_string(),
            "ordered; policy=longest; documents=5; matched=3; moved=4; dropped=0; hint=1"
        );
        assert_eq!(
            Outcome::Passed("too-large").to_string(),
            "passed; reason=too-large"
        );
        assert_eq!(
            Outcome::Refused("too-large").to_string(),
            "refused; reason=too-large"
        );
    }

    #[test]
    fn a_refusal_names_value_and_limit_in_openais_shape() {
        let fault = Fault::TooLarge {
            found: Some(20),
            limit: 10,
        };
        let body: serde_json::Value = serde_json::from_slice(&error_body(&fault)).unwrap();
        assert_eq!(
            body["error"]["message"],
            "the request body has 20 bytes; the limit is 10"
        );
        assert_eq!(body["error"]["type"], "invalid_request_error");
        assert_eq!(body["error"]["code"], "too-large");
        assert!(body["error"]["param"].is_null());
    }

    #[test]
    fn a_request_without_documents_is_no_fault_of_the_client() {
        assert_eq!(Fault::Skip(Skip::NoDocuments).refusal_status(), None);
        assert_eq!(Fault::Skip(Skip::NoUserMessage).refusal_status(), None);
    }
}
