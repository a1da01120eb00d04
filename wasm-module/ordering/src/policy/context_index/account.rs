//! Records contexts (document sets of requests) in a context index and removes evicted ones (RAGBoost section 4.1,
//! *Index update*, and section 6).
//!
//! ```text
//!   sent     a new context ──▶ a leaf, with the tokens that it adds      known context ──▶ the most recently used leaf
//!            later turns   ──▶ their tokens are added to the chat's leaf
//!   evicted  n tokens      ──▶ taken from the least recently used leaf, then the next; a node with none is removed
//! ```
//!
//! The knowledge tree reports how many tokens were evicted, not which, so the index removes them where an engine would:
//! a leaf before its parent, the least recently used leaf first. Only tokens of documents are counted.
//!
//! The documents of a chat's later turns follow text that only this chat has, so no other prompt shares that prefix:
//! they are not contexts of their own. Documents that an earlier turn holds have already been replaced by location
//! hints before a policy is called.

use super::tree::{NodeId, NodeKind, ROOT};
use super::{ContextIndex, SentDocuments};
use crate::document::Fingerprint;
use crate::tree::Scope;
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};

impl ContextIndex {
    /// Records a forwarded request, given as runs of adjacent documents: the context (document set) of the chat's first
    /// turn, and the tokens of documents that its later turns add.
    pub(super) fn record(&mut self, runs: &[SentDocuments<'_>]) {
        let Some((opening, later)) = runs.split_first() else {
            return;
        };
        let key = key_of(opening.scope, opening.documents);
        let leaf = self.add(key, opening.scope, opening.documents, &opening.ranked());
        // Runs without an order were counted when they were first sent.
        let new = later.iter().filter(|run| run.order.is_some());
        let tokens: u64 = new.flat_map(|run| run.documents).map(tokens).sum();
        if let Some(node) = self.tree.node_mut(leaf) {
            node.tokens += tokens;
        }
    }

    /// Adds a context (document set) that was forwarded in the order `sent`, or makes it the most recently used one if
    /// it is recorded already. `key` identifies the context. A new context is inserted where the search for `ranked`,
    /// the same documents in rank order (best first), ends in the tree. Beyond the maximum number of contexts, the
    /// least recently used ones are removed. Returns the context's leaf. O(documents).
    pub(super) fn add(
        &mut self,
        key: u64,
        scope: Scope,
        sent: &[(Fingerprint, u32)],
        ranked: &[(Fingerprint, u32)],
    ) -> NodeId {
        if let Some(&leaf) = self.leaves.get(&key) {
            self.recency.touch(leaf.0);
            self.refill(leaf, sent);
            return leaf;
        }
        let root = match self.scopes.get(&scope) {
            Some(&root) => root,
            None => {
                let kind = NodeKind::Root(Some(scope));
                let root = self.tree.attach(ROOT, SmallVec::new(), 0, kind);
                self.scopes.insert(scope, root);
                root
            }
        };
        let request: SmallVec<[Fingerprint; 16]> = ranked.iter().map(|(d, _)| *d).collect();
        let place = self.tree.find(root, &request);
        if self.remnant == Some(place.node) {
            self.refill(place.node, ranked);
            self.remnant = None;
        }
        let parent = match place.split {
            None => place.node,
            Some(child) => self.tree.split(
                place.node,
                child,
                |document| request.contains(document),
                |shared| tokens_of(ranked, shared),
            ),
        };
        let above = self.context(parent);
        // The documents are in the order sent, since that is their order in the cache.
        let rest: SmallVec<[(Fingerprint, u32); 16]> = (sent.iter().copied())
            .filter(|(document, _)| !above.contains(document))
            .collect();
        let added = rest.iter().map(|(document, _)| *document).collect();
        let new = rest.iter().map(tokens).sum();
        let leaf = (self.tree).attach(parent, added, new, NodeKind::Context(key));
        self.leaves.insert(key, leaf);
        self.recency.add(leaf.0);
        while self.leaves.len() > self.max_contexts as usize {
            let Some(oldest) = self.recency.oldest() else {
                break;
            };
            self.forget(NodeId(oldest));
        }
        leaf
    }

    /// Records that `tokens` tokens of documents were evicted from the engine's cache: subtracts them from the least
    /// recently used contexts (document sets), and removes contexts left without tokens. O(contexts removed, times
    /// their documents).
    pub(super) fn evict(&mut self, mut tokens: u64) {
        while tokens > 0 {
            let remnant = self
                .remnant
                .take()
                .filter(|&node| self.tree.is_childless(node));
            let Some(node) = remnant.or(self.recency.oldest().map(NodeId)) else {
                return;
            };
            tokens = self.shrink(node, tokens);
        }
    }

    /// Subtracts up to `tokens` evicted tokens from the cached tokens of `node`, a leaf of the tree. If none are left
    /// there, removes the leaf and continues with its parent if that has no other children. Returns the number of
    /// tokens still to subtract.
    fn shrink(&mut self, node: NodeId, mut tokens: u64) -> u64 {
        let mut at = node;
        loop {
            let Some(node) = self.tree.node_mut(at) else {
                return tokens;
            };
            let taken = node.tokens.min(tokens);
            node.tokens -= taken;
            tokens -= taken;
            if node.tokens > 0 {
                self.remnant = (!node.is_context()).then_some(at);
                return tokens;
            }
            at = self.remove_leaf_node(at);
            if at == ROOT || !self.tree.is_childless(at) {
                return tokens;
            }
        }
    }

    /// Removes the context (document set of a request) with this leaf, and the leaf's ancestors that have no other
    /// child.
    pub(super) fn forget(&mut self, leaf: NodeId) {
        let mut at = self.remove_leaf_node(leaf);
        while at != ROOT && self.tree.is_childless(at) {
            at = self.remove_leaf_node(at);
        }
    }

    /// Removes a node without children, with what the index has recorded about it, and returns the id of its parent.
    fn remove_leaf_node(&mut self, node: NodeId) -> NodeId {
        let Some(kind) = self.tree.node(node).map(|node| node.kind) else {
            return ROOT;
        };
        match kind {
            NodeKind::Context(key) => {
                self.leaves.remove(&key);
                self.recency.remove(node.0);
            }
            NodeKind::Root(Some(scope)) => {
                self.scopes.remove(&scope);
            }
            NodeKind::Root(None) | NodeKind::Shared => {}
        }
        if self.remnant == Some(node) {
            self.remnant = None;
        }
        self.tree.remove(node)
    }

    /// Records that all documents that `node` adds are in the engine's cache again; `sent` gives the documents' tokens.
    fn refill(&mut self, node: NodeId, sent: &[(Fingerprint, u32)]) {
        if let Some(node) = self.tree.node_mut(node) {
            let tokens = tokens_of(sent, &node.added);
            node.tokens = node.tokens.max(tokens);
        }
    }

    /// Returns the estimated tokens of the documents of all contexts (document sets of requests) that the engine is
    /// believed to have cached.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tree.nodes().map(|node| node.tokens).sum()
    }
}

