//! The states of tenants and models (knowledge trees, policy, memory of chats), and the choice of the state to evict
//! when there are too many.

use crate::client_order::ClientOrder;
use crate::config::Config;
use crate::conversation::memory::Memory;
use crate::engines::EngineId;
use crate::feed::TenantKey;
use crate::head::contexts::{BareQuestions, ContextMemory};
use crate::head::decision::ContextMessage;
use crate::peer_update::SentRun;
use crate::policy::Policy;
use crate::policy::SentDocuments;
use crate::tenant::{Tenant, key_of};
use crate::tree::ResidencyEvent;
use crate::trees::Trees;
use fxhash::FxHashMap;
use smallvec::SmallVec;

/// The states (knowledge trees, policy, memory of chats) of at most `tree.max_trees` pairs of tenant and model.
#[derive(Default)]
pub(super) struct TenantStore {
    /// The states, each under the key that [`key_of`] returns for its tenant and model.
    all: FxHashMap<String, TenantState>,
}

/// The state of one tenant and model: knowledge trees, policy and memory of chats.
pub(super) struct TenantState {
    /// The tenant's name; empty if the gateway does not distinguish tenants.
    pub(super) tenant: Box<str>,
    pub(super) key: TenantKey,
    pub(super) model: Box<str>,
    pub(super) trees: Trees,
    pub(super) policy: Box<dyn Policy>,
    /// A simulated cache of the same prompts with documents in their clients' order, to measure what ordering saves.
    pub(super) client_order: ClientOrder,
    pub(super) memory: Memory,
    /// Messages that were forwarded with contexts (retrieved documents), which their clients omit in later turns.
    pub(super) contexts: ContextMemory,
    last_used: u64,
    /// True if a request through this process used the state. If not, the state was created by an engine's feed of
    /// cache events or another gateway's update, and has only knowledge trees (documents believed to be cached).
    is_own: bool,
}

impl TenantStore {
    /// Returns the state of a tenant and model for a request, and sets its last use to `now`; creates it if there is
    /// none. When the store is full, this evicts another state, if possible one that no request through this process
    /// has used.
    pub(super) fn of(
        &mut self,
        config: &Config,
        now: u64,
        tenant: Tenant<'_>,
        model: &str,
    ) -> &mut TenantState {
        let key = key_of(tenant, model);
        if !self.all.contains_key(&key)
            && self.is_full(config)
            && let Some(key) =
                (self.oldest_foreign()).or_else(|| self.eviction_candidate(tenant.name))
        {
            self.all.remove(&key);
        }
        let new = || TenantState::new(config, tenant, model);
        let state = self.all.entry(key).or_insert_with(new);
        (state.last_used, state.is_own) = (now, true);
        state
    }

    /// Returns the state of a tenant and model for an update from an engine's feed of cache events or another gateway;
    /// creates it if there is none. When the store is full, this evicts only a state that no request through this
    /// process has used, since the others hold chats' documents. Returns `None` if the store is full of such others.
    pub(super) fn heard(
        &mut self,
        config: &Config,
        now: u64,
        tenant: Tenant<'_>,
        model: &str,
    ) -> Option<&mut TenantState> {
        let key = key_of(tenant, model);
        if !self.all.contains_key(&key) && self.is_full(config) {
            let oldest = self.oldest_foreign()?;
            self.all.remove(&oldest);
        }
        let new = || TenantState::new(config, tenant, model);
        let state = self.all.entry(key).or_insert_with(new);
        if !state.is_own {
            state.last_used = now;
        }
        Some(state)
    }

    /// Returns the state of a tenant and model without changing its last use; `None` if there is none that a request
    /// through this process has used.
    pub(super) fn get(&self, tenant: Tenant<'_>, model: &str) -> Option<&TenantState> {
        self.any(tenant, model).filter(|state| state.is_own)
    }

    /// Returns the state of a tenant and model, to be changed, without changing its last use; `None` if there is none
    /// that a request through this process has used.
    pub(super) fn get_mut(&mut self, tenant: Tenant<'_>, model: &str) -> Option<&mut TenantState> {
        self.any_mut(tenant, model).filter(|state| state.is_own)
    }

    /// Returns the state of a tenant and model without changing its last use, even if only an engine's feed of cache
    /// events or another gateway's update created it; `None` if there is none.
    pub(super) fn any(&self, tenant: Tenant<'_>, model: &str) -> Option<&TenantState> {
        self.all.get(&key_of(tenant, model))
    }

