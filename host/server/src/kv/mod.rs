//! What is held in the engine's cache, told to gateways and routers.
//!
//! ```text
//!   request ── path header, body, prompt ──▶ place: where its documents end, in tokens ──▶ engine
//!                                                                                            │ feed
//!   gateway ◀── documents, JSON over HTTP ── http ◀── wire ◀─────────────────────────────────┤
//!   router  ◀── pages, vLLM's ZeroMQ feed ── publisher ◀── vllm ◀────────────────────────────┘
//! ```
//!
//! The HTTP feed tells of every tenant's documents, by hash and without a word of text. It asks for its own keys where
//! there are some, else for those of the API. The ZeroMQ feed, like vLLM's own, holds the prompts as token ids and asks
//! nobody for anything: it is off unless it is given an address, which should be one that only routers reach.

pub mod http;
pub mod place;
pub mod publisher;
pub mod vllm;
pub mod wire;
