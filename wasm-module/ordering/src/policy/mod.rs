//! Policies: rules that order a request's candidate documents, given the knowledge tree (the documents believed to be
//! cached). Each policy has a module.

mod constrained;
pub mod context_index;
mod foresight;
mod greedy;
mod longest;
mod placement;
mod random;
mod recency;
mod retrieval;
mod sorted;
mod stability;
mod window;

pub use placement::{Place, Placement, Split};

use crate::document::{Candidate, DocumentId, Fingerprint};
use crate::sort::sort_by_key;
use crate::tree::{KnowledgeTree, NodeId, Scope};
use smallvec::SmallVec;

/// An order in which to send documents, as a list of their ranks (indices in the slice of candidates).
pub type Order = SmallVec<[u16; 16]>;

/// A rule that orders a request's documents, with what it has learnt; each pair of tenant and model has its own
/// instance.
///
/// An order is a permutation of `0..candidates.len()`. A policy is deterministic: the same calls and the same tree give
/// the same orders, on every platform.
pub trait Policy: Send {
    /// Returns the order in which to send `candidates`, which are distinct, at most [`MAX_CANDIDATES`], and in rank
    /// order: the client's order, normally best first. `start` is the point in the prompt where they begin, as a node
    /// of the knowledge tree (documents believed to be cached).
    fn order(&mut self, candidates: &[Candidate<'_>], start: Start<'_>) -> Order;

    /// Tells the policy that the documents `ranked`, in rank order (best first), were sent in `order`, so that it can
    /// learn from it. Does nothing in policies that use only the knowledge tree (documents believed to be cached).
    fn remember(&mut self, ranked: &[Fingerprint], order: &[u16]) {
        let _ = (ranked, order);
    }

    /// Tells the policy that `documents`, in the client's order, which is no ranking, were sent in `order`, so that it
    /// can learn from it.
    fn remember_unranked(&mut self, documents: &[Fingerprint], order: &[u16]) {
        self.remember(documents, order);
    }

    /// Tells the policy the documents of one forwarded request, in runs of adjacent documents: first the run at the
    /// prompt's beginning, then those of the chat's later turns. Does nothing in policies that learn only from
    /// [`Policy::remember`].
    fn sent(&mut self, runs: &[SentDocuments<'_>]) {
        let _ = runs;
    }

    /// Returns the placement of favoured documents (the retriever's best) that applies at present. In place of
    /// [`Place::Auto`], it returns `First` with all documents while these stay in rank order, otherwise `Last`.
    fn placement(&self) -> Placement {
        Placement::FREE
    }

    /// Tells the policy that documents with this many estimated tokens in all were removed from the knowledge tree
    /// (documents believed to be cached).
    fn evicted(&mut self, tokens: u64) {
        let _ = tokens;
    }
}

/// The point in a prompt at which documents begin, as a node of the knowledge tree (documents believed to be cached) of
/// the tenant and model.
#[derive(Clone, Copy)]
pub struct Start<'t> {
    tree: &'t KnowledgeTree,
    scope: Scope,
    /// The node of the knowledge tree after which the documents follow; `None` if no document is believed to be cached
    /// after the prompt before them.
    node: Option<NodeId>,
    is_ranked: bool,
}

impl<'t> Start<'t> {
    /// Returns the [`Start`] of documents that directly follow the prompt text whose hash is `scope`.
    #[must_use]
    pub fn behind(tree: &'t KnowledgeTree, scope: Scope) -> Self {
        Self {
            tree,
            scope,
            node: tree.root(scope),
            is_ranked: true,
        }
    }

    /// Returns a copy of this start for documents that the client did not send in rank order: none of them is favoured
    /// (kept in a fixed place).
    #[must_use]
    pub fn unranked(self) -> Self {
        Self {
            is_ranked: false,
            ..self
        }
    }

    fn is_ranked(self) -> bool {
        self.is_ranked
    }

    /// Returns the [`Start`] of the documents that follow `document`, if `document` is the first one sent from this
    /// start on.
    fn after(self, document: DocumentId) -> Self {
        Self {
            node: self.node.and_then(|node| self.tree.child(node, document)),
            ..self
        }
    }

    /// Returns a copy of this start in the knowledge tree `tree`, which must be empty, so that no document counts as
    /// cached.
    fn in_empty<'e>(self, tree: &'e KnowledgeTree) -> Start<'e> {
        Start {
            tree,
            node: None,
            scope: self.scope,
            is_ranked: self.is_ranked,
        }
    }
}

