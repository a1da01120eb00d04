//! Rank-aware placement: the retriever's best documents (the favoured ones) get a fixed place where the model reads
//! well, and a policy orders the others for reuse. With [`Place::Auto`], all documents stay in rank order as long as
//! that is not expected to cost reuse.

use super::Order;
use serde::{Deserialize, Serialize};

crate::named! {
    /// Where the favoured documents, which are the retriever's best ones, are placed among the others.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Place {
        /// No document is favoured (given a fixed place as one of the retriever's best): the policy orders all
        /// documents.
        Free = "free",
        /// The favoured documents (the retriever's best) follow all others, the best one last: next to the question, if
        /// it follows the documents.
        Last = "last",
        /// The favoured documents (the retriever's best) precede all others, the best one first.
        First = "first",
        /// The favoured documents (the retriever's best) alternate between both ends of the order: the best one last,
        /// the second best first, the third best second to last, and so on.
        Ends = "ends",
        /// As `Last`, except that all documents stay in rank order (the best first) if (1) that order begins with some
        /// cached tokens, and with at least as many as the order of `Last`; or (2) recent requests of the tenant and
        /// model have more documents at the beginning in common in rank order than in the order of `Last`.
        Auto = "auto",
    }
}

impl Place {
    /// Returns the number of favoured documents (the retriever's best) from which on this place differs from the
    /// others: two for [`Place::Ends`], one at each end, and one for any other place.
    #[must_use]
    pub fn least_documents(self) -> u16 {
        1 + u16::from(self == Self::Ends)
    }
}

/// The number of favoured documents (the retriever's best), and where they are placed among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// Where the favoured documents (the retriever's best) are placed.
    pub place: Place,
    /// Number of documents that are favoured, the retriever's best ones.
    pub documents: u16,
}

impl Placement {
    /// The placement in which no document is favoured (given a fixed place as one of the retriever's best): the policy
    /// orders all of them.
    pub const FREE: Self = Self {
        place: Place::Free,
        documents: 0,
    };

    /// The placement in which all documents count as favoured (the retriever's best) and so stay in rank order.
    pub(super) const RANKS: Self = Self::of(Place::First, u16::MAX);

    /// The placements of the retriever's best documents that analysis tools compare, from the one that leaves the most
    /// documents to the policy to the one that leaves the fewest.
    pub const COMPARED: [Self; 9] = [
        Self::FREE,
        Self::of(Place::Last, 1),
        Self::of(Place::First, 1),
        Self::of(Place::Last, 2),
        Self::of(Place::First, 2),
        Self::of(Place::Ends, 2),
        Self::of(Place::Last, 3),
        Self::of(Place::First, 3),
        Self::of(Place::Ends, 3),
    ];

    const fn of(place: Place, documents: u16) -> Self {
        Self { place, documents }
    }

    /// Returns whether the placement favours no document (gives none a fixed place), so that the policy orders all
    /// documents.
    #[must_use]
    pub fn is_free(self) -> bool {
        self.place == Place::Free || self.documents == 0
    }

    /// Divides `count` documents, given by rank, into favoured ones (the best) and the others, which a policy orders;
    /// [`Place::Auto`] counts as `Last`.
    #[must_use]
    pub fn split(self, count: usize) -> Split {
        let count = u16::try_from(count).unwrap_or(u16::MAX);
        let favoured = match self.place {
            Place::Free => 0,
            Place::Last | Place::First | Place::Ends | Place::Auto => self.documents.min(count),
        };
        let is_leading = |rank: &u16| match self.place {
            Place::Free | Place::Last | Place::Auto => false,
            Place::First => true,
            Place::Ends => rank % 2 == 1,
        };
        Split {
            leading: (0..favoured).filter(is_leading).collect(),
            shared: favoured,
            trailing: (0..favoured)
                .rev()
                .filter(|rank| !is_leading(rank))
                .collect(),
        }
    }
}

/// The documents of one request, given by rank and divided into favoured ones (the retriever's best) and the others,
/// which a policy orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The ranks of the favoured documents (the retriever's best) that precede the others, in the order sent.
    pub leading: Order,
    /// Number of favoured documents (the retriever's best). It is also the rank of the best document that is not
    /// favoured: a policy orders the documents from this rank on.
    pub shared: u16,
    /// The ranks of the favoured documents (the retriever's best) that follow the others, in the order sent.
    pub trailing: Order,
}

