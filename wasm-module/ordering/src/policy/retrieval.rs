//! The retriever's own order: a baseline, and the way to run the filter without reordering anything.

use super::{Order, Policy, ranks};
use crate::document::Candidate;
use crate::tree::{KnowledgeTree, Scope};

/// Leaves the documents as they came.
pub(super) struct Retrieval;

impl Policy for Retrieval {
    fn order(&mut self, candidates: &[Candidate<'_>], _: &KnowledgeTree, _: Scope) -> Order {
        ranks(candidates.len())
    }
}
