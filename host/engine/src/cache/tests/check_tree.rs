//! Checks of the prefix tree's invariants.

use super::*;

impl<At: Default> Tree<At> {
    /// Iterates over all nodes of the tree with their ids, in no particular order.
    pub(in crate::cache) fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node<At>)> {
        let slots = (0..).map(NodeId).zip(&self.slots);
        slots.filter_map(|(id, slot)| Some((id, slot.node.as_ref()?)))
    }

    /// Asserts the tree's invariants: links in both directions, sorted siblings, and no page whose tokens begin another
    /// sibling's.
    pub(in crate::cache) fn check(&self) {
        let mut linked = 0;
        for (salt, root) in &self.roots {
            assert!(
                !root.children.is_empty(),
                "salt {salt:?} has a root without pages"
            );
            assert_eq!(root.hash, PageHash::root(self.identity, salt));
            linked += self.check_siblings(salt, None, &root.children);
        }
        for (id, node) in self.nodes() {
            let full = node.tokens.len() == self.page_tokens;
            assert!(
                full || node.children.is_empty(),
                "partial page {id:?} has followers"
            );
            let before = self.hash_before(&node.salt, node.parent);
            assert_eq!(node.hash, full.then(|| before.then(&node.tokens)));
            linked += self.check_siblings(&node.salt, Some(id), &node.children);
        }
        let nodes = self.nodes().count();
        assert_eq!(linked, nodes, "nodes are cut off");
        assert_eq!(nodes + self.free.len(), self.slots.len(), "slots are lost");
        let hashes = self.nodes().filter_map(|(id, node)| Some((node.hash?, id)));
        assert_eq!(self.by_hash, hashes.collect(), "hashes are misfiled");
    }

    fn check_siblings(&self, salt: &str, parent: Option<NodeId>, siblings: &Children) -> usize {
        let mut previous: Option<&[TokenId]> = None;
        for (tokens, &id) in siblings {
            let node = &self[id];
            assert!(
                Arc::ptr_eq(&node.tokens, tokens),
                "{id:?} is filed under other tokens"
            );
            assert_eq!(
                (node.parent, &*node.salt),
                (parent, salt),
                "{id:?} is filed under another parent"
            );
            assert!(
                (1..=self.page_tokens).contains(&tokens.len()),
                "{id:?} has no tokens or too many"
            );
            let alike = previous.is_some_and(|previous| tokens.starts_with(previous));
            assert!(!alike, "{id:?}'s tokens continue a sibling's");
            previous = Some(tokens);
        }
        siblings.len()
    }
}
