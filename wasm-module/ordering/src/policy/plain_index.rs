//! RAGBoost's context index without the engine: it grows with every request, and believes that what was sent is cached
//! until newer contexts take its place. This is `context-index` where neither a history nor evictions are asked for, and
//! the only one in a module for pages; the module `context_index` describes the search and the index in full.
//!
//! It takes all requests for one scope and a chat's later turns for contexts of their own.

use super::{Order, Policy, fingerprints, followed_by_rank};
use crate::document::{Candidate, Fingerprint};
use crate::sort::sort_by_key;
use crate::tree::{KnowledgeTree, Scope};
use fxhash::FxHashMap;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// RAGBoost's context index: a tree of the document sets of recent requests.
#[derive(Debug)]
pub(super) struct PlainIndex {
    nodes: Vec<Node>,
    free: Vec<NodeId>,
    /// Children of a node by a document that they add.
    by_document: FxHashMap<(NodeId, Fingerprint), SmallVec<[NodeId; 2]>>,
    /// The leaves, oldest first.
    leaves: VecDeque<NodeId>,
    max_contexts: u32,
}

/// Identifies a node of the index; that of a leaf is valid until its context is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct NodeId(u32);

const ROOT: NodeId = NodeId(0);

#[derive(Debug)]
struct Node {
    parent: NodeId,
    /// Children, in the order in which they were added; the last one takes a removed child's place.
    children: Vec<NodeId>,
    /// Documents that the node adds to its parent's.
    added: SmallVec<[Fingerprint; 8]>,
    /// Number of documents of the whole path.
    documents: u32,
    is_leaf: bool,
}

/// Returns the distance of equation 1: the share of the larger context that is not common, plus a little for common
/// documents that stand at different positions. `gaps` is the sum of their differences in position.
fn distance(shared: u32, larger: u32, gaps: u32) -> f64 {
    if shared == 0 {
        return 1.0;
    }
    1.0 - f64::from(shared) / f64::from(larger) + ALPHA * f64::from(gaps) / f64::from(shared)
}

/// The weight of positions; the paper gives 0.001 to 0.01.
const ALPHA: f64 = 0.005;

/// A child, the number of its documents that a request shares, and the sum of their differences in position.
type Share = (NodeId, (u32, u32));

/// The place where a request belongs.
struct Insertion {
    /// The deepest node that holds only documents of the request.
    node: NodeId,
    /// A child of the node that shares more documents, but also holds others.
    split: Option<NodeId>,
    /// Ranks of the documents on the path, and of those shared with `split`.
    path: Order,
}

impl PlainIndex {
    /// Returns an empty index of at most `max_contexts` contexts (at least 1).
    #[must_use]
    pub(super) fn new(max_contexts: u32) -> Self {
        let root = Node {
            parent: ROOT,
            children: Vec::new(),
            added: SmallVec::new(),
            documents: 0,
            is_leaf: false,
        };
        Self {
            nodes: vec![root],
            free: Vec::new(),
            by_document: FxHashMap::default(),
            leaves: VecDeque::new(),
            max_contexts: max_contexts.max(1),
        }
    }

    /// Searches greedily: it descends to the child at the least distance. Among equals it prefers a child that holds
    /// only documents of the request, then the older one.
    fn find(&self, request: &[Fingerprint]) -> Insertion {
        let rank_of: FxHashMap<Fingerprint, u16> = request.iter().copied().zip(0..).collect();
        let mut place = Insertion {
            node: ROOT,
            split: None,
            path: Order::new(),
        };
        let mut gaps = 0_u32;
        loop {
            // Shared documents, for each child that shares something more.
            let mut shares: FxHashMap<NodeId, (u32, u32)> = FxHashMap::default();
            for (&document, rank) in request.iter().zip(0_u32..) {
                for &child in self
                    .by_document
                    .get(&(place.node, document))
                    .into_iter()
                    .flatten()
                {
                    let position = self
                        .node(child)
                        .and_then(|child| child.added.iter().position(|d| *d == document))
                        .map_or(0, |position| count(position) + count(place.path.len()));
                    let (shared, gaps) = shares.entry(child).or_default();
                    *shared += 1;
                    *gaps += position.abs_diff(rank);
                }
            }
            let nearest = shares.into_iter().min_by(|a, b| {
                let of = |&(child, (shared, more_gaps)): &Share| {
                    let held = self.node(child).map_or(0, |node| node.documents);
                    let shared = shared + count(place.path.len());
                    distance(shared, held.max(count(request.len())), gaps + more_gaps)
                };
                of(a)
                    .total_cmp(&of(b))
                    .then(self.adds_more(a).cmp(&self.adds_more(b)))
                    .then(a.0.cmp(&b.0))
            });
            let Some((child, (shared, more_gaps))) = nearest else {
                return place;
            };
            let Some(node) = self.node(child) else {
                return place;
            };
            place
                .path
                .extend(node.added.iter().filter_map(|d| rank_of.get(d).copied()));
            if self.adds_more(&(child, (shared, more_gaps))) {
                place.split = Some(child);
                return place;
            }
            gaps += more_gaps;
            place.node = child;
        }
    }

