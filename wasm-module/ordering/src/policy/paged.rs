//! A policy for engines whose cache has large blocks (528 to 8,320 tokens for hybrid models). A match shorter than a
//! block is no match, so nothing is moved for it.

#[cfg(feature = "history")]
use super::SentDocuments;
use super::{Order, Policy, Start, match_of};
use crate::document::{Candidate, Fingerprint};
use crate::tree::{Bounds, KnowledgeTree};

/// Asks another policy; if the match is shorter than a block, it asks again without the tree.
pub(super) struct Paged {
    policy: Box<dyn Policy>,
    block_tokens: u64,
    /// A tree that holds nothing.
    empty: KnowledgeTree,
}

impl Paged {
    /// Returns `policy` for blocks of `block_tokens` tokens; `policy` itself if any match counts.
    pub(super) fn of(policy: Box<dyn Policy>, block_tokens: u32) -> Box<dyn Policy> {
        if block_tokens <= 1 {
            return policy;
        }
        let bounds = Bounds {
            max_nodes: 1,
            max_tokens: None,
        };
        Box::new(Self {
            policy,
            block_tokens: block_tokens.into(),
            empty: KnowledgeTree::new(bounds),
        })
    }
}

impl Policy for Paged {
    fn order(&mut self, candidates: &[Candidate<'_>], start: Start<'_>) -> Order {
        let order = self.policy.order(candidates, start);
        let found = match_of(candidates, &order, start);
        if found.tokens == 0 || found.tokens >= self.block_tokens {
            return order;
        }
        self.policy.order(candidates, start.in_empty(&self.empty))
    }

    fn remember(&mut self, ranked: &[Fingerprint], order: &[u16]) {
        self.policy.remember(ranked, order);
    }

    #[cfg(feature = "history")]
    fn sent(&mut self, runs: &[SentDocuments<'_>]) {
        self.policy.sent(runs);
    }

    #[cfg(feature = "history")]
    fn evicted(&mut self, tokens: u64) {
        self.policy.evicted(tokens);
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::tests::ordered;
    use crate::policy::{PolicyKind, PolicyOptions};

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
