//! The tree of a context index: its leaves are contexts (document sets of requests), and an inner node has the
//! documents that all contexts below it share. A node's children are found by document. The parent module has a picture
//! of the search.
//!
//! The module `account` decides which contexts are removed, and estimates how much of them the engine's cache still
//! has.

use crate::document::Fingerprint;
use crate::hash::KeyedMap;
use crate::policy::Order;
use crate::slots::Slots;
use crate::sort::sort_by_key;
use crate::tree::Scope;
use fxhash::FxHashMap;
use smallvec::SmallVec;

/// A tree of contexts, that is, of requests' document sets; an inner node has the documents that all contexts below it
/// share.
#[derive(Debug)]
pub(super) struct ContextTree {
    rules: Rules,
    nodes: Slots<Node>,
    /// The children of a node that add a document, by the pair of node and document.
    by_document: KeyedMap<(NodeId, Fingerprint), SmallVec<[NodeId; 2]>>,
}

/// Identifies a node of a context index. The id of a leaf is valid until its context (document set of a request) is
/// removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(super) u32);

pub(super) const ROOT: NodeId = NodeId(0);

#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: NodeId,
    /// The child nodes in insertion order, except that removing a child moves the last one to its position.
    pub(super) children: Vec<NodeId>,
    /// The documents that this node adds to those of its ancestors.
    pub(super) added: SmallVec<[Fingerprint; 8]>,
    /// Number of documents that this node and all its ancestors add together.
    pub(super) documents: u32,
    /// Estimated tokens of the documents in `added` that the engine is believed to have cached; for a leaf, plus the
    /// tokens of documents in later turns of its chat.
    pub(super) tokens: u64,
    pub(super) kind: NodeKind,
}

/// The role of a node in the tree of contexts (document sets of requests).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    /// With `None`, the root of the tree; otherwise the node above all contexts (document sets of requests) that follow
    /// the prompt with this hash.
    Root(Option<Scope>),
    /// An inner node: its documents are those that all contexts (document sets of requests) below it have.
    Shared,
    /// A leaf: one context, the document set of a request, with the context's key (see [`account`](super::account)).
    Context(u64),
}

impl Node {
    pub(super) fn is_context(&self) -> bool {
        matches!(self.kind, NodeKind::Context(_))
    }
}

/// The rules of a context index that RAGBoost leaves open, and those of its rules that the default departs from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The weight of documents' differences in position in the distance of two contexts (document sets of requests),
    /// in thousandths: RAGBoost's α, for which the paper gives 1 to 10.
    pub position_weight: u16,
    /// True if a search ends at a node whose children are all at the same distance from the request, as in RAGBoost's
    /// section 4.2. If false, it prefers a child with only documents of the request, then the oldest child.
    pub stops_at_ties: bool,
    /// True if an inner node's documents are sorted, as in RAGBoost's section 4.1. If false, they have the order in
    /// which the older context (document set of a request) was sent.
    pub sorts: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            position_weight: 5,
            stops_at_ties: false,
            sorts: false,
        }
    }
}

impl Rules {
    /// Returns the distance of two contexts (document sets of requests) by RAGBoost's equation 1: the fraction of the
    /// larger context that is not shared, plus a small term for shared documents at different positions. `shared` is
    /// the number of shared documents, `larger` that of the larger context; `gaps` is the sum of the shared documents'
    /// differences in position. Returns 1.0 if no document is shared.
    pub(super) fn distance(&self, shared: u32, larger: u32, gaps: u32) -> f64 {
        if shared == 0 {
            return 1.0;
        }
        let alpha = f64::from(self.position_weight) / 1000.0;
        1.0 - f64::from(shared) / f64::from(larger) + alpha * f64::from(gaps) / f64::from(shared)
    }

    /// Sorts the documents of an inner node, if these rules say so.
    pub(super) fn sort(&self, documents: &mut [Fingerprint]) {
        if self.sorts {
            sort_by_key(documents, |document| document.0);
        }
    }
}

/// A child node that shares documents with a request.
#[derive(Clone, Copy)]
struct Share {
    child: NodeId,
    distance: f64,
    /// The sum of the differences in position, between the request and the node, of those documents that the child
    /// adds and the request has too.
    gaps: u32,
    /// True if the request cannot be inserted below the child, which must be split first: the child is a leaf (a
    /// context), or adds documents that the request lacks.
    adds_more: bool,
}

/// The place in the tree of contexts (document sets of requests) at which a request is inserted.
pub(super) struct Insertion {
    /// The deepest node for which the node and its ancestors have only documents of the request: the parent of the new
    /// leaf, unless a node is split.
    pub(super) node: NodeId,
    /// A child of `node` that must be split before the request is inserted, since it shares documents with the request
    /// but is a leaf or adds documents that the request lacks. The shared documents then become a node above it and the
    /// new leaf. `None` if no child shares documents with the request.
    pub(super) split: Option<NodeId>,
    /// The ranks of documents with which the request's order begins: those of `node` and its ancestors, then those
    /// shared with `split`.
    pub(super) path: Order,
}

