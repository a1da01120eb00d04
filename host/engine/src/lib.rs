//! The engine: turns token sequences into more tokens and keeps the KV state of what it has seen.
//!
//! ```text
//!            Request                        Event
//!   daemon ──────────▶ engine (one thread) ───────▶ daemon
//!                        │  plan(state) -> Step     scheduler: who computes what next
//!                        │  match, reserve, insert  cache: which pages hold which prefix
//!                        ▼  run(&Step)              backend: computes on weights and pages
//! ```
//!
//! Three rooms that know little of each other: [`cache`] knows pages and prefixes but no arithmetic,
//! [`scheduler`] is a function from state to plan, [`backend`] computes a planned step and knows no request.
//! [`models`] reads checkpoints, [`text`] stands between strings and tokens.

// Lets unit tests use `tests/support`, which names the crate as its users do.
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

/// A token of a model's vocabulary.
pub type TokenId = u32;
