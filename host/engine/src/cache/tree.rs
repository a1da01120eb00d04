//! The radix tree over pages: which tokens follow which, a page at a time.
//!
//! Knows tokens and links; where a node's page is, `At`, is not its business. An edge of a radix tree carries a run
//! of tokens and is split when sequences part inside it (ADR-011; SGLang's RadixAttention, arXiv:2312.07104 §3). Here a
//! node is exactly one page, so an edge never needs splitting: sequences that part inside a page have a page each, and
//! the slots that they share are copied (copy-on-write). That costs at most one page per fork and spares every page
//! table the indirection.
//!
//! ```text
//!   salt ""   ──▶ [the cat sat on] ──▶ [a mat and slept]
//!             │                   └──▶ [the]                 a partial page: always a leaf
//!             └─▶ [the cat ran off]
//!   salt "b"  ──▶ [the cat sat on]                           tenants share nothing, not even the root
//! ```
//!
//! Siblings are kept sorted by their tokens. One structure then answers both questions, exactly: the child that
//! equals a full page, and the child with the longest prefix in common, which in sorted order can only be the
//! neighbour on either side. Both cost `O(log siblings)` comparisons of at most a page of tokens.
//!
//! Siblings are prefix-free: no node's tokens begin another's. A partial page is dropped when a longer one that
//! begins alike arrives, and is not stored when one is there.

use super::hash::PageHash;
use crate::TokenId;
use fxhash::FxHashMap;
use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, Index, IndexMut};
use std::sync::Arc;

/// A node. Free to mean another one once it has left the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(u32);

type Children = BTreeMap<Arc<[TokenId]>, NodeId>;

pub(super) struct Node<At> {
    /// Whose it is.
    pub(super) salt: Arc<str>,
    /// What the page holds: 1 to `page_tokens` tokens. Fewer than `page_tokens`: no children.
    pub(super) tokens: Arc<[TokenId]>,
    /// What a full page is found by; a partial one has none.
    pub(super) hash: Option<PageHash>,
    /// The full page that it follows; `None`: it is a sequence's first.
    pub(super) parent: Option<NodeId>,
    children: Children,
    pub(super) at: At,
}

struct Slot<At> {
    node: Option<Node<At>>,
    /// The last change of the node: its coming, its going, its children's, and any move of either.
    changed: u64,
}

struct Root {
    hash: PageHash,
    children: Children,
    changed: u64,
}

pub(super) struct Tree<At> {
    page_tokens: usize,
    /// See [`PageHash::root`].
    identity: u64,
    slots: Vec<Slot<At>>,
    free: Vec<NodeId>,
    /// First pages by salt; only salts that have some. Salts come from callers, hence the keyed default hasher.
    roots: HashMap<Arc<str>, Root>,
    by_hash: FxHashMap<PageHash, NodeId>,
    /// Counts changes.
    changes: u64,
}

/// The longest cached prefix of a sequence.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// The full pages, in order.
    pub(super) full: Vec<NodeId>,
    /// A page that begins with the tokens that follow, and how many of them (at least one).
    pub(super) tail: Option<(NodeId, u32)>,
}

/// What became of an insertion.
pub(super) enum Insertion<At> {
    /// There is a node now. A partial page that it makes superfluous has left the tree.
    Inserted {
        node: NodeId,
        superseded: Option<Box<Node<At>>>,
    },
    /// This node holds these tokens already, and maybe more; the tree is unchanged.
    Covered(NodeId),
}

impl<At: Default> Tree<At> {
    pub(super) fn new(page_tokens: u32, identity: u64) -> Self {
        Self {
            page_tokens: page_tokens as usize,
            identity,
            slots: Vec::new(),
            free: Vec::new(),
            roots: HashMap::new(),
            by_hash: FxHashMap::default(),
            changes: 0,
        }
    }

    /// The longest prefix of `tokens` in the tree.
    pub(super) fn walk(&self, salt: &str, tokens: &[TokenId]) -> Walk {
        let mut walk = Walk::default();
        let mut children = self.roots.get(salt).map(|root| &root.children);
        for chunk in tokens.chunks(self.page_tokens) {
            let Some(siblings) = children else { break };
            if let Some(&node) = siblings.get(chunk)
                && chunk.len() == self.page_tokens
            {
                walk.full.push(node);
                children = Some(&self[node].children);
            } else {
                walk.tail = longest_common(siblings, chunk);
                break;
            }
        }
        walk
    }

