//! The arguments of the queue's order and of the watchdog.

use clap::ValueEnum;
use foreword_engine::engine::{EngineConfig, PrefillBatch, Rule};
use std::time::Duration;

#[derive(clap::Args)]
#[group(id = "scheduling")]
pub(crate) struct Arguments {
    /// Order of one tenant's waiting requests; between tenants shares are always fair
    #[arg(long, value_enum, default_value_t = Order::CachedFirst)]
    queue_order: Order,
    /// Most later requests of its tenant that may overtake a request; with `arrival` none does [default: 32, with
    /// `grouped` 256]
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(0..=65_536))]
    queue_window: Option<u32>,
    /// Most requests of one tenant that wait; more are refused with 429 [default: the bound of all tenants]
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_waiting_per_tenant: Option<u32>,
    /// Most requests of one tenant that are computed at once; what is left of --max-running stays free for others
    /// [default: no bound]
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    max_running_per_tenant: Option<u32>,
    /// Number of waiting requests from which on warm-ups and speculation are refused; `derived`: as many tokens of
    /// prompts as use the device fully, as RAGCache has it
    #[arg(long, value_name = "REQUESTS", default_value = "4", value_parser = prefill_batch)]
    max_prefill_batch: PrefillBatch,
    /// Most times that a request is computed again after failures of the device
    #[arg(long, value_name = "TIMES", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    max_retries: u32,
    /// Switch the prefix cache off: every prompt is computed whole, and nothing is kept
    #[arg(long, conflicts_with_all = ["kv_host_tokens", "kv_host_memory_bytes", "kv_disk"])]
    no_enable_prefix_caching: bool,
    /// Seconds that a step may take before the engine is restarted on a fresh copy of the model; 0: any time
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    watchdog_s: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Order {
    /// The largest cached share first, in sixteenths
    CachedFirst,
    /// The largest cached share first, exactly, as RAGCache has it
    ExactlyCachedFirst,
    /// The largest cached share first, then the requests whose documents most others open with
    Grouped,
    /// First come, first served
    Arrival,
}

fn prefill_batch(text: &str) -> Result<PrefillBatch, String> {
    if text == "derived" {
        return Ok(PrefillBatch::Derived);
    }
    let number = text.parse().ok().filter(|number| *number <= 65_536);
    let number = number.ok_or("it must be a number from 0 to 65536, or `derived`")?;
    Ok(PrefillBatch::Requests(number))
}

impl Arguments {
    /// Returns the engine's configuration with these arguments, and with defaults for the rest.
    pub(crate) fn config(&self) -> EngineConfig {
        EngineConfig {
            order: match self.queue_order {
                Order::CachedFirst => Rule::CachedFirst {
                    window: self.queue_window.unwrap_or(Rule::WINDOW),
                },
                Order::ExactlyCachedFirst => Rule::ExactlyCachedFirst {
                    window: self.queue_window.unwrap_or(Rule::WINDOW),
                },
                Order::Grouped => Rule::Grouped {
                    window: self.queue_window.unwrap_or(Rule::GROUP_WINDOW),
                },
                Order::Arrival => Rule::Arrival,
            },
            // The limit on all waiting requests applies as well.
            max_waiting_per_tenant: self.max_waiting_per_tenant.unwrap_or(u32::MAX),
            max_running_per_tenant: self.max_running_per_tenant.unwrap_or(u32::MAX),
            prefix_caching: !self.no_enable_prefix_caching,
            max_retries: self.max_retries,
            max_prefill_batch: self.max_prefill_batch,
            watchdog: (self.watchdog_s > 0).then(|| Duration::from_secs(self.watchdog_s)),
            ..EngineConfig::default()
        }
    }
}
