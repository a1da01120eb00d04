//! The arguments of batches.

use foreword_ordering::RawConfig;
use foreword_server::batches::{Bounds, Config};
use foreword_simulation::BatchOrder;
use foreword_tools::options::batch_order;
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
#[group(id = "batching")]
pub(crate) struct Arguments {
    /// Take files and batches (/v1/files, /v1/batches) and keep them in this folder, for their API key alone. Batches
    /// go on after a restart
    #[arg(long, value_name = "DIR")]
    batch_dir: Option<PathBuf>,
    /// Order in which a batch is asked: as planned, with its documents ordered so that prompts share most; or as in the
    /// file, with its documents ordered by --ordering's policy
    #[arg(long, value_parser = batch_order(), value_name = "ORDER", default_value = "plan", requires = "batch_dir")]
    batch_order: BatchOrder,
    /// Requests of batches in flight at once; they are asked while no other request waits in the queue
    #[arg(long, value_name = "C", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256), requires = "batch_dir")]
    batch_concurrency: u16,
    /// Requests of one batch
    #[arg(long, value_name = "REQUESTS", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000), requires = "batch_dir")]
    batch_requests: u32,
    /// Batches that are not at their end; with several API keys one has half of this at most, and of the two below
    #[arg(long, value_name = "BATCHES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000), requires = "batch_dir")]
    batch_active: u32,
    /// Files kept at once
    #[arg(long, value_name = "FILES", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000), requires = "batch_dir")]
    batch_files: u32,
    /// Space on the disk for files and answers, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=1 << 24), requires = "batch_dir")]
    batch_mib: u32,
    /// Seconds that a file is kept
    #[arg(long, value_name = "SECONDS", default_value_t = 2_592_000, value_parser = clap::value_parser!(u64).range(60..=31_536_000), requires = "batch_dir")]
    batch_file_s: u64,
}

impl Arguments {
    /// Returns the configuration of batches; `None` without `--batch-dir`.
    pub(crate) fn config(&self, ordering: RawConfig) -> Option<Config> {
        let folder = self.batch_dir.clone()?;
        Some(Config {
            folder,
            bounds: Bounds {
                files: self.batch_files as usize,
                bytes: u64::from(self.batch_mib) << 20,
                requests: self.batch_requests,
                batches: self.batch_active as usize,
                time: Duration::from_secs(self.batch_file_s),
            },
            concurrency: self.batch_concurrency,
            order: self.batch_order,
            ordering,
        })
    }
}