    /// Makes `tokens` (1 to `page_tokens` of them) a node after `parent`, a full page of the same salt.
    pub(super) fn insert(
        &mut self,
        salt: &Arc<str>,
        parent: Option<NodeId>,
        tokens: &[TokenId],
    ) -> Insertion<At> {
        debug_assert!((1..=self.page_tokens).contains(&tokens.len()));
        let siblings = match parent {
            Some(parent) => Some(&self[parent].children),
            None => self.roots.get(salt).map(|root| &root.children),
        };
        let mut shorter = None;
        // In sorted order whatever begins with `tokens` comes right after it, and what it begins with right before:
        // anything between a prefix and its extension has that prefix as well, and siblings are prefix-free.
        if let Some(siblings) = siblings {
            if let Some((key, &covering)) = at_or_after(siblings, tokens)
                && key.starts_with(tokens)
            {
                return Insertion::Covered(covering);
            }
            shorter = before(siblings, tokens)
                .filter(|(key, _)| tokens.starts_with(key))
                .map(|(_, &node)| node);
        }
        let superseded = shorter.and_then(|node| self.remove(node)).map(Box::new);
        let tokens: Arc<[TokenId]> = tokens.into();
        let above = self.hash_before(salt, parent);
        let hash = (tokens.len() == self.page_tokens).then(|| above.then(&tokens));
        let node = self.free.pop().unwrap_or_else(|| {
            let slot = Slot {
                node: None,
                changed: 0,
            };
            self.slots.push(slot);
            NodeId(self.slots.len() as u32 - 1)
        });
        if let Some(hash) = hash {
            self.by_hash.insert(hash, node);
        }
        self.slots[node.0 as usize].node = Some(Node {
            salt: salt.clone(),
            tokens: tokens.clone(),
            hash,
            parent,
            children: Children::new(),
            at: At::default(),
        });
        match parent {
            Some(parent) => {
                self[parent].children.insert(tokens, node);
            }
            None => {
                let root = self.roots.entry(salt.clone()).or_insert_with(|| Root {
                    hash: above,
                    children: Children::new(),
                    changed: 0,
                });
                root.children.insert(tokens, node);
            }
        }
        self.note_change(node);
        self.note_change_above(salt, parent);
        Insertion::Inserted { node, superseded }
    }

    /// Takes a leaf out.
    pub(super) fn remove(&mut self, node: NodeId) -> Option<Node<At>> {
        let removed = self.slots[node.0 as usize].node.take()?;
        debug_assert!(
            removed.children.is_empty(),
            "{node:?} has followers and cannot leave the tree"
        );
        if let Some(hash) = removed.hash {
            self.by_hash.remove(&hash);
        }
        match removed.parent {
            Some(parent) => {
                self[parent].children.remove(&removed.tokens);
            }
            None => {
                if let Some(root) = self.roots.get_mut(&removed.salt) {
                    root.children.remove(&removed.tokens);
                    if root.children.is_empty() {
                        self.roots.remove(&removed.salt);
                    }
                }
            }
        }
        self.free.push(node);
        self.note_change(node);
        self.note_change_above(&removed.salt, removed.parent);
        Some(removed)
    }

    /// The node of a full page.
    pub(super) fn find(&self, hash: PageHash) -> Option<NodeId> {
        self.by_hash.get(&hash).copied()
    }

    /// The hash of all that precedes a page after `parent`.
    pub(super) fn hash_before(&self, salt: &str, parent: Option<NodeId>) -> PageHash {
        let root = || match self.roots.get(salt) {
            Some(root) => root.hash,
            None => PageHash::root(self.identity, salt),
        };
        match parent {
            // Only full pages are followed.
            Some(parent) => self[parent].hash.unwrap_or_else(root),
            None => root(),
        }
    }

    /// Whether `node` is followed by none.
    pub(super) fn is_leaf(&self, node: NodeId) -> bool {
        self[node].children.is_empty()
    }

    /// What follows `node`.
    pub(super) fn children(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self[node].children.values().copied()
    }

