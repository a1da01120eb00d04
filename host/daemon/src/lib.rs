//! Foreword's host: an OpenAI-compatible HTTP server over `foreword-engine`.
//!
//! ```text
//!  main ── arguments ──▶ serve: bind, open, stop
//!                          │ phases and head count: gate
//!  client ──HTTP──▶ api ───┤
//!                          │ bytes -> checked request: request
//!                          │ checked request -> tokens -> generation: model
//!                          │ generation -> pieces of text, usage, timings: answer
//!  client ◀─JSON/SSE─ api ─┘ anything that went wrong -> status and wording: failure
//! ```
//!
//! Beside the server stand [`replay`]: what ordering would save on a log of requests, computed without any engine;
//! [`evaluate`]: whether any engine's answers are as good when documents stand in another order; and
//! [`check`]: whether the gateway's filter would take a configuration.
//!
//! This package turns HTTP into engine requests and engine events into HTTP. How prompts are cached, scheduled and
//! computed is the engine's; how documents are ordered is the gateway's.

pub mod answer;
pub mod api;
pub mod bridge;
pub mod check;
pub mod connections;
pub mod device;
pub mod evaluate;
pub mod explain;
pub mod failure;
pub mod gate;
pub mod keys;
pub mod kv;
mod log;
pub mod metrics;
pub mod model;
mod progress;
pub mod replay;
pub mod request;
pub mod retrieval;
pub mod serve;
pub mod spans;
pub mod tiers;
