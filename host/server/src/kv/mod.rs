//! Reports to gateways and routers what the engine has cached.
//!
//! ```text
//!   request ── path header, body, prompt ──▶ place: its documents' ends, in tokens ────────▶ engine
//!                                                                                            │ feed
//!   gateway ◀── documents, JSON over HTTP ── http ◀── wire ◀─────────────────────────────────┤
//!   gateway ── requests ──▶ records ──▶ other gateways                                       │
//!   router  ◀── pages, vLLM's ZeroMQ feed ── publisher ◀── vllm ◀────────────────────────────┘
//! ```
//!
//! The HTTP feed reports every tenant's documents by hash, without text; it requires its own keys if configured, else
//! those of the API. The ZeroMQ feed contains the prompts as token ids, like vLLM's own, and requires no key. It is off
//! unless it has an address, which only routers should be able to reach.

pub mod http;
pub mod place;
pub mod publisher;
mod pushes;
pub(crate) mod query;
mod readers;
mod records;
pub mod vllm;
pub mod wire;
