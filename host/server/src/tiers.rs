//! The cache's lower tiers as the command line asks for them: what is opened and measured before the engine starts.
//!
//! Knows where files are and what the log should say of them; what stands in them is the engine's.

use crate::device::Opened;
use anyhow::Context;
use foreword_engine::cache::disk::{DiskConfig, DiskStore, Origin};
use foreword_engine::cache::{CacheConfig, EvictionPolicy};
use foreword_engine::engine::profile::{
    ProfileKey, ProfileOptions, ProfileOrigin, load_or_measure,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is kept beyond the device, and which pages go first.
#[derive(Clone, Debug)]
pub struct Tiers {
    /// Which pages go first.
    pub policy: EvictionPolicy,
    /// The disk tier; needs host pages.
    pub disk: Option<DiskFile>,
    /// Where the measured cost of computing is kept. `None`: beside the disk tier, if there is one.
    pub profile: Option<PathBuf>,
    /// Time to spend on measuring it; nothing is measured without a file to keep it in.
    pub profile_budget: Duration,
}

/// A file of pages.
#[derive(Clone, Debug)]
pub struct DiskFile {
    /// Where it is, or shall be.
    pub path: PathBuf,
    /// Bytes that it may have.
    pub capacity: u64,
}

impl Tiers {
    /// The engine's cache on a device, which nothing runs on yet.
    ///
    /// # Errors
    /// When a file cannot be read or made; the chain names it.
    pub fn open(&self, device: &mut Opened) -> anyhow::Result<CacheConfig> {
        let mut config = CacheConfig {
            policy: self.policy,
            // The cache's own hashes are wide; this only keeps models apart.
            identity: device.identity as u64,
            ..CacheConfig::default()
        };
        let beside = self
            .disk
            .as_ref()
            .map(|disk| disk.path.with_extension("profile.json"));
        if let Some(path) = self.profile.clone().or(beside) {
            let profile = self
                .measure(&path, device)
                .context("cannot tell what computing costs")?;
            config.cost = Some(profile);
        }
        if let Some(disk) = &self.disk {
            let store = disk.open(device).context("cannot open the disk tier")?;
            config.disk = Some(Arc::new(store));
        }
        Ok(config)
    }

    fn measure(
        &self,
        path: &Path,
        device: &mut Opened,
    ) -> anyhow::Result<Arc<dyn Fn(u32, u32) -> f64 + Send + Sync>> {
        let max_step_tokens = device.max_step_tokens;
        let key = ProfileKey {
            identity: device.identity,
            machine: format!("{}, steps of {max_step_tokens}", device.machine),
        };
        let options = ProfileOptions {
            budget: self.profile_budget,
            max_step_tokens,
        };
        let start = Instant::now();
        let (profile, origin) = load_or_measure(Some(path), &key, &mut *device.backend, &options)?;
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
}

impl DiskFile {
    fn open(&self, device: &Opened) -> anyhow::Result<DiskStore> {
        let config = DiskConfig {
            capacity: self.capacity,
            identity: device.identity,
            page_bytes: device.backend.page_bytes(),
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
