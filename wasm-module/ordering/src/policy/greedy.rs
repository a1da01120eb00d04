//! RAGCache++ Algorithm 1: in the knowledge tree (the sequences of documents believed to be cached), steps from node to
//! node, always to the child with the best-ranked candidate, until no child is a candidate.

use super::{Order, Policy, Start, followed_by_rank};
use crate::document::Candidate;

/// The policy `greedy` (RAGCache++ Algorithm 1): follows the best-ranked candidate that is believed to be cached after
/// the documents before it. It takes at most O(k²) look-ups in the knowledge tree for k candidates and does not look
/// ahead: a well-ranked document with nothing cached after it hides a longer cached sequence.
pub(super) struct Greedy;

impl Policy for Greedy {
    fn order(&mut self, candidates: &[Candidate<'_>], start: Start<'_>) -> Order {
        let mut path = Order::new();
        let mut at = start.node;
        // A path contains a document once, so no document is placed twice.
        while let Some((rank, child)) = at.and_then(|node| {
            (0_u16..)
                .zip(candidates)
                .find_map(|(rank, candidate)| Some((rank, start.tree.child(node, candidate.id)?)))
        }) {
            path.push(rank);
            at = Some(child);
        }
        followed_by_rank(path, candidates.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::ordered;

    #[test]
    fn follows_the_best_ranked_branch_then_rank() {
        assert_eq!(
            ordered(&mut Greedy, &[&[4, 1], &[2, 3]], &[1, 2, 3, 4]),
            [2, 3, 1, 4]
        );
    }

    #[test]
    fn does_not_look_ahead() {
        assert_eq!(
            ordered(&mut Greedy, &[&[1, 9], &[2, 3, 4]], &[1, 2, 3, 4]),
            [1, 2, 3, 4]
        );
    }
}
