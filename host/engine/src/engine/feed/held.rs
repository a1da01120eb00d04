//! The documents that are cached now, derived from the cache's events: a trie of paths for every tenant and scope.
//!
//! The cache reports marks: a document's mark is on a page and is removed with it. A document may have several marks
//! (the same path with different text between its documents) or none (it ends within the first page). A document counts
//! as cached if it has a mark or a document after it on the path has one.

use crate::cache::{CacheEvent, Document};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The documents that are cached now, as a trie of document paths for each cache salt and scope (hash of the prompt
/// before the documents). Bounded by the cache's content: the last document of each path is recorded on a cached page.
#[derive(Debug, Default)]
pub(super) struct HeldDocuments {
    roots: BTreeMap<(Arc<str>, u64), Children>,
}

type Children = HashMap<u64, Node>;

#[derive(Debug, Default)]
struct Node {
    tokens: u32,
    marks: u32,
    children: Children,
}

impl HeldDocuments {
    /// Records an event [`CacheEvent::DocumentsStored`]: one more page holds the end of the last document of `path`.
    /// Returns true if that document did not count as cached before.
    pub(super) fn store(&mut self, salt: &Arc<str>, scope: u64, path: &[Document]) -> bool {
        if path.is_empty() {
            return false;
        }
        let mut children = self.roots.entry((salt.clone(), scope)).or_default();
        let mut is_new = false;
        let last = path.len() - 1;
        for (index, &(fingerprint, tokens)) in path.iter().enumerate() {
            is_new = !children.contains_key(&fingerprint);
            let node = children.entry(fingerprint).or_default();
            node.tokens = tokens;
            node.marks += u32::from(index == last);
            children = &mut node.children;
        }
        is_new
    }

    /// Records an event [`CacheEvent::DocumentsRemoved`]: one page fewer holds the end of the last document of `path`.
    /// Returns the number of leading documents of `path` that are still cached; `None` if all of them are, or no page
    /// held that end.
    pub(super) fn remove(
        &mut self,
        salt: &Arc<str>,
        scope: u64,
        path: &[Document],
    ) -> Option<usize> {
        let root = (salt.clone(), scope);
        let children = self.roots.get_mut(&root)?;
        let left = unmark(children, path)?;
        if children.is_empty() {
            self.roots.remove(&root);
        }
        (left < path.len()).then_some(left)
    }

    /// Returns events that describe all documents that are cached now: a [`CacheEvent::DocumentsStored`] for each path
    /// that is not the beginning of a longer one.
    pub(super) fn events(&self) -> Vec<CacheEvent> {
        let mut events = Vec::new();
        for ((salt, scope), children) in &self.roots {
            let mut path = Vec::new();
            leaves(children, &mut path, &mut |path| {
                events.push(CacheEvent::DocumentsStored {
                    salt: salt.clone(),
                    scope: *scope,
                    path: path.into(),
                });
            });
        }
        events
    }
}

/// Subtracts one page from those that hold the end of the last document of `path`, and removes every node of the trie
/// without such pages itself or below it. Returns the number of leading documents of `path` that remain, or `None` if
/// there was no such page. The recursion is as deep as the path has documents, which the header that announces them
/// bounds to a few hundred.
fn unmark(children: &mut Children, path: &[Document]) -> Option<usize> {
    let ((fingerprint, _), rest) = path.split_first()?;
    let node = children.get_mut(fingerprint)?;
    let left = if rest.is_empty() {
        node.marks = node.marks.checked_sub(1)?;
        0
    } else {
        unmark(&mut node.children, rest)?
    };
    if node.marks == 0 && node.children.is_empty() {
        children.remove(fingerprint);
        return Some(0);
    }
    Some(left + 1)
}

fn leaves(children: &Children, path: &mut Vec<Document>, found: &mut impl FnMut(&[Document])) {
    for (fingerprint, node) in children {
        path.push((*fingerprint, node.tokens));
        if node.children.is_empty() {
            found(path);
        } else {
            leaves(&node.children, path, found);
        }
        path.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a path of documents of 10 tokens each.
    fn path(documents: &[u64]) -> Vec<Document> {
        documents.iter().map(|&document| (document, 10)).collect()
    }

    fn store(held: &mut HeldDocuments, documents: &[u64]) -> bool {
        held.store(&"a".into(), 1, &path(documents))
    }

    fn remove(held: &mut HeldDocuments, documents: &[u64]) -> Option<usize> {
        held.remove(&"a".into(), 1, &path(documents))
    }

    #[test]
    fn a_document_without_a_mark_is_held_as_long_as_one_behind_it_is() {
        let mut held = HeldDocuments::default();
        assert!(store(&mut held, &[1, 2, 3]));
        assert!(store(&mut held, &[1, 2, 4]));
        assert_eq!(remove(&mut held, &[1, 2, 3]), Some(2));
        assert_eq!(remove(&mut held, &[1, 2, 4]), Some(0));
        assert_eq!(held.events(), []);
        assert!(held.roots.is_empty());
    }

    #[test]
    fn a_document_with_two_marks_is_held_until_both_are_gone() {
        let mut held = HeldDocuments::default();
        assert!(store(&mut held, &[1]));
        assert!(!store(&mut held, &[1]));
        assert!(store(&mut held, &[1, 2]));
        // One page was evicted; the other, and the page after it, are still there.
        assert_eq!(remove(&mut held, &[1]), None);
        assert_eq!(
            remove(&mut held, &[1]),
            None,
            "it is held for what follows it"
        );
        assert_eq!(remove(&mut held, &[1, 2]), Some(0));
    }

    #[test]
    fn what_has_no_mark_loses_none() {
        let mut held = HeldDocuments::default();
        store(&mut held, &[1, 2]);
        for unknown in [&[][..], &[1], &[2], &[1, 2, 3]] {
            assert_eq!(remove(&mut held, unknown), None, "{unknown:?}");
        }
        assert_eq!(held.remove(&"b".into(), 1, &path(&[1, 2])), None);
        assert_eq!(held.remove(&"a".into(), 2, &path(&[1, 2])), None);
        assert_eq!(held.events().len(), 1);
    }
}