    /// Returns the state of a tenant and model, to be changed, without changing its last use, even if only an engine's
    /// feed of cache events or another gateway's update created it; `None` if there is none.
    pub(super) fn any_mut(&mut self, tenant: Tenant<'_>, model: &str) -> Option<&mut TenantState> {
        self.all.get_mut(&key_of(tenant, model))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &TenantState> {
        self.all.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut TenantState> {
        self.all.values_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    fn is_full(&self, config: &Config) -> bool {
        self.all.len() >= config.max_trees as usize
    }

    /// Returns the key of the least recently updated state among those that no request through this process has used;
    /// `None` if there is none. Such states were created by an engine's feed of cache events or another gateway.
    fn oldest_foreign(&self) -> Option<String> {
        let heard = self.all.iter().filter(|(_, state)| !state.is_own);
        let oldest = heard.min_by_key(|(_, state)| state.last_used);
        oldest.map(|(key, _)| key.clone())
    }

    /// Returns the key of the state to evict for a new one of `tenant`: the least recently used state of the tenant
    /// that has the most states. Counting the new state, `tenant` itself gives one up unless another tenant still has
    /// more. So each of n tenants in use keeps an n-th of `tree.max_trees` states, however many models another tenant
    /// names. O(states), once for each new state.
    fn eviction_candidate(&self, tenant: &str) -> Option<String> {
        let mut counts: FxHashMap<&str, u32> = FxHashMap::default();
        for state in self.all.values() {
            *counts.entry(&state.tenant).or_default() += 1;
        }
        let own = counts.get(tenant).copied().unwrap_or_default();
        let most = counts.values().copied().max().unwrap_or_default();
        let gives = |state: &TenantState| {
            if own > 0 && most <= own + 1 {
                *state.tenant == *tenant
            } else {
                counts.get(&*state.tenant) == Some(&most)
            }
        };
        let candidates = self.all.iter().filter(|(_, state)| gives(state));
        candidates
            .min_by_key(|(_, state)| state.last_used)
            .map(|(key, _)| key.clone())
    }
}

impl TenantState {
    fn new(config: &Config, tenant: Tenant<'_>, model: &str) -> Self {
        Self {
            tenant: tenant.name.into(),
            key: tenant.key,
            model: model.into(),
            trees: Trees::new(config.tree),
            policy: config.policy(),
            client_order: ClientOrder::new(config.tree),
            memory: Memory::new(config.memory),
            contexts: ContextMemory::new(config.memory),
            last_used: 0,
            is_own: false,
        }
    }

    /// Records a message that was sent with contexts (retrieved documents). If the same question may also have been
    /// sent without contexts, the contexts might belong to another chat and are not restored in any further one.
    pub(super) fn record_contexts(&mut self, bare: &BareQuestions, message: ContextMessage) {
        let key = message.key;
        let owner = hash_of(self.tenant(), &self.model);
        self.contexts.record(message);
        if bare.may_hold(owner, key) {
            self.contexts.contest(key);
        }
    }

    fn tenant(&self) -> Tenant<'_> {
        Tenant {
            name: &self.tenant,
            key: self.key,
        }
    }

    /// Records documents that another orderer (another worker or gateway) forwarded, in the order sent and in their
    /// clients' order.
    pub(super) fn learn(&mut self, engine: EngineId, runs: &[SentRun]) {
        for run in runs {
            if let Some(order) = &run.order {
                self.client_order.send(run.scope, &run.ranked(order));
            }
        }
        self.take(engine, runs);
    }

    /// Records forwarded documents, in runs of adjacent ones: adds them to the engine's knowledge tree, as cached from
    /// now on, and lets the policy learn their order.
    pub(super) fn take(&mut self, engine: EngineId, runs: &[SentRun]) {
        for run in runs {
            if let Some(order) = &run.order {
                let ranked = run.ranked(order);
                let ranked: SmallVec<[_; 16]> =
                    ranked.iter().map(|(document, _)| *document).collect();
                match run.is_ranked {
                    true => self.policy.remember(&ranked, order),
                    false => self.policy.remember_unranked(&ranked, order),
                }
            }
        }
        let sent: SmallVec<[SentDocuments<'_>; 4]> = runs.iter().map(SentRun::sent).collect();
        self.policy.sent(&sent);
        let tree = self.trees.of(engine);
        for run in runs {
            tree.hold(run.scope, &run.documents);
        }
        self.policy.evicted(tree.take_evicted());
    }

    /// Applies a change of an engine's cache to that engine's knowledge tree, as the engine's feed of cache events
    /// reports it or as the cached tokens in a response show it.
    pub(super) fn apply(&mut self, engine: EngineId, event: ResidencyEvent<'_>) {
        let tree = self.trees.of(engine);
        tree.apply(event);
        self.policy.evicted(tree.take_evicted());
    }
}

/// Returns a 128-bit hash of a tenant's name and key and of a model's name.
pub(super) fn hash_of(tenant: Tenant<'_>, model: &str) -> u128 {
    xxhash_rust::xxh3::xxh3_128(key_of(tenant, model).as_bytes())
}
