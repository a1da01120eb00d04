//! The most recently used nodes of the knowledge tree as a list, from which the tree can be drawn.

use super::{Edge, KnowledgeTree, NodeId, Scope};
use crate::document::Fingerprint;
use fxhash::FxHashMap;

/// A node of the knowledge tree (documents believed to be cached), in the list that [`KnowledgeTree::view`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewedNode {
    /// Index in the list of this node's parent, which precedes this node; `None` for the root of a scope (hash of the
    /// prompt before documents).
    pub parent: Option<u32>,
    /// The document that the node adds to its parent's path; for a root, the hash of the prompt before documents.
    pub edge: ViewedEdge,
    /// Estimated tokens of the node's document; 0 for the root of a scope (hash of the prompt before documents).
    pub tokens: u32,
}

/// The document that a [`ViewedNode`] adds to its parent's path; for a root, its scope (hash of the prompt before the
/// documents).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewedEdge {
    /// The node is the root of this scope, a hash of the prompt before documents.
    Scope(Scope),
    /// The document that the node adds, by its fingerprint.
    Document(Fingerprint),
}

impl KnowledgeTree {
    /// Returns the `limit` most recently used nodes of the tree, the most recent first; a parent always precedes its
    /// children.
    #[must_use]
    pub fn view(&self, limit: usize) -> Vec<ViewedNode> {
        let mut places: FxHashMap<NodeId, u32> = FxHashMap::default();
        let nodes = self.recency.iter_newest().map(NodeId).take(limit);
        let nodes = nodes.zip(0_u32..).filter_map(|(id, place)| {
            let node = self.node(id)?;
            places.insert(id, place);
            let edge = match node.edge {
                Edge::Scope(scope) => ViewedEdge::Scope(scope),
                Edge::Document(document) => {
                    ViewedEdge::Document(self.catalog.fingerprint(document)?)
                }
            };
            Some(ViewedNode {
                parent: node.parent.and_then(|parent| places.get(&parent).copied()),
                edge,
                tokens: node.tokens,
            })
        });
        nodes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Bounds;

    #[test]
    fn what_was_used_last_comes_first_and_parents_before_their_children() {
        let mut tree = KnowledgeTree::new(Bounds {
            max_nodes: 100,
            max_tokens: None,
        });
        for path in [&[1, 2][..], &[3], &[1, 4]] {
            let path = path.iter().map(|&document| Fingerprint(document));
            let path: Vec<_> = path.map(|document| (tree.intern(document), 10)).collect();
            tree.insert(Scope(7), path);
        }
        let node = |parent, document| ViewedNode {
            parent,
            edge: ViewedEdge::Document(Fingerprint(document)),
            tokens: 10,
        };
        let root = ViewedNode {
            parent: None,
            edge: ViewedEdge::Scope(Scope(7)),
            tokens: 0,
        };
        let all = [
            root,
            node(Some(0), 1),
            node(Some(1), 4),
            node(Some(0), 3),
            node(Some(1), 2),
        ];
        assert_eq!(tree.view(100), all);
        assert_eq!(tree.view(3), all[..3]);
        assert_eq!(tree.view(0), []);
    }
}
