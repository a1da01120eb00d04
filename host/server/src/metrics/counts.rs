//! Counts that more than one server here keeps.

use axum::http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// HTTP responses by route and status, of any server here. The default is told to nobody.
#[derive(Clone, Debug, Default)]
pub struct Responses(Family<HttpLabels, Counter>);

impl Responses {
    /// In this registry.
    pub fn registered(registry: &mut Registry) -> Self {
        let family = Family::default();
        let help = "HTTP requests by route and status";
        registry.register("http_requests", help, family.clone());
        Self(family)
    }

    /// Counts one; `route` is the pattern, never what a client put in the path.
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

/// Chat requests by what became of the path that the gateway told, of any server here.
#[derive(Clone, Debug, Default)]
pub struct Placements(Outcomes);

impl Placements {
    /// In this registry.
    pub fn registered(registry: &mut Registry) -> Self {
        let help = "Chat requests by what became of the path that the gateway told";
        Self(Outcomes::registered(registry, "document_paths", help))
    }

    /// Counts one.
    pub fn count(&self, outcome: Placement) {
        self.0.count(outcome.name());
    }
}

/// What became of a chat request's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// All of its documents were found in the prompt.
    Placed,
    /// Some were.
    Partial,
    /// None were: the header is another body's, or the gateway finds documents by other tags.
    NotFound,
    /// The header is no path.
    Malformed,
    /// There was no header.
    Absent,
}

impl Placement {
    /// As it stands in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Placed => "placed",
            Self::Partial => "partial",
            Self::NotFound => "not_found",
            Self::Malformed => "malformed",
            Self::Absent => "absent",
        }
    }
}

/// Counts by what became of something, under the label `outcome`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcomes(Family<OutcomeLabel, Counter>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

impl Outcomes {
    /// In this registry.
    pub(crate) fn registered(registry: &mut Registry, name: &str, help: &str) -> Self {
        let family = Family::default();
        registry.register(name, help, family.clone());
        Self(family)
    }

    /// Counts one.
    pub(crate) fn count(&self, outcome: &'static str) {
        self.0.get_or_create(&OutcomeLabel { outcome }).inc();
    }
}