/// A run of documents that a request sent one after another in its prompt.
#[derive(Clone, Copy, Debug)]
pub struct SentDocuments<'a> {
    /// Hash of the prompt before the first of these documents.
    pub scope: Scope,
    /// The fingerprints of the documents in the order sent, each with its estimated tokens.
    pub documents: &'a [(Fingerprint, u32)],
    /// For each of `documents`, its rank in the client's order. `None` if no policy ordered these documents for this
    /// request, as in a chat's earlier messages, whose documents stay in the order in which they were first forwarded.
    pub order: Option<&'a [u16]>,
}

/// The maximum number of documents that a policy orders at once, for one request; their ranks fit into 12 bits.
pub const MAX_CANDIDATES: u32 = 4096;

crate::named! {
    /// The ordering policies, with their names in the configuration.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum PolicyKind {
        /// Keeps the retriever's order of the documents.
        Retrieval = "retrieval",
        /// Orders documents pseudorandomly.
        Random = "random",
        /// Sorts documents by the ids that clients give them.
        Sorted = "sorted",
        /// Puts first the documents that were most recently used in the knowledge tree (those believed to be cached).
        Recency = "recency",
        /// Follows the knowledge tree (documents believed to be cached) from one document to the next, always to the
        /// best-ranked candidate (RAGCache++ Algorithm 1).
        Greedy = "greedy",
        /// Orders documents as those of the most similar earlier request were ordered (RAGBoost's context index).
        ContextIndex = "context-index",
        /// Puts the sequence of documents with the most cached tokens first, found by an exact search.
        Longest = "longest",
        /// Puts the sequence of documents with the most cached tokens first, then those that later requests will likely
        /// share.
        Foresight = "foresight",
    }
}

/// The validated options of all policies (rules that order documents); each policy reads those that it uses and ignores
/// the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyOptions {
    /// The seed of the pseudorandom order that the `random` policy applies.
    pub seed: u64,
    /// Number of recent requests of a tenant and model from which `foresight` learns.
    pub window: u16,
    /// The maximum number of positions by which `foresight` moves a document, up or down; unlimited if `None`. Favoured
    /// documents (`placement`) are moved farther, and are not counted where the others' positions are.
    pub max_displacement: Option<u16>,
    /// The maximum number of contexts (document sets of requests) that `context-index` keeps for a tenant and model.
    pub max_contexts: u32,
    /// True if `context-index` removes contexts (document sets of requests) whose documents the engine evicted, as
    /// RAGBoost does.
    pub forget_evicted: bool,
    /// The rules of `context-index` for searching and for its inner nodes.
    pub context_index: context_index::Rules,
    /// Number of tokens in a block of the engine's cache: if the documents at the beginning of an order that are
    /// believed to be cached have fewer tokens, `greedy`, `longest` and `foresight` count none as cached. With 1, any
    /// number counts.
    pub block_tokens: u32,
    /// The number of favoured documents (the retriever's best) and their place, for every policy except `retrieval`,
    /// which moves no document.
    pub placement: Placement,
}

impl PolicyOptions {
    /// Returns `policy` with the rule added that favoured documents (the retriever's best) are placed as configured.
    /// The others may follow any number of cached tokens.
    pub(crate) fn place(&self, policy: Box<dyn Policy>) -> Box<dyn Policy> {
        constrained::Constrained::of(policy, self.placement, 1)
    }
}

impl PolicyKind {
    /// Returns a new policy of this kind with these options, which has learnt nothing yet.
    #[must_use]
    pub fn build(self, options: &PolicyOptions) -> Box<dyn Policy> {
        let placed = |policy| options.place(policy);
        let paged =
            |policy| constrained::Constrained::of(policy, options.placement, options.block_tokens);
        match self {
            Self::Retrieval => Box::new(retrieval::Retrieval),
            Self::Random => placed(Box::new(random::Random::new(options.seed))),
            Self::Sorted => placed(Box::new(sorted::Sorted)),
            Self::Recency => placed(Box::new(recency::Recency)),
            Self::Greedy => paged(Box::new(greedy::Greedy)),
            Self::Longest => paged(Box::new(longest::Longest)),
            Self::ContextIndex => placed(Box::new(context_index::ContextIndex::of(options))),
            Self::Foresight => paged(Box::new(foresight::Foresight::new(
                options.window,
                Displacement(options.max_displacement),
            ))),
        }
    }
}

/// The maximum number of positions by which a policy may move a document up or down from its rank; unlimited if `None`.
#[derive(Clone, Copy, Debug)]
struct Displacement(Option<u16>);

impl Displacement {
    const ANY: Self = Self(None);

