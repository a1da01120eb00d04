//! The inference engine: it generates tokens after token sequences and caches the KV state of prefixes that it has
//! computed.
//!
//! ```text
//!            Request                        Event
//!   daemon ──────────▶ engine (one thread) ───────▶ daemon
//!                        │  plan(state) -> Plan     scheduler: which sequences compute what next
//!                        │  open, commit, close     cache: which pages hold which prefix
//!                        ▼  run(&Step)              backend: computes on weights and pages
//! ```
//!
//! Three modules know little of each other: [`cache`] knows pages and prefixes but no arithmetic, [`scheduler`] is a
//! function from state to plan, and [`backend`] computes a planned step and knows no request. [`models`] reads
//! checkpoints, and [`text`] converts between strings and tokens.

// Lets unit tests include `tests/support`, which names the crate as its users do.
#[cfg(test)]
extern crate self as foreword_engine;

pub mod backend;
pub mod cache;
pub mod cost;
pub mod engine;
pub mod models;
pub mod sampling;
pub mod scheduler;
pub mod text;

/// A token's index in a model's vocabulary.
pub type TokenId = u32;
