//! The radix tree over pages: which page holds the KV state of which tokens, after which other pages.
//!
//! Knows tokens and page ids, but neither holders nor eviction. An edge of a radix tree carries a run of tokens and
//! is split when sequences part inside it (ADR-011; SGLang's RadixAttention, arXiv:2312.07104 §3). Here a node is
//! exactly one page, so an edge never needs splitting: sequences that part inside a page have a page each, and the
//! slots that they share are copied (copy-on-write). That costs at most one page per fork and spares every page
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

use crate::backend::{PageId, TokenId};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// What a page of tokens follows: the start of a tenant's sequences, or a full page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Root(Arc<str>),
    After(PageId),
}

type Children = BTreeMap<Arc<[TokenId]>, PageId>;

struct Node {
    /// What the page holds: 1 to `page_tokens` tokens. Fewer than `page_tokens`: no children.
    tokens: Arc<[TokenId]>,
    parent: Place,
    children: Children,
    /// When it was last used.
    used: u64,
}

pub(super) struct Tree {
    page_tokens: usize,
    /// The node that each page is, if it is one.
    nodes: Vec<Option<Node>>,
    /// First pages by salt; only salts that have some. Salts come from callers, hence the keyed default hasher.
    roots: HashMap<Arc<str>, Children>,
    len: u32,
}

/// The longest cached prefix of a sequence.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// The full pages, in order.
    pub(super) full: Vec<PageId>,
    /// A page that begins with the tokens that follow, and how many of them (at least one).
    pub(super) tail: Option<(PageId, u32)>,
}

/// What became of an insertion.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Insertion {
    /// The page is a node now. A partial page that it makes superfluous has left the tree; when that was last used.
    Inserted { superseded: Option<(PageId, u64)> },
    /// This node holds these tokens already, and maybe more; the tree is unchanged.
    Covered(PageId),
}

impl Tree {
    pub(super) fn new(pages: u32, page_tokens: u32) -> Self {
        Self {
            page_tokens: page_tokens as usize,
            nodes: std::iter::repeat_with(|| None)
                .take(pages as usize)
                .collect(),
            roots: HashMap::new(),
            len: 0,
        }
    }

    /// Nodes, that is pages that hold cached tokens.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// The longest prefix of `tokens` in the tree.
    pub(super) fn walk(&self, salt: &str, tokens: &[TokenId]) -> Walk {
        let mut walk = Walk::default();
        let mut children = self.roots.get(salt);
        for chunk in tokens.chunks(self.page_tokens) {
            let Some(siblings) = children else { break };
            if let Some(&page) = siblings.get(chunk)
                && chunk.len() == self.page_tokens
            {
                walk.full.push(page);
                children = self.node(page).map(|node| &node.children);
            } else {
                walk.tail = longest_common(siblings, chunk);
                break;
            }
        }
        walk
    }

    /// Makes `page`, which holds `tokens` (1 to `page_tokens` of them), a node at `place` (a full node).
    pub(super) fn insert(&mut self, place: &Place, tokens: &[TokenId], page: PageId) -> Insertion {
        debug_assert!((1..=self.page_tokens).contains(&tokens.len()));
        debug_assert!(!self.contains(page));
        let siblings = match place {
            Place::Root(salt) => self.roots.entry(salt.clone()).or_default(),
            Place::After(parent) => match &mut self.nodes[parent.0 as usize] {
                Some(node) => &mut node.children,
                None => unreachable!(
                    "page {} follows page {}, which is no node",
                    page.0, parent.0
                ),
            },
        };
        // In sorted order whatever begins with `tokens` comes right after it, and what it begins with right before:
        // anything between a prefix and its extension has that prefix as well, and siblings are prefix-free.
        if let Some((key, &covering)) = at_or_after(siblings, tokens)
            && key.starts_with(tokens)
        {
            return Insertion::Covered(covering);
        }
        let shorter = before(siblings, tokens)
            .filter(|(key, _)| tokens.starts_with(key))
            .map(|(key, &page)| (key.clone(), page));
        if let Some((key, _)) = &shorter {
            siblings.remove(key);
        }
        let tokens: Arc<[TokenId]> = tokens.into();
        siblings.insert(tokens.clone(), page);
        let superseded = shorter.and_then(|(_, old)| {
            let node = self.nodes[old.0 as usize].take()?;
            self.len -= 1;
            Some((old, node.used))
        });
        self.nodes[page.0 as usize] = Some(Node {
            tokens,
            parent: place.clone(),
            children: Children::new(),
            used: 0,
        });
        self.len += 1;
        Insertion::Inserted { superseded }
    }

