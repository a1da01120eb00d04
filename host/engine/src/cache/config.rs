//! Configuration of a prefix cache.

use super::disk_tier::DiskTier;
use super::tiers::policy::EvictionPolicy;
use std::fmt;
use std::sync::Arc;

/// Seconds of prefill as a function of `(cached tokens, new tokens)`.
pub type Cost = dyn Fn(u32, u32) -> f64 + Send + Sync;

/// Configuration of a prefix cache: which pages it keeps once no running sequence holds them, and where.
#[derive(Clone)]
pub struct CacheConfig {
    /// Ranks pages for eviction, on the device and in host memory.
    pub policy: EvictionPolicy,
    /// Cost of computing a prompt; with `None`, every token costs the same.
    pub cost: Option<Arc<Cost>>,
    /// Share of the host's pages, 0 to 1, that may hold replicas: copies of the most used pages that are still on the
    /// device, so that they survive the loss of its memory.
    pub replicated_share: f64,
    /// Receives the pages that are evicted from host memory; `None` drops them.
    pub disk: Option<Arc<dyn DiskTier>>,
    /// Bounds of copies on `disk` of pages that are still in memory, in case the process ends.
    pub disk_replicas: DiskReplicaBounds,
    /// Number of a prompt's leading documents whose pages are kept; `None` keeps all. A prompt with more documents is
    /// kept up to the end of the last of these (RAGCache §5.4).
    pub max_documents: Option<u32>,
    /// Distinguishes this model's pages from those of all other models, see [`PageHash::root`](super::PageHash::root).
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

/// Bounds of the copies on disk of pages that are still in memory. The default keeps none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiskReplicaBounds {
    /// Maximum number of pages in memory that have a copy on disk.
    pub pages: u32,
    /// Maximum number of pages written in a second, on average.
    pub pages_per_second: f64,
    /// Maximum number of pages written before one step, since the engine's thread copies them.
    pub pages_per_step: u32,
}

/// Sizes of a backend's page pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Pages in the memory that the device computes on.
    pub device: u32,
    /// Pages in host memory.
    pub host: u32,
    /// Tokens in each page, at least one.
    pub tokens: u32,
}
