//! RAGBoost's context index without the engine: it grows with every request, and believes that what was sent is cached
//! until newer contexts take its place. This is `context-index` where neither a history nor evictions are asked for, and
//! the only one in a module for pages; the module `context_index` describes the search and the index in full.
//!
//! It takes all requests for one scope and a chat's later turns for contexts of their own.

use super::context_tree::{ContextTree, NodeData, NodeId, ROOT};
use super::{Order, Policy, Start, fingerprints, followed_by_rank};
use crate::document::{Candidate, Fingerprint};
use crate::sort::sort_by_key;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// RAGBoost's context index: a tree of the document sets of recent requests.
#[derive(Debug)]
pub(super) struct PlainIndex {
    tree: ContextTree<NodeKind>,
    /// The leaves, oldest first.
    leaves: VecDeque<NodeId>,
    max_contexts: u32,
}

/// What a node of the index is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeKind {
    /// The root, or what the contexts below it share.
    Shared,
    Context,
}

impl NodeData for NodeKind {
    fn is_context(&self) -> bool {
        *self == Self::Context
    }
}

impl PlainIndex {
    /// Returns an empty index of at most `max_contexts` contexts (at least 1).
    #[must_use]
    pub(super) fn new(max_contexts: u32) -> Self {
        Self {
            tree: ContextTree::new(NodeKind::Shared),
            leaves: VecDeque::new(),
            max_contexts: max_contexts.max(1),
        }
    }

    /// Adds the context of `request` where the search leads. O(documents).
    fn add(&mut self, request: &[Fingerprint]) -> NodeId {
        let place = self.tree.find(ROOT, request);
        let parent = match place.split {
            None => place.node,
            Some(child) => (self.tree).split(
                place.node,
                child,
                |document| request.contains(document),
                |_, _| NodeKind::Shared,
            ),
        };
        let mut placed: SmallVec<[u16; 16]> = place.path;
        sort_by_key(&mut placed, |rank| *rank);
        let rest = (0..)
            .zip(request)
            .filter(|(rank, _)| placed.binary_search(rank).is_err())
            .map(|(_, &document)| document)
            .collect();
        let leaf = self.tree.attach(parent, rest, NodeKind::Context);
        self.leaves.push_back(leaf);
        while self.leaves.len() > self.max_contexts as usize {
            let Some(oldest) = self.leaves.pop_front() else {
                break;
            };
            self.remove(oldest);
        }
        leaf
    }

    /// Removes a leaf, and every inner node that is left without children.
    fn remove(&mut self, leaf: NodeId) {
        let mut at = leaf;
        while at != ROOT && self.tree.is_childless(at) {
            at = self.tree.remove(at);
        }
    }
}

impl Policy for PlainIndex {
    fn order(&mut self, candidates: &[Candidate<'_>], _: Start<'_>) -> Order {
        let found = self.tree.find(ROOT, &fingerprints(candidates));
        followed_by_rank(found.path, candidates.len())
    }

    fn remember(&mut self, ranked: &[Fingerprint], _: &[u16]) {
        self.add(ranked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prints(documents: &[u64]) -> Vec<Fingerprint> {
        documents.iter().copied().map(Fingerprint).collect()
    }

    /// The order of a request, which is then added.
    fn send(index: &mut PlainIndex, documents: &[u64]) -> Vec<u64> {
        let request = prints(documents);
        let order = followed_by_rank(index.tree.find(ROOT, &request).path, request.len());
        index.add(&request);
        order.iter().map(|&rank| documents[rank as usize]).collect()
    }

    #[test]
    fn new_contexts_inherit_what_they_share() {
        let mut index = PlainIndex::new(10);
        assert_eq!(send(&mut index, &[2, 1, 3]), [2, 1, 3]);
        assert_eq!(send(&mut index, &[6, 1, 2]), [2, 1, 6]);
        assert_eq!(send(&mut index, &[4, 1, 2]), [2, 1, 4]);
        assert_eq!(send(&mut index, &[5, 7, 8]), [5, 7, 8]);
        // An inner node that holds more than the request is split.
        assert_eq!(send(&mut index, &[9, 1]), [1, 9]);
        assert_eq!(send(&mut index, &[3, 1, 2]), [1, 2, 3]);
    }

    #[test]
    fn the_oldest_context_goes_first_and_its_inner_nodes_with_it() {
        let mut index = PlainIndex::new(2);
        for documents in [[1, 2, 3], [1, 2, 4], [5, 6, 7], [5, 6, 8]] {
            send(&mut index, &documents);
        }
        assert_eq!(index.leaves.len(), 2);
        assert!(index.tree.find(ROOT, &prints(&[1, 2])).path.is_empty());
        assert_eq!(
            index.tree.find(ROOT, &prints(&[6, 5])).path.as_slice(),
            [1, 0]
        );
        while let Some(leaf) = index.leaves.pop_front() {
            index.remove(leaf);
        }
        assert!(index.tree.has_no_documents());
        assert_eq!(index.tree.nodes().count(), 1);
    }
}
