//! Tracks which documents the engine has cached, and orders a request's documents by them.
//!
//! The engine's own feed is read within the process. For each tenant, identified by the key of its salt as in the feed
//! over HTTP, there is a knowledge tree of the cached documents. Each tenant also has the gateway's ordering policy,
//! which learns from the chats whose documents were retrieved here; it is dropped when nothing of the tenant is cached.

use crate::kv::wire;
use foreword_engine::engine::feed::{Feed, Position};
use foreword_ordering::Config;
use foreword_ordering::document::{Candidate, Fingerprint};
use foreword_ordering::feed::{Follower, TenantKey};
use foreword_ordering::policy::{
    Match, Order, Placement, Policy, SentDocuments, Split, Start, match_of,
};
use foreword_ordering::tree::{Bounds, KnowledgeTree, ResidencyEvent, Scope};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Orders documents by what the engine has cached. Reads the new events of the engine's feed whenever an order is
/// requested.
pub struct Orders {
    /// The ordering configuration, from which each tenant's policy is made.
    ordering: Config,
    /// The number of best-ranked documents that keep a fixed position in the prompt, and that position, for tenants of
    /// which nothing is cached.
    placement: Placement,
    /// The state of each tenant. Valid after each line that changes it, so a panic under the lock does no harm.
    state: Mutex<OrdersState>,
}

#[derive(Default)]
struct OrdersState {
    since: Option<Position>,
    follower: Follower,
    tenants: HashMap<TenantKey, Tenant>,
    /// Number of documents ordered since the trees were empty. A tree stores an id for each of them, cached or not.
    asked: usize,
}

struct Tenant {
    tree: KnowledgeTree,
    /// The tenant's scopes (hashes of the prompt before its documents) behind which documents were cached, latest last,
    /// at most [`SCOPES`].
    scopes: Vec<Scope>,
    policy: Box<dyn Policy>,
}

/// A document to order, with its hash and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known<'a> {
    /// Id of the document in the collection.
    pub id: &'a str,
    /// The document's fingerprint (hash), as the gateway computes it and the feed reports it.
    pub fingerprint: Fingerprint,
    /// Estimated number of tokens in the document.
    pub tokens: u32,
}

/// An order of documents, and how many of the first ones are cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ordered {
    /// The documents' ranks, 0 for the retriever's best, in their order in the prompt.
    pub order: Vec<u16>,
    /// Number of documents at the beginning of `order` that the engine has cached in this order.
    pub matched: u32,
    /// Estimated number of tokens in the first `matched` documents.
    pub matched_tokens: u64,
}

/// Maximum number of events read from the engine's feed at once.
const BATCH: usize = 4_096;
/// Maximum number of scopes (hashes of the prompt before its documents) that are recorded for each tenant, and tried if
/// the caller does not know the prompt's own.
const SCOPES: usize = 64;
const BOUNDS: Bounds = Bounds {
    max_nodes: 1 << 20,
    max_tokens: None,
};
/// Number of ordered documents after which the trees are built again from the feed's snapshot, to drop ids of documents
/// that are not cached.
const MAX_ASKED: usize = 1 << 18;

impl Orders {
    /// Returns the state for an engine whose feed has not been read yet.
    #[must_use]
    pub fn new(ordering: Config) -> Self {
        Self {
            placement: ordering.policy().placement(),
            ordering,
            state: Mutex::default(),
        }
    }

