//! The two ways of ordering that the demo compares.

use serde_json::{Value, json};

/// One of the two ways of ordering that are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Arm {
    /// The order of the retriever's ranking.
    Retrieval,
    /// The order that the knowledge tree suggests.
    Ordered,
}

impl Arm {
    /// Returns the arm's name in figures and progress bars.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Retrieval => "retrieval",
            Self::Ordered => "ordered",
        }
    }

    /// Returns the core's configuration: the defaults, except for the policy and that no document is favoured.
    pub(super) fn ordering(self) -> Value {
        json!({ "policy": self.policy(), "rank": {"place": "free"} })
    }

    fn policy(self) -> &'static str {
        match self {
            Self::Retrieval => "retrieval",
            Self::Ordered => "foresight",
        }
    }
}
