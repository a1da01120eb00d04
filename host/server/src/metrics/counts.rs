//! Counters that the server, the gateway and the bridge share.

use axum::http::StatusCode;
use foreword_process::metrics::registered;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Counts HTTP responses by route and status. The default value is not exported by any registry.
#[derive(Clone, Debug, Default)]
pub struct Responses(Family<HttpLabels, Counter>);

impl Responses {
    /// Returns counters of HTTP responses that are registered in `registry`.
    pub fn registered(registry: &mut Registry) -> Self {
        let help = "HTTP requests by route and status";
        Self(registered(registry, "http_requests", help))
    }

    /// Counts an HTTP response. `route` is the pattern of the route, never the client's path.
    pub fn count(&self, route: &str, status: StatusCode) {
        self.0
            .get_or_create(&HttpLabels {
                route: route.to_owned(),
                status: status.as_u16(),
            })
            .inc();
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HttpLabels {
    route: String,
    status: u16,
}

/// Counts chat requests by the outcome of finding the documents that the gateway's header names in the prompt. The
/// default value is not exported by any registry.
#[derive(Clone, Debug, Default)]
pub struct Placements(Outcomes);

impl Placements {
    /// Returns counters of chat requests that are registered in `registry`.
    pub fn registered(registry: &mut Registry) -> Self {
        let help = "Chat requests by what became of the path that the gateway told";
        Self(Outcomes::registered(registry, "document_paths", help))
    }

    /// Adds 1 to the number of chat requests with this outcome of finding, in the prompt, the documents that the
    /// gateway's header names.
    pub fn count(&self, outcome: Placement) {
        self.0.count(outcome.name());
    }
}

foreword_ordering::named! {
    /// The outcome of finding in a prompt the documents that the gateway's header names.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Placement {
        /// All documents that the header names were found in the prompt.
        Placed = "placed",
        /// Some of the documents that the header names were found in the prompt.
        Partial = "partial",
        /// No documents were found: the header is for another body, or the gateway writes documents in another format.
        NotFound = "not_found",
        /// The gateway's header that names the documents is malformed.
        Malformed = "malformed",
        /// The request has no header of the gateway that names its documents.
        Absent = "absent",
    }
}

/// Counts events by their outcome, under the label `outcome`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcomes(Family<OutcomeLabel, Counter>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

impl Outcomes {
    /// Returns counters that are registered in `registry` as one metric with this name and help text.
    pub(crate) fn registered(registry: &mut Registry, name: &str, help: &str) -> Self {
        Self(registered(registry, name, help))
    }

    /// Counts an event with this outcome.
    pub(crate) fn count(&self, outcome: &'static str) {
        self.0.get_or_create(&OutcomeLabel { outcome }).inc();
    }
}