    /// Every node, in no particular order.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node<At>)> {
        let slots = (0..).map(NodeId).zip(&self.slots);
        slots.filter_map(|(id, slot)| Some((id, slot.node.as_ref()?)))
    }

    /// Every node, those that follow it before it.
    pub(super) fn leaves_first(&self) -> Vec<NodeId> {
        let roots = self.roots.values();
        let mut order: Vec<NodeId> = roots
            .flat_map(|root| root.children.values().copied())
            .collect();
        let mut next = 0;
        while let Some(&node) = order.get(next) {
            order.extend(self.children(node));
            next += 1;
        }
        order.reverse();
        order
    }

    /// Counts everything that can change what a walk finds or where.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    fn note_change(&mut self, node: NodeId) {
        self.changes += 1;
        self.slots[node.0 as usize].changed = self.changes;
    }

    /// Notes that `node` is elsewhere now, which shows from above as well.
    pub(super) fn note_move(&mut self, node: NodeId) {
        let (salt, parent) = (self[node].salt.clone(), self[node].parent);
        self.note_change(node);
        self.note_change_above(&salt, parent);
    }

    fn note_change_above(&mut self, salt: &str, parent: Option<NodeId>) {
        match parent {
            Some(parent) => self.note_change(parent),
            None => {
                self.changes += 1;
                if let Some(root) = self.roots.get_mut(salt) {
                    root.changed = self.changes;
                }
            }
        }
    }

    /// Whether `node`, `None` for the root, is as it was when [`Tree::changes`] was `then`. Not where there is none.
    pub(super) fn unchanged_since(&self, then: u64, salt: &str, node: Option<NodeId>) -> bool {
        match node {
            Some(node) => self.slots[node.0 as usize].changed <= then,
            None => self
                .roots
                .get(salt)
                .is_some_and(|root| root.changed <= then),
        }
    }

    /// Asserts the links, the order and the prefix-freeness.
    pub(super) fn check(&self) {
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

impl<At> Index<NodeId> for Tree<At> {
    type Output = Node<At>;

    fn index(&self, node: NodeId) -> &Node<At> {
        match &self.slots[node.0 as usize].node {
            Some(node) => node,
            None => unreachable!("{node:?} has left the tree"),
        }
    }
}

impl<At> IndexMut<NodeId> for Tree<At> {
    fn index_mut(&mut self, node: NodeId) -> &mut Node<At> {
        match &mut self.slots[node.0 as usize].node {
            Some(node) => node,
            None => unreachable!("{node:?} has left the tree"),
        }
    }
}

/// The sibling that has the longest prefix in common with `tokens`, and its length, if not zero.
fn longest_common(siblings: &Children, tokens: &[TokenId]) -> Option<(NodeId, u32)> {
    [before(siblings, tokens), at_or_after(siblings, tokens)]
        .into_iter()
        .flatten()
        .map(|(key, &node)| {
            let common = key.iter().zip(tokens).take_while(|(a, b)| a == b).count();
            (node, common as u32)
        })
        .filter(|&(_, common)| common > 0)
        .max_by_key(|&(_, common)| common)
}

/// The last sibling that sorts before `tokens`.
fn before<'a>(
    siblings: &'a Children,
    tokens: &[TokenId],
) -> Option<(&'a Arc<[TokenId]>, &'a NodeId)> {
    siblings
        .range::<[TokenId], _>((Bound::Unbounded, Bound::Excluded(tokens)))
        .next_back()
}