    /// Takes a leaf out; returns the page that it followed, if it was not a first one.
    pub(super) fn remove(&mut self, page: PageId) -> Option<PageId> {
        let node = self.nodes[page.0 as usize].take()?;
        debug_assert!(
            node.children.is_empty(),
            "page {} has followers and cannot leave the tree",
            page.0
        );
        self.len -= 1;
        match node.parent {
            Place::Root(salt) => {
                if let Some(siblings) = self.roots.get_mut(&salt) {
                    siblings.remove(&node.tokens);
                    if siblings.is_empty() {
                        self.roots.remove(&salt);
                    }
                }
                None
            }
            Place::After(parent) => {
                if let Some(parent) = &mut self.nodes[parent.0 as usize] {
                    parent.children.remove(&node.tokens);
                }
                Some(parent)
            }
        }
    }

    pub(super) fn contains(&self, page: PageId) -> bool {
        self.node(page).is_some()
    }

    /// Whether `page` is a node that none follows.
    pub(super) fn is_leaf(&self, page: PageId) -> bool {
        self.node(page).is_some_and(|node| node.children.is_empty())
    }

    /// When `page` was last used; 0 if it is no node.
    pub(super) fn used(&self, page: PageId) -> u64 {
        self.node(page).map_or(0, |node| node.used)
    }

    /// Notes that `page` was used at `now`.
    pub(super) fn set_used(&mut self, page: PageId, now: u64) {
        if let Some(node) = &mut self.nodes[page.0 as usize] {
            node.used = now;
        }
    }

    /// Every node.
    pub(super) fn pages(&self) -> impl Iterator<Item = PageId> {
        (0..self.nodes.len() as u32)
            .map(PageId)
            .filter(|&page| self.contains(page))
    }

    /// The page that `page` follows, if it is a node and not a first one.
    pub(super) fn parent(&self, page: PageId) -> Option<PageId> {
        match self.node(page)?.parent {
            Place::Root(_) => None,
            Place::After(parent) => Some(parent),
        }
    }

    fn node(&self, page: PageId) -> Option<&Node> {
        self.nodes[page.0 as usize].as_ref()
    }

    /// Asserts the links, the order and the prefix-freeness.
    pub(super) fn check(&self) {
        let mut linked = 0;
        for (salt, siblings) in &self.roots {
            assert!(
                !siblings.is_empty(),
                "salt {salt:?} has a root without pages"
            );
            linked += self.check_siblings(&Place::Root(salt.clone()), siblings);
        }
        for page in self.pages() {
            if let Some(node) = self.node(page) {
                let full = node.tokens.len() == self.page_tokens;
                assert!(
                    full || node.children.is_empty(),
                    "partial page {} has followers",
                    page.0
                );
                linked += self.check_siblings(&Place::After(page), &node.children);
            }
        }
        assert_eq!(linked, self.len, "nodes are miscounted or cut off");
        assert_eq!(
            self.pages().count() as u32,
            self.len,
            "nodes are miscounted"
        );
    }

    fn check_siblings(&self, place: &Place, siblings: &Children) -> u32 {
        let mut previous: Option<&[TokenId]> = None;
        for (tokens, &page) in siblings {
            let Some(node) = self.node(page) else {
                panic!("page {} is a child and no node", page.0)
            };
            assert!(
                Arc::ptr_eq(&node.tokens, tokens),
                "page {} is filed under other tokens",
                page.0
            );
            assert_eq!(
                &node.parent, place,
                "page {} is filed under another parent",
                page.0
            );
            assert!(
                (1..=self.page_tokens).contains(&tokens.len()),
                "page {} has no tokens or too many",
                page.0
            );
            let alike = previous.is_some_and(|previous| tokens.starts_with(previous));
            assert!(!alike, "page {}'s tokens continue a sibling's", page.0);
            previous = Some(tokens);
        }
        siblings.len() as u32
    }
}

/// The sibling that has the longest prefix in common with `tokens`, and its length, if not zero.
fn longest_common(siblings: &Children, tokens: &[TokenId]) -> Option<(PageId, u32)> {
    [before(siblings, tokens), at_or_after(siblings, tokens)]
        .into_iter()
        .flatten()
        .map(|(key, &page)| {
            let common = key.iter().zip(tokens).take_while(|(a, b)| a == b).count();
            (page, common as u32)
        })
        .filter(|&(_, common)| common > 0)
        .max_by_key(|&(_, common)| common)
}

/// The last sibling that sorts before `tokens`.
fn before<'a>(
    siblings: &'a Children,
    tokens: &[TokenId],
) -> Option<(&'a Arc<[TokenId]>, &'a PageId)> {
    siblings
        .range::<[TokenId], _>((Bound::Unbounded, Bound::Excluded(tokens)))
        .next_back()
}

