//! The radix tree over pages: which tokens follow which, one page a node.
//!
//! The tree knows tokens and links. Where a node's page is (`At`) is opaque to it. In the usual radix tree an edge
//! carries a run of tokens and is split where sequences part inside it (SGLang's RadixAttention, arXiv:2312.07104 §3;
//! ADR-011, "Prefix Caching for 10x Faster RAG and Chat Applications", of the repository ruvnet/RuVector, January
//! 2026). Here a node is exactly one page, so nothing is ever split: sequences that part inside a page have a page
//! each, and the slots that they share are copied (copy-on-write). That costs at most one page per fork, and it spares
//! every page table an indirection.
//!
//! ```text
//!   salt ""   ──▶ [the cat sat on] ──▶ [a mat and slept]
//!             │                   └──▶ [the]                 a partial page: always a leaf
//!             └─▶ [the cat ran off]
//!   salt "b"  ──▶ [the cat sat on]                           tenants share nothing, not even the root
//! ```
//!
//! Siblings are sorted by their tokens. One structure then answers two questions exactly: which child equals a full
//! page, and which child has the longest prefix in common with the next tokens. In sorted order the latter can only be
//! the neighbour on either side. Both cost `O(log siblings)` comparisons of at most a page of tokens.
//!
//! Siblings are prefix-free: no node's tokens begin another's. A partial page is dropped when a longer one that begins
//! with it arrives, and is not stored when such a page is already there.

use super::hash::PageHash;
use crate::TokenId;
use fxhash::FxHashMap;
use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, Index, IndexMut};
use std::sync::Arc;

#[cfg(any(test, feature = "invariants"))]
#[path = "tests/check_tree.rs"]
mod check;

/// Identifies a node of the prefix tree: one page of KV state after a certain prefix. The id is reused once its node
/// has left the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(u32);

type Children = BTreeMap<Arc<[TokenId]>, NodeId>;

pub(super) struct Node<At> {
    /// Cache salt of the tenant that the page belongs to.
    pub(super) salt: Arc<str>,
    /// The tokens whose KV state the page holds: 1 to `page_tokens` of them. A node with fewer than `page_tokens` has
    /// no children.
    pub(super) tokens: Arc<[TokenId]>,
    /// Hash of the page's tokens and everything before them; `None` if the page is only partly filled.
    pub(super) hash: Option<PageHash>,
    /// The node of the page before this one, which is full; `None` for the first page of a sequence.
    pub(super) parent: Option<NodeId>,
    children: Children,
    pub(super) at: At,
}

struct Slot<At> {
    node: Option<Node<At>>,
    /// The tree's change counter ([`Tree::changes`]) when this node or one of its children was last inserted, removed
    /// or moved between device and host memory.
    changed: u64,
}

struct Root {
    hash: PageHash,
    children: Children,
    changed: u64,
}

pub(super) struct Tree<At> {
    page_tokens: usize,
    /// Hash of the model, which is part of all page hashes, see [`PageHash::root`].
    identity: u64,
    slots: Vec<Slot<At>>,
    free: Vec<NodeId>,
    /// The first pages of all sequences by cache salt; a salt without pages has no entry. Callers choose salts, hence
    /// the keyed default hasher.
    roots: HashMap<Arc<str>, Root>,
    by_hash: FxHashMap<PageHash, NodeId>,
    /// Counts all changes to the tree so far, including moves of pages between tiers.
    changes: u64,
}

/// The longest cached prefix of a sequence, as found in the prefix tree.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// The nodes of the full pages that match, in order.
    pub(super) full: Vec<NodeId>,
    /// The node whose page shares most leading tokens with the tokens after `full`, and how many it shares (at least
    /// one); `None` if no page shares any.
    pub(super) tail: Option<(NodeId, u32)>,
}

/// The outcome of inserting a page's tokens into the prefix tree.
pub(super) enum Insertion<At> {
    /// The tokens are now a node of their own. If they begin with the tokens of a partly filled page, that node has
    /// left the tree and is returned as `superseded`.
    Inserted {
        node: NodeId,
        superseded: Option<Box<Node<At>>>,
    },
    /// This existing node has tokens that begin with the given ones; the tree is unchanged.
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

