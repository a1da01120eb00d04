//! The most recently seen documents first (RAGCache++'s baseline `APC+Recency`, Table 9).

use super::{Order, Policy, Start, ranks};
use crate::document::Candidate;
use crate::sort::sort_by_key;
use std::cmp::Reverse;

/// The policy `recency`: sorts documents by their last use in the knowledge tree (the documents believed to be cached),
/// the most recent first, then by rank; documents that are not in the tree come last.
pub(super) struct Recency;

impl Policy for Recency {
    fn order(&mut self, candidates: &[Candidate<'_>], start: Start<'_>) -> Order {
        let mut order = ranks(candidates.len());
        sort_by_key(&mut order, |&rank| {
            let candidate = candidates.get(usize::from(rank));
            let last_used = candidate.map_or(0, |candidate| start.tree.last_used(candidate.id));
            (Reverse(last_used), rank)
        });
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::ordered;

    #[test]
    fn recent_documents_come_first_and_unseen_ones_last() {
        assert_eq!(
            ordered(&mut Recency, &[&[1, 2], &[3]], &[9, 2, 1, 3]),
            [3, 2, 1, 9]
        );
    }
}
