//! Configuration of a prefix cache.

use super::disk_tier::DiskTier;
use super::tiers::policy::EvictionPolicy;
use std::fmt;
use std::sync::Arc;

/// The cost of prefill as a function of (cached tokens, new tokens): seconds to compute the new ones after the cached
/// ones.
pub type Cost = dyn Fn(u32, u32) -> f64 + Send + Sync;

/// Configuration of a prefix cache: which pages it keeps once no running sequence holds them, and where.
#[derive(Clone)]
pub struct CacheConfig {
    /// The order in which pages are evicted, on the device and from host memory.
    pub policy: EvictionPolicy,
    /// Cost of computing a prompt, by which some policies rank pages; with `None`, every token costs the same.
    pub cost: Option<Arc<Cost>>,
    /// Share of the host's pages, 0 to 1, that may hold replicas: copies of the most used pages that are still on the
    /// device, made so that they survive the loss of the device's memory.
    pub replicated_share: f64,
    /// The disk tier, which receives the pages that are evicted from host memory; with `None` they are dropped.
    pub disk: Option<Arc<dyn DiskTier>>,
    /// Bounds of the copies on `disk` of pages that are still in memory, made in case the process ends.
    pub disk_replicas: DiskReplicaBounds,
    /// Number of a prompt's leading documents whose pages stay in the cache; `None` keeps all. The pages of a prompt
    /// with more documents are kept up to the end of the last of these (RAGCache §5.4).
    pub max_documents: Option<u32>,
    /// Hash of the model and of everything else that the pages' content depends on besides tokens. It is part of each
    /// page's hash, see [`PageHash::root`](super::PageHash::root).
    pub identity: u64,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            policy: EvictionPolicy::default(),
            cost: None,
            replicated_share: 0.05,
            disk: None,
            disk_replicas: DiskReplicaBounds::default(),
            max_documents: None,
            identity: 0,
        }
    }
}

impl fmt::Debug for CacheConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheConfig")
            .field("policy", &self.policy)
            .field("cost", &self.cost.is_some())
            .field("replicated_share", &self.replicated_share)
            .field("disk", &self.disk.is_some())
            .field("disk_replicas", &self.disk_replicas)
            .field("max_documents", &self.max_documents)
            .field("identity", &self.identity)
            .finish()
    }
}

/// Bounds of the copies on disk of pages that are still in memory, for one cache. The default keeps no copies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiskReplicaBounds {
    /// Maximum number of pages in memory that count as having a copy on disk at one time.
    pub pages: u32,
    /// Maximum number of pages copied to disk per second, on average.
    pub pages_per_second: f64,
    /// Maximum number of pages copied to disk before one step, since the engine's thread copies their bytes.
    pub pages_per_step: u32,
}

/// Sizes of a backend's pools of KV pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Number of pages in the memory that the device computes on.
    pub device: u32,
    /// Number of pages in the pool in host memory.
    pub host: u32,
    /// Number of tokens whose KV state fits a page, at least one.
    pub tokens: u32,
}