    /// Returns whether the child holds more than is shared.
    fn adds_more(&self, &(child, (shared, _)): &Share) -> bool {
        self.node(child)
            .is_some_and(|node| node.is_leaf || node.added.len() > shared as usize)
    }

    /// Adds the context of `request` where the search leads. O(documents).
    fn add(&mut self, request: &[Fingerprint]) -> NodeId {
        let place = self.find(request);
        let parent = match place.split {
            None => place.node,
            Some(child) => self.split(place.node, child, request),
        };
        let mut placed: SmallVec<[u16; 16]> = place.path;
        sort_by_key(&mut placed, |rank| *rank);
        let rest = (0..)
            .zip(request)
            .filter(|(rank, _)| placed.binary_search(rank).is_err())
            .map(|(_, &document)| document)
            .collect();
        let leaf = self.attach(parent, rest, true);
        self.leaves.push_back(leaf);
        while self.leaves.len() > self.max_contexts as usize {
            let Some(oldest) = self.leaves.pop_front() else {
                break;
            };
            self.remove(oldest);
        }
        leaf
    }

    /// Inserts a node between `parent` and `child` that holds what `child` shares with `request`.
    fn split(&mut self, parent: NodeId, child: NodeId, request: &[Fingerprint]) -> NodeId {
        let Some(added) = self
            .node_mut(child)
            .map(|node| std::mem::take(&mut node.added))
        else {
            return parent;
        };
        let (shared, own): (SmallVec<[_; 8]>, SmallVec<[_; 8]>) =
            added.iter().copied().partition(|d| request.contains(d));
        self.detach(parent, child, &added);
        let between = self.attach(parent, shared, false);
        for &document in &own {
            self.by_document
                .entry((between, document))
                .or_default()
                .push(child);
        }
        if let Some(node) = self.node_mut(child) {
            node.parent = between;
            node.added = own;
        }
        if let Some(node) = self.node_mut(between) {
            node.children.push(child);
        }
        between
    }

    /// Adds a child to `parent`.
    fn attach(
        &mut self,
        parent: NodeId,
        added: SmallVec<[Fingerprint; 8]>,
        is_leaf: bool,
    ) -> NodeId {
        let documents = self.node(parent).map_or(0, |node| node.documents) + count(added.len());
        let node = Node {
            parent,
            children: Vec::new(),
            added: added.clone(),
            documents,
            is_leaf,
        };
        let id = if let Some(id) = self.free.pop() {
            if let Some(slot) = self.node_mut(id) {
                *slot = node;
            }
            id
        } else {
            let id = NodeId(count(self.nodes.len()));
            self.nodes.push(node);
            id
        };
        for document in added {
            self.by_document
                .entry((parent, document))
                .or_default()
                .push(id);
        }
        if let Some(parent) = self.node_mut(parent) {
            parent.children.push(id);
        }
        id
    }

    /// Removes `child`, which adds `added`, from `parent`'s children.
    fn detach(&mut self, parent: NodeId, child: NodeId, added: &[Fingerprint]) {
        for &document in added {
            let key = (parent, document);
            if let Some(children) = self.by_document.get_mut(&key) {
                children.retain(|other| *other != child);
                if children.is_empty() {
                    self.by_document.remove(&key);
                }
            }
        }
        if let Some(parent) = self.node_mut(parent)
            && let Some(at) = parent.children.iter().position(|other| *other == child)
        {
            parent.children.swap_remove(at);
        }
    }

    /// Removes a leaf, and every inner node that is left without children.
    fn remove(&mut self, leaf: NodeId) {
        let mut at = leaf;
        while at != ROOT
            && let Some(node) = self.node_mut(at)
            && node.children.is_empty()
        {
            let (parent, added) = (node.parent, std::mem::take(&mut node.added));
            self.detach(parent, at, &added);
            self.free.push(at);
            at = parent;
        }
    }

    fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.0 as usize)
    }

    fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(id.0 as usize)
    }
}

impl Policy for PlainIndex {
    fn order(&mut self, candidates: &[Candidate<'_>], _: &KnowledgeTree, _: Scope) -> Order {
        followed_by_rank(self.find(&fingerprints(candidates)).path, candidates.len())
    }

    fn remember(&mut self, ranked: &[Fingerprint], _: &[u16]) {
        self.add(ranked);
    }
}

fn count(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
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
        let order = followed_by_rank(index.find(&request).path, request.len());
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
        assert!(index.find(&prints(&[1, 2])).path.is_empty());
        assert_eq!(index.find(&prints(&[6, 5])).path.as_slice(), [1, 0]);
        while let Some(leaf) = index.leaves.pop_front() {
            index.remove(leaf);
        }
        assert!(index.by_document.is_empty());
        assert_eq!(index.nodes.len() - index.free.len(), 1);
    }
}
