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

/// Returns the folder for files that the program can recreate: `foreword` in `$XDG_CACHE_HOME`, or in the user's
/// `.cache`. Returns `None` if the variable is unset and the user has no home directory. The folder may not exist yet.
pub fn cache_folder() -> Option<std::path::PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(std::path::PathBuf::from);
    let cache = cache.or_else(|| Some(std::env::home_dir()?.join(".cache")))?;
    Some(cache.join("foreword"))
}

/// A token's id: its index in the model's vocabulary.
pub type TokenId = u32;
