//! The arguments of the cache's tiers and of eviction.

use crate::cli::size::size;
use foreword_engine::cache::{CacheConfig, EvictionPolicy};
use foreword_process::share;
use foreword_server::device::KvSize;
use foreword_server::tiers::{DiskFile, Tiers};
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
#[group(id = "caching")]
pub(crate) struct Arguments {
    /// Tokens of KV state to keep in host memory when the device's pool is full
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    kv_host_tokens: u32,
    /// Memory for that KV state instead, in bytes or as 4GiB
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "kv_host_tokens")]
    kv_host_memory_bytes: Option<u64>,
    /// Share of the host memory for copies of the most used KV state that is still on the device, which survive a lost
    /// device, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = CacheConfig::default().replicated_share, value_parser = share)]
    kv_host_replica_share: f64,
    /// File for KV state when memory is full; it survives the server and is as confidential as the prompts
    #[arg(long, value_name = "FILE")]
    kv_disk: Option<PathBuf>,
    /// Largest size of the file in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4_096, requires = "kv_disk", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    kv_disk_mib: u64,
    /// Part of the file for copies of the most used KV state that is still in memory, in bytes or as 1GiB: a restarted
    /// server finds it even if the last one was killed; 0 for none [default: a quarter of the file]
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "kv_disk")]
    kv_disk_replicas: Option<u64>,
    /// Bytes of such copies written in a second, on average, in bytes or as 64MiB
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "64MiB", requires = "kv_disk")]
    kv_disk_replica_rate: u64,
    /// Eviction policy of KV state: lru, lfu, gdsf, pgdsf or pgdsf-paper
    #[arg(long, value_name = "POLICY", default_value_t)]
    kv_policy: EvictionPolicy,
    /// Documents of a prompt to keep, its first ones; nothing is kept from the next one on [default: all]
    #[arg(long, value_name = "DOCUMENTS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    kv_cached_documents: Option<u32>,
    /// File for the measured cost of computing, which pgdsf and pgdsf-paper weigh; measured once for a model and machine
    /// [default: beside --kv-disk, or in the user's cache folder]
    #[arg(long, value_name = "FILE")]
    kv_profile: Option<PathBuf>,
    /// Seconds to measure the cost for, at a start that finds no file of this model and machine
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    kv_profile_s: u64,
}

impl Arguments {
    /// Returns a description of conflicting arguments; `None` if there are none.
    pub(crate) fn conflict(&self, page_tokens: u32) -> Option<String> {
        let tokens = self.kv_host_tokens;
        // Whether a size in bytes has room for a page is known only when the model is loaded.
        let in_tokens = self.kv_host_memory_bytes.is_none();
        (self.kv_disk.is_some() && in_tokens && tokens < page_tokens).then(|| {
            format!(
                "--kv-disk needs --kv-host-tokens of at least one page, {page_tokens}, not {tokens}: what is read from disk goes there first"
            )
        })
    }

    /// Returns the size of the page pool in host memory.
    pub(crate) fn host_size(&self) -> KvSize {
        self.kv_host_memory_bytes
            .map_or(KvSize::Tokens(self.kv_host_tokens), KvSize::Bytes)
    }

    pub(crate) fn tiers(&self) -> Tiers {
        Tiers {
            policy: self.kv_policy,
            max_documents: self.kv_cached_documents,
            host_replica_share: self.kv_host_replica_share,
            disk: self.kv_disk.clone().map(|path| DiskFile {
                path,
                capacity: self.kv_disk_mib << 20,
                replica_bytes: (self.kv_disk_replicas).unwrap_or((self.kv_disk_mib << 20) / 4),
                replica_bytes_per_second: self.kv_disk_replica_rate,
            }),
            profile: self.kv_profile.clone(),
            profile_budget: Duration::from_secs(self.kv_profile_s),
        }
    }
}