impl Split {
    /// Returns the order of all documents, as ranks. `shared` is the policy's order of those that are not favoured (not
    /// among the retriever's best), in which 0 stands for the best of them.
    #[must_use]
    pub fn with(self, shared: &[u16]) -> Order {
        let mut order = self.leading;
        order.extend(shared.iter().map(|rank| rank.saturating_add(self.shared)));
        order.extend(self.trailing);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::{SCOPE, candidates, ordered, tree_of};
    use crate::policy::{Policy, PolicyKind, PolicyOptions, Start};
    use proptest::prelude::*;

    fn placed(kind: PolicyKind, place: Place, documents: u16) -> Box<dyn Policy> {
        kind.build(&PolicyOptions {
            placement: Placement { place, documents },
            ..PolicyOptions::default()
        })
    }

    #[test]
    fn the_best_keep_their_place_and_the_others_follow_the_tree() {
        let order = |place, documents, paths: &[&[u64]]| {
            let mut policy = placed(PolicyKind::Longest, place, documents);
            ordered(policy.as_mut(), paths, &[1, 2, 3, 4, 5])
        };
        assert_eq!(order(Place::Last, 1, &[&[5, 4]]), [5, 4, 2, 3, 1]);
        assert_eq!(order(Place::Last, 2, &[&[5, 4]]), [5, 4, 3, 2, 1]);
        assert_eq!(order(Place::First, 1, &[&[1, 5, 4]]), [1, 5, 4, 2, 3]);
        assert_eq!(order(Place::Ends, 2, &[&[2, 5, 4]]), [2, 5, 4, 3, 1]);
        assert_eq!(order(Place::Ends, 4, &[&[5]]), [2, 4, 5, 3, 1]);
        assert_eq!(order(Place::Free, 3, &[&[1, 5, 4]]), [1, 5, 4, 2, 3]);
        // A cached document before one that must lead is of no use.
        assert_eq!(order(Place::First, 1, &[&[5, 4]]), [1, 2, 3, 4, 5]);
        // The favoured document is matched if the path continues with it.
        assert_eq!(order(Place::Last, 1, &[&[5, 4, 3, 2, 1]]), [5, 4, 3, 2, 1]);
    }

    #[test]
    fn nothing_is_favoured_where_ranks_are_unknown() {
        let mut tree = tree_of(&[&[1, 3]]);
        let candidates = candidates(&mut tree, &[1, 2, 3]);
        let start = Start::behind(&tree, SCOPE);
        let mut policy = placed(PolicyKind::Longest, Place::Last, 1);
        assert_eq!(policy.order(&candidates, start)[..], [1, 2, 0]);
        assert_eq!(policy.order(&candidates, start.unranked())[..], [0, 2, 1]);
    }

    #[test]
    fn the_retrievers_order_stays_whatever_is_favoured() {
        let mut policy = placed(PolicyKind::Retrieval, Place::Last, 1);
        assert_eq!(ordered(policy.as_mut(), &[], &[1, 2, 3]), [1, 2, 3]);
    }

    proptest! {
        #[test]
        fn a_split_is_a_permutation_with_the_best_in_their_places(
            count in 0..40_usize,
            documents in 0..10_u16,
            place in prop::sample::select(&Place::ALL[..]),
        ) {
            let split = Placement { place, documents }.split(count);
            let shared: Vec<u16> = (0..(count as u16 - split.shared)).rev().collect();
            let order = split.with(&shared);
            let mut sorted = order.to_vec();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..count as u16).collect::<Vec<_>>());
            if documents > 0 && count > 0 {
                match place {
                    Place::Last | Place::Ends | Place::Auto => prop_assert_eq!(order.last(), Some(&0)),
                    Place::First => prop_assert_eq!(order.first(), Some(&0)),
                    Place::Free => prop_assert_eq!(order[0], count as u16 - 1),
                }
                if place == Place::Ends && documents > 1 && count > 1 {
                    prop_assert_eq!(order[0], 1);
                }
            }
        }
    }
}
