//! The arms of the workload: configurations of the gateway in front of the engine.
//!
//! | arm | order of documents | what the engine reuses |
//! | --- | --- | --- |
//! | `none` | the retriever's | nothing: every request has a salt of its own |
//! | `retrieval` | the retriever's | prefixes where rankings begin alike |
//! | `random`, `sorted`, `recency`, `greedy`, `longest`, `foresight` | that policy's | prefixes that the order aligns |
//! | any of these with `+hint` | the same | the same, and every prompt carries the hint that the gateway writes |
//!
//! `longest` finds the longest cached prefix exactly, like RAGCache++'s oracle (table 9) without its k! permutations.

use foreword_ordering::policy::PolicyKind;

/// A configuration of the gateway in front of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    /// The retriever's order, on an engine that reuses nothing.
    NoCache,
    /// The gateway, with this policy.
    Gateway {
        policy: PolicyKind,
        /// True if the gateway writes the order hint, which tells the model the retriever's order.
        hint: bool,
    },
}

impl Arm {
    /// The retriever's order, with which all arms are compared.
    pub(super) const RETRIEVAL: Self = Self::Gateway {
        policy: PolicyKind::Retrieval,
        hint: false,
    };

    /// The gateway as it ships: policy `foresight`, with the order hint.
    pub(super) const SHIPPED: Self = Self::Gateway {
        policy: PolicyKind::Foresight,
        hint: true,
    };

    /// RAGCache++'s order by its greedy search (section 3), without a hint.
    pub(super) const GREEDY: Self = Self::Gateway {
        policy: PolicyKind::Greedy,
        hint: false,
    };

    /// The arms of sweeps: no cache, the paper's two orders, and the gateway's defaults.
    pub(super) const FEW: [Self; 4] = [Self::NoCache, Self::RETRIEVAL, Self::GREEDY, Self::SHIPPED];

    /// The arms whose difference from retrieval order the table of sweeps has.
    pub(super) const AGAINST_RETRIEVAL: [Self; 2] = [Self::GREEDY, Self::SHIPPED];

    /// Returns all arms, in the order of tables. Excludes retrieval order with a hint, which the gateway never writes.
    pub(super) fn all() -> Vec<Self> {
        let moving = [
            PolicyKind::Random,
            PolicyKind::Sorted,
            PolicyKind::Recency,
            PolicyKind::Greedy,
            PolicyKind::Longest,
            PolicyKind::Foresight,
        ];
        let moving = moving
            .into_iter()
            .flat_map(|policy| [false, true].map(|hint| Self::Gateway { policy, hint }));
        [Self::NoCache, Self::RETRIEVAL]
            .into_iter()
            .chain(moving)
            .collect()
    }

    /// Returns the arm's name.
    pub(super) fn name(self) -> String {
        match self {
            Self::NoCache => "none".to_owned(),
            Self::Gateway { policy, hint } => {
                format!("{}{}", policy.name(), if hint { "+hint" } else { "" })
            }
        }
    }

    /// Returns the arm of that name, or a message with all names.
    pub(super) fn by_name(name: &str) -> Result<Self, String> {
        let all = Self::all();
        let found = all.iter().find(|arm| arm.name() == name);
        found.copied().ok_or_else(|| {
            let names: Vec<String> = all.iter().map(|arm| arm.name()).collect();
            format!("it must be one of {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_are_known_by_their_names() {
        let all = Arm::all();
        assert_eq!(all.len(), 14);
        for arm in &all {
            assert_eq!(Arm::by_name(&arm.name()), Ok(*arm));
        }
        assert!(Arm::FEW.iter().all(|arm| all.contains(arm)));
        assert!(Arm::by_name("retrieval+hint").is_err());
    }
}