impl ContextTree {
    /// Returns a tree of contexts (document sets of requests) with only the root.
    pub(super) fn new(rules: Rules) -> Self {
        let root = Node {
            parent: ROOT,
            children: Vec::new(),
            added: SmallVec::new(),
            documents: 0,
            tokens: 0,
            kind: NodeKind::Root(None),
        };
        let mut nodes = Slots::default();
        nodes.put(root);
        Self {
            rules,
            nodes,
            by_document: KeyedMap::default(),
        }
    }

    pub(super) fn rules(&self) -> Rules {
        self.rules
    }

    /// Returns where to insert a request, given as documents in rank order (best first). The search descends from
    /// `start`, each time to the child at the least distance, as long as that child has only documents of the request.
    /// On a tie it prefers such a child, then the older one; or, if the rules say so, ends if all children tie.
    pub(super) fn find(&self, start: NodeId, request: &[Fingerprint]) -> Insertion {
        let rank_of: FxHashMap<Fingerprint, u16> = request.iter().copied().zip(0..).collect();
        let mut place = Insertion {
            node: start,
            split: None,
            path: Order::new(),
        };
        let mut gaps = 0_u32;
        loop {
            // For each child that shares further documents: their number, and the sum of their differences in position.
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
            let shares: SmallVec<[Share; 8]> = (shares.into_iter())
                .filter_map(|(child, (shared, more_gaps))| {
                    let node = self.node(child)?;
                    let all = shared + count(place.path.len());
                    let larger = node.documents.max(count(request.len()));
                    Some(Share {
                        child,
                        distance: self.rules.distance(all, larger, gaps + more_gaps),
                        gaps: more_gaps,
                        adds_more: node.is_context() || node.added.len() > shared as usize,
                    })
                })
                .collect();
            let nearest = shares.iter().copied().min_by(|a, b| {
                (a.distance.total_cmp(&b.distance))
                    .then(a.adds_more.cmp(&b.adds_more))
                    .then(a.child.cmp(&b.child))
            });
            let Some(nearest) = nearest else {
                return place;
            };
            let Some(node) = self.node(nearest.child) else {
                return place;
            };
            let children = self.node(place.node).map_or(0, |node| node.children.len());
            if self.rules.stops_at_ties
                && children > 1
                && shares.len() == children
                && shares
                    .iter()
                    .all(|share| share.distance == nearest.distance)
            {
                return place;
            }
            place
                .path
                .extend(node.added.iter().filter_map(|d| rank_of.get(d).copied()));
            if nearest.adds_more {
                place.split = Some(nearest.child);
                return place;
            }
            gaps += nearest.gaps;
            place.node = nearest.child;
        }
    }

    /// Inserts a node between `parent` and `child` and moves to it those documents of `child` for which `holds` is
    /// true. `weigh` returns the estimated tokens of these documents; this number, or all cached tokens of the child if
    /// they are fewer, moves from the child to the new node. Returns the id of the new node.
    pub(super) fn split(
        &mut self,
        parent: NodeId,
        child: NodeId,
        holds: impl Fn(&Fingerprint) -> bool,
        weigh: impl FnOnce(&[Fingerprint]) -> u64,
    ) -> NodeId {
        let Some(node) = self.node_mut(child) else {
            return parent;
        };
        let added = std::mem::take(&mut node.added);
        let (mut shared, own): (SmallVec<[_; 8]>, SmallVec<[_; 8]>) =
            added.iter().copied().partition(holds);
        let tokens = weigh(&shared).min(node.tokens);
        node.tokens -= tokens;
        self.detach(parent, child, &added);
        self.rules.sort(&mut shared);
        let between = self.attach(parent, shared, tokens, NodeKind::Shared);
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

    /// Adds a child node to `parent`, which adds the documents `added`, and returns the id of the child.
    pub(super) fn attach(
        &mut self,
        parent: NodeId,
        added: SmallVec<[Fingerprint; 8]>,
        tokens: u64,
        kind: NodeKind,
    ) -> NodeId {
        let documents = self.node(parent).map_or(0, |node| node.documents) + count(added.len());
        let id = NodeId(self.nodes.put(Node {
            parent,
            children: Vec::new(),
            added: added.clone(),
            documents,
            tokens,
            kind,
        }));
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

    /// Removes `child` from the children of `parent`, also from its children by document; `added` are the documents
    /// that `child` adds to those of `parent`. The node itself stays.
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

    /// Removes a node without children from the tree, and returns the id of its parent.
    pub(super) fn remove(&mut self, id: NodeId) -> NodeId {
        let Some(node) = self.node_mut(id) else {
            return ROOT;
        };
        let (parent, added) = (node.parent, std::mem::take(&mut node.added));
        self.detach(parent, id, &added);
        self.nodes.release(id.0);
        parent
    }

    pub(super) fn is_childless(&self, id: NodeId) -> bool {
        self.node(id).is_some_and(|node| node.children.is_empty())
    }

    pub(super) fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.0)
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(id.0)
    }

    /// Iterates over all nodes of the tree, in no particular order.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter()
    }

    /// Returns whether the index of children by document is empty, so that no node of the tree adds a document.
    #[cfg(test)]
    pub(super) fn has_no_documents(&self) -> bool {
        self.by_document.is_empty()
    }
}

pub(super) fn count(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}