/// The first sibling that equals `tokens` or sorts after it.
fn at_or_after<'a>(
    siblings: &'a Children,
    tokens: &[TokenId],
) -> Option<(&'a Arc<[TokenId]>, &'a NodeId)> {
    siblings
        .range::<[TokenId], _>((Bound::Included(tokens), Bound::Unbounded))
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree that is spoken to in words.
    struct Words(Tree<()>);

    impl Words {
        fn new(page_tokens: u32) -> Self {
            Self(Tree::new(page_tokens, 0))
        }

        /// The new node and the tokens of the one that it superseded; or the one that covers it.
        fn insert(
            &mut self,
            salt: &str,
            parent: Option<NodeId>,
            tokens: &[TokenId],
        ) -> Result<(NodeId, Option<Vec<TokenId>>), NodeId> {
            let inserted = self.0.insert(&salt.into(), parent, tokens);
            self.0.check();
            match inserted {
                Insertion::Inserted { node, superseded } => {
                    Ok((node, superseded.map(|node| node.tokens.to_vec())))
                }
                Insertion::Covered(node) => Err(node),
            }
        }

        fn new_node(&mut self, parent: Option<NodeId>, tokens: &[TokenId]) -> NodeId {
            self.insert("", parent, tokens).unwrap().0
        }

        fn walk(&self, salt: &str, tokens: &[TokenId]) -> (Vec<NodeId>, Option<(NodeId, u32)>) {
            let walk = self.0.walk(salt, tokens);
            (walk.full, walk.tail)
        }
    }

    #[test]
    fn a_walk_follows_full_pages_and_ends_in_the_best_partial_one() {
        let mut tree = Words::new(4);
        let first = tree.new_node(None, &[1, 2, 3, 4]);
        let second = tree.new_node(Some(first), &[5, 6, 7, 8]);
        let partial = tree.new_node(Some(first), &[5, 6, 9]);
        let other = tree.new_node(None, &[1, 2, 9, 9]);
        for (tokens, full, tail) in [
            (&[][..], vec![], None),
            (&[9], vec![], None),
            (&[1, 2, 9], vec![], Some((other, 3))),
            (&[1, 2, 3, 4], vec![first], None),
            (&[1, 2, 3, 4, 5, 6, 9, 1], vec![first], Some((partial, 3))),
            (&[1, 2, 3, 4, 5, 6, 7, 8], vec![first, second], None),
            (&[1, 2, 3, 4, 5, 6, 7, 8, 9], vec![first, second], None),
        ] {
            assert_eq!(tree.walk("", tokens), (full, tail), "{tokens:?}");
        }
        // Either of two does where they are alike.
        for (tokens, common) in [(&[1][..], 1), (&[1, 2, 8, 4], 2)] {
            let (full, tail) = tree.walk("", tokens);
            assert_eq!(
                (full, tail.map(|(_, common)| common)),
                (vec![], Some(common))
            );
        }
    }

    #[test]
    fn the_longest_common_prefix_is_found_among_any_siblings() {
        let mut tree = Words::new(3);
        let mut seed = 1u32;
        let mut stored: Vec<[TokenId; 3]> = Vec::new();
        while stored.len() < 40 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let page = [seed >> 30, (seed >> 28) & 3, (seed >> 26) & 3];
            if !stored.contains(&page) {
                tree.new_node(None, &page);
                stored.push(page);
            }
        }
        for a in 0..5 {
            for b in 0..5 {
                let query = [a, b];
                let best = stored
                    .iter()
                    .map(|page| page.iter().zip(&query).take_while(|(a, b)| a == b).count());
                let (_, tail) = tree.walk("", &query);
                let found = tail.map_or(0, |(_, common)| common as usize);
                assert_eq!(Some(found), best.max(), "{query:?}");
            }
        }
    }

    #[test]
    fn a_longer_page_supersedes_a_partial_one_and_covers_a_shorter_one() {
        let mut tree = Words::new(4);
        tree.new_node(None, &[1, 2]);
        let (longer, superseded) = tree.insert("", None, &[1, 2, 3]).unwrap();
        assert_eq!(superseded, Some(vec![1, 2]));
        assert_eq!(tree.insert("", None, &[1]), Err(longer));
        assert_eq!(tree.insert("", None, &[1, 2, 3]), Err(longer));
        let (full, superseded) = tree.insert("", None, &[1, 2, 3, 4]).unwrap();
        assert_eq!(superseded, Some(vec![1, 2, 3]));
        assert_eq!(tree.insert("", None, &[1, 2, 3, 4]), Err(full));
        assert_eq!(tree.0.nodes().count(), 1);
    }

    #[test]
    fn salts_share_nothing_and_leave_no_trace() {
        let mut tree = Words::new(2);
        let (a, _) = tree.insert("a", None, &[1, 2]).unwrap();
        let (b, _) = tree.insert("b", None, &[1, 2]).unwrap();
        assert_eq!(tree.walk("a", &[1, 2, 3]), (vec![a], None));
        assert_eq!(tree.walk("b", &[1, 2, 3]), (vec![b], None));
        assert_eq!(tree.walk("", &[1, 2, 3]), (vec![], None));
        assert!(tree.0.remove(a).is_some());
        tree.0.check();
        assert_eq!((tree.0.roots.len(), tree.0.nodes().count()), (1, 1));
        assert_eq!(tree.walk("b", &[1, 2, 3]), (vec![b], None));
    }

    #[test]
    fn a_change_is_seen_at_the_node_and_above_it_and_nowhere_else() {
        let mut tree = Words::new(2);
        let first = tree.new_node(None, &[1, 2]);
        let other = tree.new_node(None, &[3, 4]);
        let same = |tree: &Words, then, node| tree.0.unchanged_since(then, "", node);
        let then = tree.0.changes();
        let second = tree.new_node(Some(first), &[5]);
        assert_eq!(
            [first, other].map(|node| same(&tree, then, Some(node))),
            [false, true]
        );
        assert!(same(&tree, then, None));
        let then = tree.0.changes();
        tree.0.remove(second);
        assert_eq!(
            [first, other].map(|node| same(&tree, then, Some(node))),
            [false, true]
        );
        assert!(!same(&tree, then, Some(second)));
        tree.0.remove(other);
        assert!(!same(&tree, then, None));
        assert!(!tree.0.unchanged_since(then, "never seen", None));
    }
}