    /// Returns whether the document with this rank may come next in an order that begins with `path`, ranks chosen by
    /// this rule too. It may not in two cases: (1) that moves it farther than allowed; (2) another document must come
    /// next, or would be moved too far down. At least one of the remaining documents always may.
    fn next(self, path: &[u16], rank: u16) -> bool {
        let Self(Some(most)) = self else { return true };
        let (rank, place, most) = (usize::from(rank), path.len(), usize::from(most));
        let late = place.checked_sub(most).is_some_and(|last_chance| {
            last_chance != rank && !(path.iter()).any(|&placed| usize::from(placed) == last_chance)
        });
        rank <= place + most && !late
    }
}

/// The part of an order that is believed to be cached: the documents before the first one that is not cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Number of documents, from the order's first one on, that are believed to be cached.
    pub documents: u32,
    /// Estimated tokens of the documents at the order's beginning that are believed to be cached.
    pub tokens: u64,
}

/// Returns the number and the tokens of the documents at the beginning of `order` that are believed to be cached, if
/// they are sent from `start` on.
#[must_use]
pub fn match_of(candidates: &[Candidate<'_>], order: &Order, start: Start<'_>) -> Match {
    let mut found = Match::default();
    let Some(mut at) = start.node else {
        return found;
    };
    for candidate in (order.iter()).filter_map(|&rank| candidates.get(usize::from(rank))) {
        let Some(child) = start.tree.child(at, candidate.id) else {
            break;
        };
        at = child;
        found.documents += 1;
        found.tokens += u64::from(candidate.tokens);
    }
    found
}

/// Returns the fingerprints of the candidates, in rank order (best first).
#[must_use]
pub fn fingerprints(candidates: &[Candidate<'_>]) -> SmallVec<[Fingerprint; 16]> {
    let fingerprints = candidates.iter().map(|candidate| candidate.fingerprint);
    fingerprints.collect()
}

/// Returns the order of `count` documents in which each keeps its rank: `0..count`.
fn ranks(count: usize) -> Order {
    (0..u16::try_from(count).unwrap_or(u16::MAX)).collect()
}

/// Returns the order of `count` candidates that begins with the ranks `head`, followed by the other ranks in ascending
/// order (RAGCache++ Algorithm 1, line 12).
fn followed_by_rank(head: Order, count: usize) -> Order {
    let mut order = head;
    let mut placed: SmallVec<[bool; 32]> = SmallVec::from_elem(false, count);
    for &rank in &order {
        if let Some(placed) = placed.get_mut(usize::from(rank)) {
            *placed = true;
        }
    }
    order.extend(
        ranks(count)
            .into_iter()
            .zip(placed)
            .filter_map(|(rank, placed)| (!placed).then_some(rank)),
    );
    order
}

/// An index that finds a candidate's rank by its document id.
struct Lookup {
    /// Pairs of a candidate's document id and its rank, sorted.
    ranks: SmallVec<[(DocumentId, u16); 32]>,
}

impl Lookup {
    fn new(candidates: &[Candidate<'_>]) -> Self {
        let mut ranks: SmallVec<[_; 32]> = (candidates.iter())
            .zip(0_u16..)
            .map(|(candidate, rank)| (candidate.id, rank))
            .collect();
        sort_by_key(&mut ranks, |candidate| *candidate);
        Self { ranks }
    }

    /// Calls `found`, in no particular order, for every child of `node` whose document is a candidate, with the
    /// candidate's rank and the child node.
    fn matching_children(
        &self,
        tree: &KnowledgeTree,
        node: NodeId,
        mut found: impl FnMut(u16, NodeId),
    ) {
        // Walks the shorter of the two lists.
        if tree.fan_out(node) <= self.ranks.len() {
            for (document, child) in tree.children(node) {
                if let Ok(at) = self
                    .ranks
                    .binary_search_by_key(&document, |&(document, _)| document)
                    && let Some(&(_, rank)) = self.ranks.get(at)
                {
                    found(rank, child);
                }
            }
        } else {
            for &(document, rank) in &self.ranks {
                if let Some(child) = tree.child(node, document) {
                    found(rank, child);
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::tree::Bounds;
    use proptest::prelude::*;

    pub(crate) const SCOPE: Scope = Scope(0);

    /// Returns a knowledge tree in which the sequences of documents `paths` are cached, used in this order. Document
    /// `d` has `10 + d` tokens.
    pub(crate) fn tree_of(paths: &[&[u64]]) -> KnowledgeTree {
        let mut tree = KnowledgeTree::new(Bounds {
            max_nodes: 10_000,
            max_tokens: None,
        });
        for path in paths {
            let path: Vec<_> = (path.iter())
                .map(|&d| (tree.intern(Fingerprint(d)), weight(d)))
                .collect();
            tree.insert(SCOPE, path);
        }
        tree
    }

    fn weight(document: u64) -> u32 {
        10 + document as u32
    }

    pub(crate) fn candidates(
        tree: &mut KnowledgeTree,
        documents: &[u64],
    ) -> Vec<Candidate<'static>> {
        (documents.iter())
            .map(|&d| Candidate {
                id: tree.intern(Fingerprint(d)),
                fingerprint: Fingerprint(d),
                label: ["j", "i", "h", "g", "f", "e", "d", "c", "b", "a"][d as usize % 10],
                tokens: weight(d),
            })
            .collect()
    }

    /// Returns the documents in the order that the policy gives them.
    pub(crate) fn ordered(
        policy: &mut dyn Policy,
        paths: &[&[u64]],
        documents: &[u64],
    ) -> Vec<u64> {
        let mut tree = tree_of(paths);
        let candidates = candidates(&mut tree, documents);
        policy
            .order(&candidates, Start::behind(&tree, SCOPE))
            .iter()
            .map(|&rank| documents[rank as usize])
            .collect()
    }

    #[test]
    fn names_are_distinct_and_lead_back() {
        for kind in PolicyKind::ALL {
            assert_eq!(PolicyKind::by_name(kind.name()), Some(kind));
        }
        assert_eq!(PolicyKind::by_name("nonsense"), None);
    }

    #[test]
    fn a_match_ends_at_the_first_document_that_is_not_live() {
        let mut tree = tree_of(&[&[1, 2, 3]]);
        let candidates = candidates(&mut tree, &[1, 2, 9, 3]);
        let order = ranks(4);
        assert_eq!(
            match_of(&candidates, &order, Start::behind(&tree, SCOPE)),
            Match {
                documents: 2,
                tokens: 23
            }
        );
        assert_eq!(
            match_of(&candidates, &order, Start::behind(&tree, Scope(5))),
            Match::default()
        );
    }

    /// Returns every order of `count` documents.
    fn permutations(count: u16) -> Vec<Order> {
        if count == 0 {
            return vec![Order::new()];
        }
        let mut all = Vec::new();
        for shorter in permutations(count - 1) {
            for at in 0..count as usize {
                let mut order = shorter.clone();
                order.insert(at, count - 1);
                all.push(order);
            }
        }
        all
    }

    fn distinct(documents: &[u64]) -> Vec<u64> {
        let mut seen = std::collections::HashSet::new();
        (documents.iter())
            .copied()
            .filter(|d| seen.insert(*d))
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn policies_give_permutations_and_longest_is_as_good_as_trying_every_order(
            paths in prop::collection::vec(prop::collection::vec(0_u64..10, 0..7), 0..20),
            documents in prop::collection::vec(0_u64..10, 0..7),
        ) {
            let paths: Vec<Vec<u64>> = paths.iter().map(|path| distinct(path)).collect();
            let paths: Vec<&[u64]> = paths.iter().map(Vec::as_slice).collect();
            let documents = distinct(&documents);
            let mut tree = tree_of(&paths);
            let candidates = candidates(&mut tree, &documents);
            for kind in PolicyKind::ALL {
                let mut policy = kind.build(&PolicyOptions { window: 3, max_contexts: 3, forget_evicted: true, ..PolicyOptions::default() });
                for path in &paths {
                    let seen = self::candidates(&mut tree, path);
                    let order = policy.order(&seen, Start::behind(&tree, SCOPE));
                    policy.remember(&fingerprints(&seen), &order);
                    {
                        let sent: Vec<_> = order.iter().map(|&rank| (seen[rank as usize].fingerprint, 10)).collect();
                        policy.sent(&[SentDocuments { scope: SCOPE, documents: &sent, order: Some(&order) }]);
                        policy.evicted(5);
                    }
                }
                let order = policy.order(&candidates, Start::behind(&tree, SCOPE));
                let mut ranks_of: Vec<u16> = order.to_vec();
                ranks_of.sort_unstable();
                prop_assert_eq!(ranks_of, ranks(documents.len()).to_vec(), "{} is no permutation", kind.name());
            }
            let best = permutations(documents.len() as u16)
                .iter()
                .map(|order| match_of(&candidates, order, Start::behind(&tree, SCOPE)).tokens)
                .max()
                .unwrap_or(0);
            let longest = longest::Longest.order(&candidates, Start::behind(&tree, SCOPE));
            prop_assert_eq!(match_of(&candidates, &longest, Start::behind(&tree, SCOPE)).tokens, best);
        }
    }
}
