//! The tree of a context index: nodes that hold the documents shared by the contexts below them, found by document. The
//! parent module describes the search, with a picture.
//!
//! It does not decide which contexts are removed, nor track the engine's cache: module `account` does.

use crate::document::Fingerprint;
use crate::policy::Order;
use crate::slots::Slots;
use crate::tree::Scope;
use fxhash::FxHashMap;
use smallvec::SmallVec;

/// A tree of contexts, that is, of requests' document sets.
#[derive(Debug)]
pub(super) struct ContextTree {
    nodes: Slots<Node>,
    /// Children of a node by the documents that they add.
    by_document: FxHashMap<(NodeId, Fingerprint), SmallVec<[NodeId; 2]>>,
}

/// Identifies a node of a context index. A leaf's id is valid until its context is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(super) u32);

pub(super) const ROOT: NodeId = NodeId(0);

#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: NodeId,
    /// Children in insertion order, except that the last one takes a removed child's place.
    pub(super) children: Vec<NodeId>,
    /// Documents that the node adds to its parent's.
    pub(super) added: SmallVec<[Fingerprint; 8]>,
    /// Number of documents of the whole path.
    pub(super) documents: u32,
    /// Tokens of the documents that the node adds, as far as the engine is believed to hold them; for a leaf, plus those of
    /// its chat's later turns.
    pub(super) tokens: u64,
    pub(super) kind: NodeKind,
}

/// The kinds of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    /// The root of all, or of a scope.
    Root(Option<Scope>),
    /// The common documents of the contexts below it.
    Shared,
    /// The documents of one context, a leaf, with the [key](super::account) of the documents as sent.
    Context(u64),
}

impl Node {
    pub(super) fn is_context(&self) -> bool {
        matches!(self.kind, NodeKind::Context(_))
    }
}

/// Returns the distance of equation 1: the share of the larger context that is not common, plus a small term for common
/// documents at different positions. `gaps` is the sum of their differences in position.
pub(super) fn distance(shared: u32, larger: u32, gaps: u32) -> f64 {
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
pub(super) struct Insertion {
    /// The deepest node that holds only documents of the request.
    pub(super) node: NodeId,
    /// A child of the node that shares more documents, but also holds others.
    pub(super) split: Option<NodeId>,
    /// Ranks of the documents on the path, and of those shared with `split`.
    pub(super) path: Order,
}

impl ContextTree {
    /// Returns a tree with only the root.
    pub(super) fn new() -> Self {
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
            nodes,
            by_document: FxHashMap::default(),
        }
    }

    /// Searches greedily from `start`: descends to the child at the least distance. On a tie it prefers a child that holds
    /// only documents of the request, then the older one.
    pub(super) fn find(&self, start: NodeId, request: &[Fingerprint]) -> Insertion {
        let rank_of: FxHashMap<Fingerprint, u16> = request.iter().copied().zip(0..).collect();
        let mut place = Insertion {
            node: start,
            split: None,
            path: Order::new(),
        };
        let mut gaps = 0_u32;
        loop {
            // Shared documents of each child that shares any more.
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

    /// Returns whether a request cannot be placed below the child, which must be split: the child is a context, and so
    /// a leaf, or holds documents that the request does not.
    fn adds_more(&self, &(child, (shared, _)): &Share) -> bool {
        self.node(child)
            .is_some_and(|node| node.is_context() || node.added.len() > shared as usize)
    }

    /// Inserts a node between `parent` and `child` with the documents of `child` for which `holds` is true, that is, those
    /// of a request. The new node takes `weigh` of these documents from the child's tokens.
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
        let (shared, own): (SmallVec<[_; 8]>, SmallVec<[_; 8]>) =
            added.iter().copied().partition(holds);
        let tokens = weigh(&shared).min(node.tokens);
        node.tokens -= tokens;
        self.detach(parent, child, &added);
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

    /// Adds a child to `parent`.
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

    /// Removes a node without children, and returns its parent.
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

    /// Iterates over the nodes that are not free.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter()
    }

    /// Returns whether the index of children by document is empty.
    #[cfg(test)]
    pub(super) fn has_no_documents(&self) -> bool {
        self.by_document.is_empty()
    }
}

pub(super) fn count(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}
