//! Applies events of the engine's cache to the knowledge tree, so that the tree matches the cache.
//!
//! Inserting a request's documents into the tree is an assumption, made when the request is forwarded. A feed of the
//! engine's cache (`Stored`, `Removed`, `Cleared`) and the `cached_tokens` of its responses (`Reported`) confirm or
//! correct it. KV state depends on everything before it, so removing a node removes everything below it. Events
//! identify documents by fingerprint, since ids may change with any insertion.

use super::{KnowledgeTree, NodeId, Scope};
use crate::document::Fingerprint;
use smallvec::SmallVec;

/// An event in an engine's cache, to be applied to the knowledge tree (documents believed to be cached). It may name
/// documents that are not in the tree: these are added if the event says that they are stored, and ignored otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidencyEvent<'a> {
    /// The engine has cached the KV state of this sequence of documents.
    Stored {
        /// Hash of the prompt before the documents.
        scope: Scope,
        /// The documents with their tokens, from the first one after `scope` on.
        path: &'a [(Fingerprint, u32)],
    },
    /// The engine evicted the last document of this sequence of documents, and so everything after it.
    Removed {
        /// Hash of the prompt before the documents.
        scope: Scope,
        /// The documents, from the first one after `scope` on; if empty, all documents after `scope` were evicted.
        path: &'a [Fingerprint],
    },
    /// The engine's cache has become empty.
    Cleared,
    /// The engine responded to a request with the documents `path`, and reported how many tokens it found cached.
    ///
    /// The engine has computed all tokens that were not cached, so these documents themselves are resident now. But if
    /// it had fewer tokens cached than expected, the nodes from the first missing document on were not resident, and
    /// nor were other branches below them: these branches are removed. Later requests may have added some of them
    /// since, so the tree may then lack resident nodes there, but has none that are not resident.
    Reported {
        /// Hash of the prompt before the documents.
        scope: Scope,
        /// The documents of the request, in the order in which they were sent.
        path: &'a [Fingerprint],
        /// Estimated tokens of these documents that were expected to be cached when the request was forwarded.
        expected_tokens: u64,
        /// Estimated tokens of these documents that were cached, derived from the engine's response.
        cached_tokens: u64,
    },
}

impl KnowledgeTree {
    /// Changes the tree as an event in the engine's cache requires. O(path length + nodes removed); each node is
    /// removed once.
    pub fn apply(&mut self, event: ResidencyEvent<'_>) {
        match event {
            ResidencyEvent::Stored { scope, path } => self.hold(scope, path),
            ResidencyEvent::Removed { scope, path } => {
                let mut at = self.root(scope);
                for &document in path {
                    at = at.and_then(|node| self.step(node, document));
                }
                if let Some(node) = at {
                    self.remove_subtree(node);
                }
            }
            ResidencyEvent::Cleared => self.clear(),
            ResidencyEvent::Reported {
                scope,
                path,
                expected_tokens,
                cached_tokens,
            } => self.correct(scope, path, expected_tokens, cached_tokens),
        }
    }

    /// Applies [`ResidencyEvent::Stored`]: records that the engine has cached the documents of `path`, which follow the
    /// prompt with the hash `scope`.
    pub(crate) fn hold(&mut self, scope: Scope, path: &[(Fingerprint, u32)]) {
        let path: SmallVec<[_; 16]> = (path.iter())
            .map(|&(document, tokens)| (self.intern(document), tokens))
            .collect();
        self.insert(scope, path);
    }

    /// Applies [`ResidencyEvent::Reported`], an engine's report that only `cached` of `expected` tokens were cached:
    /// follows `path` as far as `expected` tokens, and at each of its nodes beyond `cached` tokens removes all children
    /// that are not on `path`.
    fn correct(&mut self, scope: Scope, path: &[Fingerprint], expected: u64, cached: u64) {
        let Some(mut at) = self.root(scope) else {
            return;
        };
        let mut tokens = 0_u64;
        let mut path = path.iter();
        while tokens < expected {
            let Some(child) = path.next().and_then(|&document| self.step(at, document)) else {
                return;
            };
            at = child;
            tokens += self.node(at).map_or(0, |node| u64::from(node.tokens));
            if tokens > cached {
                let kept = path
                    .as_slice()
                    .first()
                    .and_then(|&next| self.step(at, next));
                let branches: SmallVec<[NodeId; 8]> = self
                    .children(at)
                    .map(|(_, child)| child)
                    .filter(|&child| Some(child) != kept)
                    .collect();
                for branch in branches {
                    self.remove_subtree(branch);
                }
            }
        }
    }

    fn step(&self, node: NodeId, document: Fingerprint) -> Option<NodeId> {
        self.child(node, self.catalog.find(document)?)
    }

