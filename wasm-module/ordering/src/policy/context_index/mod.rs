//! RAGBoost's context index (sections 4 and 5.1): a tree of contexts, that is, of requests' document sets. An inner
//! node has the documents that the contexts below it share.
//!
//! ```text
//!   {2 1 3} {2 6 1} {4 1 0}  ──▶   {1} ─┬─ +{2} ─┬─ +{3}     a node holds what it adds to its parent;
//!                                       │        └─ +{6}     a context's order is its path from the root,
//!                                       └─ +{4 0}            a new one's is the path that it matches, then rank
//! ```
//!
//! The tree is built at once by clustering ([`ContextIndex::build`]), or grows with every request. The search for a
//! request descends from the root of its scope (the hash of the prompt before the documents) to the child at the least
//! distance (equation 1), as long as that child has only documents of the request; the request becomes a leaf there. If
//! it shares more documents with a child, a new inner node is inserted above both. Children are found by document, so a
//! step takes time for each child that shares a document with the request, not for every child. A request that shares
//! nothing with recorded contexts is ordered by the history, an index built from a log
//! ([`ContextIndex::with_history`]).
//!
//! With `forget_evicted`, `account` removes contexts that the engine evicted. By default a context stays until newer
//! ones replace it: in a small cache, a removed context returns in another order, which halves the reuse.
//!
//! It departs from the paper in five ways, of which [`Rules`] can undo the first two. Inner nodes have shared documents
//! in the order in which the older context was sent, not sorted, so that its cached prefix stays usable. A search goes
//! on where all children are at the same distance. An inner node is split as a leaf is. Each scope has a root of its
//! own, since paths of different scopes share no KV state. A known context is found in O(1) by a hash of its documents
//! as sent, where the paper walks its search path.

mod account;
mod cluster;
pub mod history;
mod tree;

pub use tree::{NodeId, Rules};

use super::{Order, Policy, PolicyOptions, SentDocuments, Start, fingerprints, followed_by_rank};
use crate::document::{Candidate, Fingerprint};
use crate::hash::KeyedMap;
use crate::recency::Recency;
use crate::tree::Scope;
use std::sync::Arc;
use tree::{ContextTree, ROOT};

/// RAGBoost's context index: a tree of the document sets of recent requests (contexts), as a policy.
#[derive(Debug)]
pub struct ContextIndex {
    tree: ContextTree,
    /// The leaves of the tree, one for each context (document set of a request), sorted by last use, to find the least
    /// recently used one.
    recency: Recency,
    /// The leaf of each context (document set of a request), by the context's key: a hash of the prompt before it and of
    /// its documents as sent.
    leaves: KeyedMap<u64, NodeId>,
    /// For each scope (hash of the prompt before documents), the node above its contexts (document sets of requests), a
    /// child of the tree's root.
    scopes: KeyedMap<Scope, NodeId>,
    /// An inner node that has no children any more, while the engine still has some tokens of the documents that it
    /// adds cached; `None` if there is none.
    remnant: Option<NodeId>,
    /// The context index built from a log, which orders requests that share no document with contexts (document sets of
    /// requests) recorded here; `None` if none is configured.
    history: Option<Arc<ContextIndex>>,
    max_contexts: u32,
    /// True if contexts (document sets of requests) are removed when the engine evicts their documents.
    forgets: bool,
}

impl ContextIndex {
    /// Returns an empty index that keeps at most `max_contexts` contexts (document sets of requests), and at least 1,
    /// without a history.
    #[must_use]
    pub fn new(max_contexts: u32) -> Self {
        Self::by(Rules::default(), max_contexts)
    }

    fn by(rules: Rules, max_contexts: u32) -> Self {
        Self {
            tree: ContextTree::new(rules),
            recency: Recency::default(),
            leaves: KeyedMap::default(),
            scopes: KeyedMap::default(),
            remnant: None,
            history: None,
            max_contexts: max_contexts.max(1),
            forgets: false,
        }
    }

    /// Returns an empty index, configured by those of `options` that concern this policy.
    #[must_use]
    pub fn of(options: &PolicyOptions) -> Self {
        Self {
            forgets: options.forget_evicted,
            ..Self::by(options.context_index, options.max_contexts)
        }
    }

