//! vLLM's KV events, as its publisher puts them on the wire (`vllm/distributed/kv_events.py`).
//!
//! ```text
//!   [ts, [event, …], dp_rank]                                            a batch: always an array
//!   {"type": "BlockStored", "block_hashes": […], "parent_block_hash": …, "token_ids": […], "block_size": 16, …}
//!   ["BlockStored", block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name, extra_keys, …]
//! ```
//!
//! vLLM has sent events as maps since the middle of 2026 (its pull request 42892) and as arrays before, and every few
//! months a field more. [`mod@write`] makes both forms; [`read`] takes both, whatever fields they have beside those it knows.

pub mod read;
pub mod write;

/// How an event is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// Fields by name.
    #[default]
    Map,
    /// Fields by place.
    Array,
}
