//! Tests the server over real HTTP, with the real engine on a scripted backend (see `support::parrot`).
//!
//! There is one test binary, so that it links once.

mod batches;
mod binary;
mod bridge;
mod chat;
mod choices;
mod completions;
mod dashboard;
mod doctor;
mod drop_in;
mod format;
mod hostile;
mod killed;
mod kv;
mod kv_zmq;
mod lifecycle;
mod limits;
mod logprobs;
mod messages;
mod pipeline;
mod ports;
mod probes;
mod records;
mod refusals;
mod responses;
mod retrieval;
mod sdks;
mod streaming;
mod support;
mod tokens;
mod tools;
mod traces;
