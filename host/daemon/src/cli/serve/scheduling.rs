//! The arguments that say which waiting request goes next, and when a device counts as stuck.

use clap::ValueEnum;
use foreword_engine::engine::{EngineConfig, Rule};
use std::time::Duration;

#[derive(clap::Args)]
#[group(id = "scheduling")]
pub(crate) struct Arguments {
    /// Which of a tenant's waiting requests goes first; between tenants shares are always fair
    #[arg(long, value_enum, default_value_t = Order::CachedFirst)]
    queue_order: Order,
    /// Later requests of its tenant that may go before a request, with `cached-first`
    #[arg(long, value_name = "REQUESTS", default_value_t = Rule::WINDOW, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    queue_window: u32,
    /// Requests of one tenant that may wait; more are refused with 429 [default: as many as of all]
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_waiting_per_tenant: Option<u32>,
    /// Requests waiting from which on warming up and guesses at prompts are refused
    #[arg(long, value_name = "REQUESTS", default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    max_prefill_batch: u32,
    /// Seconds that a step may take before the engine is restarted on a fresh copy of the model; 0: any time
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    watchdog_s: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Order {
    /// What is cached most, in relation to what is to be computed
    CachedFirst,
    /// What begins with the same documents, together
    Grouped,
    /// First come, first served
    Arrival,
}

impl Arguments {
    /// A configuration with what these arguments say; the rest is the engine's default.
    pub(crate) fn config(&self) -> EngineConfig {
        EngineConfig {
            order: match self.queue_order {
                Order::CachedFirst => Rule::CachedFirst {
                    window: self.queue_window,
                },
                Order::Grouped => Rule::PathGroups,
                Order::Arrival => Rule::Arrival,
            },
            // The bound of all requests holds besides.
            max_waiting_per_tenant: self.max_waiting_per_tenant.unwrap_or(u32::MAX),
            max_prefill_batch: self.max_prefill_batch,
            watchdog: (self.watchdog_s > 0).then(|| Duration::from_secs(self.watchdog_s)),
            ..EngineConfig::default()
        }
    }
}