    /// Returns this index with `history`, an index built from a log. It orders requests that share no document with
    /// contexts (document sets of requests) recorded since.
    #[must_use]
    pub fn with_history(mut self, history: Arc<Self>) -> Self {
        self.history = (!history.is_empty()).then_some(history);
        self
    }

    /// Builds an index of `contexts`, document sets of requests, by hierarchical clustering according to `rules`. The documents of each are
    /// distinct and in rank order (best first). Returns the index and the leaf of each context. All contexts stay until
    /// more are added.
    #[must_use]
    pub fn build(contexts: &[Vec<Fingerprint>], rules: Rules) -> (Self, Vec<NodeId>) {
        let mut index = Self::by(rules, u32::try_from(contexts.len()).unwrap_or(u32::MAX));
        let leaves = cluster::build(&mut index, contexts);
        (index, leaves)
    }

    /// Returns the number of contexts (document sets of requests) in the index.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// Returns whether the index has no contexts (document sets of requests).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// Returns the documents that `node` and its ancestors add, in the order from the root; for a leaf, the documents
    /// of its context (the document set of a request).
    #[must_use]
    pub fn context(&self, node: NodeId) -> Vec<Fingerprint> {
        let path = self.path(node).into_iter().rev();
        path.filter_map(|node| self.tree.node(node))
            .flat_map(|node| node.added.iter().copied())
            .collect()
    }

    /// Returns the ids of `node` and its ancestors, from the node up to the tree's root.
    #[must_use]
    pub fn path(&self, node: NodeId) -> Vec<NodeId> {
        let mut path = vec![node];
        let mut at = node;
        while at != ROOT
            && let Some(node) = self.tree.node(at)
        {
            at = node.parent;
            path.push(at);
        }
        path
    }

    /// Returns the number of documents that the ancestors of `node` have together; 0 if the index does not have the
    /// node.
    #[must_use]
    pub fn inherited(&self, node: NodeId) -> usize {
        let node = self.tree.node(node);
        node.map_or(0, |node| node.documents as usize - node.added.len())
    }

    /// Returns the order in which to send the documents `request`, which are in rank order (best first). `scope` is the
    /// hash of the prompt before them.
    fn ordered(&self, scope: Scope, request: &[Fingerprint]) -> Order {
        let root = self.scopes.get(&scope);
        let mut path = root.map_or_else(Order::new, |root| self.tree.find(*root, request).path);
        if path.is_empty()
            && let Some(history) = &self.history
        {
            path = history.tree.find(ROOT, request).path;
        }
        followed_by_rank(path, request.len())
    }
}

