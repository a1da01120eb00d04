//! Finds the sequence of candidates with the most cached tokens (the heaviest path) exactly, by walking the knowledge
//! tree (the sequences of documents believed to be cached) instead of trying permutations.
//!
//! Only paths on which every document is a candidate are walked, and there are few of those. The walk is still bounded:
//! after [`MAX_VISITS`] nodes it takes the best path found so far. It starts with the best-ranked branches, so even
//! then the result is no worse than that of a bounded greedy search with look-ahead.

use super::{Displacement, Lookup, Order, Policy, Start, followed_by_rank};
use crate::document::Candidate;
use crate::sort::sort_by_key;
use crate::tree::{KnowledgeTree, NodeId};
use smallvec::SmallVec;

/// The policy `longest`: sends first the sequence of candidates with the most cached tokens, then the other documents
/// in rank order (best first). On a tie, it takes the sequence whose first documents rank better.
pub(super) struct Longest;

/// The maximum number of nodes of the knowledge tree (documents believed to be cached) walked for one request, which
/// takes 50 to 80 µs natively. In the bench `policies`, four times as many change no result.
pub(super) const MAX_VISITS: u32 = 2048;

/// A node of the knowledge tree (documents believed to be cached) that is still to be walked. The sequence of documents
/// up to it is the first `depth` documents of the walk's current path, followed by the candidate with this `rank`.
struct Visit {
    node: NodeId,
    rank: u16,
    depth: u16,
    /// Estimated tokens of the documents from the start of the walk up to and including this node's document.
    tokens: u64,
}

impl Policy for Longest {
    fn order(&mut self, candidates: &[Candidate<'_>], start: Start<'_>) -> Order {
        let head = heaviest_path(candidates, start, Displacement::ANY);
        followed_by_rank(head, candidates.len())
    }
}

/// Returns the ranks of the sequence of candidates with the most cached tokens when sent from `start` on. Only
/// sequences that move no document farther than `allowed` count. Empty if no candidate is cached there.
pub(super) fn heaviest_path(
    candidates: &[Candidate<'_>],
    start: Start<'_>,
    allowed: Displacement,
) -> Order {
    let mut best = Order::new();
    let (tree, Some(root)) = (start.tree, start.node) else {
        return best;
    };
    let lookup = Lookup::new(candidates);
    let all: u64 = (candidates.iter())
        .map(|candidate| u64::from(candidate.tokens))
        .sum();
    let mut most = 0;
    let mut path = Order::new();
    let mut stack: SmallVec<[Visit; 32]> = SmallVec::new();
    push_children(&mut stack, &lookup, candidates, tree, root, 0, 0);
    for _ in 0..MAX_VISITS {
        let Some(visit) = stack.pop() else { break };
        path.truncate(usize::from(visit.depth));
        if !allowed.next(&path, visit.rank) {
            continue;
        }
        path.push(visit.rank);
        if visit.tokens > most {
            most = visit.tokens;
            best.clone_from(&path);
            if most == all {
                break;
            }
        }
        push_children(
            &mut stack,
            &lookup,
            candidates,
            tree,
            visit.node,
            visit.depth + 1,
            visit.tokens,
        );
    }
    best
}

/// Pushes those children of `node` whose documents are candidates onto `stack`, the best-ranked one last, so that it is
/// walked first. `depth` is the number of documents from the start of the walk up to `node`, and `tokens` the sum of
/// their tokens.
fn push_children(
    stack: &mut SmallVec<[Visit; 32]>,
    lookup: &Lookup,
    candidates: &[Candidate<'_>],
    tree: &KnowledgeTree,
    node: NodeId,
    depth: u16,
    tokens: u64,
) {
    let first = stack.len();
    lookup.matching_children(tree, node, |rank, child| {
        let own = candidates
            .get(usize::from(rank))
            .map_or(0, |candidate| u64::from(candidate.tokens));
        stack.push(Visit {
            node: child,
            rank,
            depth,
            tokens: tokens + own,
        });
    });
    if let Some(added) = stack.get_mut(first..) {
        sort_by_key(added, |visit| std::cmp::Reverse(visit.rank));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::match_of;
    use crate::policy::tests::{SCOPE, ordered, tree_of};

    #[test]
    fn sees_past_a_short_branch_that_ranks_better() {
        assert_eq!(
            ordered(&mut Longest, &[&[1, 9], &[2, 3, 4]], &[1, 2, 3, 4]),
            [2, 3, 4, 1]
        );
    }

    #[test]
    fn weighs_tokens_not_documents() {
        // Documents 1 and 2 have 11 and 12 tokens, document 50 has 60.
        assert_eq!(
            ordered(&mut Longest, &[&[1, 2], &[50]], &[1, 2, 50]),
            [50, 1, 2]
        );
    }

    #[test]
    fn among_equal_paths_takes_the_better_ranked() {
        assert_eq!(ordered(&mut Longest, &[&[3, 4], &[4, 3]], &[4, 3]), [4, 3]);
        assert_eq!(ordered(&mut Longest, &[&[3, 4], &[4, 3]], &[3, 4]), [3, 4]);
    }

    #[test]
    fn a_walk_over_the_bound_still_finds_a_path() {
        // All ordered pairs and triples of 40 documents: 60,000 paths, all of them candidates.
        let mut paths = Vec::new();
        for a in 0..40_u64 {
            for b in (0..40).filter(|&b| b != a) {
                paths.push([a, b, (a + b + 1) % 40]);
            }
        }
        paths.retain(|[a, b, c]| c != a && c != b);
        let mut tree = tree_of(&paths.iter().map(<[u64; 3]>::as_slice).collect::<Vec<_>>());
        let candidates: Vec<_> = (0..40)
            .map(|d| Candidate {
                id: tree.intern(crate::document::Fingerprint(d)),
                fingerprint: crate::document::Fingerprint(d),
                label: "",
                tokens: 10,
            })
            .collect();
        let order = Longest.order(&candidates, Start::behind(&tree, SCOPE));
        assert_eq!(
            match_of(&candidates, &order, Start::behind(&tree, SCOPE)).documents,
            3
        );
    }
}
