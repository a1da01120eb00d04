//! The KV feed of an engine that speaks of blocks alone: vLLM, and whatever publishes its events.
//!
//! ```text
//!   gateway ── requests, mirrored ──▶ tokens, ends of documents ──▶ prompt(…) ─┐
//!                                                                              ├─ Blocks ── CacheEvent ──▶ Feed
//!   engine ─── BlockStored, … ──────▶ crate::kv::vllm::read ──────▶ event(…) ──┘
//! ```
//!
//! An engine's events name tokens and hashes of its own; nothing in them says where a document begins. The gateway's
//! requests say which documents a prompt has, and the model's own template and tokenizer where they end. [`Blocks`]
//! brings the two together. What comes out is what the cache of our own engine tells, so the same feed serves it.

mod blocks;

pub use blocks::{Blocks, Limits};
