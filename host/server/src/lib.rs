//! Foreword's server: an OpenAI-compatible HTTP server on top of `foreword-engine`.
//!
//! ```text
//!  main ── arguments ──▶ serve: bind, open, stop
//!                          │ phases and number of requests: gate
//!  client ──HTTP──▶ api ───┤
//!                          │ bodies within bounds, unknown routes and keys refused: http
//!                          │ bytes -> checked request: request
//!                          │ checked request -> tokens -> generation: model
//!                          │ generation -> pieces of text, usage, timings: answer
//!  client ◀─JSON/SSE─ api ─┘ errors -> status and message: failure
//! ```
//!
//! This package converts HTTP requests to engine requests and engine events to HTTP responses. How prompts are cached,
//! scheduled and computed is up to the engine; how documents are ordered is up to the gateway.

pub mod answer;
pub mod api;
mod app;
pub mod batches;
pub mod bridge;
mod canary;
pub mod device;
pub mod failure;
pub mod gate;
pub mod grammars;
mod http;
mod ids;
pub mod keys;
pub mod kv;
mod listeners;
pub mod metrics;
pub mod model;
pub mod request;
pub mod retrieval;
pub mod serve;
pub mod spans;
pub mod tiers;
pub mod transcripts;
pub mod zmtp;

pub use foreword_process::connections;
