//! The state learnt from the heads of prompts (tools, system text), by tenant and model. It is separate from the state
//! of documents: most chats with a head bring no documents, and must not evict a knowledge tree.

use crate::config::Config;
use crate::head::stabilise::Heads;
use crate::tenant::{Tenant, key_of};
use fxhash::FxHashMap;

/// The state learnt from the heads of prompts (tools, system text), for at most `tree.max_trees` pairs of tenant and
/// model.
#[derive(Default)]
pub(super) struct HeadKeep {
    all: FxHashMap<String, Entry>,
}

struct Entry {
    /// The name of the tenant.
    tenant: Box<str>,
    last_used: u64,
    heads: Heads,
}

impl HeadKeep {
    /// Returns the state learnt from the heads (tools, system text) of a tenant's and model's prompts; creates an empty
    /// state if there is none. If `tree.max_trees` states are stored, this first removes the least recently used state
    /// of the tenant (or tenants) with the most states.
    pub(super) fn of(
        &mut self,
        config: &Config,
        now: u64,
        tenant: Tenant<'_>,
        model: &str,
    ) -> &mut Heads {
        let key = key_of(tenant, model);
        if !self.all.contains_key(&key)
            && self.all.len() >= config.max_trees as usize
            && let Some(key) = self.eviction_candidate()
        {
            self.all.remove(&key);
        }
        let entry = self.all.entry(key).or_insert_with(|| Entry {
            tenant: tenant.name.into(),
            last_used: now,
            heads: Heads::default(),
        });
        entry.last_used = now;
        &mut entry.heads
    }

    /// Returns the state learnt from the heads (tools, system text) of a tenant's and model's prompts; `None` if there
    /// is none.
    pub(super) fn get_mut(&mut self, tenant: Tenant<'_>, model: &str) -> Option<&mut Heads> {
        let entry = self.all.get_mut(&key_of(tenant, model))?;
        Some(&mut entry.heads)
    }

    fn eviction_candidate(&self) -> Option<String> {
        let mut counts: FxHashMap<&str, u32> = FxHashMap::default();
        for entry in self.all.values() {
            *counts.entry(&entry.tenant).or_default() += 1;
        }
        let most = counts.values().copied().max();
        let candidates = self.all.iter();
        candidates
            .filter(|(_, entry)| counts.get(&*entry.tenant).copied() == most)
            .min_by_key(|(_, entry)| entry.last_used)
            .map(|(key, _)| key.clone())
    }
}
