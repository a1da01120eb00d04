//! One order of documents for all requests, independent of the cache (RAGCache++'s baseline `APC+Sorted`).
//!
//! Matches are many but short: any document that sorts early and is not cached ends the match (section 4.3).

use super::{Order, Policy, Start, ranks};
use crate::document::Candidate;
use crate::sort::sort_by_key;

/// The policy `sorted`: sorts documents by the ids that clients give them; those without an id come last, in rank order
/// (the retriever's best first).
pub(super) struct Sorted;

impl Policy for Sorted {
    fn order(&mut self, candidates: &[Candidate<'_>], _: Start<'_>) -> Order {
        let label = |&rank: &u16| {
            let label = candidates
                .get(usize::from(rank))
                .map_or("", |candidate| candidate.label);
            (label.is_empty(), label, rank)
        };
        let mut order = ranks(candidates.len());
        sort_by_key(&mut order, label);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::ordered;

    #[test]
    fn sorts_by_label_whatever_is_cached() {
        // Labels there are in descending order of the documents' numbers.
        assert_eq!(ordered(&mut Sorted, &[&[1, 2, 3]], &[2, 1, 3]), [3, 2, 1]);
    }
}
