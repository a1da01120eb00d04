//! Foreword as a proxy-wasm HTTP filter: the HTTP layer around the core, [`foreword_ordering`].
//!
//! The filter reads a request's body up to a size limit, passes it to the core, replaces the body by the core's result,
//! and reports the changes in one response header and a few counters. It decides nothing about documents; a rule found
//! here that is not about HTTP belongs in the core.
//!
//! ```text
//!            client ──► Envoy worker thread, one Wasm VM ──► engine
//!                          │
//!   proxy (wasm32 only)    │  callbacks of the proxy-wasm SDK, host calls
//!      ▼                   │
//!   Exchange               │  one per request: hold, read, rewrite or pass, report
//!      ▼                   │
//!   Plugin                 │  one per configuration: checked config, orderer, metric ids
//!      ▼
//!   foreword_ordering::Orderer
//! ```
//!
//! [`Exchange`] and [`Plugin`] know the proxy only through the small trait [`Host`], so plain `cargo test` drives them
//! with a scripted host; `proxy`, the only module compiled for Wasm alone, implements the trait with host calls.
//!
//! A trap in a filter truncates every stream of its worker, so nothing here may panic on input: unwraps, raw indexing
//! and unchecked arithmetic are compile errors outside the tests, and every size has a bound.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod agreement;
mod answers;
mod config;
mod counter;
mod dialect;
mod engines;
mod exchange;
mod feed;
mod host;
#[cfg(any(target_arch = "wasm32", test))]
mod metric_buffer;
mod metrics;
mod misses;
mod outcome;
mod pending;
mod plugin;
#[cfg(target_arch = "wasm32")]
mod proxy;
mod retrieval;
mod salt;
mod shared;
#[cfg(not(target_arch = "wasm32"))]
mod shared_data;
mod swap;
#[cfg(test)]
mod tests;
mod usage;

pub use config::{
    Config, ConfigError, Mode, OnFailure, PathHeader, RequestHeaders, SCHEMA, SaltKey, TenantSource,
};
pub use engines::DESTINATION_HEADER;
pub use exchange::{Exchange, Flow};
pub use foreword_ordering::{EngineId, MAX_ENGINES};
pub use host::{EnginePool, Host, HostError, LogLevel, MetricId, PoolEngine, Resumer};
pub use outcome::RequestOutcome;
pub use plugin::{Plugin, Tick};
#[cfg(not(target_arch = "wasm32"))]
pub use shared_data::SharedData;
