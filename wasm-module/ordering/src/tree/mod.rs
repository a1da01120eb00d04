//! The knowledge tree: a trie over paths (sequences of documents in prompts) that the engine is believed to have cached
//! (RAGCache++ section 3.2).
//!
//! ```text
//!   scope (hash of the prompt before the documents) one trie per scope: documents after another
//!     └─ d7 ── d2 ── d9                             system prompt shares no KV state with this one
//!         └──── d4
//! ```
//!
//! A node is one document in a path. It is in the tree as long as it is believed to be *resident*; nodes that the
//! engine evicts are removed. Nodes are in an arena and in one list ordered by last use. Using a path touches its nodes
//! from the leaf up, so a parent is always more recent than its children. The list's oldest node is therefore a leaf,
//! and evicting it is O(1). The tree has no access to texts, bodies or policies.

mod children;
mod residency;
mod view;

pub use residency::ResidencyEvent;
pub use view::{ViewedEdge, ViewedNode};

use crate::document::{Catalog, DocumentId, Fingerprint};
use crate::hash::KeyedMap;
use crate::recency::Recency;
use crate::slots::Slots;
use children::Children;
use smallvec::SmallVec;

/// Hash of the prompt's text before documents. Documents behind different scopes share no KV state in the engine's
/// cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scope(pub u64);

/// Identifies a node of a [`KnowledgeTree`]. Valid until nodes are added to the tree or removed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(u32);

/// The bounds of the knowledge tree (documents believed to be cached) of one tenant, model and engine. Beyond either
/// bound, the least recently used leaves are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The maximum number of nodes, including the root node of each scope (hash of the prompt before documents); at
    /// least 1.
    pub max_nodes: u32,
    /// The maximum of the sum of all nodes' estimated tokens: the engine's KV capacity. With `None`, only `max_nodes`
    /// limits the tree.
    pub max_tokens: Option<u64>,
}

/// A trie over the sequences of documents that an engine is believed to have cached. Each hash of the prompt before
/// documents has a root of its own; see the [module documentation](self).
#[derive(Debug)]
pub struct KnowledgeTree {
    bounds: Bounds,
    catalog: Catalog,
    scopes: KeyedMap<Scope, NodeId>,
    nodes: Slots<Node>,
    /// Sum of the estimated tokens of all nodes' documents.
    tokens: u64,
    recency: Recency,
    /// Number of insertions of paths (sequences of documents) so far; it serves as the tree's clock.
    now: u64,
    /// Estimated tokens of the nodes removed since the last call of [`KnowledgeTree::take_evicted`].
    evicted: u64,
}

#[derive(Debug)]
struct Node {
    edge: Edge,
    parent: Option<NodeId>,
    children: Children,
    tokens: u32,
}

/// The label of a node: the document that it adds to its parent's path or, for a root, the scope (hash of the prompt
/// before the documents).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edge {
    /// The node is the root of a trie: it has no parent and no document. The scope is the hash of the prompt before the
    /// documents of this trie.
    Scope(Scope),
    /// The document that the node adds to the documents of its ancestors.
    Document(DocumentId),
}

