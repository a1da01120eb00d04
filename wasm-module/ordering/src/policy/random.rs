//! A random order of documents: a baseline for ordering without any knowledge of the cache.

use super::{Order, Policy, Start, ranks};
use crate::document::Candidate;
use crate::random::Random as Numbers;

/// The policy `random`: every order of the documents is equally likely; the configured seed determines the sequence of
/// orders.
pub(super) struct Random(Numbers);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(Numbers::new(seed))
    }
}

impl Policy for Random {
    fn order(&mut self, candidates: &[Candidate<'_>], _: Start<'_>) -> Order {
        let mut order = ranks(candidates.len());
        self.0.shuffle(&mut order);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::ordered;

    #[test]
    fn a_seed_fixes_the_orders_and_another_seed_gives_others() {
        let documents: Vec<u64> = (0..20).collect();
        let with = |seed| ordered(&mut Random::new(seed), &[], &documents);
        assert_eq!(with(1), with(1));
        assert_ne!(with(1), with(2));
    }
}
