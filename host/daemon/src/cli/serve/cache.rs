//! The arguments that say what is kept beyond its use, and where.

use foreword_engine::cache::EvictionPolicy;
use foreword_server::tiers::{DiskFile, Tiers};
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
#[group(id = "caching")]
pub(crate) struct Arguments {
    /// Tokens of KV state to make room for in memory beside the pool, for what has no room there any more
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    pub(crate) kv_host_tokens: u32,
    /// File for KV state that memory has no room for; it outlives the server and is as confidential as the prompts
    #[arg(long, value_name = "FILE")]
    kv_disk: Option<PathBuf>,
    /// Mebibytes that the file may have
    #[arg(long, value_name = "MIB", default_value_t = 4_096, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    kv_disk_mib: u64,
    /// Which KV state goes first: lru, lfu, gdsf or pgdsf
    #[arg(long, value_name = "POLICY", default_value_t)]
    kv_policy: EvictionPolicy,
    /// File for what computing costs here, which is measured once, for gdsf and pgdsf [default: beside --kv-disk]
    #[arg(long, value_name = "FILE")]
    kv_profile: Option<PathBuf>,
    /// Seconds to measure it for
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    kv_profile_s: u64,
}

impl Arguments {
    /// What is wrong with them together.
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