    /// Returns the order of `documents`, which are given best first, that the policy chooses for the tenant of `salt`.
    ///
    /// In the prompt the documents follow `scope` (a hash of the text before them), or if it is `None`, the recorded
    /// scope after which most of their tokens are cached. If nothing of the tenant is cached, they stay in the given
    /// order, except that the best-ranked ones get their fixed positions.
    pub fn choose(
        &self,
        feed: &Feed,
        salt: &str,
        scope: Option<Scope>,
        documents: &[Known<'_>],
    ) -> Ordered {
        let mut state = self.state.lock();
        state.follow(feed, &self.ordering);
        let placement = state.placement(salt).unwrap_or(self.placement);
        let split = placement.split(documents.len());
        let others: Vec<u16> = (0..documents.len() as u16 - split.shared).collect();
        let ranked = Ordered {
            order: split.with(&others).to_vec(),
            ..Ordered::default()
        };
        let Some(tenant) = state.tenants.get_mut(&TenantKey::of(salt)) else {
            return ranked;
        };
        let tree = &mut tenant.tree;
        let candidates: Vec<Candidate<'_>> = documents
            .iter()
            .map(|known| Candidate {
                id: tree.intern(known.fingerprint),
                fingerprint: known.fingerprint,
                label: known.id,
                tokens: known.tokens,
            })
            .collect();
        let mut best: Option<(Match, Order)> = None;
        for scope in scope.as_ref().map_or(&*tenant.scopes, std::slice::from_ref) {
            let order = tenant
                .policy
                .order(&candidates, Start::behind(tree, *scope));
            let found = match_of(&candidates, &order, Start::behind(tree, *scope));
            if best
                .as_ref()
                .is_none_or(|(most, _)| found.tokens > most.tokens)
            {
                best = Some((found, order));
            }
        }
        state.asked += documents.len();
        best.map_or(ranked, |(found, order)| Ordered {
            order: order.to_vec(),
            matched: found.documents,
            matched_tokens: found.tokens,
        })
    }

    /// Divides the `count` documents retrieved for the tenant of `salt` into the best-ranked ones, which keep fixed
    /// positions, and those that the policy orders.
    #[must_use]
    pub fn split(&self, salt: &str, count: usize) -> Split {
        let known = self.state.lock().placement(salt);
        known.unwrap_or(self.placement).split(count)
    }

    /// Records for the policy that a chat of the tenant of `salt` sends `documents` in this order. `ranks` has the rank
    /// of each, 0 for the retriever's best. Does nothing if nothing of the tenant is cached.
    pub fn remember(&self, salt: &str, documents: &[Fingerprint], ranks: &[u16]) {
        let mut state = self.state.lock();
        let Some(tenant) = state.tenants.get_mut(&TenantKey::of(salt)) else {
            return;
        };
        let mut ranked = documents.to_vec();
        for (document, &rank) in documents.iter().zip(ranks) {
            if let Some(place) = ranked.get_mut(usize::from(rank)) {
                *place = *document;
            }
        }
        tenant.policy.remember(&ranked, ranks);
    }
}

impl OrdersState {
    /// Returns how many of the best-ranked documents currently keep a fixed position for the tenant of `salt`, and
    /// which; `None` if nothing of the tenant is cached.
    fn placement(&self, salt: &str) -> Option<Placement> {
        let tenant = self.tenants.get(&TenantKey::of(salt))?;
        Some(tenant.policy.placement())
    }

    /// Applies the new events of the engine's feed, up to its end.
    fn follow(&mut self, feed: &Feed, ordering: &Config) {
        if self.asked > MAX_ASKED {
            *self = Self::default();
        }
        loop {
            let news = feed.documents_since(self.since, BATCH);
            let batch = wire::batch(&news, "", None);
            let position = wire::position(batch.epoch, batch.next);
            let is_all = batch.reset || self.since == Some(position);
            for event in self.follower.follow(&batch) {
                let Some(key) = event.tenant() else {
                    self.tenants.clear();
                    continue;
                };
                let tenant = self.tenants.entry(key);
                let tenant = tenant.or_insert_with(|| Tenant::new(ordering));
                tenant.apply(event.residency());
                // Empty scopes stay in a tree, so tokens are checked.
                if tenant.tree.tokens() == 0 {
                    self.tenants.remove(&key);
                }
            }
            self.since = Some(position);
            if is_all || feed.watch().borrow().documents <= batch.next {
                return;
            }
        }
    }
}

impl Tenant {
    fn new(ordering: &Config) -> Self {
        Self {
            tree: KnowledgeTree::new(BOUNDS),
            scopes: Vec::new(),
            policy: ordering.policy(),
        }
    }

    fn apply(&mut self, event: ResidencyEvent<'_>) {
        if let ResidencyEvent::Stored { scope, path } = event {
            self.policy.sent(&[SentDocuments {
                scope,
                documents: path,
                order: None,
            }]);
            self.scopes.retain(|other| *other != scope);
            if self.scopes.len() == SCOPES {
                self.scopes.remove(0);
            }
            self.scopes.push(scope);
        }
        self.tree.apply(event);
        self.policy.evicted(self.tree.take_evicted());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_engine::cache::CacheEvent;
    use foreword_ordering::policy::Place;
    use std::sync::Arc;

    fn stored(salt: &str, scope: u64, documents: &[u64]) -> CacheEvent {
        CacheEvent::DocumentsStored {
            salt: Arc::from(salt),
            scope,
            path: documents.iter().map(|document| (*document, 10)).collect(),
        }
    }

    fn removed(salt: &str, scope: u64, documents: &[u64]) -> CacheEvent {
        CacheEvent::DocumentsRemoved {
            salt: Arc::from(salt),
            scope,
            path: documents.iter().map(|document| (*document, 10)).collect(),
        }
    }

    fn known(documents: &[u64]) -> Vec<Known<'static>> {
        let known = |&document: &u64| Known {
            id: "",
            fingerprint: Fingerprint(document),
            tokens: 10,
        };
        documents.iter().map(known).collect()
    }

