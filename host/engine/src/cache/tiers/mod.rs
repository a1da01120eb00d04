//! The tiers of the cache, and the moves of pages between device, host memory and disk.
//!
//! | file | subject |
//! | --- | --- |
//! | `residence` | where a node's page is: device, host memory, or both |
//! | `pool` | which pages of a tier are free |
//! | `queue`, `policy`, `history` | which page of a tier is evicted next, and how often a page was used before it was evicted |
//! | `evict` | eviction from a full tier |
//! | `fetch` | reading ahead from the disk |
//! | `disk_replicas` | which pages of memory are copied to the disk before they are evicted |
//! | `transfers` | the copies between tiers that are under way |

pub(super) mod disk_replicas;
pub(super) mod evict;
pub(super) mod fetch;
pub(super) mod history;
pub(super) mod policy;
pub(super) mod pool;
pub(super) mod queue;
pub(super) mod residence;
pub(super) mod transfers;
