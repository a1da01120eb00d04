//! The arguments for storing responses, which later requests may continue.

use foreword_server::transcripts::Bounds;
use std::time::Duration;

#[derive(clap::Args)]
#[group(id = "storing")]
pub(crate) struct Arguments {
    /// Keep responses for /v1/responses' `previous_response_id`, in memory, for their tenant alone; without it a client
    /// sends the earlier items itself
    #[arg(long)]
    store: bool,
    /// Responses kept at once; the oldest of the tenant that holds most makes room
    #[arg(long, value_name = "RESPONSES", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000), requires = "store")]
    store_responses: u32,
    /// Memory for them, in MiB: each holds its chat from the beginning
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1 << 20), requires = "store")]
    store_mib: u32,
    /// Seconds that a response is kept
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400, value_parser = clap::value_parser!(u64).range(1..=2_592_000), requires = "store")]
    store_s: u64,
}

impl Arguments {
    /// Returns the limits of stored responses; `None` without `--store`.
    pub(crate) fn bounds(&self) -> Option<Bounds> {
        self.store.then(|| Bounds {
            responses: self.store_responses as usize,
            bytes: (self.store_mib as usize) << 20,
            time: Duration::from_secs(self.store_s),
        })
    }
}