    #[test]
    fn documents_that_are_held_come_first_until_they_are_not() {
        let (feed, orders) = (
            Feed::new(),
            Orders::new(Config::default().with_placement(Placement::FREE)),
        );
        let order = |scope, documents: &[u64]| orders.choose(&feed, "t", scope, &known(documents));
        assert_eq!(order(None, &[1, 2, 3]).order, [0, 1, 2]);
        feed.publish(vec![stored("t", 7, &[3]), stored("t", 7, &[3, 1])]);
        let found = order(Some(Scope(7)), &[1, 2, 3]);
        assert_eq!(
            (found.order, found.matched, found.matched_tokens),
            (vec![2, 0, 1], 2, 20)
        );
        // After another prefix the cache holds nothing; without a scope, the best one is used.
        assert_eq!(order(Some(Scope(8)), &[1, 2, 3]).order, [0, 1, 2]);
        assert_eq!(order(None, &[1, 2, 3]).matched, 2);
        feed.publish(vec![removed("t", 7, &[3, 1])]);
        assert_eq!(order(None, &[1, 2, 3]).order, [2, 0, 1]);
        feed.publish(vec![CacheEvent::Cleared]);
        assert_eq!(order(None, &[1, 2, 3]).matched, 0);
    }

    #[test]
    fn the_best_document_keeps_its_place_whatever_is_held() {
        let last = Placement {
            place: Place::Last,
            documents: 1,
        };
        let (feed, orders) = (
            Feed::new(),
            Orders::new(Config::default().with_placement(last)),
        );
        let order = |documents: &[u64]| orders.choose(&feed, "t", None, &known(documents)).order;
        assert_eq!(order(&[1, 2, 3]), [1, 2, 0]);
        feed.publish(vec![stored("t", 7, &[1]), stored("t", 7, &[3])]);
        assert_eq!(order(&[1, 2, 3]), [2, 1, 0]);
    }

    #[test]
    fn a_tenant_sees_nothing_of_another() {
        let (feed, orders) = (
            Feed::new(),
            Orders::new(Config::default().with_placement(Placement::FREE)),
        );
        feed.publish(vec![stored("t", 7, &[3, 1])]);
        assert_eq!(orders.choose(&feed, "u", None, &known(&[1, 3])).matched, 0);
        assert_eq!(
            orders.choose(&feed, "t", None, &known(&[1, 3])).order,
            [1, 0]
        );
    }

    #[test]
    fn a_feed_that_begins_anew_is_followed_from_its_beginning() {
        let (feed, orders) = (
            Feed::new(),
            Orders::new(Config::default().with_placement(Placement::FREE)),
        );
        feed.publish(vec![stored("t", 7, &[3, 1])]);
        assert_eq!(orders.choose(&feed, "t", None, &known(&[1, 3])).matched, 2);
        feed.restart();
        assert_eq!(orders.choose(&feed, "t", None, &known(&[1, 3])).matched, 0);
        feed.publish(vec![stored("t", 7, &[1])]);
        assert_eq!(
            orders.choose(&feed, "t", None, &known(&[3, 1])).order,
            [1, 0]
        );
    }

    #[test]
    fn what_is_not_held_stands_as_the_policy_has_learnt() {
        let (feed, orders) = (
            Feed::new(),
            Orders::new(Config::default().with_placement(Placement::FREE)),
        );
        let order = || {
            orders
                .choose(&feed, "t", Some(Scope(7)), &known(&[1, 2, 3]))
                .order
        };
        feed.publish(vec![stored("t", 7, &[3])]);
        assert_eq!(order(), [2, 0, 1]);
        // Requests for 3 may also be for 2 again.
        orders.remember("t", &[3, 2, 4].map(Fingerprint), &[1, 0, 2]);
        assert_eq!(order(), [2, 1, 0]);
        // A policy's state stays with its tenant, and is dropped with its last document.
        feed.publish(vec![stored("u", 7, &[3])]);
        assert_eq!(
            orders.choose(&feed, "u", None, &known(&[1, 2, 3])).order,
            [2, 0, 1]
        );
        feed.publish(vec![removed("t", 7, &[3]), stored("t", 7, &[3])]);
        assert_eq!(order(), [2, 0, 1]);
    }

    #[test]
    fn the_policy_is_the_one_configured() {
        let config = Config::from_json(br#"{"policy": "retrieval"}"#).unwrap();
        let (feed, orders) = (Feed::new(), Orders::new(config));
        feed.publish(vec![stored("t", 7, &[3, 1]), stored("t", 7, &[1])]);
        let found = orders.choose(&feed, "t", None, &known(&[1, 3]));
        assert_eq!((found.order, found.matched), (vec![0, 1], 1));
    }

    #[test]
    fn tenants_of_whom_nothing_is_held_are_forgotten() {
        let (feed, orders) = (
            Feed::new(),
            Orders::new(Config::default().with_placement(Placement::FREE)),
        );
        let matched = |tenant| orders.choose(&feed, tenant, None, &known(&[3])).matched;
        feed.publish(vec![stored("t", 7, &[3]), stored("u", 7, &[3])]);
        assert_eq!((matched("t"), orders.state.lock().tenants.len()), (1, 2));
        feed.publish(vec![removed("t", 7, &[3])]);
        assert_eq!((matched("t"), orders.state.lock().tenants.len()), (0, 1));
    }
}
