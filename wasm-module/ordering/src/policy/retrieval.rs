//! The retriever's own order: a baseline, and the way to run the filter without reordering anything.

use super::{Order, Placement, Policy, Start, ranks};
use crate::document::Candidate;

/// The policy `retrieval`: keeps the documents in rank order, as the retriever returned them.
pub(super) struct Retrieval;

impl Policy for Retrieval {
    fn order(&mut self, candidates: &[Candidate<'_>], _: Start<'_>) -> Order {
        ranks(candidates.len())
    }

    fn placement(&self) -> Placement {
        Placement::RANKS
    }
}
