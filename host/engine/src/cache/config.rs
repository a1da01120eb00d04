//! What a cache is made of.

use super::disk_tier::DiskTier;
use super::policy::EvictionPolicy;
use std::fmt;
use std::sync::Arc;

/// Seconds that it takes to compute a prompt: `(cached tokens, further tokens)`.
pub type Cost = dyn Fn(u32, u32) -> f64 + Send + Sync;

/// How pages are kept beyond their use.
#[derive(Clone)]
pub struct CacheConfig {
    /// Which go first, on the device and in host memory.
    pub policy: EvictionPolicy,
    /// What computing costs; `None`: the same for every token.
    pub cost: Option<Arc<Cost>>,
    /// Share of the host's pages, 0 to 1, that copies of the most used pages may take while the device has them as
    /// well, so that they outlive it.
    pub replicated_share: f64,
    /// Where pages go that host memory has no room for.
    pub disk: Option<Arc<dyn DiskTier>>,
    /// What tells this model's pages from all others', see [`PageHash::root`](super::PageHash::root).
    pub identity: u64,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            policy: EvictionPolicy::default(),
            cost: None,
            replicated_share: 0.05,
            disk: None,
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
            .field("identity", &self.identity)
            .finish()
    }
}

/// Pages of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Where it computes.
    pub device: u32,
    /// Beside it, in the host's memory.
    pub host: u32,
    /// Tokens in each, at least one.
    pub tokens: u32,
}
