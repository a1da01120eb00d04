//! vLLM's KV events on the wire (`vllm/distributed/kv_events.py`).
//!
//! ```text
//!   [ts, [event, …], dp_rank]                                            a batch: always an array
//!   {"type": "BlockStored", "block_hashes": […], "parent_block_hash": …, "token_ids": […], "block_size": 16, …}
//!   ["BlockStored", block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name, extra_keys, …]
//! ```
//!
//! vLLM has sent events as maps since the middle of 2026 (pull request 42892) and as arrays before. [`mod@write`]
//! writes either form; [`read`] accepts both, and ignores unknown fields.

pub mod read;
pub mod write;

/// The encoding of one of vLLM's KV events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// Fields by name, in a map.
    #[default]
    Map,
    /// Fields by position, in an array.
    Array,
}