impl Policy for ContextIndex {
    fn order(&mut self, candidates: &[Candidate<'_>], start: Start<'_>) -> Order {
        self.ordered(start.scope, &fingerprints(candidates))
    }

    fn sent(&mut self, runs: &[SentDocuments<'_>]) {
        self.record(runs);
    }

    fn evicted(&mut self, tokens: u64) {
        if self.forgets {
            self.evict(tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const SCOPE: Scope = Scope(7);

    pub(super) fn prints(documents: &[u64]) -> Vec<Fingerprint> {
        documents.iter().copied().map(Fingerprint).collect()
    }

    fn context(index: &ContextIndex, node: NodeId) -> Vec<u64> {
        index.context(node).iter().map(|d| d.0).collect()
    }

    /// Returns these documents with ten tokens each.
    fn weighed(documents: &[u64]) -> Vec<(Fingerprint, u32)> {
        documents.iter().map(|d| (Fingerprint(*d), 10)).collect()
    }

    /// Orders `documents`, given by rank, by the index, records that they were sent, and returns them in that order.
    fn send(index: &mut ContextIndex, documents: &[u64]) -> Vec<u64> {
        let order = index.ordered(SCOPE, &prints(documents));
        let sent: Vec<u64> = order.iter().map(|&rank| documents[rank as usize]).collect();
        index.record(&[SentDocuments {
            scope: SCOPE,
            documents: &weighed(&sent),
            order: Some(&order),
        }]);
        sent
    }

    #[test]
    fn positions_matter_less_than_the_overlap() {
        // The paper's example: B-D share {2, 6} at the same positions, A-B share {3, 5} at others.
        let rules = Rules::default();
        let [a_b, b_d, more] = [(2, 4, 4), (2, 4, 0), (3, 4, 9)]
            .map(|(shared, larger, gaps)| rules.distance(shared, larger, gaps));
        assert!(b_d < a_b && more < b_d);
        assert_eq!(rules.distance(0, 4, 0), 1.0);
    }

    #[test]
    fn new_contexts_inherit_what_they_share() {
        let mut index = ContextIndex::new(10);
        assert_eq!(send(&mut index, &[2, 1, 3]), [2, 1, 3]);
        assert_eq!(send(&mut index, &[6, 1, 2]), [2, 1, 6]);
        assert_eq!(send(&mut index, &[4, 1, 2]), [2, 1, 4]);
        assert_eq!(send(&mut index, &[5, 7, 8]), [5, 7, 8]);
        // An inner node that holds more than the request is split.
        assert_eq!(send(&mut index, &[9, 1]), [1, 9]);
        assert_eq!(send(&mut index, &[3, 1, 2]), [1, 2, 3]);
    }

    #[test]
    fn the_papers_rules_stop_at_ties_and_sort_what_is_shared() {
        let after_two = |rules| {
            let mut index = ContextIndex::by(rules, 10);
            send(&mut index, &[5, 1, 3]);
            send(&mut index, &[5, 1, 6]);
            index
        };
        let default = Rules::default();
        // After documents 5 and 1, the first context is as near as the second: one more document, one rank away.
        let tied = [5, 6, 1, 3];
        assert_eq!(send(&mut after_two(default), &tied), [5, 1, 3, 6]);
        let stops = Rules {
            stops_at_ties: true,
            ..default
        };
        assert_eq!(send(&mut after_two(stops), &tied), [5, 1, 6, 3]);
        // A search that finds one child nearer goes on.
        assert_eq!(send(&mut after_two(stops), &[6, 9, 1, 5]), [5, 1, 6, 9]);
        let sorts = Rules {
            sorts: true,
            ..default
        };
        assert_eq!(send(&mut after_two(default), &[5, 1, 9]), [5, 1, 9]);
        assert_eq!(send(&mut after_two(sorts), &[5, 1, 9]), [1, 5, 9]);
    }

    #[test]
    fn other_scopes_share_nothing() {
        let mut index = ContextIndex::new(10);
        send(&mut index, &[2, 1, 3]);
        assert_eq!(index.ordered(SCOPE, &prints(&[1, 2]))[..], [1, 0]);
        assert_eq!(index.ordered(Scope(8), &prints(&[1, 2]))[..], [0, 1]);
    }

    #[test]
    fn the_oldest_context_goes_first_and_its_inner_nodes_with_it() {
        let mut index = ContextIndex::new(2);
        for documents in [[1, 2, 3], [1, 2, 4], [5, 6, 7], [5, 6, 8]] {
            send(&mut index, &documents);
        }
        assert_eq!(index.len(), 2);
        assert_eq!(index.ordered(SCOPE, &prints(&[2, 1]))[..], [0, 1]);
        assert_eq!(index.ordered(SCOPE, &prints(&[6, 5]))[..], [1, 0]);
    }

    #[test]
    fn a_context_that_is_sent_again_is_the_last_to_go() {
        let mut index = ContextIndex::new(2);
        for documents in [[1, 2], [3, 4], [1, 2], [5, 6]] {
            send(&mut index, &documents);
        }
        assert_eq!(index.len(), 2);
        assert_eq!(index.ordered(SCOPE, &prints(&[2, 1]))[..], [1, 0]);
        assert_eq!(index.ordered(SCOPE, &prints(&[4, 3]))[..], [0, 1]);
    }

    #[test]
    fn evicted_tokens_are_taken_from_the_oldest_contexts_and_their_nodes_go() {
        let mut index = ContextIndex::new(10);
        send(&mut index, &[1, 2, 3]);
        send(&mut index, &[1, 2, 4]);
        send(&mut index, &[5, 6]);
        assert_eq!(index.tokens(), 60);
        // Document 3's tokens, then half of document 4's.
        index.evict(15);
        assert_eq!((index.len(), index.tokens()), (2, 45));
        // The rest of it, then half of the shared documents, which others may still open with.
        index.evict(15);
        assert_eq!((index.len(), index.tokens()), (1, 30));
        assert_eq!(index.ordered(SCOPE, &prints(&[2, 1]))[..], [1, 0]);
        // Its remnant is removed before documents 5 and 6.
        index.evict(10);
        assert_eq!(index.ordered(SCOPE, &prints(&[2, 1]))[..], [0, 1]);
        assert_eq!(index.ordered(SCOPE, &prints(&[6, 5]))[..], [1, 0]);
        index.evict(1_000);
        assert!(index.is_empty() && index.scopes.is_empty() && index.tokens() == 0);
    }

    #[test]
    fn a_chats_later_turns_count_at_its_leaf_and_are_no_contexts() {
        let mut index = ContextIndex::new(10);
        send(&mut index, &[1, 2]);
        let (opening, later) = (weighed(&[1, 2]), weighed(&[3, 4, 5]));
        let turn = |order| {
            [
                SentDocuments {
                    scope: SCOPE,
                    documents: &opening,
                    order: None,
                },
                SentDocuments {
                    scope: Scope(9),
                    documents: &later,
                    order,
                },
            ]
        };
        index.record(&turn(Some(&[0, 1, 2])));
        assert_eq!((index.len(), index.tokens()), (1, 50));
        // The third turn sends them again: they are counted once.
        index.record(&turn(None));
        assert_eq!((index.len(), index.tokens()), (1, 50));
        // A new chat that opens with the turn's documents shares no prefix.
        assert_eq!(index.ordered(Scope(9), &prints(&[4, 3]))[..], [0, 1]);
    }

    #[test]
    fn history_orders_what_shares_nothing_with_what_was_sent() {
        let (history, _) = ContextIndex::build(
            &[[1, 2, 3], [2, 1, 4]].map(|c| prints(&c)),
            Rules::default(),
        );
        let mut index = ContextIndex::new(10).with_history(Arc::new(history));
        assert_eq!(send(&mut index, &[9, 2, 1]), [1, 2, 9]);
        assert_eq!(send(&mut index, &[2, 1, 8]), [1, 2, 8]);
        assert_eq!(send(&mut index, &[9, 4]), [9, 4]);
        assert_eq!(send(&mut index, &[4, 2, 5]), [2, 4, 5]);
    }

    proptest! {
        #[test]
        fn every_context_keeps_its_documents_and_nothing_leaks(
            contexts in prop::collection::vec((prop::collection::vec(0_u64..12, 0..7), 0_u64..25), 1..60),
            max in 1_u32..20,
        ) {
            let mut index = ContextIndex::new(max);
            let mut kept: VecDeque<(NodeId, Vec<u64>)> = VecDeque::new();
            for (documents, evicted) in contexts {
                let mut seen = std::collections::HashSet::new();
                let documents: Vec<u64> = documents.into_iter().filter(|d| seen.insert(*d)).collect();
                let sent = send(&mut index, &documents);
                let leaf = NodeId(index.recency.newest().unwrap());
                kept.retain(|(other, _)| *other != leaf);
                kept.push_back((leaf, sent));
                if kept.len() > max as usize {
                    kept.pop_front();
                }
                let before = index.tokens();
                index.evict(evicted);
                prop_assert_eq!(index.tokens(), before.saturating_sub(evicted));
                // Evicted contexts are the oldest ones.
                while kept.len() > index.len() {
                    kept.pop_front();
                }
                let listed: Vec<u32> = index.recency.iter().collect();
                let expected: Vec<u32> = kept.iter().map(|(leaf, _)| leaf.0).collect();
                prop_assert_eq!(listed, expected);
                for (leaf, documents) in &kept {
                    let mut held = context(&index, *leaf);
                    let mut documents = documents.clone();
                    held.sort_unstable();
                    documents.sort_unstable();
                    prop_assert_eq!(held, documents);
                }
                let nodes = index.tree.nodes().count();
                // The roots, a leaf each, inner nodes that each add a document to their parent, and a remnant's.
                prop_assert!(nodes <= 2 + (1 + kept.len()) * 8);
            }
            index.evict(u64::MAX);
            prop_assert!(index.tree.has_no_documents() && index.leaves.is_empty() && index.scopes.is_empty());
            prop_assert_eq!(index.tree.nodes().count(), 1);
        }
    }
}