/// The first sibling that equals `tokens` or sorts after it.
fn at_or_after<'a>(
    siblings: &'a Children,
    tokens: &[TokenId],
) -> Option<(&'a Arc<[TokenId]>, &'a PageId)> {
    siblings
        .range::<[TokenId], _>((Bound::Included(tokens), Bound::Unbounded))
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Place {
        Place::Root("".into())
    }

    fn inserted(superseded: Option<u32>) -> Insertion {
        Insertion::Inserted {
            superseded: superseded.map(|page| (PageId(page), 0)),
        }
    }

    fn walk(tree: &Tree, salt: &str, tokens: &[TokenId]) -> (Vec<u32>, Option<(u32, u32)>) {
        let walk = tree.walk(salt, tokens);
        (
            walk.full.iter().map(|page| page.0).collect(),
            walk.tail.map(|(page, common)| (page.0, common)),
        )
    }

    #[test]
    fn a_walk_follows_full_pages_and_ends_in_the_best_partial_one() {
        let mut tree = Tree::new(8, 4);
        assert_eq!(
            tree.insert(&root(), &[1, 2, 3, 4], PageId(0)),
            inserted(None)
        );
        assert_eq!(
            tree.insert(&Place::After(PageId(0)), &[5, 6, 7, 8], PageId(1)),
            inserted(None)
        );
        assert_eq!(
            tree.insert(&Place::After(PageId(0)), &[5, 6, 9], PageId(2)),
            inserted(None)
        );
        assert_eq!(
            tree.insert(&root(), &[1, 2, 9, 9], PageId(3)),
            inserted(None)
        );
        tree.check();
        for (tokens, expected) in [
            (&[][..], (vec![], None)),
            (&[9], (vec![], None)),
            (&[1], (vec![], Some((0, 1)))),
            (&[1, 2, 8, 4], (vec![], Some((0, 2)))),
            (&[1, 2, 9], (vec![], Some((3, 3)))),
            (&[1, 2, 3, 4], (vec![0], None)),
            (&[1, 2, 3, 4, 5, 6, 9, 1], (vec![0], Some((2, 3)))),
            (&[1, 2, 3, 4, 5, 6, 7, 8], (vec![0, 1], None)),
            (&[1, 2, 3, 4, 5, 6, 7, 8, 9], (vec![0, 1], None)),
        ] {
            let (full, tail) = walk(&tree, "", tokens);
            let common = |tail: Option<(u32, u32)>| tail.map(|(_, common)| common);
            assert_eq!(
                (full, common(tail)),
                (expected.0, common(expected.1)),
                "{tokens:?}"
            );
        }
    }

    #[test]
    fn the_longest_common_prefix_is_found_among_any_siblings() {
        let mut tree = Tree::new(64, 3);
        let mut seed = 1u32;
        let mut stored: Vec<[TokenId; 3]> = Vec::new();
        while stored.len() < 40 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let page = [seed >> 30, (seed >> 28) & 3, (seed >> 26) & 3];
            if !stored.contains(&page) {
                tree.insert(&root(), &page, PageId(stored.len() as u32));
                stored.push(page);
            }
        }
        tree.check();
        for a in 0..5 {
            for b in 0..5 {
                let query = [a, b];
                let best = stored
                    .iter()
                    .map(|page| page.iter().zip(&query).take_while(|(a, b)| a == b).count());
                let found = tree
                    .walk("", &query)
                    .tail
                    .map_or(0, |(_, common)| common as usize);
                assert_eq!(Some(found), best.max(), "{query:?}");
            }
        }
    }

    #[test]
    fn a_longer_page_supersedes_a_partial_one_and_covers_a_shorter_one() {
        let mut tree = Tree::new(8, 4);
        assert_eq!(tree.insert(&root(), &[1, 2], PageId(0)), inserted(None));
        assert_eq!(
            tree.insert(&root(), &[1, 2, 3], PageId(1)),
            inserted(Some(0))
        );
        assert_eq!(
            tree.insert(&root(), &[1], PageId(2)),
            Insertion::Covered(PageId(1))
        );
        assert_eq!(
            tree.insert(&root(), &[1, 2, 3], PageId(2)),
            Insertion::Covered(PageId(1))
        );
        assert_eq!(
            tree.insert(&root(), &[1, 2, 3, 4], PageId(2)),
            inserted(Some(1))
        );
        assert_eq!(
            tree.insert(&root(), &[1, 2, 3, 4], PageId(3)),
            Insertion::Covered(PageId(2))
        );
        tree.check();
        assert_eq!(tree.len(), 1);
    }

    #[test]
    fn salts_share_nothing_and_leave_no_trace() {
        let mut tree = Tree::new(8, 2);
        tree.insert(&Place::Root("a".into()), &[1, 2], PageId(0));
        tree.insert(&Place::Root("b".into()), &[1, 2], PageId(1));
        tree.check();
        assert_eq!(walk(&tree, "a", &[1, 2, 3]), (vec![0], None));
        assert_eq!(walk(&tree, "b", &[1, 2, 3]), (vec![1], None));
        assert_eq!(walk(&tree, "", &[1, 2, 3]), (vec![], None));
        assert_eq!(tree.remove(PageId(0)), None);
        tree.check();
        assert_eq!((tree.roots.len(), tree.len()), (1, 1));
        assert_eq!(walk(&tree, "b", &[1, 2, 3]), (vec![1], None));
    }
}
