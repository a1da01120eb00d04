//! The arguments of the cache's further tiers and of eviction.

use foreword_engine::cache::EvictionPolicy;
use foreword_server::tiers::{DiskFile, Tiers};
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
#[group(id = "caching")]
pub(crate) struct Arguments {
    /// Tokens of KV state to keep in host memory when the device's pool is full
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    pub(crate) kv_host_tokens: u32,
    /// File for KV state when memory is full; it survives the server and is as confidential as the prompts
    #[arg(long, value_name = "FILE")]
    kv_disk: Option<PathBuf>,
    /// Largest size of the file in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4_096, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    kv_disk_mib: u64,
    /// Eviction policy of KV state: lru, lfu, gdsf or pgdsf
    #[arg(long, value_name = "POLICY", default_value_t)]
    kv_policy: EvictionPolicy,
    /// File for the measured cost of computing, for gdsf and pgdsf; measured once [default: beside --kv-disk]
    #[arg(long, value_name = "FILE")]
    kv_profile: Option<PathBuf>,
    /// Seconds to measure the cost for
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    kv_profile_s: u64,
}

impl Arguments {
    /// Returns the conflict between arguments, if there is one.
    pub(crate) fn conflict(&self, page_tokens: u32) -> Option<String> {
        let tokens = self.kv_host_tokens;
        (self.kv_disk.is_some() && tokens < page_tokens).then(|| {
            format!(
                "--kv-disk needs --kv-host-tokens of at least one page, {page_tokens}, not {tokens}: what is read from disk goes there first"
            )
        })
    }

    pub(crate) fn tiers(&self) -> Tiers {
        Tiers {
            policy: self.kv_policy,
            disk: self.kv_disk.clone().map(|path| DiskFile {
                path,
                capacity: self.kv_disk_mib << 20,
            }),
            profile: self.kv_profile.clone(),
            profile_budget: Duration::from_secs(self.kv_profile_s),
        }
    }
}
