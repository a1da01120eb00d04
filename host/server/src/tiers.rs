//! Opens the disk tier of the prefix cache and the measured cost of computing, before the engine starts.
//!
//! This module chooses the files' paths and logs what was found; the engine owns their content.

use crate::device::Opened;
use anyhow::{Context, ensure};
use foreword_engine::cache::disk::{DiskConfig, DiskStore, Origin};
use foreword_engine::cache::{CacheConfig, Cost, DiskReplicaBounds, EvictionPolicy};
use foreword_engine::cache_folder;
use foreword_engine::engine::profile::{
    ProfileError, ProfileKey, ProfileOptions, ProfileOrigin, load_or_measure,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The configuration of the prefix cache below device memory, and of eviction from it.
#[derive(Clone, Debug)]
pub struct Tiers {
    /// The policy by which pages of KV state are evicted.
    pub policy: EvictionPolicy,
    /// Number of documents at the beginning of a prompt whose pages are cached; `None` for all documents.
    pub max_documents: Option<u32>,
    /// Share of the host memory's pages for copies of the most used pages that are still on the device, 0 to 1.
    pub host_replica_share: f64,
    /// The disk tier; `None` if there is none. It needs host memory for at least one page.
    pub disk: Option<DiskFile>,
    /// File for the measured cost of computing. `None` for a file next to the disk tier's or else in the user's cache
    /// folder.
    pub profile: Option<PathBuf>,
    /// Time limit for measuring the cost of computing, if the eviction policy depends on it.
    pub profile_budget: Duration,
}

/// The file of the disk tier of the prefix cache.
#[derive(Clone, Debug)]
pub struct DiskFile {
    /// Path of the disk tier's file, which need not exist yet.
    pub path: PathBuf,
    /// Maximum size of the disk tier's file, in bytes.
    pub capacity: u64,
    /// Maximum number of bytes of the file that hold replicas (copies on disk of pages that are still in memory); 0 for
    /// no replicas.
    pub replica_bytes: u64,
    /// Maximum rate, averaged over time, at which replicas (copies on disk of pages that are still in memory) are
    /// written, in bytes per second; 0 for no replicas.
    pub replica_bytes_per_second: u64,
}

/// Maximum number of bytes of pages copied for replicas on disk before one step of the engine, or one page if that is
/// larger. The engine's thread copies them, at several gigabytes a second.
const REPLICA_BYTES_PER_STEP: u64 = 4 << 20;

impl Tiers {
    /// Opens the disk tier and measures the cost of computing, if needed, and returns the cache configuration for
    /// `device`. Nothing may run on the device yet, because measuring overwrites its pages. If `caching` is false,
    /// nothing is evicted, so no cost is measured.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or created; the chain of causes names it. Also if there is a disk tier
    /// but no host memory for a page.
    pub fn open(&self, device: &mut Opened, caching: bool) -> anyhow::Result<CacheConfig> {
        let shape = device.backend.shape();
        if self.disk.is_some() {
            ensure!(
                shape.host_pages > 0,
                "the disk tier needs host memory of at least one page, {} bytes: what is read from disk goes there first",
                shape.page_bytes
            );
        }
        let mut config = CacheConfig {
            policy: self.policy,
            max_documents: self.max_documents,
            replicated_share: self.host_replica_share,
            // The cache's own hashes are wide; this only separates models.
            identity: device.identity as u64,
            ..CacheConfig::default()
        };
        if caching && self.policy.weighs_cost() {
            let cost = self.cost(device);
            config.cost = Some(cost.context("cannot tell what computing costs")?);
        }
        if let Some(disk) = &self.disk {
            let store = disk.open(device).context("cannot open the disk tier")?;
            config.disk = Some(Arc::new(store));
            config.disk_replicas = disk.replicas(shape.page_bytes);
        }
        Ok(config)
    }

    /// Returns the cost of computing tokens on `device`, read from the file of an earlier measurement, or else measured
    /// now.
    fn cost(&self, device: &mut Opened) -> anyhow::Result<Arc<Cost>> {
        let max_step_tokens = device.max_step_tokens;
        let key = ProfileKey {
            identity: device.identity,
            machine: format!("{}, steps of {max_step_tokens}", device.machine),
        };
        let options = ProfileOptions {
            budget: self.profile_budget,
            max_step_tokens,
        };
        let mut path = self.profile_path(&key);
        let start = Instant::now();
        let mut measured = load_or_measure(path.as_deref(), &key, &mut *device.backend, &options);
        if let Err(error @ ProfileError::Io { .. }) = &measured
            && self.profile.is_none()
            && self.disk.is_none()
        {
            tracing::warn!(%error, "the cost profile is not kept");
            path = None;
            measured = load_or_measure(None, &key, &mut *device.backend, &options);
        }
        let (profile, origin) = measured?;
        let path = path.unwrap_or_default();
        let path = path.display();
        match origin {
            ProfileOrigin::Loaded => tracing::info!(%path, "cost profile loaded"),
            ProfileOrigin::Measured { discarded } => {
                if let Some(reason) = discarded {
                    tracing::warn!(%path, reason, "cost profile discarded");
                }
                let (points, seconds) = (profile.points(), start.elapsed().as_secs_f32());
                tracing::info!(%path, points, seconds, "cost profile measured");
            }
        }
        Ok(Arc::new(move |cached, new| profile.seconds(cached, new)))
    }

    /// Returns the path of the file for the measured cost of computing; `None` if there is no folder for it, so that
    /// each start measures the cost.
    fn profile_path(&self, key: &ProfileKey) -> Option<PathBuf> {
        if let Some(path) = &self.profile {
            return Some(path.clone());
        }
        if let Some(disk) = &self.disk {
            return Some(disk.path.with_extension("profile.json"));
        }
        let folder = cache_folder()?.join("costs");
        std::fs::create_dir_all(&folder).ok()?;
        Some(folder.join(format!("{:032x}.json", key.identity)))
    }
}

impl DiskFile {
    /// Returns the limits on replicas (copies on disk of pages that are still in memory), in pages of `page_bytes`
    /// bytes.
    fn replicas(&self, page_bytes: usize) -> DiskReplicaBounds {
        let page_bytes = (page_bytes as u64).max(1);
        let pages = self.replica_bytes.min(self.capacity) / page_bytes;
        DiskReplicaBounds {
            pages: match self.replica_bytes_per_second {
                0 => 0,
                _ => u32::try_from(pages).unwrap_or(u32::MAX),
            },
            pages_per_second: self.replica_bytes_per_second as f64 / page_bytes as f64,
            pages_per_step: (REPLICA_BYTES_PER_STEP / page_bytes).clamp(1, 64) as u32,
        }
    }

    fn open(&self, device: &Opened) -> anyhow::Result<DiskStore> {
        let config = DiskConfig {
            capacity: self.capacity,
            identity: device.identity,
            page_bytes: device.backend.shape().page_bytes,
        };
        let store = DiskStore::open(&self.path, &config)?;
        let (path, slots) = (self.path.display(), store.stats().slots);
        match store.origin() {
            Origin::Created => tracing::info!(%path, slots, "disk tier created"),
            Origin::Restored(pages) => tracing::info!(%path, pages, slots, "disk tier restored"),
            Origin::Discarded(reason) => {
                tracing::warn!(%path, slots, reason, "disk tier discarded, an empty one made");
            }
        }
        Ok(store)
    }
}
