//! Which documents the engine's cache holds, and which order of a request's documents makes most of them.
//!
//! The engine's own feed is followed within the process: what a tree here holds is what the cache holds, tenant by
//! tenant, nothing is believed. A tenant is known by the key of its salt, as in the feed over HTTP.

use crate::kv::wire;
use foreword_engine::engine::feed::{Feed, Position};
use foreword_ordering::document::{Candidate, Fingerprint};
use foreword_ordering::feed::{Change, Follower, TenantKey};
use foreword_ordering::policy::{Match, PolicyKind, PolicyOptions, match_of};
use foreword_ordering::tree::{Bounds, KnowledgeTree, ResidencyEvent, Scope};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the engine holds. Followed when it is asked.
#[derive(Default)]
pub struct Held(Mutex<State>);

#[derive(Default)]
struct State {
    since: Option<Position>,
    follower: Follower,
    tenants: HashMap<TenantKey, Tenant>,
    /// Documents that were asked for: trees remember each, held or not.
    asked: usize,
}

struct Tenant {
    tree: KnowledgeTree,
    /// What stood before documents, the latest last.
    scopes: Vec<Scope>,
}

/// A document to be ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// As the gateway and the feed know it.
    pub fingerprint: Fingerprint,
    /// Estimated tokens.
    pub tokens: u32,
}

/// An order, and how much of it is held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ordered {
    /// Ranks, in the order in which the documents should stand.
    pub order: Vec<u16>,
    /// What the cache holds of that.
    pub matched: u32,
    /// Its estimated tokens.
    pub matched_tokens: u64,
}

/// Events looked at in one go.
const BATCH: usize = 4_096;
/// Beginnings of prompts that are looked at where the caller does not know which will be his.
const SCOPES: usize = 64;
const BOUNDS: Bounds = Bounds {
    max_nodes: 1 << 20,
    max_tokens: None,
};
/// After so many a tree is made anew, from the feed's snapshot.
const MAX_ASKED: usize = 1 << 18;

impl Held {
    /// The best order of `documents`, which stand in rank order, for the tenant of `salt`: behind `scope`, or behind
    /// whatever has the most of them.
    pub fn order(
        &self,
        feed: &Feed,
        salt: &str,
        scope: Option<Scope>,
        documents: &[Known],
    ) -> Ordered {
        let mut state = self.lock();
        state.follow(feed);
        let ranks = || (0..documents.len() as u16).collect();
        let unknown = Ordered {
            order: ranks(),
            ..Ordered::default()
        };
        let Some(Tenant { tree, scopes }) = state.tenants.get_mut(&TenantKey::of(salt)) else {
            return unknown;
        };
        let candidates: Vec<Candidate<'_>> = documents
            .iter()
            .map(|known| Candidate {
                id: tree.intern(known.fingerprint),
                fingerprint: known.fingerprint,
                label: "",
                tokens: known.tokens,
            })
            .collect();
        let mut policy = PolicyKind::Longest.build(&PolicyOptions::default());
        let mut best: (Match, Option<Vec<u16>>) = Default::default();
        for scope in scope.map_or_else(|| scopes.clone(), |scope| vec![scope]) {
            let order = policy.order(&candidates, tree, scope);
            let found = match_of(&candidates, &order, tree, scope);
            if found.tokens > best.0.tokens {
                best = (found, Some(order.to_vec()));
            }
        }
        state.asked += documents.len();
        let (found, order) = best;
        Ordered {
            order: order.unwrap_or_else(ranks),
            matched: found.documents,
            matched_tokens: found.tokens,
        }
    }

    /// What is in there is valid after every change.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Catches up with the engine.
    fn follow(&mut self, feed: &Feed) {
        if self.asked > MAX_ASKED {
            *self = Self::default();
        }
        loop {
            let news = feed.documents_since(self.since, BATCH);
            let batch = wire::batch(&news, "", None);
            let position = wire::position(batch.epoch, batch.next);
            let is_all = batch.reset || self.since == Some(position);
            for change in self.follower.follow(&batch) {
                match change {
                    Change::Forget => self.tenants.clear(),
                    Change::Tenant(key, event) => self.tenants.entry(key).or_default().apply(event),
                }
            }
            self.since = Some(position);
            if is_all || feed.watch().borrow().documents <= batch.next {
                return;
            }
        }
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self {
            tree: KnowledgeTree::new(BOUNDS),
            scopes: Vec::new(),
        }
    }
}

impl Tenant {
    fn apply(&mut self, event: ResidencyEvent<'_>) {
        if let ResidencyEvent::Stored { scope, .. } = event {
            self.scopes.retain(|other| *other != scope);
            if self.scopes.len() == SCOPES {
                self.scopes.remove(0);
            }
            self.scopes.push(scope);
        }
        self.tree.apply(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_engine::cache::CacheEvent;
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

    fn known(documents: &[u64]) -> Vec<Known> {
        let known = |&document: &u64| Known {
            fingerprint: Fingerprint(document),
            tokens: 10,
        };
        documents.iter().map(known).collect()
    }

    #[test]
    fn documents_that_are_held_come_first_until_they_are_not() {
        let (feed, held) = (Feed::new(), Held::default());
        let order = |scope, documents: &[u64]| held.order(&feed, "t", scope, &known(documents));
        assert_eq!(order(None, &[1, 2, 3]).order, [0, 1, 2]);
        feed.publish(vec![stored("t", 7, &[3]), stored("t", 7, &[3, 1])]);
        let found = order(Some(Scope(7)), &[1, 2, 3]);
        assert_eq!(
            (found.order, found.matched, found.matched_tokens),
            (vec![2, 0, 1], 2, 20)
        );
        // Behind something else the cache holds nothing; where nobody says what will stand before, this will do.
        assert_eq!(order(Some(Scope(8)), &[1, 2, 3]).order, [0, 1, 2]);
        assert_eq!(order(None, &[1, 2, 3]).matched, 2);
        feed.publish(vec![removed("t", 7, &[3, 1])]);
        assert_eq!(order(None, &[1, 2, 3]).order, [2, 0, 1]);
        feed.publish(vec![CacheEvent::Cleared]);
        assert_eq!(order(None, &[1, 2, 3]).matched, 0);
    }

    #[test]
    fn a_tenant_sees_nothing_of_another() {
        let (feed, held) = (Feed::new(), Held::default());
        feed.publish(vec![stored("t", 7, &[3, 1])]);
        assert_eq!(held.order(&feed, "u", None, &known(&[1, 3])).matched, 0);
        assert_eq!(held.order(&feed, "t", None, &known(&[1, 3])).order, [1, 0]);
    }

    #[test]
    fn a_feed_that_begins_anew_is_followed_from_its_beginning() {
        let (feed, held) = (Feed::new(), Held::default());
        feed.publish(vec![stored("t", 7, &[3, 1])]);
        assert_eq!(held.order(&feed, "t", None, &known(&[1, 3])).matched, 2);
        feed.restart();
        assert_eq!(held.order(&feed, "t", None, &known(&[1, 3])).matched, 0);
        feed.publish(vec![stored("t", 7, &[1])]);
        assert_eq!(held.order(&feed, "t", None, &known(&[3, 1])).order, [1, 0]);
    }
}
