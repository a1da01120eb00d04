//! What is compared: two ways of ordering.

use serde_json::{Value, json};

/// The two ways of ordering that are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Arm {
    /// As the retriever ranked them.
    Retrieval,
    /// As the knowledge tree suggests.
    Ordered,
}

impl Arm {
    /// Its name in figures and progress bars.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Retrieval => "retrieval",
            Self::Ordered => "ordered",
        }
    }

    /// The core's configuration: everything but the policy is the default.
    pub(super) fn ordering(self) -> Value {
        json!({ "policy": self.policy() })
    }

    fn policy(self) -> &'static str {
        match self {
            Self::Retrieval => "retrieval",
            Self::Ordered => "foresight",
        }
    }
}
