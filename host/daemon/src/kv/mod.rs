//! What is held in the engine's cache, told to gateways and routers.
//!
//! ```text
//!   request ── path header, body, prompt ──▶ place: where its documents end, in tokens ──▶ engine
//!                                                                                            │ feed
//!   gateway ◀── documents, JSON over HTTP ── wire ◀── api::kv ◀──────────────────────────────┤
//!   router  ◀── pages, vLLM's ZeroMQ feed ── vllm ◀── publisher ◀────────────────────────────┘
//! ```
//!
//! Both feeds tell of every tenant's documents and pages, by hash and without a word of text. Who may read them is the
//! operator's decision: the HTTP feed asks for its own keys where there are some, else for those of the API; the
//! ZeroMQ feed, like vLLM's, asks for nothing and is off unless it is given an address.

pub mod http;
pub mod place;
pub mod publisher;
pub mod vllm;
pub mod wire;