impl SentDocuments<'_> {
    /// Returns the documents with their tokens in the client's order, or in the order sent if no policy ordered them
    /// for this request.
    fn ranked(&self) -> SmallVec<[(Fingerprint, u32); 16]> {
        let mut ranked: SmallVec<[(Fingerprint, u32); 16]> =
            self.documents.iter().copied().collect();
        for (&rank, &document) in self.order.into_iter().flatten().zip(self.documents) {
            if let Some(place) = ranked.get_mut(usize::from(rank)) {
                *place = document;
            }
        }
        ranked
    }
}

/// Returns the key of a context (document set): a hash of the prompt before it (`scope`) and of its documents in the
/// order sent.
fn key_of(scope: Scope, sent: &[(Fingerprint, u32)]) -> u64 {
    let mut hasher = fxhash::FxHasher::default();
    scope.0.hash(&mut hasher);
    for (document, _) in sent {
        document.0.hash(&mut hasher);
    }
    hasher.finish()
}

/// Returns the sum of the tokens of those documents of `request` that are also in `held`.
fn tokens_of(request: &[(Fingerprint, u32)], held: &[Fingerprint]) -> u64 {
    let shared = (request.iter()).filter(|(document, _)| held.contains(document));
    shared.map(tokens).sum()
}

fn tokens(document: &(Fingerprint, u32)) -> u64 {
    u64::from(document.1)
}
