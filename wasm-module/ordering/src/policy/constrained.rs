//! Wraps another policy: places the retriever's best documents as configured and lets that policy order the others. A
//! match (the documents at the beginning of an order that are believed to be cached) with fewer tokens than a block of
//! the engine's cache counts as none. Blocks have 528 to 8,320 tokens for hybrid models.

use super::stability::RankStability;
use super::{Order, Place, Placement, Policy, SentDocuments, Start, match_of, ranks};
use crate::document::{Candidate, Fingerprint};
use crate::tree::{Bounds, KnowledgeTree};

/// A policy that places the favoured documents (the retriever's best) and lets another policy order the others. If the
/// resulting order begins with fewer cached tokens than a block of the engine's cache has, the other policy is called
/// again as if nothing were cached.
pub(super) struct Constrained {
    policy: Box<dyn Policy>,
    placement: Placement,
    /// For [`Place::Auto`], the measure of whether documents should stay in rank order (best first); `None` for any
    /// other place.
    stability: Option<RankStability>,
    block_tokens: u64,
    /// A knowledge tree without nodes, for ordering as if nothing were cached.
    empty: KnowledgeTree,
}

impl Constrained {
    /// Returns `policy` with two rules added: favoured documents (the retriever's best) are placed as `placement` says,
    /// and the cached tokens at an order's beginning only count if they are at least `block_tokens` (a block of the
    /// engine's cache). Returns `policy` itself if no document is favoured and any number of tokens counts.
    pub(super) fn of(
        policy: Box<dyn Policy>,
        placement: Placement,
        block_tokens: u32,
    ) -> Box<dyn Policy> {
        if placement.is_free() && block_tokens <= 1 {
            return policy;
        }
        let bounds = Bounds {
            max_nodes: 1,
            max_tokens: None,
        };
        Box::new(Self {
            policy,
            placement,
            stability: (placement.place == Place::Auto).then(RankStability::default),
            block_tokens: block_tokens.into(),
            empty: KnowledgeTree::new(bounds),
        })
    }
}

impl Constrained {
    fn ranks_are_stable(&self) -> bool {
        (self.stability.as_ref()).is_some_and(RankStability::is_stable)
    }
}

/// Returns an order of all candidates: the favoured documents (the retriever's best) in their places, and the others as
/// `policy` orders them after those favoured ones that come first. If the client did not send the candidates best
/// first, none is favoured, and `policy` orders all.
fn placed(
    policy: &mut dyn Policy,
    placement: Placement,
    candidates: &[Candidate<'_>],
    start: Start<'_>,
) -> Order {
    if !start.is_ranked() {
        return policy.order(candidates, start);
    }
    let split = placement.split(candidates.len());
    let leading = split.leading.iter();
    let leading = leading.filter_map(|&rank| candidates.get(usize::from(rank)));
    let at = leading.fold(start, |at, candidate| at.after(candidate.id));
    let shared = candidates.get(usize::from(split.shared)..);
    let order = policy.order(shared.unwrap_or_default(), at);
    split.with(&order)
}

impl Policy for Constrained {
    fn order(&mut self, candidates: &[Candidate<'_>], start: Start<'_>) -> Order {
        let is_auto = self.stability.is_some() && start.is_ranked();
        if is_auto && self.ranks_are_stable() {
            return ranks(candidates.len());
        }
        let placement = self.placement;
        let policy = &mut *self.policy;
        let mut order = placed(policy, placement, candidates, start);
        if is_auto {
            let unmoved = ranks(candidates.len());
            let matched = match_of(candidates, &unmoved, start).tokens;
            if matched > 0 && matched >= match_of(candidates, &order, start).tokens {
                order = unmoved;
            }
        }
        if self.block_tokens <= 1 {
            return order;
        }
        let found = match_of(candidates, &order, start);
        if found.tokens == 0 || found.tokens >= self.block_tokens {
            return order;
        }
        placed(policy, placement, candidates, start.in_empty(&self.empty))
    }

    /// Passes all documents to the wrapped policy, favoured ones (the retriever's best) too, since documents that are
    /// favoured in one request are ordered by that policy in others.
    fn remember(&mut self, ranked: &[Fingerprint], order: &[u16]) {
        if let Some(stability) = &mut self.stability {
            stability.observe(ranked, self.placement.documents);
        }
        self.policy.remember(ranked, order);
    }

    fn remember_unranked(&mut self, documents: &[Fingerprint], order: &[u16]) {
        self.policy.remember(documents, order);
    }

    fn sent(&mut self, runs: &[SentDocuments<'_>]) {
        self.policy.sent(runs);
    }

    fn placement(&self) -> Placement {
        match self.placement {
            _ if self.ranks_are_stable() => Placement::RANKS,
            Placement {
                place: Place::Auto,
                documents,
            } => Placement {
                place: Place::Last,
                documents,
            },
            fixed => fixed,
        }
    }

    fn evicted(&mut self, tokens: u64) {
        self.policy.evicted(tokens);
    }
}

#[cfg(test)]
mod tests {
    use crate::document::Fingerprint;
    use crate::policy::tests::ordered;
    use crate::policy::{Place, Placement, Policy, PolicyKind, PolicyOptions};

    fn automatic() -> Box<dyn Policy> {
        PolicyKind::Longest.build(&PolicyOptions {
            placement: Placement {
                place: Place::Auto,
                documents: 1,
            },
            ..PolicyOptions::default()
        })
    }

    #[test]
    fn only_ranked_documents_decide_the_automatic_place() {
        let placed = |is_ranked: bool| {
            let mut policy = automatic();
            for at in 0..200 {
                let documents = [7, 8, 100 + at, 500 + at].map(Fingerprint);
                match is_ranked {
                    true => policy.remember(&documents, &[1, 2, 3, 0]),
                    false => policy.remember_unranked(&documents, &[0, 1, 2, 3]),
                }
            }
            policy.placement().place
        };
        assert_eq!([true, false].map(placed), [Place::First, Place::Last]);
    }

    #[test]
    fn automatic_placement_moves_documents_only_for_a_longer_match() {
        let order = |cached: &[&[u64]]| {
            let mut policy = automatic();
            ordered(policy.as_mut(), cached, &[1, 2, 3, 4])
        };
        assert_eq!(order(&[]), [2, 3, 4, 1]);
        assert_eq!(order(&[&[4]]), [4, 2, 3, 1]);
        assert_eq!(order(&[&[1, 2, 3], &[4, 2]]), [1, 2, 3, 4]);
        assert_eq!(order(&[&[1], &[4, 3]]), [4, 3, 2, 1]);
    }

    #[test]
    fn nothing_is_moved_for_a_match_that_is_shorter_than_a_block() {
        for kind in [
            PolicyKind::Greedy,
            PolicyKind::Longest,
            PolicyKind::Foresight,
        ] {
            let with = |block_tokens| {
                let options = PolicyOptions {
                    block_tokens,
                    ..PolicyOptions::default()
                };
                let mut policy = kind.build(&options);
                ordered(policy.as_mut(), &[&[3, 2]], &[1, 2, 3])
            };
            assert_eq!(with(1), [3, 2, 1], "{}", kind.name());
            assert_eq!(with(100_000), [1, 2, 3], "{}", kind.name());
        }
    }
}