    /// Finds the longest prefix of `tokens` that is cached, for sequences with this cache salt: walks down the tree, a
    /// page a node.
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

    /// Inserts `tokens` (1 to `page_tokens` of them) as a node after `parent`, which has a full page and the same salt;
    /// `None` inserts the first page of a sequence.
    pub(super) fn insert(
        &mut self,
        salt: &Arc<str>,
        parent: Option<NodeId>,
        tokens: &[TokenId],
    ) -> Insertion<At> {
        assert!((1..=self.page_tokens).contains(&tokens.len()));
        let siblings = match parent {
            Some(parent) => Some(&self[parent].children),
            None => self.roots.get(salt).map(|root| &root.children),
        };
        let mut shorter = None;
        // In sorted order, a key that begins with `tokens` comes right after them, and a key that `tokens` begin with
        // comes right before. Anything between a prefix and its extension has that prefix as well, and siblings are
        // prefix-free.
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

    /// Removes a node from the tree and returns it; `None` if there is no such node. Panics if it has children.
    pub(super) fn remove(&mut self, node: NodeId) -> Option<Node<At>> {
        let removed = self.slots[node.0 as usize].node.take()?;
        assert!(
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

    /// Returns the node with the full page that has this hash; `None` if it is not in the tree.
    pub(super) fn find(&self, hash: PageHash) -> Option<NodeId> {
        self.by_hash.get(&hash).copied()
    }

    /// Returns the hash of everything before a page that follows `parent`; for `None`, before the first page of a
    /// sequence with this cache salt.
    pub(super) fn hash_before(&self, salt: &str, parent: Option<NodeId>) -> PageHash {
        let root = || match self.roots.get(salt) {
            Some(root) => root.hash,
            None => PageHash::root(self.identity, salt),
        };
        match parent {
            // Only full pages have children, so this hash is always there.
            Some(parent) => self[parent].hash.unwrap_or_else(root),
            None => root(),
        }
    }

    /// Returns whether no page of the tree follows the page of `node`.
    pub(super) fn is_leaf(&self, node: NodeId) -> bool {
        self[node].children.is_empty()
    }

    /// Iterates over the ids of the nodes whose pages directly follow the page of `node`.
    pub(super) fn children(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self[node].children.values().copied()
    }

    /// Returns the ids of all nodes, each after its descendants.
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

    /// Returns the number of changes so far that could alter which pages a lookup finds, or in which tiers.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    fn note_change(&mut self, node: NodeId) {
        self.changes += 1;
        self.slots[node.0 as usize].changed = self.changes;
    }

    /// Records that the page of `node` has moved between device and host memory: counts as a change of the node and of
    /// its parent.
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

    /// Returns whether `node` (for `None`, the root of this cache salt) is unchanged since [`Tree::changes`] returned
    /// `then`. Returns `false` for `None` if the salt has no pages.
    pub(super) fn unchanged_since(&self, then: u64, salt: &str, node: Option<NodeId>) -> bool {
        match node {
            Some(node) => self.slots[node.0 as usize].changed <= then,
            None => self
                .roots
                .get(salt)
                .is_some_and(|root| root.changed <= then),
        }
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

/// Returns the one of `siblings` (nodes after the same page) whose tokens have the longest prefix in common with
/// `tokens`, and the length of that prefix. Returns `None` if none shares a token.
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

/// Returns the last one of `siblings` (nodes after the same page) whose tokens sort before `tokens`.
fn before<'a>(
    siblings: &'a Children,
    tokens: &[TokenId],
) -> Option<(&'a Arc<[TokenId]>, &'a NodeId)> {
    siblings
        .range::<[TokenId], _>((Bound::Unbounded, Bound::Excluded(tokens)))
        .next_back()
}

/// Returns the first one of `siblings` (nodes after the same page) whose tokens equal `tokens` or sort after them.
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

    /// A tree whose tokens are written as words.
    struct Words(Tree<()>);

    impl Words {
        fn new(page_tokens: u32) -> Self {
            Self(Tree::new(page_tokens, 0))
        }

        /// Returns the new node and the tokens of the node that it superseded, or else the node that covers it.
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
        // If two siblings match equally well, either is right.
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