impl KnowledgeTree {
    /// Returns an empty tree with these bounds.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            catalog: Catalog::default(),
            scopes: KeyedMap::default(),
            nodes: Slots::default(),
            tokens: 0,
            recency: Recency::default(),
            now: 0,
            evicted: 0,
        }
    }

    /// Returns the id in this tree of the document with this fingerprint, which is assigned if there is none; valid
    /// until the next [`KnowledgeTree::insert`].
    pub fn intern(&mut self, fingerprint: Fingerprint) -> DocumentId {
        self.catalog.intern(fingerprint)
    }

    /// Frees the ids of those of `documents` that were interned (have an id) but are in no node of the tree.
    pub(crate) fn discard<'a>(
        &mut self,
        documents: impl IntoIterator<Item = &'a (Fingerprint, u32)>,
    ) {
        for (fingerprint, _) in documents {
            if let Some(id) = self.catalog.find(*fingerprint) {
                self.catalog.forget_unheld(id);
            }
        }
    }

    /// Returns the number, counted from 1, of the insertion that last used the document; 0 if no node of the tree has
    /// the document.
    #[must_use]
    pub fn last_used(&self, id: DocumentId) -> u64 {
        self.catalog.last_used(id)
    }

    /// Returns the root node for `scope`, the hash of the prompt before documents; `None` if no document is believed to
    /// be cached after that prompt.
    #[must_use]
    pub fn root(&self, scope: Scope) -> Option<NodeId> {
        self.scopes.get(&scope).copied()
    }

    /// Returns the child of `node` that adds `document`; `None` if there is none.
    #[must_use]
    pub fn child(&self, node: NodeId, document: DocumentId) -> Option<NodeId> {
        self.node(node)?.children.get(document)
    }

    /// Returns the number of children of `node`; 0 if the tree does not have the node.
    #[must_use]
    pub fn fan_out(&self, node: NodeId) -> usize {
        self.node(node).map_or(0, |node| node.children.len())
    }

    /// Iterates over the children of `node`, each with the document that it adds, in no particular order.
    pub fn children(&self, node: NodeId) -> impl Iterator<Item = (DocumentId, NodeId)> {
        self.node(node)
            .into_iter()
            .flat_map(|node| node.children.iter())
    }

    /// Returns the number of nodes in the tree, including the root of each scope (hash of the prompt before documents).
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether the tree has no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sum of the estimated tokens of all nodes' documents.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Records that the engine was sent `path` (distinct documents with their tokens) after prompt text with the hash
    /// `scope`. The path's nodes become the most recently used ones, and missing ones are created. Then evicts the
    /// least recently used leaves beyond the tree's bounds; a path longer than the bounds loses its last documents.
    /// O(path length + evictions).
    pub fn insert(&mut self, scope: Scope, path: impl IntoIterator<Item = (DocumentId, u32)>) {
        self.now += 1;
        let mut nodes: SmallVec<[NodeId; 32]> = SmallVec::new();
        let mut at = match self.root(scope) {
            Some(root) => root,
            None => self.add(Edge::Scope(scope), None, 0),
        };
        nodes.push(at);
        for (document, tokens) in path {
            self.catalog.touch(document, self.now);
            at = match self.child(at, document) {
                Some(child) => child,
                None => self.add(Edge::Document(document), Some(at), tokens),
            };
            nodes.push(at);
        }
        for &node in nodes.iter().rev() {
            self.recency.touch(node.0);
        }
        self.evict();
    }

    /// Removes all nodes of the tree; their tokens count as evicted (see [`KnowledgeTree::take_evicted`]).
    pub fn clear(&mut self) {
        *self = Self {
            now: self.now,
            evicted: self.evicted + self.tokens,
            ..Self::new(self.bounds)
        };
    }

    /// Returns the estimated tokens of the nodes removed since the last call, for whatever reason, and sets the count
    /// to 0.
    pub fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    fn evict(&mut self) {
        let full = |tree: &Self| {
            tree.len() > tree.bounds.max_nodes as usize
                || tree
                    .bounds
                    .max_tokens
                    .is_some_and(|limit| tree.tokens > limit)
        };
        while full(self) {
            let Some(oldest) = self.recency.oldest() else {
                return;
            };
            self.remove_leaf(NodeId(oldest));
        }
    }

    fn add(&mut self, edge: Edge, parent: Option<NodeId>, tokens: u32) -> NodeId {
        let id = NodeId(self.nodes.put(Node {
            edge,
            parent,
            children: Children::default(),
            tokens,
        }));
        match (edge, parent) {
            (Edge::Document(document), Some(parent)) => {
                self.catalog.hold(document);
                if let Some(parent) = self.node_mut(parent) {
                    parent.children.insert(document, id);
                }
            }
            (Edge::Scope(scope), _) => {
                self.scopes.insert(scope, id);
            }
            (Edge::Document(_), None) => {}
        }
        self.tokens += u64::from(tokens);
        self.recency.add(id.0);
        id
    }

    /// Removes a node that has no children from the tree; its tokens count as evicted.
    fn remove_leaf(&mut self, id: NodeId) {
        self.recency.remove(id.0);
        let Some(node) = self.node_mut(id) else {
            return;
        };
        let (edge, parent, tokens) = (node.edge, node.parent, node.tokens);
        node.children = Children::default();
        match edge {
            Edge::Scope(scope) => {
                self.scopes.remove(&scope);
            }
            Edge::Document(document) => {
                if let Some(parent) = parent.and_then(|parent| self.node_mut(parent)) {
                    parent.children.remove(document);
                }
                self.catalog.release(document);
            }
        }
        self.tokens = self.tokens.saturating_sub(u64::from(tokens));
        self.evicted += u64::from(tokens);
        self.nodes.release(id.0);
    }

    fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.0)
    }

    fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(id.0)
    }

    /// Checks that the tree's parts (nodes, list by last use, counts) agree with each other. Returns a description of
    /// the first inconsistency.
    #[cfg(test)]
    fn check(&self) -> Result<(), String> {
        let mut seen = 0_usize;
        let mut tokens = 0_u64;
        let mut holders: fxhash::FxHashMap<DocumentId, u32> = fxhash::FxHashMap::default();
        let mut age: fxhash::FxHashMap<NodeId, usize> = fxhash::FxHashMap::default();
        for id in self.recency.iter().map(NodeId) {
            let node = self.node(id).ok_or("list leads out of the arena")?;
            if age.insert(id, seen).is_some() {
                return Err(format!("node {id:?} is twice in the list"));
            }
            seen += 1;
            tokens += u64::from(node.tokens);
            let leads_back = match node.edge {
                Edge::Scope(scope) => self.scopes.get(&scope) == Some(&id),
                Edge::Document(document) => {
                    *holders.entry(document).or_default() += 1;
                    node.parent.and_then(|parent| self.child(parent, document)) == Some(id)
                }
            };
            if !leads_back {
                return Err(format!("nothing leads to node {id:?}"));
            }
            if node
                .children
                .iter()
                .any(|(_, child)| !age.contains_key(&child))
            {
                return Err(format!("node {id:?} is older than one of its children"));
            }
        }
        if seen != self.len() || tokens != self.tokens {
            return Err(format!(
                "{seen} nodes and {tokens} tokens listed, {} and {} counted",
                self.len(),
                self.tokens
            ));
        }
        if (holders.iter()).any(|(&document, &count)| self.catalog.holders(document) != count) {
            return Err("a document's holders are miscounted".into());
        }
        if holders.len() != self.catalog.len() {
            return Err(format!(
                "{} documents held, {} known",
                holders.len(),
                self.catalog.len()
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SCOPE: Scope = Scope(1);

    fn tree(max_nodes: u32, max_tokens: Option<u64>) -> KnowledgeTree {
        KnowledgeTree::new(Bounds {
            max_nodes,
            max_tokens,
        })
    }

    fn insert(tree: &mut KnowledgeTree, scope: Scope, path: &[u64]) {
        let path: Vec<_> = path
            .iter()
            .map(|&d| (tree.intern(Fingerprint(d)), 10))
            .collect();
        tree.insert(scope, path);
        tree.check().unwrap();
    }

    fn holds(tree: &mut KnowledgeTree, scope: Scope, path: &[u64]) -> usize {
        let Some(mut at) = tree.root(scope) else {
            return 0;
        };
        for (depth, &d) in path.iter().enumerate() {
            let id = tree.intern(Fingerprint(d));
            let child = tree.child(at, id);
            tree.catalog.forget_unheld(id);
            match child {
                Some(child) => at = child,
                None => return depth,
            }
        }
        path.len()
    }

    #[test]
    fn paths_share_their_beginnings() {
        let mut tree = tree(100, None);
        insert(&mut tree, SCOPE, &[7, 2, 9]);
        insert(&mut tree, SCOPE, &[7, 4]);
        assert_eq!(tree.len(), 5);
        assert_eq!(tree.tokens(), 40);
        assert_eq!(holds(&mut tree, SCOPE, &[7, 2, 9, 1]), 3);
        assert_eq!(holds(&mut tree, Scope(2), &[7, 2, 9, 1]), 0);
    }

    #[test]
    fn the_least_recently_used_leaf_goes_first() {
        let mut tree = tree(5, None);
        insert(&mut tree, SCOPE, &[1, 2]);
        insert(&mut tree, SCOPE, &[3, 4]);
        insert(&mut tree, SCOPE, &[1, 5]);
        // One too many: 2 is the oldest leaf... but 4 and 3 are older than 1, which was used again.
        assert_eq!(holds(&mut tree, SCOPE, &[1, 2]), 1);
        assert_eq!(holds(&mut tree, SCOPE, &[3, 4]), 2);
        assert_eq!(holds(&mut tree, SCOPE, &[1, 5]), 2);
    }

    #[test]
    fn tokens_are_bounded_and_a_path_too_long_loses_its_end() {
        let mut tree = tree(100, Some(25));
        insert(&mut tree, SCOPE, &[1, 2, 3, 4]);
        assert_eq!(holds(&mut tree, SCOPE, &[1, 2, 3, 4]), 2);
        insert(&mut tree, Scope(2), &[5]);
        assert!(tree.tokens() <= 25);
        assert_eq!(holds(&mut tree, Scope(2), &[5]), 1);
    }

    #[test]
    fn clearing_forgets_everything() {
        let mut tree = tree(100, None);
        insert(&mut tree, SCOPE, &[1, 2, 3]);
        tree.clear();
        tree.check().unwrap();
        assert!(tree.is_empty());
    }

    /// A slow, obvious model of the knowledge tree (documents believed to be cached): all prefixes of used paths, each
    /// with the time of its last use.
    #[derive(Default)]
    struct Model(std::collections::HashMap<(Scope, Vec<u64>), (u64, usize)>);

    impl Model {
        fn insert(&mut self, now: u64, scope: Scope, path: &[u64], max_nodes: usize) {
            for depth in 0..=path.len() {
                // Within one use the deeper node is the older one.
                self.0
                    .insert((scope, path[..depth].to_vec()), (now, usize::MAX - depth));
            }
            while self.0.len() > max_nodes {
                let oldest = self
                    .0
                    .iter()
                    .min_by_key(|(_, age)| **age)
                    .map(|(path, _)| path.clone())
                    .unwrap();
                self.0.remove(&oldest);
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_model(
            max_nodes in 1_u32..60,
            uses in prop::collection::vec((0_u64..3, prop::collection::vec(0_u64..30, 0..40)), 1..80),
        ) {
            let mut tree = tree(max_nodes, None);
            let mut model = Model::default();
            for (now, (scope, path)) in uses.iter().enumerate() {
                let mut seen = std::collections::HashSet::new();
                let path: Vec<u64> = path.iter().copied().filter(|d| seen.insert(*d)).collect();
                insert(&mut tree, Scope(*scope), &path);
                model.insert(now as u64, Scope(*scope), &path, max_nodes as usize);
                prop_assert_eq!(tree.len(), model.0.len());
                for (scope, path) in model.0.keys() {
                    prop_assert!(tree.root(*scope).is_some());
                    prop_assert_eq!(holds(&mut tree, *scope, path), path.len());
                }
            }
        }
    }
}