    /// Removes the node `top` and all its descendants from the tree, leaves first.
    fn remove_subtree(&mut self, top: NodeId) {
        let mut found = vec![top];
        let mut at = 0;
        while let Some(&node) = found.get(at) {
            found.extend(self.children(node).map(|(_, child)| child));
            at += 1;
        }
        for &node in found.iter().rev() {
            self.remove_leaf(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Bounds;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SCOPE: Scope = Scope(1);
    const TOKENS: u32 = 10;

    fn prints(path: &[u64]) -> Vec<Fingerprint> {
        path.iter().copied().map(Fingerprint).collect()
    }

    fn store(tree: &mut KnowledgeTree, path: &[u64]) {
        let path: Vec<_> = path.iter().map(|&d| (Fingerprint(d), TOKENS)).collect();
        tree.apply(ResidencyEvent::Stored {
            scope: SCOPE,
            path: &path,
        });
    }

    fn report(tree: &mut KnowledgeTree, path: &[u64], expected_tokens: u64, cached_tokens: u64) {
        tree.apply(ResidencyEvent::Reported {
            scope: SCOPE,
            path: &prints(path),
            expected_tokens,
            cached_tokens,
        });
    }

    fn tree_of(paths: &[&[u64]]) -> KnowledgeTree {
        let mut tree = KnowledgeTree::new(Bounds {
            max_nodes: 10_000,
            max_tokens: None,
        });
        for path in paths {
            store(&mut tree, path);
        }
        tree
    }

    /// Returns every path in the knowledge tree (documents believed to be cached) from the root of [`SCOPE`] on, as the
    /// fingerprints of its documents.
    fn paths(tree: &KnowledgeTree) -> BTreeSet<Vec<u64>> {
        let mut found = BTreeSet::new();
        let mut stack: Vec<_> = tree
            .root(SCOPE)
            .into_iter()
            .map(|root| (root, Vec::new()))
            .collect();
        while let Some((node, path)) = stack.pop() {
            for (document, child) in tree.children(node) {
                let mut longer = path.clone();
                longer.push(tree.catalog.fingerprint(document).unwrap().0);
                stack.push((child, longer));
            }
            found.insert(path);
        }
        found
    }

    #[test]
    fn what_hangs_below_a_removed_node_goes_too() {
        let mut tree = tree_of(&[&[1, 2, 3], &[1, 2, 4], &[1, 5]]);
        tree.apply(ResidencyEvent::Removed {
            scope: SCOPE,
            path: &prints(&[1, 2]),
        });
        tree.check().unwrap();
        assert_eq!(paths(&tree), BTreeSet::from([vec![], vec![1], vec![1, 5]]));
    }

    #[test]
    fn what_is_not_known_can_be_removed_and_reported() {
        let mut tree = tree_of(&[&[1, 2]]);
        let before = paths(&tree);
        for path in [&[9][..], &[1, 9], &[1, 2, 9]] {
            tree.apply(ResidencyEvent::Removed {
                scope: SCOPE,
                path: &prints(path),
            });
            report(&mut tree, path, 1_000, 1_000);
        }
        tree.apply(ResidencyEvent::Removed {
            scope: Scope(7),
            path: &[],
        });
        assert_eq!(paths(&tree), before);
    }

    #[test]
    fn a_response_as_expected_changes_nothing() {
        let mut tree = tree_of(&[&[1, 2, 3], &[1, 2, 4]]);
        let before = paths(&tree);
        report(&mut tree, &[1, 2, 4], 20, 20);
        report(&mut tree, &[1, 2, 4], 20, 500);
        // A request that expected nothing shows nothing about branches that others added since.
        report(&mut tree, &[1, 2, 3], 0, 0);
        assert_eq!(paths(&tree), before);
    }

    #[test]
    fn a_response_with_less_than_expected_prunes_what_was_not_live() {
        let mut tree = tree_of(&[&[1, 2, 3], &[1, 2, 4], &[1, 5], &[6]]);
        // 1 was cached, 2 was not, so [1 2 3] was not either. [1 2 4] has just been computed.
        report(&mut tree, &[1, 2, 4], 20, 10);
        tree.check().unwrap();
        assert_eq!(
            paths(&tree),
            BTreeSet::from([
                vec![],
                vec![1],
                vec![1, 2],
                vec![1, 2, 4],
                vec![1, 5],
                vec![6]
            ])
        );
        // Half of document 1 does not count as document 1.
        report(&mut tree, &[1, 2, 4], 30, 5);
        assert!(!paths(&tree).contains(&vec![1, 5]));
    }

    #[test]
    fn a_cleared_engine_leaves_nothing() {
        let mut tree = tree_of(&[&[1, 2]]);
        tree.apply(ResidencyEvent::Cleared);
        tree.check().unwrap();
        assert!(tree.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Store(Vec<u64>),
        Remove(Vec<u64>),
        Report(Vec<u64>, usize, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let path = || {
            prop::collection::vec(0_u64..5, 1..5).prop_map(|path| {
                let mut seen = BTreeSet::new();
                path.into_iter()
                    .filter(|d| seen.insert(*d))
                    .collect::<Vec<_>>()
            })
        };
        let step = prop_oneof![
            4 => path().prop_map(Step::Store),
            1 => path().prop_map(Step::Remove),
            2 => (path(), 0_usize..5, 0_usize..5).prop_map(|(path, e, c)| Step::Report(path, e, c)),
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        #[test]
        fn agrees_with_a_set_of_paths(steps in steps()) {
            let mut tree = tree_of(&[]);
            let mut model: BTreeSet<Vec<u64>> = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Store(path) => {
                        store(&mut tree, &path);
                        model.extend((0..=path.len()).map(|depth| path[..depth].to_vec()));
                    }
                    Step::Remove(path) => {
                        tree.apply(ResidencyEvent::Removed { scope: SCOPE, path: &prints(&path) });
                        model.retain(|held| !held.starts_with(&path));
                    }
                    Step::Report(path, expected, cached) => {
                        report(&mut tree, &path, expected as u64 * 10, cached as u64 * 10);
                        // Nodes of the path, cached + 1 ..= expected, were not resident.
                        let held = (1..=path.len()).take_while(|&d| model.contains(&path[..d])).last().unwrap_or(0);
                        for depth in cached + 1..=expected.min(held) {
                            model.retain(|other| {
                                !(other.len() > depth
                                    && other.starts_with(&path[..depth])
                                    && path.get(depth) != Some(&other[depth]))
                            });
                        }
                    }
                }
                tree.check().unwrap();
                prop_assert_eq!(paths(&tree), model.clone());
            }
        }
    }
}
